"""A template's losses as outer functions of few shared forms, which are polynomials of the record and linear in theta.

A loss is ``phi_y(A_z theta + c_z)``.  All entries of the leaves ``A_z theta`` of all labels are linear combinations of few
*forms* (the forms ``z' Phi_c z`` of C classes serve C(C-1) margins; one form ``x' w`` serves both signs of a label), and a form
is a sum of monomials of the record with coefficients that are linear in theta.  So a pass over the records is

    monomials @ coefficients(theta)  ->  forms  ->  leaves  ->  phi and its gradient  ->  monomials' @ gradient:

two matrix products, whatever the labels, and compiled functions only for the cheap part between them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.calculus.loss_form import affine_leaves
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Expression, Variable
from dpconvex.core.parameter_space import Space
from dpconvex.core.polynomial import Polynomial, concatenate, numbered_rows
from dpconvex.core.record_scalars import Bases
from dpconvex.errors import MissingRule, NotPrivate
from dpconvex.evaluation.leaf_parts import added_parts, distinct_rows, table_of
from dpconvex.evaluation.programs import Lowered
from dpconvex.language.template import Template

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# Monomials of a higher degree are left to the compiled functions of whole losses.
LARGEST_DEGREE = 2
# Relative size of a combination's error that passes for rounding, and of numbers that pass for integers.
ROUNDING, INTEGER = 1e-14, 1e-9
# Relative size of what is left of a row that is a combination of others.
SAME = 1e-10
# Least eigenvalue of the inner products of a label's rows, scaled to length 1, at which they serve as a basis: for differences of
# one class with the others it is one half.
WELL_CONDITIONED = 0.4
# A basis is made orthonormal if it has at most so many numbers.
LARGEST_DENSE = 2**24
# Directions that find the rank of the leaves; with more forms than this none are shared.
LARGEST_BASIS = 600
# The leaves of more labels than this are taken apart first.
FEW = 64
# So many random combinations are tried first.
FIRST_WIDTH = 64


@dataclass(frozen=True, eq=False)
class Label:
    """The outer function of one combination of discrete fields, and its leaves in terms of the forms.

    Attributes
    ----------
    lowered : Lowered
        The loss as a function of its leaves, which are slots of the kind "affine".
    combine : ndarray or csr_array, shape (entries of all leaves, forms)
        The part of the leaves that depends on theta, from the forms.
    offset : csr_array, shape (entries of all leaves, monomials)
        The part that does not.
    """

    lowered: Lowered
    combine: Any
    offset: sp.csr_array

    @cached_property
    def back(self) -> Any:
        """From slopes by the leaves to slopes by the forms, shape (forms, entries); to turn it takes longer than to use it."""
        return sp.csr_array(self.combine.T) if sp.issparse(self.combine) else self.combine.T

    @cached_property
    def constant(self) -> Array | None:
        """The offset, shape (entries,), if it is the same for all records; the constant monomial is the last one."""
        last = self.offset.shape[1] - 1
        if (self.offset.indices != last).any():
            return None
        return np.asarray(self.offset[:, [last]].toarray()).ravel()


@dataclass(frozen=True, eq=False)
class LeafForm:
    """All losses of a template, as outer functions of shared forms.

    Attributes
    ----------
    labels : tuple of Label
    monomials : ndarray of int, shape (monomials, degree)
        Products of record scalars, -1 standing for 1; sorted, the constant one last.
    map : csr_array, shape (forms * monomials, dim)
        From theta to the coefficients of the forms, form by form.
    fields : dict of str to slice
        The record scalars of each continuous field, in column order.
    """

    labels: tuple[Label, ...]
    monomials: Indices
    map: sp.csr_array
    fields: dict[str, slice]

    @property
    def forms(self) -> int:
        return self.labels[0].combine.shape[1]


_FORMS: WeakKeyDictionary[Template, tuple[tuple[Variable, ...], LeafForm | None]] = WeakKeyDictionary()


def leaf_form(template: Template, space: Space) -> LeafForm | None:
    """Split the losses of a template, once; None if a leaf is not a polynomial of low degree in the record."""
    order = tuple(block.variable for block in space.blocks.values())
    known = _FORMS.get(template)
    if known is None or known[0] != order:
        known = (order, split(template, space))
        _FORMS[template] = known
    return known[1]


def split(template: Template, space: Space) -> LeafForm | None:
    bases = Bases(template.record)
    fields = {base.name: slice(base.start, base.start + base.size) for base in bases.bases}
    scalars = bases.count
    expander = Expander(space, bases)
    leaves = [affine_leaves(loss) for loss in template.losses]
    if len(leaves) > FEW:
        shared = split_by_parts(template, expander, leaves, fields)
        if shared is not None:
            return shared
    try:
        polynomials = [[expander.expand_leaf(leaf) for leaf in group] for group in leaves]
    except (MissingRule, NotPrivate):
        return None
    found = [p for group in polynomials for p in group]
    if bases.count > scalars or any(p.monomial.shape[1] > LARGEST_DEGREE for p in found):
        return None
    if not found:
        return None
    starts = np.cumsum([0, *(p.size for p in found)])
    joined = [p.entry + first for p, first in zip(found, starts, strict=False)]
    terms = concatenate(found, (int(starts[-1]),), joined)
    monomials, place = numbered(terms.monomial)
    count, dim = len(monomials), space.dim
    moving = terms.coordinate >= 0
    ends = np.cumsum([0, *(sum(leaf.size for leaf in group) for group in leaves)])
    basis = row_basis(entries_matrix(terms, place * dim + terms.coordinate, moving, count * dim), ends)
    if basis is None:
        return None
    offsets = entries_matrix(terms, place, ~moving, count)
    offsets.eliminate_zeros()
    forms, combine = basis
    labels, row = [], 0
    for loss, group in zip(template.losses, leaves, strict=True):
        size = sum(leaf.size for leaf in group)
        offset = sp.csr_array(offsets[row : row + size])
        labels.append(label_of(loss, space, group, combine[row : row + size], offset))
        row += size
    return LeafForm(tuple(labels), monomials, sp.csr_array(forms.reshape((forms.shape[0] * count, dim))), fields)


def label_of(loss: Expression, space: Space, group: list[Expression], combine: Any, offset: sp.csr_array) -> Label:
    """Return a label whose leaves have these parts, with entries in the order of the slots of the outer function."""
    lowered = Lowered.build(loss, space, {leaf: k for k, leaf in enumerate(group)})
    ends = np.cumsum([0, *(leaf.size for leaf in group)])
    slots = [np.arange(ends[k], ends[k + 1]) for k in lowered.given]
    order = np.concatenate(slots) if slots else np.zeros(0, dtype=np.int64)
    return Label(lowered, combine[order], sp.csr_array(offset[order]))


def split_by_parts(
    template: Template, expander: Expander, leaves: list[list[Expression]], fields: dict[str, slice]
) -> LeafForm | None:
    """Split the losses of very many labels, whose leaves are sums of parts that they share; None if they share too little."""
    scalars, space = expander.bases.count, expander.space
    parts = list(dict.fromkeys(part.expression for group in leaves for leaf in group for part in added_parts(leaf)))
    try:
        polynomials = [expander.expand_leaf(part) for part in parts]
    except (MissingRule, NotPrivate):
        return None
    if expander.bases.count > scalars or any(p.monomial.shape[1] > LARGEST_DEGREE for p in polynomials):
        return None
    starts = np.cumsum([0, *(part.size for part in parts)])
    terms = concatenate(
        polynomials, (int(starts[-1]),), [p.entry + first for p, first in zip(polynomials, starts, strict=False)]
    )
    monomials, place = numbered(terms.monomial)
    count, moving = len(monomials), terms.coordinate >= 0
    found = distinct_rows(entries_matrix(terms, place * space.dim + terms.coordinate, moving, count * space.dim))
    if found is None:
        return None
    forms, combine = found
    offsets = entries_matrix(terms, place, ~moving, count)
    start = dict(zip(parts, starts.tolist(), strict=False))
    labels = []
    for loss, group in zip(template.losses, leaves, strict=True):
        if not group:
            return None
        table = table_of(group, start, int(starts[-1]))
        own, offset = sp.csr_array(table @ combine), sp.csr_array(table @ offsets)
        own.eliminate_zeros()
        offset.eliminate_zeros()
        labels.append(label_of(loss, space, group, own, offset))
    return LeafForm(tuple(labels), monomials, sp.csr_array(forms.reshape((forms.shape[0] * count, space.dim))), fields)


def numbered(table: Indices) -> tuple[Indices, Indices]:
    """Number the distinct monomials of a table; the constant one is always there, and last."""
    constant = np.full((1, table.shape[1]), -1, dtype=np.int64)
    distinct, number = numbered_rows(np.concatenate([table, constant]))
    # -1 sorts first: the constant goes last, where it is easy to find.
    return np.roll(distinct, -1, axis=0), ((number - 1) % len(distinct))[:-1]


def entries_matrix(polynomial: Polynomial, column: Indices, keep: NDArray[np.bool_], width: int) -> sp.csr_array:
    """Put the coefficients of some terms of a polynomial into rows, one for each entry."""
    data = (polynomial.coefficient[keep], (polynomial.entry[keep], column[keep]))
    return sp.csr_array(sp.coo_array(data, shape=(polynomial.size, width)))


def row_basis(rows: sp.csr_array, ends: Indices | None = None) -> tuple[sp.csr_array, Array] | None:
    """Choose rows that all rows are combinations of.

    Those of one label are preferred if they are well conditioned, as the differences of one class with all others are.  If no
    label has enough of them, and those that were found are not orthogonal, they are made so; what rounding does to sums over
    records for each form is then not much enlarged by the sums over forms (docs/release.md, section 5).
    """
    count = rows.shape[0]
    scale = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    moving = np.flatnonzero(scale > 0)
    if not len(moving):
        return None
    # Random combinations of the columns keep the rank, with probability one; what they claim is checked below.  Few suffice
    # for a small rank: there are more of them than it, or as many as rows.
    most, width = min(len(moving), LARGEST_BASIS), FIRST_WIDTH
    rng = np.random.default_rng(0)
    used, place = np.unique(rows.indices, return_inverse=True)
    dense = sp.csr_array((rows.data, place.ravel(), rows.indptr), shape=(count, len(used)))
    unit = sp.csr_array(sp.diags_array(1.0 / scale[moving]) @ dense[moving])
    while True:
        width = min(width, most)
        sketch = unit @ rng.normal(size=(len(used), width))
        _, triangle, order = scipy.linalg.qr(sketch.T, mode="economic", pivoting=True)
        size = np.abs(np.diag(triangle))
        rank = int((size > SAME * size[0]).sum())
        if width == most or 2 * rank <= width:
            break
        width *= 4
    if rank == LARGEST_BASIS and len(moving) > LARGEST_BASIS:
        return None
    own = of_one_label(unit, sketch, moving, ends, rank)
    chosen = np.sort(order[:rank]) if own is None else own
    weights = np.linalg.lstsq(sketch[chosen].T, sketch.T, rcond=None)[0].T
    combine = np.zeros((count, rank))
    combine[moving] = weights * scale[moving, None] / scale[moving[chosen]]
    whole = np.round(combine)
    combine = np.where(np.abs(combine - whole) <= INTEGER * np.maximum(1.0, np.abs(whole)), whole, combine)
    found = sp.csr_array(rows[moving[chosen]]), combine
    gram = (unit[chosen] @ unit[chosen].T).toarray()
    if own is None and np.abs(gram - np.eye(rank)).max() > INTEGER and rank * len(used) <= LARGEST_DENSE:
        directions, _ = scipy.linalg.qr(unit[chosen].toarray().T, mode="economic")
        table = sp.csr_array(directions.T)
        orthonormal = sp.csr_array((table.data, used[table.indices], table.indptr), shape=(rank, rows.shape[1]))
        weights = np.zeros((count, rank))
        weights[moving] = scale[moving, None] * (unit @ directions)
        if reproduces(weights, orthonormal, rows, scale):
            return orthonormal, weights
    return found if reproduces(found[1], found[0], rows, scale) else None


def reproduces(combine: Array, basis: sp.csr_array, rows: sp.csr_array, scale: Array) -> bool:
    error = abs(sp.csr_array(combine) @ basis - rows)
    allowed = ROUNDING * (np.abs(combine) @ abs(basis).max(axis=1).toarray().ravel() + scale)
    largest = error.max(axis=1).toarray().ravel() if error.nnz else np.zeros(len(scale))
    return bool((largest <= allowed).all())


def of_one_label(unit: sp.csr_array, sketch: Array, moving: Indices, ends: Indices | None, rank: int) -> Indices | None:
    if ends is None:
        return None
    for start, end in pairwise(ends.tolist()):
        own = np.flatnonzero((moving >= start) & (moving < end))
        if len(own) < rank:
            continue
        _, _, order = scipy.linalg.qr(sketch[own].T, mode="economic", pivoting=True)
        chosen = np.asarray(own[np.sort(order[:rank])])
        gram = (unit[chosen] @ unit[chosen].T).toarray()
        if np.linalg.eigvalsh(gram)[0] > WELL_CONDITIONED:
            return chosen
    return None
