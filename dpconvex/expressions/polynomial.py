"""Arrays ``A_z theta + c_z`` as sums of terms: a coefficient times a monomial of the record times 1 or a coordinate of theta."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.numerics import EPSILON, Ends, quotient_ends, rounded_product, rounded_sums
from dpconvex.util.arrays import Array, Indices

SYMMETRIC = 1e-12  # Entries of a symmetric matrix may differ from their mirror images by this fraction of the largest


@dataclass(frozen=True, eq=False)
class Polynomial:
    """An array of polynomials in the record; each term contains at most one coordinate of theta."""

    shape: tuple[int, ...]  # entries are numbered in column order
    entry: Indices  # entry of each term
    coordinate: Indices  # coordinate of theta in each term, or -1 for none
    monomial: Indices  # record scalars in each term, sorted, padded in front with -1; shape (terms, degree)
    coefficient: Array
    # Bound on the absolute rounding error of each coefficient; it stays large where large summands cancelled.
    error: Array = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if len(self.error) != len(self.coefficient):  # none was given: the coefficients are exact
            object.__setattr__(self, "error", np.zeros(len(self.coefficient)))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @classmethod
    def constant(cls, value: Any) -> Polynomial:
        if sp.issparse(value):
            row, column, numbers = sp.find(value)
            entry = row + value.shape[0] * column.astype(np.int64)
        else:
            flat = np.asarray(value, dtype=float).reshape(-1, order="F")
            entry = np.flatnonzero(flat)
            numbers = flat[entry]
        return cls(np.shape(value), entry, np.full(len(entry), -1), np.empty((len(entry), 0), dtype=np.int64), numbers)

    @classmethod
    def scalars(cls, shape: tuple[int, ...], first: int) -> Polynomial:
        index = np.arange(math.prod(shape))
        return cls(shape, index, np.full(index.size, -1), (first + index)[:, None], np.ones(index.size))

    @classmethod
    def coordinates(cls, shape: tuple[int, ...], start: int, lift: sp.csr_array) -> Polynomial:
        entry, coordinate, numbers = sp.find(lift)
        nothing = np.empty((len(entry), 0), dtype=np.int64)
        return cls(shape, entry.astype(np.int64), coordinate.astype(np.int64) + start, nothing, numbers)

    def scaled(self, factor: float) -> Polynomial:
        product, error = rounded_product(self.coefficient, np.array(float(factor)))
        return replace(self, coefficient=product, error=error + abs(factor) * self.error)

    def divided(self, divisor: Array) -> Polynomial:
        """Divide each term by its entry of `divisor`, shape (terms,)."""
        low, high = quotient_ends(self.coefficient, divisor)
        error = (high - low) + self.error / np.abs(divisor)
        return replace(self, coefficient=self.coefficient / divisor, error=error).collected()

    def __add__(self, other: Polynomial) -> Polynomial:
        return concatenate([self, other], self.shape, [self.entry, other.entry]).collected()

    def linear(self, matrix: Any, shape: tuple[int, ...]) -> Polynomial:
        """Apply a constant linear map: entry k becomes ``sum_j matrix[k, j] * entry j``."""
        table = sp.coo_array(matrix)
        row, column = table.coords
        i, j = join(self.entry, column)
        factor = np.asarray(table.data[j], dtype=float)
        product, error = rounded_product(self.coefficient[i], factor)
        error += np.abs(factor) * self.error[i]
        places = row[j].astype(np.int64), self.coordinate[i], self.monomial[i]
        return Polynomial(shape, *places, product, error).collected()

    def gathered(self, index: NDArray[Any]) -> Polynomial:
        """Return the entries with the numbers in `index`, in its shape."""
        index = np.asarray(index, dtype=np.int64)
        places = np.arange(index.size), index.reshape(-1, order="F")
        return self.linear(sp.csc_array((np.ones(index.size), places), shape=(index.size, self.size)), index.shape)

    def numbers(self) -> Indices:
        """Return the entry numbers in the array's shape, to rearrange and pass to `gathered`."""
        return np.arange(self.size).reshape(self.shape, order="F")

    def product(
        self, other: Polynomial, pairs: tuple[Indices, Indices], entry: Indices, shape: tuple[int, ...]
    ) -> Polynomial:
        """Multiply term i by term j of `other` for each pair, and add pair k to ``entry[k]``. Raise if both contain theta."""
        i, j = pairs
        if (np.minimum(self.coordinate[i], other.coordinate[j]) >= 0).any():
            raise ValueError("a product of two parameters is not affine in them")
        monomial = np.sort(np.concatenate([self.monomial[i], other.monomial[j]], axis=1), axis=1)
        product, error = rounded_product(self.coefficient[i], other.coefficient[j])
        error += np.abs(self.coefficient[i]) * other.error[j]
        error += self.error[i] * (np.abs(other.coefficient[j]) + other.error[j])
        coordinate = np.maximum(self.coordinate[i], other.coordinate[j])
        return Polynomial(shape, entry, coordinate, monomial, product, error).collected()

    def times(self, other: Polynomial) -> Polynomial:
        pairs = join(self.entry, other.entry)
        return self.product(other, pairs, self.entry[pairs[0]], self.shape)

    def power(self, exponent: int) -> Polynomial:
        return reduce(Polynomial.times, [self] * exponent)

    def matmul(self, other: Polynomial, shape: tuple[int, ...]) -> Polynomial:
        rows = 1 if len(self.shape) == 1 else self.shape[0]
        inner = other.shape[0]
        pairs = join(self.entry // rows, other.entry % inner)
        entry = self.entry[pairs[0]] % rows + rows * (other.entry[pairs[1]] // inner)
        return self.product(other, pairs, entry, shape)

    def collected(self) -> Polynomial:
        """Add up equal terms; drop exact zeros and unused degrees. Zeros with a rounding error stay: they may not be exact."""
        monomial = self.monomial
        while monomial.shape[1] and (monomial[:, 0] < 0).all():
            monomial = monomial[:, 1:]
        if len(self.entry) == 0:
            return replace(self, monomial=monomial)
        keys = [*monomial.T, self.coordinate, self.entry]
        order = np.lexsort(keys)
        new = np.append(True, np.any([np.diff(key[order]) != 0 for key in keys], axis=0))
        total, error = rounded_sums(self.coefficient[order], np.flatnonzero(new))
        error += np.bincount(np.cumsum(new) - 1, weights=self.error[order])
        vanished = (total == 0) & (error > 0)
        total, error = np.where(vanished, error, total), np.where(vanished, 2 * error, error)
        keep = total != 0
        first = order[new][keep]
        places = self.entry[first], self.coordinate[first], monomial[first]
        return Polynomial(self.shape, *places, total[keep], error[keep])

    @property
    def ends(self) -> Ends:
        """Return bounds on the exact coefficients."""
        sides = [self.coefficient + sign * self.error * (1 + 4 * EPSILON) for sign in (-1, 1)]
        low, high = np.nextafter(sides[0], -np.inf), np.nextafter(sides[1], np.inf)
        return np.where(self.error > 0, low, self.coefficient), np.where(self.error > 0, high, self.coefficient)

    @property
    def touched(self) -> Indices:
        return np.flatnonzero(np.bincount(self.coordinate + 1)[1:])

    def part(self, with_theta: bool) -> Polynomial:
        """Return the terms that contain a coordinate of theta, or the terms without theta."""
        return self.kept((self.coordinate >= 0) == with_theta)

    def kept(self, keep: Any) -> Polynomial:
        columns = (self.entry, self.coordinate, self.monomial, self.coefficient, self.error)
        return Polynomial(self.shape, *(column[keep] for column in columns))

    @property
    def is_symmetric(self) -> bool:
        """Return whether a matrix is symmetric for all parameters and records, up to rounding of its coefficients."""
        difference = self + self.gathered(self.numbers().T).scaled(-1.0)
        return bool((np.abs(difference.coefficient) <= SYMMETRIC * np.abs(self.coefficient).max(initial=0.0)).all())

    def evaluate(self, scalars: Array, theta: Array) -> Array:
        padded = np.append(scalars, 1.0)
        value = self.coefficient * np.append(theta, 1.0)[self.coordinate] * padded[self.monomial].prod(axis=1)
        flat = np.bincount(self.entry, weights=value, minlength=self.size)
        return np.asarray(flat.reshape(self.shape, order="F"), dtype=float)


def concatenate(parts: Sequence[Polynomial], shape: tuple[int, ...], entries: Sequence[Indices]) -> Polynomial:
    """Join the terms of several arrays into one array; `entries` gives their new entry numbers."""
    degree = max((part.monomial.shape[1] for part in parts), default=0)
    wide = [np.pad(p.monomial, ((0, 0), (degree - p.monomial.shape[1], 0)), constant_values=-1) for p in parts]
    columns = [(p.coordinate, table, p.coefficient, p.error) for p, table in zip(parts, wide, strict=True)]
    return Polynomial(shape, np.concatenate(entries), *map(np.concatenate, zip(*columns, strict=True)))


def stack_entries(parts: Sequence[Polynomial]) -> Polynomial:
    """Concatenate the entries of several arrays into one vector."""
    starts = np.cumsum([0, *(part.size for part in parts)])
    entries = [part.entry + start for part, start in zip(parts, starts, strict=False)]
    return concatenate(parts, (int(starts[-1]),), entries) if parts else Polynomial.constant(np.zeros(0))


def numbered_rows(table: Indices) -> tuple[Indices, Indices]:
    """Return the distinct rows of an integer table, in lexicographic order, and each row's index in this list."""
    if table.shape[1] == 0 or len(table) == 0:
        return table[:1], np.zeros(len(table), dtype=np.int64)
    keys: list[Indices] = []
    room = 0
    for column in table.T:  # pack columns into one key while they fit into an integer
        least = int(column.min())
        count = int(column.max()) - least + 1
        if count <= room:
            keys[-1], room = keys[-1] * count + (column - least), room // count
        else:
            room = 2**62 // count
            keys.append(column - least if room else column)
    order = np.argsort(keys[0]) if len(keys) == 1 else np.lexsort(keys[::-1])
    new = np.append(True, np.any([np.diff(key[order]) != 0 for key in keys], axis=0))
    number = np.empty(len(table), dtype=np.int64)
    number[order] = np.cumsum(new) - 1
    return table[order[new]], number


def join(left: Indices, right: Indices) -> tuple[Indices, Indices]:
    """Return all pairs (i, j) with ``left[i] == right[j]``."""
    order = np.argsort(right, kind="stable")
    low, high = np.searchsorted(right, left, "left", order), np.searchsorted(right, left, "right", order)
    count = high - low
    i = np.repeat(np.arange(len(left)), count)
    within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return i, order[np.repeat(low, count) + within]
