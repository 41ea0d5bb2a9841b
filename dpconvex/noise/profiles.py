"""Privacy profiles, the smallest delta for each epsilon: by quadrature, and as tables.

A table bounds the convex ``H(a) = sup_S P(S) - a Q(S)`` at points, between them, and for a < 1 (docs/theory.md, section 20).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import scipy  # what is used of it is imported on first use
from numpy.typing import ArrayLike, NDArray

from dpconvex.noise.gaussian import bisect, gaussian_delta
from dpconvex.numerics import FUNCTION_SLACK, NORM_SLACK, SUM_SLACK, TAIL_SLACK
from dpconvex.util.arrays import Array

# One Rényi order, or an array of orders.
Orders = TypeVar("Orders", float, NDArray[np.float64])

# Cells of the quadrature of the chi distribution, and the share of its mass in the tail that is cut off.
CELLS, TAIL = 240, 1e-9
# For moving slopes: slices of the range of slopes, bisections for the worst noise, and the smallest length.
SLICES, HALVINGS, SHORTEST = 60, 14, 1e-9
# Points of a table.  A table ends where delta is below LOST, and totals add its last delta.
NODES, LOST = 160, 1e-31
LARGEST_LOSS = 300.0  # Larger losses count as infinite, so that exponentials stay far from overflow


def chi_delta(epsilon: float, dimension: int, shift: float) -> float:
    """Return a bound on ``E[(1 - exp(epsilon - a t - a^2/2))_+]``: a is `shift`, t the norm of `dimension` standard normals."""
    if shift <= 0:
        return -math.expm1(min(epsilon, 0.0))
    a, c, half = shift, epsilon - shift**2 / 2, dimension / 2
    start = max(c / a, 0.0)
    mass = float(scipy.special.gammaincc(half, start**2 / 2))
    if mass <= 0:
        return 1e-300
    end = math.sqrt(2 * float(scipy.special.gammainccinv(half, max(mass * TAIL, 1e-300))))
    if end <= start:
        return min(mass * (1 + FUNCTION_SLACK), 1.0)
    points = np.linspace(start, end, CELLS + 1)
    survival = scipy.special.gammaincc(half, points**2 / 2)
    left, width = points[:-1], np.diff(points)
    density = np.exp(
        scipy.special.xlogy(dimension - 1, left) - left**2 / 2 - (half - 1) * math.log(2) - scipy.special.gammaln(half)
    )
    rate = a + density / np.maximum(survival[:-1], 1e-300) * (1 - TAIL_SLACK)
    cells = a * np.exp(c - a * left) * survival[:-1] * -np.expm1(-rate * width) / rate
    return min((float(cells.sum()) + float(survival[-1]) - math.expm1(min(c, 0.0))) * (1 + TAIL_SLACK), 1.0)


def moving_delta(epsilon: float, length: ArrayLike, curvature: ArrayLike) -> Array:
    """Return a bound on the delta that curvature adds per unit, in units of sigma, by which a slope falls.

    With J = `curvature`, and l = `length` the norm of the difference of gradients, this is
    ``max_x phi(x) min(1 - exp(epsilon - J - l x - l^2/2), 1 - exp(-J))_+ / (1 - exp(-J))``.  It increases in J and l.
    """
    long, bend = np.broadcast_arrays(np.maximum(length, SHORTEST), np.maximum(curvature, SHORTEST))
    base = long**2 / 2 - epsilon + bend + NORM_SLACK * (1 + abs(epsilon) + bend)
    low = np.maximum(-base / long, 0.0)
    high = np.maximum((bend - base) / long, low)
    for _ in range(HALVINGS):  # bisection is valid: the derivative of the logarithm decreases
        middle = (low + high) / 2
        rising = middle * np.expm1(np.minimum(np.maximum(long * middle + base, 0.0), bend)) < long
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    gained = np.expm1(-np.clip(long * high + base, 0.0, bend)) / np.expm1(-bend)
    return np.asarray(np.exp(-(low**2) / 2) * gained * ((1 + TAIL_SLACK) / math.sqrt(2 * math.pi)))


def swing(
    epsilon: float, steepest: float, flattest: float, curvature: float, ratio: float = 0.0, behind: float = 0.0
) -> float:
    """Return a bound on the delta that curvature adds; `ratio` > 0 limits J to ``log(1 + ratio s (1 - s))`` (logistic loss)."""
    if steepest <= flattest or curvature <= 0:
        return 0.0
    ends = np.linspace(flattest, steepest, SLICES + 1)
    bend = np.full(SLICES, curvature)
    if ratio > 0:
        s = np.clip(steepest / 2, ends[:-1], ends[1:]) / steepest
        bend = np.minimum(bend, np.log1p(ratio * s * (1 - s)) * (1 + NORM_SLACK))
    return (steepest - flattest) * float(moving_delta(epsilon, ends[1:] + behind, bend).mean())


@dataclass(frozen=True, eq=False)
class Profile:
    """Upper bounds `deltas` at increasing epsilons `losses` >= 0.  They hold in both orders, or `others` hold in the second."""

    losses: Array
    deltas: Array
    others: Array | None = None

    @property
    def lost(self) -> float:
        return float(self.deltas[-1])

    @cached_property
    def curve(self) -> tuple[Array, Array]:
        """The lower convex hull of the table: points a, from 0 on, and upper bounds on H(a)."""
        ratios, rising = np.exp(self.losses), self.losses > 0
        others = self.deltas if self.others is None else self.others
        back, mirrored = 1 / ratios[rising][::-1], (-np.expm1(-self.losses) + others / ratios)[rising][::-1]
        x = np.concatenate([[0.0], back, ratios])
        y = np.minimum(np.concatenate([[1.0], mirrored, self.deltas]), 1.0)
        kept: list[int] = []
        for k in range(len(x)):  # chords stay valid bounds without a point, so rounding of this test is harmless
            while len(kept) > 1:
                i, j = kept[-2:]
                if (y[j] - y[i]) * (x[k] - x[i]) < (y[k] - y[i]) * (x[j] - x[i]):
                    break
                kept.pop()
            kept.append(k)
        return x[kept], y[kept]

    @cached_property
    def masses(self) -> tuple[Array, Array]:
        """Losses and probabilities of a dominating PLD, without the mass `lost` at an infinite loss."""
        x, y = self.curve
        slopes = np.append(np.diff(y) / np.diff(x), 0.0)
        return np.log(x[1:]), x[1:] * np.maximum(np.diff(slopes), 0.0)

    def renyi(self, order: Orders) -> Orders:
        losses, masses = self.masses
        with np.errstate(divide="ignore"):
            logs = np.log(masses) + np.multiply.outer(np.asarray(order) - 1, losses)
        total = scipy.special.logsumexp(logs, axis=-1) if len(losses) else -math.inf
        return np.maximum(total + SUM_SLACK, 0.0) / (order - 1)

    @cached_property
    def level(self) -> float:
        """A level mu of GDP that holds if `lost` is added to delta; infinite if none is found."""
        x, y = self.curve
        first = int(np.searchsorted(x, 1.0))
        start = first - int(x[first] > 1)  # the segment around 1 is symmetric
        if not start:  # the segment begins at 0: no mu is large enough
            return math.inf
        ends, bounds = np.log(x[start:]), y[start:] - self.lost
        if len(ends) < 2:
            return 0.0
        middle = (ends[:-1] + ends[1:]) / 2
        if start < first:
            middle[0] = 0.0

        def fails(log_mu: float) -> bool:
            """Return whether a tangent of the Gaussian curve lies below an end of its segment."""
            mu = math.exp(log_mu)
            value, slope = gaussian_delta(middle, mu, -1), -scipy.special.ndtr(-mu / 2 - middle / mu) * (1 + SUM_SLACK)
            sides = ((ends[:-1], bounds[:-1]), (ends[1:], bounds[1:]))
            return not all((value + slope * (np.exp(e) - np.exp(middle)) >= bound).all() for e, bound in sides)

        return math.inf if fails(5.0) else math.exp(bisect(fails, -20.0, 5.0, 60)[1])


def tabulate_delta(delta: Callable[[float], float], kinks: tuple[float, ...] = (), scale: float = 1.0) -> Profile:
    """Return the table of a bound on delta, from the smallest kink (default 0) to the loss with delta at most `LOST`."""
    base = min((kink for kink in kinks if kink >= 0), default=0.0)
    reach = max(scale, 1e-6)
    while base + reach < LARGEST_LOSS and delta(base + reach) > LOST:
        reach *= 1.5
    top = min(base + reach, LARGEST_LOSS)
    losses = base + (top - base) * np.linspace(0.0, 1.0, NODES) ** 1.5
    losses = np.unique(np.concatenate([losses, [kink for kink in kinks if 0 <= kink < top]]))
    return Profile(losses, np.minimum.accumulate([min(delta(float(loss)), 1.0) for loss in losses]))
