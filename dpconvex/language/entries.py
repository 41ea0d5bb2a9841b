"""Reads the entries of a column, whatever holds them: nothing is guessed from text, dates or masks, and no index is believed.

What columns are (shapes, types, lengths) needs no values, and is checked before anything is paid.
"""

import datetime
from collections.abc import Hashable, Mapping, Sequence, Sized
from numbers import Number, Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.errors import DomainError
from dpconvex.language.columns import Chunks

Array = NDArray[np.float64]

REAL_KINDS = "biuf"
# What no number is, though NumPy counts its durations among the integers and makes numbers of both.
DURATIONS = (np.timedelta64, datetime.timedelta)
TIMES = (*DURATIONS, np.datetime64, datetime.date, datetime.time)


# What needs no values


def check_shape(name: str, shape: tuple[int, ...], found: Sequence[int], where: str = "") -> None:
    if len(found) != 1 + len(shape) or tuple(found[1:]) != shape:
        expected = f"({', '.join(['n', *map(str, shape)])}{',' if not shape else ''})"
        raise DomainError(f"field {name!r}: {where}expected shape {expected}, got {tuple(found)}.")


def check_type(name: str, kind: np.dtype[Any]) -> None:
    """Refuse entries that are no real numbers; types of Python's objects are values."""
    if kind.kind not in (*REAL_KINDS, "O"):
        raise DomainError(f"field {name!r}: expected real numbers, got entries of type {kind}.")


def check_chunks(name: str, shape: tuple[int, ...], column: Chunks, numeric: bool) -> int:
    for number, (_, found, kind) in enumerate(column.forms):
        if found is not None:
            check_shape(name, shape, found, f"chunk {number}: ")
            if numeric:
                check_type(name, kind)
    return len(column)


def length_of_numbers(name: str, shape: tuple[int, ...], column: Any) -> int:
    """Return the number of records of a continuous column, or refuse what can be none."""
    if isinstance(column, Chunks):
        return check_chunks(name, shape, column, numeric=True)
    if not hasattr(column, "shape") or not isinstance(getattr(column, "dtype", None), np.dtype):
        column = as_array(name, column)
    if isinstance(column, np.ndarray) and column.shape == (0,):  # what no records look like, whatever their shape
        return 0
    check_shape(name, shape, column.shape)
    check_type(name, column.dtype)
    return int(column.shape[0])


def length_of_labels(name: str, declared: Sequence[Hashable], column: Any) -> int:
    """Return the number of records of a discrete column, or refuse what can be none."""
    if isinstance(column, Chunks):
        return check_chunks(name, (), column, numeric=False)
    kind = getattr(column, "dtype", None)
    shape = tuple(getattr(column, "shape", ())) if kind is not None else None
    wrong = sp.issparse(column) or isinstance(column, str | bytes | Mapping | set | frozenset)
    if wrong or not isinstance(column, Sized) or (shape is not None and len(shape) != 1):
        what = f"an array of shape {shape}" if shape is not None else f"a {type(column).__name__}"
        raise DomainError(f"field {name!r}: expected one value per record, got {what}.")
    if shape is None:
        label_entries(name, column)
    elif len(column) and isinstance(kind, np.dtype):
        texts, numbers = (any(isinstance(value, t) for value in declared) for t in (str | bytes, Number))
        if (kind.kind in "US" and not texts) or (kind.kind in "iufc" and not numbers) or kind.kind in "V":
            raise DomainError(
                f"field {name!r}: entries of type {kind} are none of the declared values; declared are {list(declared)!r}."
            )
    return len(column)


# Entries


def as_array(name: str, column: Any) -> NDArray[Any]:
    try:
        return np.asarray(column)
    except Exception as error:  # what an object does when it is made an array is up to it
        raise DomainError(f"field {name!r}: not an array of numbers ({error}).") from error


def numbers(name: str, column: ArrayLike) -> NDArray[Any]:
    """Return a column as an array of real numbers, not copied if it was one, or raise `DomainError`."""
    check_masked(name, column)
    array = as_array(name, column)
    check_type(name, array.dtype)
    if array.dtype.kind != "O":
        return array
    for place, entry in enumerate(array.ravel().tolist()):
        if isinstance(entry, DURATIONS) or not (entry is None or isinstance(entry, Real | np.bool_)):
            row = place // max(int(np.prod(array.shape[1:])), 1)
            raise DomainError(
                f"field {name!r}: not an array of numbers (row {row} holds {entry!r}, of type {type(entry).__name__})."
            )
    try:
        return np.array(array, dtype=float)  # None becomes NaN
    except (TypeError, ValueError, OverflowError) as error:
        raise DomainError(f"field {name!r}: not an array of numbers ({error}).") from error


def label_entries(name: str, column: Any) -> list[Hashable]:
    """Return the entries of a discrete column as plain Python values."""
    check_masked(name, column)
    if hasattr(column, "__array__"):
        entries = np.asarray(column).tolist()
    else:  # not through an array: that would turn a list of words and numbers into words
        entries = [value.item() if isinstance(value, np.generic) else value for value in column]
    for row, entry in enumerate(entries):
        if not isinstance(entry, Hashable):
            raise DomainError(f"field {name!r}: expected one value per record, but row {row} is {entry!r}.")
    return entries


def check_masked(name: str, column: Any) -> None:
    if has_masked(column):
        raise DomainError(f"field {name!r}: entries are masked; remove such records or fill them in.")


def has_masked(column: Any) -> bool:
    """Whether entries are masked, in an array or in a list of arrays; a list that contains itself is no column anyway."""
    if isinstance(column, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(column).any())
    if isinstance(column, np.ndarray):
        return column.dtype.kind == "O" and has_masked(column.ravel().tolist())
    if isinstance(column, list | tuple):
        try:  # a list of lists of numbers is looked at to its bottom; `type` is quicker than a call for each number
            return any(has_masked(entry) for entry in column if type(entry) not in (float, int, str))
        except RecursionError:
            return False
    return False


def is_single(kind: np.dtype[Any]) -> bool:
    return kind.kind == "f" and kind.itemsize < 8


# Sparse matrices


def trusted_rows(name: str, column: Any, shape: tuple[int, ...]) -> sp.csr_array:
    """Return a sparse matrix in rows, from copies of what it holds, with every index checked and repeated entries added up.

    SciPy does not look whether an index lies within the matrix, and adds duplicate entries up in their own type, in which small
    integers wrap around.
    """
    check_type(name, column.dtype)
    check_shape(name, shape, column.shape)
    try:
        if column.format in ("csr", "csc", "bsr"):
            kept = column.copy()
            kept.check_format(full_check=True)
        else:  # no index is used before it was checked, if there are as many of everything
            uneven = column.format == "lil" and list(map(len, column.rows)) != list(map(len, column.data))
            if uneven or (column.format == "dia" and len(column.offsets) != len(column.data)):
                raise ValueError("it has other numbers of indices than of entries")
            found = column.tocoo()
            kept = sp.coo_array((found.data, found.coords), shape=column.shape)
        check_type(name, kept.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # infinity is refused later, by its row
            matrix = sp.csr_array(kept.astype(float))
            matrix.has_canonical_format = False
            matrix.sum_duplicates()
    except (TypeError, ValueError, IndexError, AttributeError, KeyError, OverflowError, MemoryError) as error:
        raise DomainError(
            f"field {name!r}: the indices of the sparse matrix do not fit it ({error}); build it anew from its entries."
        ) from error
    return matrix
