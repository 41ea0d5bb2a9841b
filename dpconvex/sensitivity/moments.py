"""Quadratic losses as linear functions of moments of the record: monomials times patterns over combinations of labels."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.expressions.expansion import Expander, RecordVariables
from dpconvex.expressions.expression import Expression, Field
from dpconvex.expressions.parameter_space import Space
from dpconvex.expressions.polynomial import Polynomial, numbered_rows
from dpconvex.model.template import Template
from dpconvex.numerics import NORM_SLACK, TAIL_SLACK
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.own_fields import substitute
from dpconvex.sensitivity.public_terms import move_public_terms
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import once

RANK = 1e-10  # Directions of patterns below this fraction of the largest are rounding
SAME = 1e-9  # Patterns, and values of polynomials, that agree to this fraction are the same
# Largest number of terms in the squares of leaves that fits into memory.
LARGEST = 3 * 10**7
REMEDY = "write the loss as squares of affine expressions, or use another mechanism, such as dp.ObjectivePerturbation"


@dataclass(frozen=True, eq=False)
class MomentKind:
    """Moments of one type: products of one scalar from each of some fields, times patterns over the discrete fields."""

    bases: tuple[int, ...]  # Which fields the factors come from, with repetitions, in order (empty for a count)
    monomials: Indices  # Which record scalars, shape (m, degree)
    # Shape (combinations, r): the k-th number of a record's combination multiplies moment (monomial, k)
    patterns: Array
    scale: float  # Factor of the moments: a weight over the largest norm of the kind's moments
    factors: Array  # Of each monomial: `scale`, times sqrt(2) for x_i x_j, which counts for x_j x_i too

    @property
    def count(self) -> int:
        return len(self.monomials) * self.patterns.shape[1]


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over the records of all moments of `kinds`, one kind after another."""

    kinds: tuple[MomentKind, ...]

    @property
    def count(self) -> int:
        return sum(kind.count for kind in self.kinds)


