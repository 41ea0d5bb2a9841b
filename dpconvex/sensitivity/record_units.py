"""Units of the record in which rows of `A_z` are short: ``w @ ((x - c) / s)`` is ``w @ x'`` (docs/theory.md, section 11)."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.data.domains import Box
from dpconvex.errors import DPConvexError
from dpconvex.expressions.expansion import Expander, RecordVariables, Units
from dpconvex.expressions.expression import Expression
from dpconvex.expressions.polynomial import Polynomial, numbered_rows, stacked
from dpconvex.model.template import Template
from dpconvex.numerics import APART
from dpconvex.sensitivity.gram import GradientGram
from dpconvex.util.arrays import Array, Indices

LARGEST_SYSTEM = 10**6  # Entries of a dense system for the shifts of scalars that rows mix
SHORTER = 0.99  # Units are changed if rows get shorter than this


def in_best_units(raw: Expander, template: Template, leaves: Sequence[Expression], extent: Array) -> Expander:
    """Return an expander in units of the record that make no row longer, and rows together as short as was found."""
    domains, best = template.record.continuous, raw
    boxes = [name for name, domain in domains.items() if isinstance(domain, Box)]
    polynomials = [raw.expand(leaf) for leaf in leaves]
    candidates = list(candidate_units(polynomials, raw.bases, boxes)) if boxes else []
    lengths = row_lengths(polynomials, raw) if candidates else np.zeros(0)
    least, moves = SHORTER, lengths > 0
    for units in candidates:
        expander = Expander(raw.space, RecordVariables(domains, units), raw)
        try:
            found = row_lengths([expander.expand(leaf) for leaf in leaves], expander)
            for leaf in leaves:
                expander.check_rounding(leaf, extent)
        except DPConvexError:  # their terms cancel too far, or have too many forms
            continue
        ratios = found[moves] / lengths[moves]
        if (found <= lengths * (1 + APART)).all() and ratios.mean() < least:
            best, least = expander, ratios.mean()
    return best


def row_lengths(polynomials: list[Polynomial], expander: Expander) -> Array:
    gram = GradientGram(polynomials, expander.space, expander.bases)
    return np.concatenate([np.sqrt(gram.squared_norms(rows)) + gram.slack(np.abs(rows)) for rows in gram.rows])


def candidate_units(
    polynomials: Sequence[Polynomial], bases: RecordVariables, boxes: Sequence[str]
) -> Iterator[Mapping[str, Units]]:
    """Yield units in which second-highest terms vanish, and those in which coefficients of the highest terms agree."""
    boxed = np.array([base.name in boxes for base in bases.bases])[bases.owner]
    movable = np.append(boxed & (bases.lower < bases.upper), False)  # what is left of others is rounding
    shift, scale = centres_and_scales(stacked([p.part(with_theta=True) for p in polynomials]), movable)
    own = {base.name: slice(base.start, base.start + base.size) for base in bases.bases if base.name in boxes}
    for part in own.values():
        if np.ptp(scale[part]) <= APART * scale[part].max():
            scale[part] = 1.0
    ways = [(some, other) for some in (shift, 0 * shift) for other in (scale, scale**0)]
    for some, other in {some.tobytes() + other.tobytes(): (some, other) for some, other in ways}.values():
        units = {name: (some[part], other[part]) for name, part in own.items()}
        units = {name: (by, times) for name, (by, times) in units.items() if by.any() or (times != 1).any()}
        if units:
            yield units


def centres_and_scales(terms: Polynomial, movable: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Solve for the shift of every scalar: ``sum_k d f/d x_k s_k = -b`` for highest terms f, and coefficients b of the next."""
    count, degree = len(movable) - 1, (terms.monomial >= 0).sum(axis=1)
    places = np.stack([terms.entry, terms.coordinate], axis=1)
    number = numbered_rows(places)[1]
    highest = np.zeros(number.max(initial=-1) + 1, dtype=np.int64)
    np.maximum.at(highest, number, degree)
    highest = highest[number]
    top, next_ = np.flatnonzero((degree == highest) & (degree > 0)), np.flatnonzero(degree == highest - 1)
    rests, owners, scalars = [terms.monomial[next_]], [next_], list[Indices]()
    for column in range(terms.monomial.shape[1]):
        rest = terms.monomial[top].copy()
        scalars.append(rest[:, column].copy())
        rest[:, column] = -1
        rests.append(np.sort(rest, axis=1))
        owners.append(top)
    keys = np.concatenate([places[np.concatenate(owners)], np.concatenate(rests)], axis=1)
    row = numbered_rows(keys)[1]
    used = np.concatenate([*scalars, np.zeros(0, dtype=np.int64)])
    value, real = np.tile(terms.coefficient[top], len(scalars)), movable[used]
    size = row.max(initial=-1) + 1, count
    table = sp.csr_array(sp.coo_array((value[real], (row[len(next_) :][real], used[real])), shape=size))
    table.sum_duplicates()
    wanted = np.bincount(row[: len(next_)], weights=-terms.coefficient[next_], minlength=size[0])
    shift, scale = np.zeros(count), np.ones(count)
    if (np.diff(table.indptr) <= 1).all():
        lines, columns, values = sp.find(table)
        for k in np.unique(columns):
            own = columns == k
            ratios = wanted[lines[own]] / values[own]
            shift[k] = ratios[np.abs(ratios).argmax()]
            scale[k] = np.median(np.abs(values[own]))
    elif table.shape[0] * count <= LARGEST_SYSTEM:
        dense = table.toarray()
        norms = np.linalg.norm(dense, axis=0)
        scale = np.where(norms > 0, norms, 1.0)
        shift = np.linalg.lstsq(dense / scale, wanted)[0] / scale
    return shift, scale
