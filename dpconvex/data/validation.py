"""Checks of a column against its declared domain: nothing is guessed from text, dates or masks, and no index is believed.

What comes back stays inside: an array that nobody can write to, or a column that copies and checks every block as it is read.
"""

import datetime
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from numbers import Number, Real
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.data.columns import FileRows, Stored, array_of, at_once, blocks, names_of
from dpconvex.data.domains import Ball, Box, Choice, Domain, relative
from dpconvex.errors import DomainError, shorten
from dpconvex.numerics import RECORD_TOLERANCE
from dpconvex.util.arguments import NOT_AN_ARRAY, retold
from dpconvex.util.arrays import Array, frozen

# What no number is, though NumPy counts its durations among the integers and makes numbers of both.
DURATIONS = (np.timedelta64, datetime.timedelta)
TIMES = (*DURATIONS, np.datetime64, datetime.date, datetime.time)
PLAIN = (float, int, str)
# Beginnings of types of columns without numbers, in lower case.
UNNUMBERED = ("str", "large_string", "utf8", "date", "time", "duration")
ENCODED = "encode the table with a dpconvex.Schema or SchemaEncoder"
# What SciPy raises of a sparse matrix whose parts do not fit.
UNFIT = (TypeError, ValueError, IndexError, AttributeError, KeyError, OverflowError, MemoryError)
# A column of at most so many bytes is copied into memory that nobody can write to; a larger one is checked whenever it is read.
LARGEST_COPY = 2**30
# A larger copy of single precision stays as it is, half as large as what is made of its blocks when they are read.
LARGEST_DOUBLED = 2**26


# What needs no values


def unnumbered(column: Any) -> list[str]:
    """Return which columns of a data frame, or of pandas alone, have texts or dates as their type; objects may be numbers."""
    kinds = getattr(column, "dtypes", getattr(column, "dtype", None))
    kinds = getattr(getattr(column, "schema", None), "types", ()) if kinds is None else kinds  # of PyArrow
    types = list(map(str, kinds)) if isinstance(kinds, Iterable) else [str(kinds)]
    names = names_of(column) or [f"of type {kind}" for kind in types]
    return [name for name, kind in zip(names, types, strict=False) if kind.lower().startswith(UNNUMBERED)]


def length_of(name: str, domain: Domain, column: Any) -> int:
    """Return the number of records of a column, or refuse what is none of the domain, whatever its values are."""
    if isinstance(domain, Choice):
        return length_of_labels(name, domain.values, column)
    if not hasattr(column, "shape") or not isinstance(getattr(column, "dtype", None), np.dtype):
        if wrong := unnumbered(column):
            said = f"expected real numbers, got texts or dates ({shorten(', '.join(wrong))})"
            raise DomainError(f"field {name!r}: {said}; {ENCODED}.")
        column = array_of(f"field {name!r}", column)
    if column.shape == (0,):  # what no records look like, whatever their shape
        return 0
    length = check_array(name, domain.shape, column)
    if sp.issparse(column) and domain.excess(np.zeros((1, *domain.shape)))[0] > 0:
        raise DomainError(f"field {name!r}: zeros are outside {shorten(repr(domain))}; pass an array.")
    return length


def check_array(name: str, shape: tuple[int, ...], column: Any) -> int:
    """Return the number of records, or refuse another shape, or entries of a type of no real numbers; objects are values."""
    found = tuple(column.shape)
    if len(found) != 1 + len(shape) or found[1:] != shape:
        expected = f"({', '.join(['n', *map(str, shape)])}{',' if not shape else ''})"
        raise DomainError(f"field {name!r}: expected shape {expected}, got {found}.")
    if column.dtype.kind not in "biufO":
        raise DomainError(f"field {name!r}: expected real numbers, got entries of type {column.dtype}.")
    return int(found[0])


