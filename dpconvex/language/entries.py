"""Reads the entries of a column, whatever holds them: nothing is guessed from text, dates or masks, and no index is believed.

A sparse matrix is rebuilt from checked indices.  SciPy's compiled functions do not look whether an index lies within the matrix,
and add duplicate entries up in their own type, in which small integers wrap around; and its flags say what their owner set.
"""

from __future__ import annotations

from itertools import chain
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.errors import DomainError

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Triplets = tuple[Indices, Indices, Array]

REAL_KINDS = "biuf"
# Arrays have at most so many axes.
DEPTH = 64


def numbers(name: str, column: ArrayLike) -> NDArray[Any]:
    """Return a column as an array of real numbers, not copied if it was one, or raise `DomainError`."""
    if has_masked(column):
        raise DomainError(f"field {name!r}: entries are masked; remove such records or fill them in.")
    try:
        array = np.asarray(column)
        if array.dtype.kind == "O":
            array = real_objects(name, array)
    except DomainError:
        raise
    except Exception as error:  # what an object does when it is made an array is up to it
        raise DomainError(f"field {name!r}: not an array of numbers ({error}).") from error
    if array.dtype.kind not in REAL_KINDS:
        raise DomainError(f"field {name!r}: expected real numbers, got entries of type {array.dtype}.")
    return np.asarray(array)


def real_objects(name: str, array: NDArray[Any]) -> Array:
    """Return an array of Python's numbers as one of floats; None is a missing number."""
    for place, entry in enumerate(array.ravel().tolist()):
        if not (entry is None or isinstance(entry, Real | np.bool_)):
            row = place // max(int(np.prod(array.shape[1:])), 1)
            raise DomainError(
                f"field {name!r}: not an array of numbers (row {row} holds {entry!r}, of type {type(entry).__name__})."
            )
    return np.array(array, dtype=float)


def has_masked(column: Any, depth: int = 0) -> bool:
    """Whether entries are masked, in an array or in a list of arrays; a list that contains itself is no column anyway."""
    if depth > DEPTH:
        return False
    if isinstance(column, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(column).any())
    if isinstance(column, np.ndarray):
        return column.dtype.kind == "O" and any(has_masked(entry, depth + 1) for entry in column.ravel().tolist())
    if isinstance(column, list | tuple):
        # A list of lists of numbers is looked at to its bottom; `type` is quicker than a call for each number.
        return any(has_masked(entry, depth + 1) for entry in column if type(entry) not in (float, int, str))
    return False


def trusted_rows(name: str, column: Any, shape: tuple[int, ...]) -> tuple[sp.csr_array, bool]:
    """Return a sparse matrix in rows, from copies of what it holds, and whether its numbers had less than double precision."""
    if column.dtype.kind not in REAL_KINDS:
        raise DomainError(f"field {name!r}: expected real numbers, got entries of type {column.dtype}.")
    if column.ndim != 2 or column.shape[1:] != shape:
        expected = ("n", *shape)
        raise DomainError(f"field {name!r}: expected shape {expected}, got {column.shape}.".replace("'n'", "n"))
    single = column.dtype.kind == "f" and column.dtype.itemsize < 8
    size = int(column.shape[0]), int(column.shape[1])
    try:
        if column.format == "csr":
            matrix = compressed(column, size)
        else:
            row, place, data = TRIPLETS[column.format](column)
            within(row, size[0])
            within(place, size[1])
            matrix = sp.csr_array(sp.coo_array((data, (row, place)), shape=size))
    except (TypeError, ValueError, IndexError, AttributeError, KeyError, OverflowError, MemoryError) as error:
        raise DomainError(
            f"field {name!r}: the indices of the sparse matrix do not fit it ({error}); build it anew from its entries."
        ) from error
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is refused later, by its row
        matrix.sum_duplicates()
    return matrix, single


def compressed(column: Any, shape: tuple[int, int]) -> sp.csr_array:
    """Copy a matrix that is in rows already."""
    starts, place = pointers(column, shape[0])
    data = floats(column.data, len(place))
    within(place, shape[1])
    kind = np.int32 if max(shape[1], len(place)) < 2**31 else np.int64
    return sp.csr_array((data, place.astype(kind), starts.astype(kind)), shape=shape)


