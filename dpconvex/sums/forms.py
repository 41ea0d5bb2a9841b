"""Losses as outer functions of a few shared forms, which are polynomials of the record and linear in theta."""

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.errors import MissingRule, NotPrivate
from dpconvex.expressions.atoms.arithmetic import ADD, add, multiply
from dpconvex.expressions.atoms.arrangement import BROADCAST
from dpconvex.expressions.expansion import Expander
from dpconvex.expressions.expression import Expression, Variable, constant, node, postorder
from dpconvex.expressions.parameter_space import Space, entries_matrix
from dpconvex.expressions.polynomial import Polynomial, concatenate, numbered_rows
from dpconvex.model.template import Template
from dpconvex.numerics import BOUND_SLACK
from dpconvex.sensitivity.loss_form import LARGEST_DEGREE, affine_leaves, expander_of
from dpconvex.sets.quadratics import Quadratic, SmoothExpression, as_quadratic
from dpconvex.sums.design import TABLE, Design
from dpconvex.sums.programs import Lowered, entry_rows, lowered
from dpconvex.util.arrays import Array, Indices, powers_of_two
from dpconvex.util.runtime import once

# Relative rounding errors: of numbers that count as integers, and of the residual of a row that is a combination of others.
INTEGER, SAME = 1e-9, 1e-10
# Least eigenvalue of the Gram matrix of normalised rows that serve as a basis: 1/2 for differences of one class with the
# others. A worse basis is made orthonormal if it has at most `LARGEST_DENSE` numbers.
WELL_CONDITIONED, LARGEST_DENSE = 0.4, 2**24
LARGEST_BASIS = 600  # With more forms than this, none are shared
NARROW = 64  # Random combinations of columns that are tried first: most rows span fewer dimensions
ALONE = 0.1  # Least size of an entry, next to the largest of its row, that determines a combination
UNEVEN = 16.0  # Ratio of parameters' coefficients from which each parameter has its own unit
SAME_DIGITS = 12  # in which combinations of forms must agree to count as the same


@dataclass(frozen=True, eq=False)
class Label:
    """The outer function of one combination of discrete fields, and its leaves as combinations of the forms."""

    lowered: Lowered
    combine: sp.csr_array  # leaves from forms, shape (entries of all leaves, forms)
    offset: Array  # the part of the leaves that does not depend on theta, shape (entries, monomials)

    @cached_property
    def back(self) -> sp.csc_array:  # cached: it takes longer to make than to multiply with
        return self.combine.T


