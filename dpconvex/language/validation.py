"""Checks of one column of the data against its declared domain, block by block, so that large columns are not copied.

What comes back is inside the domain and stays there: an array that nobody can write to, or a column of `columns` that copies,
checks and projects every block as it is read.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.read_only import frozen
from dpconvex.core.record_domains import Ball, Box
from dpconvex.errors import DomainError, shorten
from dpconvex.language.columns import BLOCK_BYTES, Chunks, Pieces, Stored, Turned, blocks
from dpconvex.language.entries import check_shape, is_single, label_entries, length_of_labels, numbers, trusted_rows
from dpconvex.language.file_rows import FileRows

Array = NDArray[np.float64]
Continuous = Ball | Box

# A norm computed in floating point may exceed its radius by rounding; such records are put back on the sphere.
ROUNDING = 1e-9
# The same for records that were computed in single precision.
SINGLE_ROUNDING = 1e-6
# A column of at most so many bytes is copied into memory that nobody can write to; a larger one is checked whenever it is read.
LARGEST_COPY = 2**30
# With so few labels, an array is compared with each in turn.
FEW = 16
# Below this size, and it alone, whole numbers are exact as floating-point numbers: none above it rounds to one below.
EXACT = 2**53


def check_column(name: str, domain: Continuous, column: Any, clip: bool) -> Any:
    gate = Gate(name, domain, clip)
    if sp.issparse(column):
        return gate.sparse(*trusted_rows(name, column, domain.shape))
    if isinstance(column, Chunks):
        count = 0
        for piece in column:
            values = gate.opened(piece)
            gate.let_in(values, is_single(values.dtype), first=count)
            count += len(values)
        return Pieces(column, (count, *domain.shape), gate)
    lies_elsewhere = isinstance(column, FileRows | Turned)
    array = gate.opened(column[:0] if lies_elsewhere else column)
    single = is_single(array.dtype)
    if lies_elsewhere or stays(column, array):
        source = column if lies_elsewhere else array
        gate.let_in(source, single)
        return Stored(source, gate)
    copied = kept(array)
    return frozen(gate(copied, single)) if gate.let_in(copied, single) else copied


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
        result = np.empty(array.shape)
        self.let_in(array, is_single(array.dtype) if single is None else single, result)
        return result

    def let_in(self, values: Any, single: bool, result: Array | None = None, first: int = 0) -> bool:
        """Refuse records outside of the domain, and say whether some are to be put back; they are in `result`, if it is given."""
        moved, step = False, max(1, BLOCK_BYTES // max(8 * int(np.prod(values.shape[1:])), 1))
        for start in range(0, len(values), step):
            some = slice(start, min(start + step, len(values)))
            with np.errstate(over="ignore"):  # of numbers of more than 64 bits; infinity is refused below
                if result is None:
                    rows = np.ascontiguousarray(values[some], dtype=float)
                else:
                    rows = result[some]
                    rows[...] = values[some]
            outside = self._outside(rows, self.domain.excess(rows), single, first + start)
            if outside is not None:
                moved = True
                if result is not None:
                    rows[outside] = self.domain.project(rows[outside])
        return moved

    def sparse(self, matrix: sp.csr_array, single: bool) -> sp.csr_array:
        if not np.isfinite(matrix.data).all():
            entry = int(np.argmax(~np.isfinite(matrix.data)))
            row = int(np.searchsorted(matrix.indptr, entry, side="right")) - 1
            raise self._not_finite(row, int(matrix.indices[entry]), matrix.data[entry])
        if isinstance(self.domain, Ball):
            excess, projected = norm_excess(self.domain, matrix)
        else:
            excess, projected = bound_excess(self.name, self.domain, matrix)
        outside, data = self._outside(matrix, excess, single, 0), matrix.data
        if outside is not None:
            data = np.where(np.repeat(outside, np.diff(matrix.indptr)), projected, data)
        return sp.csr_array((frozen(data), frozen(matrix.indices), frozen(matrix.indptr)), shape=matrix.shape)

    def _outside(self, rows: Any, excess: Array, single: bool, first: int) -> NDArray[np.bool_] | None:
        """Return which records lie outside, None if none does; refuse what exceeds the domain by more than is put back."""
        largest = float(excess.max(initial=-1.0))  # NaN if there is one
        if not np.isfinite(largest) and not sp.issparse(rows):
            flat = rows.reshape(len(rows), -1)
            if not np.isfinite(flat).all():
                row, column = (int(i) for i in np.argwhere(~np.isfinite(flat))[0])
                raise self._not_finite(first + row, column, flat[row, column])
        allowed = np.inf if self.clip else SINGLE_ROUNDING if single else ROUNDING
        if not largest <= allowed:
            raise DomainError(
                f"field {self.name!r}: {int((~(excess <= allowed)).sum())} of {len(excess)} records lie outside "
                f"{shorten(repr(self.domain))} (worst: row {first + int(np.argmax(excess))}, by {100 * largest:.3g} %); "
                "rescale by public bounds, or pass clip=True."
            )
        return np.asarray(excess > self.domain.slack) if largest > self.domain.slack else None

    def _not_finite(self, row: int, column: int, value: float) -> DomainError:
        return DomainError(
            f"field {self.name!r}: row {row}, column {column} is {value}; "
            "remove such records or fill them in with public values."
        )


def norm_excess(domain: Ball, matrix: sp.csr_array) -> tuple[Array, Array]:
    """By how much each row exceeds a ball, relative to its radius, shape (n,), and the entries of the rows' projections."""
    largest = abs(matrix).max(axis=1).toarray().ravel() if matrix.nnz else np.zeros(matrix.shape[0])
    counts = np.diff(matrix.indptr)
    with np.errstate(over="ignore"):  # an infinite excess says what is meant
        if domain.norm == np.inf:
            return largest / domain.radius - 1.0, np.clip(matrix.data, -domain.radius, domain.radius)
        # Divided by its largest entry first, a row of huge numbers keeps its direction: its norm does not overflow.
        scale = np.maximum(largest, domain.radius)
        rows = matrix.data / np.repeat(scale, counts)
        powers = rows * rows if domain.norm == 2 else np.abs(rows)
        norms = sp.csr_array((powers, matrix.indices, matrix.indptr), shape=matrix.shape).sum(axis=1)
        norms = np.sqrt(norms) if domain.norm == 2 else norms
        shrunk = rows * np.repeat(domain.radius / np.where(norms > 0, norms, 1.0), counts)
        return norms * (scale / domain.radius) - 1.0, shrunk


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


