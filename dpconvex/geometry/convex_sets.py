"""Closed convex sets with a Euclidean projection: the pieces that a feasible set is made of.

Each piece lives on some of the coordinates of the parameter space (see `space`), where a symmetric matrix is its svec,
so that Euclidean projection of coordinates is Frobenius projection of matrices.  A piece knows how to project, what it
implies for single coordinates, and how far a computed projection can be from the exact one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

UNIT = float(np.finfo(float).eps)


def close(a: Array, b: Array) -> NDArray[np.bool_]:
    """Whether numbers agree but for the rounding of a few operations; infinite ones agree with none."""
    room = 8 * UNIT * np.maximum(np.abs(a), np.abs(b))
    return np.asarray((np.abs(a - b) <= room) & np.isfinite(room))


@dataclass(frozen=True, eq=False)
class Piece:
    """A closed convex set on some coordinates.

    Attributes
    ----------
    coordinates : ndarray of int, shape (m,)
        Which coordinates of the whole vector the set constrains.
    text : str
        The declaration it comes from, for messages.
    """

    coordinates: Indices
    text: str

    def is_cone_at(self, point: Array) -> bool:
        """Whether the set is a cone with its apex at `point`, shape (m,)."""
        return False

    def project(self, x: Array) -> Array:
        """Euclidean projection of the piece's coordinates `x`, shape (m,)."""
        raise NotImplementedError

    def bounds(self) -> tuple[Array, Array]:
        """Lower and upper bounds that the set implies for each coordinate, shape (m,) each, possibly infinite."""
        unbounded = np.full(len(self.coordinates), np.inf)
        return -unbounded, unbounded

    def norm_bound(self) -> float:
        """Bound on the Euclidean norm of the piece's coordinates, possibly infinite."""
        lower, upper = self.bounds()
        return float(np.linalg.norm(np.maximum(np.abs(lower), np.abs(upper))))

    def center_point(self) -> Array | None:
        """Return a point that the set is best bounded about, shape (m,), if that is not the middle of its bounds."""
        return None

    def distance_bound(self, point: Array) -> float:
        """Bound on the Euclidean distance of the piece's coordinates from a point, shape (m,); possibly infinite."""
        lower, upper = self.bounds()
        return float(np.linalg.norm(np.maximum(np.abs(lower - point), np.abs(upper - point))))

    def error(self, x: Array) -> float:
        """Bound on the distance between the computed and the exact projection of `x`, in units of length."""
        return 8.0 * UNIT * float(np.linalg.norm(x))

    def largest_error(self, norm: float) -> float:
        """Bound on `error` at every point of at most this norm, known before there are data."""
        point = np.zeros(len(self.coordinates))
        point[0] = norm
        return self.error(point)


@dataclass(frozen=True, eq=False)
class Unrecognised(Piece):
    """A constraint that no projection is known for, and a ball that contains it, if one is known."""

    around: tuple[Piece, ...] = ()


@dataclass(frozen=True, eq=False)
class Interval(Piece):
    """Coordinatewise bounds, ``lower <= x <= upper``, shape (m,) each, possibly infinite."""

    lower: Array
    upper: Array

    def is_cone_at(self, point: Array) -> bool:
        """Each interval must be free, end at the point on one side, or be the point."""
        below = np.isneginf(self.lower) | close(self.lower, point)
        above = np.isposinf(self.upper) | close(self.upper, point)
        return bool((below & above).all())

    def project(self, x: Array) -> Array:
        """Clip."""
        return np.clip(x, self.lower, self.upper)

    def bounds(self) -> tuple[Array, Array]:
        return self.lower, self.upper

    def error(self, x: Array) -> float:
        """Clipping is exact."""
        return 0.0


@dataclass(frozen=True, eq=False)
class NormBall(Piece):
    """A Euclidean ball, ``||x - center|| <= radius``."""

    center: Array
    radius: float

    def project(self, x: Array) -> Array:
        """Scale the difference from the center."""
        difference = x - self.center
        norm = float(np.linalg.norm(difference))
        return x if norm <= self.radius else self.center + difference * (self.radius / norm)

    def bounds(self) -> tuple[Array, Array]:
        """Center plus and minus the radius."""
        return self.center - self.radius, self.center + self.radius

    def norm_bound(self) -> float:
        """Norm of the center plus the radius."""
        return float(np.linalg.norm(self.center)) + self.radius

    def center_point(self) -> Array | None:
        return self.center

    def distance_bound(self, point: Array) -> float:
        """Distance of the center plus the radius."""
        return float(np.linalg.norm(self.center - point)) + self.radius


