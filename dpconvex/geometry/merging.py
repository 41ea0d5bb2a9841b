"""What sets on shared coordinates are together, as one set with a projection.

Tried in turn: one kind alone, numbers that are tied together, orders, spectra with a bounded trace, cones in a ball, what one
multiplier cuts, polyhedra, and Dykstra's method for the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import NotConverged, TemplateError
from dpconvex.geometry.axis_hull import AxisHull
from dpconvex.geometry.cones import Ordered
from dpconvex.geometry.convex_sets import (
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
from dpconvex.geometry.cuts import Cut, Product
from dpconvex.geometry.dykstra import intersection
from dpconvex.geometry.enclosures import coordinate_bounds, corner, enclosures, rows_of
from dpconvex.geometry.polyhedron import polyhedron
from dpconvex.geometry.semidefinite import Spectral, Spectrum, svec
from dpconvex.geometry.tied import Tied, tied_coordinates

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# Polyhedra with more coordinates or entries of their matrix are not projected on.
LARGEST_SIDE, LARGEST_MATRIX = 3000, 4_000_000
# How many cuts may lie inside each other: each multiplies the time of a projection.
DEEPEST = 2


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


def clash(group: Sequence[Piece]) -> str:
    """Say which constraints have no projection, and what to do."""
    unknown = [piece.text for piece in group if isinstance(piece, Unrecognised)]
    if unknown:
        return (
            f"the constraint {unknown[0]} is not of a form that can be projected on; write it with bounds, linear "
            "(in)equalities, Euclidean, l1, nuclear and spectral norms, or semidefinite bounds"
        )
    texts = " and ".join(dict.fromkeys(piece.text for piece in group))
    return (
        f"no projection on the intersection of {texts} can be certified: no point was found that lies inside all of these "
        "sets; drop one of them, or put them on different coordinates"
    )


def merge(group: Sequence[Piece], depth: int = DEEPEST) -> Piece | None:
    """Return the intersection of pieces that share coordinates as one piece, or None if it has no known projection."""
    if any(isinstance(piece, Unrecognised) for piece in group):
        return None
    pieces: list[Piece] = []
    equations = [piece for piece in group if isinstance(piece, AffineSubspace)]
    if len(equations) > 1:
        group = [*(piece for piece in group if not isinstance(piece, AffineSubspace)), merge_subspaces(equations)]
    for piece in group:
        for index, other in enumerate(pieces):
            both = intersect(other, piece)
            if both is not None:
                pieces[index] = both
                break
        else:
            pieces.append(piece)
    if len(pieces) == 1:
        return pieces[0]
    for rule in (cones_in_ball, ordered, bounded_trace, tied):
        found = rule(pieces)
        if found is not None:
            return found
    return cut(pieces, depth) or polyhedral(pieces) or curved(pieces)


def product(pieces: Sequence[Piece], depth: int, more: Indices | None = None) -> Product | None:
    """Merge pieces, on disjoint coordinates each, to one; `more` are coordinates that are free otherwise."""
    parts = [merge(group, depth) for group in overlap(pieces)]
    if any(part is None for part in parts):
        return None
    whole = np.unique(
        np.concatenate([*(p.coordinates for p in pieces), np.zeros(0, dtype=np.int64) if more is None else more])
    )
    return Product(whole, texts(pieces), tuple(part for part in parts if part is not None))


def texts(pieces: Sequence[Piece]) -> str:
    """Name all constraints at once."""
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


def ordered(pieces: list[Piece]) -> Piece | None:
    """One chain of numbers that grow by at least so much each, with bounds that are alike for all."""
    slabs = [p for p in pieces if isinstance(p, Slab)]
    boxes = [p for p in pieces if isinstance(p, Interval)]
    if not slabs or len(slabs) + len(boxes) < len(pieces) or len(boxes) > 1:
        return None
    after: dict[int, tuple[int, float]] = {}
    for slab in slabs:
        sides = np.isfinite([slab.lower, slab.upper])
        if len(slab.normal) != 2 or slab.normal.sum() != 0 or sides.all():
            return None
        # The slab says that first - second is at most, or at least, so much.
        first, second = (int(c) for c in slab.coordinates)
        gap = (slab.lower if sides[0] else slab.upper) / float(slab.normal[0])
        low, high, step = (second, first, gap) if sides[0] else (first, second, -gap)
        if low in after:
            return None
        after[low] = (high, step)
    ends = {high for high, _ in after.values()}
    starts = set(after) - ends
    if len(starts) != 1 or len(ends) != len(after):
        return None
    chain, offset = [starts.pop()], [0.0]
    while chain[-1] in after:
        follower, step = after[chain[-1]]
        chain.append(follower)
        offset.append(offset[-1] + step)
    if len(chain) != len(after) + 1:
        return None
    lower, upper = coordinate_bounds(boxes, max(chain) + 1)
    if boxes and not set(boxes[0].coordinates.tolist()) <= set(chain):
        return None
    # A bound on one number is one on all that follow, or come before.
    below = np.maximum.accumulate(lower[chain] - offset)
    above = np.minimum.accumulate((upper[chain] - offset)[::-1])
    if (below != below[0]).any() or (above != above[0]).any() or below[0] > above[0]:
        return None
    return Ordered(np.array(chain), texts(pieces), np.array(offset), float(below[0]), float(above[0]))


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
    rows = Slab(places, "", np.full(side, scale), ends[0] * scale, ends[1] * scale)
    inner = merge(with_simplices([limits, rows], side))
    return None if inner is None else Spectral(spectrum.coordinates, texts(pieces), spectrum.shift, inner, True)


def tied(pieces: list[Piece]) -> Piece | None:
    """Numbers that are equal, with sets that ask the same of as many copies of each."""
    equations = [p for p in pieces if isinstance(p, AffineSubspace)]
    coordinates = np.unique(np.concatenate([p.coordinates for p in pieces]))
    index = tied_coordinates(equations, coordinates) if len(equations) == 1 else None
    if index is None:
        return None
    counts = np.bincount(index)
    rest: list[Piece] = []
    for piece in pieces:
        if piece is equations[0]:
            continue
        here = index[np.searchsorted(coordinates, piece.coordinates)]
        if len(set(here.tolist())) < len(here) or (counts[here] != counts[here[0]]).any():
            return None
        rest.append(replace(piece, coordinates=here))
    if any(len({int(counts[c]) for p in group for c in p.coordinates}) > 1 for group in overlap(rest)):
        return None
    whole = product(rest, DEEPEST, np.arange(len(counts))) if rest else Product(np.arange(len(counts)), "", ())
    return None if whole is None else Tied(coordinates, texts(pieces), whole, index)


def as_slab(piece: Piece) -> Slab | None:
    """Return a slab, or a single equation or bound as one."""
    if isinstance(piece, Interval) and len(piece.coordinates) == 1:
        return Slab(piece.coordinates, piece.text, np.ones(1), float(piece.lower[0]), float(piece.upper[0]))
    if isinstance(piece, AffineSubspace) and len(piece.value) == 1:
        used = piece.matrix[0] != 0
        value = float(piece.value[0])
        return Slab(piece.coordinates[used], piece.text, piece.matrix[0, used], value, value)
    return piece if isinstance(piece, Slab) else None


def cut(pieces: list[Piece], depth: int) -> Piece | None:
    """What a slab or a ball cuts off the intersection of the others; of polyhedra only bounds are cut so."""
    if depth == 0:
        return None
    knives = [(p, as_slab(p) or (p if isinstance(p, NormBall) else None)) for p in pieces]
    if sum(isinstance(p, Slab | AffineSubspace) for p in pieces) > 1:
        knives = [(p, knife) for p, knife in knives if isinstance(knife, NormBall)]
    elif all(isinstance(p, Slab | AffineSubspace | Interval) for p in pieces):
        knives = [(p, knife) for p, knife in knives if not isinstance(p, Interval)]
    for piece, knife in knives:
        if knife is None:
            continue
        whole = product([p for p in pieces if p is not piece], depth - 1, knife.coordinates)
        if whole is None or any(isinstance(part, Cut) and depth < DEEPEST for part in whole.pieces):
            continue
        found = Cut(whole.coordinates, texts(pieces), whole, knife)
        try:
            found.project(np.zeros(len(found.coordinates)))
        except NotConverged as none:
            raise contradiction(found.text) from none
        return found
    return None


def polyhedral(pieces: Sequence[Piece]) -> Piece | None:
    """Bounds and linear (in)equalities."""
    if not all(isinstance(p, Interval | Slab | AffineSubspace) for p in pieces):
        return None
    coordinates = np.unique(np.concatenate([p.coordinates for p in pieces]))
    n = len(coordinates)
    lower, upper = np.full(n, -np.inf), np.full(n, np.inf)
    matrix, least, most = [], [], []
    for piece in pieces:
        place = np.searchsorted(coordinates, piece.coordinates)
        if isinstance(piece, Interval):
            lower[place], upper[place] = np.maximum(lower[place], piece.lower), np.minimum(upper[place], piece.upper)
            continue
        assert isinstance(piece, Slab | AffineSubspace)
        rows = piece.normal[None] if isinstance(piece, Slab) else piece.matrix
        spread = np.zeros((len(rows), n))
        spread[:, place] = rows
        matrix.append(spread)
        least.append([piece.lower] if isinstance(piece, Slab) else piece.value)
        most.append([piece.upper] if isinstance(piece, Slab) else piece.value)
    if n > LARGEST_SIDE or n * sum(map(len, least)) > LARGEST_MATRIX:
        return None
    rows_given = np.vstack(matrix), np.concatenate(least), np.concatenate(most)
    return polyhedron(coordinates, texts(pieces), (lower, upper), rows_given)


def curved(pieces: list[Piece]) -> Piece | None:
    """Anything else: what is linear last, and what is curved in as few products of disjoint sets as there need be."""
    linear = [p for p in pieces if isinstance(p, Interval | Slab | AffineSubspace)]
    layers: list[list[Piece]] = []
    for piece in (p for p in pieces if not isinstance(p, Interval | Slab | AffineSubspace)):
        here = set(piece.coordinates.tolist())
        for layer in layers:
            if not any(here & set(other.coordinates.tolist()) for other in layer):
                layer.append(piece)
                break
        else:
            layers.append([piece])
    products = [product(layer, 0) for layer in layers]
    parts: list[Piece] = [part for part in products if part is not None]
    if linear:
        last = product(linear, 1)
        if last is None:
            return None
        parts.append(last)
    coordinates = np.unique(np.concatenate([p.coordinates for p in pieces]))
    dim = int(coordinates[-1]) + 1
    ends = coordinate_bounds([*pieces, *enclosures(pieces, dim)], dim)
    size = float(np.linalg.norm(np.max(np.abs(ends), axis=0)[coordinates])) * (1 + 1e-12)
    return intersection(coordinates, texts(pieces), tuple(parts), size)


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
    lower, upper, text = max(a.lower, b.lower), min(a.upper, b.upper), join_texts(a, b)
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
        raise contradiction(join_texts(a, b))
    return Interval(coordinates, join_texts(a, b), lower, upper)


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


def join_texts(a: Piece, b: Piece) -> str:
    """Name two constraints at once, each only once."""
    return " and ".join(dict.fromkeys([*a.text.split(" and "), *b.text.split(" and ")]))


def contradiction(text: str) -> TemplateError:
    """Say that nothing satisfies the constraints."""
    return TemplateError(f"the constraints {text} contradict each other: nothing satisfies them.")
