"""Sums over the records of a batch by functions that JAX compiles, in blocks that are dealt to devices.

Compiled functions are kept by program: variables, numbers and records are arguments, so that all labels of a template and all its
fits share them.  Blocks stay on their device as far as its limit allows; the others are sent anew in every pass, while those
before them are computed.  Where a block lies changes no bits: sums of blocks are added in pairs, in their order.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.runtime import COMPILER, double_precision
from dpconvex.core.summation import PIECE, Pairwise, pairwise
from dpconvex.evaluation.devices import AHEAD, Placement, current
from dpconvex.evaluation.programs import Lowered, LoweredTemplate, Program, table
from dpconvex.language.batch import Batch
from dpconvex.language.columns import Pieces, dense

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


# Gradients of pieces that are held at a time have so many numbers.
HELD = 2**21


def padded_size(count: int) -> int:
    """Round a number of records up, by at most an eighth (at least to 8), so that few different sizes occur.

    >>> [padded_size(n) for n in (1, 9, 100, 583, 20000)]
    [8, 16, 104, 640, 20480]
    """
    step = max(8, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


@dataclass(frozen=True, eq=False)
class Compiled:
    """Sums of a program over weighted records, which come first in the fields."""

    value_and_gradient: Callable[..., Any]
    hessian_product: Callable[..., Any]


@lru_cache(maxsize=128)
def compiled(program: Program) -> Compiled:
    """Compile a program (in fact: prepare to, at its first call for each shape)."""
    import jax
    import jax.numpy as xp

    def total(entries: Any, fields: Any, weights: Any, constants: Any) -> Any:
        found = table(program, entries[:, None], fields, constants)
        return xp.sum(weights * xp.broadcast_to(xp.reshape(found, -1), (len(weights),)))

    def summed(entries: Any, fields: Any, weights: Any, constants: Any) -> Any:
        """Sum a piece with a call, and the pieces in pairs."""
        size, count = len(weights), 1
        while size // count > PIECE and size % (2 * count) == 0:
            count *= 2
        records = [array.reshape((count, size // count, *array.shape[1:])) for array in (weights, *fields)]
        of_pieces = jax.vmap(lambda w, *f: jax.value_and_grad(total)(entries, f, w, constants))
        return [pairwise(part, xp) for part in of_pieces(*records)]

    def curvature(entries: Any, direction: Any, fields: Any, weights: Any, constants: Any) -> Any:
        return jax.jvp(lambda e: jax.grad(total)(e, fields, weights, constants), (entries,), (direction,))[1]

    return Compiled(*(jax.jit(part, compiler_options=COMPILER) for part in (summed, curvature)))


@dataclass(eq=False)
class Block:
    """Records with one combination of discrete fields, on one device; `sent` holds them where they stay."""

    lowered: Lowered
    rows: Indices
    width: int
    device: Any = None
    sent: Any = None

    @property
    def bytes(self) -> int:
        """Size of the records and their weights."""
        return 8 * padded_size(len(self.rows)) * (self.width + 1) if self.lowered.fields else 8

    def arguments(self, columns: dict[str, Any]) -> Any:
        """Return the fields of the records and their weights on the device."""
        if self.sent is not None:
            return self.sent
        import jax

        if not self.lowered.fields:  # the loss does not read the record
            return jax.device_put(((), np.array([float(len(self.rows))])), self.device)
        # Padding repeats a record with weight zero: a value that is in the domain keeps every function finite.
        more = padded_size(len(self.rows)) - len(self.rows)
        rows = np.concatenate([self.rows, np.full(more, self.rows[0])])
        weights = np.concatenate([np.ones(len(self.rows)), np.zeros(more)])
        fields = tuple(dense(columns[name][rows]) for name in self.lowered.fields)
        return jax.device_put((fields, weights), self.device)


class DeviceEngine:
    """Sums over records by compiled functions on devices."""

    def __init__(self, lowered: LoweredTemplate, batch: Batch) -> None:
        self.lift = lowered.lift
        # Chunks can only be read from front to back, and the records of a group lie anywhere.
        self._columns = {n: np.asarray(c) if isinstance(c, Pieces) else c for n, c in batch.fields.items()}
        placement = current()
        groups = ((loss, rows) for g, loss in enumerate(lowered.losses) if len(rows := batch.rows(g)))
        self._blocks = [block for loss, rows in groups for block in self._cut(loss, rows, placement.block)]
        self._devices = placement.found() if self._blocks else []
        self._deal(placement)

    def _cut(self, loss: Lowered, rows: Indices, size: int) -> list[Block]:
        width = sum(int(np.prod(self._columns[name].shape[1:], dtype=np.int64)) for name in loss.fields)
        pieces = int(max(min(size / (8 * (width + 1) * PIECE), HELD / max(len(loss.place), 1)), 1))
        step = PIECE << (pieces.bit_length() - 1) if loss.fields else len(rows)  # a power of two of pieces
        return [Block(loss, rows[start : start + step], width) for start in range(0, len(rows), step)]

    def _deal(self, placement: Placement) -> None:
        """Give each block to a device; those that stay there are sent now."""
        for number, device in enumerate(self._devices):
            blocks, limit, used = self._blocks[number :: len(self._devices)], placement.limit(device), 0
            if sum(block.bytes for block in blocks) > limit:
                limit -= AHEAD * max(block.bytes for block in blocks)
            for block in blocks:
                block.device, used = device, used + block.bytes
                if used <= limit:
                    with double_precision():
                        block.sent = block.arguments(self._columns)

    def _sum(self, call: Callable[[Block, Any], Any]) -> tuple[float, Array]:
        """Add up a value and slopes by the entries that a block's losses read, in the order of the blocks."""
        flying: deque[tuple[Block, Any]] = deque()
        total, slope = 0.0, Pairwise(np.zeros(self.lift.shape[0]))

        def land() -> float:
            block, (value, part) = flying.popleft()
            whole = np.zeros(self.lift.shape[0])
            whole[block.lowered.place] = np.asarray(part)
            slope.add(whole)
            return float(value)

        with double_precision():
            for block in self._blocks:
                if len(flying) == AHEAD * len(self._devices):
                    total += land()
                flying.append((block, call(block, block.arguments(self._columns))))
            while flying:
                total += land()
        return total, np.asarray(self.lift.T @ slope.value)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient, shape (dim,)."""
        entries = np.asarray(self.lift @ theta)

        def call(block: Block, records: Any) -> Any:
            own = block.lowered
            return compiled(own.program).value_and_gradient(entries[own.place], *records, own.constants)

        return self._sum(call)

    def hessian_product(self, theta: Array, direction: Array) -> Array:
        """Hessian of the sum of the losses times a direction, shape (dim,)."""
        entries, along = np.asarray(self.lift @ theta), np.asarray(self.lift @ direction)

        def call(block: Block, records: Any) -> Any:
            own = block.lowered
            found = compiled(own.program).hessian_product(entries[own.place], along[own.place], *records, own.constants)
            return 0.0, found

        return self._sum(call)[1]
