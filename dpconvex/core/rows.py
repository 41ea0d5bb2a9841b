"""One record's part of an objective that is written over all records at once.

A whole array has the records along one axis.  An atom treats each record alone if it acts entry by entry, or along other axes, or
multiplies by what is the same for all records; then its part is the same atom without that axis.  Sums over the axis of the
records end it: an objective is a sum of such totals, and of terms without data.  All else mixes records, and is refused by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpconvex.core.atoms import ENTRYWISE
from dpconvex.core.atoms.arrangement import (
    BROADCAST,
    CONCATENATE,
    INDEX,
    RESHAPE,
    TRANSPOSE,
    entry_at,
    repeated,
    reshape,
)
from dpconvex.core.atoms.exponentials import LOG_SUM_EXP
from dpconvex.core.atoms.extremes import MAX
from dpconvex.core.atoms.norms import NORM, QUAD_OVER_LIN
from dpconvex.core.atoms.powers import absolute, square
from dpconvex.core.atoms.products import MATMUL
from dpconvex.core.atoms.sums import SUMMED
from dpconvex.core.expression import Constant, Expression, constant
from dpconvex.core.normal_form import Terms, terms, together
from dpconvex.errors import NotPrivate

REDUCTIONS = (SUMMED, MAX, NORM, LOG_SUM_EXP, QUAD_OVER_LIN)
REMEDY = (
    "write the objective as a sum over rows of the data, in atoms that treat each row alone, plus terms without data; or declare "
    "the record and the loss of one record with dp.Template"
)


@dataclass(frozen=True)
class Split:
    """An objective as the mean over records of what `record` says, plus a public rest."""

    record: Expression
    rest: Expression


@dataclass(frozen=True)
class Part:
    """What one record has of an array: `axis` is where the records were, None if they were added up."""

    expression: Expression
    axis: int | None


def split(objective: Expression, rows: Mapping[Expression, Expression], count: int) -> Split:
    """Split a scalar objective; `rows` gives, for each field with `count` records along its first axis, one record's."""
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
    return Split(together(records), together(rest))


