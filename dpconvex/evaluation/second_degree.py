"""The two products of a pass over the records, for monomials of degree two, which are never stored for all records.

Either the products of two scalars are made, for a thousand records at a time, and multiplied with the coefficients; or the
matrix of a form is multiplied with the records, and the result with the records again, entry by entry.  The first writes a
number for each monomial, the second one for each form and scalar: it is faster where forms are few.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.summation import Pairwise, inner_products
from dpconvex.language.columns import flattened

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Block = Mapping[str, Any]

# Monomials of degree two are made for so many records, and so many monomials, at a time: a megabyte.
STEP, TOGETHER = 4096, 32
# So many first factors share a matrix product with all second factors that any of them has, for so many records at a time: two
# threads that do this in turns with shorter steps mostly wait for the interpreter.
FACTORS, RECORDS = 8, 2048
# Writing a number costs about as much as so many multiplications and additions within a matrix product.
WRITING = 8


class Scalars:
    """The record scalars that occur in monomials.

    Attributes
    ----------
    count : int
    """

    def __init__(self, monomials: Indices, fields: Mapping[str, slice]) -> None:
        used = np.unique(monomials[monomials >= 0])
        self.count = len(used)
        self._number = np.full(int(monomials.max(initial=-1)) + 2, -1)
        self._number[used] = np.arange(len(used))
        self.fields = {
            name: used[(used >= span.start) & (used < span.stop)] - span.start
            for name, span in fields.items()
            if ((used >= span.start) & (used < span.stop)).any()
        }

    def numbered(self, monomials: Indices) -> Indices:
        """Return the monomials with the scalars that occur numbered from 0; -1 still stands for 1."""
        return np.asarray(self._number[monomials])

    def read(self, block: Block, size: int) -> Array:
        """Scalars of a block's records, and a row of ones, shape (count + 1, size)."""
        table = np.ones((self.count + 1, size))
        start = 0
        for name, columns in self.fields.items():
            rows = flattened(block[name])
            if sp.issparse(rows):
                rows = rows.toarray()
            table[start : start + len(columns)] = rows[:, columns].T
            start += len(columns)
        return table


class PairDesign:
    """What both ways have in common: some records at a time, and sums over them in pairs."""

    together: int

    def __init__(self, monomials: Indices, fields: Mapping[str, slice]) -> None:
        self.count = len(monomials)
        self.scalars = Scalars(monomials, fields)
        self.factors_of = self.scalars.numbered(monomials)

    def forward(self, block: Block, coefficients: Array, size: int) -> Array:
        scalars, result = self.scalars.read(block, size), np.empty((len(coefficients), size))
        forms_of = self._forms(coefficients)
        for start in range(0, size, self.together):
            result[:, start : start + self.together] = forms_of(scalars[:, start : start + self.together])
        return result

    def backward(self, block: Block, gradient: Array) -> Array:
        size = gradient.shape[1]
        scalars, total = self.scalars.read(block, size), Pairwise(np.zeros((len(gradient), self.count)))
        for start in range(0, size, self.together):
            total.add(
                self._slope(scalars[:, start : start + self.together], gradient[:, start : start + self.together])
            )
        return np.asarray(total.value)

    def table(self, block: Block, size: int) -> Array:
        scalars = self.scalars.read(block, size)  # its last row is one, which -1 stands for
        first, second = self.factors_of.T
        return np.ascontiguousarray((scalars[first] * scalars[second]).T)

    def _forms(self, coefficients: Array) -> Callable[[Array], Array]:
        """Return a function from the scalars of few records to their forms."""
        raise NotImplementedError

    def _slope(self, few: Array, weights: Array) -> Array:
        """Return the gradient with respect to the coefficients for few records."""
        raise NotImplementedError


class QuadraticDesign(PairDesign):
    """Monomials of degree two and less, made from few records at a time."""

    together = STEP

    def __init__(self, monomials: Indices, fields: Mapping[str, slice]) -> None:
        super().__init__(monomials, fields)
        self.pieces = pieces(self.factors_of)

    def _forms(self, coefficients: Array) -> Callable[[Array], Array]:
        def forms(few: Array) -> Array:
            total, room = Pairwise(0.0), np.empty((TOGETHER, few.shape[1]))
            for low, high, factors in self.pieces:
                total.add(inner_products(coefficients[:, low:high], products(few, factors, room)))
            return np.asarray(total.value + coefficients[:, -1:])

        return forms

    def _slope(self, few: Array, weights: Array) -> Array:
        result, room = np.empty((len(weights), self.count)), np.empty((TOGETHER, few.shape[1]))
        for low, high, factors in self.pieces:
            result[:, low:high] = weights @ products(few, factors, room).T
        result[:, -1] = weights.sum(axis=1)
        return result


