"""Columns of records that are not plain arrays: sparse, memory-mapped, single precision, or in pieces larger than memory.

A column of a validated batch has a shape ``(n, *shape)`` and is read in blocks of consecutive records, in double precision and
inside its domain.  What is small is copied once, into memory that nobody can write to.  Of what is large, or comes in pieces,
nothing here ever holds more than a block: that is copied and checked whenever it is read, because its owner may change it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.read_only import frozen
from dpconvex.errors import DomainError
from dpconvex.language.file_rows import FileRows

Array = NDArray[np.float64]

# Records that are checked at once are about so many bytes: they should fit into a cache.
BLOCK_BYTES = 2**21
# Numbers whose bits are summed up at once.
HASHED = 2**15


class Chunks:
    """A column of the data in pieces, so that all of it need never be in memory.

    Parameters
    ----------
    source : sequence of array_like, or callable
        The pieces, each with its records along the first axis; or a function without arguments that returns a fresh
        iterable over them, which is called once for each pass over the data.

    Examples
    --------
    >>> halves = Chunks(lambda: (np.full((2, 3), value) for value in (0.0, 1.0)))
    >>> len(halves)
    4
    """

    def __init__(self, source: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        self.source = source
        once = isinstance(source, Iterator) and not callable(source)
        if once or isinstance(source, type) or not (callable(source) or is_series(source)):
            why = (
                "an iterator can be read only once, and a fit reads the data many times" if once else f"not {source!r}"
            )
            raise DomainError(
                f"Chunks: pass a list of arrays, or a function that returns a fresh iterator over them; {why}."
            )

    def __iter__(self) -> Iterator[Any]:
        pieces = self.source() if callable(self.source) else self.source
        if not is_series(pieces):
            raise DomainError(f"Chunks: the function returned {pieces!r}; it must return an iterator over arrays.")
        yield from pieces

    @cached_property
    def _seen(self) -> tuple[list[tuple[int, tuple[int, ...] | None, Any]], int]:
        found, length = dict[Any, Any](), 0
        for number, piece in enumerate(self):
            shape, kind = form_of(piece)
            found.setdefault((shape and shape[1:], kind), (number, shape, kind))
            length += records_of(piece)
        return list(found.values()), length

    @property
    def forms(self) -> list[tuple[int, tuple[int, ...] | None, Any]]:
        """Number, shape and type of the first piece of each kind; they are read once for this, as they are to be counted."""
        return self._seen[0]

    def __len__(self) -> int:
        return self._seen[1]


@dataclass(frozen=True, eq=False)
class Stored:
    """Rows of an array, or of what reads like one, that stays as it is: each block passes a `Gate` whenever it is read."""

    array: Any
    gate: Any
    index: NDArray[np.int64] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.array.shape[1:])

    def __len__(self) -> int:
        return len(self.array if self.index is None else self.index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return self[:].astype(dtype or float, copy=False)

    def __getitem__(self, rows: Any) -> Array:
        if self.index is not None:
            return self.gate(self.array[self.index[rows]])
        late = isinstance(self.array, FileRows) and isinstance(rows, slice)
        return self.gate(self.array.part(rows) if late else self.array[rows])


@dataclass(frozen=True, eq=False)
class Turned:
    """Records of a shape ``(n, *shape)`` that a function makes of those of a column, each by itself, whenever they are read."""

    column: Any
    function: Callable[[Any], Any]
    shape: tuple[int, ...]

    dtype = np.dtype(float)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        return self.function(self.column[rows])


class Pieces:
    """A validated `Chunks` column: it can only be read from front to back, and is checked whenever it is."""

    def __init__(self, chunks: Chunks, shape: tuple[int, ...], gate: Any) -> None:
        self.chunks = chunks
        self.shape = shape
        self.gate = gate
        self._bits: int | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        parts = list(self.blocks(max(len(self), 1))) or [np.zeros(self.shape)]
        return np.concatenate(parts, axis=0).astype(dtype or float, copy=False)

    def __getitem__(self, rows: Any) -> Array:
        return np.asarray(np.asarray(self)[rows])

    def blocks(self, step: int) -> Iterator[Array]:
        """Yield blocks of `step` records, the last one shorter."""
        held = np.zeros((0, *self.shape[1:]))
        seen = bits = 0
        for rows in self._let_in(step):
            seen, bits = seen + len(rows), (bits + bits_of(rows, seen)) % 2**64
            if seen > len(self):
                break
            held = np.concatenate([held, rows]) if len(held) else rows
            if len(held) >= step:
                yield held[:step]
                held = held[step:]
        if seen != len(self):
            more = f"more than {len(self)}" if seen > len(self) else str(seen)
            raise DomainError(f"the chunks hold {more} records, and held {len(self)} when they were checked.")
        if self._bits not in (None, bits):
            raise DomainError("the chunks hold other records than before; data must not change during a fit.")
        self._bits = bits
        if len(held):
            yield held

    def _let_in(self, step: int) -> Iterator[Array]:
        for piece in self.chunks:
            values = self.gate.opened(piece)
            yield from (self.gate(values[start : start + step]) for start in range(0, len(values), step))


def bits_of(column: Any, first: int = 0, field: int = 0) -> int:
    """Return the sum, modulo 2^64, of numbers in memory, as bits, each times pseudo-random numbers of its place and its field.

    Other numbers have another sum, and so have the same in another order; sums of rows, of which the first is `first`, add up
    in any order.  What is read whenever it is needed counts as 0.
    """
    if sp.issparse(column):
        parts = (column.data, column.indices, column.indptr)
        return sum(bits_of(part, 0, 3 * field + k) for k, part in enumerate(parts))
    array = column.array if isinstance(column, Stored) else column
    if type(array) is not np.ndarray or array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        return 0
    bits = np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")
    total, start, within = 0, *divmod(first * int(np.prod(array.shape[1:])), HASHED)
    tables = np.random.PCG64(field).advance(HASHED + start).random_raw((within + len(bits)) // HASHED + 1)
    weights, mixed = multipliers(), np.empty(min(len(bits), HASHED), np.uint64)
    for k, weight in enumerate(tables.tolist()):
        low, high = max(k * HASHED - within, 0), (k + 1) * HASHED - within
        some = bits[low:high].astype(np.uint64, copy=False)
        out = np.right_shift(some, 32, out=mixed[: len(some)])
        out ^= some  # of a product modulo 2^64, the bit of a sign is but one
        total += weight * int(out @ weights[low + within - k * HASHED :][: len(some)])
    return total % 2**64


@cache
def multipliers() -> NDArray[np.uint64]:
    return np.random.PCG64(0).random_raw(HASHED)


def form_of(piece: Any) -> tuple[tuple[int, ...] | None, Any]:
    """Return the shape of a piece and its type; none of what cannot be made an array."""
    try:
        array = np.zeros(()) if sp.issparse(piece) else np.asarray(piece)
    except Exception:  # what it is, is said when it is read
        return None, None
    return array.shape, array.dtype


def is_series(pieces: Any) -> bool:
    single = isinstance(pieces, str | bytes) or sp.issparse(pieces) or getattr(pieces, "ndim", 1) == 0
    return isinstance(pieces, Iterable) and not single


def dense(block: Any) -> NDArray[Any]:
    return np.asarray(block.toarray() if sp.issparse(block) else block)


def records_of(data: Any) -> int:
    """Number of records in a column, of whatever kind; 0 for what is no column."""
    if sp.issparse(data):
        return int(data.shape[0])
    try:
        return len(data)
    except TypeError:
        return 0


def blocks(column: Any, step: int) -> Iterator[Any]:
    """Yield a validated column in blocks of `step` records: arrays, or CSR matrices if the column is one."""
    return (read() for read in readers(column, step))


def readers(column: Any, step: int) -> Iterator[Callable[[], Any]]:
    """Yield functions that return the blocks of `blocks`, and may be called by several threads, in any order."""
    if isinstance(column, Pieces):  # can only be read from front to back
        yield from (partial(itself, block) for block in column.blocks(step))
        return
    size = records_of(column)
    if size <= step and isinstance(column, np.ndarray | sp.csr_array):
        yield partial(itself, column)
        return
    for start in range(0, size, step):
        yield partial(part, column, start, min(start + step, size))


def chosen(column: Any, index: NDArray[np.int64]) -> Any:
    """Return some records of a validated column; those that stay where they are, stay there."""
    if isinstance(column, Stored):
        return Stored(column.array, column.gate, index if column.index is None else column.index[index])
    rows = column[index]
    return frozen(rows) if isinstance(rows, np.ndarray) else rows


def itself(block: Any) -> Any:
    return block


def part(column: Any, start: int, stop: int) -> Any:
    """Consecutive records; of a CSR matrix without a search through its indices."""
    if not sp.issparse(column):
        return column[start:stop]
    low, high = column.indptr[start], column.indptr[stop]
    index = (column.data[low:high], column.indices[low:high], column.indptr[start : stop + 1] - low)
    return sp.csr_array(index, shape=(stop - start, column.shape[1]), copy=False)


def flattened(block: Any) -> Any:
    """Return a block's records as rows of scalars, matrices in column order."""
    if sp.issparse(block):
        return block
    values = np.asarray(block)
    if values.ndim == 2:
        return values
    return values.transpose(0, *range(values.ndim - 1, 0, -1)).reshape(len(values), -1)
