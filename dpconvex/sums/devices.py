"""Sums over records by functions that JAX compiles, in blocks that are dealt to devices, and how much may lie on these."""

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.data.batch import Batch, PartitionedBatch
from dpconvex.data.columns import Stored, dense
from dpconvex.errors import TemplateError
from dpconvex.sums.engine import LARGE, numbers_in
from dpconvex.sums.programs import Lowered, Program
from dpconvex.util.arguments import COUNT
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import COMPILER, double_precision
from dpconvex.util.summation import PIECE, Pairwise, pairwise

BLOCK = 2**26  # Bytes of a block of records, unless others are asked for
AHEAD = 2  # Blocks on their way for each device: one that is computed, and the next
# Records take at most this share of a device's memory, unless a limit is given: what is made of a block lies there too.
SHARE = 0.5
HELD = 2**21  # Gradients of pieces that are held at a time have so many numbers
# Platforms whose arithmetic in double precision is IEEE's, which bounds on rounding rest on.
EXACT = ("cpu", "gpu", "cuda", "rocm")


@dataclass(frozen=True)
class Placement:
    """Devices that the user asked for; by default all."""

    count: int | None = None
    memory: int | None = None
    block: int = BLOCK
    asked: bool = False

    def found(self) -> list[Any]:
        """Return the devices, or say what is wrong with them."""
        with double_precision():
            import jax
        there = jax.devices()
        if self.count is not None and self.count > len(there):
            raise TemplateError(f"devices: {self.count} were asked for, and JAX finds {len(there)}.")
        if there[0].platform not in EXACT:
            why = f"{there[0].device_kind} has no double precision of IEEE 754, which bounds on rounding rest on"
            raise TemplateError(f"devices: {why}; use a GPU or processors (JAX_PLATFORMS=cpu).")
        return there[: self.count]

    def check(self, scalars: int) -> None:
        """Refuse what no fit on records of so many scalars could go by, whatever they are; before anything is paid."""
        if not self.asked:
            return
        self.found()
        block = max(self.block, 8 * PIECE * (scalars + 1))
        if self.memory is not None and self.memory < AHEAD * block:
            why = f"a block of up to {block} bytes is sent while the last one is used, and two of them do not fit into"
            limit = f"the memory limit of {self.memory} bytes; raise `memory`, or lower `block`"
            raise TemplateError(f"devices: {why} {limit}.")

    def limit(self, device: Any) -> float:
        """Return how many bytes of records may lie on a device; a limit above what it has is none."""
        most = float((device.memory_stats() or {}).get("bytes_limit", np.inf))
        return self.memory if self.memory is not None and self.memory <= most else SHARE * most


EVERYWHERE = Placement()
_CURRENT: ContextVar[Placement] = ContextVar("devices", default=EVERYWHERE)
current = _CURRENT.get


@contextmanager
def devices(*, count: int | None = None, memory: int | None = None, block: int = BLOCK) -> Iterator[None]:
    """Compile sums over dense columns within this context, and run them on JAX's devices (docs/performance.md).

    Without this context, sums run on all GPUs if JAX's default device is a GPU and the data are not small.  Records are
    distributed to the devices in blocks.  Blocks within the memory limit are sent once and stay.  The others are sent in every
    pass, while earlier blocks are computed.  Workers of a cluster, and records in partitions, use processors.

    Parameters
    ----------
    count : int, optional
        Number of ``jax.devices()``, from the first; by default all.
    memory : int, optional
        Bytes of records on each device at a time; at least those of two blocks.  Computing on a block needs further memory.  By
        default half of a device's memory; unlimited on processors.
    block : int
        Bytes of records in a block.  Only this decides in which order records are summed: for one number, all
        counts of equal devices and all memory limits give the same bits.

    Raises
    ------
    TemplateError
        If an option is invalid.  A fit raises it before any charge if JAX is not installed, finds fewer devices or none with
        double precision, or if the memory limit is less than two blocks.

    Examples
    --------
    >>> import dpconvex as dp
    >>> learner = dp.load("logistic_regression", features=2)
    >>> with dp.devices(memory=2**30):
    ...     release = dp.solve(learner, {"x": [[1.0, 0.0], [0.0, 1.0]] * 50, "y": [1, -1] * 50}, dp.Privacy(1.0))
    >>> release["w"].shape
    (2,)
    """
    COUNT.or_none.check("devices", count=count, memory=memory)
    COUNT.check("devices", block=block)
    token = _CURRENT.set(Placement(count, memory, block, asked=True))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def on_devices(batch: Batch) -> bool:
    """Say whether devices sum over the records: that was asked for, or there is a GPU and there are many; all are dense."""
    if isinstance(batch, PartitionedBatch) or not batch.size:
        return False
    dense = all(isinstance(column, np.ndarray | Stored) for column in batch.fields.values())
    if current().asked or not dense or numbers_in(batch) < LARGE:
        return dense and current().asked
    if "jax" not in sys.modules and not find_spec("jax_plugins"):  # JAX would find processors alone, after a second
        return False
    try:
        import jax
    except ImportError:
        return False
    return jax.default_backend() in EXACT[1:]