@dataclass(frozen=True, eq=False)
class QuadraticLoss:
    """A quadratic loss, as coefficients ``coefficient[j, y]`` of (target, monomial) pairs j for each combination y.

    `targets`, shape (targets, 2), has (a, b) for the product of two coordinates of theta, a <= b, (-1, a) for a coordinate and
    (-1, -1) for a constant; `target` and `monomial` have the indices of each pair; `coefficient` has shape (pairs, combinations).
    """

    dim: int
    bases: RecordVariables
    targets: Indices
    monomials: list[tuple[int, ...]]
    target: Indices
    monomial: Indices
    coefficient: sp.csr_array

    @once
    def moments(self, weight: float, residuals: bool, counted: bool) -> Moments:
        """Return the moments of the loss; of its constant only if `residuals`; without a public number of records (`counted`)."""
        kinds = []
        owner = [tuple(sorted(self.bases.owner[list(monomial)].tolist())) for monomial in self.monomials]
        used = np.ones(len(self.target), dtype=bool) if residuals else ~(self.targets[self.target] < 0).all(axis=1)
        bent = (self.targets[self.target] >= 0).all(axis=1)
        for bases in sorted({owner[k] for k in self.monomial[used]}, key=lambda b: (-len(b), b)):
            mine = np.array([own == bases for own in owner])[self.monomial]
            patterns = pattern_basis(self.coefficient[mine & used])
            if counted and not bases and patterns.shape[1] == 1 and np.ptp(patterns) == 0:
                continue
            rows = np.unique(self.monomial[mine & used])
            table = np.array([self.monomials[k] for k in rows], dtype=np.int64).reshape(len(rows), len(bases))
            # A product of norms, each rounded up.
            size = math.prod(math.nextafter(self.bases.bases[b].squared[1] ** 0.5, math.inf) for b in bases)
            if not 1e-150 < size < 1e150:
                why = "products of the record's scalars overflow or underflow"
                remedy = "use other units, in which the fields are of size 1"
                raise NotPrivate(why, self.bases.bases[bases[0]].name, remedy)
            scale = (1.0 if (mine & bent).any() else weight) / size
            factors = scale * np.sqrt(self.bases.multiplicity(table))
            kinds.append(MomentKind(bases, table, patterns, scale, factors))
        return Moments(tuple(kinds))

    @once
    def onto(self, moments: Moments) -> sp.csr_array:
        """Return the linear map from moments, followed by the number of records, to the targets. Raise if a moment is missing."""
        one, none = np.ones((self.coefficient.shape[1], 1)), np.zeros((1, 0), dtype=np.int64)
        everybody = MomentKind((), none, one, 1.0, np.ones(1))
        left, start = np.ones(len(self.target), dtype=bool), 0
        row, column, value = [], [], []
        for kind in (*moments.kinds, everybody):
            known = {tuple(monomial): k for k, monomial in enumerate(kind.monomials.tolist())}
            place = np.array([known.get(monomial, -1) for monomial in self.monomials])[self.monomial]
            pairs = np.flatnonzero(left & (place >= 0))
            wanted = self.coefficient[pairs].toarray()
            found = wanted @ np.linalg.pinv(kind.patterns).T
            kept = np.abs(found @ kind.patterns.T - wanted).max(axis=1) <= SAME * np.abs(wanted).max(axis=1)
            pairs, found, width = pairs[kept], found[kept], kind.patterns.shape[1]
            left[pairs] = False
            row.append(np.repeat(self.target[pairs], width))
            column.append((start + place[pairs, None] * width + np.arange(width)).ravel())
            value.append((found / kind.factors[place[pairs], None]).ravel())
            start += kind.count
        needed = np.flatnonzero(left & (self.targets[self.target] >= 0).any(axis=1))
        if len(needed):
            monomial = self.monomials[self.monomial[needed[0]]]
            why = f"the statistics lack the sum over the records of {self.written(monomial)}, which this loss needs"
            raise TemplateError(f"{why}. Release statistics for this template, or fit one with the same loss.")
        places = np.concatenate(row), np.concatenate(column)
        return sp.csr_array(sp.coo_array((np.concatenate(value), places), shape=(len(self.targets), start)))

    def written(self, monomial: tuple[int, ...]) -> str:
        """Return the text of a monomial, in the names of the record's fields."""
        names = [self.bases.bases[int(self.bases.owner[s])] for s in monomial]
        return " ".join(f"{b.name}[{s - b.start}]" for b, s in zip(names, monomial, strict=True)) or "1"


def pattern_basis(coefficient: sp.csr_array) -> Array:
    """Return a basis of the span of the rows, as columns; orthonormal up to a factor that gives its longest row length 1."""
    table = coefficient.toarray()
    lengths = np.linalg.norm(table, axis=1)
    table = table[lengths > 0] / lengths[lengths > 0, None]
    values, vectors = np.linalg.eigh(table.T @ table)
    basis = vectors[:, values > RANK * values.max()]
    if basis.shape[1] == len(basis):
        return np.eye(len(basis))
    if basis.shape[1] == 1:
        column = basis[:, 0] / basis[np.argmax(np.abs(basis[:, 0])), 0]
        return np.asarray((np.rint(column) if np.abs(column - np.rint(column)).max() < RANK else column)[:, None])
    return np.asarray(basis / np.linalg.norm(basis, axis=1).max())


@once
def quadratic_loss(form: LossForm) -> QuadraticLoss:
    """Return the losses of a template as quadratic functions of the parameters. Raise if a part is not quadratic."""
    check_size(form)
    return read_losses(move_public_terms(form.template), form.space)


