"""Rows of records in integers, their lengths in a metric, and their second moments, exact in any order (theorem 8.9)."""

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.data.batch import Batch
from dpconvex.data.columns import Stored, flattened, in_memory
from dpconvex.numerics import INSIDE, grid_step
from dpconvex.sums.jacobians import jacobian_of
from dpconvex.sums.linear_scores import ROW_BITS, LinearScores
from dpconvex.sums.monomials import Monomials
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import one_blas_thread
from dpconvex.util.summation import BLOCK

Exact = NDArray[np.int64]

MATRIX_BITS = 22  # Of a matrix entry; a block has at most 2^16 records
assert BLOCK == 2**16
LEVERAGE = " leverage"  # The batch field with the length of each record's rows in the metric
LOWER_PART = 2.0**26  # Sums are carried in two parts, so that no number of blocks overflows
CACHED = 2**18  # Numbers of rows that are computed at a time


@dataclass(frozen=True)
class ExactRows:
    """Rule for rows of records: x on a grid, rounded towards 0, and a constant; several rows if scores share parameters."""

    name: str
    features: Indices
    field_grid: float
    grid: float  # Entries of rows are multiples of this
    constant: int
    monomials: Monomials | None
    each: int = 1  # Rows of each record; they are clipped together
    # The map from multiples of x and 1 to multiples of the record's rows, shape (each * count, scalars + 1)
    jacobian: sp.csr_array | None = None
    longest: float = math.inf  # Bound on the norm of all rows of a record with a Jacobian, in multiples

    @classmethod
    def of(cls, scores: LinearScores) -> "ExactRows":
        grid = grid_step(scores.radius, ROW_BITS)
        if scores.is_shared:
            jacobian, longest, own = jacobian_of(scores, grid)
            each = scores.to_forms.shape[0]
            return cls(scores.name, scores.features, grid, own, 0, scores.monomials, each, jacobian, longest)
        half = round(scores.radius / grid / 2) if scores.has_constant else 0
        return cls(scores.name, scores.features, grid, grid, half, scores.monomials)

    @property
    def count(self) -> int:
        if self.jacobian is None:
            return len(self.features) + bool(self.constant)
        return self.jacobian.shape[0] // self.each

    @property
    def in_cache(self) -> int:
        """The number of records whose rows fit in the cache."""
        return max(CACHED // max(self.count * self.each, 1), 1)

    def squared_norm(self, radius: float) -> float:
        """Bound the squared norm of a record's rows, in squared multiples; x may exceed the radius by the domain's tolerance."""
        if self.jacobian is not None:
            return self.longest**2
        return (radius / self.grid) ** 2 * (1 + 2.0**-28) + self.constant**2

    def read(self, column: Any) -> Any:
        """Return rows without the constant, dense or sparse, in multiples of the grid, so that products with them are exact."""
        flat = flattened(column)
        if len(self.features) < flat.shape[1]:
            flat = flat[:, self.features]
        if sp.issparse(flat):
            return flat
        x = np.asarray(flat, dtype=float)
        if self.jacobian is None:
            return x
        levels = np.pad(x / self.field_grid, ((0, 0), (0, 1)), constant_values=1 / self.field_grid)
        found = np.trunc(np.ascontiguousarray((self.jacobian @ levels.T).T))
        lengths = np.sqrt((found**2).sum(axis=1))
        far = lengths > self.longest * INSIDE
        found[far] = np.trunc(found[far] * (self.longest * INSIDE**2 / lengths[far])[:, None])
        return found.reshape(-1, self.count) * self.grid


def round_to_grid(column: Any, grid: float) -> Any:
    """Round scalars of records towards 0 to multiples of a power of two; float32 stays float32, without rounding error."""
    if sp.issparse(column):
        found = sp.csr_array(column)
        return sp.csr_array((np.trunc(found.data / grid) * grid, found.indices, found.indptr), shape=found.shape)
    found = np.asarray(column) / grid
    np.trunc(found, out=found)
    found *= grid
    return found


@dataclass(frozen=True)
class Leverage:
    """The norm of ``matrix @ row`` in multiples of the grid, rounded up, for a public matrix of integers."""

    rows: ExactRows
    matrix: Array

    @cached_property
    def shift(self) -> float:
        """The power of two that divides the products' entries, so that sums of their squares are exact."""
        count = max(len(self.matrix), 1) * self.rows.each
        bits = (53 - math.ceil(math.log2(count + 1))) // 2
        longest = float(np.linalg.norm(self.matrix, axis=1).max(initial=1.0)) * 2.0 ** (ROW_BITS + 1)
        return 2.0 ** max(math.ceil(math.log2(longest)) - bits, 0)

    def turned(self, column: Any) -> Array:
        """Return ``matrix @ row`` for all rows of records, in integers, shape (n * each, rows)."""
        rows = self.rows.read(column)
        found = np.asarray(rows @ (self.matrix[:, : rows.shape[1]].T / self.rows.grid))
        if self.rows.constant:
            found += self.rows.constant * self.matrix[:, -1]
        return found

    def __call__(self, column: Any) -> Array:
        step = self.rows.in_cache
        parts = (self.lengths(self.turned(column[start : start + step])) for start in range(0, column.shape[0], step))
        return np.concatenate([np.zeros(0), *parts])

    def lengths(self, turned: Array) -> Array:
        short = np.abs(turned)
        short /= self.shift
        np.ceil(short, out=short)
        squares = np.einsum("nk,nk->n", short, short).reshape(-1, self.rows.each).sum(axis=1)
        return np.asarray(np.sqrt(squares) * self.shift * (1 + 2.0**-50))


@dataclass(frozen=True)
class LargestEntry:
    """The largest absolute entry of a row without the constant, in multiples of the grid."""

    rows: ExactRows

    def __call__(self, column: Any) -> Array:
        found = abs(self.rows.read(column)).max(axis=1)
        return np.asarray(found.toarray().ravel() if sp.issparse(found) else found) / self.rows.grid


def on_grid(batch: Batch, rows: ExactRows) -> Batch:
    """Return the batch with x rounded to the grid: at once if x is in memory, otherwise when it is read."""
    column = batch.fields[rows.name] if rows.monomials is None else rows.monomials.column(batch)
    make = partial(round_to_grid, grid=rows.field_grid)
    made: Any = Stored(column, make, column.shape)
    if in_memory(column):
        made = make(column if sp.issparse(column) else column[:])
    return Batch({**batch.fields, rows.name: made}, batch.group)


def with_leverages(batch: Batch, leverage: Leverage | LargestEntry) -> Batch:
    """Return a batch of `on_grid` with its leverages: computed at once in memory, otherwise when they are read."""
    column = batch.fields[leverage.rows.name]
    found: Any = Stored(column, leverage, (batch.size,))
    if type(column) is np.ndarray or sp.issparse(column):
        with one_blas_thread():
            found = leverage(column)
    return Batch({**batch.fields, LEVERAGE: found}, batch.group)


def length_counts(batch: Batch, rows: ExactRows, edges: Array) -> Exact:
    """Count records of a batch of `on_grid` by the norm of their x, in multiples; the last bin is unbounded."""
    column, total = batch.fields[rows.name], np.zeros(len(edges), dtype=np.int64)
    for start in range(0, batch.size, rows.in_cache):
        lengths = lengths_of(rows.read(column[start : start + rows.in_cache]), rows.each) / rows.grid
        total += np.bincount(np.minimum(np.searchsorted(edges, lengths), len(edges) - 1), minlength=len(edges))
    return total


def lengths_of(levels: Any, each: int) -> Array:
    """Return the norm of each record's `each` rows together, shape (n,); sums of squared integers are exact."""
    squared = levels.power(2).sum(axis=1) if sp.issparse(levels) else np.einsum("nk,nk->n", levels, levels)
    return np.asarray(np.sqrt(np.asarray(squared).reshape(-1, each).sum(axis=1)))


def row_moment(batch: Batch, rows: ExactRows, most: int | None) -> Exact:
    """Return the sum of ``row row'`` over records, with x clipped to the norm `most`, in two parts, shape (2, rows, rows)."""
    column, count = batch.fields[rows.name], rows.count
    total = np.zeros((2, count, count), dtype=np.int64)
    step = max(min(2**22 // max(count * rows.each, 1), 2**18 // rows.each), 1)
    for start in range(0, batch.size, step):
        levels = rows.read(column[start : start + step]) / rows.grid
        if most is not None:
            levels = clipped_rows(levels, rows.each, most)
        part = levels.T @ levels
        own = np.empty((count, count))
        x = part.shape[0]
        own[:x, :x] = part.toarray() if sp.issparse(part) else part
        if rows.constant:
            sums = np.asarray(levels.sum(axis=0)).ravel() * rows.constant
            own[x, :x], own[:x, x], own[x, x] = sums, sums, levels.shape[0] * rows.constant**2
        total += split_integers(own)
    return total


def clipped_rows(levels: Any, each: int, most: int) -> Any:
    """Clip the `each` rows of each record together to the norm `most`, towards 0; no computed norm exceeds it."""
    share = np.repeat(most * INSIDE / np.maximum(lengths_of(levels, each), most * INSIDE), each)
    if sp.issparse(levels):
        found = sp.csr_array(sp.diags_array(share) @ levels)
        return sp.csr_array((np.trunc(found.data), found.indices, found.indptr), shape=found.shape)
    return np.trunc(levels * share[:, None])


def clipped_moment(batch: Batch, leverage: Leverage, most: float) -> Exact:
    """Return the sum of ``t t'`` in two parts, t = ``matrix @ row`` clipped to the norm `most`, in units of most / 2^16."""
    column, count = batch.fields[leverage.rows.name], len(leverage.matrix)
    total, step = np.zeros((2, count, count), dtype=np.int64), leverage.rows.in_cache
    for start in range(0, batch.size, step):
        turned = leverage.turned(column[start : start + step])
        scale = 2.0**ROW_BITS / most * np.minimum(1.0, most / np.maximum(leverage.lengths(turned), 1.0)) * INSIDE
        turned *= np.repeat(scale, leverage.rows.each)[:, None]  # The same factor for all rows of a record
        np.trunc(turned, out=turned)
        total += split_integers(turned.T @ turned)
    return total


def split_integers(sums: Array) -> Exact:
    """Split integers below 2^53 into multiples of 2^26 and remainders, shape (2, ...)."""
    high = np.floor(sums / LOWER_PART)
    return np.stack([high, sums - high * LOWER_PART]).astype(np.int64)


def to_integers(parts: Exact) -> NDArray[Any]:
    """Return exact Python integers from the two parts of `split_integers`."""
    return np.asarray(parts[0].astype(object) * int(LOWER_PART) + parts[1].astype(object))
