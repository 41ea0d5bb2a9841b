"""Balls of norms, and other sets that bound an affine function: as pieces with a projection, or with what contains them."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.errors import TemplateError
from dpconvex.geometry.axis_hull import AxisHull
from dpconvex.geometry.convex_sets import (
    UNIT,
    AffineSubspace,
    Interval,
    NormBall,
    Piece,
    Slab,
    Unrecognised,
    close,
)
from dpconvex.geometry.semidefinite import Spectral, Spectrum

Array = NDArray[np.float64]

# Relative room for the rounding of a pseudo-inverse and of norms, far above it.
ROOM = 1e-12
# Ellipsoids on more coordinates than this are not inverted.
LARGEST_INVERSE = 1000


def unsatisfiable(text: str) -> TemplateError:
    """Say that nothing satisfies a constraint."""
    return TemplateError(f"the constraint {text} cannot be satisfied.")


def linear(matrix: sp.csr_array, lower: Array, upper: Array, text: str) -> list[Piece]:
    """Pieces of ``lower <= matrix @ theta <= upper``: bounds, linear equations and slabs, row by row."""
    matrix = sp.csr_array(matrix)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    count = np.diff(matrix.indptr)
    slack = 1e-12 * (1 + np.where(np.isfinite(upper), np.abs(upper), 0))
    if (lower > upper + slack).any() or ((count == 0) & ((lower > slack) | (upper < -slack))).any():
        raise unsatisfiable(text)
    pieces: list[Piece] = []
    rows = np.flatnonzero(count == 1)
    if len(rows):
        column, slope = matrix.indices[matrix.indptr[rows]].astype(np.int64), matrix.data[matrix.indptr[rows]]
        one, two = lower[rows] / slope, upper[rows] / slope
        pieces.append(bounds(column, np.minimum(one, two), np.maximum(one, two), text))
    for row in np.flatnonzero((count > 1) & (np.isfinite(lower) | np.isfinite(upper))):
        entries = slice(matrix.indptr[row], matrix.indptr[row + 1])
        order = np.argsort(matrix.indices[entries])
        column, slope = matrix.indices[entries][order].astype(np.int64), matrix.data[entries][order]
        if lower[row] == upper[row]:
            pieces.append(AffineSubspace(column, text, slope[None], upper[[row]]))
        else:
            # A fixed sign and length make parallel slabs comparable.
            scale = float(np.linalg.norm(slope)) * (1.0 if slope[0] > 0 else -1.0)
            ends = sorted((lower[row] / scale, upper[row] / scale))
            pieces.append(Slab(column, text, slope / scale, ends[0], ends[1]))
    return pieces


def bounds(column: NDArray[np.int64], below: Array, above: Array, text: str) -> Interval:
    """Bounds on single coordinates, each as tight as the tightest of those given for it."""
    coordinates, place = np.unique(column, return_inverse=True)
    lower, upper = np.full(len(coordinates), -np.inf), np.full(len(coordinates), np.inf)
    np.maximum.at(lower, place, below)
    np.minimum.at(upper, place, above)
    if (lower > upper).any():
        raise unsatisfiable(text)
    return Interval(coordinates, text, lower, upper)


def two_sided(matrix: sp.csr_array, offset: Array, level: Array, text: str) -> list[Piece]:
    """Read ``|matrix @ theta + offset| <= level``, entry by entry."""
    if (level < 0).any():
        raise unsatisfiable(text)
    return linear(matrix, -level - offset, level - offset, text)


def norm_ball(matrix: sp.csr_array, offset: Array, order: float, radius: float, text: str) -> list[Piece]:
    if radius < 0:
        raise unsatisfiable(text)
    if order == np.inf or len(offset) == 1:
        return two_sided(matrix, offset, np.full(len(offset), radius), text)
    exact = None
    if order in (1, 2):
        exact = (l1_ball if order == 1 else euclidean_ball)(matrix, offset, radius, text)
    if exact is not None:
        return exact
    # The largest Euclidean norm of vectors with a p-norm of 1.
    spread = 1.0 if order <= 2 else float(len(offset) ** (0.5 - 1 / order)) * (1 + ROOM)
    columns = np.unique(matrix.indices).astype(np.int64)
    whole = euclidean_ball(matrix, offset, radius * spread, text)
    if whole is None:
        whole = around_ellipsoid(matrix[:, columns].toarray(), offset, radius * spread, columns, text)
    return [Unrecognised(columns, text, tuple(whole))]


def around_ellipsoid(matrix: Array, offset: Array, radius: float, columns: NDArray[np.int64], text: str) -> list[Piece]:
    """Return a ball about ``||A x + b|| <= r`` for A of full column rank.

    With any B, ``x = B (A x + b) - B b + (I - B A) x``; for B near the pseudo-inverse the last term is rounding, and is bounded.
    """
    count = len(columns)
    if count > min(LARGEST_INVERSE, len(offset)):
        return []
    inverse = np.linalg.pinv(matrix, rcond=1e-10)
    center, sizes = -inverse @ offset, np.abs(inverse)
    room = (len(offset) + count + 8) * UNIT
    missing = np.abs(np.eye(count) - inverse @ matrix).sum(axis=1) + room * (sizes @ np.abs(matrix)).sum(axis=1)
    if not missing.max(initial=0.0) <= 0.1:
        return []
    rounded = room * (sizes @ np.abs(offset))
    half = np.linalg.norm(inverse, axis=1) * radius * (1 + ROOM) + rounded
    farthest = float((np.abs(center) + half).max()) / (1 - float(missing.max())) * (1 + ROOM)
    length = float(np.linalg.norm(inverse, 2)) * radius * (1 + ROOM)
    length += float(np.linalg.norm(missing * farthest + rounded))
    return [NormBall(columns, text, center, length * (1 + ROOM))]


def isometry(matrix: sp.csr_array, offset: Array) -> tuple[NDArray[np.int64], float, Array, float] | None:
    """Columns, scale, center and what is missed at it, if ``||matrix @ x + offset||`` is the distance from a center, scaled."""
    gram = sp.csr_array(matrix.T @ matrix)
    scale = gram.diagonal()
    columns = np.flatnonzero(scale)
    if not len(columns):
        return columns, 0.0, np.zeros(0), float(np.linalg.norm(offset))
    square = float(scale[columns].mean())
    difference = gram[columns][:, columns] - square * sp.eye_array(len(columns))
    if abs(difference).max() > 1e-12 * square:
        return None
    center = -np.asarray(matrix[:, columns].T @ offset) / square
    missed = float(np.linalg.norm(matrix[:, columns] @ center + offset))
    missed = 0.0 if missed <= 1e-12 * float(np.linalg.norm(offset)) else missed
    return columns, float(np.sqrt(square)), center, missed


def euclidean_ball(matrix: sp.csr_array, offset: Array, radius: float, text: str) -> list[Piece] | None:
    """Read a Euclidean ball if the matrix is a multiple of an isometry on its coordinates."""
    found = isometry(matrix, offset)
    if found is None:
        return None
    columns, scale, center, missed = found
    if not len(columns) and missed <= radius:
        return []
    if missed > radius:
        raise unsatisfiable(text)
    return [NormBall(columns, text, center, float(np.sqrt((radius**2 - missed**2) / scale**2)))]


def l1_ball(matrix: sp.csr_array, offset: Array, radius: float, text: str) -> list[Piece] | None:
    """Read a weighted l1 ball if every entry depends on one coordinate, measured from one center."""
    count = np.diff(matrix.indptr)
    if (count > 1).any():
        return None
    left = radius - float(np.abs(offset[count == 0]).sum())
    if left < 0:
        raise unsatisfiable(text)
    coordinates, place = np.unique(matrix.indices, return_inverse=True)
    centers = -offset[count == 1] / matrix.data
    center, weight = np.zeros(len(coordinates)), np.zeros(len(coordinates))
    center[place] = centers
    np.add.at(weight, place, np.abs(matrix.data))
    if (center[place] != centers).any():
        return None
    return [AxisHull(coordinates.astype(np.int64), text, center, -left / weight, left / weight)]


def spectral_ball(
    matrix: sp.csr_array, offset: Array, shape: tuple[int, ...], radius: float, text: str
) -> list[Piece] | None:
    """Read a bound on the largest singular value of an affine matrix."""
    if radius < 0:
        raise unsatisfiable(text)
    if shape[0] == shape[1]:
        bound = radius * np.eye(shape[0]).ravel()
        sides = [semidefinite(sign * matrix, bound + sign * offset, text) for sign in (1.0, -1.0)]
        if sides[0] is not None and sides[1] is not None:
            return [*sides[0], *sides[1]]
    found = rectangle(matrix, offset, shape)
    if found is not None and min(shape) > 1:
        coordinates, scale, shift = found
        places, ends = np.arange(min(shape)), np.full(min(shape), radius / scale)
        return [Spectral(coordinates, text, shift, Interval(places, text, -ends, ends), False)]
    return None


def nuclear_ball(
    matrix: sp.csr_array, offset: Array, shape: tuple[int, ...], radius: float, text: str
) -> list[Piece] | None:
    """Read a bound on the sum of the singular values of an affine matrix."""
    if radius < 0:
        raise unsatisfiable(text)
    whole = symmetric(matrix, offset) if shape[0] == shape[1] else None
    found = whole or rectangle(matrix, offset, shape)
    if found is None or min(shape) == 1:
        return norm_ball(matrix, offset, 2, radius, text) if min(shape) == 1 else None
    coordinates, scale, shift = found
    places, ends = np.arange(min(shape)), np.full(min(shape), radius / abs(scale))
    ball = AxisHull(places, text, np.zeros(min(shape)), -ends, ends)
    return [Spectral(coordinates, text, shift, ball, whole is not None)]


def rectangle(
    matrix: sp.csr_array, offset: Array, shape: tuple[int, ...]
) -> tuple[NDArray[np.int64], float, Array] | None:
    """Coordinates, a scale s > 0 and a shift C such that the matrix is ``+-s (X - C)`` for X of one coordinate an entry."""
    if not (np.diff(matrix.indptr) == 1).all() or len(set(matrix.indices.tolist())) < len(offset):
        return None
    if (matrix.data != matrix.data[0]).any():
        return None
    shift = (-offset / matrix.data[0]).reshape(shape, order="F")
    return matrix.indices.astype(np.int64), abs(float(matrix.data[0])), shift


def symmetric(matrix: sp.csr_array, offset: Array) -> tuple[NDArray[np.int64], float, Array] | None:
    """Coordinates, a scale s and a shift C such that the matrix is ``s (X - C)`` for a symmetric X or a part of one."""
    side = int(np.sqrt(len(offset)))
    row, column = np.triu_indices(side)
    upper = sp.csr_array(matrix[column * side + row])
    mirrored = sp.csr_array(matrix[row * side + column])
    if abs(upper - mirrored).max() > 0 or not (np.diff(upper.indptr) == 1).all() or len(set(upper.indices)) < len(row):
        return None
    slope = upper.data * np.where(row == column, 1.0, np.sqrt(2.0))
    if not close(slope, np.full(len(slope), slope[0])).all():
        return None
    constant = offset.reshape(side, side)
    if not close(constant, constant.T).all():
        return None
    return upper.indices.astype(np.int64), float(slope[0]), -(constant + constant.T) / (2 * float(slope[0]))


def semidefinite(matrix: sp.csr_array, offset: Array, text: str) -> list[Piece] | None:
    """Read ``s X + C >= 0`` for a symmetric variable, or a principal submatrix of one, X."""
    found = symmetric(matrix, offset)
    if found is None:
        return None
    coordinates, scale, shift = found
    side, level = len(shift), 0.0
    if (shift == shift[0, 0] * np.eye(side)).all():
        shift, level = np.zeros((side, side)), float(shift[0, 0])
    limits = (level, np.inf) if scale > 0 else (-np.inf, level)
    if side == 1:
        return [Interval(coordinates, text, np.array([limits[0]]), np.array([limits[1]]))]
    return [Spectrum(coordinates, text, shift, *limits)]
