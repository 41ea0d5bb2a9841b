"""Functions of the leaves of a loss, over many records at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.expression import Expression
from dpconvex.evaluation.derivatives import gradient, hessian_product, is_scalar, value_and_slope, values
from dpconvex.evaluation.programs import Program, records_last

Array = NDArray[np.float64]

# So many entries of leaves are gone through at a time in NumPy: what is made of them stays in a cache.
CACHED = 2**15


@dataclass(frozen=True, eq=False)
class OuterFunction:
    """A program with its numbers.

    Leaves are tables with a row for each entry and the records last; fields have the records first.
    """

    program: Program
    numbers: tuple[Array, ...]

    @cached_property
    def entries(self) -> int:
        return sum(slot.size for slot in self.program.entries)

    @cached_property
    def is_scalar(self) -> bool:
        """Whether it is one of numbers, which takes half the time where these depend on one of them."""
        return self.entries > 0 and is_scalar(self.program)

    def along_one(self, given: Sequence[tuple[Array, Any]], fields: Sequence[Array]) -> tuple[Array, Array]:
        """Values, and slopes by the one number for each record that all leaves depend on, if `is_scalar`."""
        return value_and_slope(self.program, given, fields, self.numbers)

    def gradient(self, leaves: Array, fields: Sequence[Array]) -> tuple[Array, Array]:
        """Values, shape (records,), and slopes by the leaves."""
        found = [gradient(self.program, self._slots(leaves, fields, k), len(k)) for k in self._pieces(leaves)]
        return joined([value for value, _ in found]), joined([slope for _, slope in found])

    def hessian_product(self, leaves: Array, along: Array, fields: Sequence[Array]) -> Array:
        found = []
        for k in self._pieces(leaves):
            slots, moves = self._slots(leaves, fields, k), self.program.cut(along[:, k.start : k.stop])
            found.append(hessian_product(self.program, slots, moves, len(k)))
        return joined(found)

    def values(self, leaves: Array, fields: Sequence[Array]) -> Array:
        """Values, shape (records,)."""
        return joined([values(self.program, self._slots(leaves, fields, k), len(k)) for k in self._pieces(leaves)])

    def _pieces(self, leaves: Array) -> list[range]:
        count = leaves.shape[1]
        step = max(CACHED // max(self.entries, 1), 1)
        return [range(start, min(start + step, count)) for start in range(0, count, step)]

    def _slots(self, leaves: Array, fields: Sequence[Array], piece: range) -> dict[Expression, Any]:
        some = slice(piece.start, piece.stop)
        return self.program.leaves(
            self.program.cut(leaves[:, some]), [records_last(field[some]) for field in fields], self.numbers
        )


def joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
