"""What several constraints imply together: simplices, and matrices of bounded trace.

Nothing is solved.  Each rule takes bounds that are known and returns a set that contains K; rules feed each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpconvex.geometry.axis_hull import AxisHull
from dpconvex.geometry.convex_sets import (
    UNIT,
    AffineSubspace,
    Interval,
    NormBall,
    Piece,
    Slab,
)
from dpconvex.geometry.semidefinite import Spectrum, smat, svec

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

ROUNDS = 3
# Relative room for the rounding of short sums and of eigenvalues.
ROOM = 1e-13


@dataclass(frozen=True, eq=False)
class Row:
    """A linear inequality ``<normal, x> <= level`` on some coordinates; `tight` if it is an equation."""

    coordinates: Indices
    normal: Array
    level: float
    tight: bool
    text: str


def coordinate_bounds(pieces: Iterable[Piece], dim: int) -> tuple[Array, Array]:
    lower, upper = np.full(dim, -np.inf), np.full(dim, np.inf)
    for piece in pieces:
        below, above = piece.bounds()
        lower[piece.coordinates] = np.maximum(lower[piece.coordinates], below)
        upper[piece.coordinates] = np.minimum(upper[piece.coordinates], above)
    return lower, upper


def enclosures(pieces: Sequence[Piece], dim: int) -> tuple[Piece, ...]:
    """Return sets that contain the intersection of pieces, with the bounds that no piece has alone."""
    found: list[Piece] = [one for piece in pieces for one in piece.around]
    spectra = [piece for piece in pieces if isinstance(piece, Spectrum)]
    limits = coordinate_bounds([*pieces, *found], dim)
    rows = [*rows_of([*pieces, *found]), *(row for spectrum in spectra for row in diagonal_row(spectrum, *limits))]
    if not rows:
        return tuple(found)
    found += [ball for row in rows for spectrum in spectra for ball in bounded_trace(row, spectrum)]
    implied: dict[Row, Piece] = {}
    for _ in range(ROUNDS):
        limits = coordinate_bounds([*pieces, *found, *implied.values()], dim)
        for row in rows:
            cut = corner(row, *limits)
            if cut is not None:
                implied[row] = cut
    return (*found, *implied.values())


def rows_of(pieces: Iterable[Piece]) -> Iterator[Row]:
    """Yield the linear inequalities among pieces."""
    for piece in pieces:
        if isinstance(piece, Slab):
            for sign, level, other in ((1.0, piece.upper, piece.lower), (-1.0, -piece.lower, -piece.upper)):
                if np.isfinite(level):
                    yield Row(piece.coordinates, sign * piece.normal, float(level), level == other, piece.text)
        elif isinstance(piece, AffineSubspace):
            for normal, value in zip(piece.matrix, piece.value, strict=True):
                used = normal != 0
                for sign in (1.0, -1.0):
                    yield Row(piece.coordinates[used], sign * normal[used], sign * float(value), True, piece.text)


def diagonal_row(spectrum: Spectrum, lower: Array, upper: Array) -> list[Row]:
    """Bound the sum of a diagonal by the bounds of its entries, on the side where the eigenvalues have none."""
    here = spectrum.coordinates[svec_diagonal(len(spectrum.shift))]
    side, sign = (upper[here], 1.0) if np.isfinite(spectrum.lower) else (-lower[here], -1.0)
    if not np.isfinite(side).all():
        return []
    level = float(side.sum()) + len(here) * UNIT * float(np.abs(side).sum())
    return [Row(here, np.full(len(here), sign), level, False, spectrum.text)]


def corner(row: Row, lower: Array, upper: Array, rounded: bool = True) -> Piece | None:
    """Return the simplex that a row cuts off a corner of the box; a bound, if just one coordinate is free on that side.

    It holds all that exact arithmetic could put there, unless `rounded` is False.
    """
    apex = np.where(row.normal > 0, lower[row.coordinates], upper[row.coordinates])
    known = np.isfinite(apex)
    if (~known).sum() > 1 or not len(apex):
        return None
    at = row.normal[known] * apex[known]
    room = 0.0 if not at.any() or not rounded else (len(apex) + 2) * UNIT * float(np.abs(at).sum() + abs(row.level))
    left = row.level - float(at.sum())
    if not known.all():
        end = (left + room) / row.normal[~known]
        limits = (np.array([-np.inf]), end) if row.normal[~known][0] > 0 else (end, np.array([np.inf]))
        return Interval(
            row.coordinates[~known], row.text, np.nextafter(limits[0], -np.inf), np.nextafter(limits[1], np.inf)
        )
    if left < -room:
        return None  # nothing satisfies all constraints; whoever projects will see
    ends = np.array([max(left - room, 0.0) if row.tight else 0.0, max(left + room, 0.0)])[:, None] / row.normal
    return AxisHull(row.coordinates, row.text, apex, ends.min(axis=0), ends.max(axis=0))


def bounded_trace(row: Row, spectrum: Spectrum) -> list[Piece]:
    """Bound semidefinite matrices ``Y = s (X - shift) - s level I``, s = 1 or -1, that have ``<C, Y> <= c`` with C definite.

    Then ``trace Y <= t = c / (least eigenvalue of C)``, entries on the diagonal are at most t, others at most t/2 in absolute
    value, and the Frobenius norm is at most t.
    """
    both = np.isfinite(spectrum.lower), np.isfinite(spectrum.upper)
    first, last = spectrum.coordinates[[0, -1]]
    if both[0] == both[1] or not ((first <= row.coordinates) & (row.coordinates <= last)).all():
        return []
    if not np.isin(row.coordinates, spectrum.coordinates).all():
        return []
    sign, level = (1.0, spectrum.lower) if both[0] else (-1.0, spectrum.upper)
    place = {int(c): k for k, c in enumerate(spectrum.coordinates)}
    normal = np.zeros(len(spectrum.coordinates))
    normal[[place[int(c)] for c in row.coordinates]] = row.normal
    apex = svec(spectrum.shift + level * np.eye(len(spectrum.shift)))
    diagonal = np.isin(np.arange(len(normal)), svec_diagonal(len(spectrum.shift)))
    plain = not normal[~diagonal].any()
    values = sign * normal[diagonal] if plain else np.linalg.eigvalsh(sign * smat(normal))
    least = float(values.min()) - (0.0 if plain else ROOM * len(spectrum.shift) * float(np.abs(values).max()))
    if not least > 0:
        return []
    slack = (len(normal) + 2) * UNIT * float(np.abs(normal * apex).sum())
    trace = max(row.level - float(normal @ apex) + slack, 0.0) / least * (1 + 2 * UNIT)
    high = np.where(diagonal, trace, trace * np.sqrt(0.5) * (1 + 2 * UNIT))
    low = np.where(diagonal, 0.0, -high)
    if sign < 0:
        low, high = -high, -low
    text = f"{spectrum.text} and {row.text}"
    ball = NormBall(spectrum.coordinates, text, apex, trace)
    ends = np.nextafter(apex + low, -np.inf), np.nextafter(apex + high, np.inf)
    return [ball, Interval(spectrum.coordinates, text, *ends)]


def svec_diagonal(side: int) -> Indices:
    row, column = np.triu_indices(side)
    return np.flatnonzero(row == column)
