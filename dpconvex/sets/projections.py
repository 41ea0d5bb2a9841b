"""Closed convex sets with a Euclidean projection, each on some coordinates; a symmetric matrix is stored as its svec."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpconvex.numerics import BOUND_SLACK, EPSILON, norm_up, plus, sum_ends
from dpconvex.util.arrays import Array, Indices


def nearly_equal(a: Array, b: Array) -> NDArray[np.bool_]:
    """Return whether numbers agree up to the rounding of a few operations; infinite numbers never agree."""
    room = 8 * EPSILON * np.maximum(np.abs(a), np.abs(b))
    return np.asarray((np.abs(a - b) <= room) & np.isfinite(room))


def finite_norm(lower: Array, upper: Array) -> float:
    ends = np.abs([lower, upper])
    return float(np.linalg.norm(np.where(np.isfinite(ends), ends, 0.0)))


@dataclass(frozen=True, eq=False)
class ConvexSet:
    """A closed convex set on some coordinates of the whole vector, shape (m,)."""

    coordinates: Indices

    def project(self, x: Array) -> Array:
        raise NotImplementedError

    def bounds(self) -> tuple[Array, Array]:
        """Return lower and upper bounds on each coordinate, shape (m,) each, possibly infinite."""
        unbounded = np.full(len(self.coordinates), np.inf)
        return -unbounded, unbounded

    @property
    def norm_bound(self) -> float:
        """Return a bound on the norm of points of the set, possibly infinite."""
        return norm_up(np.max(np.abs(self.bounds()), axis=0))

    @property
    def rounding(self) -> tuple[float, float]:
        """Return c and s: a computed projection is within ``c EPSILON (||x|| + s)`` of the exact projection."""
        return 8.0 * (len(self.coordinates) + 4), self.norm_bound


@dataclass(frozen=True, eq=False)
class IntervalSet(ConvexSet):
    """Coordinatewise bounds, ``lower <= x <= upper``, shape (m,) each, possibly infinite."""

    lower: Array
    upper: Array

    def project(self, x: Array) -> Array:
        return np.clip(x, self.lower, self.upper)

    def bounds(self) -> tuple[Array, Array]:
        return self.lower, self.upper

    @property
    def rounding(self) -> tuple[float, float]:
        return 0.0, finite_norm(self.lower, self.upper)


@dataclass(frozen=True, eq=False)
class NormBall(ConvexSet):
    """A Euclidean ball, ``||x - center|| <= radius``."""

    center: Array
    radius: float

    def project(self, x: Array) -> Array:
        difference = x - self.center
        norm = float(np.linalg.norm(difference))
        return x if norm <= self.radius else self.center + difference * (self.radius / norm)

    def bounds(self) -> tuple[Array, Array]:
        return sum_ends(self.center, -self.radius)[0], sum_ends(self.center, self.radius)[1]

    @property
    def norm_bound(self) -> float:
        return plus(norm_up(self.center), self.radius)[1]


@dataclass(frozen=True, eq=False)
class Slab(ConvexSet):
    """Points between parallel hyperplanes: ``lower <= basis @ x <= upper``, with orthonormal rows of `basis`."""

    basis: Array
    lower: Array
    upper: Array
    condition: float = 1.0  # condition number of the original rows: it multiplies rounding errors

    def project(self, x: Array) -> Array:
        level = self.basis @ x
        return np.asarray(x + self.basis.T @ (np.clip(level, self.lower, self.upper) - level))

    @property
    def rounding(self) -> tuple[float, float]:
        return 8.0 * (len(self.coordinates) + 4) * self.condition, finite_norm(self.lower, self.upper)


@dataclass(frozen=True, eq=False)
class AxisHull(ConvexSet):
    """The convex hull of the points ``anchor + t e_i`` with t = low_i and t = high_i: simplices and l1 balls."""

    anchor: Array
    low: Array
    high: Array

    @property
    def is_facet(self) -> bool:
        return bool((self.low == self.high).all())

    @property
    def can_project(self) -> bool:
        """Return whether the projection is known: the anchor belongs to the set, or the set is a facet without it."""
        return bool((self.low <= 0).all() and (self.high >= 0).all()) or (self.is_facet and bool(self.low.all()))

    def project(self, x: Array) -> Array:
        """Return the projection: shrink towards the anchor by multiples of 1/reach (Held, Wolfe & Crowder, Math. Prog. 1974)."""
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
        last = int(np.flatnonzero(scaled / ordered >= amounts).max(initial=0))  # the first, up to rounding
        amount = amounts[last] if self.is_facet else max(amounts[last], 0.0)
        result = np.zeros(len(y))
        result[some] = np.maximum(size[some] - amount * weight, 0.0)
        return np.asarray(self.anchor + sign * result)

    @property
    def rounding(self) -> tuple[float, float]:
        farthest = float(np.abs([self.low, self.high]).max(initial=0.0))
        return 8.0 * (len(self.coordinates) + 4), float(np.linalg.norm(self.anchor)) + farthest

    @property
    def ends(self) -> tuple[Array, Array]:
        """Return the least and the largest value of each coordinate; vertices on other axes have the anchor's value."""
        one = len(self.coordinates) == 1
        low, high = (self.low, self.high) if one else (np.minimum(self.low, 0.0), np.maximum(self.high, 0.0))
        return self.anchor + low, self.anchor + high

    def bounds(self) -> tuple[Array, Array]:
        low, high = self.ends
        return np.nextafter(low, -np.inf), np.nextafter(high, np.inf)

    @property
    def norm_bound(self) -> float:
        """Return a bound on the norm of points of the set; a convex function is largest at a vertex."""
        unit = float(np.abs([self.anchor, self.low, self.high]).max(initial=0.0)) or 1.0
        anchor, low, high = (part / unit for part in (self.anchor, self.low, self.high))
        rest = np.maximum(float(anchor @ anchor) - anchor**2, 0.0)
        ends = [np.sqrt(rest + (anchor + end) ** 2) for end in (low, high)]
        slack, room = 1 + BOUND_SLACK + len(anchor) * EPSILON, 8 * EPSILON * float(np.linalg.norm(anchor))
        return float(np.nextafter(unit * (float(np.max(ends)) * slack + room), np.inf))

    def linear_range(self, entry: Indices, place: Indices, low: Array, high: Array, size: int) -> tuple[Array, Array]:
        """Return bounds on sums of terms ``c x[place]``, ``low <= c <= high``, by entry: the extremes are at vertices."""
        at = self.anchor[place]
        start = np.sort([low * at, high * at], axis=0)
        ends = [c * (at + end[place]) for c in (low, high) for end in (self.low, self.high)]
        moves = np.min(ends, axis=0) - start[0], np.max(ends, axis=0) - start[1]
        # Vertices on the axis of a coordinate without a term add nothing.
        free = np.bincount(entry, minlength=size) < len(self.coordinates)
        best = np.where(free, 0.0, np.inf), np.where(free, 0.0, -np.inf)
        np.minimum.at(best[0], entry, moves[0])
        np.maximum.at(best[1], entry, moves[1])
        sums = [np.bincount(entry, weights=part, minlength=size) for part in start]
        largest = np.max(np.abs([*start, *ends]), axis=0)
        room = (len(self.coordinates) + 8) * EPSILON * 2 * np.bincount(entry, weights=largest, minlength=size)
        return sums[0] + best[0] - room, sums[1] + best[1] + room