class Rows:
    """Finds the part of one record, of each node once."""

    def __init__(self, rows: Mapping[Expression, Expression], count: int) -> None:
        self.known = {field: Part(row, 0) for field, row in rows.items()}
        self.count = count

    def __call__(self, node: Expression) -> Part:
        """Return what one record has of an expression with data in it."""
        if node not in self.known:
            self.known[node] = self._part(node)
        return self.known[node]

    def _part(self, node: Expression) -> Part:
        parts = [self(argument) if argument.fields else None for argument in node.args]
        if any(part is not None and part.axis is None for part in parts):
            return self._of_totals(node, parts)
        if node.atom in ENTRYWISE:
            (axis, *others) = {part.axis for part in parts if part is not None}
            if others:
                raise mixed(node, "one of its arguments has the records in rows, another in columns")
            return self._same(node, parts, axis)
        if node.atom is MATMUL:
            return self._product(node, parts)
        inner, axis = parts[0], None if parts[0] is None else parts[0].axis
        if node.atom is CONCATENATE:
            (axis, *others) = {part.axis for part in parts if part is not None}
            along = node.option("axis")
            if not others and along != axis and axis is not None:
                return self._same(node, parts, axis, axis=along - (along > axis))
        if inner is None or axis is None:
            raise mixed(node, "it is not known to treat each record alone")
        if node.atom in REDUCTIONS:
            return self._reduction(node, inner.expression, axis)
        if node.atom is TRANSPOSE:
            axes = node.option("axes")
            order = tuple(k - (k > axis) for k in axes if k != axis)
            return Part(TRANSPOSE(inner.expression, axes=order), axes.index(axis))
        if node.atom is INDEX and node.option("key")[axis] == (0, self.count, 1):
            key = node.option("key")
            place = axis - sum(isinstance(k, int) for k in key[:axis])
            return Part(INDEX(inner.expression, key=(*key[:axis], *key[axis + 1 :])), place)
        if node.atom is BROADCAST:
            place = axis + node.ndim - node.args[0].ndim
            return Part(repeated(inner.expression, without(node.shape, place)), place)
        if node.atom is RESHAPE:
            return self._reshaped(node, inner.expression, axis)
        raise mixed(node, "it is not known to treat each record alone")

    def _of_totals(self, node: Expression, parts: Sequence[Part | None]) -> Part:
        atom = node.atom
        assert atom is not None
        totals = [part is not None and part.axis is None for part in parts]
        public = [part is None for part in parts]
        sums = atom.affine == "linear" and all(totals)
        product = atom.affine == "bilinear" and sum(totals) == 1 and sum(public) == len(parts) - 1
        quotient = atom.affine == "quotient" and totals[0] and public[1]
        if not (sums or product or quotient):
            raise mixed(node, "it is not linear in sums over the records")
        arguments = [a if p is None else p.expression for a, p in zip(node.args, parts, strict=True)]
        return Part(atom(*arguments, **dict(node.options)), None)

    def _same(self, node: Expression, parts: Sequence[Part | None], place: int | None, **options: object) -> Part:
        """Apply the same atom to what one record has of all arguments."""
        assert node.atom is not None
        assert place is not None
        pairs = zip(node.args, parts, strict=True)
        arguments = [self._shared(a, place, node) if p is None else p.expression for a, p in pairs]
        return Part(node.atom(*arguments, **{**dict(node.options), **options}), place)

    def _shared(self, node: Expression, axis: int, where: Expression) -> Expression:
        """Return what all records have of an expression without data."""
        if node.atom is BROADCAST:
            inner = node.args[0]
            place = axis - node.ndim + inner.ndim
            if place < 0:
                return repeated(inner, without(node.shape, axis))
            if inner.shape[place] == 1:
                return repeated(reshape_away(inner, place), without(node.shape, axis))
        if isinstance(node, Constant):
            numbers = np.moveaxis(node.dense, axis, 0)
            if (numbers == numbers[0]).all():
                return constant(numbers[0])
        if node.atom in ENTRYWISE:
            return self._same(node, [None] * len(node.args), axis).expression
        if node.atom is MATMUL and node.ndim == 2 and node.args[axis].is_constant:
            one, two = node.args
            return self._shared(one, 0, where) @ two if axis == 0 else one @ self._shared(two, 1, where)
        raise mixed(where, f"{node} has an entry of its own for each record")

    def _product(self, node: Expression, parts: Sequence[Part | None]) -> Part:
        """Multiply matrices: one side's rows are records, or the sum in the product is over records."""
        (one, two), (left, right) = node.args, parts
        inner = one.ndim - 1, 0  # the axes that are summed over
        over = (left is not None and left.axis == inner[0], right is not None and right.axis == inner[1])
        if any(over) and max(one.ndim, two.ndim) <= 2:
            if (left is not None and not over[0]) or (right is not None and not over[1]):
                raise mixed(node, "it multiplies different records with each other")
            first = left.expression if left is not None else self._shared(one, inner[0], node)
            second = right.expression if right is not None else self._shared(two, inner[1], node)
            if first.ndim and second.ndim:
                return Part(reshape(first, (first.size, 1)) @ reshape(second, (1, second.size)), None)
            return Part(first * second, None)
        if max(one.ndim, two.ndim) <= 2:
            if left is not None and right is None:
                return Part(left.expression @ two, 0)
            if right is not None and left is None:
                return Part(one @ right.expression, node.ndim - 1)
        raise mixed(node, "it multiplies different records with each other")

    def _reduction(self, node: Expression, inner: Expression, axis: int) -> Part:
        """Reduce along other axes, or end with a sum over the records."""
        atom, options = node.atom, dict(node.options)
        assert atom is not None
        if any(argument.fields for argument in node.args[1:]):
            raise mixed(node, "it divides by data of several records")
        others = tuple(k - (k > axis) for k in node.option("axis") if k != axis)
        options.pop("axis")
        keepdims = bool(options.pop("keepdims"))
        if axis not in node.option("axis"):
            made = atom(inner, *node.args[1:], axis=others, keepdims=keepdims, **options)
            reduced = 0 if keepdims else sum(k < axis for k in node.option("axis"))
            return Part(made, axis - reduced)
        if atom not in (SUMMED, QUAD_OVER_LIN) and not (atom is NORM and node.option("p") == 1):
            raise mixed(node, "it is not a sum over the records")
        if others:
            made = atom(inner, *node.args[1:], axis=others, keepdims=False, **options)
        elif atom is SUMMED:
            made = inner
        else:
            made = absolute(inner) if atom is NORM else square(inner) / node.args[1]
        return Part(reshape(made, node.shape), None)

    def _reshaped(self, node: Expression, inner: Expression, axis: int) -> Part:
        """Reshape, in column order, where the records stay the first or the last axis."""
        before, after = node.args[0].shape[:axis], node.args[0].shape[axis + 1 :]
        if set(before) <= {1} and node.ndim and node.shape[0] == self.count:
            return Part(reshape(inner, node.shape[1:]), 0)
        if set(after) <= {1} and node.ndim and node.shape[-1] == self.count:
            return Part(reshape(inner, node.shape[:-1]), node.ndim - 1)
        raise mixed(node, "it changes the axis of the records")


def without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[:axis], *shape[axis + 1 :])


def reshape_away(node: Expression, axis: int) -> Expression:
    """Return an array without an axis of length 1."""
    return entry_at(node, tuple(0 if k == axis else slice(None) for k in range(node.ndim)))


def mixed(term: Expression, why: str) -> NotPrivate:
    """Say which term is no sum over records."""
    return NotPrivate(f"a term of the objective mixes records: {why}", term, REMEDY)
