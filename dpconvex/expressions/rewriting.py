"""Rewriting of expressions: normal forms with sharper bounds, splitting an objective into records' losses, smoothing.

||m||^2 = sum(m^2) = sum_squares(m),  |m|^2 = m^2,  c logistic(m) - c m = c logistic(-m),  0 m = 0
-(f (-g) - a) = f g + a,  (-f) (-g) = f g,  c (-g) = (-c) g
c lse(m) + a = c lse(m + a/c)                        for affine m and a, and c > 0, where no other term is curved
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from dpconvex.errors import MissingRule, NotPrivate
from dpconvex.expressions.atoms.arithmetic import ADD, DIVIDE, MATMUL, MULTIPLY, NEGATE, SUMMED, add, negate
from dpconvex.expressions.atoms.arrangement import BROADCAST, CONCATENATE, INDEX, RESHAPE, TRANSPOSE, broadcast, reshape
from dpconvex.expressions.atoms.exponentials import LOG_SUM_EXP, LOGISTIC, logistic
from dpconvex.expressions.atoms.extremes import MAX, is_hinge
from dpconvex.expressions.atoms.norms import NORM, QUAD_OVER_LIN, quad_over_lin
from dpconvex.expressions.atoms.powers import ABS, HUBER, POWER, square
from dpconvex.expressions.expression import Constant, Expression, Shape, constant, node, postorder

Terms = list[tuple[Fraction, Expression]]

REDUCTIONS = (SUMMED, MAX, NORM, LOG_SUM_EXP, QUAD_OVER_LIN)
# Atoms that are linear in a curved argument.
PASSING = (ADD, BROADCAST, CONCATENATE, DIVIDE, INDEX, MATMUL, MULTIPLY, RESHAPE, SUMMED, TRANSPOSE)
REMEDY = (
    "write the objective as a sum over rows of the data, in atoms that treat each row alone, plus terms without data; or declare "
    "the record and the loss of one record with dp.Template"
)


def normal_form(node: Expression) -> Expression:
    """Return the normal form of a node with arguments in normal form; the node itself if no identity applies."""
    inner = node.args[0] if node.args else node
    squared = node.atom is POWER and node.option("p") == 2
    if squared and (inner.atom is ABS or (inner.atom is NORM and inner.args[0].size == 1)):
        return square(reshape(inner.args[0], node.shape))
    if squared and inner.atom is NORM and inner.option("p") == 2:
        return quad_over_lin(inner.args[0], 1.0, inner.option("axis"), inner.option("keepdims"))
    if node.atom is SUMMED and inner.atom is POWER and inner.option("p") == 2:
        return quad_over_lin(inner.args[0], 1.0, node.option("axis"), node.option("keepdims"))
    if node.atom is NEGATE and not node.is_affine:
        return opposite(inner) or node
    flips = all(side.atom is NEGATE or side.is_constant for side in node.args)
    if node.atom is MULTIPLY and flips and not node.is_affine:
        return negate(node.args[0]) * negate(node.args[1])
    return absorbed(node) if node.atom is ADD and node.is_scalar and not node.is_affine else node


def opposite(node: Expression) -> Expression | None:
    """Return minus an expression by removing a negation from each curved term; None if a curved term has no negation."""
    curved = [side for side in node.args if not side.is_affine]
    several = node.atom in (ADD, CONCATENATE)
    if node.is_affine or node.atom is NEGATE:
        return negate(node)
    divides = node.atom is DIVIDE and not node.args[1].is_affine
    if node.atom not in PASSING or divides or (len(curved) != 1 and not several):  # none: both factors vary
        return None
    sides = [side if side.is_affine and not several else opposite(side) for side in node.args]
    return None if None in sides else normal_form(node.operation(*sides, **dict(node.options)))


def absorbed(node: Expression) -> Expression:
    """Move affine terms of a sum into its only curved term, a log-sum-exp or logistic function; drop terms with factor 0."""
    curved = [part for part in node.args if not part.is_affine]
    affine = [part for part in node.args if part.is_affine and part.variables]
    moving = [part for part in affine if any(scale for scale, _ in terms(part))]
    fixed = [part for part in node.args if not part.variables]
    if len(moving) < len(affine):
        node = add(*curved, *moving, *fixed)
    (factor, term), *more = terms(curved[0])
    if more or len(curved) > 1 or not moving or not 1e-300 < factor < 1e300:
        return node
    if term.atom is LOG_SUM_EXP and term.args[0].is_affine:
        shift = reshape(add(*moving), ())
        merged = term.atom(term.args[0] + (shift if factor == 1 else shift / float(factor)), **dict(term.options))
    elif term.atom is LOGISTIC and term.args[0].is_affine:
        own = terms(term.args[0])
        opposite = sorted((-factor * scale, id(part)) for scale, part in own if part.variables)
        if sorted((scale, id(part)) for scale, part in terms(add(*moving))) != opposite:
            return node
        merged = logistic(-term.args[0])
        fixed.append(times(factor, sum_terms([(scale, part) for scale, part in own if not part.variables])))
    else:
        return node
    return add(*(reshape(part, node.shape) for part in (times(factor, merged), *fixed)))


def terms(root: Expression) -> Terms:
    """Return the terms of a scalar with their constant factors, which are exact."""
    if root.atom is ADD:
        return [term for argument in root.args for term in terms(argument)]
    if root.atom is NEGATE:
        return [(-factor, term) for factor, term in terms(root.args[0])]
    if root.atom in (RESHAPE, SUMMED, BROADCAST) and root.args[0].is_scalar:
        return terms(root.args[0])
    for number, other in ((0, 1), (1, 0)) if root.atom in (MULTIPLY, DIVIDE) else ():
        if root.args[number].is_constant and (root.atom is MULTIPLY or number == 1):
            value = Fraction(root.args[number].number.item())
            if value == 0 and root.atom is DIVIDE:
                break
            scale = value if root.atom is MULTIPLY else 1 / value
            return [(factor * scale, term) for factor, term in terms(root.args[other])]
    return [(Fraction(1), root)]


def sum_terms(parts: Terms) -> Expression:
    """Return the sum of terms as a scalar; 0 without terms."""
    return add(*(times(factor, reshape(term, ())) for factor, term in parts)) if parts else constant(0.0)


def times(factor: Fraction, term: Expression) -> Expression:
    """Multiply a term by an exact factor, which is rounded only here."""
    number = float(factor)
    return term if number == 1 else -term if number == -1 else number * term


class RecordPart(NamedTuple):
    """One record's part of an array: `axis`, now of length 1, held the records; None if they are summed."""

    expression: Expression
    axis: int | None


