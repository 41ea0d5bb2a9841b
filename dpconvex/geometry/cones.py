"""Second-order cones and chains of ordered numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from dpconvex.geometry.convex_sets import UNIT, Piece, close

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SecondOrderCone(Piece):
    """Points with ``||x[:k] - center|| <= slope * (<axis, x[k:]> - level)``, the axis a unit vector and the slope positive."""

    center: Array
    axis: Array
    level: float
    slope: float

    def split(self, x: Array) -> tuple[Array, float, float]:
        """Return the part beside the axis, its length, and the height above the apex."""
        side = x[: len(self.center)] - self.center
        return side, float(np.linalg.norm(side)), float(self.axis @ x[len(self.center) :]) - self.level

    def is_cone_at(self, point: Array) -> bool:
        """Whether the point is at height 0 on the axis."""
        k = len(self.center)
        return bool(close(self.center, point[:k]).all() and close(np.array(self.level), self.axis @ point[k:]))

    def project(self, x: Array) -> Array:
        """Project on the apex, or on the nearest ray."""
        side, length, height = self.split(x)
        if length <= self.slope * height:
            return x
        share = max((self.slope * length + height) / (1 + self.slope**2), 0.0)
        shrunk = self.center + (self.slope * share / length * side if share > 0 else 0.0)
        return np.concatenate([shrunk, x[len(self.center) :] + (share - height) * self.axis])

    def depth(self, x: Array) -> float:
        """Distance from the rays."""
        _, length, height = self.split(x)
        return max((self.slope * height - length) / float(np.hypot(1.0, self.slope)), 0.0)

    def bounds(self) -> tuple[Array, Array]:
        """A height is bounded below if it is one coordinate."""
        lower, upper = super().bounds()
        if len(self.axis) == 1:
            (lower if self.axis[0] > 0 else upper)[-1] = self.level / self.axis[0]
        return lower, upper

    def error(self, x: Array) -> float:
        """Sums of as many terms as there are coordinates; nothing is divided by less than the length that it came from."""
        scale = float(np.linalg.norm(x) + np.linalg.norm(self.center)) + abs(self.level)
        return 2.0 * (len(self.coordinates) + 16) * UNIT * scale


@dataclass(frozen=True, eq=False)
class Ordered(Piece):
    """Numbers in order, ``x[k + 1] - offset[k + 1] >= x[k] - offset[k]``, all ``x - offset`` between two bounds.

    Adjacent violators are pooled, and the result is clipped: the projection on the order keeps every level set's bounds.
    """

    offset: Array
    lower: float
    upper: float

    def is_cone_at(self, point: Array) -> bool:
        """Equal numbers are the apex of an order without bounds."""
        free = np.isneginf(self.lower) and np.isposinf(self.upper)
        return bool(free and close(point - self.offset, np.full(len(point), point[0] - self.offset[0])).all())

    def project(self, x: Array) -> Array:
        """Pool adjacent violators."""
        y = x - self.offset
        if (y[1:] >= y[:-1]).all() and self.lower <= y[0] and y[-1] <= self.upper:
            return x
        return np.asarray(np.clip(isotonic_regression(y).x, self.lower, self.upper) + self.offset)

    def depth(self, x: Array) -> float:
        """The smallest step, or the distance from a bound."""
        y = x - self.offset
        steps = np.min(np.diff(y), initial=np.inf) / np.sqrt(2.0)
        return max(float(min(steps, y[0] - self.lower, self.upper - y[-1])), 0.0)

    def bounds(self) -> tuple[Array, Array]:
        """Return the common bounds."""
        return self.offset + self.lower, self.offset + self.upper

    def error(self, x: Array) -> float:
        """How far x must move for the computed answer to be exact.

        An answer p is the projection of x on the order if the partial sums of ``x - p`` are nowhere negative, and 0 where p
        increases.
        Of the sums that are not so, what is too much is taken back from x, with room for the rounding of the sums.
        """
        y = x - self.offset
        pooled = isotonic_regression(y).x
        rest = y - pooled
        sums = np.cumsum(rest)
        room = UNIT * np.cumsum(np.abs(sums) + np.abs(rest))
        ends = np.append(pooled[1:] > pooled[:-1], True)
        wrong = np.where(ends, np.abs(sums) + room, np.maximum(room - sums, 0.0))
        shift = 4.0 * UNIT * float(np.linalg.norm(x) + 2 * np.linalg.norm(self.offset))
        return 2.0 * float(np.linalg.norm(wrong)) + shift

    def largest_error(self, norm: float) -> float:
        """Bound the same by the rounding of all sums."""
        scale = norm + 2 * float(np.linalg.norm(self.offset))
        return 4.0 * len(self.offset) ** 1.5 * UNIT * scale