def length_of_labels(name: str, declared: Sequence[Hashable], column: Any) -> int:
    kind = getattr(column, "dtype", None)
    shape = None if kind is None else tuple(getattr(column, "shape", ()))
    wrong = sp.issparse(column) or isinstance(column, str | bytes | Mapping | set | frozenset)
    if wrong or not hasattr(column, "__len__") or (shape is not None and len(shape) != 1):
        what = f"a {type(column).__name__}" if shape is None else f"an array of shape {shape}"
        raise DomainError(f"field {name!r}: expected one value per record, got {what}.")
    if shape is None and not any(isinstance(entry, Hashable) for entry in column):
        label_entries(name, column)  # a few of them are values
    elif shape is not None and len(column) and (isinstance(kind, np.dtype) or unnumbered(column)):
        texts, numbers = (any(isinstance(value, t) for value in declared) for t in (str | bytes, Number))
        code = kind.kind if isinstance(kind, np.dtype) else "U" if str(kind).lower().startswith("str") else "O"
        dates = any(isinstance(value, TIMES) for value in declared)
        if code in "V" + "US" * (not texts) + "iufcb" * (not numbers) + "Mm" * (not dates):
            what = "texts" if code in "US" else "numbers" if code in "iufc" else f"{kind} entries"
            remedy = "Declare the values as they stand in the data (classes=[...] of an estimator)"
            if what == "numbers":
                classes = f"classes=range({len(declared)})"
                remedy += f". Ensembles of scikit-learn number sorted labels: there, declare {classes}"
            raise DomainError(f"field {name!r} has {what}, and declared are {list(declared)!r}. {remedy}.")
    return len(column)


def has_masked(column: Any) -> bool:
    """Say whether entries are masked, in an array or in a list of arrays; a list that contains itself is no column anyway."""
    if isinstance(column, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(column).any())
    if isinstance(column, np.ndarray) and column.dtype.kind == "O":
        return has_masked(column.ravel().tolist())
    with suppress(RecursionError):  # to its bottom; `type` is quicker than a call for each number
        return isinstance(column, list | tuple) and any(has_masked(e) for e in column if type(e) not in PLAIN)
    return False


def unmasked(name: str, column: Any) -> NDArray[Any]:
    if has_masked(column):
        raise DomainError(f"field {name!r}: entries are masked; fill them in with public values.")
    return array_of(f"field {name!r}", column)


# Numbers


