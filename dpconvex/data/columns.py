"""Columns that are sparse, memory-mapped or in files, and functions that read validated columns in blocks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod
from os import PathLike, fspath
from os.path import abspath, exists, isfile
from typing import Any
from zlib import crc32

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.errors import DomainError, shorten
from dpconvex.util.arguments import recast, require
from dpconvex.util.arrays import frozen

BLOCK_BYTES = 2**21  # Bytes of records that are checked at once, so that they fit into a cache


@dataclass(frozen=True, eq=False)
class Stored:
    """A column of shape ``(n, *shape)``, computed at each reading: `function` maps rows of `column`, record by record."""

    column: Any
    function: Callable[[Any], Any]
    shape: tuple[int, ...]
    index: NDArray[np.int64] | None = None

    dtype = np.dtype(float)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        return self.function(self.column[rows if self.index is None else self.index[rows]])


@dataclass(frozen=True)
class Columns:
    """Several columns of a batch, indexed together."""

    columns: tuple[Any, ...]

    def __getitem__(self, rows: Any) -> list[Any]:
        return [column[rows] for column in self.columns]


def in_memory(column: Any) -> bool:
    """Return whether a column, and every column that it is computed from, is in memory."""
    source = getattr(column, "column", column)
    if isinstance(source, Columns):
        return all(map(in_memory, source.columns))
    return type(source) is np.ndarray or sp.issparse(column)


class FileRows:
    """An array in an .npy file, indexed by records; reading raises if dtype, shape or offset of the file have changed."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = abspath(fspath(path))  # workers may have another working directory
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
        if (found.dtype, found.shape, found.offset) != known:  # after reading: another process may write meanwhile
            raise DomainError(f"{self.path}: its shape or type has changed; make the Partitions anew.")
        return read.reshape(count, *self.shape[1:])[::step]

    def _mapped(self) -> np.memmap[Any, Any]:
        with recast(f"{self.path}: no array can be read from it", OSError, ValueError, EOFError, kind=DomainError):
            if exists(self.path) and not isfile(self.path):  # reading a pipe may block forever
                raise OSError("it is a folder, a device or a pipe")
            found: Any = np.load(self.path, mmap_mode="r", allow_pickle=False)
            if type(found) is not np.memmap or not found.ndim or not found.flags.c_contiguous:
                raise ValueError("expected an array of numbers in C order, with records along the first axis")
        return found


# Functions of columns of any kind


def array_of(what: str, column: Any) -> NDArray[Any]:
    """Return a column as an array; a list of numbers and texts becomes an array of objects, so that numbers stay numbers."""
    # The conversion of an arbitrary object can raise anything.
    with recast(f"{what}: not an array of numbers", Exception, kind=DomainError):
        found = np.asarray(column)
        if hasattr(column, "dtype") or found.dtype.kind not in "SU":
            return found
        objects = np.array(column, dtype=object)
        texts = np.array([isinstance(entry, str | bytes) for entry in objects.flat]).reshape(objects.shape)
        return found if texts.all(axis=0).any() else objects  # texts if one of the columns has nothing but texts


def records_of(data: Any) -> int:
    """Return the number of records in a column of any kind; 0 for an object without a length."""
    try:
        return int(data.shape[0]) if sp.issparse(data) else len(data)
    except TypeError:
        return 0


def names_of(column: Any) -> tuple[str, ...] | None:
    """Return the column names of a data frame as strings; None for other objects."""
    found = getattr(column, "column_names", getattr(column, "columns", None))  # PyArrow says column_names
    return tuple(map(str, found if isinstance(found, Iterable) else ())) or None


def check_names(caller: str, known: Sequence[str] | None, given: Sequence[str] | None) -> None:
    """Raise if the column names differ in text or order; the default names 0, 1, ... of an array match any others."""
    if known is None or given is None or tuple(known) == tuple(given):
        return
    of_array = any(tuple(names) == tuple(map(str, range(len(names)))) for names in (known, given))
    both = f"the columns are {shorten(', '.join(given))}, but those of the fit are {shorten(', '.join(known))}"
    fits = of_array and len(known) == len(given) and set(known).isdisjoint(given)
    require(fits, f"{caller}: {both}; pass the columns of the fit, in its order, as frame[[...]].", DomainError)


