"""Expressions in slots: what is left of an expression when its variables, fields and numbers are arguments; and derivatives.

Losses that differ only in *which* variable or number stands where, as those of different labels do, are one expression in slots:
the same object, so that what is prepared for one of them serves them all.  Arrays have the records as their last axis, of length
1 where all share a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.arrays import Array
from dpconvex.core.evaluate import STEP, slopes
from dpconvex.core.expression import Constant, Expression, Field, Variable, postorder
from dpconvex.core.parameter_space import Space, entries_matrix
from dpconvex.errors import TemplateError
from dpconvex.geometry.quadratics import Quadratic, quadratic
from dpconvex.language.template import Template

# What a processor computes at once, at most: records are gone through in multiples of it (`dpconvex.evaluation.clipping`).
LANES = 64


@dataclass(frozen=True)
class Program:
    """An expression in slots; equal programs compute the same function of what stands in these."""

    root: Expression
    entries: tuple[Expression, ...]  # slots of variables, or of given subexpressions: what derivatives are taken by
    fields: tuple[Expression, ...]
    numbers: tuple[Expression, ...]

    @cached_property
    def order(self) -> list[Expression]:
        """Every node, arguments before what is made of them."""
        return postorder([self.root])

    def cut(self, entries: Any) -> list[Any]:
        """Cut a table with a row for each entry of the slots, in column order, and records last, into the slots' arrays."""
        parts, start = [], 0
        for slot in self.entries:
            part = entries[start : start + slot.size]
            turned = part.reshape((*slot.shape[::-1], part.shape[-1]))
            parts.append(turned if slot.ndim < 2 else turned.transpose((*range(slot.ndim)[::-1], slot.ndim)))
            start += slot.size
        return parts

    def joined(self, parts: Sequence[Any]) -> Array:
        """Do the reverse of `cut`."""
        rows = [part.reshape((-1, part.shape[-1]), order="F") if part.ndim > 2 else part for part in parts]
        flat = [row[None] if row.ndim == 1 else row for row in rows]
        return flat[0] if len(flat) == 1 else np.concatenate(flat)

    def leaves(self, entries: Sequence[Any], fields: Sequence[Any], numbers: Sequence[Any]) -> dict[Expression, Any]:
        """Put arrays with records last into the slots; numbers have no records."""
        found = dict(zip(self.entries, entries, strict=True))
        found.update(zip(self.fields, fields, strict=True))
        found.update((slot, number[..., None]) for slot, number in zip(self.numbers, numbers, strict=True))
        return found


def slotted(
    expression: Expression, given: Mapping[Expression, int]
) -> tuple[Program, list[Expression], list[Field], list[Constant]]:
    """Return an expression in slots, and what stands in these: variables or given subexpressions, fields, numbers."""
    entries: list[Expression] = []
    fields: list[Field] = []
    numbers: list[Constant] = []
    slots: dict[Expression, Expression] = {}
    for node in postorder([expression], given):
        if node in given or isinstance(node, Variable):
            slots[node] = Variable.of(node.shape, f"slot {len(entries)}", -1 - len(entries))
            entries.append(node)
        elif isinstance(node, Field):
            slots[node] = Field.of(node.shape, f"field {len(fields)}", "slot")
            fields.append(node)
        elif isinstance(node, Constant):
            slots[node] = Field.of(node.shape, f"number {len(numbers)}", "slot")
            numbers.append(node)
        else:
            assert node.atom is not None
            slots[node] = node.atom(*(slots[argument] for argument in node.args), **dict(node.options))
    program = Program(slots[expression], *(tuple(slots[leaf] for leaf in part) for part in (entries, fields, numbers)))
    return program, entries, fields, numbers


@dataclass(frozen=True, eq=False)
class Lowered:
    """A program, its numbers, and where its variables lie among the entries of all variables."""

    program: Program
    fields: tuple[str, ...]  # what it reads of a record, in order of the slots
    constants: tuple[Array, ...]
    place: NDArray[np.int64]  # the entries that it reads, in order of the slots, each variable in column order
    given: tuple[int, ...] = ()  # numbers of the given subexpressions

    @classmethod
    def build(cls, expression: Expression, space: Space, given: Mapping[Expression, int] | None = None) -> Lowered:
        """Lower an expression; subexpressions that are given become slots with their numbers instead of being looked into."""
        given = given or {}
        program, entries, fields, numbers = slotted(expression, given)
        starts = dict(
            zip(space.blocks, np.cumsum([0, *(b.variable.size for b in space.blocks.values())]), strict=False)
        )
        place = []
        for leaf in entries:
            if leaf in given:
                continue
            assert isinstance(leaf, Variable)
            block = space.blocks.get(leaf.name)
            if block is None or block.variable is not leaf:
                raise TemplateError(f"the variable {leaf.name!r} is not one of the template's.")
            place.append(starts[leaf.name] + np.arange(leaf.size))
        return cls(
            program,
            tuple(leaf.name for leaf in fields),
            tuple(leaf.dense for leaf in numbers),
            np.concatenate(place) if place else np.zeros(0, dtype=np.int64),
            tuple(given[leaf] for leaf in entries if leaf in given),
        )


