"""Columns of records that are not plain arrays: sparse, memory-mapped, in files, or in pieces larger than memory.

Those of a validated batch, of shape ``(n, *shape)``, are read in blocks of records, in double precision and inside the domain.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from os import PathLike, fspath
from os.path import abspath, exists, isfile
from typing import Any
from zlib import crc32

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.arrays import Array, frozen
from dpconvex.errors import DomainError

BLOCK_BYTES = 2**21  # Records that are checked at once are about so many bytes: they should fit into a cache


class ChunkedColumn:
    """A column of the data in pieces, so that all of it need never be in memory.

    Parameters
    ----------
    source : sequence of array_like, or callable
        The pieces, each with its records along the first axis; or a function without arguments that returns a fresh
        iterable over them for each pass over the data.

    Examples
    --------
    >>> len(ChunkedColumn(lambda: (np.full((2, 3), value) for value in (0.0, 1.0))))
    4
    """

    def __init__(self, source: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        self.source = source
        if isinstance(source, type | Iterator) or not (callable(source) or is_series(source)):
            raise DomainError(f"ChunkedColumn: pass a list of arrays, or a function of an iterator, not {source!r}.")

    def __iter__(self) -> Iterator[Any]:
        pieces = self.source() if callable(self.source) else self.source
        if not is_series(pieces):
            raise DomainError(f"ChunkedColumn: the function must return an iterator over arrays, not {pieces!r}.")
        yield from pieces

    @cached_property
    def forms(self) -> list[NDArray[Any]]:
        """Arrays of the shapes and types of the pieces, of one number each; the pieces are read once for this."""
        pieces = (array_of("ChunkedColumn", piece) for piece in self)
        return [np.broadcast_to(np.zeros((), piece.dtype), piece.shape) for piece in pieces]

    def __len__(self) -> int:
        return sum(map(records_of, self.forms))


def is_series(pieces: Any) -> bool:
    single = isinstance(pieces, str | bytes) or sp.issparse(pieces) or getattr(pieces, "ndim", 1) == 0
    return isinstance(pieces, Iterable) and not single


class Pieces:
    """A validated `ChunkedColumn` column: it can only be read from front to back, and passes its gate whenever it is."""

    def __init__(self, chunks: ChunkedColumn, shape: tuple[int, ...], gate: Any) -> None:
        self.chunks, self.gate, self.none = chunks, gate, np.zeros((0, *shape))
        self._seen: tuple[int, int] | None = None  # number of records, and their checksum
        self.shape = (sum(map(len, self.blocks(at_once(shape)))), *shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.concatenate([self.none, *self.blocks(at_once(self.shape[1:]))])

    def __getitem__(self, rows: Any) -> Any:
        return np.asarray(self)[rows]

    def blocks(self, step: int) -> Iterator[Array]:
        """Yield blocks of `step` records, the last one shorter; refuse other records than those of the first time."""
        changed = DomainError("the chunks hold other records than when they were checked: data changed during a fit.")
        held, size, bits = self.none, 0, 0
        for piece in self.chunks:
            values = self.gate.opened(piece)
            for start in range(0, len(values), step):
                rows = self.gate(values[start : start + step], size)
                size, bits = size + len(rows), crc32(rows, bits)
                if self._seen is not None and size > self._seen[0]:
                    raise changed
                held = np.concatenate([held, rows]) if len(held) else rows
                if len(held) >= step:
                    yield held[:step]
                    held = held[step:]
        self._seen = self._seen or (size, bits)
        if self._seen != (size, bits):
            raise changed
        if len(held):
            yield held


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


class FileRows:
    """An array in an .npy file, records first, of which any rows can be read as long as its form is what it was."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = abspath(fspath(path))  # workers may stand elsewhere
        found = self._mapped()
        self.dtype, self.shape, self.offset = found.dtype, found.shape, found.offset

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        if not isinstance(rows, slice):
            index = np.arange(len(self))[rows]
            low = int(index.min(initial=len(self)))
            return self[low : int(index.max(initial=-1)) + 1][index - low]
        start, stop, step = rows.indices(len(self))
        count, width = max(stop - start, 0), prod(self.shape[1:])
        # Read, not mapped: a file that is cut off while it is mapped ends the process.
        offset = self.offset + start * width * self.dtype.itemsize
        read, found = np.fromfile(self.path, self.dtype, count * width, offset=offset), self._mapped()
        known = self.dtype, self.shape, self.offset
        if (found.dtype, found.shape, found.offset) != known:  # now: it may be written to while it is read
            raise DomainError(f"{self.path}: it has another shape or type than at first; make the Partitions anew.")
        return read.reshape(count, *self.shape[1:])[::step]

    def _mapped(self) -> np.memmap[Any, Any]:
        try:
            if exists(self.path) and not isfile(self.path):  # a pipe may never begin
                raise OSError("it is a folder, a device or a pipe")
            found: Any = np.load(self.path, mmap_mode="r", allow_pickle=False)
            if type(found) is not np.memmap or not found.ndim or not found.flags.c_contiguous:
                raise ValueError("expected an array of numbers, records first, in the order of C")
        except (OSError, ValueError, EOFError) as error:
            raise DomainError(f"{self.path}: no array can be read from it ({error}).") from error
        return found