def index_of(data: Any) -> Any:
    """Return the pandas index of the records, kept through encoding; None if there is none or it is unknown."""
    if isinstance(data, Mapping):
        return next((index for column in data.values() if (index := index_of(column)) is not None), None)
    if not hasattr(data, "sources"):
        index = getattr(data, "index", None)  # a Dask index is unknown before it is read
        return None if hasattr(index, "compute") or not hasattr(index, "equals") else index
    indexes: list[Any] = [index_of(source.value) if source.local else None for source in data.sources]  # of Partitions
    if any(index is None for index in indexes):
        return None
    # If the index of each partition starts at 0, number the records through.
    if all(np.array_equal(index, np.arange(len(index))) for index in indexes):
        starts = np.cumsum([0, *map(len, indexes)]).tolist()
        indexes = [index + start for index, start in zip(indexes, starts, strict=False)]
    return indexes[0].append(indexes[1:])


def check_aligned(columns: Mapping[str, Any]) -> None:
    """Raise if pandas columns of equal length have different indexes: it is unknown which rows form one record."""
    indexes = {name: index for name, column in columns.items() if (index := index_of(column)) is not None}
    for (one, index), (two, other) in pairwise(indexes.items()):
        remedy = f"order the rows by {two}.loc[{one}.index], or confirm their order by reset_index(drop=True) of both"
        said = f"{one} and {two} have different indexes, so it is unknown which rows form one record; {remedy}."
        require(len(index) != len(other) or index.equals(other), said, DomainError)


def per_block(shape: tuple[int, ...]) -> int:
    return max(1, BLOCK_BYTES // max(8 * prod(shape), 1))


def blocks(column: Any, step: int) -> Iterator[Any]:
    """Yield a validated column in blocks of `step` records: arrays, or CSR matrices if the column is one."""
    return (read() for read in block_readers(column, step))


def block_readers(column: Any, step: int) -> Iterator[Callable[[], Any]]:
    """Yield a function for each block of `blocks`; several threads may call these functions, in any order."""
    size = records_of(column)
    if size <= step and isinstance(column, np.ndarray | sp.csr_array):
        yield partial(unchanged_block, column)
    else:
        yield from (partial(part, column, start, min(start + step, size)) for start in range(0, size, step))


def unchanged_block(block: Any) -> Any:
    return block


def part(column: Any, start: int, stop: int) -> Any:
    """Return the records from `start` to `stop`; a CSR matrix is cut without SciPy's search through its indices."""
    if not sp.issparse(column):
        return column[start:stop]
    low, high = column.indptr[start], column.indptr[stop]
    index = (column.data[low:high], column.indices[low:high], column.indptr[start : stop + 1] - low)
    return sp.csr_array(index, shape=(stop - start, column.shape[1]), copy=False)


def take_rows(column: Any, index: NDArray[np.int64]) -> Any:
    if isinstance(column, Stored):
        places = index if column.index is None else column.index[index]
        return replace(column, shape=(len(index), *column.shape[1:]), index=places)
    rows = column[index]
    return frozen(rows) if isinstance(rows, np.ndarray) else rows


def checksum(column: Any, start: int = 0) -> int:
    """Return a checksum of a validated column in memory, continued from `start`; columns in files leave `start` unchanged."""
    if sp.issparse(column):
        return checksum(column.indptr, checksum(column.indices, checksum(column.data, start)))
    source = column.column if isinstance(column, Stored) else column
    if type(source) is np.ndarray:
        for block in blocks(source, per_block(source.shape[1:])):
            start = crc32(np.ascontiguousarray(block).data, start)
    return start


def dense(block: Any) -> NDArray[Any]:
    return np.asarray(block.toarray() if sp.issparse(block) else block)


def flattened(block: Any) -> Any:
    """Return a block's records as rows of scalars, matrices in column order."""
    if sp.issparse(block) or np.ndim(block) == 2:
        return block
    values = np.asarray(block)
    return values.transpose(0, *range(values.ndim - 1, 0, -1)).reshape(len(values), prod(values.shape[1:]))
