"""Checks of one column of the data against its declared domain, block by block, so that large columns are not copied.

What comes back is inside the domain: the array itself, a projected copy, or a column of `columns` that projects as it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.columns import BLOCK_BYTES, Chunks, Pieces, Stored, blocks
from dpconvex.errors import DomainError, shorten

__all__ = ["check_column", "check_labels", "column_entries", "numbers"]

Array = NDArray[np.float64]

# A norm computed in floating point may exceed its radius by rounding; such records are put back on the sphere.
ROUNDING = 1e-9
# The same for records that were computed in single precision.
SINGLE_ROUNDING = 1e-6
# With so few labels, an array is compared with each in turn.
FEW = 4
# Labels up to this size are exact as floating-point numbers.
EXACT = 2**53


class Domain(Protocol):
    """What is asked of a continuous domain."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one value."""
        ...

    @property
    def bounds(self) -> tuple[Array, Array]:
        """Coordinatewise bounds."""
        ...

    @property
    def slack(self) -> float:
        """Excess that a projected value can have, because it is computed in floating point."""
        ...

    def excess(self, values: Array) -> Array:
        """By how much each value exceeds the domain, shape (n,)."""
        ...

    def project(self, values: Array) -> Array:
        """Project values on the domain."""
        ...


def check_column(name: str, domain: Domain, column: Any, clip: bool) -> Any:
    """Return a continuous column whose records lie in their domain.

    Parameters
    ----------
    name : str
        Of the field, for messages.
    domain : Ball or Box
    column : array_like, sparse matrix, memory map or Chunks
    clip : bool
        Project records instead of raising.

    Returns
    -------
    ndarray, scipy.sparse.csr_array, Stored or Pieces
        Of shape ``(n, *shape)``.

    Raises
    ------
    DomainError
    """
    if sp.issparse(column):
        return check_sparse(name, domain, column, clip)
    if isinstance(column, Chunks):
        survey = Survey(name, domain, clip)
        for piece in column:
            survey.look(numbers(name, piece))
        survey.finish()
        return Pieces(column, (survey.count, *domain.shape), settled(domain) if survey.outside else None)
    array = column if isinstance(column, np.memmap) else numbers(name, column)
    survey = Survey(name, domain, clip)
    survey.look(array)
    survey.finish()
    if array.dtype != np.float64 or isinstance(array, np.memmap):
        return Stored(np.asarray(array), settled(domain) if survey.outside else None)
    if not survey.outside:
        return array
    result = np.array(array)
    start = 0
    for block in blocks(array, survey.step(array)):
        outside = np.flatnonzero(domain.excess(block) > domain.slack)
        result[start + outside] = domain.project(block[outside])
        start += len(block)
    return result


def settled(domain: Domain) -> Callable[[Array], Array]:
    """Return the projection of those records that lie outside.

    The others stay as they are, to the last bit: what happens to a record does not depend on whether another one lies outside.
    """

    def project(values: Array) -> Array:
        outside = domain.excess(values) > domain.slack
        if not outside.any():
            return values
        result = np.array(values)
        result[outside] = domain.project(values[outside])
        return result

    return project