# What is done with columns of any kind


def array_of(what: str, column: Any) -> NDArray[Any]:
    try:
        return np.asarray(column)
    except Exception as error:  # what an object does when it is made an array is up to it
        raise DomainError(f"{what}: not an array of numbers ({error}).") from error


def records_of(data: Any) -> int:
    """Number of records in a column, of whatever kind; 0 for what is no column."""
    try:
        return int(data.shape[0]) if sp.issparse(data) else len(data)
    except TypeError:
        return 0


def at_once(shape: tuple[int, ...]) -> int:
    return max(1, BLOCK_BYTES // max(8 * prod(shape), 1))


def blocks(column: Any, step: int) -> Iterator[Any]:
    """Yield a validated column in blocks of `step` records: arrays, or CSR matrices if the column is one."""
    return (read() for read in readers(column, step))


def readers(column: Any, step: int) -> Iterator[Callable[[], Any]]:
    """Yield functions that return the blocks of `blocks`, and may be called by several threads, in any order."""
    size = records_of(column)
    if isinstance(column, Pieces):
        yield from (partial(itself, block) for block in column.blocks(step))
    elif size <= step and isinstance(column, np.ndarray | sp.csr_array):
        yield partial(itself, column)
    else:
        yield from (partial(part, column, start, min(start + step, size)) for start in range(0, size, step))


def itself(block: Any) -> Any:
    return block


def part(column: Any, start: int, stop: int) -> Any:
    """Return consecutive records; of a CSR matrix without a search through its indices."""
    if not sp.issparse(column):
        return column[start:stop]
    low, high = column.indptr[start], column.indptr[stop]
    index = (column.data[low:high], column.indices[low:high], column.indptr[start : stop + 1] - low)
    return sp.csr_array(index, shape=(stop - start, column.shape[1]), copy=False)


def chosen(column: Any, index: NDArray[np.int64]) -> Any:
    if isinstance(column, Stored):
        places = index if column.index is None else column.index[index]
        return replace(column, shape=(len(index), *column.shape[1:]), index=places)
    rows = column[index]
    return frozen(rows) if isinstance(rows, np.ndarray) else rows


def checksum(column: Any, start: int = 0) -> int:
    """Return a checksum of what a validated column has in memory; what is read from files or pieces has none."""
    if sp.issparse(column):
        return checksum(column.indptr, checksum(column.indices, checksum(column.data, start)))
    source = column.column if isinstance(column, Stored) else column
    if type(source) is np.ndarray:
        for block in blocks(source, at_once(source.shape[1:])):
            start = crc32(np.ascontiguousarray(block).data, start)
    return start


def dense(block: Any) -> NDArray[Any]:
    return np.asarray(block.toarray() if sp.issparse(block) else block)


def flattened(block: Any) -> Any:
    """Return a block's records as rows of scalars, matrices in column order."""
    if sp.issparse(block) or np.ndim(block) == 2:
        return block
    values = np.asarray(block)
    return values.transpose(0, *range(values.ndim - 1, 0, -1)).reshape(len(values), -1)
