"""Delta in more than one dimension: importance sampling of answers around the worst direction, with a confidence bound."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, ndtri

Array = NDArray[np.float64]
LogLaws = Callable[[Array], tuple[Array, Array]]

# Degrees of freedom of the proposal, whose tails are heavier than those of what it stands for, and the share that stays wide.
FREEDOM, WIDE = 8.0, 0.15
ROUNDS, BLOCK = 8, 5000
CONFIDENCE = 0.999


class Proposal:
    """A mixture of two Student laws with a common center."""

    def __init__(self, center: Array, root: Array, wide: Array) -> None:
        self.center, self.root, self.wide = center, root, wide

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        normal = rng.normal(size=(count, len(self.center)))
        normal = normal / np.sqrt(rng.chisquare(FREEDOM, size=(count, 1)) / FREEDOM)
        outer = rng.random(count) < WIDE
        return np.asarray(self.center + np.where(outer[:, None], normal @ self.wide.T, normal @ self.root.T))

    def log_density(self, points: Array) -> Array:
        parts = (np.log(1 - WIDE) + self._student(points, self.root), np.log(WIDE) + self._student(points, self.wide))
        return np.asarray(np.logaddexp(*parts))

    def _student(self, points: Array, root: Array) -> Array:
        d = len(self.center)
        square = (np.linalg.solve(root, (points - self.center).T) ** 2).sum(axis=0) / FREEDOM
        constant = gammaln((FREEDOM + d) / 2) - gammaln(FREEDOM / 2) - d / 2 * np.log(FREEDOM * np.pi)
        return np.asarray(constant - np.linalg.slogdet(root)[1] - (FREEDOM + d) / 2 * np.log1p(square))


def sampled_delta(
    log_laws: LogLaws, epsilon: float, center: Array, spread: Array, count: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Estimate ``integral (p - e^epsilon q)_+``; also returns what it exceeds with confidence.

    The proposal starts at `center`, with the root of a scale matrix `spread`, and moves to where delta comes from.
    """
    proposal = Proposal(center, 0.7 * spread, 1.5 * spread)
    for _ in range(ROUNDS):
        points, weight = weights(log_laws, proposal, epsilon, rng)
        if not weight.any():
            continue
        share = np.minimum(weight, np.quantile(weight[weight > 0], 0.98))
        share = share / share.sum()
        middle = share @ points
        gap = points - middle
        covariance = 1.3 * (gap * share[:, None]).T @ gap + 1e-4 * spread @ spread.T
        proposal = Proposal(middle, np.linalg.cholesky(covariance), proposal.wide)
    values = np.concatenate([weights(log_laws, proposal, epsilon, rng)[1] for _ in range(max(count // BLOCK, 1))])
    found = float(values.mean())
    return found, max(found - float(ndtri(CONFIDENCE) * values.std(ddof=1)) / math.sqrt(len(values)), 0.0)


def weights(log_laws: LogLaws, proposal: Proposal, epsilon: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Draw points, and return them with what each contributes to delta."""
    points = proposal.draw(BLOCK, rng)
    first, second = log_laws(points)
    with np.errstate(over="ignore", invalid="ignore"):
        excess = np.maximum(-np.expm1(epsilon + second - first), 0.0)
        value = np.exp(first - proposal.log_density(points)) * excess
    return points, np.nan_to_num(value, nan=0.0, posinf=0.0)
