"""Convex hulls of points on lines through an anchor, each parallel to an axis: simplices and l1 balls."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpconvex.geometry.convex_sets import UNIT, Piece

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AxisHull(Piece):
    """The convex hull of the points ``anchor + t e_i`` with t = low_i and t = high_i.

    An l1 ball has ``low = -high``; ``x >= 0, sum(x) <= s`` has anchor 0 and low 0; ``x >= 0, sum(x) == s`` has low = high = s.
    """

    anchor: Array
    low: Array
    high: Array

    @property
    def is_facet(self) -> bool:
        """Whether all points lie on one hyperplane, with one on each line."""
        return bool((self.low == self.high).all())

    @property
    def can_project(self) -> bool:
        """Whether the projection is known: the anchor belongs to the set, or the set is a facet that does not hold it."""
        inside = bool((self.low <= 0).all() and (self.high >= 0).all())
        return inside or (self.is_facet and bool((self.low != 0).all()))

    def project(self, x: Array) -> Array:
        """Shrink towards the anchor by multiples of 1/reach: M. Held, P. Wolfe & H. Crowder, Math. Programming 1974."""
        y = x - self.anchor
        if self.is_facet:
            sign = np.sign(self.low)
            size, reach = y * sign, np.abs(self.low)
        else:
            sign = np.where(y < 0, -1.0, 1.0)
            size, reach = np.abs(y), np.where(y < 0, -self.low, self.high)
        some = reach > 0
        if not some.any():
            return self.anchor
        weight = 1.0 / reach[some]
        if not self.is_facet and bool((reach[~some] >= size[~some]).all()) and weight @ size[some] <= 1:
            return x
        # With the amount a, sum(weight * max(size - a weight, 0)) falls; it is 1 between two of the breakpoints size/weight.
        order = np.argsort(-size[some] / weight)
        ordered, scaled = weight[order], size[some][order]
        amounts = (np.cumsum(ordered * scaled) - 1) / np.cumsum(ordered**2)
        last = int(np.flatnonzero(scaled / ordered >= amounts)[-1])
        amount = amounts[last] if self.is_facet else max(amounts[last], 0.0)
        result = np.zeros(len(y))
        result[some] = np.maximum(size[some] - amount * weight, 0.0)
        return np.asarray(self.anchor + sign * result)

    def error(self, x: Array) -> float:
        """Bound the rounding of the sums that make the amount, which a unit of length in the answer weighs least."""
        scale = float(np.linalg.norm(x) + np.linalg.norm(self.anchor)) + float(np.max(self._reach, initial=0.0))
        return 8.0 * (len(self.coordinates) + 4) * UNIT * scale

    @cached_property
    def _reach(self) -> Array:
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """The least and the largest value of each coordinate: the anchor's own belong to the points on other lines."""
        one = len(self.coordinates) == 1
        low, high = (self.low, self.high) if one else (np.minimum(self.low, 0.0), np.maximum(self.high, 0.0))
        return self.anchor + low, self.anchor + high

    def bounds(self) -> tuple[Array, Array]:
        """Return the ends, rounded outwards."""
        return np.nextafter(self.ends[0], -np.inf), np.nextafter(self.ends[1], np.inf)

    def norm_bound(self) -> float:
        """Return the largest norm of a vertex."""
        return self.distance_bound(np.zeros(len(self.coordinates)))

    def center_point(self) -> Array | None:
        """Return the middle of the vertices, which a facet lies nearest to."""
        return self.anchor + (self.low + self.high) / (2 * len(self.coordinates))

    def distance_bound(self, point: Array) -> float:
        """Return the largest distance of a vertex: a convex function is largest at one."""
        shift = self.anchor - point
        rest = np.maximum(float(shift @ shift) - shift**2, 0.0)
        ends = [np.sqrt(rest + (shift + end) ** 2) for end in (self.low, self.high)]
        return float(np.max(ends)) * (1 + 1e-14) + 8 * UNIT * float(np.linalg.norm(shift))

    def linear_range(self, entry: Indices, place: Indices, low: Array, high: Array, size: int) -> tuple[Array, Array]:
        """Bound sums of terms ``c x[place]`` with ``low <= c <= high`` in each of `size` entries: they are least at a vertex."""
        at = self.anchor[place]
        start = np.sort([low * at, high * at], axis=0)
        ends = [c * (at + end[place]) for c in (low, high) for end in (self.low, self.high)]
        moves = np.min(ends, axis=0) - start[0], np.max(ends, axis=0) - start[1]
        # Where a coordinate has no term, the vertices on its line add nothing.
        free = np.bincount(entry, minlength=size) < len(self.coordinates)
        best = np.where(free, 0.0, np.inf), np.where(free, 0.0, -np.inf)
        np.minimum.at(best[0], entry, moves[0])
        np.maximum.at(best[1], entry, moves[1])
        sums = [np.bincount(entry, weights=part, minlength=size) for part in start]
        largest = np.max(np.abs([*start, *ends]), axis=0)
        room = (len(self.coordinates) + 8) * UNIT * 2 * np.bincount(entry, weights=largest, minlength=size)
        return sums[0] + best[0] - room, sums[1] + best[1] + room
