"""Privacy profiles, the smallest delta for each epsilon, of noise whose law is no plain Gaussian: by quadrature, or as a table.

A table bounds ``H(a) = sup_S P(S) - a Q(S)``, convex, also between points and by symmetry below 1 (docs/theory.md, section 20).
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

# One Rényi order, or several.
Orders = TypeVar("Orders", float, NDArray[np.float64])

# Cells of the quadrature of the chi law, and where its tail is cut, as a fraction of the mass that is left.
CELLS, TAIL = 240, 1e-9
# Where slopes move: slices of the slopes, halvings of the noise that counts most, and the least length.
SLICES, HALVINGS, SHORTEST = 60, 14, 1e-9
# Points of a table.  Where delta is below this, the rest is given up: added to the delta of any total.
NODES, LOST = 160, 1e-31
LARGEST_LOSS = 300.0  # Losses beyond this are given up: their exponentials are to stay far from overflow


def chi_delta(epsilon: float, dimension: int, shift: float) -> float:
    """Bound ``E[(1 - exp(epsilon - a t - a^2/2))_+]`` for t the norm of `dimension` standard normal variates."""
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
    """Bound what curvature adds to delta while a slope falls, for each unit, in units of sigma, that it falls by.

    With J = `curvature`, and l = `length` that of the difference of gradients, this is
    ``max_x phi(x) min(1 - exp(epsilon - J - l x - l^2/2), 1 - exp(-J))_+ / (1 - exp(-J))``.  It grows with both.
    """
    long, bend = np.broadcast_arrays(np.maximum(length, SHORTEST), np.maximum(curvature, SHORTEST))
    base = long**2 / 2 - epsilon + bend + NORM_SLACK * (1 + abs(epsilon) + bend)
    low = np.maximum(-base / long, 0.0)
    high = np.maximum((bend - base) / long, low)
    for _ in range(HALVINGS):  # the derivative of the logarithm falls
        middle = (low + high) / 2
        rising = middle * np.expm1(np.minimum(np.maximum(long * middle + base, 0.0), bend)) < long
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    gained = np.expm1(-np.clip(long * high + base, 0.0, bend)) / np.expm1(-bend)
    return np.asarray(np.exp(-(low**2) / 2) * gained * ((1 + TAIL_SLACK) / math.sqrt(2 * math.pi)))


def swing(
    epsilon: float, steepest: float, flattest: float, curvature: float, ratio: float = 0.0, behind: float = 0.0
) -> float:
    """Bound what curvature adds where slopes fall; of a logistic record, ``log(1 + ratio s (1 - s))`` if that is less."""
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
    """Upper bounds on delta at rising losses epsilon >= 0, in both orders unless `others` are given; the last is given away."""

    losses: Array
    deltas: Array
    others: Array | None = None

    @property
    def lost(self) -> float:
        return float(self.deltas[-1])

    @cached_property
    def curve(self) -> tuple[Array, Array]:
        """The lowest convex curve that the table proves: points a, from 0 on, and bounds on H(a)."""
        ratios, rising = np.exp(self.losses), self.losses > 0
        others = self.deltas if self.others is None else self.others
        back, mirrored = 1 / ratios[rising][::-1], (-np.expm1(-self.losses) + others / ratios)[rising][::-1]
        x = np.concatenate([[0.0], back, ratios])
        y = np.minimum(np.concatenate([[1.0], mirrored, self.deltas]), 1.0)
        kept: list[int] = []
        for k in range(len(x)):  # leaving out a point keeps the chords valid, so rounding cannot hurt
            while len(kept) > 1:
                i, j = kept[-2:]
                if (y[j] - y[i]) * (x[k] - x[i]) < (y[k] - y[i]) * (x[j] - x[i]):
                    break
                kept.pop()
            kept.append(k)
        return x[kept], y[kept]

    @cached_property
    def masses(self) -> tuple[Array, Array]:
        """Losses and probabilities of a pair of laws that is at least as easy to tell apart, but for `lost`."""
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
        """The mu of a Gaussian mechanism, one coordinate of shift mu, that is at least as easy to tell apart, but for `lost`."""
        x, y = self.curve
        first = int(np.searchsorted(x, 1.0))
        start = first - int(x[first] > 1)  # the piece around 1 is its own mirror
        if not start:  # it begins at 0: no shift is large enough
            return math.inf
        ends, bounds = np.log(x[start:]), y[start:] - self.lost
        if len(ends) < 2:
            return 0.0
        middle = (ends[:-1] + ends[1:]) / 2
        if start < first:
            middle[0] = 0.0

        def fails(log_mu: float) -> bool:
            """Say whether a tangent of the Gaussian's curve lies below an end of a piece."""
            mu = math.exp(log_mu)
            value, slope = gaussian_delta(middle, mu, -1), -scipy.special.ndtr(-mu / 2 - middle / mu) * (1 + SUM_SLACK)
            sides = ((ends[:-1], bounds[:-1]), (ends[1:], bounds[1:]))
            return not all((value + slope * (np.exp(e) - np.exp(middle)) >= bound).all() for e, bound in sides)

        return math.inf if fails(5.0) else math.exp(bisect(fails, -20.0, 5.0, 60)[1])


def table(delta: Callable[[float], float], kinks: tuple[float, ...] = (), scale: float = 1.0) -> Profile:
    """Tabulate a bound on delta from where it says something to where hardly anything is left."""
    base = min((kink for kink in kinks if kink >= 0), default=0.0)
    reach = max(scale, 1e-6)
    while base + reach < LARGEST_LOSS and delta(base + reach) > LOST:
        reach *= 1.5
    top = min(base + reach, LARGEST_LOSS)
    losses = base + (top - base) * np.linspace(0.0, 1.0, NODES) ** 1.5
    losses = np.unique(np.concatenate([losses, [kink for kink in kinks if 0 <= kink < top]]))
    return Profile(losses, np.minimum.accumulate([min(delta(float(loss)), 1.0) for loss in losses]))
