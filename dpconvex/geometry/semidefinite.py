"""Matrices with a constraint on their eigenvalues or singular values: semidefinite cones, nuclear and spectral balls, traces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpconvex.geometry.convex_sets import UNIT, Piece, close

Array = NDArray[np.float64]


@lru_cache(maxsize=64)
def triangle(side: int) -> tuple[NDArray[np.int64], NDArray[np.int64], Array]:
    """Rows and columns of a matrix's upper triangle, and the roots of how often each entry counts."""
    row, column = np.triu_indices(side)
    return row, column, np.where(row == column, 1.0, np.sqrt(2.0))


def svec(matrix: Array) -> Array:
    """Coordinates of symmetric matrices, shape (..., D, D) to (..., D(D+1)/2), an isometry for the Frobenius norm.

    >>> svec(np.array([[1.0, 2.0], [2.0, 3.0]])).round(6).tolist()
    [1.0, 2.828427, 3.0]
    """
    row, column, weight = triangle(matrix.shape[-1])
    return np.asarray(matrix[..., row, column] * weight)


def side_of(vector: Array) -> int:
    """Side of the symmetric matrices of some coordinates."""
    return int((np.sqrt(8 * vector.shape[-1] + 1) - 1) / 2)


def smat(vector: Array) -> Array:
    """Symmetric matrices from their coordinates, shape (..., D(D+1)/2) to (..., D, D); the inverse of `svec`."""
    side = side_of(vector)
    row, column, weight = triangle(side)
    entries = vector / weight
    matrix = np.empty((*vector.shape[:-1], side, side), dtype=entries.dtype)
    matrix[..., row, column] = entries
    matrix[..., column, row] = entries
    return matrix


def clip_spectra(x: Array, shift: Array, lower: Array, upper: Array) -> Array:
    """Project k symmetric matrices at once on their spectral bounds (see `Spectrum`)."""
    value, vector = np.linalg.eigh(smat(x) - shift)
    clipped = np.clip(value, lower[:, None], upper[:, None])
    projected = svec(shift + (vector * clipped[:, None, :]) @ np.swapaxes(vector, 1, 2))
    return np.where((clipped == value).all(axis=1)[:, None], x, projected)


@dataclass(frozen=True, eq=False)
class Spectrum(Piece):
    """Symmetric matrices X whose shifted eigenvalues are bounded: ``lower <= eig(X - shift) <= upper``.

    The positive semidefinite cone has shift 0, lower 0, upper infinity.  The projection clips eigenvalues (N. Higham,
    "Computing a nearest symmetric positive semidefinite matrix", Linear Algebra Appl. 1988, Theorem 2.1; for two-sided
    bounds the same argument holds, because set and norm are unitarily invariant).
    """

    shift: Array
    lower: float
    upper: float

    def is_cone_at(self, point: Array) -> bool:
        """One-sided bounds make a cone with its apex at ``shift + bound * I``."""
        if np.isfinite(self.lower) and np.isfinite(self.upper):
            return False
        bound = self.lower if np.isfinite(self.lower) else self.upper
        return bool(close(svec(self.shift + bound * np.eye(len(self.shift))), point).all())

    def project(self, x: Array) -> Array:
        """Clip the eigenvalues of the shifted matrix."""
        return clip_spectra(x[None], self.shift[None], np.array([self.lower]), np.array([self.upper]))[0]

    def bounds(self) -> tuple[Array, Array]:
        """Diagonal entries lie between the eigenvalue bounds; the others, given both bounds, within half the width."""
        side = len(self.shift)
        row, column = np.triu_indices(side)
        diagonal = row == column
        half = (self.upper - self.lower) / 2
        lower = svec(self.shift) + np.where(diagonal, self.lower, -half * np.sqrt(2.0))
        upper = svec(self.shift) + np.where(diagonal, self.upper, half * np.sqrt(2.0))
        return lower, upper

    def norm_bound(self) -> float:
        """Bound the Frobenius norm by the eigenvalues rather than by the entries."""
        widest = max(abs(self.lower), abs(self.upper))
        return float(np.linalg.norm(self.shift) + widest * np.sqrt(len(self.shift)))

    def center_point(self) -> Array | None:
        """The matrix whose eigenvalues lie in the middle, if there are two bounds; else where the cone has its apex."""
        ends = [bound for bound in (self.lower, self.upper) if np.isfinite(bound)]
        return svec(self.shift + float(np.mean(ends or [0.0])) * np.eye(len(self.shift)))

    def distance_bound(self, point: Array) -> float:
        """No eigenvalue is farther from the middle than half the width."""
        half = (self.upper - self.lower) / 2
        middle = self.center_point()
        if middle is None or not np.isfinite(half):
            return float(np.inf)
        return float(np.linalg.norm(middle - point)) + half * float(np.sqrt(len(self.shift)))

    def error(self, x: Array) -> float:
        """Backward error of a symmetric eigendecomposition, with room for the reassembly."""
        side = len(self.shift)
        scale = float(np.linalg.norm(x) + np.linalg.norm(self.shift))
        for bound in (self.lower, self.upper):
            scale += abs(bound) * side if np.isfinite(bound) else 0.0
        return 4.0 * side * UNIT * scale


