"""Programs and their derivatives in NumPy, for many records at once: each atom says what its value and its slopes are.

Arrays have the records as their last axis, of length 1 where all share a value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.dual_evaluation import applied, pulled, together
from dpconvex.core.dual_numbers import Dual, plain, tangent
from dpconvex.core.expression import Expression
from dpconvex.evaluation.programs import Program, records_last

Array = NDArray[np.float64]

# What a processor computes at once, at most: records are gone through in multiples of it (`dpconvex.evaluation.clipping`).
LANES = 64
# So many entries of leaves are gone through at a time: what is made of them stays in a cache.
CACHED = 2**15


def computed(program: Program, leaves: Mapping[Expression, Any]) -> dict[Expression, Any]:
    """Return the value of every node."""
    found = dict(leaves)
    for node in program.order:
        if node not in found:
            found[node] = applied(node, [found[argument] for argument in node.args])
    return found


def slopes(program: Program, found: Mapping[Expression, Any]) -> list[Any]:
    """Return the slopes of the sum of a program's entries by what stands in the slots."""
    known: dict[Expression, Any] = {program.root: np.ones((*program.root.shape, 1))}
    for node in reversed(program.order):
        slope = known.get(node)
        if slope is None or not node.args:
            continue
        parts = pulled(node, found[node], slope, [found[argument] for argument in node.args])
        for argument, part in zip(node.args, parts, strict=True):
            if argument.variables:
                known[argument] = together(known.get(argument), part)
    return [known.get(slot) for slot in program.entries]


def gradient(program: Program, leaves: Mapping[Expression, Any], size: int) -> tuple[Array, Array]:
    """Values and gradients by what stands in the slots, shapes (size,) and (entries, size)."""
    # What leaves a function's domain becomes infinite or NaN; solvers refuse it.
    with np.errstate(all="ignore"):
        found = computed(program, leaves)
        parts = slopes(program, found)
    value = np.broadcast_to(np.reshape(found[program.root], -1), (size,))
    return value, whole(program, parts, size)


def hessian_product(program: Program, leaves: Mapping[Expression, Any], along: Sequence[Any], size: int) -> Array:
    """Hessians by what stands in the slots times directions, shape (entries, size)."""
    moving = {slot: Dual(leaves[slot], move) for slot, move in zip(program.entries, along, strict=True)}
    with np.errstate(all="ignore"):
        parts = slopes(program, computed(program, {**leaves, **moving}))
        return whole(program, [part.whole if isinstance(part, Dual) else None for part in parts], size)


def whole(program: Program, parts: Sequence[Any], size: int) -> Array:
    """Join the slots' slopes to a table with a row for each entry."""
    full = [
        np.broadcast_to(0.0 if part is None else part, (*slot.shape, size))
        for slot, part in zip(program.entries, parts, strict=True)
    ]
    return program.joined(full) if full else np.zeros((0, size))


@dataclass(frozen=True, eq=False)
class OuterFunction:
    """A program with its numbers, of leaves with a row for each entry and the records last; fields have the records first."""

    program: Program
    numbers: tuple[Array, ...]

    @cached_property
    def entries(self) -> int:
        return sum(slot.size for slot in self.program.entries)

    @cached_property
    def is_scalar(self) -> bool:
        """Whether it makes nothing but numbers of one number, which dual numbers do in half the time."""
        return self.entries == 1 and all(node.shape == () for node in self.program.order)

    def gradient(self, leaves: Array, fields: Sequence[Array], size: int) -> tuple[Array, Array]:
        """Values, shape (size,), and slopes by the leaves; leaves have one column if the records share them."""
        if not self.is_scalar or leaves.shape[1] < size:
            return self._pieces(lambda slots, _, count: gradient(self.program, slots, count), leaves, fields, size)
        leaf = Dual(self.program.cut(leaves)[0], 1.0)
        with np.errstate(all="ignore"):
            slots = self.program.leaves([leaf], [records_last(field) for field in fields], self.numbers)
            found = computed(self.program, slots)[self.program.root]
        return np.broadcast_to(plain(found), (size,)), np.broadcast_to(tangent(found), leaves.shape)

    def hessian_product(self, leaves: Array, along: Array, fields: Sequence[Array], size: int) -> Array:
        def moved(slots: dict[Expression, Any], some: slice, count: int) -> tuple[Array]:
            moves = self.program.cut(along if along.shape[1] < size else along[:, some])
            return (hessian_product(self.program, slots, moves, count),)

        return self._pieces(moved, leaves, fields, size)[0]

    def _pieces(
        self, function: Callable[..., tuple[Array, ...]], leaves: Array, fields: Sequence[Array], size: int
    ) -> Any:
        """Call a function for some records at a time, and join what it returns."""
        step = max(CACHED // max(self.entries, 1) // LANES, 1) * LANES
        parts = []
        for some in (slice(start, min(start + step, size)) for start in range(0, size, step)):
            entries = self.program.cut(leaves if leaves.shape[1] < size else leaves[:, some])
            slots = self.program.leaves(entries, [records_last(field[some]) for field in fields], self.numbers)
            parts.append(function(slots, some, some.stop - some.start))
        return parts[0] if len(parts) == 1 else tuple(np.concatenate(p, axis=-1) for p in zip(*parts, strict=True))
