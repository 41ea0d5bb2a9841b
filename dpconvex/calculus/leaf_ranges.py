"""Ranges of affine leaves ``A_z theta + c_z`` over the record's domain and over K.

K may lie anywhere, so a leaf is split at several points c: ``(A_z c + c_z) + A_z (theta - c)``, where the first part depends on
the record alone and the second is bounded by how far K reaches from c, as a ball or as a box.  Each split gives a bound, and
all of them are intersected: with c a centre of K, to move K and the loss together moves no range.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.gram import Gram
from dpconvex.core.abstract_values import Interval
from dpconvex.core.polynomial import Polynomial, concatenate, interval_product, interval_sums, numbered_rows
from dpconvex.core.record_scalars import Bases
from dpconvex.geometry.convex_sets import AxisHull
from dpconvex.geometry.feasible_set import FeasibleSet

Array = NDArray[np.float64]
Pair = tuple[Array, Array]

UNIT = float(np.finfo(float).eps)
# A few roundings of a length.
SLACK = 1e-14


@dataclass(frozen=True, eq=False)
class LeafRanges:
    """By the id of a leaf's polynomial: the ranges of what it adds to its linear part, and those of its entries."""

    offsets: dict[int, Pair]
    values: dict[int, list[Interval]]


def leaf_ranges(leaves: Sequence[Polynomial], gram: Gram, feasible: FeasibleSet, bases: Bases) -> LeafRanges:
    """Bound the offsets and the values of all leaves at once: with many classes there are very many, each small."""
    if not leaves:
        return LeafRanges({}, {})
    ends = np.cumsum([0, *(leaf.size for leaf in leaves)])
    joined = [leaf.entry + start for leaf, start in zip(leaves, ends, strict=False)]
    terms = concatenate(leaves, (int(ends[-1]),), joined)
    offset = bases.range(terms.part(with_theta=False))
    part = terms.part(with_theta=True)
    monomial, number = numbered_rows(part.monomial)
    below, above = (bound[number] for bound in bases.monomial_range(monomial))
    factors = factors_of(part, (below, above))
    # Entries without parameters stay where they are.
    moving = np.bincount(part.entry, minlength=part.size) > 0
    touched = [leaf.touched for leaf in leaves]
    limited = [bool(feasible.limited[coordinates].all()) for coordinates in touched]
    least, most = np.full(part.size, -np.inf), np.full(part.size, np.inf)
    for center in (np.zeros(feasible.space.dim), *feasible.centers):
        shifted = center.any()
        low, high = split_at(center, terms, bases) if shifted else offset
        size = np.full(part.size, np.inf)
        for k, (coordinates, known) in enumerate(zip(touched, limited, strict=True)):
            if known:
                reach = feasible.reach_on(coordinates, center) if shifted else feasible.norm_on(coordinates)
                rows = gram.rows[k]
                length = np.sqrt(gram.squared_norms(rows)) + gram.slack(np.abs(rows))
                size[ends[k] : ends[k + 1]] = length * reach * (1 + SLACK)
        size[~moving] = 0.0
        limits = feasible.lower, feasible.upper
        if shifted:
            limits = np.nextafter(limits[0] - center, -np.inf), np.nextafter(limits[1] - center, np.inf)
        box = box_of(part, factors, limits)
        if not shifted and feasible.hulls:
            cut = hulls_of(part, factors, limits, feasible.hulls)
            box = np.maximum(box[0], cut[0]), np.minimum(box[1], cut[1])
        linear = np.maximum(-size, box[0]), np.minimum(size, box[1])
        with np.errstate(invalid="ignore"):  # rounded outward, unless nothing is added
            low, high = (
                np.where((a == 0) | (b == 0), a + b, np.nextafter(a + b, end))
                for a, b, end in ((low, linear[0], -np.inf), (high, linear[1], np.inf))
            )
        least, most = np.fmax(least, low), np.fmin(most, high)
    # Bounds that meet may miss each other by rounding.
    least, most = np.minimum(least, most), np.maximum(least, most)
    values = [Interval(a, b) for a, b in zip(least.tolist(), most.tolist(), strict=True)]
    result = LeafRanges({}, {})
    for leaf, a, b in zip(leaves, ends, ends[1:], strict=False):
        result.offsets[id(leaf)], result.values[id(leaf)] = (offset[0][a:b], offset[1][a:b]), values[a:b]
    return result


