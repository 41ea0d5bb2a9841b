"""Curvature that every record's loss has, whatever the record: public, and no record's own.

The Hessian of ``||theta - x||^2/2`` is the identity for every x.  With n records, n public, the sum of such losses is a public
quadratic plus a function of the record that is linear in theta; so under replace-one the quadratic belongs to the regularizer,
and what is left of the loss has neither curvature nor a gradient that grows with theta (docs/theory.md, shared curvature).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy.sparse as sp

from dpconvex.calculus.loss_form import LossForm, affine_leaves
from dpconvex.core.atoms.arrangement import hstack
from dpconvex.core.atoms.products import multiply
from dpconvex.core.atoms.squares import QUAD_OVER_LIN, sum_squares
from dpconvex.core.atoms.sums import add, total
from dpconvex.core.combinations import Combination, Curved, TermReader, Unreadable, build, number, square_of
from dpconvex.core.evaluate import substituted
from dpconvex.core.expression import Expression, constant
from dpconvex.errors import DPConvexError

# Exact products of coefficients that are formed, at most: each takes about a microsecond.
LARGEST_WORK = 10**5
Hessian = dict[tuple[int, int], Fraction]
# Curvatures of one variable's coordinates that agree to this fraction are one number.
SAME = 1e-12


@dataclass(frozen=True, eq=False)
class Shared:
    """A quadratic that all losses have in common, and the losses without it.

    Attributes
    ----------
    form : LossForm
        The learner with the losses that are left.
    hessian : sparse array, shape (dim, dim)
        The Hessian of the quadratic, for each record.
    """

    form: LossForm
    hessian: sp.csr_array


def shared_curvature(form: LossForm) -> Shared | None:
    """Find the squares of public linear forms in every loss; None if the losses have no such Hessian in common."""
    reader = TermReader(form.expander)
    found: list[tuple[Expression, Hessian]] = []
    for loss in form.template.losses:
        try:
            split = without_squares(reader, loss)
        except (DPConvexError, Unreadable, OverflowError):
            return None
        if split is None or (found and split[1] != found[0][1]):
            return None
        found.append(split)
    remainders = [loss for loss, _ in found]
    if not any(leaf.fields for loss in remainders for leaf in affine_leaves(loss)):
        return None  # nothing is left that a record changes
    rest = copy(form)
    _ = form.basis  # what noise has to cover stays as it is
    rest.__dict__.update(form.__dict__)
    rest.template = form.template.with_losses(remainders)
    rest.losses = tuple(remainders[k] for k in form.labels)
    rest.leaves = tuple(affine_leaves(loss) for loss in rest.losses)
    for group in rest.leaves:
        for leaf in group:
            rest.expander.expand_leaf(leaf)
    places, values = list(found[0][1]), [float(value) for value in found[0][1].values()]
    rows, columns = zip(*places, strict=True)
    return Shared(rest, sp.csr_array((values, (rows, columns)), shape=(form.space.dim,) * 2))


def moved_to_regularizer(form: LossForm) -> LossForm | None:
    """Return the same learner with the shared quadratic in its regularizer, for a public number of records.

    Only for quadratics that are a multiple of each variable's squared norm; None for others, and where there is none.
    """
    shared = shared_curvature(form)
    if shared is None:
        return None
    squares, covered = [], sp.csr_array(shared.hessian.shape)
    for block in form.space.blocks.values():
        part = shared.hessian[block.slice][:, block.slice].diagonal()
        if part.max(initial=0.0) > 0:
            squares.append(number(Fraction(float(part[0])) / 2) * sum_squares(block.variable))
            ends = np.arange(block.start, block.start + len(part))
            covered += sp.csr_array((np.full(len(part), part[0]), (ends, ends)), shape=covered.shape)
    # Each entry next to those of its own row and column on the diagonal: variables may have units of their own.
    missed, scale = sp.coo_array(shared.hessian - covered), np.sqrt(covered.diagonal())
    if (np.abs(missed.data) > SAME * scale[missed.coords[0]] * scale[missed.coords[1]]).any():
        return None
    rest = shared.form
    rest.template = rest.template.with_parts(regularizer=add(rest.template.regularizer, *squares))
    return rest


def without_squares(reader: TermReader, loss: Expression) -> tuple[Expression, Hessian] | None:
    """Split a loss into the squares of public linear forms, of which the Hessian is returned, and the rest."""
    kept: list[tuple[Fraction, Curved]] = []
    moved: list[Expression] = []
    hessian: Hessian = {}
    written = reader.one(loss)
    for factor, term in written.curved:
        divisor = square_of(term)
        if divisor is None or factor <= 0:
            kept.append((factor, term))
            continue
        weight, varying = 2 * factor / divisor, []
        public = []
        for entry in term.arguments[0].ravel(order="F"):
            row = reader.public_row(entry)
            if row is None:
                varying.append(entry)
                continue
            public.append(entry)
            if len(row) ** 2 + len(hessian) > LARGEST_WORK:
                return None
            for i, a in row.items():
                for j, b in row.items():
                    hessian[i, j] = hessian.get((i, j), Fraction(0)) + weight * a * b
        if not public:
            kept.append((factor, term))
            continue
        moved.append(number(weight) * linear_part(array_of(term, public, varying)))
        if varying:
            kept.append((factor / divisor, squares_of(reader, varying)))
    hessian = {place: value for place, value in hessian.items() if value}
    if not hessian:
        return None
    rest = build(Combination(tuple(kept), written.affine))
    return add(rest, *moved), hessian


def array_of(term: Curved, public: list[Combination], varying: list[Combination]) -> Expression:
    """Return the entries whose squares are public quadratics, as one array."""
    if term.atom is QUAD_OVER_LIN and not (varying or term.changed):
        return term.entry.source.args[0]
    return hstack(*(build(entry) for entry in public))


def linear_part(array: Expression) -> Expression:
    """Return ``sum_j L_j k_j`` for entries ``L_j + k_j``, with L_j linear in theta and k_j a function of the record."""
    record = substituted(array, {variable: constant(np.zeros(variable.shape)) for variable in array.variables})
    return total(multiply(array - record, record))


def squares_of(reader: TermReader, entries: list[Combination]) -> Curved:
    """Return the sum of the squares of some entries as a term."""
    ((_, term),) = reader.one(sum_squares(hstack(*(build(entry) for entry in entries)))).curved
    return term
