"""Sums over records in integers: exact in any order, each record's part no longer than its bound *as computed*.

Rows are whole multiples of a power of two, coefficients are too, and slopes become whole numbers after they are clipped.  All
products and sums of a block are integers below 2^53, so no bit of them depends on the order of adding, on blocks, threads or
workers, and what one record adds depends on that record and on released numbers alone (docs/theory.md, theorem 8.9).
"""

import math
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.data.batch import Batch
from dpconvex.data.columns import Stored, dense, flattened
from dpconvex.expressions.evaluate import STEP
from dpconvex.sums.design import product_apart
from dpconvex.sums.linear_scores import LinearScores
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import one_blas_thread
from dpconvex.util.summation import BLOCK

if TYPE_CHECKING:
    from dpconvex.sums.engine import Engine, Plan, Records

Exact = NDArray[np.int64]

# Bits of a row's norm, of a clipped slope, of the longest slope, of a curvature at its cap, and of an entry of a matrix: a block
# has 2^16 records at most, and 16 + 21 + 16 = 53 bits hold the sum of products.
ROW_BITS, SLOPE_BITS, LONGEST_BITS, CURVATURE_BITS, MATRIX_BITS = 16, 15, 21, 20, 22
assert BLOCK == 2**16
LEVERAGE = " leverage"  # The field of a batch that holds how long each record's row is in the metric
HALF = 2.0**26  # Sums are carried in two parts, so that no number of blocks overflows
INSIDE = 1 - 2.0**-36  # Covers the rounding of norms of 2^16 numbers and of products, before slopes are made integers
CACHED = 2**18  # Numbers that are made of rows at a time
LARGEST = 2.0**400  # Slopes, in units, beyond this have the direction alone


@dataclass(frozen=True)
class Rows:
    """How rows are made of records: x in multiples of `grid`, towards 0, and a constant of `constant` such multiples."""

    name: str
    inside: Indices
    grid: float
    constant: int

    @classmethod
    def of(cls, scores: LinearScores) -> "Rows":
        grid = 2.0 ** (math.ceil(math.log2(scores.radius)) - ROW_BITS)
        half = round(scores.radius / grid / 2)
        return cls(scores.name, scores.inside, grid, half if scores.has_constant else 0)

    @property
    def count(self) -> int:
        return len(self.inside) + bool(self.constant)

    def squared_norm(self, radius: float) -> float:
        """Bound the squared norm of a row, in squared multiples, for records that exceed the radius by what passes a check."""
        return (radius / self.grid) ** 2 * (1 + 2.0**-28) + self.constant**2

    def read(self, column: Any) -> Any:
        """Return rows without the constant, dense or sparse: whole multiples of the grid, so products with them are exact."""
        flat = flattened(column)
        if len(self.inside) < flat.shape[1]:
            flat = flat[:, self.inside]
        return flat if sp.issparse(flat) else np.asarray(flat, dtype=float)


def rounded(column: Any, grid: float) -> Any:
    """Round the scalars of records to multiples of a power of two, towards 0; of float32, exactly in float32."""
    if sp.issparse(column):
        found = sp.csr_array(column)
        return sp.csr_array((np.trunc(found.data / grid) * grid, found.indices, found.indptr), shape=found.shape)
    return np.trunc(np.asarray(column) / grid) * grid