def padded_size(count: int) -> int:
    """Round a number of records up to whole pieces, by at most an eighth of many, so that few different sizes occur."""
    step = max(PIECE, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


@lru_cache(maxsize=128)
def compiled(program: Program) -> Callable[..., Any]:
    """Compile the value and gradient of a program's sum over weighted records: in pieces, and these in pairs."""
    import jax
    import jax.numpy as xp

    def total(entries: Any, constants: Any, weights: Any, *fields: Any) -> Any:
        found = program.values(xp, entries[:, None], fields, constants)[program.root]
        return xp.sum(weights * xp.reshape(found, -1))

    def summed(entries: Any, constants: Any, records: Any) -> Any:
        pieces = [array.reshape((-1, PIECE, *array.shape[1:])) for array in records]
        of_pieces = jax.vmap(lambda *piece: jax.value_and_grad(total)(entries, constants, *piece))
        return [pairwise(part, xp) for part in of_pieces(*pieces)]

    return jax.jit(summed, compiler_options=COMPILER)


class DeviceEngine:
    """Sums over records by compiled functions on devices, in blocks of records of one loss."""

    def __init__(self, losses: tuple[Lowered, ...], lift: sp.csr_array, batch: Batch) -> None:
        self.losses, self.lift, self._columns, placement = losses, lift, batch.fields, current()
        self._blocks: list[tuple[Lowered, Indices]] = []
        sizes = []
        for group, loss in enumerate(losses):
            width = 1 + sum(int(np.prod(self._columns[name].shape[1:], dtype=np.int64)) for name in loss.fields)
            pieces = int(max(min(placement.block / (8 * width * PIECE), HELD / max(len(loss.place), 1)), 1))
            step, rows = PIECE << (pieces.bit_length() - 1), batch.rows(group)  # a power of two of pieces
            parts = [rows[start : start + step] for start in range(0, len(rows), step)]
            self._blocks += [(loss, part) for part in parts]
            sizes += [8 * padded_size(len(part)) * width for part in parts]
        self._devices = placement.found()
        self._sent: dict[int, Any] = {}  # what stays, by the number of its block
        with double_precision():
            for first, device in enumerate(self._devices):
                own, used = range(first, len(sizes), len(self._devices)), 0
                limit = placement.limit(device)
                if sum(sizes[k] for k in own) > limit:
                    limit -= AHEAD * max(sizes[k] for k in own)
                for k in own:
                    used += sizes[k]
                    if used <= limit:
                        self._sent[k] = self._records(k)

    def _records(self, number: int) -> Any:
        """Return the weights of the records of a block and their fields, on its device."""
        if number in self._sent:
            return self._sent[number]
        import jax

        loss, rows = self._blocks[number]
        # Padding repeats a record with weight zero: a value that is in the domain keeps every function finite.
        more = padded_size(len(rows)) - len(rows)
        rows, weights = np.pad(rows, (0, more), "edge"), np.pad(np.ones(len(rows)), (0, more))
        values = (weights, *(dense(self._columns[name][rows]) for name in loss.fields))
        return jax.device_put(values, self._devices[number % len(self._devices)])

    def gradient_and_value(self, theta: Array) -> Array:
        """Gradient of the sum of the losses, and the sum, shape (dim + 1,): blocks are added in their order."""
        entries, total = np.asarray(self.lift @ theta), Pairwise(np.zeros(self.lift.shape[0] + 1))
        flying: deque[tuple[Lowered, Any]] = deque()

        def land() -> None:
            own, (value, slope) = flying.popleft()
            whole = np.zeros(len(entries) + 1)
            whole[own.place], whole[-1] = np.asarray(slope), np.asarray(value)
            total.add(whole)

        with double_precision():
            for number, (own, _) in enumerate(self._blocks):
                if len(flying) == AHEAD * len(self._devices):
                    land()
                found = compiled(own.program)(entries[own.place], own.constants, self._records(number))
                flying.append((own, found))
            while flying:
                land()
        return np.append(self.lift.T @ total.value[:-1], total.value[-1])
