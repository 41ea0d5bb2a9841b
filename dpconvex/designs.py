"""The two products of a pass over the records: monomials with coefficients, and their transposes with gradients.

Forms and gradients have the records as their *last* axis.  Monomials are never stored for all records: of degree one they are the
data themselves, dense or sparse; of degree two they are made for some hundred records at a time, while these are in a cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

__all__ = ["Design", "LinearDesign", "QuadraticDesign", "design_of"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Block = Mapping[str, Any]

# Monomials of degree two are made for so many records, and so many monomials, at a time: a megabyte.  (Not a power of two of
# them: products with such strides are slow.)
STEP, TOGETHER = 1024, 120
# For records of so many scalars NumPy's einsum, which reads them one after the other, is faster than the BLAS, which reads
# several at a time, when they come from memory; from a cache it is slower.
STREAMED = 32, 512


class Design(Protocol):
    """Monomials of a block of records, times matrices."""

    def forward(self, block: Block, coefficients: Array, size: int) -> Array:
        """Return forms, shape (forms, size), from coefficients, shape (forms, monomials)."""
        ...

    def backward(self, block: Block, gradient: Array) -> Array:
        """Return the gradient with respect to the coefficients from that with respect to the forms."""
        ...


def design_of(monomials: Indices, fields: Mapping[str, slice]) -> Design:
    """Return the design for monomials, shape (count, degree), the constant one last, of fields with the given scalars."""
    if monomials.shape[1] <= 1:
        return LinearDesign(monomials, fields)
    return QuadraticDesign(monomials, fields)


def flattened(block: Any) -> Any:
    """Return a block's records as rows of scalars, matrices in column order."""
    if sp.issparse(block):
        return block
    values = np.asarray(block)
    if values.ndim == 2:
        return values
    return values.transpose(0, *range(values.ndim - 1, 0, -1)).reshape(len(values), -1)


class LinearDesign:
    """Monomials of degree one: columns of the fields, and a constant.

    Parameters
    ----------
    monomials : ndarray of int, shape (count, 0 or 1)
    fields : mapping of str to slice

    Attributes
    ----------
    stream : bool
        Whether records come from memory, there being more than fit into a cache.
    """

    def __init__(self, monomials: Indices, fields: Mapping[str, slice]) -> None:
        self.count = len(monomials)
        self.stream = False
        scalars = monomials[:-1, 0] if monomials.shape[1] else np.zeros(0, dtype=np.int64)
        self.places: dict[str, tuple[Indices, Indices, int]] = {}
        for name, span in fields.items():
            place = np.flatnonzero((scalars >= span.start) & (scalars < span.stop))
            if len(place):
                self.places[name] = (place, scalars[place] - span.start, span.stop - span.start)

    def forward(self, block: Block, coefficients: Array, size: int) -> Array:
        """See `Design`."""
        result: Array | None = None
        for name, (place, column, width) in self.places.items():
            weights = np.zeros((len(coefficients), width))
            weights[:, column] = coefficients[:, place]
            if not weights.any():
                continue
            part = product(flattened(block[name]), weights, self.stream)
            result = part if result is None else result + part
        constant = coefficients[:, -1]
        if result is None:
            return np.repeat(constant[:, None], size, axis=1)
        if constant.any():
            result += constant[:, None]
        return result

    def backward(self, block: Block, gradient: Array) -> Array:
        """See `Design`."""
        result = np.zeros((len(gradient), self.count))
        for name, (place, column, _) in self.places.items():
            result[:, place] = transposed_product(flattened(block[name]), gradient)[:, column]
        result[:, -1] = gradient.sum(axis=1)
        return result


def product(rows: Any, weights: Array, stream: bool = False) -> Array:
    """Return ``weights @ rows.T``, shape (forms, records); with `stream`, of records that come from memory, not from a cache."""
    if len(weights) == 1:
        if stream and not sp.issparse(rows) and STREAMED[0] <= rows.shape[1] <= STREAMED[1]:
            return np.einsum("ij,j->i", rows, weights[0])[None]
        return np.asarray(rows @ weights[0])[None]
    return np.ascontiguousarray((rows @ weights.T).T) if sp.issparse(rows) else weights @ rows.T


def transposed_product(rows: Any, gradient: Array) -> Array:
    """Return ``gradient @ rows``, shape (forms, scalars)."""
    if sp.issparse(rows):
        return np.asarray(rows.T @ gradient[0])[None] if len(gradient) == 1 else np.asarray(rows.T @ gradient.T).T
    return (gradient[0] @ rows)[None] if len(gradient) == 1 else gradient @ rows


class QuadraticDesign:
    """Monomials of degree two and less, made from few records at a time.

    Parameters
    ----------
    monomials : ndarray of int, shape (count, 2)
        Sorted, so that those with the same first factor are neighbours.
    fields : mapping of str to slice
    """

    def __init__(self, monomials: Indices, fields: Mapping[str, slice]) -> None:
        self.count = len(monomials)
        used = np.unique(monomials[monomials >= 0])
        number = np.full(int(monomials.max(initial=-1)) + 2, -1)
        number[used] = np.arange(len(used))
        self.fields = {
            name: used[(used >= span.start) & (used < span.stop)] - span.start
            for name, span in fields.items()
            if ((used >= span.start) & (used < span.stop)).any()
        }
        self.scalars = len(used)
        self.pieces = pieces(number[monomials])

    def forward(self, block: Block, coefficients: Array, size: int) -> Array:
        """See `Design`."""
        scalars, result = self._scalars(block, size), np.empty((len(coefficients), size))
        room = np.empty((TOGETHER, min(STEP, size)))
        for start in range(0, size, STEP):
            few, target = scalars[:, start : start + STEP], result[:, start : start + STEP]
            target[:] = coefficients[:, -1:]
            for low, high, factors in self.pieces:
                target += coefficients[:, low:high] @ products(few, factors, room)
        return result

    def backward(self, block: Block, gradient: Array) -> Array:
        """See `Design`."""
        size = gradient.shape[1]
        scalars, result = self._scalars(block, size), np.zeros((len(gradient), self.count))
        room = np.empty((TOGETHER, min(STEP, size)))
        for start in range(0, size, STEP):
            few, weights = scalars[:, start : start + STEP], gradient[:, start : start + STEP]
            for low, high, factors in self.pieces:
                result[:, low:high] += weights @ products(few, factors, room).T
        result[:, -1] = gradient.sum(axis=1)
        return result

    def _scalars(self, block: Block, size: int) -> Array:
        """Scalars that occur, and a row of ones, shape (scalars + 1, size)."""
        table = np.ones((self.scalars + 1, size))
        start = 0
        for name, columns in self.fields.items():
            rows = flattened(block[name])
            if sp.issparse(rows):
                rows = rows.toarray()
            table[start : start + len(columns)] = rows[:, columns].T
            start += len(columns)
        return table


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