@dataclass(frozen=True)
class Leverage:
    """How long rows are in a metric: at least the norm of ``matrix @ row``, in multiples, rounded up; public.

    The matrix has integer entries of `MATRIX_BITS` bits, shape (rows, rows).
    """

    rows: Rows
    matrix: Array

    @property
    def shift(self) -> float:
        """The power of two that entries of products are divided by, so that sums of their squares are exact."""
        count = max(len(self.matrix), 1)
        bits = (53 - math.ceil(math.log2(count + 1))) // 2
        longest = float(np.linalg.norm(self.matrix, axis=1).max(initial=1.0)) * 2.0 ** (ROW_BITS + 1)
        return 2.0 ** max(math.ceil(math.log2(longest)) - bits, 0)

    def turned(self, column: Any) -> Array:
        """Return ``matrix @ row`` of records, whole numbers, shape (n, rows)."""
        x = len(self.rows.inside)
        found = np.asarray(self.rows.read(column) @ self.matrix[:, :x].T)
        found /= self.rows.grid
        return found + self.rows.constant * self.matrix[:, x] if self.rows.constant else found

    def __call__(self, column: Any) -> Array:
        found, shift = [], self.shift
        step = max(CACHED // max(len(self.matrix), 1), 1)
        for start in range(0, column.shape[0], step):
            short = np.abs(self.turned(column[start : start + step]))
            short /= shift
            np.ceil(short, out=short)
            found.append(np.sqrt(np.einsum("nk,nk->n", short, short)) * shift * (1 + 2.0**-50))
        return np.concatenate([np.zeros(0), *found])


def on_grid(batch: Batch, rows: Rows) -> Batch:
    """Return records whose field is a multiple of the grid: at once where they are in memory, else when they are read."""
    column, make = batch.fields[rows.name], partial(rounded, grid=rows.grid)
    in_memory = type(getattr(column, "column", column)) is np.ndarray or sp.issparse(column)
    made = make(column[:] if not sp.issparse(column) else column) if in_memory else Stored(column, make, column.shape)
    return Batch({**batch.fields, rows.name: made}, batch.group)


def with_leverages(batch: Batch, leverage: Leverage) -> Batch:
    """Return records, which `on_grid` made, with their leverages, in blocks where they are not in memory."""
    column = batch.fields[leverage.rows.name]
    found: Any = Stored(column, leverage, (batch.size,))
    if type(column) is np.ndarray or sp.issparse(column):
        with one_blas_thread():
            found = leverage(column)
    return Batch({**batch.fields, LEVERAGE: found}, batch.group)


def moment(batch: Batch, rows: Rows) -> Exact:
    """Return the sum of ``row row'`` over records, which `on_grid` made, in two parts, shape (2, rows, rows)."""
    column, count = batch.fields[rows.name], rows.count
    total, step = np.zeros((2, count, count), dtype=np.int64), max(min(2**22 // count, 2**18), 1)
    for start in range(0, batch.size, step):
        levels = rows.read(column[start : start + step]) / rows.grid
        part = levels.T @ levels
        own = np.empty((count, count))
        x = len(rows.inside)
        own[:x, :x] = part.toarray() if sp.issparse(part) else part
        if rows.constant:
            sums = np.asarray(levels.sum(axis=0)).ravel() * rows.constant
            own[x, :x], own[:x, x], own[x, x] = sums, sums, levels.shape[0] * rows.constant**2
        total += halves(own)
    return total


def clipped_moment(batch: Batch, leverage: Leverage, most: float) -> Exact:
    """Return the sum of ``t t'`` for t = ``matrix @ row`` cut to the length `most`, in units of most / 2^16, in two parts.

    Entries are rounded towards 0, so that no t is longer than 2^16.
    """
    column, count = batch.fields[leverage.rows.name], leverage.rows.count
    total, step = np.zeros((2, count, count), dtype=np.int64), max(CACHED // count, 1)
    for start in range(0, batch.size, step):
        part, long = column[start : start + step], np.asarray(dense(batch.fields[LEVERAGE][start : start + step]))
        scale = 2.0**ROW_BITS / most * np.minimum(1.0, most / np.maximum(long, 1.0)) * INSIDE
        turned = leverage.turned(part)
        turned *= scale[:, None]
        np.trunc(turned, out=turned)
        total += halves(turned.T @ turned)
    return total


def halves(sums: Array) -> Exact:
    """Cut whole numbers below 2^53 into multiples of 2^26 and the rest, shape (2, ...)."""
    high = np.floor(sums / HALF)
    return np.stack([high, sums - high * HALF]).astype(np.int64)


def whole(parts: Exact) -> NDArray[Any]:
    """Return exact Python integers from their two parts."""
    return np.asarray(parts[0].astype(object) * int(HALF) + parts[1].astype(object))


class Look(NamedTuple):
    """One pass over the records at public parameters: what is summed, and how it is clipped."""

    rows: Rows
    kinds: sp.csr_array
    coefficients: Array  # Of the forms, multiples of a power of two: see `on_coefficient_grid`
    unit: float  # Slopes are multiples of this
    bound: float  # Of the product of a record's slopes' norm, in units, and its leverage
    edges: Array  # Upper ends of the bins for the length of gradients in the metric, as `bound` is; empty for none
    probe: Array  # A direction of the columns along which curvatures are taken; empty for none
    cap: float  # The largest curvature that counts
    reach: float  # The largest slope along the parameters that counts; 0 for none
    leverage: Leverage | None  # That the bound is in, for sums of people

    @property
    def nothing(self) -> "Sums":
        """The sums over no records."""
        gradient = np.zeros((2, self.kinds.shape[0], self.rows.count), dtype=np.int64)
        bends = np.zeros(int(len(self.probe) > 0), dtype=np.int64)
        sides = np.zeros(2 * len(self.edges), dtype=np.int64)
        return Sums(gradient, bends, np.zeros(int(self.reach > 0), dtype=np.int64), sides)


@dataclass
class Sums:
    """What a look adds up: gradients, shape (2, columns, rows), curvatures, slopes along, and counts, positive sides first."""

    gradient: Exact
    curvature: Exact
    along: Exact
    histogram: Exact

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


def on_coefficient_grid(coefficients: Array, rows: Rows, radius: float) -> Array:
    """Round coefficients of forms, which are public, so that their products with rows add up exactly."""
    size = np.linalg.norm(coefficients[:, :-1], axis=1) * radius * (1 + 1e-9) + np.abs(coefficients[:, -1])
    largest = float(size.max(initial=0.0))
    if not largest > 1e-200:
        return np.zeros_like(coefficients)
    unit = 2.0 ** (math.ceil(math.log2(largest)) - 50)
    found = np.rint(coefficients / (unit / rows.grid)) * (unit / rows.grid)
    found[:, -1] = np.rint(coefficients[:, -1] / unit) * unit
    return found


class AtRecords(NamedTuple):
    """The forms of a block's records, slopes by the forms and by the columns, and leverages."""

    forms: Array
    bare: Array
    slopes: Array
    leverages: Array

    @classmethod
    def of(cls, engine: "Engine", look: Look, block: "Records", plan: "Plan") -> "AtRecords":
        forms = engine.design.forward(block, look.coefficients)
        bare = engine._slopes(forms, block, plan, product_apart)[1]
        forms = np.broadcast_to(forms, (len(forms), plan.size))
        return cls(forms, bare, np.asarray(look.kinds @ bare), np.asarray(dense(block[LEVERAGE])))


def person_sums(engine: "Engine", look: Look, block: "Records", plan: "Plan", people: Indices) -> Sums:
    """Sum over whole people, whose records stand together; the sum of a person's products has at most the bound's length.

    A record is clipped to the bound by itself, too.  Rounding slopes towards 0 moves a person's sum by at most the sum of their
    leverages in each column; that is set aside, and so is the rounding of the sum that is measured.
    """
    count = len(people)
    there = AtRecords.of(engine, look, block, plan)
    slopes, leverages = there.slopes, there.leverages
    units, raw = clipped_slopes(look, slopes, leverages, count)[:, :count], in_units(look, slopes, count)[:, :count]
    first = np.flatnonzero(np.diff(people, prepend=-1))
    assert look.leverage is not None
    turned = look.leverage.turned(block[look.rows.name])[:count]
    square, long = (
        sum((np.add.reduceat(own[:, None] * turned, first) ** 2).sum(axis=1) for own in each) for each in (units, raw)
    )
    counts = np.diff(first, append=count)  # nothing of another person's enters: not even how many records there are
    room = (
        np.add.reduceat(leverages[:count], first) * math.sqrt(len(units))
        + look.bound * counts.astype(float) ** 2 * 2.0**-50
    )
    share = np.minimum(1.0, np.maximum(look.bound * INSIDE - room, 0.0) / np.maximum(np.sqrt(square), 1.0))
    every = np.repeat(share, counts)
    kept = np.where(every < 1, np.trunc(units * every), units)
    some = {look.rows.name: block[look.rows.name][:count]}
    found = measured(engine, look, halves(gradient_sum(look, some, kept)), there, block, plan, count)
    return counted(look, found, np.sqrt(long), np.add.reduceat(raw[0], first) > 0)


def block_sums(engine: "Engine", look: Look, block: "Records", plan: "Plan", count: int) -> Sums:
    """Sum over the first `count` records of a block that is filled up to a multiple of `LANES`."""
    there = AtRecords.of(engine, look, block, plan)
    slopes, leverages = there.slopes, there.leverages
    gradient = look.nothing.gradient
    if look.bound:
        gradient = halves(gradient_sum(look, block, clipped_slopes(look, slopes, leverages, count)))
    found, raw = measured(engine, look, gradient, there, block, plan, count), in_units(look, slopes, count)
    lengths = np.sqrt(np.einsum("kn,kn->n", raw, raw)) * leverages
    return counted(look, found, lengths[:count], raw[0, :count] > 0)


def measured(
    engine: "Engine", look: Look, gradient: Exact, there: AtRecords, block: "Records", plan: "Plan", count: int
) -> Sums:
    """Return sums with curvatures and slopes along the parameters, where a look asks for them."""
    found = Sums(gradient, *(np.zeros(0, dtype=np.int64) for _ in range(3)))
    if look.reach > 0:
        along = np.einsum("kn,kn->n", there.bare, there.forms)[:count]
        found.along = capped_sum(along, look.reach, -1.0)
    if len(look.probe):
        moved = there.forms + 1j * STEP * (look.kinds.T @ look.probe)[:, None]
        bent = np.asarray(look.kinds @ (engine._slopes(moved, block, plan, product_apart)[1].imag / STEP))
        curvatures = np.einsum("kn,kn->n", bent, np.broadcast_to(look.probe[:, None], bent.shape))[:count]
        found.curvature = capped_sum(curvatures, look.cap)
    return found


def counted(look: Look, found: Sums, lengths: Array, up: NDArray[np.bool_]) -> Sums:
    """Return sums with counts by length, where a look asks for them: of records, or of people."""
    if len(look.edges):
        found.histogram = np.concatenate([histogram(look.edges, lengths, side) for side in (up, ~up)])
    return found


def in_units(look: Look, slopes: Array, count: int) -> Array:
    """Return slopes in units, shape (columns, records); those of a record with one that is no number are 0."""
    units = slopes / look.unit
    good = np.isfinite(units).all(axis=0) & (np.arange(units.shape[1]) < count)
    return np.clip(np.where(good, units, 0.0), -LARGEST, LARGEST)


def clipped_slopes(look: Look, slopes: Array, leverages: Array, count: int) -> Array:
    """Return slopes in whole units, shape (columns, records), with norm times leverage at most the bound; others are 0."""
    units = in_units(look, slopes, count)
    lengths = np.sqrt(np.einsum("kn,kn->n", units, units))
    most = np.minimum(2.0**LONGEST_BITS, look.bound / np.maximum(leverages, 1.0)) * INSIDE
    return np.trunc(units * np.minimum(1.0, most / np.maximum(lengths, 1.0)))


def gradient_sum(look: Look, block: "Records", units: Array) -> Array:
    """Return the sum of products of slopes and rows, whole numbers, shape (columns, rows)."""
    rows = look.rows.read(block[look.rows.name])
    found = np.asarray((rows.T @ units.T).T if sp.issparse(rows) else units @ rows) / look.rows.grid
    if not look.rows.constant:
        return found
    return np.concatenate([found, look.rows.constant * units.sum(axis=1, keepdims=True)], axis=1)


def capped_sum(values: Array, cap: float, least: float = 0.0) -> Exact:
    """Return the sum of values, each from `least` to 1 in units of the cap, in 2^-20 of it, shape (1,); no number counts as 0."""
    share = np.nan_to_num(np.clip(values / cap, least, 1.0))
    return np.trunc(share * 2.0**CURVATURE_BITS).astype(np.int64).sum(keepdims=True)


def histogram(edges: Array, values: Array, chosen: NDArray[np.bool_]) -> Exact:
    """Count the chosen records by their value, each in one bin; what exceeds the last edge is in the last bin."""
    place = np.minimum(np.searchsorted(edges, values[chosen]), len(edges) - 1)
    return np.bincount(place, minlength=len(edges)).astype(np.int64)