@dataclass(frozen=True, eq=False)
class Spectral(Piece):
    """Matrices X for which the eigenvalues (of symmetric ones) or the singular values of ``X - shift`` lie in a set.

    The set does not change when its coordinates change places, and for singular values when they change signs: the projection
    is then its own on the spectrum (A. Lewis, "The convex analysis of unitarily invariant matrix functions", J. Convex Analysis
    1995).
    Symmetric matrices are given by their svec, others by their entries in column order.
    """

    shift: Array
    inner: Piece
    symmetric: bool

    def decomposed(self, x: Array) -> tuple[Array, Array, Array]:
        """Factors and spectrum of ``X - shift``: left, values, right."""
        if self.symmetric:
            value, vector = np.linalg.eigh(smat(x) - self.shift)
            return vector, value, vector.T
        return np.linalg.svd(x.reshape(self.shift.shape, order="F") - self.shift, full_matrices=False)

    def project(self, x: Array) -> Array:
        """Project the spectrum; a matrix of the set comes back unchanged."""
        left, value, right = self.decomposed(x)
        inside = self.inner.project(value)
        if np.array_equal(inside, value):
            return x
        matrix = self.shift + (left * inside) @ right
        return svec(matrix) if self.symmetric else matrix.reshape(-1, order="F")

    def bounds(self) -> tuple[Array, Array]:
        """Diagonals lie between the eigenvalues, no other entry exceeds half their width; none a singular value."""
        low, high = (float(end) for end in (self.inner.bounds()[0].min(), self.inner.bounds()[1].max()))
        if not self.symmetric:
            middle = self.shift.reshape(-1, order="F")
            return middle - high * (1 + 4 * UNIT), middle + high * (1 + 4 * UNIT)
        return Spectrum(self.coordinates, self.text, self.shift, low, high).bounds()

    def norm_bound(self) -> float:
        """Frobenius norm of the shift plus the largest norm of a spectrum."""
        return (float(np.linalg.norm(self.shift)) + self.inner.norm_bound()) * (1 + 4 * UNIT)

    def center_point(self) -> Array:
        """Return the shift."""
        return svec(self.shift) if self.symmetric else self.shift.reshape(-1, order="F")

    def distance_bound(self, point: Array) -> float:
        """Return the distance of the shift plus the largest norm of a spectrum."""
        center = svec(self.shift) if self.symmetric else self.shift.reshape(-1, order="F")
        return (float(np.linalg.norm(center - point)) + self.inner.norm_bound()) * (1 + 4 * UNIT)

    def error(self, x: Array) -> float:
        """Backward error of the decomposition, with room for the reassembly, and the error on the spectrum."""
        value = self.decomposed(x)[1]
        scale = float(np.linalg.norm(x) + 2 * np.linalg.norm(self.shift) + np.linalg.norm(self.inner.project(value)))
        return 4.0 * sum(self.shift.shape) * UNIT * scale + self.inner.error(value)

    def largest_error(self, norm: float) -> float:
        """Bound the same for every point of at most this norm."""
        shift = float(np.linalg.norm(self.shift))
        still = float(np.linalg.norm(self.inner.project(np.zeros(min(self.shift.shape)))))
        scale = 2 * norm + 4 * shift + still
        return 4.0 * sum(self.shift.shape) * UNIT * scale + self.inner.largest_error((norm + shift) * (1 + 1e-9))
