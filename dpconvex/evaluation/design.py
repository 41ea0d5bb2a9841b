"""The two products of a pass over the records: monomials with coefficients, and their transposes with gradients.

Forms and gradients have the records as their *last* axis.  Monomials of degree one are the data themselves, dense or sparse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.summation import apart, inner_products, products_apart, sparse_rows, transposed_product
from dpconvex.evaluation.second_degree import FactoredDesign, QuadraticDesign
from dpconvex.language.columns import flattened

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Block = Mapping[str, Any]

# For records of so many scalars NumPy's einsum, which reads them one after the other, is faster than the BLAS, which reads
# several at a time, when they come from memory; from a cache it is slower.  (It would be up to 512; but longer inner products
# may err by more than `dpconvex.core.summation` takes for granted.)
STREAMED = 32, 112


class Design(Protocol):
    """Monomials of a block of records, times matrices."""

    count: int

    def forward(self, block: Block, coefficients: Array, size: int) -> Array:
        """Return forms, shape (forms, size), from coefficients, shape (forms, monomials)."""
        ...

    def backward(self, block: Block, gradient: Array) -> Array:
        """Return the gradient with respect to the coefficients from that with respect to the forms."""
        ...

    def table(self, block: Block, size: int) -> Array:
        """Return the monomials themselves, shape (size, monomials)."""
        ...


def design_of(monomials: Indices, fields: Mapping[str, slice], forms: int) -> Design:
    """Return the design for so many forms of monomials, shape (count, degree), the constant one last."""
    if monomials.shape[1] <= 1:
        return LinearDesign(monomials, fields)
    factored = FactoredDesign(monomials, fields)
    return factored if factored.is_faster(forms) else QuadraticDesign(monomials, fields)


class LinearDesign:
    """Monomials of degree one: columns of the fields, and a constant.

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
        result = np.zeros((len(gradient), self.count))
        for name, (place, column, _) in self.places.items():
            result[:, place] = transposed_product(flattened(block[name]), gradient)[:, column]
        result[:, -1] = gradient.sum(axis=1)
        return result

    def table(self, block: Block, size: int) -> Array:
        result = np.ones((size, self.count))
        for name, (place, column, width) in self.places.items():
            rows = flattened(block[name])
            if sp.issparse(rows):
                rows = rows.toarray()
            whole = len(column) == width and (np.diff(column) == 1).all() and (np.diff(place) == 1).all()
            result[:, slice(place[0], place[-1] + 1) if whole else place] = rows if whole else rows[:, column]
        return result


def product(rows: Any, weights: Array, stream: bool = False) -> Array:
    """Return ``weights @ rows.T``, shape (forms, records); with `stream`, of records that come from memory, not from a cache."""
    if sp.issparse(rows):
        return sparse_rows(rows).product(weights)
    if apart():
        return products_apart(weights, rows)
    if len(weights) == 1 and stream and STREAMED[0] <= rows.shape[1] <= STREAMED[1]:
        return np.einsum("ij,j->i", rows, weights[0])[None]
    return inner_products(weights, rows.T)