@dataclass(frozen=True, eq=False)
class LeafForm:
    """All losses of a template, as outer functions of shared forms."""

    labels: tuple[Label, ...]
    design: Design
    map: sp.csr_array  # from theta to the coefficients of the forms, form by form, shape (forms * monomials, dim)

    @property
    def forms(self) -> int:
        return self.labels[0].combine.shape[1]

    @cached_property
    def grid(self) -> tuple[Indices, Array, Indices, Array] | None:
        """Return a table of parameters: places of coordinates, forms of columns, monomials of rows, and scales; or None."""
        count, table = self.design.count, sp.csc_array(self.map)
        form, monomial = np.divmod(table.indices, count)
        lengths = np.diff(table.indptr)
        row = monomial[np.minimum(table.indptr[:-1], len(monomial) - 1)]
        owner = np.repeat(np.arange(table.shape[1]), lengths)
        if count == 1 or (lengths == 0).any() or (monomial != row[owner]).any():
            return None
        weights = np.zeros((table.shape[1], self.forms))
        weights[owner, form] = table.data
        longest = np.zeros(count)
        np.maximum.at(longest, row, np.linalg.norm(weights, axis=1))
        # The first coordinates of all rows get the same sign, so that a subtracted threshold is in the same column.
        first = np.unique(row, return_index=True)[1]
        clear = np.abs(weights[first]) > 10.0**-SAME_DIGITS * longest[row[first], None]  # not a rounding error
        leading = weights[first, np.argmax(clear, axis=1)]
        longest[row[first]] *= np.sign(leading * leading[0])
        scale = longest[row]
        kinds, column = np.unique(np.round(weights / scale[:, None], SAME_DIGITS), axis=0, return_inverse=True)
        places = np.full((count, len(kinds)), -1, dtype=np.int64)
        places[row, column.ravel()] = np.arange(table.shape[1])
        used = np.unique(row)
        if (places[used] < 0).any() or (places >= 0).sum() != table.shape[1]:
            return None
        return places[used], kinds, used, scale

    @cached_property
    def merged(self) -> tuple["LeafForm", sp.csr_array]:
        """Return the form with proportional parameters merged, and the map from its parameters to coordinates of least norm."""
        table = sp.csc_array(self.map)
        if self.grid is not None:
            return self, sp.eye_array(table.shape[1], format="csr")
        sketch = table.T @ np.random.default_rng(0).normal(size=(table.shape[0], 3))
        moving = np.flatnonzero(sketch[:, 0])
        ratios = np.round(sketch[moving] / sketch[moving, :1], SAME_DIGITS)
        _, first, owner = np.unique(ratios, axis=0, return_index=True, return_inverse=True)
        weights = sketch[moving, 0] / sketch[moving[first], 0][owner.ravel()]
        lift = sp.csr_array((weights, (moving, owner.ravel())), shape=(table.shape[1], len(first)))
        return replace(self, map=sp.csr_array(table[:, moving[first]])), lift @ sp.diags_array(
            1 / lift.power(2).sum(axis=0)
        )


@once
def lowered_losses(template: Template, space: Space) -> tuple[Lowered, ...]:
    """Return the loss of each combination of discrete fields, as a function of the entries of all variables."""
    rows = entry_rows(space)
    return tuple(lowered(loss, rows) for loss in exact_losses(template, space))


@once
def exact_losses(template: Template, space: Space) -> tuple[Expression, ...]:
    """Return the losses without rounding errors of terms that cancel: the entries are 0, or their values at theta = 0."""
    expander = expander_of(template, space)
    done, still = dict[Expression, Expression](), dict[Expression, Expression]()
    leaves = {leaf for loss in template.losses for leaf in affine_leaves(loss)}
    for part in postorder(template.losses):
        still[part] = constant(np.zeros(part.shape)) if isinstance(part, Variable) else with_new_arguments(part, still)
        done[part] = own = with_new_arguments(part, done)
        if part.args and (part in leaves or (part.fields and not part.variables)):
            with suppress(MissingRule, NotPrivate):  # then it stays as it is
                if expander.polynomial(part) is not None:
                    left, written = (entries_of(found.expand(part)) for found in (expander, expander.sizes))
                    gone, shape = (left != written).any(axis=0), part.shape
                    masks = [keep.reshape(shape, order="F").astype(float) for keep in (~gone, gone & left[1])]
                    done[part] = multiply(own, masks[0]) if gone.any() else own
                    if not part.variables:
                        still[part] = done[part]
                    elif masks[1].any():
                        done[part] = add(done[part], multiply(still[part], masks[1]))
    return tuple(done[loss] for loss in template.losses)


def with_new_arguments(part: Expression, known: dict[Expression, Expression]) -> Expression:
    args = [known[argument] for argument in part.args]
    return node(part.operation, args, part.options, part.shape) if args != list(part.args) else part


def entries_of(polynomial: Polynomial) -> NDArray[np.bool_]:
    """Return which entries of a polynomial have terms with parameters, and which have any terms, shape (2, entries)."""
    found = polynomial.part(with_theta=True).entry, polynomial.entry
    return np.stack([np.bincount(entry, minlength=polynomial.size) > 0 for entry in found])


@once
def public_part(template: Template, space: Space, part: Expression | None = None) -> SmoothExpression | Quadratic:
    """Return the regularizer, or a part, as declared: per record, not times the number of records."""
    part = part or template.regularizer
    return as_quadratic(part, space) or SmoothExpression(part, space)


