"""Recognises conditions with a projection in closed form, and sets that contain K by a single condition."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy.sparse as sp

from dpconvex.expressions.atoms.matrices import NORM_NUC
from dpconvex.expressions.expression import Expression
from dpconvex.numerics import (
    EPSILON,
    float_down,
    interval_sums,
    norm_up,
    plus,
    quotient_ends,
    root_ends,
    root_up,
    rounded_product,
    sum_ends,
    times,
)
from dpconvex.sets.blocks import SECOND_ORDER, SEMIDEFINITE, ConeBlock
from dpconvex.sets.equations import in_units, ranked_svd
from dpconvex.sets.projections import (
    AxisHull,
    ConvexSet,
    IntervalSet,
    NormBall,
    Slab,
    Spectral,
    nearly_equal,
    smat,
    svec,
    upper_triangle,
)
from dpconvex.sets.quadratics import Affine, affine_map, linear_parts
from dpconvex.sets.region import Region
from dpconvex.util.arrays import Array, Indices, components


@dataclass(frozen=True, eq=False)
class Row:
    """A linear inequality ``<normal, x> <= level`` on some coordinates; `tight` if it is an equation."""

    coordinates: Indices
    normal: Array
    level: float
    tight: bool
    wrong: Array  # bounds on rounding errors of the normal
    missed: float = 0.0  # and of the level


Condition = Row | ConeBlock | Expression


def closed_forms(region: Region) -> tuple[list[ConvexSet], list[ConvexSet], list[Indices]]:
    """Return pieces of K on disjoint coordinates, sets that contain K, and groups of coordinates without a closed form."""
    items: list[Condition] = [*region.cones, *region.curved]
    for k, (matrix, offset, wrong, missed) in enumerate([*region.equations, *region.readings]):
        tight, exact = k < len(region.equations), not wrong.data.any()
        sign = 1.0 if tight else -1.0
        for j in range(len(offset)):
            row = sp.csr_array(matrix[[j]])
            where, error = row.indices.astype(np.int64), 0 * row.data if exact else wrong[[j]].toarray()[0, row.indices]
            items.append(Row(where, sign * row.data, -sign * float(offset[j]), tight, error, float(missed[j])))
    touches = sp.csr_array((len(items), region.dim))
    if items:
        places = [coordinates_of(item, region) for item in items]
        ends = np.cumsum([0, *map(len, places)])
        touches = sp.csr_array((np.ones(ends[-1]), np.concatenate(places), ends), shape=touches.shape)
    left = np.isfinite(region.lower) | np.isfinite(region.upper)
    parts: list[ConvexSet] = []
    around: list[ConvexSet] = []
    others: list[Indices] = []
    for group in components(touches @ touches.T) if items else ():
        here, members = np.unique(touches[group].indices).astype(np.int64), [items[k] for k in group]
        left[here] = False
        piece = joint_piece(members, here, region)
        if piece is not None:
            parts.append(piece)
        else:
            others.append(here)
        # A simplex from rows has rounded numbers: outward bounds contain it.
        single = piece is not None and not isinstance(members[0], Row)
        around.extend([piece] if piece is not None and single else [p for item in members for p in alone(item, region)])
    if left.any():
        parts.append(IntervalSet(np.flatnonzero(left), region.lower[left], region.upper[left]))
    return parts, [IntervalSet(np.arange(region.dim), region.least, region.most), *around], others


def coordinates_of(item: Condition, region: Region) -> Indices:
    if isinstance(item, Row):
        return item.coordinates
    if isinstance(item, ConeBlock):
        return np.unique(item.matrix.indices).astype(np.int64)
    return np.concatenate([np.arange(region.dim)[region.space.blocks[v.name].slice] for v in item.variables])


def joint_piece(members: list[Condition], here: Indices, region: Region) -> ConvexSet | None:
    """Return the set of all conditions on some coordinates as one piece with a projection; None if there is none."""
    bounded = bool(np.isfinite([region.lower[here], region.upper[here]]).any())
    rows = [item for item in members if isinstance(item, Row)]
    cones = [item for item in members if isinstance(item, ConeBlock) and item.kind == SEMIDEFINITE]
    if cones and len(rows) + len(cones) == len(members):
        return None if bounded else spectral(cones, rows)
    if len(rows) == len(members) and not bounded:
        return slab(rows, here)
    if len(members) > 1:
        return None
    if rows:
        return simplex(rows[0], region.lower, region.upper)
    piece = next(iter(alone(members[0], region)), None)
    if isinstance(piece, AxisHull):
        return intersected(piece, region.least, region.most)
    return None if bounded else piece


def alone(item: Condition, region: Region) -> list[ConvexSet]:
    """Return sets that contain K, from one condition and the bounds on single coordinates."""
    if isinstance(item, Row):
        return [*corner_simplices(item, region.least, region.most)]
    found: ConvexSet | None = None
    if not isinstance(item, ConeBlock):
        found = nuclear_ball(item, region)
    elif item.kind != SEMIDEFINITE and not item.matrix[[0]].nnz:
        read = euclidean_ball if item.kind == SECOND_ORDER else l1_ball
        wrong, missed = item.misread if item.misread is not None else (0 * item.matrix, 0 * item.offset)
        misread = sp.csr_array(wrong[1:]), missed[1:]
        found = read(sp.csr_array(item.matrix[1:]), float(item.offset[0]), item.offset[1:], misread)
    return [] if found is None else [found]


def euclidean_ball(
    matrix: sp.csr_array, radius: float, offset: Array, misread: Affine | None = None
) -> NormBall | None:
    """Return a ball that contains ``|Mx + offset| <= radius`` if the matrix M is a multiple of an isometry; None otherwise.

    With the center c, ``q = Mc + offset``, v = M'q and M'M between s - e and s + e, ``(s - e) |x - c|^2 - 2 |v| |x - c|`` is at
    most ``radius^2 - |q|^2``.  The bounds on e, v and q include rounding.
    """
    gram = sp.csr_array(matrix.T @ matrix)
    columns = np.flatnonzero(gram.diagonal())
    if not len(columns):
        return None
    square = float(gram.diagonal()[columns][0])
    away = abs(gram[columns][:, columns] - square * sp.eye_array(len(columns)))
    if not (np.isfinite(square) and away.max() <= 1e-12 * square):
        return None
    part, (wrong, missed) = matrix[:, columns], (0 * matrix, 0 * offset) if misread is None else misread
    center = -np.asarray(part.T @ offset) / square
    table, size, wrong, unit = sp.coo_array(part), abs(part), abs(wrong[:, columns]), (part.shape[0] + 4) * EPSILON
    row, (product, rounded) = table.coords[0], rounded_product(table.data, center[table.coords[1]])
    ends = [np.append(sum_ends(product, sign * rounded)[k], offset) for k, sign in enumerate((-1.0, 1.0))]
    low, high = interval_sums(np.append(row, np.arange(len(offset))), ends[0], ends[1], len(offset))
    error = missed + wrong @ np.abs(center)
    low, high = sum_ends(low, -error)[0], sum_ends(high, error)[1]
    near, far = np.maximum(np.maximum(low, -high), 0.0), np.maximum(-low, high)
    pull = norm_up(np.abs(part.T @ ((low + high) / 2)) + size.T @ ((high - low) / 2 + unit * far) + wrong.T @ far)
    exact = not rounded_product(table.data, table.data)[1].any() and len(columns) == table.nnz == len(set(row.tolist()))
    away = away + 2 * size.T @ wrong + wrong.T @ wrong + (0 if exact else unit) * (size.T @ size)
    stiffness = plus(square, -float(away.sum(axis=1).max()) * (1 + unit))[0]
    apart = float(np.linalg.norm(near)) * (1 - unit)
    if apart > radius or stiffness <= 0:
        return None
    length = radius if apart == 0 else root_up(times(plus(radius, -apart)[1], plus(radius, apart)[1])[1])
    reach = float(quotient_ends(length, root_ends(stiffness)[0])[1])
    return NormBall(columns, center, plus(reach, 2 * pull / stiffness * (1 + unit))[1] if pull else reach)


def l1_ball(matrix: sp.csr_array, radius: float, offset: Array, misread: Affine) -> AxisHull | None:
    """Return a weighted l1 ball that contains the set if every entry depends on one coordinate, and centers agree, or None."""
    wrong, missed = misread
    count, steep = np.diff(matrix.indptr), np.asarray(wrong.sum(axis=1)).ravel()
    fixed = np.maximum(np.abs(offset) - missed, 0.0)[count == 0]
    left = -float_down(sum(map(Fraction, fixed.tolist())) - Fraction(radius))
    if (count > 1).any() or left < 0:
        return None
    coordinates, place = np.unique(matrix.indices, return_inverse=True)
    centers, center, sizes = -offset[count == 1] / matrix.data, np.zeros(len(coordinates)), np.abs(matrix.data)
    center[place] = centers
    if (center[place] != centers).any():
        return None
    low, high = quotient_ends(-offset[count == 1], matrix.data)
    error = sizes * (high - low) + missed[count == 1] + steep[count == 1] * np.abs(centers)
    left = plus(left, float(error.sum()) * (1 + len(error) * EPSILON))[1]
    several, wrong = 1 - (np.bincount(place) - 1) * EPSILON, np.bincount(place, weights=steep[count == 1])
    slopes = np.bincount(place, weights=sizes) * several - wrong * (1 + 4 * EPSILON)
    if (slopes <= 0).any():
        return None
    reach = quotient_ends(left, slopes)[1]
    return AxisHull(coordinates.astype(np.int64), center, -reach, reach)


def nuclear_ball(root: Expression, region: Region) -> Spectral | None:
    """Return the set of a bound on the nuclear norm of a matrix of single coordinates, maybe symmetric; None otherwise."""
    (part, factors), *others = sorted(linear_parts(root).items(), key=lambda pair: pair[0].is_constant)
    inner = part.args[0] if part.atom is NORM_NUC and root.size == 1 else None
    if inner is None or not inner.is_affine or min(inner.shape) == 1 or not all(one.is_constant for one, _ in others):
        return None
    radius = -sum(float((row @ affine_map(other, region.space)[1])[0]) for other, row in others) / factors.data[0]
    found = plain_matrix(affine_map(inner, region.space), inner.shape)
    if found is None or radius < 0:
        return None
    coordinates, scale, shift, is_symmetric = found
    ends = np.full(min(inner.shape), radius / abs(scale))
    return Spectral(coordinates, shift, AxisHull(np.arange(len(ends)), 0 * ends, -ends, ends), is_symmetric)


def plain_matrix(entries: Affine, shape: tuple[int, ...]) -> tuple[Indices, float, Array, bool] | None:
    """Return coordinates of X, s (up to its sign), C and whether X is symmetric if a matrix is ``s (X - C)``; None otherwise."""
    matrix, offset = entries
    if not (np.diff(matrix.indptr) == 1).all():
        return None
    if len(set(matrix.indices.tolist())) == len(offset):
        if (matrix.data != matrix.data[0]).any():
            return None
        shift = (-offset / matrix.data[0]).reshape(shape, order="F")
        return matrix.indices.astype(np.int64), abs(float(matrix.data[0])), shift, False
    row, column, weight = upper_triangle(shape[0])
    constant = offset.reshape(shape)
    if shape[0] != shape[1] or not nearly_equal(constant, constant.T).all():
        return None
    upper, mirrored = sp.csr_array(matrix[column * shape[0] + row]), sp.csr_array(matrix[row * shape[0] + column])
    if abs(upper - mirrored).max() > 0:
        return None
    found = symmetric_map((sp.csr_array(sp.diags_array(weight) @ upper), svec((constant + constant.T) / 2)))
    return None if found is None else (*found, True)


def symmetric_map(entries: Affine) -> tuple[Indices, float, Array] | None:
    """Return coordinates of svec(X), s and C if the map is the svec of ``s (X - C)``; None otherwise."""
    matrix, offset = entries
    if not (np.diff(matrix.indptr) == 1).all() or len(set(matrix.indices.tolist())) < len(offset):
        return None
    scale = float(matrix.data[0])
    if not nearly_equal(matrix.data, np.full(len(offset), scale)).all():
        return None
    return matrix.indices.astype(np.int64), scale, -smat(offset) / scale


def spectral(blocks: list[ConeBlock], rows: list[Row]) -> Spectral | None:
    """Return the set of bounds on the eigenvalues of one symmetric matrix, and on its trace; None for other conditions."""
    places = [symmetric_map((block.matrix, block.offset)) for block in blocks]
    low, high = -np.inf, np.inf
    for place in places:
        if place is None or places[0] is None or not np.array_equal(place[0], places[0][0]):
            return None
        coordinates, scale, shift = place
        one, middle = np.eye(len(shift)), 0.0 * shift
        if len(places) == 1 and not rows and (shift != shift[0, 0] * one).any():
            middle = shift
        level = float((shift - middle)[0, 0])
        if not (nearly_equal(shift, middle + level * one) | (shift == middle + level * one)).all():
            return None
        low, high = (max(low, level), high) if scale > 0 else (low, min(high, level))
    ends = np.full(len(one), low), np.full(len(one), high)
    spectrum: ConvexSet | None = IntervalSet(np.arange(len(one)), *ends) if low <= high else None
    if rows:
        (row, *others), diagonal = rows, np.sort(coordinates[svec(one) > 0])
        if others or not np.array_equal(row.coordinates, diagonal) or (row.normal != row.normal[0]).any():
            return None
        spectrum = simplex(Row(np.arange(len(one)), row.normal, row.level, row.tight, 0 * row.normal), *ends)
    return None if spectrum is None else Spectral(coordinates, middle, spectrum, True)


def slab(rows: list[Row], here: Indices) -> Slab | None:
    """Return the set of equations, or of parallel inequalities; None for other rows, or if it is empty."""
    matrix, value = np.zeros((len(rows), len(here))), np.array([row.level for row in rows])
    for k, row in enumerate(rows):
        matrix[k, np.searchsorted(here, row.coordinates)] = row.normal
    if all(row.tight for row in rows):
        matrix, value = in_units(matrix, value)
        left, singular, right, rank = ranked_svd(matrix)
        level = (left[:, :rank].T @ value) / singular[:rank]
        scale = np.linalg.norm(matrix) * np.linalg.norm(level) + np.linalg.norm(value)
        missed = float(np.linalg.norm(matrix @ (right[:rank].T @ level) - value))
        condition = float(singular[0] / singular[rank - 1])
        return Slab(here, right[:rank], level, level, condition) if missed <= 1e-12 * len(here) * scale else None
    length = np.linalg.norm(matrix, axis=1)
    unit = matrix[0] / length[0]
    side = np.sign(matrix @ unit)
    if any(row.tight for row in rows) or not nearly_equal(matrix / length[:, None], side[:, None] * unit).all():
        return None
    high = (value / length)[side > 0].min(initial=np.inf)
    low = (-value / length)[side < 0].max(initial=-np.inf)
    return Slab(here, unit[None], np.array([low]), np.array([high])) if low <= high else None


def corner_simplices(row: Row, lower: Array, upper: Array, rounded: bool = True) -> list[AxisHull]:
    """Return the simplices that a row cuts off corners of the box; with `rounded`, they contain the exact simplices."""
    found = []
    for sign in (1.0, -1.0)[: 1 + row.tight]:
        normal, level = sign * row.normal, sign * row.level
        apex = np.where(normal > 0, lower[row.coordinates], upper[row.coordinates])
        if not np.isfinite(apex).all():
            continue
        at = normal * apex
        left = level - float(at.sum())
        room = (len(apex) + 2) * EPSILON * float(np.abs(at).sum() + abs(level)) if at.any() else 0.0
        room = (room + row.missed + float(row.wrong @ np.abs(apex))) * (1 + len(apex) * EPSILON) if rounded else 0.0
        steep = 1 - 2 * float((row.wrong / np.abs(normal)).max()) if rounded else 1.0
        if left >= -room:  # otherwise the set is empty, and projections raise
            least, most = max(left - room, 0.0) * steep if row.tight else 0.0, max(left + room, 0.0) / max(steep, 0.5)
            ends = np.array([[least], [most]]) / normal
            found.append(AxisHull(row.coordinates, apex, ends.min(axis=0), ends.max(axis=0)))
    return found


def simplex(row: Row, lower: Array, upper: Array) -> AxisHull | None:
    """Return the simplex of a row and the bounds of its coordinates, if it has a projection; None otherwise."""
    found = [intersected(hull, lower, upper) for hull in corner_simplices(row, lower, upper, rounded=False)]
    return next((hull for hull in found if hull is not None), None)


def intersected(hull: AxisHull, lower: Array, upper: Array) -> AxisHull | None:
    """Return a simplex or l1 ball within bounds of its coordinates, if the result is one with a projection; None otherwise."""
    here = lower[hull.coordinates], upper[hull.coordinates]
    if not hull.is_facet:  # bounds at the anchor cut off halves
        low, high = np.where(here[0] >= hull.anchor, 0.0, hull.low), np.where(here[1] <= hull.anchor, 0.0, hull.high)
        hull = AxisHull(hull.coordinates, hull.anchor, low, high)
    low, high = hull.ends
    inside = (low >= here[0]) | nearly_equal(low, here[0]), (high <= here[1]) | nearly_equal(high, here[1])
    return hull if hull.can_project and inside[0].all() and inside[1].all() else None
