"""Checks of a column against its declared domain: nothing is guessed from text, dates or masks, and no index is believed.

Shapes, types and lengths need no values, and are checked before anything is paid.  What comes back is inside the domain and stays
there: an array that nobody can write to, or a column of `columns` that copies, checks and projects every block as it is read.
"""

import datetime
from collections.abc import Hashable, Iterable, Mapping, Sequence, Sized
from numbers import Number, Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.core.arrays import Array
from dpconvex.core.record_domains import Ball, Box
from dpconvex.core.runtime import frozen
from dpconvex.errors import DomainError, shorten
from dpconvex.language.columns import Chunks, FileRows, Pieces, Stored, at_once, blocks

Continuous = Ball | Box

# What no number is, though NumPy counts its durations among the integers and makes numbers of both.
DURATIONS = (np.timedelta64, datetime.timedelta)
TIMES = (*DURATIONS, np.datetime64, datetime.date, datetime.time)
# A norm computed in floating point may exceed its radius by rounding; such records are put back on the sphere.
ROUNDING = 1e-9
# The same for records that were computed in single precision.
SINGLE_ROUNDING = 1e-6
# A column of at most so many bytes is copied into memory that nobody can write to; a larger one is checked whenever it is read.
LARGEST_COPY = 2**30
# Below this size, and it alone, whole numbers are exact as floating-point numbers: none above it rounds to one below.
EXACT = 2**53


# What needs no values


def check_array(
    name: str, shape: tuple[int, ...], found: Sequence[int], kind: np.dtype[Any] | None = None, where: str = ""
) -> None:
    """Refuse records of another shape, or entries that are no real numbers; types of Python's objects are values."""
    if len(found) != 1 + len(shape) or tuple(found[1:]) != shape:
        expected = f"({', '.join(['n', *map(str, shape)])}{',' if not shape else ''})"
        raise DomainError(f"field {name!r}: {where}expected shape {expected}, got {tuple(found)}.")
    if kind is not None and kind.kind not in "biufO":
        raise DomainError(f"field {name!r}: expected real numbers, got entries of type {kind}.")


def check_chunks(name: str, shape: tuple[int, ...], column: Chunks, numeric: bool) -> int:
    for number, (_, found, kind) in enumerate(column.forms):
        if found is not None:
            check_array(name, shape, found, kind if numeric else None, f"chunk {number}: ")
    return len(column)


def length_of_numbers(name: str, shape: tuple[int, ...], column: Any) -> int:
    """Return the number of records of a continuous column, or refuse what can be none."""
    if isinstance(column, Chunks):
        return check_chunks(name, shape, column, numeric=True)
    if not hasattr(column, "shape") or not isinstance(getattr(column, "dtype", None), np.dtype):
        column = as_array(name, column)
    if isinstance(column, np.ndarray) and column.shape == (0,):  # what no records look like, whatever their shape
        return 0
    check_array(name, shape, column.shape, column.dtype)
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
                f"field {name!r}: entries of type {kind} are none of the declared values {list(declared)!r}."
            )
    return len(column)


# Numbers


def as_array(name: str, column: Any) -> NDArray[Any]:
    try:
        return np.asarray(column)
    except Exception as error:  # what an object does when it is made an array is up to it
        raise DomainError(f"field {name!r}: not an array of numbers ({error}).") from error