@lru_cache(maxsize=64)
def upper_triangle(side: int) -> tuple[Indices, Indices, Array]:
    """Return rows and columns of the upper triangle, column by column, and weights: 1 on the diagonal, sqrt(2) elsewhere."""
    column, row = np.tril_indices(side)
    return row, column, np.where(row == column, 1.0, np.sqrt(2.0))


@lru_cache(maxsize=64)
def square(side: int) -> Indices:
    """Return the index of each entry of a symmetric matrix in the upper triangle, shape (side, side)."""
    low, high = np.sort(np.indices((side, side)), axis=0)
    return np.asarray(high * (high + 1) // 2 + low)


def svec(matrix: Array) -> Array:
    """Return coordinates of symmetric matrices, (..., D, D) to (..., D(D+1)/2), an isometry for the Frobenius norm."""
    side = matrix.shape[-1]
    row, column, weight = upper_triangle(side)
    return np.asarray(matrix.reshape(*matrix.shape[:-2], -1).take(row * side + column, axis=-1) * weight)


def smat(vector: Array) -> Array:
    """Return symmetric matrices from their coordinates, (..., D(D+1)/2) to (..., D, D); the inverse of `svec`."""
    side = int((np.sqrt(8 * vector.shape[-1] + 1) - 1) / 2)
    return np.asarray((vector / upper_triangle(side)[2]).take(square(side), axis=-1))


@dataclass(frozen=True, eq=False)
class Spectral(ConvexSet):
    """Matrices X such that the singular values (eigenvalues, if symmetric) of ``X - shift`` lie in the set `inner`.

    `inner` is invariant under permutations and, for singular values, changes of sign: projecting X projects its spectrum
    (A. Lewis, "The convex analysis of unitarily invariant matrix functions", J. Convex Analysis 1995).  Symmetric matrices are
    given by their svec, others by their entries in column order.
    """

    shift: Array
    inner: ConvexSet
    symmetric: bool

    def project(self, x: Array) -> Array:
        matrix = as_matrix(x, self.shift.shape, self.symmetric) - self.shift
        if self.symmetric:
            value, left = np.linalg.eigh(matrix)
            right = left.T
        else:
            left, value, right = np.linalg.svd(matrix, full_matrices=False)
        inside = self.inner.project(value)
        if (inside == value).all():  # a matrix of the set comes back unchanged
            return x
        found = self.shift + (left * inside) @ right
        return svec(found) if self.symmetric else found.reshape(-1, order="F")

    def bounds(self) -> tuple[Array, Array]:
        """Return bounds on entries: by eigenvalues on the diagonal, by half of their range elsewhere; or by singular values."""
        low, high = (float(end) for end in (self.inner.bounds()[0].min(), self.inner.bounds()[1].max()))
        middle, lower, upper = self.center, np.array(-high), np.array(high)
        if self.symmetric:
            row, column, _ = upper_triangle(len(self.shift))
            half = (high - low) / 2 * np.sqrt(2.0)
            lower, upper = np.where(row == column, low, -half), np.where(row == column, high, half)
        sizes = (norm_up(self.shift) + np.where(np.isfinite(end), np.abs(end), 0.0) for end in (lower, upper))
        room = [16 * EPSILON * size for size in sizes]
        return middle + lower - room[0], middle + upper + room[1]

    @property
    def center(self) -> Array:
        return svec(self.shift) if self.symmetric else self.shift.reshape(-1, order="F")

    @property
    def norm_bound(self) -> float:
        return (norm_up(self.shift) + self.inner.norm_bound) * (1 + 16 * EPSILON)

    @property
    def rounding(self) -> tuple[float, float]:
        # Backward error of the decomposition, with room for the reassembly, and the error on the spectrum.
        shift, side, (count, size) = float(np.linalg.norm(self.shift)), max(self.shift.shape), self.inner.rounding
        if isinstance(self.inner, IntervalSet):
            return 4.0 * side, shift + side * size
        still = float(np.linalg.norm(self.inner.project(np.zeros(min(self.shift.shape)))))
        return 16.0 * side + count, 2 * shift + still + size


def as_matrix(x: Array, shape: tuple[int, ...], symmetric: bool) -> Array:
    return smat(x) if symmetric else x.reshape(shape, order="F")