@dataclass(frozen=True, eq=False)
class Slab(Piece):
    """The set between two parallel hyperplanes (or one halfspace), ``lower <= <normal, x> <= upper``."""

    normal: Array
    lower: float
    upper: float

    def project(self, x: Array) -> Array:
        """Move along the normal."""
        level = float(self.normal @ x)
        step = (np.clip(level, self.lower, self.upper) - level) / (self.normal @ self.normal)
        return np.asarray(x + step * self.normal)


@dataclass(frozen=True, eq=False)
class AffineSubspace(Piece):
    """Solutions of linear equations, ``matrix @ x = value``."""

    matrix: Array
    value: Array

    @cached_property
    def _solved(self) -> tuple[Array, Array]:
        """An orthonormal basis of the row space, shape (rank, m), and the solution of least norm, shape (m,)."""
        left, singular, right = np.linalg.svd(self.matrix, full_matrices=False)
        keep = singular > singular.max(initial=0.0) * max(self.matrix.shape) * UNIT
        least = right[keep].T @ ((left[:, keep].T @ self.value) / singular[keep])
        return right[keep], least

    @property
    def consistent(self) -> bool:
        """Whether the equations have a solution."""
        return self._close(self.matrix @ self._solved[1] - self.value, self._solved[1])

    def _close(self, residual: Array, point: Array) -> bool:
        scale = np.linalg.norm(self.matrix) * np.linalg.norm(point) + np.linalg.norm(self.value)
        return bool(np.linalg.norm(residual) <= 1e-12 * len(self.coordinates) * scale)

    def is_cone_at(self, point: Array) -> bool:
        return self._close(self.matrix @ point - self.value, point)

    def project(self, x: Array) -> Array:
        """Remove the part in the row space."""
        basis, least = self._solved
        return np.asarray(x - basis.T @ (basis @ x) + least)

    def error(self, x: Array) -> float:
        """Bound the error of the two matrix-vector products and of the singular value decomposition."""
        return 8.0 * len(self.coordinates) * UNIT * float(np.linalg.norm(x) + np.linalg.norm(self._solved[1]))


@dataclass(frozen=True, eq=False)
class ConesInBall(Piece):
    """Cones on disjoint coordinates, intersected with a ball around their common apex.

    The projection is the ball's after the cones'.  Put the apex at 0 and let p = P_C(x), q = t p its projection on the
    ball of radius r, 0 < t <= 1.  For y in C with ||y|| <= r, <x - p, p> = 0 >= <x - p, y> and, if t < 1, t||p|| = r,
    so <x - q, y - q> = <x - p, y - q> + (1 - t)<p, y - q> <= (1 - t)(||p|| r - t||p||^2) = 0: q is the projection of x.
    """

    ball: NormBall
    cones: tuple[Piece, ...]

    @cached_property
    def _places(self) -> tuple[Indices, ...]:
        position = {int(c): i for i, c in enumerate(self.coordinates)}
        return tuple(np.array([position[int(c)] for c in cone.coordinates]) for cone in self.cones)

    def project(self, x: Array) -> Array:
        y = x.copy()
        for cone, place in zip(self.cones, self._places, strict=True):
            y[place] = cone.project(x[place])
        return self.ball.project(y)

    def bounds(self) -> tuple[Array, Array]:
        lower, upper = (b.copy() for b in self.ball.bounds())
        for cone, place in zip(self.cones, self._places, strict=True):
            below, above = cone.bounds()
            lower[place], upper[place] = np.maximum(lower[place], below), np.minimum(upper[place], above)
        return lower, upper

    def norm_bound(self) -> float:
        return self.ball.norm_bound()

    def center_point(self) -> Array | None:
        """Return the apex."""
        return self.ball.center

    def distance_bound(self, point: Array) -> float:
        return self.ball.distance_bound(point)

    def error(self, x: Array) -> float:
        """Add up: the ball's projection does not enlarge the error of the cones'."""
        parts = [cone.error(x[place]) for cone, place in zip(self.cones, self._places, strict=True)]
        return float(np.linalg.norm(parts)) + self.ball.error(x)


def overlap(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Group pieces into the connected components of "shares a coordinate with".

    >>> a, b, c = (NormBall(np.array(k), "", np.zeros(2), 1.0) for k in ([0, 1], [2, 3], [3, 4]))
    >>> [len(group) for group in overlap([a, b, c])]
    [1, 2]
    """
    groups: list[tuple[set[int], list[Piece]]] = []
    for piece in pieces:
        here, members = set(piece.coordinates.tolist()), [piece]
        rest = []
        for coordinates, others in groups:
            if coordinates & here:
                here |= coordinates
                members = others + members
            else:
                rest.append((coordinates, others))
        groups = [*rest, (here, members)]
    return [members for _, members in groups]
