"""Sums over the records of a batch by compiled functions, in blocks that are dealt to devices.

Blocks stay on their device as far as its limit allows; the others are sent anew in every pass, while those before them are
computed.  Where a block lies changes no bits: a block is summed in pieces and pairs, and sums of blocks are added in their
order, with what rounding takes from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.double_precision import double_precision
from dpconvex.core.parameter_space import Space
from dpconvex.core.summation import Compensated
from dpconvex.errors import TemplateError
from dpconvex.evaluation.block_engine import padded_size
from dpconvex.evaluation.compiled import Compiled, compiled
from dpconvex.evaluation.compiled_summation import records_at_once
from dpconvex.evaluation.devices import AHEAD, Placement, current
from dpconvex.evaluation.lowered_template import LoweredTemplate
from dpconvex.evaluation.programs import Lowered
from dpconvex.language.batch import Batch
from dpconvex.language.columns import Pieces, dense

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(eq=False)
class Block:
    """Records with one combination of discrete fields, on one device; `sent` holds them where they stay."""

    lowered: Lowered
    functions: Compiled
    rows: Indices
    padded: int
    width: int
    device: Any = None
    sent: Any = None

    @property
    def bytes(self) -> int:
        """Size of the records and their weights."""
        return 8 * self.padded * (self.width + 1)

    def read(self, columns: dict[str, Any]) -> tuple[tuple[Array, ...], Array]:
        """Return the fields of the records and their weights, on the processor."""
        if not self.lowered.fields:  # the loss does not read the record
            return (), np.array([float(len(self.rows))])
        # Padding repeats a record with weight zero: a value that is in the domain keeps every function finite.
        more = self.padded - len(self.rows)
        rows: Any = np.concatenate([self.rows, np.full(more, self.rows[0])])
        if rows[-1] - rows[0] == len(rows) - 1 and not more:  # side by side, and need not be gathered
            rows = slice(rows[0], rows[-1] + 1)
        weights = np.concatenate([np.ones(len(self.rows)), np.zeros(more)])
        return tuple(dense(columns[name][rows]) for name in self.lowered.fields), weights

    def arguments(self, columns: dict[str, Any]) -> Any:
        """Return the fields and weights on the device."""
        if self.sent is not None:
            return self.sent
        import jax

        return jax.device_put(self.read(columns), self.device)


class DeviceEngine:
    """Sums over records by compiled functions on devices."""

    def __init__(self, lowered: LoweredTemplate, space: Space, batch: Batch) -> None:
        self.lift = lowered.lift
        self.space = space
        self.size = batch.size
        # Chunks can only be read from front to back, and the records of a group lie anywhere.
        self._columns = {n: np.asarray(c) if isinstance(c, Pieces) else c for n, c in batch.fields.items()}
        placement = current()
        groups = ((loss, rows) for g, loss in enumerate(lowered.losses) if len(rows := batch.rows(g)))
        self._blocks = [block for loss, rows in groups for block in self._cut(loss, rows, placement.block)]
        self._devices = placement.found() if self._blocks else []
        self._deal(placement)

    def _cut(self, loss: Lowered, rows: Indices, size: int) -> list[Block]:
        functions = compiled(loss.program)
        if not loss.fields:
            return [Block(loss, functions, rows, 1, 0)]
        width = sum(int(np.prod(self._columns[name].shape[1:], dtype=np.int64)) for name in loss.fields)
        step = records_at_once(size / (8 * (width + 1)), len(loss.place))
        parts = (rows[start : start + step] for start in range(0, len(rows), step))
        return [Block(loss, functions, part, padded_size(len(part)), width) for part in parts]

    def _deal(self, placement: Placement) -> None:
        """Give each block to a device; those that stay there are sent now."""
        for number, device in enumerate(self._devices):
            blocks, limit, used = self._blocks[number :: len(self._devices)], placement.limit(device), 0
            if sum(block.bytes for block in blocks) > limit:
                limit -= AHEAD * max(block.bytes for block in blocks)
            if limit < 0:
                raise TemplateError(
                    f"devices: blocks of {max(b.bytes for b in blocks)} bytes are sent while the last one is used, and two of "
                    f"them do not fit into the limit of {placement.limit(device):.0f} bytes; raise `memory`, or lower `block`."
                )
            for block in blocks:
                block.device, used = device, used + block.bytes
                if used <= limit:
                    with double_precision():
                        block.sent = block.arguments(self._columns)

    def _each(self, call: Callable[[Block, Any], Any], take: Callable[[Block, Any], None]) -> None:
        """Call a function of each block and its fields and weights; take what comes back in the order of the blocks."""
        flying: deque[tuple[Block, Any]] = deque()

        def land() -> None:
            block, found = flying.popleft()
            take(block, [np.asarray(part) for part in found])

        with double_precision():
            for block in self._blocks:
                if len(flying) == AHEAD * len(self._devices):
                    land()
                flying.append((block, call(block, block.arguments(self._columns))))
            while flying:
                land()

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient, shape (dim,)."""
        entries = self._entries(theta)
        total, slope = Compensated(0.0), Compensated(np.zeros(len(entries)))

        def call(block: Block, records: Any) -> Any:
            return block.functions.value_and_gradient(entries[block.lowered.place], *records, block.lowered.constants)

        def take(block: Block, found: list[Array]) -> None:
            total.add(float(found[0]))
            slope.add(self._placed(block, found[1]))

        self._each(call, take)
        return float(total.value), np.asarray(self.lift.T @ slope.value)

    def hessian_product(self, theta: Array, direction: Array) -> Array:
        """Hessian of the sum of the losses times a direction, shape (dim,)."""
        entries, along = self._entries(theta), self._entries(direction)
        total = Compensated(np.zeros(len(entries)))

        def call(block: Block, records: Any) -> Any:
            place = block.lowered.place
            found = block.functions.hessian_product(entries[place], along[place], *records, block.lowered.constants)
            return (found,)

        self._each(call, lambda block, found: total.add(self._placed(block, found[0])))
        return np.asarray(self.lift.T @ total.value)

    def record_values(self, theta: Array) -> Array:
        """Loss of each record, shape (n,)."""
        entries, values = self._entries(theta), np.empty(self.size)

        def call(block: Block, records: Any) -> Any:
            return (block.functions.record_values(entries[block.lowered.place], *records, block.lowered.constants),)

        def take(block: Block, found: list[Array]) -> None:
            values[block.rows] = found[0][: len(block.rows)] if block.lowered.fields else found[0][0]

        self._each(call, take)
        return values

    def _entries(self, theta: Array) -> Array:
        return np.asarray(self.lift @ theta)

    def _placed(self, block: Block, part: Array) -> Array:
        """Put a sum where the entries are that a block's losses read."""
        whole = np.zeros(self.lift.shape[0])
        whole[block.lowered.place] = part
        return whole
