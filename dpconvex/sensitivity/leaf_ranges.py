"""Ranges of affine leaves ``A_z theta + c_z`` over the record's domain and K, bounded by a ball, a box and simplices."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dpconvex.expressions.expansion import RecordVariables
from dpconvex.expressions.polynomial import Polynomial, numbered_rows, stack_entries
from dpconvex.numerics import APART, BOUND_SLACK, Ends, interval_product, interval_sums, sum_ends
from dpconvex.sensitivity.gram import GradientGram
from dpconvex.sets.feasible_set import FeasibleSet
from dpconvex.sets.projections import AxisHull
from dpconvex.util.arrays import Array


def leaf_ranges(
    leaves: Sequence[Polynomial],
    gram: GradientGram,
    feasible: FeasibleSet,
    bases: RecordVariables,
    blurred: bool,
    rounding: Array,
) -> list[tuple[Ends, Ends]]:
    """Return bounds on the offset c_z and on the entries of each leaf; if `blurred`, also at computed points near K."""
    if not leaves:
        return []
    ends = np.cumsum([0, *(leaf.size for leaf in leaves)])
    terms = stack_entries(leaves)
    offset = bases.range(terms.part(with_theta=False))
    part = terms.part(with_theta=True)
    monomial, number = numbered_rows(part.monomial)
    below, above = (bound[number] for bound in bases.monomial_range(monomial))
    factors = interval_product((below, above), part.ends)
    # Entries without parameters have no linear part.
    moving = np.bincount(part.entry, minlength=part.size) > 0
    size = np.full(part.size, np.inf)
    for k, leaf in enumerate(leaves):
        reach = feasible.norm_on(leaf.touched)
        if np.isfinite(reach):
            size[ends[k] : ends[k + 1]] = gram.row_lengths[k] * reach * (1 + BOUND_SLACK)
    size[~moving] = 0.0
    limits = feasible.lower, feasible.upper
    own = limits[0][part.coordinate], limits[1][part.coordinate]
    linear = [interval_sums(part.entry, *interval_product(factors, own), part.size), (-size, size)]
    if feasible.hulls:
        linear.append(hulls_of(part, factors, limits, feasible.hulls))
    low, high = np.max([ends[0] for ends in linear], axis=0), np.min([ends[1] for ends in linear], axis=0)
    least, most = sum_ends(offset[0], low)[0], sum_ends(offset[1], high)[1]
    least, most = np.fmax(least, -np.inf), np.fmin(most, np.inf)
    # Rounding may put a lower bound above its upper bound.
    near = APART * (np.where(np.isfinite(size), size, 0.0) + np.abs(offset).max(axis=0)) if blurred else 0.0
    near += rounding  # for terms that cancel
    least, most = np.minimum(least, most) - near, np.maximum(least, most) + near
    return [((offset[0][a:b], offset[1][a:b]), (least[a:b], most[a:b])) for a, b in pairwise(ends)]


def leaf_length(
    leaf: Polynomial, rows: Array, gram: GradientGram, feasible: FeasibleSet, bases: RecordVariables
) -> float:
    """Return a bound on the Euclidean norm of a leaf, possibly infinite."""
    reach = feasible.norm_on(leaf.touched)
    if not np.isfinite(reach):
        return float(np.inf)
    return (bases.norm(leaf.part(with_theta=False)) + gram.steepest(rows) * reach) * (1 + BOUND_SLACK)


def hulls_of(part: Polynomial, factors: Ends, limits: Ends, hulls: Sequence[AxisHull]) -> Ends:
    """Return bounds on the linear parts of entries: over disjoint simplices and l1 balls, and term by term elsewhere."""
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
        least[touched] = sum_ends(least[touched], below)[0]
        most[touched] = sum_ends(most[touched], above)[1]
    return least, most
