"""Programs and their derivatives in NumPy, for many records at once: each atom says what its value and its slopes are.

Arrays have the records as their last axis, of length 1 where all share a value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.evaluate import STEP, slopes
from dpconvex.core.expression import Expression
from dpconvex.evaluation.programs import Program, records_last

Array = NDArray[np.float64]

# What a processor computes at once, at most: records are gone through in multiples of it (`dpconvex.evaluation.clipping`).
LANES = 64
# So many entries of leaves are gone through at a time: what is made of them stays in a cache.
CACHED = 2**15


def gradient(program: Program, leaves: Mapping[Expression, Any], size: int) -> tuple[Array, Array]:
    """Values and gradients by what stands in the slots, shapes (size,) and (entries, size)."""
    # What leaves a function's domain becomes infinite or NaN; solvers refuse it.
    with np.errstate(all="ignore"):
        found = dict(leaves)
        for node in program.order:
            if node not in found:
                assert node.atom is not None
                found[node] = node.atom.value(np, node, *(found[argument] for argument in node.args))
        known = slopes(program.order, found, program.root)
        parts = whole(program, [known.get(slot) for slot in program.entries], size)
    return np.broadcast_to(np.reshape(found[program.root], -1), (size,)), parts


def hessian_product(program: Program, leaves: Mapping[Expression, Any], along: Sequence[Any], size: int) -> Array:
    """Hessians by what stands in the slots times directions, shape (entries, size)."""
    moving = {slot: leaves[slot] + 1j * STEP * move for slot, move in zip(program.entries, along, strict=True)}
    return np.imag(gradient(program, {**leaves, **moving}, size)[1]) / STEP


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

    def gradient(self, leaves: Array, fields: Sequence[Array], size: int) -> tuple[Array, Array]:
        """Values, shape (size,), and slopes by the leaves; leaves have one column if the records share them."""
        return self._pieces(lambda slots, _, count: gradient(self.program, slots, count), leaves, fields, size)

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