@once
def form_of(template: Template, space: Space) -> LeafForm:
    exact = exact_losses(template, space)
    leaves = [affine_leaves(loss) for loss in exact]
    return leaf_form(exact, leaves, expander_of(template, space)) or entries_form(template, space)


@once
def entries_form(template: Template, space: Space) -> LeafForm:
    """Return the form with the entries of the variables as its leaves, which exists for all losses."""
    lift, losses = entries_matrix(space), lowered_losses(template, space)
    every = sp.csr_array(sp.eye_array(lift.shape[0]))
    labels = tuple(Label(loss, every[loss.place], np.zeros((len(loss.place), 1))) for loss in losses)
    return LeafForm(labels, Design(1, {}, ()), lift)


def leaf_form(losses: Sequence[Expression], leaves: Sequence[list[Expression]], expander: Expander) -> LeafForm | None:
    """Return the losses as functions of polynomials of low degree; None without a small enough basis."""
    own = expander.bases.bases[: len(expander.bases.polynomials)]  # bases of fields come first
    fields = {base.name: slice(base.start, base.start + base.size) for base in own}
    space, scalars = expander.space, sum(base.size for base in own)
    try:
        found = [expander.expand(leaf) for group in leaves for leaf in group]
    except (MissingRule, NotPrivate):
        return None
    degree = max((polynomial.monomial.shape[1] for polynomial in found), default=LARGEST_DEGREE + 1)
    if degree > LARGEST_DEGREE or any((polynomial.monomial >= scalars).any() for polynomial in found):
        return None
    starts = np.cumsum([0, *(p.size for p in found)])
    terms = concatenate(found, (int(starts[-1]),), [p.entry + first for p, first in zip(found, starts, strict=False)])
    if degree == LARGEST_DEGREE:
        # The index -1, which stands for the factor 1, sorts first; the constant monomial goes last.
        distinct, number = numbered_rows(np.concatenate([terms.monomial, np.full((1, degree), -1)]))
        design = Design(len(distinct), {TABLE: slice(0, len(distinct) - 1)}, tuple(fields), tuple(distinct[1:].T))
        place = (number[:-1] - 1) % design.count
    else:
        design = Design(degree * scalars + 1, fields if degree else {}, tuple(fields))
        place = terms.monomial.sum(axis=1) % design.count
    count, dim, moving = design.count, space.dim, terms.coordinate >= 0
    ends = np.cumsum([0, *(sum(leaf.size for leaf in group) for group in leaves)])
    # Weight coefficients by the size of their monomials; powers of two keep all digits.
    extents, sizes = np.abs(expander.bases.monomial_range(terms.monomial)).max(axis=0), np.ones(count)
    sizes[place] = powers_of_two(extents)
    # Likewise for parameters: otherwise only those in small units would tell scores apart that share parameters.
    largest = np.zeros(dim)
    np.maximum.at(largest, terms.coordinate[moving], np.abs(terms.coefficient * sizes[place])[moving])
    units = powers_of_two(np.where(largest > 0, largest, largest.max(initial=0.0)))
    units = units if units.max() > UNEVEN * units.min() else np.ones(dim)
    scaled = replace(
        terms, coefficient=terms.coefficient * sizes[place] / np.where(moving, units[terms.coordinate], 1.0)
    )
    basis = row_basis(coefficients(scaled, place * dim + terms.coordinate, moving, count * dim), ends)
    if basis is None:
        return None
    forms, combine = basis
    forms.data *= units[forms.indices % dim] / sizes[forms.indices // dim]
    offsets = coefficients(terms, place, ~moving, count)
    labels = []
    for loss, group, first in zip(losses, leaves, ends, strict=False):
        parts = np.cumsum([first, *(leaf.size for leaf in group)])
        low = lowered(loss, {leaf: np.arange(a, b) for leaf, (a, b) in zip(group, pairwise(parts), strict=True)})
        labels.append(Label(low, combine[low.place], offsets[low.place].toarray()))
    return LeafForm(tuple(labels), design, sp.csr_array(forms.reshape((forms.shape[0] * count, dim))))


def coefficients(polynomial: Polynomial, column: Indices, keep: NDArray[np.bool_], width: int) -> sp.csr_array:
    """Return the coefficients of the kept terms of a polynomial, one row for each entry."""
    data = (polynomial.coefficient[keep], (polynomial.entry[keep], column[keep]))
    return sp.csr_array(sp.coo_array(data, shape=(polynomial.size, width)))


def row_basis(rows: sp.csr_array, ends: Indices) -> tuple[sp.csr_array, sp.csr_array] | None:
    """Return a well-conditioned basis of the rows, and all rows as combinations of it; None if the basis is too large."""
    # Rows are as wide as products of monomials and parameters: no dense array has this width.
    scale = np.sqrt(np.bincount(np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr)), rows.data**2, rows.shape[0]))
    moving = np.flatnonzero(scale > 0)
    unit = rows[moving]
    unit.data *= np.repeat(1.0 / scale[moving], np.diff(unit.indptr))
    used, place = np.unique(unit.indices, return_inverse=True)
    unit = sp.csr_array((unit.data, place.ravel(), unit.indptr), shape=(len(moving), len(used)))
    rng = np.random.default_rng(0)
    for start, end in [*pairwise(ends.tolist()), (0, len(scale))]:
        own = np.flatnonzero((moving >= start) & (moving < end))
        if not len(own):
            continue
        for width in (NARROW, 4 * NARROW, LARGEST_BASIS + 1):
            mixed = rng.normal(size=(len(used), min(len(own), width)))
            triangle, order = scipy.linalg.qr((unit[own] @ mixed).T, mode="r", pivoting=True)
            size = np.abs(np.diag(triangle))
            rank = int((size > SAME * size[0]).sum())
            if rank < width or len(own) <= width:
                break
        if rank > LARGEST_BASIS:
            return None
        chosen = own[np.sort(order[:rank])]
        basis, length = unit[chosen], scale[moving[chosen]]
        bad = np.linalg.eigvalsh((basis @ basis.T).toarray())[0] < WELL_CONDITIONED
        if bad and end - start < len(scale):
            continue
        if bad and rank * len(used) <= LARGEST_DENSE:
            directions, _ = scipy.linalg.qr(basis.toarray().T, mode="economic")
            basis, weights, length = sp.csr_array(directions.T), sp.csr_array(unit @ directions), np.ones(rank)
        else:
            weights = combinations_from_columns(basis, unit)
            if weights is None:
                sketch = unit @ mixed
                q, triangle = scipy.linalg.qr(sketch[chosen].T, mode="economic")
                weights = sp.csr_array(scipy.linalg.solve_triangular(triangle, q.T @ sketch.T).T)
            ratio = np.repeat(scale[moving], np.diff(weights.indptr)) / length[weights.indices]
            nearest = np.round(weights.data * ratio)  # integers stay exact
            whole = np.abs(weights.data * ratio - nearest) <= INTEGER * np.maximum(1.0, np.abs(nearest))
            weights.data = np.where(whole, nearest / ratio, weights.data)
        error = abs(weights @ basis - unit).max(axis=1).toarray().ravel()
        if (error <= BOUND_SLACK * (abs(weights).sum(axis=1) + 1)).all():
            row = np.repeat(moving, np.diff(weights.indptr))
            data = weights.data * scale[row] / length[weights.indices]
            combine = sp.csr_array((data, (row, weights.indices)), shape=(len(scale), rank))
            combine.eliminate_zeros()
            basis = sp.csr_array(sp.diags_array(length) @ basis)
            return sp.csr_array((basis.data, used[basis.indices], basis.indptr), shape=(rank, rows.shape[1])), combine
    return None


