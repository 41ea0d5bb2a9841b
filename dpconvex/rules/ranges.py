"""Ranges of affine leaves ``A_z theta + c_z`` over the record's domain and over K.

K may lie anywhere, so a leaf is split at several points c: ``(A_z c + c_z) + A_z (theta - c)``, where the first part depends on
the record alone and the second is bounded by how far K reaches from c, as a ball or as a box.  Each split gives a bound, and
all of them are intersected: with c a centre of K, to move K and the loss together moves no range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpconvex.bases import Bases
from dpconvex.feasible import FeasibleSet
from dpconvex.polynomial import Polynomial, concatenate, numbered_rows
from dpconvex.rules.forms import Interval
from dpconvex.rules.gram import Gram

__all__ = ["LeafRanges", "leaf_ranges"]

Array = NDArray[np.float64]
Pair = tuple[Array, Array]

UNIT = float(np.finfo(float).eps)


@dataclass(frozen=True, eq=False)
class LeafRanges:
    """Ranges of all leaves, by the id of their polynomial.

    Attributes
    ----------
    offsets : dict of int to (ndarray, ndarray)
        Least and largest values of what a leaf adds to its linear part, shape (size,) each.
    values : dict of int to list of Interval
        Ranges of the entries.
    """

    offsets: dict[int, Pair]
    values: dict[int, list[Interval]]


def leaf_ranges(leaves: Sequence[Polynomial], gram: Gram, feasible: FeasibleSet, bases: Bases) -> LeafRanges:
    """Bound the offsets and the values of all leaves at once: with many classes there are very many, each small.

    Parameters
    ----------
    leaves : sequence of Polynomial
        In the order of ``gram.rows``.
    gram : Gram
    feasible : FeasibleSet
    bases : Bases
    """
    if not leaves:
        return LeafRanges({}, {})
    ends = np.cumsum([0, *(leaf.size for leaf in leaves)])
    joined = [leaf.entry + start for leaf, start in zip(leaves, ends, strict=False)]
    terms = concatenate(leaves, (int(ends[-1]),), joined)
    offset = bases.range(terms.part(with_theta=False))
    part = terms.part(with_theta=True)
    monomial, number = numbered_rows(part.monomial)
    below, above = (bound[number] for bound in bases.monomial_range(monomial))
    # Entries without parameters stay where they are.
    moving = np.bincount(part.entry, minlength=part.size) > 0
    touched = [np.unique(leaf.coordinate[leaf.coordinate >= 0]) for leaf in leaves]
    limited = [bool(feasible.limited[coordinates].all()) for coordinates in touched]
    least, most = np.full(part.size, -np.inf), np.full(part.size, np.inf)
    for center in (np.zeros(feasible.space.dim), *feasible.centers):
        shifted = center.any()
        low, high = split_at(center, terms, bases) if shifted else offset
        size = np.full(part.size, np.inf)
        for k, (coordinates, known) in enumerate(zip(touched, limited, strict=True)):
            if known:
                reach = feasible.reach_on(coordinates, center) if shifted else feasible.norm_on(coordinates)
                size[ends[k] : ends[k + 1]] = np.sqrt(gram.squared_norms(gram.rows[k])) * reach
        size[~moving] = 0.0
        box_low, box_high = box_of(part, below, above, feasible.lower - center, feasible.upper - center)
        least = np.maximum(least, low + np.maximum(-size, box_low))
        most = np.minimum(most, high + np.minimum(size, box_high))
    # Bounds that meet may miss each other by rounding.
    least, most = np.minimum(least, most), np.maximum(least, most)
    values = [Interval(a, b) for a, b in zip(least.tolist(), most.tolist(), strict=True)]
    result = LeafRanges({}, {})
    for leaf, a, b in zip(leaves, ends, ends[1:], strict=False):
        result.offsets[id(leaf)], result.values[id(leaf)] = (offset[0][a:b], offset[1][a:b]), values[a:b]
    return result


def split_at(center: Array, terms: Polynomial, bases: Bases) -> Pair:
    """Bound ``A_z c + c_z``, with room for the rounding of its coefficients: they may be small differences of large numbers."""
    fixed = np.append(center, 1.0)[terms.coordinate]
    coefficient = terms.coefficient * fixed
    at_center = replace(terms, coordinate=np.full_like(terms.coordinate, -1), coefficient=coefficient).collected()
    low, high = bases.range(at_center)
    monomial, number = numbered_rows(terms.monomial)
    largest = np.max(np.abs(bases.monomial_range(monomial)), axis=0)[number]
    magnitude = np.bincount(terms.entry, weights=np.abs(coefficient) * largest, minlength=terms.size)
    count = np.bincount(terms.entry, minlength=terms.size)
    # The center itself, and how far K reaches from it, are rounded too.
    room = (count + 8) * UNIT * magnitude
    return low - room, high + room


def box_of(part: Polynomial, below: Array, above: Array, lower: Array, upper: Array) -> Pair:
    """Bound the linear parts of all entries term by term, for coordinates between `lower` and `upper`."""
    limits = [bound[part.coordinate] for bound in (lower, upper)]
    with np.errstate(invalid="ignore"):  # where a factor 0 meets an infinite bound, the product is 0
        corners = [
            np.where(factor == 0, 0.0, factor * end)
            for factor in (part.coefficient * below, part.coefficient * above)
            for end in limits
        ]
    weights = np.min(corners, axis=0), np.max(corners, axis=0)
    low, high = (np.bincount(part.entry, weights=w, minlength=part.size).astype(float) for w in weights)
    return low, high