def records_last(values: Any) -> Any:
    """Move the records, the first axis of a field's values, to the end."""
    return values if values.ndim < 2 else values.transpose((*range(1, values.ndim), 0))


def gradient(
    program: Program, numbers: Sequence[Array], entries: Array, fields: Sequence[Array], size: int
) -> tuple[Array, Array]:
    """Values, shape (size,), and gradients by the entries of the slots, shape (entries, size).

    Entries have the records last, or one column if these share them; fields have the records first.
    """
    # What leaves a function's domain becomes infinite or NaN; solvers refuse it.
    with np.errstate(all="ignore"):
        found = program.leaves(program.cut(entries), [records_last(field) for field in fields], numbers)
        for node in program.order:
            if node not in found:
                assert node.atom is not None
                found[node] = node.atom.value(np, node, *(found[argument] for argument in node.args))
        known = slopes(program.order, found, program.root)
    parts = [np.broadcast_to(known.get(slot, 0.0), (*slot.shape, size)) for slot in program.entries]
    whole = program.joined(parts) if parts else np.zeros((0, size))
    return np.broadcast_to(np.reshape(found[program.root], -1), (size,)), whole


def hessian_product(
    program: Program, numbers: Sequence[Array], entries: Array, along: Array, fields: Sequence[Array], size: int
) -> Array:
    """Hessians by the entries of the slots times directions, shape (entries, size)."""
    moved = gradient(program, numbers, entries + 1j * STEP * along, fields, size)[1]
    return np.imag(moved) / STEP


def table(program: Program, entries: Any, fields: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """Evaluate a program by JAX on a table of entries with records last, and fields with records first."""
    import jax.numpy as xp

    found = program.leaves(program.cut(entries), [records_last(f) for f in fields], [xp.asarray(n) for n in numbers])
    for node in program.order:
        if node not in found:
            assert node.atom is not None
            found[node] = node.atom.value(xp, node, *(found[argument] for argument in node.args))
    return found[program.root]


def lower(expression: Expression, space: Space) -> Callable[[Any, Mapping[str, Any]], Any]:
    """Turn an expression for one record into a JAX function of coordinates and fields; call it within `double_precision`."""
    lowered = Lowered.build(expression, space)
    lift = entries_matrix(space).tocoo()

    def evaluate(theta: Any, values: Mapping[str, Any]) -> Any:
        import jax.numpy as xp

        rows, columns = lift.coords
        entries = xp.zeros(lift.shape[0]).at[rows].add(lift.data * xp.asarray(theta)[columns])
        fields = [xp.asarray(values[name])[None] for name in lowered.fields]
        found = table(lowered.program, entries[lowered.place][:, None], fields, lowered.constants)
        return found.reshape(lowered.program.root.shape)

    return evaluate


class LoweredTemplate:
    """What is needed of a template to evaluate it, whatever the records: made once."""

    def __init__(self, template: Template, space: Space) -> None:
        self._losses, self._space, self._regularizer = template.losses, space, template.regularizer
        self._public: dict[Expression, Lowered | Quadratic] = {}

    @cached_property
    def losses(self) -> tuple[Lowered, ...]:
        """The loss of each combination of discrete fields."""
        return tuple(Lowered.build(loss, self._space) for loss in self._losses)

    def public(self, part: Expression | None = None) -> Lowered | Quadratic:
        """Return the regularizer, or a part of it."""
        part = self._regularizer if part is None else part
        if part not in self._public:
            self._public[part] = quadratic(part, self._space) or Lowered.build(part, self._space)
        return self._public[part]

    @cached_property
    def lift(self) -> sp.csr_array:
        return entries_matrix(self._space)


_LOWERED: WeakKeyDictionary[Template, tuple[tuple[Variable, ...], LoweredTemplate]] = WeakKeyDictionary()


def lower_template(template: Template, space: Space) -> LoweredTemplate:
    """Lower the losses and the regularizer of a template, once."""
    order = tuple(block.variable for block in space.blocks.values())
    known = _LOWERED.get(template)
    if known is None or known[0] != order:
        known = _LOWERED[template] = (order, LoweredTemplate(template, space))
    return known[1]
