"""A Hessian of two kinds at once: a rank-one part that is largest where the other, a covariance, vanishes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Halvings of the interval that holds a maximum; what is left of it is bounded by a tangent.
HALVINGS = 60


@dataclass(frozen=True)
class Mixed:
    """A piece ``outer g g' + spread Cov(a)`` with g the mean of the points a under the same weights.

    Such is the Hessian of a smoothed hinge of a log-sum-exp.

    Attributes
    ----------
    longest : float
        Bound M on the norm of the points.
    variance : float
        Bound on the trace of the covariance.
    rank : int
        Bound r on its rank.
    outer, spread : float
    """

    longest: float
    variance: float
    rank: int
    outer: float
    spread: float

    def log_det(self, strong_convexity: float) -> float:
        return float(log_dets([self], strong_convexity)[0])

    def loss(self, weight: float, strong_convexity: float) -> float:
        """Bound ``weight |g| + log det(I + H/mu)``."""
        mu, square = strong_convexity, self.longest**2
        o, s, r = self.outer, self.spread, max(self.rank, 1)

        def value(v: float) -> float:
            left = max(square - v, 0.0)
            return weight * math.sqrt(left) + r * math.log1p(s * v / (r * mu)) + math.log1p(o * left / mu)

        def slope(v: float) -> float:
            left = square - v
            steep = -math.inf if left <= 0 else -weight / (2 * math.sqrt(left))
            return steep + s / (mu + s * v / r) - o / (mu + o * max(left, 0.0))

        if weight == 0:
            return self.log_det(mu)
        low, high = 0.0, min(self.variance, square)
        if slope(low) <= 0:
            return value(low)
        if slope(high) >= 0:
            return value(high)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if slope(middle) > 0 else (low, middle)
        return value(low) + slope(low) * (high - low)

    def padded(self, factor: float) -> Mixed:
        """Return the same with the Hessian multiplied by a factor."""
        return Mixed(self.longest, self.variance, self.rank, self.outer * factor, self.spread * factor)


def log_dets(pieces: Sequence[Mixed], strong_convexity: float) -> Array:
    facts = [(p.longest, p.variance, max(p.rank, 1), p.outer, p.spread) for p in pieces]
    longest, variance, r, o, s = np.array(facts, dtype=float).T
    mu, square = strong_convexity, longest**2
    high = np.minimum(variance, square)
    bent = s * o > 0
    middle = np.where(bent, (s * (mu + o * square) - o * mu) / np.where(bent, s * o * (1 + 1 / r), 1.0), high)
    values = [
        r * np.log1p(s * v / (r * mu)) + np.log1p(o * (square - v) / mu)
        for v in (np.zeros_like(high), high, np.minimum(np.maximum(middle, 0.0), high))
    ]
    return np.asarray(np.max(values, axis=0))