def split_objective(
    objective: Expression, rows: Mapping[Expression, Expression], count: int
) -> tuple[Expression, Expression]:
    """Return one record's loss and the public terms of a scalar objective; `rows` maps each field to that of one record."""
    parts = RowTerms(rows, count)
    records, rest = Terms(), Terms()
    for factor, term in terms(objective):
        part = parts(term) if term.fields else RecordPart(term, None)
        if part.axis is not None:
            raise mixed(term, "it is not a sum over the records")
        (records if term.fields else rest).append((factor * (count if term.fields else 1), part.expression))
    return sum_terms(records), sum_terms(rest)


class RowTerms:
    def __init__(self, rows: Mapping[Expression, Expression], count: int) -> None:
        self.known = {field: RecordPart(reshape(row, (1, *row.shape)), 0) for field, row in rows.items()}
        self.count = count

    def __call__(self, node: Expression) -> RecordPart:
        if node not in self.known:
            self.known[node] = self._part(node)
        return self.known[node]

    def _part(self, node: Expression) -> RecordPart:
        parts = [self(argument) if argument.fields else None for argument in node.args]
        axes = {part.axis for part in parts if part is not None}
        if None in axes:
            return of_totals(node, parts)
        if node.atom is MATMUL:
            return product(node, parts)
        (axis, *others) = axes
        assert axis is not None
        if others:
            raise mixed(node, "one of its arguments has the records in rows, another in columns")
        options: dict[str, Any] = dict(node.options)
        if node.operation.entrywise or (node.atom is CONCATENATE and options["axis"] != axis):
            return self._same(node, parts, axis, axis)
        if parts[0] is None or any(argument.fields for argument in node.args[1:]):
            raise mixed(node, "it divides by data of several records, or is not known to treat each record alone")
        if node.atom in REDUCTIONS:
            if axis not in options["axis"]:
                before = 0 if options["keepdims"] else sum(k < axis for k in options["axis"])
                return self._same(node, parts, axis, axis - before)
            if node.atom in (SUMMED, QUAD_OVER_LIN):
                return self._same(node, parts, axis, None)
            raise mixed(node, "it is not a sum over the records")
        if node.atom is TRANSPOSE:
            return self._same(node, parts, axis, options["axes"].index(axis))
        if node.atom is INDEX and options["key"][axis] == (0, self.count, 1):
            key = options["key"]
            place = axis - sum(isinstance(k, int) for k in key[:axis])
            return self._same(node, parts, axis, place, key=(*key[:axis], (0, 1, 1), *key[axis + 1 :]))
        if node.atom is BROADCAST:
            place = axis + node.ndim - node.args[0].ndim
            return RecordPart(broadcast(parts[0].expression, of_one(node.shape, place)), place)
        shape = node.args[0].shape
        for place, between in ((0, shape[:axis]), (node.ndim - 1, shape[axis + 1 :])):  # in column order
            if node.atom is RESHAPE and set(between) <= {1} and node.ndim and node.shape[place] == self.count:
                return RecordPart(reshape(parts[0].expression, of_one(node.shape, place)), place)
        raise mixed(node, "it is not known to treat each record alone")

    def _same(
        self, node: Expression, parts: Sequence[RecordPart | None], axis: int, place: int | None, **options: object
    ) -> RecordPart:
        arguments = [
            part.expression if part else shared(argument, axis, node) if argument.ndim > axis else argument
            for argument, part in zip(node.args, parts, strict=True)
        ]
        return RecordPart(node.operation(*arguments, **{**dict(node.options), **options}), place)