def read_losses(template: Template, space: Space) -> QuadraticLoss:
    """Return the expanded losses; expansion treats the coordinates of theta as further scalars of the record."""
    bases = RecordVariables(template.record.continuous)
    first = bases.count
    stand_ins: dict[Expression, Expression] = {}
    for block in space.blocks.values():
        name = block.variable.name
        while name in bases.polynomials:
            name += "'"
        endless = np.full(block.dim, np.inf)
        scalars = bases.add(name, (block.dim,), -endless, endless, np.inf)
        bases.polynomials[name] = scalars.linear(block.lift, block.variable.shape)
        stand_ins[block.variable] = Field.of(block.variable.shape, name, key="stands for a variable")
    expander = SquareExpander(space, bases, frozenset(stand_ins.values()))
    expanded = [expander.expand(substitute(loss, stand_ins)) for loss in template.losses]
    degree = max(loss.monomial.shape[1] for loss in expanded)
    tables = [split_terms(loss, first, y, degree) for y, loss in enumerate(expanded)]
    combination, coefficient, targets, monomials = (np.concatenate(parts) for parts in zip(*tables, strict=True))
    used, target = numbered_rows(targets)
    rows, monomial = numbered_rows(monomials)
    pairs, pair = numbered_rows(np.stack([target, monomial], axis=1))
    table = sp.coo_array((coefficient, (pair, combination)), shape=(len(pairs), len(template.losses)))
    names = [tuple(k for k in row if k >= 0) for row in rows.tolist()]
    return QuadraticLoss(space.dim, bases, used, names, pairs[:, 0], pairs[:, 1], sp.csr_array(table))


def split_terms(
    polynomial: Polynomial, first: int, combination: int, degree: int
) -> tuple[Indices, Array, Indices, Indices]:
    """Return the combination, coefficient, target (coordinates of theta) and record monomial of each term of a loss."""
    count = len(polynomial.coefficient)
    table = np.pad(polynomial.monomial, ((0, 0), (degree + 2 - polynomial.monomial.shape[1], 0)), constant_values=-1)
    theta = table >= first  # the last columns of a row: it is sorted
    targets = np.where(theta[:, -2:], table[:, -2:] - first, -1)
    return np.full(count, combination), polynomial.coefficient, targets, np.sort(np.where(theta, -1, table), axis=1)


class SquareExpander(Expander):
    """Expands losses with fields as stand-ins for the variables. Raises if a loss is not quadratic in the variables."""

    def __init__(self, space: Space, bases: RecordVariables, stand_ins: frozenset[Expression]) -> None:
        super().__init__(space, bases)
        self.stand_ins = stand_ins
        self.first = bases.count - space.dim

    def polynomial(self, expression: Expression) -> Polynomial | None:
        """Return the expansion. Raise if its degree in the parameters is higher than two."""
        found = super().polynomial(expression)
        if found is not None and found.monomial.shape[1] > 2 and ((found.monomial >= self.first).sum(axis=1) > 2).any():
            raise NotPrivate("the loss is not a quadratic function of the parameters", expression, REMEDY)
        return found

    def _function(self, expression: Expression) -> Polynomial:
        if expression.fields & self.stand_ins:
            raise NotPrivate("the loss is not a quadratic function of the parameters", expression, REMEDY)
        why = "a coefficient of the loss is not a polynomial of the record"
        raise NotPrivate(why, expression, "compute it beforehand and declare it as a field with its own bounds")


def check_size(form: LossForm) -> None:
    """Raise if the squares of the loss have too many terms to expand."""
    counts = (np.bincount(form.polynomial(leaf).entry) for leaf in form.every_leaf)
    terms = sum(float((count.astype(float) ** 2).sum()) for count in counts)
    if terms > LARGEST:
        why = f"the squares of the loss have about {terms:.2g} terms, too many to expand"
        remedy = "use fewer features, or another mechanism, which does not expand squares"
        raise NotPrivate(why, form.template.losses[0], remedy)


CLOSE, MOST_POINTS = 1e-6, 2**17  # Relative accuracy of `polynomial_bound`, unless it takes more points than this


def length_bound(moments: Moments, bases: RecordVariables) -> float:
    """Return a bound on the norm of one record's moments; each kind is the tensor product of fields and a pattern."""
    squares = sum((scaled(kind, bases) * np.sum(kind.patterns**2, axis=1) for kind in moments.kinds), np.zeros(1))
    return float(np.sqrt(np.max(squares))) * (1 + TAIL_SLACK)