def leaf_length(leaf: Polynomial, rows: Array, gram: Gram, feasible: FeasibleSet, bases: Bases) -> float:
    """Bound the Euclidean norm of all entries of a leaf together, possibly infinite."""
    touched = leaf.touched
    if not feasible.limited[touched].all():
        return float(np.inf)
    steepest, best = gram.steepest(rows), float(np.inf)
    for center in (np.zeros(feasible.space.dim), *feasible.centers):
        offset, room = at_center(center, leaf, bases)
        reach = feasible.reach_on(touched, center) if center.any() else feasible.norm_on(touched)
        best = min(best, bases.norm(offset) + float(np.linalg.norm(room)) + steepest * reach)
    return best * (1 + SLACK)


def split_at(center: Array, terms: Polynomial, bases: Bases) -> Pair:
    """Bound ``A_z c + c_z`` entry by entry."""
    offset, room = at_center(center, terms, bases)
    low, high = bases.range(offset)
    return low - room, high + room


def at_center(center: Array, terms: Polynomial, bases: Bases) -> tuple[Polynomial, Array]:
    """Return ``A_z c + c_z``, with room for the rounding of its coefficients: they may be small differences of large numbers."""
    fixed = np.append(center, 1.0)[terms.coordinate]
    coefficient = terms.coefficient * fixed
    nowhere, error = np.full_like(terms.coordinate, -1), terms.error * np.abs(fixed) * (1 + SLACK)
    offset = replace(terms, coordinate=nowhere, coefficient=coefficient, error=error).collected()
    monomial, number = numbered_rows(terms.monomial)
    largest = np.max(np.abs(bases.monomial_range(monomial)), axis=0)[number]
    magnitude = np.bincount(terms.entry, weights=np.abs(coefficient) * largest, minlength=terms.size)
    count = np.bincount(terms.entry, minlength=terms.size)
    # The center itself, and how far K reaches from it, are rounded too.
    return offset, np.asarray((count + 8) * UNIT * magnitude)


def factors_of(part: Polynomial, monomial: Pair) -> Pair:
    """Bound what multiplies the coordinate of each term, given the bounds of its monomial."""
    exact = part.error == 0
    about = [part.coefficient + sign * part.error * (1 + SLACK) for sign in (-1, 1)]
    about = [np.where(exact, part.coefficient, end) for end in about]
    return interval_product(monomial, (about[0], about[1]))


def box_of(part: Polynomial, factors: Pair, limits: Pair) -> Pair:
    """Bound the linear parts of all entries term by term, given the bounds of factors and of coordinates."""
    own = limits[0][part.coordinate], limits[1][part.coordinate]
    return interval_sums(part.entry, *interval_product(factors, own), part.size)


def hulls_of(part: Polynomial, factors: Pair, limits: Pair, hulls: Sequence[AxisHull]) -> Pair:
    """Bound the linear parts of all entries over simplices and l1 balls on disjoint coordinates, and term by term elsewhere."""
    owner, place = np.full(len(limits[0]), -1), np.zeros(len(limits[0]), dtype=np.int64)
    for k, hull in enumerate(hulls):
        if (owner[hull.coordinates] < 0).all():
            owner[hull.coordinates], place[hull.coordinates] = k, np.arange(len(hull.coordinates))
    # Terms of one coordinate in one entry are one term.
    pairs, term = np.unique(np.stack([part.entry, part.coordinate], axis=1), axis=0, return_inverse=True)
    entry, coordinate = pairs.T
    low, high = interval_sums(term.ravel(), *factors, len(pairs))
    outside = owner[coordinate] < 0
    own = limits[0][coordinate[outside]], limits[1][coordinate[outside]]
    least, most = interval_sums(entry[outside], *interval_product((low[outside], high[outside]), own), part.size)
    for k in np.unique(owner[coordinate[~outside]]):
        here = owner[coordinate] == k
        touched, number = np.unique(entry[here], return_inverse=True)
        below, above = hulls[k].linear_range(number, place[coordinate[here]], low[here], high[here], len(touched))
        least[touched] = np.nextafter(least[touched] + below, -np.inf)
        most[touched] = np.nextafter(most[touched] + above, np.inf)
    return least, most
