"""Privacy profiles as tables: a bound on delta at some epsilons, and everything that follows from it.

Let ``H(a) = sup_S P(S) - a Q(S)`` for two neighbours, in either order.  H is convex in a, H(0) = 1, and
``H(1/a) = 1 - 1/a + H'(a)/a`` with H' for the other order.  So bounds at some points hold between them as chords, below 1 by that
symmetry, and what is above the lowest convex curve may be cut off (docs/theory.md, section 20).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp, ndtr

from dpconvex.core.bisection import bisect

Array = NDArray[np.float64]

# One Rényi order, or several.
Orders = TypeVar("Orders", float, NDArray[np.float64])
Point = tuple[float, float]

# Where delta is below this, the rest is given up: added to the delta of any total.
LOST = 1e-31
# Points of a table.
NODES = 160
# Losses beyond this are given up: their exponentials are to stay far from overflow.
LARGEST_LOSS = 300.0
# Room for the rounding of what is computed here.
SLACK = 1e-11


@dataclass(frozen=True, eq=False)
class Profile:
    """Upper bounds on delta at rising losses epsilon >= 0, for both orders of neighbours unless `others` are for the other.

    The last is given away for good.
    """

    losses: Array
    deltas: Array
    others: Array | None = None

    @property
    def lost(self) -> float:
        return float(self.deltas[-1])

    @cached_property
    def curve(self) -> tuple[Array, Array]:
        """The lowest convex curve that the table proves: points a, from 0 on, and bounds on H(a)."""
        a = np.exp(self.losses)
        rising = self.losses > 0
        others = self.deltas if self.others is None else self.others
        back, mirrored = 1 / a[rising][::-1], (-np.expm1(-self.losses) + others / a)[rising][::-1]
        x = np.concatenate([[0.0], back, a])
        y = np.minimum(np.concatenate([[1.0], mirrored, self.deltas]), 1.0)
        kept: list[int] = []
        points = list(zip(x.tolist(), y.tolist(), strict=True))
        for i, point in enumerate(points):  # leaving out a point keeps the chords valid, so rounding cannot hurt
            while len(kept) > 1 and above(points[kept[-2]], points[kept[-1]], point):
                kept.pop()
            kept.append(i)
        return x[kept], y[kept]

    @cached_property
    def masses(self) -> tuple[Array, Array]:
        """Losses and probabilities of a pair of laws that is at least as easy to tell apart, but for `lost`."""
        x, y = self.curve
        slopes = np.append(np.diff(y) / np.diff(x), 0.0)
        jumps = np.maximum(np.diff(slopes), 0.0)
        return np.log(x[1:]), x[1:] * jumps

    def renyi(self, order: Orders) -> Orders:
        """Bound the Rényi divergences of that pair."""
        losses, masses = self.masses
        with np.errstate(divide="ignore"):
            logs = np.log(masses) + np.multiply.outer(np.asarray(order) - 1, losses)
        total = logsumexp(logs, axis=-1) if len(losses) else -math.inf
        return np.maximum(total + SLACK, 0.0) / (order - 1)

    @cached_property
    def level(self) -> float:
        """The mu of a Gaussian mechanism, one coordinate of shift mu, that is at least as easy to tell apart, but for `lost`."""
        x, y = self.curve
        first = int(np.searchsorted(x, 1.0))  # the piece around 1 is its own mirror
        start = max(first - 1, 1) if first < len(x) and x[first] > 1 else first
        ends, bounds = np.log(x[start:]), y[start:] - self.lost
        if len(ends) < 2:
            return 0.0
        middle = (ends[:-1] + ends[1:]) / 2
        if start < first:
            middle[0] = 0.0

        def holds(log_mu: float) -> bool:
            mu = math.exp(log_mu)
            value, slope = below(middle, mu), -ndtr(-mu / 2 - middle / mu)
            left = value + slope * (1 + SLACK) * (np.exp(ends[:-1]) - np.exp(middle))
            right = value + slope * (1 + SLACK) * (np.exp(ends[1:]) - np.exp(middle))
            return bool((left >= bounds[:-1]).all() and (right >= bounds[1:]).all())

        low, high = -20.0, 5.0
        if not holds(high):
            return math.inf
        return math.exp(bisect(lambda log_mu: not holds(log_mu), low, high, 60)[1])


def above(first: Point, middle: Point, last: Point) -> bool:
    """Whether the middle one of three points is on or above the chord of the others."""
    return (middle[1] - first[1]) * (last[0] - first[0]) >= (last[1] - first[1]) * (middle[0] - first[0])


def below(losses: Array, mu: float) -> Array:
    """Return the exact delta of a Gaussian mechanism at many epsilons, rounded down."""
    first, second = log_ndtr(mu / 2 - losses / mu), log_ndtr(-mu / 2 - losses / mu)
    pad = 1e-13 + 1e-15 * (np.abs(first) + np.abs(second) + np.abs(losses))
    return np.asarray(np.exp(first) * (1 - pad) - np.exp(losses + second) * (1 + pad))


def table(delta: Callable[[float], float], kinks: tuple[float, ...] = (), scale: float = 1.0) -> Profile:
    """Tabulate a bound on delta from where it says something to where hardly anything is left."""
    base = min((kink for kink in kinks if kink >= 0), default=0.0)
    reach = max(scale, 1e-6)
    while base + reach < LARGEST_LOSS and delta(base + reach) > LOST:
        reach *= 1.5
    top = min(base + reach, LARGEST_LOSS)
    losses = base + (top - base) * np.linspace(0.0, 1.0, NODES) ** 1.5
    losses = np.unique(np.concatenate([losses, [kink for kink in kinks if 0 <= kink < top]]))
    deltas = np.minimum.accumulate([min(delta(float(loss)), 1.0) for loss in losses])
    return Profile(losses, deltas)