def numbers(name: str, column: ArrayLike, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Return a column as an array of real numbers, of a shape, not copied if it was one, or raise `DomainError`."""
    check_masked(name, column)
    array = as_array(name, column)
    if shape is not None and array.shape == (0,):  # what no records look like, whatever their shape
        array = array.reshape(0, *shape)
    found = (0, *array.shape[1:]) if shape is None else array.shape
    check_array(name, array.shape[1:] if shape is None else shape, found, array.dtype)
    if array.dtype.kind != "O":
        return array
    for place, entry in enumerate(array.ravel().tolist()):
        if isinstance(entry, DURATIONS) or not (entry is None or isinstance(entry, Real | np.bool_)):
            row, kind = place // max(int(np.prod(array.shape[1:])), 1), type(entry).__name__
            raise DomainError(f"field {name!r}: not an array of numbers (row {row} holds {entry!r}, a {kind}).")
    try:
        return np.array(array, dtype=float)  # None becomes NaN
    except (TypeError, ValueError, OverflowError) as error:
        raise DomainError(f"field {name!r}: not an array of numbers ({error}).") from error


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


def trusted_rows(name: str, column: Any, shape: tuple[int, ...]) -> sp.csr_array:
    """Return a sparse matrix in rows, from copies of what it holds, with every index checked and repeated entries added up.

    SciPy does not look whether an index lies within the matrix, and adds duplicate entries up in their own type, in which small
    integers wrap around.
    """
    check_array(name, shape, column.shape, column.dtype)
    try:
        if column.format in ("csr", "csc", "bsr"):
            kept = column.copy()
            kept.check_format(full_check=True)
        else:
            if column.format == "lil" and list(map(len, column.rows)) != list(map(len, column.data)):
                raise ValueError("it has other numbers of indices than of entries")
            found = column.tocoo()
            kept = sp.coo_array((found.data, found.coords), shape=column.shape)
        check_array(name, shape, kept.shape, kept.dtype)
        with np.errstate(over="ignore", invalid="ignore"):  # infinity is refused later, by its row
            matrix = sp.csr_array(kept.astype(float))
            matrix.has_canonical_format = False
            matrix.sum_duplicates()
    except (TypeError, ValueError, IndexError, AttributeError, KeyError, OverflowError, MemoryError) as error:
        raise DomainError(f"field {name!r}: the indices of the sparse matrix do not fit it ({error}).") from error
    return matrix


def check_zeros(name: str, domain: Continuous, column: Any) -> None:
    """Refuse a sparse matrix for a field that cannot be 0."""
    lower, upper = domain.bounds
    wrong = np.flatnonzero((lower > 0) | (upper < 0))
    if sp.issparse(column) and len(wrong):
        j = int(wrong[0])
        raise DomainError(
            f"field {name!r}: zeros of column {j} are outside its declared bounds, {lower[j]:g} to {upper[j]:g}; pass an array."
        )


def check_column(name: str, domain: Continuous, column: Any, clip: bool, copy: bool = True) -> Any:
    gate = Gate(name, domain, clip)
    if sp.issparse(column):
        check_zeros(name, domain, column)
        return gate.sparse(trusted_rows(name, column, domain.shape), is_single(column.dtype))
    if isinstance(column, Chunks):
        return Pieces(column, domain.shape, gate)
    step = at_once(domain.shape)
    if not isinstance(column, FileRows | Stored):
        array = gate.opened(column)
        if not isinstance(column, np.memmap) and array.nbytes <= LARGEST_COPY:
            with np.errstate(over="ignore"):  # infinity is refused by its row
                rows = array.astype(float, copy=False)
                whole = frozen(rows) if copy else rows
            single = is_single(array.dtype)
            moved = [gate.outside(rows, k * step, single) is not None for k, rows in enumerate(blocks(whole, step))]
            if not any(moved):
                return whole
            return frozen(np.concatenate([gate(rows, 0, single) for rows in blocks(whole, step)]))
        column = array
    gate.opened(column[:0])
    for k, rows in enumerate(blocks(column, step)):
        gate(rows, k * step)
    return Stored(column, gate, (len(column), *domain.shape))


class Gate:
    """What records pass whenever they are read from memory that may change.

    They are copied, and the copy is checked: whoever changes the original cannot reach what was let in.  What happens to a record
    depends on that record alone, to the last bit, and not on those beside it.
    """

    def __init__(self, name: str, domain: Continuous, clip: bool) -> None:
        self.name, self.domain, self.clip = name, domain, clip

    def opened(self, values: Any) -> NDArray[Any]:
        return numbers(self.name, values, self.domain.shape)

    def __call__(self, values: Any, first: int = 0, single: bool | None = None) -> Array:
        """Return records, the first of which has this number, in memory of their own and inside their domain."""
        array = self.opened(values)
        with np.errstate(over="ignore"):  # of numbers of more than 64 bits; infinity is refused below
            rows = np.array(array, dtype=float, order="C")
        outside = self.outside(rows, first, is_single(array.dtype) if single is None else single)
        if outside is not None:
            rows[outside] = self.domain.project(rows[outside])
        return rows

    def outside(self, rows: Array, first: int, single: bool) -> NDArray[np.bool_] | None:
        """Return which records lie outside, None if none does; refuse what exceeds the domain by more than is put back."""
        excess = self.domain.excess(rows)
        if not np.isfinite(excess.max(initial=-1.0)):
            self._check_finite(rows.reshape(len(rows), -1), first)
        return self._beyond(excess, first, single)

    def sparse(self, matrix: sp.csr_array, single: bool) -> sp.csr_array:
        if not np.isfinite(matrix.data).all():
            self._check_finite(matrix, 0)
        excess, projected = sparse_excess(self.domain, matrix)
        outside, data = self._beyond(excess, 0, single), matrix.data
        if outside is not None:
            data = np.where(np.repeat(outside, np.diff(matrix.indptr)), projected, data)
        return sp.csr_array((frozen(data), frozen(matrix.indices), frozen(matrix.indptr)), shape=matrix.shape)

    def _beyond(self, excess: Array, first: int, single: bool) -> NDArray[np.bool_] | None:
        largest = float(excess.max(initial=-1.0))
        allowed = np.inf if self.clip else SINGLE_ROUNDING if single else ROUNDING
        if not largest <= allowed:
            raise DomainError(
                f"field {self.name!r}: {int((~(excess <= allowed)).sum())} of {len(excess)} records lie outside "
                f"{shorten(repr(self.domain))} (worst: row {first + int(np.argmax(excess))}, by {100 * largest:.3g} %); "
                "rescale by public bounds, or pass clip=True."
            )
        return np.asarray(excess > self.domain.slack) if largest > self.domain.slack else None

    def _check_finite(self, rows: Any, first: int) -> None:
        found = sp.coo_array(rows)
        for k in np.flatnonzero(~np.isfinite(found.data))[:1].tolist():
            raise DomainError(
                f"field {self.name!r}: row {first + found.row[k]}, column {found.col[k]} is {found.data[k]}; "
                "remove such records or fill them in with public values."
            )


def sparse_excess(domain: Continuous, matrix: sp.csr_array) -> tuple[Array, Array]:
    """By how much each row exceeds a domain that 0 is in, relative to its size, and the entries of the rows' projections."""
    places, owners = matrix.indices, np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    if isinstance(domain, Box) or domain.norm == np.inf:
        lower, upper = domain.bounds
        over = np.maximum(lower[places] - matrix.data, matrix.data - upper[places])
        size = np.maximum(np.maximum(np.abs(lower), np.abs(upper)), np.finfo(float).tiny)
        excess = np.full(matrix.shape[0], -1.0)
        with np.errstate(over="ignore"):  # an infinite excess says what is meant
            np.maximum.at(excess, owners, over / size[places])
        return excess, np.clip(matrix.data, lower[places], upper[places])
    # Divided by its largest entry first, a row of huge numbers keeps its direction: its norm does not overflow.
    scale = np.full(matrix.shape[0], float(domain.radius))
    np.maximum.at(scale, owners, np.abs(matrix.data))
    rows = matrix.data / scale[owners]
    norms = np.bincount(owners, np.abs(rows) ** domain.norm, matrix.shape[0]) ** (1 / domain.norm)
    shrunk = rows * (domain.radius / np.where(norms > 0, norms, 1.0))[owners]
    with np.errstate(over="ignore"):
        return norms * (scale / domain.radius) - 1.0, shrunk


# Labels


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


def check_labels(name: str, declared: Sequence[Hashable], column: Any) -> NDArray[np.int64]:
    """Return the index of each entry of a discrete column among the declared values, shape (n,)."""
    pieces: Iterable[Any] = [column[:] if isinstance(column, Stored) else column]
    if isinstance(column, Chunks):
        pieces = column
    elif isinstance(column, np.ndarray | FileRows) and len(column.shape) == 1:
        pieces = blocks(column, at_once(()))
    found, count = [np.zeros(0, dtype=np.int64)], 0
    for piece in pieces:
        codes = codes_of(name, declared, piece)
        wrong = np.flatnonzero(codes < 0)
        if len(wrong):
            raise DomainError(
                f"field {name!r}: {len(wrong)} of {len(codes)} records have a value that was not declared (first: row "
                f"{count + wrong[0]}, {label_entries(name, piece)[wrong[0]]!r}); declared are {list(declared)!r}."
            )
        count += len(codes)
        found.append(codes)
    return np.concatenate(found)


def codes_of(name: str, declared: Sequence[Hashable], column: Any) -> NDArray[np.int64]:
    """Return the index of each entry among the declared values, -1 for what is none of them."""
    length_of_labels(name, declared, column)
    plain = type(column) in (np.ndarray, np.memmap) and column.dtype.kind in "iuf"
    if plain and all(isinstance(value, int | float) and abs(value) < EXACT for value in declared):
        codes = np.full(len(column), -1)
        for code, value in enumerate(declared):
            codes[column == np.float64(value)] = code  # type: ignore[arg-type]
        return codes
    index = {value: code for code, value in enumerate(declared)}
    return np.array([index.get(value, -1) for value in label_entries(name, column)], dtype=np.int64)