class Survey:
    """Looks at a column's records, once."""

    def __init__(self, name: str, domain: Domain, clip: bool) -> None:
        self.name, self.domain, self.clip = name, domain, clip
        self.count = 0
        self.outside = False
        self.bad = 0
        self.worst = (0, 0.0)

    def step(self, values: NDArray[Any]) -> int:
        """Number of records in a block."""
        return max(1, BLOCK_BYTES // max(8 * int(np.prod(values.shape[1:])), 1))

    def look(self, values: NDArray[Any]) -> None:
        """Take in more records."""
        domain = self.domain
        if values.ndim == 0 or values.shape[1:] != domain.shape:
            expected = ("n", *domain.shape)
            raise DomainError(
                f"field {self.name!r}: expected shape {expected}, got {values.shape}.".replace("'n'", "n")
            )
        if values.dtype.kind not in "biuf":
            raise DomainError(f"field {self.name!r}: expected real numbers, got entries of type {values.dtype}.")
        allowed = SINGLE_ROUNDING if values.dtype.kind == "f" and values.dtype.itemsize < 8 else ROUNDING
        if self.clip:
            allowed = np.inf
        for block in blocks(values, self.step(values)):
            rows = np.asarray(block, dtype=float)
            excess = domain.excess(rows)
            largest = float(excess.max(initial=-1.0))  # NaN if there is one
            if not np.isfinite(largest):
                self._refuse_infinite(rows)
            if largest > domain.slack:
                self.outside = True
            if not largest <= allowed:
                self.bad += int((excess > allowed).sum())
                if largest > self.worst[1]:
                    self.worst = (self.count + int(np.argmax(excess)), largest)
            self.count += len(rows)

    def _refuse_infinite(self, rows: Array) -> None:
        flat = rows.reshape(len(rows), -1)
        if not np.isfinite(flat).all():
            row, column = (int(i) for i in np.argwhere(~np.isfinite(flat))[0])
            raise DomainError(
                f"field {self.name!r}: row {self.count + row}, column {column} is {flat[row, column]}; "
                "remove such records or fill them in with public values."
            )

    def finish(self) -> None:
        """Refuse the column if records were outside."""
        if self.bad:
            row, excess = self.worst
            raise DomainError(
                f"field {self.name!r}: {self.bad} records lie outside {shorten(repr(self.domain))} "
                f"(worst: row {row}, by {100 * excess:.3g} %); rescale by public bounds, or pass clip=True."
            )


def check_sparse(name: str, domain: Domain, column: Any, clip: bool) -> sp.csr_array:
    """Do as `check_column` for a sparse matrix, which stays one."""
    if column.dtype.kind not in "biuf":
        raise DomainError(f"field {name!r}: expected real numbers, got entries of type {column.dtype}.")
    if column.ndim != 2 or column.shape[1:] != domain.shape:
        expected = ("n", *domain.shape)
        raise DomainError(f"field {name!r}: expected shape {expected}, got {column.shape}.".replace("'n'", "n"))
    matrix = sp.csr_array(column, dtype=float)
    if not matrix.has_canonical_format:
        matrix = matrix.copy() if matrix.data is getattr(column, "data", None) else matrix
        matrix.sum_duplicates()
    if not np.isfinite(matrix.data).all():
        entry = int(np.argmax(~np.isfinite(matrix.data)))
        row = int(np.searchsorted(matrix.indptr, entry, side="right")) - 1
        raise DomainError(
            f"field {name!r}: row {row}, column {matrix.indices[entry]} is {matrix.data[entry]}; "
            "remove such records or fill them in with public values."
        )
    radius = getattr(domain, "radius", None)
    excess = bound_excess(name, domain, matrix) if radius is None else norm_excess(domain, matrix)
    allowed = SINGLE_ROUNDING if column.dtype.kind == "f" and column.dtype.itemsize < 8 else ROUNDING
    if not clip and (excess > allowed).any():
        row = int(np.argmax(excess))
        raise DomainError(
            f"field {name!r}: {int((excess > allowed).sum())} records lie outside {shorten(repr(domain))} "
            f"(worst: row {row}, by {100 * float(excess[row]):.3g} %); rescale by public bounds, or pass clip=True."
        )
    if not (excess > domain.slack).any():
        return matrix
    if radius is None:
        lower, upper = domain.bounds
        data = np.clip(matrix.data, lower[matrix.indices], upper[matrix.indices])
    else:
        outside = np.where(excess > domain.slack, excess, 0.0)
        data = matrix.data / np.repeat(1.0 + outside, np.diff(matrix.indptr))
    return sp.csr_array((data, matrix.indices, matrix.indptr), shape=matrix.shape)


def norm_excess(domain: Any, matrix: sp.csr_array) -> Array:
    """By how much each row exceeds a ball, relative to its radius, shape (n,)."""
    size, full = matrix.shape[0], np.diff(matrix.indptr) > 0
    scaled = np.abs(matrix.data) / domain.radius
    starts = matrix.indptr[:-1][full]
    norms = np.zeros(size)
    if len(starts):
        with np.errstate(over="ignore"):  # an infinite excess says what is meant
            if domain.norm == 2:
                norms[full] = np.sqrt(np.add.reduceat(scaled * scaled, starts))
            elif domain.norm == 1:
                norms[full] = np.add.reduceat(scaled, starts)
            else:
                norms[full] = np.maximum.reduceat(scaled, starts)
    return norms - 1.0


def bound_excess(name: str, domain: Domain, matrix: sp.csr_array) -> Array:
    """By how much each row exceeds coordinatewise bounds, relative to their size, shape (n,)."""
    lower, upper = domain.bounds
    stored = np.bincount(matrix.indices, minlength=matrix.shape[1])
    missing = np.flatnonzero((stored < matrix.shape[0]) & ((lower > 0) | (upper < 0)))
    if len(missing):
        j = int(missing[0])
        raise DomainError(
            f"field {name!r}: zeros of column {j} are outside [{lower[j]:g}, {upper[j]:g}], its declared bounds; declare "
            "bounds that contain 0 for a sparse column, or pass an array."
        )
    size = np.maximum(np.maximum(np.abs(lower), np.abs(upper)), np.finfo(float).tiny)
    column = matrix.indices
    over = np.maximum(lower[column] - matrix.data, matrix.data - upper[column]) / size[column]
    excess = np.full(matrix.shape[0], -1.0)
    np.maximum.at(excess, np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), over)
    return excess


