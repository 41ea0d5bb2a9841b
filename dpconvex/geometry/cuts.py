"""Sets that a single multiplier projects on: a set cut by a halfspace, a hyperplane or a ball, and ellipsoids.

With a multiplier s, the projection on the cut is the projection on the whole of a point u(s) that moves along a line.  Its
distance from the computed one is bounded by two multipliers that the exact one lies between: projections are firmly
nonexpansive, ``||P(u) - P(v)||^2 <= <P(u) - P(v), u - v>`` (docs/theory.md, section 17).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpconvex.errors import NotConverged
from dpconvex.geometry.convex_sets import UNIT, NormBall, Piece, Slab

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

DOUBLINGS = 400
PLANNED = 1e-12


def places(coordinates: Indices, whole: Indices) -> Indices:
    """Where some coordinates stand among others, which are sorted."""
    return np.searchsorted(whole, coordinates)


@dataclass(frozen=True, eq=False)
class Product(Piece):
    """Sets on disjoint coordinates; the rest of the coordinates, which are sorted, is free."""

    pieces: tuple[Piece, ...]

    @cached_property
    def parts(self) -> list[tuple[Piece, Indices]]:
        """Each piece and where its coordinates stand."""
        return [(piece, places(piece.coordinates, self.coordinates)) for piece in self.pieces]

    def project(self, x: Array) -> Array:
        y = x.copy()
        for piece, place in self.parts:
            y[place] = piece.project(x[place])
        return y

    def depth(self, x: Array) -> float:
        """Return that of the piece that is nearest."""
        return min((piece.depth(x[place]) for piece, place in self.parts), default=np.inf)

    def bounds(self) -> tuple[Array, Array]:
        """Return those of the pieces."""
        lower, upper = super().bounds()
        for piece, place in self.parts:
            lower[place], upper[place] = piece.bounds()
        return lower, upper

    def error(self, x: Array) -> float:
        """Add up."""
        return float(np.linalg.norm([piece.error(x[place]) for piece, place in self.parts]))

    def largest_error(self, norm: float) -> float:
        """Add up."""
        return float(np.linalg.norm([piece.largest_error(norm) for piece in self.pieces]))


@dataclass(frozen=True, eq=False)
class Root:
    """Where a function that does not increase falls to a bound: from `start` on, s >= 0."""

    excess: Callable[[float], float]
    room: Callable[[float], float]
    text: str

    def find(self, first: float) -> float:
        """Return a multiplier of which the computed excess is 0 but for rounding; 0 if that is not positive at 0."""
        start = self.excess(0.0)
        if start <= 0:
            return 0.0
        low, high = 0.0, first
        for _ in range(DOUBLINGS):
            if self.excess(high) <= 0:
                if not self.excess(low) > 0:  # rounding decides what it is: no multiplier is known
                    break
                return float(brentq(self.excess, low, high, xtol=1e-300, rtol=4 * UNIT, maxiter=300, disp=False))
            low, high = high, 2.0 * high
        raise NotConverged(f"no point was found that satisfies {self.text} at once.")

    def between(self, near: float) -> tuple[float, float]:
        """Return multipliers that certainly lie below and above the exact one; (0, inf) if rounding hides it."""
        return self.edge(near, -1.0, lambda s: self.excess(s) > self.room(s)), self.edge(
            near, 1.0, lambda s: self.excess(s) < -self.room(s)
        )

    def edge(self, near: float, sign: float, certain: Callable[[float], bool]) -> float:
        """Return a certain multiplier as close as can be found on one side."""
        width = 2.0 * UNIT * near if near > 0 else 1e-300
        inner = near
        while True:
            outer = near + sign * width
            if outer <= 0 or not np.isfinite(outer):
                return 0.0 if sign < 0 else float(np.inf)
            if certain(outer):
                break
            inner, width = outer, width * 8.0
        if width > 1e-13 * near:
            for _ in range(60):
                middle = (inner + outer) / 2
                if certain(middle):
                    outer = middle
                else:
                    inner = middle
        return outer


@dataclass(frozen=True, eq=False)
class Cut(Piece):
    """The intersection of a set with a slab or a ball on some of its coordinates, which are sorted.

    The slab's multiplier moves the point along its normal, the ball's towards the center.
    """

    whole: Piece
    knife: Slab | NormBall

    @property
    def iterates(self) -> bool:
        """It does."""
        return True

    @cached_property
    def place(self) -> Indices:
        """Where the knife's coordinates stand."""
        return places(self.knife.coordinates, self.coordinates)

    def moved(self, x: Array, sign: float, s: float) -> Array:
        """Return the point u(s)."""
        y = x.copy()
        if isinstance(self.knife, Slab):
            y[self.place] -= sign * s * self.knife.normal
        else:
            y[self.place] = self.knife.center + (x[self.place] - self.knife.center) / (1.0 + s)
        return y

    def excess(self, p: Array, sign: float) -> float:
        """By how much a point is outside of the knife, on one side."""
        if isinstance(self.knife, Slab):
            bound = self.knife.upper if sign > 0 else -self.knife.lower
            return sign * float(self.knife.normal @ p[self.place]) - bound
        return float(np.linalg.norm(p[self.place] - self.knife.center)) - self.knife.radius

    def room(self, p: Array, sign: float) -> float:
        """Bound the rounding of `excess`."""
        part, count = p[self.place], len(self.place) + 8
        if isinstance(self.knife, Slab):
            bound = self.knife.upper if sign > 0 else self.knife.lower
            return count * UNIT * (float(np.abs(self.knife.normal) @ np.abs(part)) + abs(bound))
        return count * UNIT * (float(np.linalg.norm(part - self.knife.center) + np.abs(part).max()) + self.knife.radius)

    def root(self, x: Array) -> tuple[Root, float, float]:
        """Return the equation of the multiplier, the side of a slab, and a first guess."""
        sign = 1.0
        p = self.whole.project(x)
        if isinstance(self.knife, Slab):
            level = float(self.knife.normal @ p[self.place])
            sign = 1.0 if level - self.knife.upper >= self.knife.lower - level else -1.0
            square = float(self.knife.normal @ self.knife.normal)
            length = float(np.sqrt(square))
            first = self.excess(p, sign) / square
        else:
            length = 1.0
            first = self.excess(p, sign) / self.knife.radius if self.knife.radius > 0 else 1.0

        def excess(s: float) -> float:
            return self.excess(self.whole.project(self.moved(x, sign, s)), sign)

        def room(s: float) -> float:
            u = self.moved(x, sign, s)
            return self.room(self.whole.project(u), sign) + length * (
                self.whole.error(u) + 4 * UNIT * float(np.linalg.norm(u))
            )

        return Root(excess, room, self.text), sign, max(first, 1e-290)

    def project(self, x: Array) -> Array:
        """Find the multiplier."""
        root, sign, first = self.root(x)
        s = root.find(first)
        return self.whole.project(self.moved(x, sign, s) if s > 0 else x)

    def depth(self, x: Array) -> float:
        """Return the smaller of both."""
        return min(self.whole.depth(x), self.knife.depth(x[self.place]))

    def bounds(self) -> tuple[Array, Array]:
        """Intersect those of both."""
        lower, upper = (bound.copy() for bound in self.whole.bounds())
        below, above = self.knife.bounds()
        lower[self.place], upper[self.place] = (
            np.maximum(lower[self.place], below),
            np.minimum(upper[self.place], above),
        )
        return lower, upper

    def error(self, x: Array) -> float:
        """Bound the distance of the projections of the points between two multipliers that are certain."""
        root, sign, first = self.root(x)
        s = root.find(first)
        low, high = (0.0, 0.0) if s == 0 and root.excess(0.0) < -root.room(0.0) else root.between(max(s, 1e-300))
        if not np.isfinite(high):
            return float(np.inf)
        ends = [self.moved(x, sign, low), self.moved(x, sign, high)]
        inside = [self.whole.project(end) for end in ends]
        own = max(self.whole.error(end) for end in ends) + 4 * UNIT * max(float(np.linalg.norm(end)) for end in ends)
        move = ends[0] - ends[1]
        length = float(np.linalg.norm(move))
        fall = max(float((inside[0] - inside[1]) @ move), 0.0)
        spread = min(length, float(np.sqrt(fall + 2 * (own + 8 * len(x) * UNIT * np.abs(inside[0]).max()) * length)))
        return 2 * spread + own

    def largest_error(self, norm: float) -> float:
        """What the certificate reaches where the exact multiplier can be told from its neighbours."""
        still = float(np.linalg.norm(self.project(np.zeros(len(self.coordinates)))))
        return PLANNED * (norm + still) + 8 * self.whole.largest_error(2 * (norm + still))


