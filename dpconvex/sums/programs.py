"""Expressions with slots for variables, fields and numbers, so that labels can share them; and their derivatives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpconvex.expressions.evaluate import STEP, gradients, over_records
from dpconvex.expressions.expression import Constant, Expression, Field, Variable, postorder
from dpconvex.expressions.parameter_space import Space
from dpconvex.util.arrays import Array, Indices

# Most records that a processor computes at once: records are padded to a multiple of it (`dpconvex.sums.clipping`).
LANES = 64


@dataclass(frozen=True)
class Program:
    """An expression with slots; equal programs compute the same function of their slots."""

    root: Expression
    entries: tuple[
        Expression, ...
    ]  # slots of variables or of given subexpressions, with respect to which derivatives are taken
    fields: tuple[Expression, ...]
    numbers: tuple[Expression, ...]


@dataclass(frozen=True, eq=False)
class Lowered:
    """An expression with slots, and the contents of its slots."""

    program: Program
    fields: tuple[str, ...]
    constants: tuple[Array, ...]
    place: Indices  # places of the slots' entries in a table of all entries

    def gradient(
        self, entries: Array, fields: Sequence[Array], size: int, valued: bool = True, numbers: Sequence[Array] = ()
    ) -> tuple[Array, Array]:
        """Return values, shape (size,), NaN unless `valued`, and gradients, shape (entries, size), at entries with records last.

        `numbers`, with the records last, replace the constants.
        """
        program, start = self.program, 0
        root = program.root
        numbers = numbers or [c[..., None] for c in self.constants]
        leaves = dict[Expression, Any](zip(program.numbers, numbers, strict=True))
        leaves |= {slot: np.moveaxis(field, 0, -1) for slot, field in zip(program.fields, fields, strict=True)}
        for slot in program.entries:
            part = entries[start : start + slot.size].reshape((*slot.shape[::-1], entries.shape[-1]))
            leaves[slot] = part if slot.ndim < 2 else part.transpose((*range(slot.ndim)[::-1], slot.ndim))
            start += slot.size
        read = valued or root.atom is None or root.atom.vjp_reads_value
        found = over_records([root] if read else root.args, leaves)
        found.setdefault(root, np.full(1, np.nan))
        # Outside a function's domain the result is infinite or NaN, which solvers reject.
        with np.errstate(all="ignore"):
            known = gradients(list(found), found, root)
        parts = [np.broadcast_to(known.get(slot, 0.0), (*slot.shape, size)) for slot in program.entries]
        rows = [part.reshape((-1, size), order="F") if part.ndim > 2 else part.reshape((-1, size)) for part in parts]
        whole = rows[0] if len(rows) == 1 else np.concatenate([np.zeros((0, size)), *rows])
        return np.broadcast_to(np.reshape(found[root], -1), (size,)), whole

    def hessian_product(self, entries: Array, along: Array, fields: Sequence[Array], size: int) -> Array:
        """Return Hessians by the entries of the slots times directions, shape (entries, size)."""
        return np.imag(self.gradient(entries + 1j * STEP * along, fields, size, valued=False)[1]) / STEP


def lowered(expression: Expression, rows: Mapping[Expression, Indices]) -> Lowered:
    """Return an expression with slots; `rows` maps variables, or subexpressions that count as variables, to places in a table."""
    entries: list[Expression] = []
    fields: list[Field] = []
    numbers: list[Constant] = []
    slots: dict[Expression, Expression] = {}
    for node in postorder([expression], rows):
        if node in rows:
            slots[node] = Variable.of(node.shape, f"slot {len(entries)}", -1 - len(entries))
            entries.append(node)
        elif isinstance(node, Field):
            slots[node] = Field.of(node.shape, f"field {len(fields)}", "slot")
            fields.append(node)
        elif isinstance(node, Constant):
            slots[node] = Field.of(node.shape, f"number {len(numbers)}", "slot")
            numbers.append(node)
        else:
            slots[node] = node.operation(*(slots[argument] for argument in node.args), **dict(node.options))
    program = Program(slots[expression], *(tuple(slots[leaf] for leaf in part) for part in (entries, fields, numbers)))
    place = np.concatenate([np.zeros(0, dtype=np.int64), *(rows[leaf] for leaf in entries)])
    return Lowered(program, tuple(leaf.name for leaf in fields), tuple(leaf.dense for leaf in numbers), place)


def entry_rows(space: Space) -> dict[Expression, Indices]:
    """Return the places of each variable's entries among all entries, in column order."""
    every = [block.variable for block in space.blocks.values()]
    ends = np.cumsum([variable.size for variable in every])
    return {variable: np.arange(end - variable.size, end) for variable, end in zip(every, ends, strict=True)}
