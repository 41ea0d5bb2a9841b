"""Checks of one column of the data against its declared domain, block by block, so that large columns are not copied.

What comes back is inside the domain and stays there: an array that nobody can write to, or a column of `columns` that copies,
checks and projects every block as it is read.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.read_only import frozen
from dpconvex.core.record_domains import Ball, Box
from dpconvex.errors import DomainError, shorten
from dpconvex.language.columns import Chunks, Pieces, Stored, at_once, blocks
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
# Below this size, and it alone, whole numbers are exact as floating-point numbers: none above it rounds to one below.
EXACT = 2**53


def check_column(name: str, domain: Continuous, column: Any, clip: bool) -> Any:
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
                copied = frozen(array if array.dtype == np.float64 else array.astype(float))
            single = is_single(array.dtype)
            moved = [gate.outside(rows, k * step, single) is not None for k, rows in enumerate(blocks(copied, step))]
            return (
                frozen(np.concatenate([gate(rows, 0, single) for rows in blocks(copied, step)]))
                if any(moved)
                else copied
            )
        column = array
    gate.opened(column[:0])
    for k, rows in enumerate(blocks(column, step)):
        gate(rows, k * step)
    return Stored(column, gate, tuple(column.shape))


def check_zeros(name: str, domain: Continuous, column: Any) -> None:
    """Refuse a sparse matrix for a field that cannot be 0."""
    lower, upper = domain.bounds
    wrong = np.flatnonzero((lower > 0) | (upper < 0))
    if sp.issparse(column) and len(wrong):
        j = int(wrong[0])
        raise DomainError(
            f"field {name!r}: zeros of column {j} are outside [{lower[j]:g}, {upper[j]:g}], its declared bounds; declare "
            "bounds that contain 0 for a sparse column, or pass an array."
        )


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
            flat = rows.reshape(len(rows), -1)
            for row, column in np.argwhere(~np.isfinite(flat))[:1].tolist():
                raise self._not_finite(first + row, column, flat[row, column])
        return self._beyond(excess, first, single)

    def sparse(self, matrix: sp.csr_array, single: bool) -> sp.csr_array:
        if not np.isfinite(matrix.data).all():
            entry = int(np.argmax(~np.isfinite(matrix.data)))
            row = int(np.searchsorted(matrix.indptr, entry, side="right")) - 1
            raise self._not_finite(row, int(matrix.indices[entry]), matrix.data[entry])
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

    def _not_finite(self, row: int, column: int, value: float) -> DomainError:
        return DomainError(
            f"field {self.name!r}: row {row}, column {column} is {value}; "
            "remove such records or fill them in with public values."
        )


def sparse_excess(domain: Continuous, matrix: sp.csr_array) -> tuple[Array, Array]:
    """By how much each row exceeds a domain that 0 is in, relative to its size, and the entries of the rows' projections."""
    counts, places = np.diff(matrix.indptr), matrix.indices
    owners = np.repeat(np.arange(matrix.shape[0]), counts)
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
    rows = np.abs(matrix.data) / scale[owners]
    norms = np.bincount(owners, rows**domain.norm, matrix.shape[0]) ** (1 / domain.norm)
    shrunk = matrix.data / scale[owners] * (domain.radius / np.where(norms > 0, norms, 1.0))[owners]
    with np.errstate(over="ignore"):
        return norms * (scale / domain.radius) - 1.0, shrunk


def check_labels(name: str, declared: Sequence[Hashable], column: Any) -> NDArray[np.int64]:
    """Return the index of each entry of a discrete column among the declared values, shape (n,)."""
    plain = isinstance(column, np.ndarray | FileRows) and len(column.shape) == 1
    whole = [column[:] if isinstance(column, Stored) else column]
    found, count = [np.zeros(0, dtype=np.int64)], 0
    for piece in column if isinstance(column, Chunks) else blocks(column, at_once(())) if plain else whole:
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
