"""Units of the record that shorten rows of `A_z`: ``w @ ((x - c) / s)`` becomes ``w @ x'`` (docs/theory.md, section 11)."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.data.domains import Box
from dpconvex.errors import DPConvexError
from dpconvex.expressions.expansion import Base, Expander, RecordVariables, Units
from dpconvex.expressions.expression import Expression
from dpconvex.expressions.polynomial import Polynomial, numbered_rows, stack_entries
from dpconvex.model.template import Template
from dpconvex.numerics import APART
from dpconvex.sensitivity.gram import GradientGram
from dpconvex.util.arrays import Array

LARGEST_SYSTEM = 10**6  # Largest dense linear system for the shifts, in entries
SHORTER = 0.99  # Units change only if the mean ratio of new to old row lengths is below this


def in_best_units(raw: Expander, template: Template, leaves: Sequence[Expression], extent: Array) -> Expander:
    """Return the expander in candidate units with the shortest rows, none longer than before; `raw` if none is shorter."""
    domains, best, least = template.record.continuous, raw, SHORTER
    boxes = [base for base in raw.bases.bases if isinstance(domains.get(base.name), Box)]
    candidates = list(candidate_units([raw.expand(leaf) for leaf in leaves], raw.bases, boxes)) if boxes else []
    lengths = row_lengths(raw, leaves) if candidates else np.zeros(0)
    for units in candidates if lengths.any() else ():
        expander = Expander(raw.space, RecordVariables(domains, units), raw)
        try:
            found = row_lengths(expander, leaves)
            for leaf in leaves:
                expander.check_rounding(leaf, extent)
        except DPConvexError:  # terms cancel, or there are too many forms
            continue
        mean = (found[lengths > 0] / lengths[lengths > 0]).mean()
        if (found <= lengths * (1 + APART)).all() and mean < least:
            best, least = expander, mean
    return best


def row_lengths(expander: Expander, leaves: Sequence[Expression]) -> Array:
    gram = GradientGram([expander.expand(leaf) for leaf in leaves], expander.space, expander.bases)
    return np.concatenate(gram.row_lengths)


def candidate_units(
    polynomials: Sequence[Polynomial], bases: RecordVariables, boxes: Sequence[Base]
) -> Iterator[Mapping[str, Units]]:
    """Yield units: shifts that remove terms of the second-highest degree, scales that equalise highest coefficients, or both."""
    own = {base.name: slice(base.start, base.start + base.size) for base in boxes}
    movable = np.isin(np.append(bases.owner, -1), [bases.owner[part.start] for part in own.values()])
    movable[:-1] &= bases.lower < bases.upper  # a shifted constant is rounding error
    shift, scale = centres_and_scales(stack_entries([p.part(with_theta=True) for p in polynomials]), movable)
    for part in own.values():
        if np.ptp(scale[part]) <= APART * scale[part].max():
            scale[part] = 1.0
    for some, other in product((shift, 0 * shift), (scale, scale**0) if (scale != 1).any() else (scale,)):
        if some.any() or (other != 1).any():
            yield {name: (some[part], other[part]) for name, part in own.items()}


def centres_and_scales(terms: Polynomial, movable: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return shifts s and scales of the scalars: ``sum_k s_k df/dx_k = -b`` for highest terms f and next coefficients b."""
    count, width, degree = len(movable) - 1, terms.monomial.shape[1], (terms.monomial >= 0).sum(axis=1)
    places = np.stack([terms.entry, terms.coordinate], axis=1)
    number = numbered_rows(places)[1]
    highest = np.zeros(number.max(initial=-1) + 1, dtype=np.int64)
    np.maximum.at(highest, number, degree)
    highest = highest[number]
    top, after = np.flatnonzero((degree == highest) & (degree > 0)), np.flatnonzero(degree == highest - 1)
    # Derivatives of the highest terms: each monomial without one of its scalars, for each scalar.
    scalar, whole = terms.monomial[top].T.ravel(), np.tile(top, width)
    rest = np.where(np.eye(width, dtype=bool)[:, None], -1, terms.monomial[top]).reshape(len(whole), width)
    keys = np.concatenate([terms.monomial[after], np.sort(rest, axis=1)])
    row = numbered_rows(np.concatenate([places[np.append(after, whole)], keys], axis=1))[1]
    size, moves = (row.max(initial=-1) + 1, count), movable[scalar]
    entries = terms.coefficient[whole][moves], (row[len(after) :][moves], scalar[moves])
    table = sp.csr_array(sp.coo_array(entries, shape=size))
    wanted = np.bincount(row[: len(after)], weights=-terms.coefficient[after], minlength=size[0])
    shift, scale = np.zeros(count), np.ones(count)
    if (np.diff(table.indptr) <= 1).all():
        lines, columns, values = sp.find(table)
        for k in np.unique(columns):
            own = columns == k
            ratios = wanted[lines[own]] / values[own]
            shift[k], scale[k] = ratios[np.abs(ratios).argmax()], np.median(np.abs(values[own]))
    elif table.shape[0] * count <= LARGEST_SYSTEM:
        dense = table.toarray()
        norms = np.linalg.norm(dense, axis=0)
        scale = np.where(norms > 0, norms, 1.0)
        shift = np.linalg.lstsq(dense / scale, wanted)[0] / scale
    return shift, scale