def kept(array: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):  # infinity is refused later, by its row
        return frozen(array if array.dtype == np.float64 else array.astype(float))


def stays(column: Any, array: NDArray[Any]) -> bool:
    """Whether a column stays where it is, because it is large or its owner keeps it out of memory."""
    return isinstance(column, np.memmap) or array.nbytes > LARGEST_COPY


def check_labels(name: str, declared: Sequence[Hashable], column: Any) -> NDArray[np.int64]:
    """Return the index of each entry of a discrete column among the declared values, shape (n,)."""
    pieces: Iterable[Any] = [column[:] if isinstance(column, Turned) else column]
    if isinstance(column, Chunks):
        pieces = column
    elif isinstance(column, np.ndarray | FileRows) and len(column.shape) == 1:
        pieces = blocks(column, BLOCK_BYTES // 8)
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
    plain = type(column) in (np.ndarray, np.memmap) and column.dtype.kind in "iuf" and len(declared) <= FEW
    if plain and all(isinstance(v, int | float) and abs(v) < EXACT for v in declared):
        codes = np.full(len(column), -1)
        for code, value in enumerate(declared):
            codes[column == np.float64(value)] = code  # type: ignore[arg-type]
        return codes
    index = {value: code for code, value in enumerate(declared)}
    return np.array([index.get(value, -1) for value in label_entries(name, column)], dtype=np.int64)
