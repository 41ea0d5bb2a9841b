"""Delta in more than two dimensions: importance sampling of answers around the worst direction, with a confidence bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from dpconvex.auditing.masses import mean_error

Array = NDArray[np.float64]

# Degrees of freedom of the proposal: its tails are heavier than those of what it stands for.
FREEDOM = 8.0
ROUNDS = 8
# Share of the proposal that stays wide.
WIDE = 0.15
BLOCK = 5000


@dataclass(frozen=True)
class Sampled:
    """An estimate of delta.

    Attributes
    ----------
    delta : float
        The estimate.
    least : float
        What delta exceeds with the confidence that was asked for.
    """

    delta: float
    least: float


@dataclass(frozen=True, eq=False)
class Proposal:
    """A mixture of two Student laws with common center."""

    center: Array
    root: Array
    wide: Array

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        d = len(self.center)
        normal = rng.normal(size=(count, d)) / np.sqrt(rng.chisquare(FREEDOM, size=(count, 1)) / FREEDOM)
        outer = rng.random(count) < WIDE
        return np.asarray(self.center + np.where(outer[:, None], normal @ self.wide.T, normal @ self.root.T))

    def log_density(self, points: Array) -> Array:
        parts = [
            np.log(share) + student(points - self.center, root)
            for share, root in ((1 - WIDE, self.root), (WIDE, self.wide))
        ]
        return np.asarray(np.logaddexp(parts[0], parts[1]))


def student(gap: Array, root: Array) -> Array:
    """Return the log density of a multivariate Student law with the given root of its scale matrix."""
    d = gap.shape[1]
    scaled = np.linalg.solve(root, gap.T)
    constant = gammaln((FREEDOM + d) / 2) - gammaln(FREEDOM / 2) - d / 2 * np.log(FREEDOM * np.pi)
    square = (scaled**2).sum(axis=0) / FREEDOM
    return np.asarray(constant - np.linalg.slogdet(root)[1] - (FREEDOM + d) / 2 * np.log1p(square))


def sampled_delta(
    log_laws: Callable[[Array], tuple[Array, Array]],
    epsilon: float,
    center: Array,
    spread: Array,
    count: int,
    rng: np.random.Generator,
    confidence: float = 0.999,
) -> Sampled:
    """Estimate ``integral (p - e^epsilon q)_+``."""
    proposal = Proposal(center, 0.7 * spread, 1.5 * spread)
    for _ in range(ROUNDS):
        points, weight = weights(log_laws, proposal, epsilon, BLOCK, rng)
        if not weight.any():
            continue
        share = np.minimum(weight, np.quantile(weight[weight > 0], 0.98))
        share = share / share.sum()
        middle = share @ points
        gap = points - middle
        covariance = 1.3 * (gap * share[:, None]).T @ gap + 1e-4 * spread @ spread.T
        proposal = Proposal(middle, np.linalg.cholesky(covariance), proposal.wide)
    values = np.concatenate(
        [weights(log_laws, proposal, epsilon, BLOCK, rng)[1] for _ in range(max(count // BLOCK, 1))]
    )
    found = float(values.mean())
    return Sampled(found, max(found - mean_error(values, confidence), 0.0))


def weights(
    log_laws: Callable[[Array], tuple[Array, Array]],
    proposal: Proposal,
    epsilon: float,
    count: int,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Draw points, and return them with what each contributes to delta."""
    points = proposal.draw(count, rng)
    first, second = log_laws(points)
    with np.errstate(over="ignore", invalid="ignore"):
        excess = np.maximum(-np.expm1(epsilon + second - first), 0.0)
        value = np.exp(first - proposal.log_density(points)) * excess
    return points, np.nan_to_num(value, nan=0.0, posinf=0.0)
