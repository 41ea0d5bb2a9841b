"""Exact privacy of objective perturbation in one and two dimensions, by change of variables and quadrature.

Without constraints the noise that leads to the release theta is b(theta) = -F'(theta), so the release has the density
nu(b(theta)) det F''(theta).  Losses are written out here and share no code with the toolkit.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
LogNoise = Callable[[Array], Array]
WIDTH = 0.5


@dataclass(frozen=True)
class Margins:
    """Losses of one margin ``<x, theta>``: records are the vectors y x, shape (n, d)."""

    kind: str

    def derivatives(self, margin: Array) -> tuple[Array, Array]:
        if self.kind == "logistic":
            s = np.exp(-np.logaddexp(0.0, margin))
            return -s, s * (1.0 - s)
        inside = np.abs(1.0 - margin) < WIDTH
        return -np.clip((1.0 - margin + WIDTH) / (2 * WIDTH), 0.0, 1.0), np.where(inside, 1 / (2 * WIDTH), 0.0)

    def slopes(self, theta: Array, records: Array) -> tuple[Array, Array]:
        """Sum of gradients, shape (m, d), and of Hessians, shape (m, d, d), at points theta, shape (m, d)."""
        first, second = self.derivatives(theta @ records.T)
        return first @ records, np.einsum("mn,ni,nj->mij", second, records, records)


@dataclass(frozen=True)
class Softmax:
    """Softmax over C classes of scalar features; theta are coordinates of weights that sum to zero, shape (m, C - 1).

    Records are (x, label), shape (n, 2).
    """

    basis: Array

    def slopes(self, theta: Array, records: Array) -> tuple[Array, Array]:
        classes = len(self.basis)
        gradient = np.zeros_like(theta)
        hessian = np.zeros((len(theta), theta.shape[1], theta.shape[1]))
        for x, label in records:
            score = x * theta @ self.basis.T
            p = np.exp(score - np.logaddexp.reduce(score, axis=1, keepdims=True))
            gradient += x * (p - np.eye(classes)[int(label)]) @ self.basis
            cov = np.einsum("mc,ce->mce", p, np.eye(classes)) - p[:, :, None] * p[:, None, :]
            hessian += x**2 * np.einsum("ci,mce,ej->mij", self.basis, cov, self.basis)
        return gradient, hessian


def log_density(loss: Margins | Softmax, theta: Array, records: Array, mu: float, noise: LogNoise) -> Array:
    """Log density of the release at points theta, shape (m, d)."""
    gradient, hessian = loss.slopes(theta, records)
    sign, log_det = np.linalg.slogdet(hessian + mu * np.eye(theta.shape[1]))
    assert (sign > 0).all()
    return np.asarray(noise(-gradient - mu * theta) + log_det)


def gaussian_noise(sigma: float) -> LogNoise:
    return lambda b: -(b**2).sum(axis=1) / (2 * sigma**2) - b.shape[1] * np.log(sigma * np.sqrt(2 * np.pi))


def grid(limit: float, points: int, dimension: int) -> tuple[Array, float]:
    """Return midpoints of a regular grid, shape (points^dimension, dimension), and the volume of a cell."""
    side = (np.arange(points) + 0.5) / points * 2 * limit - limit
    mesh = np.meshgrid(*[side] * dimension, indexing="ij")
    return np.stack([m.ravel() for m in mesh], axis=1), (2 * limit / points) ** dimension


def exact_delta(first: Array, second: Array, cell: float, epsilon: float) -> float:
    """Integrate the positive part of p - exp(epsilon) q over a grid, for log densities."""
    excess = np.exp(first) * np.maximum(-np.expm1(epsilon + second - first), 0.0)
    return float(excess.sum() * cell)
