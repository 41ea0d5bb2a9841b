"""Reads the entries of a column, whatever holds them: nothing is guessed from text, dates or masks, and no index is believed.

A sparse matrix is rebuilt from copies of what it holds, which SciPy checks in full: by itself it does not look whether an index
lies within the matrix, it adds duplicate entries up in their own type, in which small integers wrap around, and its flags say
what their owner set.
"""

from __future__ import annotations

import datetime
from itertools import chain
from numbers import Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.errors import DomainError
from dpconvex.language.forms import as_array, check_shape, check_type

Array = NDArray[np.float64]

# Arrays have at most so many axes.
DEPTH = 64

# What no number is, though NumPy counts its durations among the integers and makes numbers of both.
DURATIONS = (np.timedelta64, datetime.timedelta)
TIMES = (*DURATIONS, np.datetime64, datetime.date, datetime.time)


def numbers(name: str, column: ArrayLike) -> NDArray[Any]:
    """Return a column as an array of real numbers, not copied if it was one, or raise `DomainError`."""
    if has_masked(column):
        raise DomainError(f"field {name!r}: entries are masked; remove such records or fill them in.")
    array = as_array(name, column)
    if array.dtype.kind == "O":
        return real_objects(name, array)
    check_type(name, array.dtype)
    return array


def real_objects(name: str, array: NDArray[Any]) -> Array:
    """Return an array of Python's numbers as one of floats; None is a missing number."""
    for place, entry in enumerate(array.ravel().tolist()):
        if isinstance(entry, DURATIONS) or not (entry is None or isinstance(entry, Real | np.bool_)):
            row = place // max(int(np.prod(array.shape[1:])), 1)
            raise DomainError(
                f"field {name!r}: not an array of numbers (row {row} holds {entry!r}, of type {type(entry).__name__})."
            )
    try:
        return np.array(array, dtype=float)
    except (TypeError, ValueError, OverflowError) as error:
        raise DomainError(f"field {name!r}: not an array of numbers ({error}).") from error


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
    check_type(name, column.dtype)
    check_shape(name, shape, column.shape)
    single = column.dtype.kind == "f" and column.dtype.itemsize < 8
    try:
        matrix = sp.csr_array(checked(column, (int(column.shape[0]), int(column.shape[1]))))
    except (TypeError, ValueError, IndexError, AttributeError, KeyError, OverflowError, MemoryError) as error:
        raise DomainError(
            f"field {name!r}: the indices of the sparse matrix do not fit it ({error}); build it anew from its entries."
        ) from error
    matrix.has_canonical_format = False
    with np.errstate(over="ignore", invalid="ignore"):  # infinity is refused later, by its row
        matrix.sum_duplicates()
    return matrix, single


def checked(column: Any, size: tuple[int, int]) -> Any:
    """Return a sparse matrix of floats of the same format, or of coordinates, whose indices lie within it."""
    kind = column.format
    if kind in COMPRESSED:
        starts, index = whole_numbers(column.indptr), whole_numbers(column.indices)
        if len(starts) == 0 or starts[0] != 0 or (np.diff(starts) < 0).any() or starts[-1] > len(index):
            raise ValueError("its index pointers do not rise from 0 to the number of its entries")
        entries = floats(column.data)
        if len(entries) < starts[-1]:
            raise ValueError("it has fewer numbers than indices")
        matrix = COMPRESSED[kind]((entries[: starts[-1]], index[: starts[-1]], starts), shape=size)
        matrix.check_format(full_check=True)
        return matrix
    if kind == "coo":
        row, place, data = column.coords[0], column.coords[1], column.data
    elif kind == "dia":
        offsets, diagonals = whole_numbers(column.offsets), floats(column.data)
        if diagonals.ndim != 2 or len(diagonals) != len(offsets):
            raise ValueError("it has other numbers of offsets than of diagonals")
        return sp.dia_array((diagonals, offsets), shape=size).tocoo()
    elif kind == "dok":
        known = dict(column.items())
        row, place = np.array(list(known), dtype=np.int64).reshape(-1, 2).T
        data = list(known.values())
    elif kind == "lil":
        lengths = [len(line) for line in column.rows]
        if lengths != [len(line) for line in column.data]:
            raise ValueError("it has other numbers of indices than of entries")
        row, place = np.repeat(np.arange(len(lengths)), lengths), list(chain.from_iterable(column.rows))
        data = list(chain.from_iterable(column.data))
    else:
        raise ValueError(f"its format {kind!r} is not known")
    data, row, place = floats(data if len(data) else np.zeros(0)), whole_numbers(row), whole_numbers(place)
    if not len(data) == len(row) == len(place):
        raise ValueError("it has other numbers of indices than of entries")
    if len(data) and (min(row.min(), place.min()) < 0 or row.max() >= size[0] or place.max() >= size[1]):
        raise ValueError("an index lies outside of it")
    return sp.coo_array((data, (row, place)), shape=size)


COMPRESSED = {"csr": sp.csr_array, "csc": sp.csc_array, "bsr": sp.bsr_array}


def whole_numbers(values: Any) -> NDArray[np.int64]:
    """Return a copy of a vector of whole numbers."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError("its indices are no vector of whole numbers")
    return array.astype(np.int64)


def floats(values: Any) -> Array:
    """Return a copy of numbers as floats."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError("its entries are no numbers")
    with np.errstate(over="ignore"):
        return np.array(array, dtype=float)
