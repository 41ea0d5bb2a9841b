"""Columns of records that are not plain arrays: sparse, memory-mapped, in files, or in pieces larger than memory.

A column of a validated batch has a shape ``(n, *shape)`` and is read in blocks of consecutive records, in double precision and
inside its domain.  Of what is large, or comes in pieces, nothing here ever holds more than a block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from os import PathLike, fspath, fstat
from os.path import abspath, exists, isfile
from typing import Any
from zlib import crc32

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.arrays import Array
from dpconvex.core.runtime import frozen
from dpconvex.errors import DomainError

# Records that are checked at once are about so many bytes: they should fit into a cache.
BLOCK_BYTES = 2**21


class Chunks:
    """A column of the data in pieces, so that all of it need never be in memory.

    Parameters
    ----------
    source : sequence of array_like, or callable
        The pieces, each with its records along the first axis; or a function without arguments that returns a fresh
        iterable over them for each pass over the data.

    Examples
    --------
    >>> halves = Chunks(lambda: (np.full((2, 3), value) for value in (0.0, 1.0)))
    >>> len(halves)
    4
    """

    def __init__(self, source: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        self.source = source
        again = callable(source) or (is_series(source) and not isinstance(source, Iterator))
        if isinstance(source, type) or not again:
            raise DomainError(
                f"Chunks: pass a list of arrays, or a function that returns a fresh iterator over them, which can be read many "
                f"times, not {source!r}."
            )

    def __iter__(self) -> Iterator[Any]:
        pieces = self.source() if callable(self.source) else self.source
        if not is_series(pieces):
            raise DomainError(f"Chunks: the function returned {pieces!r}; it must return an iterator over arrays.")
        yield from pieces

    @cached_property
    def forms(self) -> list[tuple[int, Any, Any]]:
        """Number of records, shape and type of each piece: they are read once for this, as they are to be counted."""
        return [(records_of(piece), *form_of(piece)) for piece in self]

    def __len__(self) -> int:
        return sum(size for size, _, _ in self.forms)


@dataclass(frozen=True, eq=False)
class Stored:
    """Rows of shape ``(n, *shape)`` that a function makes of those of a column, each by itself, whenever they are read."""

    column: Any
    function: Callable[[Any], Any]
    shape: tuple[int, ...]
    index: NDArray[np.int64] | None = None

    dtype = np.dtype(float)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        return self.function(self.column[rows if self.index is None else self.index[rows]])


class Pieces:
    """A validated `Chunks` column: it can only be read from front to back, and passes its gate whenever it is."""

    def __init__(self, chunks: Chunks, shape: tuple[int, ...], gate: Any) -> None:
        self.chunks, self.gate = chunks, gate
        self._seen: tuple[int, int] | None = None  # number of records, and their checksum
        size = sum(map(len, self._checked(at_once(shape))))
        self.shape = (size, *shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.concatenate([np.zeros((0, *self.shape[1:])), *self._checked(at_once(self.shape[1:]))])

    def __getitem__(self, rows: Any) -> Array:
        return np.asarray(np.asarray(self)[rows])

    def blocks(self, step: int) -> Iterator[Array]:
        """Yield blocks of `step` records, the last one shorter."""
        held = np.zeros((0, *self.shape[1:]))
        for rows in self._checked(step):
            held = np.concatenate([held, rows]) if len(held) else rows
            if len(held) >= step:
                yield held[:step]
                held = held[step:]
        if len(held):
            yield held

    def _checked(self, step: int) -> Iterator[Array]:
        """Yield the records, no more than `step` at a time, and refuse others than those of the first time."""
        size = bits = 0
        for piece in self.chunks:
            values = self.gate.opened(piece)
            for start in range(0, len(values), step):
                rows = self.gate(values[start : start + step], size)
                size, bits = size + len(rows), crc32(rows, bits)
                if self._seen is not None and size > self._seen[0]:
                    raise DomainError(OTHERS)
                yield rows
        self._seen = self._seen or (size, bits)
        if self._seen != (size, bits):
            raise DomainError(OTHERS)


OTHERS = "the chunks hold other records than when they were checked; data must not change during a fit."


def at_once(shape: tuple[int, ...]) -> int:
    """Return how many records of a shape are read at once."""
    return max(1, BLOCK_BYTES // max(8 * int(np.prod(shape)), 1))


def checksum(column: Any, start: int = 0) -> int:
    """Return a checksum of what a validated column has in memory; what is read from files or pieces has none."""
    if sp.issparse(column):
        return checksum(column.indptr, checksum(column.indices, checksum(column.data, start)))
    source = column.column if isinstance(column, Stored) else column
    if type(source) is np.ndarray:
        for block in blocks(source, at_once(source.shape[1:])):
            start = crc32(np.ascontiguousarray(block).data, start)
    return start


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
        places = index if column.index is None else column.index[index]
        return replace(column, shape=(len(index), *column.shape[1:]), index=places)
    rows = column[index]
    return frozen(rows) if isinstance(rows, np.ndarray) else rows


def itself(block: Any) -> Any:
    return block


def part(column: Any, start: int, stop: int) -> Any:
    """Return consecutive records; of a CSR matrix without a search through its indices."""
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


@dataclass(frozen=True)
class FileRows:
    """An array in an .npy file, records first, of which any rows can be read; `header` is how the file began at first."""

    path: str
    header: bytes
    size: int  # of the file
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, path: str | PathLike[str]) -> FileRows:
        name = abspath(fspath(path))  # workers may stand elsewhere
        try:
            if exists(name) and not isfile(name):  # a pipe may never begin
                raise OSError("it is a folder, a device or a pipe")
            found: Any = np.load(name, mmap_mode="r", allow_pickle=False)
            if type(found) is not np.memmap or not found.ndim or not found.flags.c_contiguous:
                raise ValueError("expected an array of numbers, records first, in the order of C")
            with open(name, "rb") as stream:
                return cls(name, stream.read(found.offset), fstat(stream.fileno()).st_size, found.dtype, found.shape)
        except (OSError, ValueError, EOFError) as error:
            raise DomainError(f"{name}: no array can be read from it ({error}).") from error

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        if not isinstance(rows, slice):
            index = np.arange(len(self))[rows]
            low, high = (int(index.min()), int(index.max()) + 1) if len(index) else (0, 0)
            return self[low:high][index - low]
        start, stop, step = rows.indices(len(self))
        count, width = max(stop - start, 0), prod(self.shape[1:])
        with open(self.path, "rb", buffering=0) as stream:
            same = self._is_same(stream)
            found = np.fromfile(stream, self.dtype, count * width, offset=start * width * self.dtype.itemsize)
            if not (same and self._is_same(stream)):  # it may be written to while it is read
                raise DomainError(
                    f"{self.path}: the file has another shape, type or size than at first; nothing is released. Data must not "
                    "change during a fit; make the Partitions anew for a file that was written anew."
                )
        return found.reshape(count, *self.shape[1:])[::step]

    def _is_same(self, stream: Any) -> bool:
        """Whether a file is as it was, up to its numbers; the stream is then behind its header."""
        stream.seek(0)
        return fstat(stream.fileno()).st_size == self.size and stream.read(len(self.header)) == self.header