def of_totals(node: Expression, parts: Sequence[RecordPart | None]) -> RecordPart:
    atom = node.operation
    totals = [part is not None and part.axis is None for part in parts]
    public = [part is None for part in parts]
    alone = sum(totals) == 1 and sum(public) == len(parts) - 1
    linear = {"linear": all(totals), "bilinear": alone, "quotient": totals[0] and public[-1]}
    if not linear.get(atom.affine, False):
        raise mixed(node, "it is not linear in sums over the records")
    arguments = [a if p is None else p.expression for a, p in zip(node.args, parts, strict=True)]
    return RecordPart(atom(*arguments, **dict(node.options)), None)


def product(node: Expression, parts: Sequence[RecordPart | None]) -> RecordPart:
    """Return one record's part of a matrix product: one factor has records as rows or columns, or they are summed over."""
    (one, two), (left, right) = node.args, parts
    inner = one.ndim - 1
    if (left is None or left.axis == inner) and (right is None or right.axis == 0):
        first = left.expression if left is not None else shared(one, inner, node)
        return RecordPart(first @ (right.expression if right is not None else shared(two, 0, node)), None)
    if left is not None and right is None:
        return RecordPart(left.expression @ two, 0)
    if right is not None and left is None:
        return RecordPart(one @ right.expression, node.ndim - 1)
    raise mixed(node, "it multiplies different records with each other")


def shared(node: Expression, axis: int, where: Expression) -> Expression:
    """Return one row, along `axis`, of an expression without data. Raise if the rows differ."""
    if node.atom is BROADCAST:
        place = axis - node.ndim + node.args[0].ndim
        if place < 0 or node.args[0].shape[place] == 1:
            return broadcast(node.args[0], of_one(node.shape, axis))
    if isinstance(node, Constant):
        numbers = np.take(node.dense, [0], axis)
        if (node.dense == numbers).all():
            return constant(numbers)
    if node.atom is not None and node.atom.entrywise:
        return node.operation(*(shared(argument, axis, where) for argument in node.args), **dict(node.options))
    if node.atom is MATMUL and node.ndim == 2 and node.args[axis].is_constant:
        one, two = node.args
        return shared(one, 0, where) @ two if axis == 0 else one @ shared(two, 1, where)
    raise mixed(where, f"{node} has different entries for different records")


def of_one(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def mixed(term: Expression, why: str) -> NotPrivate:
    return NotPrivate(f"a term of the objective mixes records: {why}", term, REMEDY)


def smoothed(expression: Expression, width: float) -> Expression:
    """Return a smooth approximation, by each atom's `smoothed`; its gradients are convex combinations of the expression's.

    So it is exactly as sensitive (Nesterov 2005, "Smooth minimization of non-smooth functions"; Beck & Teboulle 2012).

    >>> from dpconvex.expressions.atoms.extremes import pos
    >>> from dpconvex.expressions.expression import Variable
    >>> print(smoothed(pos(1 - Variable.of((), "x", 1)), 0.5))
    huber(pos(1 - x + 0.5), 1) / 2
    """
    done: dict[Expression, Expression] = {}
    for part in postorder([expression]):  # shared nodes are smoothed once
        done[part] = rounded(part, done, width)
    return done[expression]


def rounded(expression: Expression, done: Mapping[Expression, Expression], width: float) -> Expression:
    if not expression.variables or expression.is_affine:
        return expression
    atom = expression.operation
    args = [done[argument] for argument in expression.args]
    # An outer function of slope 0 at 0 removes the kink of pos: keep it.
    flat = atom in (HUBER, QUAD_OVER_LIN) or (atom is POWER and expression.option("p") >= 2)
    if flat and is_hinge(expression.args[0]):
        hinge = expression.args[0]
        args[0] = node(hinge.operation, [done[argument] for argument in hinge.args], hinge.options, hinge.shape)
    if atom.smoothed is None:
        return node(atom, args, expression.options, expression.shape)
    result: Expression | None = atom.smoothed(expression, args, width)
    if result is None:
        lines = "" if expression.is_scalar else " along an axis"
        remedy = "write it entry by entry, or give a delta: adaptive steps need no smoothness"
        raise MissingRule(f"the nonsmooth points of {atom.name}{lines} cannot be smoothed", expression, remedy)
    return result
