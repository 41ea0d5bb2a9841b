"""Losses whose gradient shrinks where they curve: what curvature costs, less what the shorter gradient takes away.

Gaussian noise charges for ``||Delta||^2 / (2 sigma^2) + log det(I + H/mu)``.  Where Delta is a convex combination of vertices,
its square is the mean square of the vertices less a variance, and for some losses the Hessian is that variance too.  So both
vertices may be charged for in full, and curvature only as far as it exceeds what the variance takes away (docs/theory.md,
Gaussian noise, opposed curvature).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

# Relative slack for rounding, as for every constant of an analysis.
SLACK = 1 + 1e-11
# Where gain or loss is smaller, the loss is left out: nothing to speak of is to be had.
NEGLIGIBLE = 1e-12
LARGEST = 1e12


class Opposed:
    """What is known about curvature along the hull of one record's gradients."""

    def excess(self, mu: float, sigma: float) -> float:
        """Bound ``log det(I + H/mu)`` less what the variance takes off ``||Delta||^2/(2 sigma^2)``; never negative."""
        raise TypeError("Opposed is abstract")

    @property
    def signature(self) -> Hashable:
        """A key that is shared by what is equal, up to rounding."""
        return self

    def merged(self, other: Opposed) -> Opposed:
        """Return what holds for this and for another of the same signature."""
        return self


@dataclass(frozen=True)
class Spread(Opposed):
    """``scale`` times a log-sum-exp, with vertices of bounded spread.

    For a convex combination ``g = scale E v`` and any w, ``||g - w||^2 = E ||scale v - w||^2 - scale^2 Var``, and the Hessian is
    ``scale Cov(v)`` with trace ``scale Var``.

    Attributes
    ----------
    scale : float
    variance : float
        Largest trace of the covariance.
    rank : int
        Largest rank of the covariance.
    """

    scale: float
    variance: float
    rank: int

    @property
    def signature(self) -> Hashable:
        """All but the last digits of the variance, of which there is an upper bound for each loss."""
        return self.scale, f"{self.variance:.9e}", self.rank

    def merged(self, other: Opposed) -> Opposed:
        """Return the one with the larger variance: the excess grows with it."""
        return other if isinstance(other, Spread) and other.variance > self.variance else self

    def excess(self, mu: float, sigma: float) -> float:
        """Bound ``log det(I + H/mu) - scale^2 Var / (2 sigma^2)``: 0 if ``scale mu >= 2 sigma^2``, curvature is free then."""
        gain, loss = self.scale / mu, self.scale / sigma * (self.scale / sigma) / 2
        if loss >= gain:
            return 0.0
        best = self.variance
        if loss > 0:
            best = min(best, self.rank * (1 / loss - 1 / gain))
        return float(self.rank * np.log1p(gain * best / self.rank) - loss * best) * SLACK


@dataclass(frozen=True)
class Segment(Opposed):
    """``scale`` times a logistic loss with slopes in a part of [0, 1], whose gradients are charged for at two points of a ray.

    With slope s and a row a the gradient is ``scale s a`` and the Hessian at most ``scale s (1 - s) a a'``.  Between the vertices
    ``scale l a`` and ``scale h a``, ``||g - w||^2`` is the mean square of the vertices' distances from w less
    ``scale^2 (s - l)(h - s) ||a||^2``.  That vanishes at both vertices, where a slope other than 0 or 1 still curves.

    Attributes
    ----------
    scale : float
    radius : float
        Largest norm of a.
    low, high : float
        l and h: the vertices, in units of the scale.
    least : float
        Smallest slope; not below `low`, nor above `high`, the largest slope.
    """

    scale: float
    radius: float
    low: float
    high: float
    least: float

    def excess(self, mu: float, sigma: float) -> float:
        """Maximise ``log(1 + w q s (1 - s)) - w p (s - l)(h - s)`` over the slopes s and over w in [0, 1].

        Here ``q = scale R^2/mu`` and ``p = (scale R)^2/(2 sigma^2)``; w stands for shorter rows.
        """
        length = self.scale * self.radius
        # Where curvature outweighs everything there is no bound; a loss that is counted as smaller than it is only costs.
        gain, loss = length * self.radius / mu, min(length / sigma * (length / sigma) / 2, LARGEST)
        if not math.isfinite(gain):
            return math.inf
        if min(gain, loss) < NEGLIGIBLE:
            steepest = min(max(0.5, self.least), self.high)
            return float(np.log1p(gain * steepest * (1 - steepest))) * SLACK
        lean, top = self.low + self.high - 1, 1 / gain + 0.25
        cubic = np.array([[lean / 2, top - 1 / loss, -lean * top / 2], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        roots = np.linalg.eigvals(cubic).real + 0.5
        s = np.append(roots[(roots > self.least) & (roots < self.high)], [self.least, self.high])
        up, down = gain * s * (1 - s), loss * (s - self.low) * (self.high - s)
        free = up <= down
        up, down = np.where(free, 1.0, up), np.where(free, 0.0, down)
        with np.errstate(divide="ignore"):
            weight = np.where(free, 0.0, np.minimum(1.0, 1 / down - 1 / up))
        return float((np.log1p(weight * up) - weight * down).max()) * SLACK
