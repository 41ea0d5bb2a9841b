"""One record's part of an objective that is written over all records at once.

Where an atom treats each record alone (entry by entry, along other axes, times what is the same for all records), its part is
the same atom of arrays with one row, until a sum over the axis of the records ends it.  All else mixes records, and is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpconvex.core.atoms import ENTRYWISE
from dpconvex.core.atoms.arithmetic import MATMUL, SUMMED
from dpconvex.core.atoms.arrangement import BROADCAST, CONCATENATE, INDEX, RESHAPE, TRANSPOSE, repeated, reshape
from dpconvex.core.atoms.exponentials import LOG_SUM_EXP
from dpconvex.core.atoms.extremes import MAX
from dpconvex.core.atoms.norms import NORM, QUAD_OVER_LIN
from dpconvex.core.expression import Constant, Expression, Shape, constant
from dpconvex.core.normal_form import Terms, terms, together
from dpconvex.errors import NotPrivate

REDUCTIONS = (SUMMED, MAX, NORM, LOG_SUM_EXP, QUAD_OVER_LIN)
REMEDY = (
    "write the objective as a sum over rows of the data, in atoms that treat each row alone, plus terms without data; or declare "
    "the record and the loss of one record with dp.Template"
)


@dataclass(frozen=True)
class Part:
    """What one record has of an array: `axis`, of length 1, is where the records were, None if they were added up."""

    expression: Expression
    axis: int | None


def split(objective: Expression, rows: Mapping[Expression, Expression], count: int) -> tuple[Expression, Expression]:
    """Write a scalar objective as the mean over records of what the first result says of one record, plus a public rest.

    `rows` gives, for each field with `count` records along its first axis, one record's.
    """
    parts = Rows(rows, count)
    records, rest = Terms(), Terms()
    for factor, term in terms(objective):
        if not term.fields:
            rest.append((factor, term))
            continue
        part = parts(term)
        if part.axis is not None:
            raise mixed(term, "it is not a sum over the records")
        records.append((factor * count, part.expression))
    return together(records), together(rest)


class Rows:
    def __init__(self, rows: Mapping[Expression, Expression], count: int) -> None:
        self.known = {field: Part(reshape(row, (1, *row.shape)), 0) for field, row in rows.items()}
        self.count = count

    def __call__(self, node: Expression) -> Part:
        if node not in self.known:
            self.known[node] = self._part(node)
        return self.known[node]

    def _part(self, node: Expression) -> Part:
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
        if node.atom in ENTRYWISE or (node.atom is CONCATENATE and options["axis"] != axis):
            return self._same(node, parts, axis, axis)
        if parts[0] is None or any(argument.fields for argument in node.args[1:]):
            raise mixed(node, "it divides by data of several records, or is not known to treat each record alone")
        if node.atom in REDUCTIONS:
            if axis not in options["axis"]:
                before = 0 if options["keepdims"] else sum(k < axis for k in options["axis"])
                return self._same(node, parts, axis, axis - before)
            if node.atom in (SUMMED, QUAD_OVER_LIN) or (node.atom is NORM and options["p"] == 1):
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
            return Part(repeated(parts[0].expression, of_one(node.shape, place)), place)
        shape = node.args[0].shape
        for place, between in ((0, shape[:axis]), (node.ndim - 1, shape[axis + 1 :])):  # in column order
            if node.atom is RESHAPE and set(between) <= {1} and node.ndim and node.shape[place] == self.count:
                return Part(reshape(parts[0].expression, of_one(node.shape, place)), place)
        raise mixed(node, "it is not known to treat each record alone")

    def _same(
        self, node: Expression, parts: Sequence[Part | None], axis: int, place: int | None, **options: object
    ) -> Part:
        assert node.atom is not None
        arguments = [
            part.expression if part else shared(argument, axis, node) if argument.ndim > axis else argument
            for argument, part in zip(node.args, parts, strict=True)
        ]
        return Part(node.atom(*arguments, **{**dict(node.options), **options}), place)


def of_totals(node: Expression, parts: Sequence[Part | None]) -> Part:
    atom = node.atom
    assert atom is not None
    totals = [part is not None and part.axis is None for part in parts]
    public = [part is None for part in parts]
    sums = atom.affine == "linear" and all(totals)
    times = atom.affine == "bilinear" and sum(totals) == 1 and sum(public) == len(parts) - 1
    quotient = atom.affine == "quotient" and totals[0] and public[1]
    if not (sums or times or quotient):
        raise mixed(node, "it is not linear in sums over the records")
    arguments = [a if p is None else p.expression for a, p in zip(node.args, parts, strict=True)]
    return Part(atom(*arguments, **dict(node.options)), None)


def product(node: Expression, parts: Sequence[Part | None]) -> Part:
    """Multiply matrices: one side's rows are records, or the sum in the product is over records."""
    (one, two), (left, right) = node.args, parts
    inner = one.ndim - 1
    sums = (left is None or left.axis == inner, right is None or right.axis == 0)
    if all(sums):
        first = left.expression if left is not None else shared(one, inner, node)
        second = right.expression if right is not None else shared(two, 0, node)
        return Part(first @ second, None)
    if left is not None and right is None:
        return Part(left.expression @ two, 0)
    if right is not None and left is None:
        return Part(one @ right.expression, node.ndim - 1)
    raise mixed(node, "it multiplies different records with each other")


def shared(node: Expression, axis: int, where: Expression) -> Expression:
    """Return one row of an expression without data, if all are the same."""
    if node.atom is BROADCAST:
        place = axis - node.ndim + node.args[0].ndim
        if place < 0 or node.args[0].shape[place] == 1:
            return repeated(node.args[0], of_one(node.shape, axis))
    if isinstance(node, Constant):
        numbers = np.take(node.dense, [0], axis)
        if (node.dense == numbers).all():
            return constant(numbers)
    if node.atom in ENTRYWISE:
        assert node.atom is not None
        return node.atom(*(shared(argument, axis, where) for argument in node.args), **dict(node.options))
    if node.atom is MATMUL and node.ndim == 2 and node.args[axis].is_constant:
        one, two = node.args
        return shared(one, 0, where) @ two if axis == 0 else one @ shared(two, 1, where)
    raise mixed(where, f"{node} has an entry of its own for each record")


def of_one(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], 1, *shape[axis + 1 :])


def mixed(term: Expression, why: str) -> NotPrivate:
    return NotPrivate(f"a term of the objective mixes records: {why}", term, REMEDY)