def combinations_from_columns(basis: sp.csr_array, rows: sp.csr_array) -> sp.csr_array | None:
    """Return rows as combinations of a basis, from columns with one nonzero basis entry; None if these entries are too small."""
    table = sp.csc_array(basis)
    alone = np.flatnonzero(np.diff(table.indptr) == 1)
    place = table.indptr[alone]
    owner, size = table.indices[place], np.abs(table.data[place])
    order = np.lexsort([size, owner])
    last = order[np.flatnonzero(np.diff(owner[order], append=-1))]  # the largest entry of each row
    if len(last) < basis.shape[0] or (size[last] < ALONE * abs(basis).max(axis=1).toarray().ravel()).any():
        return None
    return sp.csr_array(rows[:, alone[last]] @ sp.diags_array(1 / table.data[place[last]]))


def with_scores(loss: Expression) -> tuple[Expression, list[Expression]]:
    """Return a rewritten loss and its scores: affine parts that no other field multiplies.

    In ``exp(s) - y * s`` the score is s, which y multiplies; in ``y * exp(-s) + x @ w + b`` the last two terms are one score.
    In ``square(x @ w + t * (x @ v) - y)`` all of ``x @ w + t * (x @ v)`` is one score: two scores would have very different
    curvatures along their sum and difference.
    """
    scores: dict[Expression, None] = {}
    known: dict[Expression, Expression] = {}
    inside = {part for node in postorder([loss]) if not node.is_affine for arg in node.args for part in sums_of(arg)}

    def rewritten(node: Expression) -> Expression:
        if node not in known:
            known[node] = made(node)
        return known[node]

    def made(node: Expression) -> Expression:
        if not node.variables:
            return node
        if is_score(node):
            scores[node] = None
            return node
        if node.atom is not ADD:
            return node.operation(*map(rewritten, node.args), **dict(node.options))
        own = [term for term in node.args if term.variables and (is_score(term) or node in inside)]
        others = [rewritten(term) for term in node.args if term not in own]
        if len(own) > 1 and len({term.shape for term in own}) == 1:
            own = [ADD(*own)]
        scores.update(dict.fromkeys(own))
        return ADD(*own, *others)

    return rewritten(loss), list(scores)


