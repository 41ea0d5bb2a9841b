"""Checks of columns against their declared domains: no text, date or mask is converted, and sparse indices are verified.

A checked column stays inside its domain: it is a read-only array, or copies and checks every block when it is read.
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

from dpconvex.data.columns import FileRows, Stored, array_of, blocks, names_of, per_block
from dpconvex.data.domains import Ball, Box, Choice, Domain, excess_of
from dpconvex.errors import DomainError, shorten
from dpconvex.numerics import RECORD_TOLERANCE
from dpconvex.util.arguments import NOT_AN_ARRAY, recast
from dpconvex.util.arrays import Array, frozen

# Durations are no numbers, but NumPy counts np.timedelta64 among the integers, and converts both types to numbers.
DURATIONS = (np.timedelta64, datetime.timedelta)
TIMES = (*DURATIONS, np.datetime64, datetime.date, datetime.time)
PLAIN = (float, int, str)
# Prefixes of names of column types without numbers, in lower case.
UNNUMBERED = ("str", "large_string", "utf8", "date", "time", "duration")
ENCODED = "encode the table with a dpconvex.Schema or SchemaEncoder"
# Errors that SciPy raises for a sparse matrix with inconsistent parts.
UNFIT = (TypeError, ValueError, IndexError, AttributeError, KeyError, OverflowError, MemoryError)
# Columns of up to this many bytes are copied into read-only memory; larger ones are checked at each reading.
LARGEST_COPY = 2**30
# Columns in single precision above this many bytes stay single; blocks become double when they are read.
LARGEST_DOUBLED = 2**26


# Checks of type and shape


def nonnumeric(column: Any) -> list[str]:
    """Return the columns of a data frame or a series with texts or dates as their type. Columns of objects may be numbers."""
    kinds = getattr(column, "dtypes", getattr(column, "dtype", None))
    kinds = getattr(getattr(column, "schema", None), "types", ()) if kinds is None else kinds  # of PyArrow
    types = list(map(str, kinds)) if isinstance(kinds, Iterable) else [str(kinds)]
    names = names_of(column) or [f"of type {kind}" for kind in types]
    return [name for name, kind in zip(names, types, strict=False) if kind.lower().startswith(UNNUMBERED)]


def length_of(name: str, domain: Domain, column: Any) -> int:
    """Return the number of records of a column; raise if its type or shape cannot match the domain."""
    if isinstance(domain, Choice):
        return length_of_labels(name, domain.values, column)
    if not hasattr(column, "shape") or not isinstance(getattr(column, "dtype", None), np.dtype):
        if wrong := nonnumeric(column):
            said = f"expected real numbers, got texts or dates ({shorten(', '.join(wrong))})"
            raise DomainError(f"field {name!r}: {said}; {ENCODED}.")
        if has_masked(column):  # NumPy would warn of masked numbers, before payment
            with recast(f"field {name!r}: not an array of numbers", Exception, kind=DomainError):
                column = np.array(column, dtype=object)
        column = array_of(f"field {name!r}", column)
        if column.dtype.kind == "c":  # one complex number makes all others of a list complex
            column = column.astype(object)
    if column.shape == (0,):  # an empty list has this shape in every domain
        return 0
    length = check_array(name, domain.shape, column)
    if sp.issparse(column) and domain.excess(np.zeros((1, *domain.shape)))[0] > 0:
        raise DomainError(f"field {name!r}: its zeros are outside {shorten(repr(domain))}; pass an array.")
    return length


def check_array(name: str, shape: tuple[int, ...], column: Any) -> int:
    """Return the number of records; raise for another shape or a type without real numbers, except objects."""
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
        label_entries(name, column)  # raises; if only some are not hashable, the check of values raises
    elif shape is not None and len(column) and (isinstance(kind, np.dtype) or nonnumeric(column)):
        texts, numbers = (any(isinstance(value, t) for value in declared) for t in (str | bytes, Number))
        code = kind.kind if isinstance(kind, np.dtype) else "U" if str(kind).lower().startswith("str") else "O"
        dates = any(isinstance(value, TIMES) for value in declared)
        if code in "V" + "US" * (not texts) + "iufcb" * (not numbers) + "Mm" * (not dates):
            what = "texts" if code in "US" else "numbers" if code in "iufc" else f"{kind} entries"
            remedy = "Declare the values as they stand in the data (classes=[...] of an estimator)"
            if what == "numbers":
                classes = f"classes=range({len(declared)})"
                remedy += f". Ensembles of scikit-learn replace labels by numbers: inside them, declare {classes}"
            raise DomainError(f"field {name!r} has {what}, but declared are {list(declared)!r}. {remedy}.")
    return len(column)


def has_masked(column: Any) -> bool:
    """Return whether entries are masked, in an array or in a list of arrays."""
    if isinstance(column, np.ma.MaskedArray):
        return bool(np.ma.getmaskarray(column).any())
    if isinstance(column, np.ndarray) and column.dtype.kind == "O":
        return has_masked(column.ravel().tolist())
    with suppress(RecursionError):  # a list may contain itself; `type` is faster than a call for each number
        return isinstance(column, list | tuple) and any(has_masked(e) for e in column if type(e) not in PLAIN)
    return False


def unmasked(name: str, column: Any) -> NDArray[Any]:
    if has_masked(column):
        raise DomainError(f"field {name!r}: entries are masked; fill them in with public values.")
    return array_of(f"field {name!r}", column)


# Numbers


def real_array(name: str, column: ArrayLike, shape: tuple[int, ...] | None = None) -> NDArray[Any]:
    """Return a column as an array of real numbers, without a copy if it is one already; raise `DomainError` if it is not."""
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
    with recast(f"field {name!r}: not an array of numbers", *NOT_AN_ARRAY, kind=DomainError):
        return np.array(array, dtype=float)  # None becomes NaN


def trusted_rows(name: str, column: Any, shape: tuple[int, ...]) -> sp.csr_array:
    """Return a sparse matrix in CSR format, copied, with every index checked, because SciPy does not check them."""
    check_array(name, shape, column)
    with recast(f"field {name!r}: the parts of the sparse matrix are inconsistent", *UNFIT, kind=DomainError):
        if column.format in ("csr", "csc", "bsr"):
            kept = column.copy()
            kept.check_format(full_check=True)
        else:
            if column.format == "lil" and list(map(len, column.rows)) != list(map(len, column.data)):
                raise ValueError("the numbers of indices and of entries differ")
            found = column.tocoo()
            kept = sp.coo_array((found.data, found.coords), shape=column.shape)
        check_array(name, shape, kept)
        with np.errstate(over="ignore", invalid="ignore"):  # infinity raises later, with its row
            matrix = sp.csr_array(kept.astype(float))  # sums of small integers would overflow
            matrix.has_canonical_format = False
            matrix.sum_duplicates()
    return matrix


def check_column(name: str, domain: Ball | Box, column: Any, clip: bool) -> Any:
    gate = Gate(name, domain, clip, fresh=isinstance(column, FileRows))
    if isinstance(column, Stored) and not isinstance(column.column, FileRows | Stored | np.memmap):
        column = column[:]
    if sp.issparse(column):
        return gate.sparse(column)
    step, stays = per_block(domain.shape), isinstance(column, FileRows | Stored)
    array = column if stays else gate.opened(column)
    stays = stays or isinstance(column, np.memmap) or array.nbytes > LARGEST_COPY
    if not stays and array.dtype.kind == "f" and array.dtype.itemsize < 8 and array.nbytes > LARGEST_DOUBLED:
        array, stays = frozen(array), True
    if stays:
        gate.opened(array[:0])
        for k, rows in enumerate(blocks(array, step)):
            gate(rows, k * step)
        return Stored(array, gate, (len(array), *domain.shape))
    with np.errstate(over="ignore"):  # infinity raises later, with its row
        whole = frozen(array.astype(float, copy=False))
    if all(gate.outside(rows, k * step) is None for k, rows in enumerate(blocks(whole, step))):
        return whole
    return frozen(np.concatenate([gate(rows, k * step) for k, rows in enumerate(blocks(whole, step))]))


def finite_numbers(name: str, column: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Return features for a prediction as a float array or a CSR matrix; raise `DomainError` if some are not finite."""
    if sp.issparse(column):
        found: Any = trusted_rows(name, column, column.shape[1:] if shape is None else shape)
    else:
        found = np.asarray(real_array(name, column, shape), dtype=float)
    if not np.isfinite(found.data if sp.issparse(found) else found).all():
        raise DomainError(f"field {name!r}: the numbers must be finite; some are NaN or infinite.")
    return found