@dataclass(frozen=True, eq=False)
class Ellipsoid(Piece):
    """Points with ``||matrix @ x + offset|| <= radius``; the matrix may have any rank."""

    matrix: Array
    offset: Array
    radius: float
    around: tuple[Piece, ...] = ()

    @cached_property
    def axes(self) -> tuple[Array, Array, Array, float]:
        """Axes of the row space, shape (rank, m), their stretches and offsets, and the square that nothing changes."""
        left, stretch, right = np.linalg.svd(self.matrix, full_matrices=False)
        kept = stretch > stretch.max(initial=0.0) * max(self.matrix.shape) * UNIT
        along = left[:, kept].T @ self.offset
        missed = float(np.sum((self.offset - left[:, kept] @ along) ** 2))
        return right[kept], stretch[kept], along, missed

    def at(self, start: Array, s: float) -> Array:
        """Coordinates on the axes with a multiplier."""
        _, stretch, along, _ = self.axes
        return np.asarray((start - s * stretch * along) / (1.0 + s * stretch**2))

    def root(self, start: Array) -> Root:
        """Return the equation of the multiplier."""
        _, stretch, along, missed = self.axes

        def excess(s: float) -> float:
            return float(np.sqrt(np.sum((stretch * self.at(start, s) + along) ** 2) + missed)) - self.radius

        def room(s: float) -> float:
            size = (
                float(np.linalg.norm(np.abs(stretch * self.at(start, s)) + np.abs(along)))
                + np.sqrt(missed)
                + self.radius
            )
            return (sum(self.matrix.shape) + 16) * UNIT * float(size)

        return Root(excess, room, self.text)

    def project(self, x: Array) -> Array:
        """Solve the secular equation on the axes."""
        axes, stretch, _, _ = self.axes
        start = axes @ x
        s = self.root(start).find(1.0 / float(stretch.max()) ** 2)
        return x if s == 0 else np.asarray(x + axes.T @ (self.at(start, s) - start))

    def depth(self, x: Array) -> float:
        """What is left of the radius, over the largest stretch."""
        left = self.radius - float(np.linalg.norm(self.matrix @ x + self.offset))
        return max(left / float(self.axes[1].max()) * (1 - 1e-12), 0.0)

    def error(self, x: Array) -> float:
        """Every coordinate on an axis moves one way while the multiplier grows, so its ends bound what lies between."""
        axes, stretch, _, _ = self.axes
        start = axes @ x
        root = self.root(start)
        s = root.find(1.0 / float(stretch.max()) ** 2)
        low, high = (0.0, 0.0) if s == 0 and root.excess(0.0) < -root.room(0.0) else root.between(max(s, 1e-300))
        if not np.isfinite(high):
            return float(np.inf)
        spread = float(np.linalg.norm(self.at(start, low) - self.at(start, high)))
        return spread + self.largest_rounding(float(np.linalg.norm(x)))

    def largest_rounding(self, norm: float) -> float:
        """Bound what the axes' own rounding moves."""
        shift = float(np.linalg.norm(self.axes[2] / self.axes[1]))
        return 8.0 * sum(self.matrix.shape) * UNIT * (norm + shift)

    def largest_error(self, norm: float) -> float:
        """What the certificate reaches where the exact multiplier can be told from its neighbours."""
        return PLANNED * norm + 4 * self.largest_rounding(norm)