def sums_of(node: Expression) -> Iterator[Expression]:
    """Yield the largest affine sums in which a field multiplies some of several terms."""
    if node.is_affine and is_multiplied(node):
        if node.atom is ADD and sum(bool(term.variables) for term in node.args) > 1:
            yield node
        else:
            for argument in node.args:
                yield from sums_of(argument)


def is_score(node: Expression) -> bool:
    """Return whether an expression is affine and multiplies no field with a part that already reads a field."""
    return node.is_affine and not any(part.atom is BROADCAST for part in moving_parts(node)) and not is_multiplied(node)


def is_multiplied(node: Expression) -> bool:
    """Return whether an affine expression multiplies a field with a part that already reads a field."""
    return any(
        any(a.fields for a in part.args if a.variables) and any(a.fields for a in part.args if not a.variables)
        for part in moving_parts(node)
        if part.atom is not None and part.atom.affine in ("bilinear", "quotient")
    )


def moving_parts(node: Expression) -> Iterator[Expression]:
    """Yield the subexpressions that depend on parameters."""
    return (part for part in postorder([node]) if part.variables)


def shared_grid(form: LeafForm, moving: int) -> tuple[Indices, Array, Indices, Array]:
    """Return `LeafForm.grid` for one column of all parameters, with scales that make records' rows about equally long."""
    table, count = sp.coo_array(form.map), form.design.count
    scale = np.sqrt(np.bincount(table.col, table.data**2, form.map.shape[1]))
    fixed = (np.bincount(table.col, table.row % count < moving, form.map.shape[1]) == 0) & (scale > 0)
    scale[scale == 0] = 1.0  # of parameters that no score reads
    # All constants together have half the weight of the parameters that multiply records.
    scale[fixed] *= 2 * math.sqrt(max(fixed.sum(), 1))
    return np.arange(len(scale))[:, None], np.eye(form.forms), np.arange(moving), scale