class Gate:
    """Check of records against a domain; it copies them first, unless `fresh`, because their memory may change."""

    def __init__(self, name: str, domain: Ball | Box, clip: bool, fresh: bool = False) -> None:
        self.name, self.domain, self.clip, self.fresh = name, domain, clip, fresh

    def opened(self, values: Any) -> NDArray[Any]:
        return real_array(self.name, values, self.domain.shape)

    def __call__(self, values: Any, first: int = 0) -> Array:
        """Return a copy of records, inside the domain; `first` is the number of the first record, for messages."""
        array = self.opened(values)
        with np.errstate(over="ignore"):  # numbers above 64 bits may overflow; infinity raises below
            rows = np.array(array, dtype=float, order="C", copy=None if self.fresh else True)
        outside = self.outside(rows, first)
        if outside is not None:
            rows[outside] = self.domain.project(rows[outside])
        return rows

    def sparse(self, column: Any) -> sp.csr_array:
        length_of(self.name, self.domain, column)
        domain, matrix = self.domain, trusted_rows(self.name, column, self.domain.shape)
        places, owners = matrix.indices, np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite excess is intended
            if isinstance(domain, Box) or domain.norm == np.inf:
                lower, upper = domain.bounds
                inside, excess = np.clip(matrix.data, lower[places], upper[places]), np.zeros(matrix.shape[0])
                np.maximum.at(excess, owners, excess_of(np.abs(matrix.data - inside), lower[places], upper[places]))
            else:
                powers = np.abs(matrix.data / domain.radius) ** domain.norm
                norms = np.asarray(np.bincount(owners, powers, matrix.shape[0]) ** (1 / domain.norm), dtype=float)
                inside, excess = matrix.data / np.maximum(norms, 1.0)[owners], norms - 1.0
        outside = self.outside(matrix, 0, excess)
        data = matrix.data if outside is None else np.where(outside[owners], inside, matrix.data)
        return sp.csr_array((frozen(data), frozen(places), frozen(matrix.indptr)), shape=matrix.shape)

    def outside(self, rows: Any, first: int, excess: Array | None = None) -> NDArray[np.bool_] | None:
        """Return the mask of records to project, or None; raise for infinite excess, or above the tolerance without `clip`."""
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
            table = len(self.domain.shape) == 1  # rows may be raw columns of a table
            known = f"declare bounds that hold by definition{' (bounds=... of an estimator)' * (not self.domain.shape)}"
            scale = "scale columns by public bounds (dpconvex.SchemaEncoder, unit_ball)" if table else known
            raise DomainError(f"field {self.name!r}: {said} ({worst}); {scale}, or fit with clip=True.")
        return np.asarray(excess > self.domain.slack) if largest > self.domain.slack else None