def numbers(name: str, column: ArrayLike) -> NDArray[Any]:
    """Return a column as a floating-point array, or raise `DomainError`; nothing is guessed from text, dates or masks."""
    try:
        array = np.asarray(column)
        if np.ma.isMaskedArray(column) and np.ma.getmaskarray(column).any():
            raise DomainError(f"field {name!r}: entries are masked; remove such records or fill them in.")
        if array.dtype.kind not in "biufO":
            raise DomainError(f"field {name!r}: expected real numbers, got entries of type {array.dtype}.")
        if array.dtype in (np.float64, np.float32):
            view = array.view()
            view.setflags(write=False)
            return view
        return np.array(array, dtype=float)
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, DomainError):
            raise
        raise DomainError(f"field {name!r}: not an array of numbers ({error}).") from error


def check_labels(name: str, declared: Sequence[Hashable], column: Any) -> NDArray[np.int64]:
    """Return the index of each entry of a discrete column among the declared values, shape (n,).

    Raises
    ------
    DomainError
        If an entry was not declared; names the first.
    """
    found: list[NDArray[np.int64]] = []
    first: tuple[int, object] | None = None
    bad = count = 0
    for piece in label_pieces(column):
        codes = array_codes(declared, piece)
        entries: Any = piece
        if codes is None:
            entries = column_entries(name, piece)
            index = {value: code for code, value in enumerate(declared)}
            codes = np.array([index.get(value, -1) for value in entries], dtype=np.int64)
        if (codes < 0).any():
            row = int(np.argmax(codes < 0))
            bad += int((codes < 0).sum())
            value = entries[row].item() if isinstance(entries[row], np.generic) else entries[row]
            first = first or (count + row, value)
        count += len(codes)
        found.append(codes)
    if first is not None:
        raise DomainError(
            f"field {name!r}: {bad} records have a value that was not declared "
            f"(first: row {first[0]}, {first[1]!r}); declared are {list(declared)!r}."
        )
    return found[0] if len(found) == 1 else np.concatenate([np.zeros(0, dtype=np.int64), *found])


def label_pieces(column: Any) -> Iterator[Any]:
    """Yield a discrete column in pieces that are looked at together."""
    if isinstance(column, Chunks):
        yield from column
    elif isinstance(column, np.ndarray) and column.ndim == 1 and len(column) > BLOCK_BYTES // 8:
        yield from blocks(column, BLOCK_BYTES // 8)
    else:
        yield column


def array_codes(declared: Sequence[Hashable], column: Any) -> NDArray[np.int64] | None:
    """Do the work of `check_labels` for an array of numbers without Python objects; None if it is none."""
    if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "iuf":
        return None
    if not all(isinstance(v, int | float) and abs(v) <= EXACT for v in declared) or len(column) == 0:
        return None
    values = np.array([float(v) for v in declared])  # type: ignore[arg-type]
    order = np.argsort(values)
    if len(values) <= FEW:
        codes = np.full(len(column), -1)
        for code, value in enumerate(values):
            codes[column == value] = code
        return codes
    entries = np.asarray(column, dtype=float)
    place = np.minimum(np.searchsorted(values[order], entries), len(values) - 1)
    codes = order[place]
    return np.where(values[codes] == entries, codes, -1)


def column_entries(name: str, column: ArrayLike) -> list[Hashable]:
    """Return the entries of a discrete column as plain Python values, or raise `DomainError`."""
    if hasattr(column, "__array__"):
        array = np.asarray(column)
        if array.ndim != 1:
            raise DomainError(f"field {name!r}: expected one value per record, got an array of shape {array.shape}.")
        entries = array.tolist()
    elif isinstance(column, Iterable) and not isinstance(column, str | bytes | Mapping):
        # Not through an array: that would turn a list of words and numbers into words.
        entries = [v.item() if isinstance(v, np.generic) else v for v in column]
    else:
        raise DomainError(f"field {name!r}: expected one value per record, got {column!r}.")
    for row, entry in enumerate(entries):
        if not isinstance(entry, Hashable):
            raise DomainError(f"field {name!r}: expected one value per record, but row {row} is {entry!r}.")
    return entries