def numbers(name: str, column: ArrayLike, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Return a column as an array of real numbers, of a shape, not copied if it was one, or raise `DomainError`."""
    array = unmasked(name, column)
    if shape is not None and array.shape == (0,):
        array = array.reshape(0, *shape)
    wanted = array.shape[1:] if shape is None else shape
    check_array(name, wanted, np.atleast_1d(array) if shape is None else array)
    if array.dtype.kind != "O":
        return array
    for place, entry in enumerate(array.ravel().tolist()):
        if isinstance(entry, DURATIONS) or not (entry is None or isinstance(entry, Real | Decimal | np.bool_)):
            row, kind = place // max(int(np.prod(wanted)), 1), type(entry).__name__
            remedy = f"; {ENCODED}" * (len(wanted) == 1)
            raise DomainError(f"field {name!r}: not an array of numbers (row {row} holds a {kind}){remedy}.")
    with retold(f"field {name!r}: not an array of numbers", *NOT_AN_ARRAY, kind=DomainError):
        return np.array(array, dtype=float)  # None becomes NaN


def trusted_rows(name: str, column: Any, shape: tuple[int, ...]) -> sp.csr_array:
    """Return a sparse matrix in rows, from copies of what it holds, with every index checked, which SciPy does not do."""
    check_array(name, shape, column)
    with retold(f"field {name!r}: the indices of the sparse matrix do not fit it", *UNFIT, kind=DomainError):
        if column.format in ("csr", "csc", "bsr"):
            kept = column.copy()
            kept.check_format(full_check=True)
        else:
            if column.format == "lil" and list(map(len, column.rows)) != list(map(len, column.data)):
                raise ValueError("it has other numbers of indices than of entries")
            found = column.tocoo()
            kept = sp.coo_array((found.data, found.coords), shape=column.shape)
        check_array(name, shape, kept)
        with np.errstate(over="ignore", invalid="ignore"):  # infinity is refused later, by its row
            matrix = sp.csr_array(kept.astype(float))  # small integers would wrap around where they are added up
            matrix.has_canonical_format = False
            matrix.sum_duplicates()
    return matrix


def check_column(name: str, domain: Ball | Box, column: Any, clip: bool) -> Any:
    gate = Gate(name, domain, clip, fresh=isinstance(column, FileRows))
    if isinstance(column, Stored) and not isinstance(column.column, FileRows | Stored | np.memmap):
        column = column[:]
    if sp.issparse(column):
        return gate.sparse(column)
    step, stays = at_once(domain.shape), isinstance(column, FileRows | Stored)
    array = column if stays else gate.opened(column)
    stays = stays or isinstance(column, np.memmap) or array.nbytes > LARGEST_COPY
    if not stays and array.dtype.kind == "f" and array.dtype.itemsize < 8 and array.nbytes > LARGEST_DOUBLED:
        array, stays = frozen(array), True
    if stays:
        gate.opened(array[:0])
        for k, rows in enumerate(blocks(array, step)):
            gate(rows, k * step)
        return Stored(array, gate, (len(array), *domain.shape))
    with np.errstate(over="ignore"):  # infinity is refused by its row
        whole = frozen(array.astype(float, copy=False))
    if all(gate.outside(rows, k * step) is None for k, rows in enumerate(blocks(whole, step))):
        return whole
    return frozen(np.concatenate([gate(rows, k * step) for k, rows in enumerate(blocks(whole, step))]))


def finite_numbers(name: str, column: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Return finite numbers, an array or a sparse matrix in rows, that somebody wants to predict from."""
    if sp.issparse(column):
        found: Any = trusted_rows(name, column, column.shape[1:] if shape is None else shape)
    else:
        found = np.asarray(numbers(name, column, shape), dtype=float)
    if not np.isfinite(found.data if sp.issparse(found) else found).all():
        raise DomainError(f"field {name!r}: the numbers must be finite; some are NaN or infinite.")
    return found


class Gate:
    """A check of records that are read from memory that may change: it copies them, unless `fresh`, and looks at each."""

    def __init__(self, name: str, domain: Ball | Box, clip: bool, fresh: bool = False) -> None:
        self.name, self.domain, self.clip, self.fresh = name, domain, clip, fresh

    def opened(self, values: Any) -> NDArray[Any]:
        return numbers(self.name, values, self.domain.shape)

    def __call__(self, values: Any, first: int = 0) -> Array:
        """Return records, the first of which has this number, in memory of their own and inside their domain."""
        array = self.opened(values)
        with np.errstate(over="ignore"):  # of numbers of more than 64 bits; infinity is refused below
            rows = np.array(array, dtype=float, order="C", copy=None if self.fresh else True)
        outside = self.outside(rows, first)
        if outside is not None:
            rows[outside] = self.domain.project(rows[outside])
        return rows

    def sparse(self, column: Any) -> sp.csr_array:
        length_of(self.name, self.domain, column)
        domain, matrix = self.domain, trusted_rows(self.name, column, self.domain.shape)
        places, owners = matrix.indices, np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite excess says what is meant
            if isinstance(domain, Box) or domain.norm == np.inf:
                lower, upper = domain.bounds
                inside, excess = np.clip(matrix.data, lower[places], upper[places]), np.zeros(matrix.shape[0])
                np.maximum.at(excess, owners, relative(np.abs(matrix.data - inside), lower[places], upper[places]))
            else:
                powers = np.abs(matrix.data / domain.radius) ** domain.norm
                norms = np.asarray(np.bincount(owners, powers, matrix.shape[0]) ** (1 / domain.norm), dtype=float)
                inside, excess = matrix.data / np.maximum(norms, 1.0)[owners], norms - 1.0
        outside = self.outside(matrix, 0, excess)
        data = matrix.data if outside is None else np.where(outside[owners], inside, matrix.data)
        return sp.csr_array((frozen(data), frozen(places), frozen(matrix.indptr)), shape=matrix.shape)

    def outside(self, rows: Any, first: int, excess: Array | None = None) -> NDArray[np.bool_] | None:
        """Return which records lie outside, None if none does; refuse what exceeds the domain by more than is put back."""
        excess = self.domain.excess(rows) if excess is None else excess
        largest = float(excess.max(initial=-1.0))
        if not np.isfinite(largest):
            found = sp.coo_array(rows if sp.issparse(rows) else rows.reshape(len(rows), -1))
            for k in np.flatnonzero(~np.isfinite(found.data))[:1].tolist():
                where = f"row {first + found.row[k]}, column {found.col[k]}"
                value = str(found.data[k]).replace("nan", "NaN")
                said = f"{where} is {value}; fill it in with a public value, such as that of a Schema"
                raise DomainError(f"field {self.name!r}: {said}.")
        allowed = np.inf if self.clip else RECORD_TOLERANCE
        if not largest <= allowed:
            count = len(excess) - int((excess <= allowed).sum())
            said = f"{count} of {len(excess)} records lie outside {shorten(repr(self.domain))}"
            worst = f"worst: row {first + int(np.argmax(excess))}, by {float(f'{100 * largest:.3g}'):,.15g} %"
            table = len(self.domain.shape) == 1  # of which a row may be raw columns
            known = f"declare bounds that hold by definition{' (bounds=... of an estimator)' * (not self.domain.shape)}"
            scale = "scale columns by public bounds (dpconvex.SchemaEncoder, unit_ball)" if table else known
            raise DomainError(f"field {self.name!r}: {said} ({worst}); {scale}, or fit with clip=True.")
        return np.asarray(excess > self.domain.slack) if largest > self.domain.slack else None


# Labels


def label_entries(name: str, column: Any) -> list[Hashable]:
    if hasattr(column, "__array__"):
        entries = unmasked(name, column).tolist()
    else:  # not through an array: that would turn a list of words and numbers into words
        entries = [value.item() if isinstance(value, np.generic) else value for value in column]
    for row, entry in enumerate(entries):
        if not isinstance(entry, Hashable):
            raise DomainError(f"field {name!r}: expected one value per record, but row {row} is {entry!r}.")
    return entries


def check_labels(name: str, declared: Sequence[Hashable], column: Any) -> NDArray[np.int64]:
    """Return the index of each entry of a discrete column among the declared values, shape (n,)."""
    several = isinstance(column, np.ndarray | FileRows | Stored) and len(column.shape) == 1
    pieces: Iterable[Any] = blocks(column, at_once(())) if several else [column]
    found, count = [np.zeros(0, dtype=np.int64)], 0
    for piece in pieces:
        codes = codes_of(name, declared, piece)
        wrong = np.flatnonzero(codes < 0)
        if len(wrong):
            said = f"{len(wrong)} of {len(codes)} records have a value that was not declared"
            first = f"row {count + wrong[0]}, {label_entries(name, piece)[wrong[0]]!r}"
            places = "(labels=(...) of dpconvex.load, classes=[...] of an estimator, groups=[...] of an evaluation)"
            remedy = (
                f"Declare all that may occur, known without these data {places}, or fill missing ones with one of these"
            )
            raise DomainError(f"field {name!r}: {said} (first: {first}); declared are {list(declared)!r}. {remedy}.")
        count += len(codes)
        found.append(codes)
    return np.concatenate(found)


def codes_of(name: str, declared: Sequence[Hashable], column: Any) -> NDArray[np.int64]:
    """Return the index of each entry among the declared values, -1 for what is none of them."""
    length_of_labels(name, declared, column)
    plain = type(column) in (np.ndarray, np.memmap) and column.dtype.kind in "iuf"
    # Whole numbers below 2^53, and they alone, are exact as floating-point numbers: none above rounds to one below.
    if plain and all(isinstance(value, int | float) and abs(value) < 2**53 for value in declared):
        equal = [column == np.float64(value) for value in declared]  # type: ignore[arg-type]
        return np.select(equal, range(len(declared)), -1)
    index = {value: code for code, value in enumerate(declared)}
    return np.array([index.get(value, -1) for value in label_entries(name, column)], dtype=np.int64)