@once
def difference_bound(moments: Moments, bases: RecordVariables) -> float:
    """Return a bound on the distance of two records' moments, by polynomials in few variables (docs/theory.md, section 18)."""
    length, kinds = length_bound(moments, bases), moments.kinds
    fields = sorted({b for kind in kinds for b in kind.bases})
    exact = next((base for base in fields if bases.bases[base].size == 1), None)
    exponents: list[Array] = []
    ranges: list[tuple[float, float]] = []
    none = np.zeros(len(kinds))
    for base in fields:
        field, power = bases.bases[base], np.array([float(kind.bases.count(base)) for kind in kinds])
        square = field.squared[1]
        if base == exact:
            exponents += [np.concatenate([2 * power, none, power]), np.concatenate([none, 2 * power, power])]
            ranges += 2 * [(float(field.lower[0]) / square**0.5, float(field.upper[0]) / square**0.5)]
        else:
            exponents.append(np.concatenate([none, none, power]))
            ranges.append((field.paired[0] / square, field.paired[1] / square))
    table, ends = np.array(exponents).reshape(len(ranges), 3 * len(kinds)), np.array(ranges).reshape(-1, 2)
    scales = np.array([scaled(kind, bases) for kind in kinds])
    products = np.array([kind.patterns @ kind.patterns.T for kind in kinds])
    own = np.diagonal(products, axis1=1, axis2=2).T
    pairs = np.repeat(own, len(own), axis=0), np.tile(own, (len(own), 1)), -2 * products.reshape(len(kinds), -1).T
    cases = np.unique(np.column_stack(pairs), axis=0) * np.tile(scales, 3)
    largest = 0.0
    for case in cases:
        largest = polynomial_bound(case, table, ends, largest)
    largest = largest * (1 + CLOSE) + 4 * NORM_SLACK * length**2
    return min(float(np.sqrt(largest)) * (1 + TAIL_SLACK), 2 * length)


def scaled(kind: MomentKind, bases: RecordVariables) -> float:
    """Return a bound on the squared norm of a kind's moments without the pattern: the squared weight, up to rounding."""
    result = kind.scale**2
    for base in kind.bases:
        result *= bases.bases[base].squared[1]
    return result


def polynomial_bound(coefficients: Array, exponents: Array, ranges: Array, known: float) -> float:
    """Return a bound on a polynomial over a box in [-1, 1]^k, exact up to the factor 1 + `CLOSE` and rounding; at least `known`.

    `exponents` has shape (variables, terms).  At a maximum, linear variables are at an end of their range, and others at an end
    or at slope 0.  So the nearest grid point is lower by at most (step/2)^2/2 times the sum of the absolute second derivatives,
    d (d - 1) for a term of degree d.  When steps are halved, only points that can be this near to a maximum are kept.
    """
    low, high = ranges.T
    curved = exponents[:, -(len(coefficients) // 3) :].max(axis=1) > 1
    if max(2 ** len(low), 3 ** int(curved.sum())) > MOST_POINTS:
        return max(known, float(np.abs(coefficients).sum()))
    degree = exponents[curved].sum(axis=0)
    bend, step = float(np.abs(coefficients) @ (degree * (degree - 1))), np.where(curved, high - low, 0.0)
    points = np.array(list(itertools.product(*ranges.tolist()))).reshape(2 ** len(low), len(low))
    rounding = NORM_SLACK * float(np.abs(coefficients).sum())
    ways = [(-0.5, 0.0, 0.5) if bent else (0.0,) for bent in curved]
    moves = np.array(list(itertools.product(*ways))).reshape(3 ** int(curved.sum()), len(low))
    while True:
        values = np.prod(points[:, :, None] ** exponents, axis=1) @ coefficients
        known, room = max(known, float(values.max())), bend * step.max(initial=0.0) ** 2 / 8
        kept = points[values + room > known * (1 + CLOSE) + rounding]
        if not len(kept):
            return known
        if len(kept) * len(moves) > MOST_POINTS:
            return float(known + room)
        points = np.unique(np.clip((kept[:, None] + moves * step).reshape(-1, len(low)), low, high), axis=0)
        step = step / 2