def products(scalars: Array, factors: list[tuple[int, int, int]], room: Array) -> Array:
    """Monomials ``first * low, ..., first * (high - 1)`` of a few records, one below the other, in the room given."""
    place = 0
    for first, low, high in factors:
        target = room[place : place + high - low, : scalars.shape[1]]
        if first < 0:
            target[:] = scalars[low:high]
        else:
            np.multiply(scalars[first], scalars[low:high], out=target)
        place += high - low
    return room[:place, : scalars.shape[1]]


def pieces(monomials: Indices) -> list[tuple[int, int, list[tuple[int, int, int]]]]:
    """Cut all monomials but the last, constant, one into pieces that are made together: their range, and their factors.

    >>> pieces(np.array([[-1, 0], [-1, 1], [0, 1], [1, 1], [-1, -1]]))
    [(0, 4, [(-1, 0, 2), (0, 1, 2), (1, 1, 2)])]
    """
    found: list[tuple[int, int, list[tuple[int, int, int]]]] = []
    for place, (a, b) in enumerate(monomials[:-1].tolist()):
        if not found or place - found[-1][0] == TOGETHER:
            found.append((place, place, []))
        start, _, factors = found[-1]
        if factors and factors[-1][0] == a and factors[-1][2] == b:
            factors[-1] = (a, factors[-1][1], b + 1)
        else:
            factors.append((a, b, b + 1))
        found[-1] = (start, place + 1, factors)
    return found


@dataclass(frozen=True, eq=False)
class Factor:
    """Monomials of degree two with neighbouring first factors: a rectangle, not all of which need be used.

    Attributes
    ----------
    monomials : ndarray of int
        Their numbers.
    first, second : slice
        Ranges of their factors.
    row, column : ndarray of int
        Places of the monomials in the rectangle.
    """

    monomials: Indices
    first: slice
    second: slice
    row: Indices
    column: Indices

    @property
    def shape(self) -> tuple[int, int]:
        """Number of first and of second factors."""
        return self.first.stop - self.first.start, self.second.stop - self.second.start


class FactoredDesign(PairDesign):
    """Forms of degree two as products of matrices with records, times records again."""

    together = RECORDS

    def __init__(self, monomials: Indices, fields: Mapping[str, slice]) -> None:
        super().__init__(monomials, fields)
        pairs = self.factors_of[:-1]
        self.linear = np.flatnonzero(pairs[:, 0] < 0)
        self.linear_column = pairs[self.linear, 1]
        firsts = np.unique(pairs[pairs[:, 0] >= 0, 0])
        self.factors = [factor(pairs, firsts[k : k + FACTORS]) for k in range(0, len(firsts), FACTORS)]

    def is_faster(self, forms: int) -> bool:
        """Whether this takes less work for so many forms than making all monomials does."""
        written = sum(f.shape[0] for f in self.factors)
        multiplied = sum(f.shape[0] * f.shape[1] for f in self.factors)
        return forms * (WRITING * written + multiplied) < (WRITING + forms) * self.count

    def _forms(self, coefficients: Array) -> Callable[[Array], Array]:
        count = len(coefficients)
        linear = np.zeros((count, self.scalars.count + 1))
        linear[:, self.linear_column] = coefficients[:, self.linear]
        linear[:, -1] = coefficients[:, -1]
        matrices = []
        for f in self.factors:
            rectangle = np.zeros((count, *f.shape))
            rectangle[:, f.row, f.column] = coefficients[:, f.monomials]
            matrices.append(rectangle.reshape(-1, f.shape[1]))

        def forms(few: Array) -> Array:
            result = inner_products(linear, few)
            for f, matrix in zip(self.factors, matrices, strict=True):
                moved = inner_products(matrix, few[f.second]).reshape(count, f.shape[0], -1)
                result += np.einsum("fan,an->fn", moved, few[f.first])
            return result

        return forms

    def _slope(self, few: Array, weights: Array) -> Array:
        forms = len(weights)
        result, linear = np.empty((forms, self.count)), weights @ few.T
        result[:, self.linear] = linear[:, self.linear_column]
        result[:, -1] = linear[:, -1]
        for f in self.factors:
            weighted = (weights[:, None] * few[f.first]).reshape(forms * f.shape[0], -1)
            rectangle = (weighted @ few[f.second].T).reshape(forms, *f.shape)
            result[:, f.monomials] = rectangle[:, f.row, f.column]
        return result


def factor(pairs: Indices, firsts: Indices) -> Factor:
    """Return the monomials whose first factors are given.

    >>> found = factor(np.array([[-1, 0], [0, 0], [0, 2], [1, 1]]), np.array([0, 1]))
    >>> found.monomials.tolist(), found.first, found.second
    ([1, 2, 3], slice(0, 2, None), slice(0, 3, None))
    """
    chosen = np.flatnonzero((pairs[:, 0] >= firsts[0]) & (pairs[:, 0] <= firsts[-1]))
    first, second = pairs[chosen].T
    low = int(second.min())
    spans = slice(int(firsts[0]), int(firsts[-1]) + 1), slice(low, int(second.max()) + 1)
    return Factor(chosen, *spans, first - firsts[0], second - low)
