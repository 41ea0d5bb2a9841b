"""Columns of records that are not plain arrays: sparse, memory-mapped, single precision, or in pieces larger than memory.

A column of a validated batch has a shape ``(n, *shape)`` and is read in blocks of consecutive records, in double precision and
inside its domain.  Nothing here ever holds more than a block of a column that its owner did not hold already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.errors import DomainError

__all__ = ["Chunks", "Pieces", "Stored", "blocks", "dense", "flattened", "is_column", "itself", "readers", "records_of"]

Array = NDArray[np.float64]
Project = Callable[[Array], Array]

# Records that are checked at once are about so many bytes: they should fit into a cache.
BLOCK_BYTES = 2**21


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
        self._length: int | None = None
        if not callable(source) and iter(source) is source:
            raise DomainError(
                "Chunks: an iterator can be read only once, and a fit reads the data many times; pass a list of arrays, or "
                "a function that returns a fresh iterator."
            )

    def __iter__(self) -> Iterator[Any]:
        yield from (self.source() if callable(self.source) else self.source)

    def __len__(self) -> int:
        if self._length is None:
            self._length = sum(records_of(piece) for piece in self)
        return self._length


class Stored:
    """A numeric array that stays as it is: each block is turned into float64, and projected, when it is read.

    Parameters
    ----------
    array : ndarray
        Of any real type, possibly memory-mapped.
    project : callable, optional
        Projection of records on their domain, if some of them need it.
    """

    def __init__(self, array: NDArray[Any], project: Project | None = None) -> None:
        self.array = array
        self.project = project

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape ``(n, *shape)``."""
        return self.array.shape

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: Any) -> Array:
        block = np.asarray(self.array[rows], dtype=float)
        return block if self.project is None else self.project(block)


class Pieces:
    """A validated `Chunks` column: it can only be read from front to back.

    Parameters
    ----------
    chunks : Chunks
    shape : tuple of int
        Of the whole column, as it was when it was validated.
    project : callable, optional
    """

    def __init__(self, chunks: Chunks, shape: tuple[int, ...], project: Project | None = None) -> None:
        self.chunks = chunks
        self.shape = shape
        self.project = project

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.concatenate(list(self.blocks(max(len(self), 1))), axis=0).astype(dtype or float, copy=False)

    def __getitem__(self, rows: Any) -> Array:
        return np.asarray(np.asarray(self)[rows])

    def blocks(self, step: int) -> Iterator[Array]:
        """Yield blocks of `step` records, the last one shorter."""
        held: list[Array] = []
        count = seen = 0
        for piece in self.chunks:
            values = np.asarray(piece)
            if values.shape[1:] != self.shape[1:]:
                raise DomainError(f"a chunk has shape {values.shape}, and had another when the data were checked.")
            start = 0
            while start < len(values):
                taken = np.asarray(values[start : start + step - count], dtype=float)
                held.append(taken if self.project is None else self.project(taken))
                count, start = count + len(taken), start + len(taken)
                if count == step:
                    yield held[0] if len(held) == 1 else np.concatenate(held)
                    held, seen, count = [], seen + count, 0
        if held:
            yield held[0] if len(held) == 1 else np.concatenate(held)
        if seen + count != len(self):
            raise DomainError(f"the chunks hold {seen + count} records, and held {len(self)} when they were checked.")


def is_column(data: Any) -> bool:
    """Whether the data are of a kind that is kept as it is."""
    return isinstance(data, Chunks | np.memmap) or sp.issparse(data)


def dense(block: Any) -> NDArray[Any]:
    """Return a block of a column, sparse or not, as an array."""
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
    for read in readers(column, step):
        yield read()


def readers(column: Any, step: int) -> Iterator[Callable[[], Any]]:
    """Yield functions that return the blocks of `blocks`, and may be called by several threads, in any order."""
    if isinstance(column, Pieces):  # can only be read from front to back
        for block in column.blocks(step):
            yield partial(itself, block)
        return
    size = records_of(column)
    if size <= step and isinstance(column, np.ndarray | sp.csr_array):
        yield partial(itself, column)
        return
    for start in range(0, size, step):
        yield partial(part, column, start, min(start + step, size))


def itself(block: Any) -> Any:
    """Return a block that has been read."""
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
