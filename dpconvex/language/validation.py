"""Checks of one column of the data against its declared domain, block by block, so that large columns are not copied.

What comes back is inside the domain and stays there: an array that nobody can write to, or a column of `columns` that copies,
checks and projects every block as it is read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from dpconvex.core.read_only import frozen
from dpconvex.core.record_domains import Ball, Box
from dpconvex.errors import DomainError, shorten
from dpconvex.language.columns import BLOCK_BYTES, Chunks, Pieces, Stored, Turned, blocks
from dpconvex.language.entries import has_masked, numbers, trusted_rows
from dpconvex.language.file_rows import FileRows
from dpconvex.language.forms import check_shape

Array = NDArray[np.float64]
Continuous = Ball | Box

# A norm computed in floating point may exceed its radius by rounding; such records are put back on the sphere.
ROUNDING = 1e-9
# The same for records that were computed in single precision.
SINGLE_ROUNDING = 1e-6
# A column of at most so many bytes is copied into memory that nobody can write to; a larger one is checked whenever it is read.
LARGEST_COPY = 2**30
# With so few labels, an array is compared with each in turn.
FEW = 4
# Below this size, and it alone, whole numbers are exact as floating-point numbers: none above it rounds to one below.
EXACT = 2**53


def check_column(name: str, domain: Continuous, column: Any, clip: bool) -> Any:
    """Return a continuous column whose records lie in their domain."""
    gate = Gate(name, domain, clip)
    if sp.issparse(column):
        matrix, single = trusted_rows(name, column, domain.shape)
        survey = Survey(gate, single)
        data = survey.sparse(matrix)
        survey.finish()
        return sp.csr_array((frozen(data), frozen(matrix.indices), frozen(matrix.indptr)), shape=matrix.shape)
    if isinstance(column, Chunks):
        survey = Survey(gate)
        for piece in column:
            survey.look(gate.opened(piece))
        survey.finish()
        return Pieces(column, (survey.count, *domain.shape), gate)
    lies_elsewhere = isinstance(column, FileRows | Turned)
    array = column if lies_elsewhere else gate.opened(column)
    if lies_elsewhere:
        gate.opened(column[:0])
    survey = Survey(gate, is_single(array.dtype))
    if lies_elsewhere or stays(column, array):
        survey.look(array)
        survey.finish()
        return Stored(array, gate)
    copied = kept(array)
    survey.look(copied)
    survey.finish()
    return frozen(gate(copied, survey.single)) if survey.outside else copied


class Gate:
    """What records pass whenever they are read from memory that may change.

    They are copied, and the copy is checked: whoever changes the original cannot reach what was let in.  What happens to a record
    depends on that record alone, to the last bit, and not on those beside it.
    """

    def __init__(self, name: str, domain: Continuous, clip: bool) -> None:
        self.name, self.domain, self.clip = name, domain, clip

    def opened(self, values: Any) -> NDArray[Any]:
        """Return an array of real numbers of the right shape, not copied if it was one, or raise `DomainError`."""
        array = numbers(self.name, values)
        check_shape(self.name, self.domain.shape, array.shape)
        return array

    def __call__(self, values: Any, single: bool | None = None) -> Array:
        """Return records in double precision, in memory of their own and inside their domain; those of a file are read here."""
        array = values if isinstance(values, FileRows) else self.opened(values)
        survey = Survey(self, is_single(array.dtype) if single is None else single)
        result = np.empty(array.shape)
        for start in range(0, len(array), step := rows_at_once(array)):
            rows = result[start : start + step]
            some = slice(start, start + step)
            survey.take(rows, array.part(some) if isinstance(array, FileRows) else array[some])
        survey.finish()
        return result


def rows_at_once(values: NDArray[Any] | FileRows | Turned) -> int:
    """Return the number of records that are checked together."""
    return max(1, BLOCK_BYTES // max(8 * int(np.prod(values.shape[1:])), 1))


class Survey:
    """Looks at a column's records, once; those of single precision may exceed their domain by more and are put back."""

    def __init__(self, gate: Gate, single: bool = False) -> None:
        self.name, self.domain, self.clip, self.single = gate.name, gate.domain, gate.clip, single
        self.count = self.bad = 0
        self.outside = False
        self.worst = (0, 0.0)

    def look(self, values: NDArray[Any] | FileRows | Turned) -> None:
        """Take in more records, which stay as they are."""
        self.single = self.single or is_single(values.dtype)
        for block in blocks(values, rows_at_once(values)):
            with np.errstate(over="ignore"):  # of numbers of more than 64 bits; infinity is refused below
                self._judge(np.ascontiguousarray(block, dtype=float))

    def take(self, rows: Array, values: NDArray[Any] | FileRows) -> None:
        """Take in more records: write them to `rows`, those outside of the domain as their projections."""
        if isinstance(values, FileRows):
            values.fill(rows)
        else:
            with np.errstate(over="ignore"):
                rows[...] = values
        outside = self._judge(rows)
        if outside is not None:
            rows[outside] = self.domain.project(rows[outside])

    def sparse(self, matrix: sp.csr_array) -> Array:
        """Take in sparse records; returns the numbers of their projections."""
        if not np.isfinite(matrix.data).all():
            entry = int(np.argmax(~np.isfinite(matrix.data)))
            row = int(np.searchsorted(matrix.indptr, entry, side="right")) - 1
            self._refuse(row, int(matrix.indices[entry]), matrix.data[entry])
        excess, projected = (
            norm_excess(self.domain, matrix)
            if isinstance(self.domain, Ball)
            else bound_excess(self.name, self.domain, matrix)
        )
        self._count(excess)
        self.count += matrix.shape[0]
        outside = np.repeat(excess > self.domain.slack, np.diff(matrix.indptr))
        return np.asarray(np.where(outside, projected, matrix.data) if outside.any() else matrix.data)

    def _judge(self, rows: Array) -> NDArray[np.bool_] | None:
        """Count records; returns which of them lie outside, None if none does."""
        excess = self.domain.excess(rows)
        largest = float(excess.max(initial=-1.0))  # NaN if there is one
        if not np.isfinite(largest):
            flat = rows.reshape(len(rows), -1)
            if not np.isfinite(flat).all():
                row, column = (int(i) for i in np.argwhere(~np.isfinite(flat))[0])
                self._refuse(self.count + row, column, flat[row, column])
        self._count(excess)
        self.count += len(rows)
        if not largest > self.domain.slack:
            return None
        self.outside = True
        return np.asarray(excess > self.domain.slack)

    def _count(self, excess: Array) -> None:
        """Count records that exceed their domain, relative to its size, by more than what is put back."""
        allowed = np.inf if self.clip else SINGLE_ROUNDING if self.single else ROUNDING
        largest = float(excess.max(initial=-1.0))
        if not largest <= allowed:
            self.bad += int((~(excess <= allowed)).sum())
            if not largest <= self.worst[1]:
                self.worst = (self.count + int(np.argmax(excess)), largest)

    def _refuse(self, row: int, column: int, value: float) -> NoReturn:
        raise DomainError(
            f"field {self.name!r}: row {row}, column {column} is {value}; "
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


def norm_excess(domain: Ball, matrix: sp.csr_array) -> tuple[Array, Array]:
    """By how much each row exceeds a ball, relative to its radius, shape (n,), and the entries of the rows' projections."""
    counts = np.diff(matrix.indptr)
    starts = matrix.indptr[:-1][counts > 0]
    size = np.abs(matrix.data)
    largest = np.zeros(matrix.shape[0])
    if len(starts):
        largest[counts > 0] = np.maximum.reduceat(size, starts)
    if domain.norm == np.inf:
        with np.errstate(over="ignore"):
            return largest / domain.radius - 1.0, np.clip(matrix.data, -domain.radius, domain.radius)
    # Divided by its largest entry first, a row of huge numbers keeps its direction: its norm does not overflow.
    scale = np.maximum(largest, domain.radius)
    each = np.repeat(scale, counts)
    rows, norms = matrix.data / each, np.zeros(matrix.shape[0])
    if len(starts):
        sums = np.add.reduceat(rows * rows if domain.norm == 2 else np.abs(rows), starts)
        norms[counts > 0] = np.sqrt(sums) if domain.norm == 2 else sums
    with np.errstate(over="ignore"):  # an infinite excess says what is meant
        excess = norms * (scale / domain.radius) - 1.0
    return excess, rows * np.repeat(domain.radius / np.where(norms > 0, norms, 1.0), counts)


def bound_excess(name: str, domain: Box, matrix: sp.csr_array) -> tuple[Array, Array]:
    """By how much each row exceeds coordinatewise bounds, relative to their size, and the entries of the rows' projections."""
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
    with np.errstate(over="ignore"):
        over = np.maximum(lower[column] - matrix.data, matrix.data - upper[column]) / size[column]
    excess = np.full(matrix.shape[0], -1.0)
    np.maximum.at(excess, np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), over)
    return excess, np.clip(matrix.data, lower[column], upper[column])


