"""Conditions ``matrix @ (x - point) + offset in cone`` of K, and the half-spaces that follow from dual vectors."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.numerics import BOUND_SLACK, EPSILON
from dpconvex.sets.projections import smat, svec

# Of double or extended precision.
Array = NDArray[Any]

EXTENDED = float(np.finfo(np.longdouble).eps)
# Rounding of a value, in units in the last place, besides one unit for each number in its computation.
ROOM = 8
NONNEGATIVE, SECOND_ORDER, ABSOLUTE, SEMIDEFINITE = "nonnegative", "second-order", "absolute", "semidefinite"


class HalfSpace(NamedTuple):
    """A half-space ``<row, x> <= level`` that contains K, from the dual vector z."""

    z: Array
    row: Array
    gap: float  # bound on level - <row, x> at the given point
    error: float  # bound on the norm of the row's rounding error


@dataclass(frozen=True, eq=False)
class ConeBlock:
    """A condition; second-order and absolute cones are the vectors ``(t, e)`` with ``||e|| <= t`` and ``||e||_1 <= t``."""

    kind: str
    matrix: sp.csr_array  # shape (m, dim)
    offset: Array  # shape (m,)
    point: Array | None = None  # shape (dim,): origin of x; 0 if None
    errors: Array | None = None  # shape (m,): bounds on rounding errors of the offset
    slope_error: float = 0.0  # Bound on the error of a row, relative to its norm
    # Bounds on rounding errors of matrix and offset, computed from the template's constants.
    misread: tuple[sp.csr_array, Array] | None = None

    def at(self, x: Array) -> Array:
        return np.asarray(self.matrix @ (x if self.point is None else x - self.point) + self.offset)

    @cached_property
    def size(self) -> sp.csr_array:
        return sp.csr_array(abs(self.matrix))

    @cached_property
    def norms(self) -> Array:
        return np.sqrt(np.asarray((self.size * self.size).sum(axis=1)).ravel())

    def rounding(self, x: Array) -> Array:
        """Return bounds on the rounding error of each number at x; 0 for a coordinate minus a bound, since its sign is exact."""
        counts = np.diff(self.size.indptr)
        away = np.abs((x if self.point is None else x - self.point).astype(float))
        found = (ROOM + counts) * EXTENDED * (self.size @ away + np.abs(self.offset.astype(float)))
        if self.kind == NONNEGATIVE and self.point is None:
            found = np.where((counts == 1) & (np.asarray(self.size.sum(axis=1)).ravel() == 1), 0.0, found)
        if self.errors is not None:
            slope_errors = (self.slope_error + (ROOM + counts) * EPSILON) * self.norms
            found = found + self.errors + slope_errors * np.linalg.norm(away)
        return np.asarray(found, dtype=float)

    def margins(self, x: Array) -> tuple[Array, Array]:
        """Return the margins of a point in the cone, negative outside, and bounds on the rounding errors of the margins."""
        value, error = self.at(x), self.rounding(x)
        if self.kind == NONNEGATIVE:
            return value, error
        if self.kind == SEMIDEFINITE:
            matrix = smat(value)
            whole = 2 * float(np.linalg.norm(error)) + 4 * len(matrix) * EXTENDED * size_of(value)
            return np.array([least_eigenvalue(matrix)]), np.array([whole])
        if self.kind == SECOND_ORDER:
            size, wrong = np.sqrt(np.sum(value[1:] ** 2)), float(np.linalg.norm(error[1:]))
        else:
            size, wrong = np.abs(value[1:]).sum(), float(error[1:].sum())
        rounded = (ROOM + len(value)) * EXTENDED * float(np.abs(value[0]) + size)
        return np.array([value[0] - size]), np.array([error[0] + wrong * (1 + 1e-9) + rounded])

    def height(self, x: Array) -> tuple[Array, Array]:
        """Return ``||e||^2 - t`` for the value (t, e) at a point, and a bound on its rounding error."""
        value, error = self.at(x), self.rounding(x)
        square = np.sum(value[1:] ** 2)
        wrong = error[0] + float((2 * np.abs(value[1:]) + error[1:]) @ error[1:])
        rounded = (ROOM + len(value)) * EXTENDED * float(np.abs(value[0]) + square)
        return np.array([square - value[0]]), np.array([wrong * (1 + 1e-9) + rounded])

    def dual(self, z: Array) -> Array:
        """Return a vector of the dual cone near z, up to rounding for semidefinite matrices (see `half_space`)."""
        z = np.array(z, dtype=np.longdouble)
        if self.kind == NONNEGATIVE:
            return np.maximum(z, 0.0)
        if self.kind == SEMIDEFINITE:
            value, vector = np.linalg.eigh(smat(z.astype(float)))
            return svec((vector * np.maximum(value, 0.0)) @ vector.T)
        least = np.sqrt(np.sum(z[1:] ** 2)) if self.kind == SECOND_ORDER else np.abs(z[1:]).max(initial=0.0)
        z[0] = np.maximum(z[0], least * (1 + 2 * (ROOM + len(z)) * EXTENDED))
        return z

    def half_space(self, z: Array, x: Array) -> HalfSpace:
        """Return the half-space around K from a vector near the dual cone, with its gap at x."""
        value, error, side = self.at(x), self.rounding(x), 0
        if self.kind == SEMIDEFINITE:
            # The matrix with exactly these weights and vectors is semidefinite.
            weight, vector = np.linalg.eigh(smat(np.asarray(z, dtype=float)))
            left = np.maximum(np.einsum("ik,ik->k", vector, smat(value) @ vector), 0.0).astype(float)
            weight, side = np.maximum(weight, 0.0), len(vector)
            z = svec((vector * weight) @ vector.T)
            room = 2 * float(np.linalg.norm(error)) + 8 * side * EXTENDED * size_of(value)
            gap = float(weight @ left) + 1.01 * float(weight.sum()) * room
        else:
            z = self.dual(z)
            gap = float(z @ value) + float(np.abs(z) @ error) + 4 * EXTENDED * len(z) * float(np.abs(z) @ np.abs(value))
        row = -np.asarray(self.matrix.T @ z, dtype=float)
        widest = float(np.linalg.norm((self.size.T @ np.abs(z)).astype(float)))
        return HalfSpace(z, row, max(gap, 0.0), (self.slope_error + (ROOM + len(z) + 4 * side) * EPSILON) * widest)


def size_of(value: Array) -> float:
    return float(np.linalg.norm(value.astype(float)))


def least_eigenvalue(matrix: Array) -> float:
    """Return a lower bound on the least eigenvalue; if it is near 0, a Schur complement keeps the relative error small."""
    _, vectors = np.linalg.eigh(matrix.astype(float))
    turned = vectors.T @ matrix @ vectors
    size = np.diag(turned).astype(float)
    largest = max(float(np.abs(size).max()), 1e-300)
    small = np.abs(size) <= 1e-6 * largest
    if not small.any() or size.min() < -1e-6 * largest:
        return float(np.linalg.eigvalsh(matrix.astype(float))[0]) * (1 - 1e-9) - 8 * len(matrix) * EPSILON * largest
    corner, rest = turned[np.ix_(small, small)].astype(float), 0.0
    if not small.all():
        others = float(np.linalg.eigvalsh(turned[np.ix_(~small, ~small)].astype(float))[0])
        rest = 2 * float(np.linalg.norm(turned[np.ix_(small, ~small)].astype(float))) ** 2 / others
    return float(np.linalg.eigvalsh(corner)[0]) - BOUND_SLACK * len(corner) * float(np.linalg.norm(corner)) - rest