# Labels


def label_entries(name: str, column: Any) -> list[Hashable]:
    if hasattr(column, "__array__"):
        entries = unmasked(name, column).tolist()
    else:  # an array would turn a list of words and numbers into words
        entries = [value.item() if isinstance(value, np.generic) else value for value in column]
    for row, entry in enumerate(entries):
        if not isinstance(entry, Hashable):
            raise DomainError(f"field {name!r}: expected one value per record, but row {row} is {entry!r}.")
    return entries


def check_labels(name: str, declared: Sequence[Hashable], column: Any) -> NDArray[np.int64]:
    """Return the index of each entry of a discrete column among the declared values, shape (n,)."""
    several = isinstance(column, np.ndarray | FileRows | Stored) and len(column.shape) == 1
    pieces: Iterable[Any] = blocks(column, per_block(())) if several else [column]
    found, count = [np.zeros(0, dtype=np.int64)], 0
    for piece in pieces:
        codes = codes_of(name, declared, piece)
        wrong = np.flatnonzero(codes < 0)
        if len(wrong):
            said = f"{len(wrong)} of {len(codes)} records have a value that was not declared"
            first = f"row {count + wrong[0]}, {label_entries(name, piece)[wrong[0]]!r}"
            places = "(labels=(...) of dpconvex.load, classes=[...] of an estimator, groups=[...] of an evaluation)"
            remedy = f"Declare all possible values, known without these data {places}, or fill missing ones with one of these"
            raise DomainError(f"field {name!r}: {said} (first: {first}); declared are {list(declared)!r}. {remedy}.")
        count += len(codes)
        found.append(codes)
    return np.concatenate(found)


def codes_of(name: str, declared: Sequence[Hashable], column: Any) -> NDArray[np.int64]:
    """Return the index of each entry among the declared values, -1 for undeclared ones."""
    length_of_labels(name, declared, column)
    plain = type(column) in (np.ndarray, np.memmap) and column.dtype.kind in "iuf"
    # Whole numbers below 2^53 are exact as floating-point numbers, and no larger whole number rounds to one of these.
    if plain and all(isinstance(value, int | float) and abs(value) < 2**53 for value in declared):
        equal = [column == np.float64(value) for value in declared]  # type: ignore[arg-type]
        return np.select(equal, range(len(declared)), -1)
    index = {value: code for code, value in enumerate(declared)}
    return np.array([index.get(value, -1) for value in label_entries(name, column)], dtype=np.int64)