def is_single(kind: np.dtype[Any]) -> bool:
    """Whether numbers of a type are less precise than a float."""
    return kind.kind == "f" and kind.itemsize < 8


def kept(array: NDArray[Any]) -> NDArray[Any]:
    """Return real numbers in double precision that nobody can write to."""
    with np.errstate(over="ignore"):  # infinity is refused later, by its row
        return frozen(array if array.dtype == np.float64 else array.astype(float))


def held(name: str, column: Any) -> Any:
    """Return a continuous column that many checks can share: they copy it no more."""
    if isinstance(column, Chunks) or sp.issparse(column):
        return column
    array = numbers(name, column)
    return column if stays(column, array) else kept(array)


def stays(column: Any, array: NDArray[Any]) -> bool:
    """Whether a column stays where it is, because it is large or its owner keeps it out of memory."""
    return isinstance(column, np.memmap) or array.nbytes > LARGEST_COPY


def check_labels(name: str, declared: Sequence[Hashable], column: Any) -> NDArray[np.int64]:
    """Return the index of each entry of a discrete column among the declared values, shape (n,)."""
    if isinstance(column, Chunks):
        pieces = iter(column)
    elif isinstance(column, np.ndarray | FileRows) and column.ndim == 1:
        pieces = blocks(column, BLOCK_BYTES // 8)
    else:
        pieces = iter([column[:] if isinstance(column, FileRows) else column])
    found = [np.zeros(0, dtype=np.int64)]
    first: tuple[int, object] | None = None
    bad = count = 0
    for piece in pieces:
        codes = codes_of(name, declared, piece)
        wrong = np.flatnonzero(codes < 0)
        if len(wrong):
            bad += len(wrong)
            first = first or (count + int(wrong[0]), column_entries(name, piece)[wrong[0]])
        count += len(codes)
        found.append(codes)
    if first is not None:
        raise DomainError(
            f"field {name!r}: {bad} records have a value that was not declared "
            f"(first: row {first[0]}, {first[1]!r}); declared are {list(declared)!r}."
        )
    return np.concatenate(found)


def codes_of(name: str, declared: Sequence[Hashable], column: Any) -> NDArray[np.int64]:
    """Return the index of each entry among the declared values, -1 for what is none of them; numbers without Python objects."""
    plain = type(column) in (np.ndarray, np.memmap) and column.ndim == 1 and column.dtype.kind in "iuf"
    if plain and all(isinstance(v, int | float) and abs(v) < EXACT for v in declared):
        codes = np.full(len(column), -1)
        values = np.array([float(v) for v in declared])  # type: ignore[arg-type]
        if len(values) <= FEW:
            for code, value in enumerate(values):
                codes[column == value] = code
            return codes
        order, entries = np.argsort(values), np.asarray(column, dtype=float)
        codes = order[np.minimum(np.searchsorted(values[order], entries), len(values) - 1)]
        return np.where(values[codes] == entries, codes, -1)
    index = {value: code for code, value in enumerate(declared)}
    return np.array([index.get(value, -1) for value in column_entries(name, column)], dtype=np.int64)


def column_entries(name: str, column: ArrayLike) -> list[Hashable]:
    """Return the entries of a discrete column as plain Python values, or raise `DomainError`."""
    if has_masked(column):
        raise DomainError(f"field {name!r}: entries are masked; remove such records or fill them in.")
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
