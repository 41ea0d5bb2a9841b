"""What sets on shared coordinates are together, where that has a projection in closed form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import TemplateError
from dpconvex.geometry.axis_hull import AxisHull
from dpconvex.geometry.convex_sets import (
    UNIT,
    AffineSubspace,
    ConesInBall,
    Interval,
    NormBall,
    Piece,
    Slab,
    Unrecognised,
    close,
    overlap,
)
from dpconvex.geometry.semidefinite import Spectral, Spectrum, svec

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


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


def enclosures(pieces: Sequence[Piece], dim: int) -> list[Piece]:
    """Return simplices, and bounds of single coordinates, that rows imply together with the bounds of all coordinates."""
    limits = coordinate_bounds(pieces, dim)
    cuts = (corner(row, *limits) for row in rows_of(pieces))
    return [cut for cut in cuts if cut is not None]


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


def with_simplices(declared: Sequence[Piece], dim: int) -> list[Piece]:
    """Join bounds with a linear constraint or an l1 ball to a simplex where nothing else holds for their coordinates."""
    bounds = [piece for piece in declared if isinstance(piece, Interval)]
    others = [piece for piece in declared if not isinstance(piece, Interval)]
    limits = coordinate_bounds(bounds, dim)
    used = np.bincount(np.concatenate([np.zeros(0, dtype=np.int64), *(p.coordinates for p in others)]), minlength=dim)
    taken = np.zeros(dim, dtype=bool)
    pieces: list[Piece] = []
    for piece in others:
        alone = not taken[piece.coordinates].any() and (used[piece.coordinates] == 1).all()
        hull = simplex(piece, *limits) if alone else None
        if hull is not None:
            taken[piece.coordinates] = True
        pieces.append(hull or piece)
    for piece in bounds:
        left = ~taken[piece.coordinates]
        pieces.append(Interval(piece.coordinates[left], piece.text, piece.lower[left], piece.upper[left]))
    return [piece for piece in pieces if len(piece.coordinates)]


def simplex(piece: Piece, lower: Array, upper: Array) -> AxisHull | None:
    """Return the intersection of a piece with the bounds of its coordinates if that is a simplex with a projection."""
    here = lower[piece.coordinates], upper[piece.coordinates]
    if isinstance(piece, AxisHull):
        ends = [
            np.where(close(bound, piece.anchor), 0.0, end)
            for bound, end in zip(here, (piece.low, piece.high), strict=True)
        ]
        hulls = [replace(piece, low=ends[0], high=ends[1])]
    else:
        rows = list(rows_of([piece])) if isinstance(piece, Slab | AffineSubspace) else []
        if len(rows) != (2 if isinstance(piece, AffineSubspace) else 1):
            return None
        cuts = [corner(row, lower, upper, rounded=False) for row in rows]
        hulls = [cut for cut in cuts if isinstance(cut, AxisHull) and len(cut.coordinates) == len(piece.coordinates)]
    for hull in hulls:
        low, high = hull.ends
        inside = (low >= here[0]) | close(low, here[0]), (high <= here[1]) | close(high, here[1])
        if hull.can_project and inside[0].all() and inside[1].all():
            return hull
    return None


def merge(group: Sequence[Piece]) -> Piece | None:
    """Return the intersection of pieces that share coordinates as one piece, or None if it has no known projection."""
    equations = [piece for piece in group if isinstance(piece, AffineSubspace)]
    if len(equations) > 1:
        group = [*(piece for piece in group if not isinstance(piece, AffineSubspace)), merge_subspaces(equations)]
    pieces: list[Piece] = []
    for piece in group:
        for index, other in enumerate(pieces):
            both = intersect(other, piece)
            if both is not None:
                pieces[index] = both
                break
        else:
            pieces.append(piece)
    if any(isinstance(piece, Unrecognised) for piece in pieces):
        return None
    return pieces[0] if len(pieces) == 1 else cones_in_ball(pieces) or bounded_trace(pieces)


def texts(pieces: Sequence[Piece]) -> str:
    """Name all constraints, each only once."""
    return " and ".join(dict.fromkeys(text for piece in pieces for text in piece.text.split(" and ")))


def cones_in_ball(pieces: list[Piece]) -> Piece | None:
    """Cones on disjoint coordinates, in a ball around their apex."""
    balls = [p for p in pieces if isinstance(p, NormBall)]
    cones = [p for p in pieces if not isinstance(p, NormBall)]
    if len(balls) != 1 or any(len(cluster) > 1 for cluster in overlap(cones)):
        return None
    ball = balls[0]
    center = dict(zip(ball.coordinates.tolist(), ball.center.tolist(), strict=True))
    for cone in cones:
        here = cone.coordinates.tolist()
        if not set(here) <= set(center) or not cone.is_cone_at(np.array([center[c] for c in here])):
            return None
    return ConesInBall(ball.coordinates, ball.text, ball, tuple(cones))


def bounded_trace(pieces: list[Piece]) -> Piece | None:
    """Eigenvalues with bounds of their own and on their sum."""
    if len(pieces) != 2:
        return None
    spectrum, row = sorted(pieces, key=lambda p: not isinstance(p, Spectrum))
    flat = as_slab(row)
    if not isinstance(spectrum, Spectrum) or flat is None:
        return None
    side = len(spectrum.shift)
    unit = svec(np.eye(side))
    if not np.array_equal(spectrum.coordinates[unit > 0], flat.coordinates) or (flat.normal != flat.normal[0]).any():
        return None
    places, factor, shift = np.arange(side), float(flat.normal[0]), float(np.trace(spectrum.shift))
    ends = sorted((flat.lower / factor - shift, flat.upper / factor - shift))
    scale = 1 / np.sqrt(side)
    limits = Interval(places, "", np.full(side, spectrum.lower), np.full(side, spectrum.upper))
    rows: Piece = Slab(places, "", np.full(side, scale), ends[0] * scale, ends[1] * scale)
    if ends[0] == ends[1]:
        rows = AffineSubspace(places, "", np.full((1, side), scale), np.array([ends[0] * scale]))
    inner = merge(with_simplices([limits, rows], side))
    return None if inner is None else Spectral(spectrum.coordinates, texts(pieces), spectrum.shift, inner, True)


def as_slab(piece: Piece) -> Slab | None:
    """Return a slab, or a single equation or bound as one."""
    if isinstance(piece, Interval) and len(piece.coordinates) == 1:
        return Slab(piece.coordinates, piece.text, np.ones(1), float(piece.lower[0]), float(piece.upper[0]))
    if isinstance(piece, AffineSubspace) and len(piece.value) == 1:
        used = piece.matrix[0] != 0
        value = float(piece.value[0])
        return Slab(piece.coordinates[used], piece.text, piece.matrix[0, used], value, value)
    return piece if isinstance(piece, Slab) else None


def intersect(a: Piece, b: Piece) -> Piece | None:
    if isinstance(a, Interval) and isinstance(b, Interval):
        return merge_intervals(a, b)
    if not np.array_equal(a.coordinates, b.coordinates):
        return None
    if isinstance(a, NormBall) and isinstance(b, NormBall) and close(a.center, b.center).all():
        return a if a.radius <= b.radius else b
    parallel = (isinstance(a, Slab) and isinstance(b, Slab) and close(a.normal, b.normal).all()) or (
        isinstance(a, Spectrum) and isinstance(b, Spectrum) and close(a.shift, b.shift).all()
    )
    if not parallel:
        return None
    assert isinstance(a, Slab | Spectrum)
    assert isinstance(b, Slab | Spectrum)
    lower, upper, text = max(a.lower, b.lower), min(a.upper, b.upper), texts([a, b])
    if lower > upper:
        raise contradiction(text)
    return replace(a, lower=lower, upper=upper, text=text)


def merge_intervals(a: Interval, b: Interval) -> Interval:
    """Intersect coordinatewise bounds."""
    coordinates = np.union1d(a.coordinates, b.coordinates)
    lower, upper = np.full(len(coordinates), -np.inf), np.full(len(coordinates), np.inf)
    for piece in (a, b):
        place = np.searchsorted(coordinates, piece.coordinates)
        np.maximum.at(lower, place, piece.lower)
        np.minimum.at(upper, place, piece.upper)
    if (lower > upper).any():
        raise contradiction(texts([a, b]))
    return Interval(coordinates, texts([a, b]), lower, upper)


def merge_subspaces(pieces: Sequence[AffineSubspace]) -> AffineSubspace:
    """Stack linear equations."""
    coordinates = np.unique(np.concatenate([piece.coordinates for piece in pieces]))
    matrix = np.zeros((sum(len(piece.value) for piece in pieces), len(coordinates)))
    start = 0
    for piece in pieces:
        matrix[start : start + len(piece.value), np.searchsorted(coordinates, piece.coordinates)] = piece.matrix
        start += len(piece.value)
    merged = AffineSubspace(coordinates, texts(pieces), matrix, np.concatenate([piece.value for piece in pieces]))
    if not merged.consistent:
        raise contradiction(merged.text)
    return merged


def contradiction(text: str) -> TemplateError:
    """Say that nothing satisfies the constraints."""
    return TemplateError(f"the constraints {text} contradict each other: no point satisfies them all.")
