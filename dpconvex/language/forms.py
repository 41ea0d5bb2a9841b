"""What columns are, without a look at their values: shapes, types, lengths and kinds.  It is checked before anything is paid."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence, Sized
from numbers import Number
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.errors import DomainError
from dpconvex.language.columns import Chunks

REAL_KINDS = "biuf"


def check_shape(name: str, shape: tuple[int, ...], found: Sequence[int]) -> None:
    """Refuse a column whose records have another shape."""
    if len(found) != 1 + len(shape) or tuple(found[1:]) != shape:
        expected = f"({', '.join(['n', *map(str, shape)])}{',' if not shape else ''})"
        raise DomainError(f"field {name!r}: expected shape {expected}, got {tuple(found)}.")


def check_type(name: str, kind: np.dtype[Any]) -> None:
    """Refuse entries that are no real numbers."""
    if kind.kind not in REAL_KINDS:
        raise DomainError(f"field {name!r}: expected real numbers, got entries of type {kind}.")


def length_of_numbers(name: str, shape: tuple[int, ...], column: Any) -> int:
    """Return the number of records of a continuous column, or refuse what can be none."""
    if isinstance(column, Chunks):
        for found, kind in column.forms:
            if found is not None:
                check_shape(name, shape, found)
                if kind.kind != "O":
                    check_type(name, kind)
        return len(column)
    if not hasattr(column, "shape") or not isinstance(getattr(column, "dtype", None), np.dtype):
        kind = type(column).__name__
        column = as_array(name, column)
        if column.ndim == 0:
            raise DomainError(
                f"field {name!r}: expected one value per record, got a single one, of no axis, of type {kind}."
            )
    if sp.issparse(column) and column.ndim != 2:
        raise DomainError(
            f"field {name!r}: expected a sparse matrix with a row for each record, got {column.ndim} axes."
        )
    if isinstance(column, np.ndarray) and column.shape == (0,):  # what no records look like, whatever their shape
        return 0
    check_shape(name, shape, column.shape)
    if column.dtype.kind != "O":  # types of Python's objects are values
        check_type(name, column.dtype)
    return int(column.shape[0])


def as_array(name: str, column: Any) -> NDArray[Any]:
    try:
        array = np.asarray(column)
    except RecursionError:
        raise DomainError(f"field {name!r}: not an array of numbers (a list contains itself).") from None
    except Exception as error:  # what an object does when it is made an array is up to it
        raise DomainError(f"field {name!r}: not an array of numbers ({error}).") from error
    return array


def length_of_labels(name: str, declared: Sequence[Hashable], column: Any) -> int:
    """Return the number of records of a discrete column, or refuse what can be none."""
    if isinstance(column, Chunks):
        for found, _ in column.forms:
            if found is not None:
                check_shape(name, (), found)
        return len(column)
    kind = getattr(column, "dtype", None)
    found = tuple(getattr(column, "shape", ())) if kind is not None else None
    wrong = sp.issparse(column) or isinstance(column, str | bytes | Mapping | set | frozenset)
    if wrong or not isinstance(column, Sized) or (found is not None and len(found) != 1):
        what = f"an array of shape {found}" if found is not None else f"a {type(column).__name__}"
        raise DomainError(f"field {name!r}: expected one value per record, got {what}.")
    size = len(column)
    if found is None:
        for row, entry in enumerate(column):  # type: ignore[arg-type, var-annotated]
            if not isinstance(entry, Hashable):
                raise DomainError(f"field {name!r}: expected one value per record, but row {row} is {entry!r}.")
    elif size and isinstance(kind, np.dtype):
        texts, numbers = (any(isinstance(value, t) for value in declared) for t in (str | bytes, Number))
        if (kind.kind in "US" and not texts) or (kind.kind in "iufc" and not numbers) or kind.kind in "V":
            raise DomainError(
                f"field {name!r}: entries of type {kind} are none of the declared values; declared are {list(declared)!r}."
            )
    return size