def pointers(column: Any, lines: int) -> tuple[Indices, Indices]:
    """Return where the lines of a compressed matrix start, and the indices of their entries."""
    starts, index = whole_numbers(column.indptr), whole_numbers(column.indices)
    if len(starts) != lines + 1 or starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > len(index):
        raise ValueError("its index pointers do not rise from 0 to the number of its entries, one for each line")
    return starts, index[: starts[-1]]


def whole_numbers(values: Any) -> Indices:
    """Return a copy of a vector of whole numbers."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError("its indices are no vector of whole numbers")
    return array.astype(np.int64)


def within(index: Indices, size: int) -> None:
    """Raise unless indices lie from 0 to below a size."""
    if len(index) and (index.min() < 0 or index.max() >= size):
        raise ValueError(f"an index lies outside of 0 to {size - 1}")


def floats(values: Any, count: int) -> Array:
    """Return a copy of the first entries of a vector as floats."""
    array = np.asarray(values)
    if array.dtype.kind not in REAL_KINDS or array.ndim != 1 or len(array) < count:
        raise ValueError("it has fewer numbers than indices")
    with np.errstate(over="ignore"):
        return np.array(array[:count], dtype=float)


def from_columns(column: Any) -> Triplets:
    """Entries of a matrix that is stored column by column."""
    starts, row = pointers(column, int(column.shape[1]))
    return row, np.repeat(np.arange(column.shape[1]), np.diff(starts)), floats(column.data, len(row))


def from_blocks(column: Any) -> Triplets:
    """Entries of a matrix that is stored in dense blocks."""
    data = np.asarray(column.data)
    if data.ndim != 3 or 0 in data.shape[1:]:
        raise ValueError("its blocks are no matrices")
    high, wide = data.shape[1:]
    lines = -(-int(column.shape[0]) // high)
    starts, index = pointers(column, lines)
    values = floats(data.ravel(), len(index) * high * wide)
    row = np.repeat(np.arange(lines), np.diff(starts))[:, None, None] * high + np.arange(high)[:, None]
    place = index[:, None, None] * wide + np.arange(wide)
    full = (len(index), high, wide)
    return np.broadcast_to(row, full).ravel(), np.broadcast_to(place, full).ravel(), values


def from_coordinates(column: Any) -> Triplets:
    """Entries of a matrix that is stored as coordinates and values."""
    row, place = whole_numbers(column.coords[0]), whole_numbers(column.coords[1])
    if len(row) != len(place) or len(row) != len(column.data):
        raise ValueError("it has other numbers of indices than of entries")
    return row, place, floats(column.data, len(row))


def from_diagonals(column: Any) -> Triplets:
    """Entries of a matrix that is stored by diagonals."""
    offsets, data = whole_numbers(column.offsets), np.asarray(column.data)
    if data.ndim != 2 or len(data) != len(offsets):
        raise ValueError("it has other numbers of offsets than of diagonals")
    place = np.broadcast_to(np.arange(data.shape[1]), data.shape)
    row = place - offsets[:, None]
    inside = (row >= 0) & (row < column.shape[0]) & (place < column.shape[1])
    return row[inside], place[inside], floats(data[inside], int(inside.sum()))


def from_keys(column: Any) -> Triplets:
    """Entries of a matrix that is stored as a dictionary."""
    entries = dict(column.items())
    index = whole_numbers(list(chain.from_iterable(entries))).reshape(-1, 2)
    return index[:, 0], index[:, 1], floats(list(entries.values()) or np.zeros(0), len(entries))


def from_lists(column: Any) -> Triplets:
    """Entries of a matrix that is stored as a list for each row."""
    lengths = [len(row) for row in column.rows]
    if lengths != [len(row) for row in column.data]:
        raise ValueError("it has other numbers of indices than of entries")
    place = whole_numbers(list(chain.from_iterable(column.rows)))
    values = list(chain.from_iterable(column.data))
    return np.repeat(np.arange(len(lengths)), lengths), place, floats(values or np.zeros(0), len(place))


TRIPLETS = {
    "csc": from_columns,
    "bsr": from_blocks,
    "coo": from_coordinates,
    "dia": from_diagonals,
    "dok": from_keys,
    "lil": from_lists,
}
