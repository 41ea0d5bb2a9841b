"""The two products of a pass over the records: monomials with coefficients, and their transposes with gradients.

Forms and gradients have the records as their *last* axis.  Monomials of degree one are the data themselves, dense or sparse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.summation import Pairwise
from dpconvex.language.columns import flattened

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Block = Mapping[str, Any]
Product = Callable[[Array, Any], Array]

# So many monomials of degree two are made at a time.
TOGETHER = 2**20
# Where a block keeps its monomials.
TABLE = " monomials"


def product(weights: Array, rows: Any) -> Array:
    """Return ``weights @ rows.T``, shape (forms, records)."""
    if not sp.issparse(rows):
        return np.asarray(weights @ rows.T)
    # For one form a product with a vector, which is faster than one with a column.
    return np.asarray((rows @ weights[0])[None] if len(weights) == 1 else np.ascontiguousarray((rows @ weights.T).T))


def transposed(gradient: Array, rows: Any) -> Array:
    """Return ``gradient @ rows``, shape (forms, scalars)."""
    if not sp.issparse(rows):
        return np.asarray(gradient @ rows)
    return np.asarray((rows.T @ gradient[0])[None] if len(gradient) == 1 else (rows.T @ gradient.T).T)


class Design(Protocol):
    """Monomials of a block of records, times matrices."""

    count: int

    def forward(self, block: Block, coefficients: Array, size: int, product: Product = product) -> Array:
        """Return forms, shape (forms, size), from coefficients, shape (forms, monomials)."""
        ...

    def backward(self, block: Block, gradient: Array) -> Array:
        """Return the gradient with respect to the coefficients from that with respect to the forms."""
        ...

    def table(self, block: Block, size: int) -> Array:
        """Return the monomials themselves, shape (size, monomials)."""
        ...


def design_of(monomials: Indices, fields: Mapping[str, slice]) -> Design:
    """Return the design of monomials, shape (count, degree), the constant one last."""
    return LinearDesign(monomials, fields) if monomials.shape[1] <= 1 else QuadraticDesign(monomials, fields)


class LinearDesign:
    """Monomials of degree one: columns of the fields, and a constant."""

    def __init__(self, monomials: Indices, fields: Mapping[str, slice]) -> None:
        self.count = len(monomials)
        scalars = monomials[:-1, 0] if monomials.shape[1] else np.zeros(0, dtype=np.int64)
        self.places: dict[str, tuple[Indices, Indices, int]] = {}
        for name, span in fields.items():
            place = np.flatnonzero((scalars >= span.start) & (scalars < span.stop))
            if len(place):
                self.places[name] = (place, scalars[place] - span.start, span.stop - span.start)

    def forward(self, block: Block, coefficients: Array, size: int, product: Product = product) -> Array:
        """See `Design`; one column, which all records share, if nothing is read of them."""
        total = coefficients[:, -1:]
        for name, (place, column, width) in self.places.items():
            weights = np.zeros((len(coefficients), width))
            weights[:, column] = coefficients[:, place]
            if weights.any() or len(self.places) == 1:
                found = product(weights, flattened(block[name]))
                total = found + total if total.any() else found
        return np.broadcast_to(total, (len(total), size)) if self.places else total

    def backward(self, block: Block, gradient: Array) -> Array:
        result = np.zeros((len(gradient), self.count))
        for name, (place, column, _) in self.places.items():
            result[:, place] = transposed(gradient, flattened(block[name]))[:, column]
        result[:, -1] = gradient.sum(axis=1)
        return result

    def table(self, block: Block, size: int) -> Array:
        result = np.ones((size, self.count))
        for name, (place, column, _) in self.places.items():
            rows = flattened(block[name])
            result[:, place] = (rows.toarray() if sp.issparse(rows) else rows)[:, column]
        return result


class QuadraticDesign:
    """Monomials of degree two and less, made from few records at a time, or kept with a block by those who have room for them."""

    def __init__(self, monomials: Indices, fields: Mapping[str, slice]) -> None:
        self.count = len(monomials)
        used = np.unique(monomials[monomials >= 0])
        number = np.full(int(monomials.max(initial=-1)) + 2, len(used))  # -1 stands for 1, which comes last
        number[used] = np.arange(len(used))
        self.first, self.second = number[monomials].T
        inside = {name: used[(used >= span.start) & (used < span.stop)] - span.start for name, span in fields.items()}
        self.fields = {name: columns for name, columns in inside.items() if len(columns)}

    def forward(self, block: Block, coefficients: Array, size: int, product: Product = product) -> Array:
        result = np.empty((len(coefficients), size))
        for some, rows in self._tables(block, size):
            result[:, some] = product(coefficients, rows)
        return result

    def backward(self, block: Block, gradient: Array) -> Array:
        total = Pairwise(np.zeros((len(gradient), self.count)))
        for some, rows in self._tables(block, gradient.shape[1]):
            total.add(gradient[:, some] @ rows)
        return np.asarray(total.value)

    def table(self, block: Block, size: int) -> Array:
        return block[TABLE] if TABLE in block else self._rows(block, slice(0, size))

    def _tables(self, block: Block, size: int) -> Iterator[tuple[slice, Array]]:
        """Yield the monomials of few records at a time."""
        step = size if TABLE in block else max(TOGETHER // self.count // 256, 1) * 256
        for start in range(0, size, step):
            some = slice(start, min(start + step, size))
            yield some, block[TABLE] if TABLE in block else self._rows(block, some)

    def _rows(self, block: Block, some: slice) -> Array:
        scalars = [np.ones((1, some.stop - some.start))]
        for name, columns in reversed(self.fields.items()):
            rows = flattened(block[name][some])
            scalars.insert(0, (rows.toarray() if sp.issparse(rows) else rows)[:, columns].T)
        table = np.concatenate(scalars)
        return np.asarray(table[self.first] * table[self.second]).T
