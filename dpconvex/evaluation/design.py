"""The two products of a pass over the records: monomials with coefficients, and their transposes with gradients.

Forms and gradients have the records as their *last* axis.  Monomials of degree one are the data themselves, dense or sparse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.summation import apart, products_apart
from dpconvex.evaluation.second_degree import FactoredDesign, QuadraticDesign
from dpconvex.language.columns import flattened

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Block = Mapping[str, Any]


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
    """Monomials of degree one: columns of the fields, and a constant."""

    def __init__(self, monomials: Indices, fields: Mapping[str, slice]) -> None:
        self.count = len(monomials)
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
            part = product(flattened(block[name]), weights)
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
            rows = flattened(block[name])
            result[:, place] = ((rows.T @ gradient.T).T if sp.issparse(rows) else gradient @ rows)[:, column]
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


def product(rows: Any, weights: Array) -> Array:
    """Return ``weights @ rows.T``, shape (forms, records)."""
    if sp.issparse(rows):  # for one form a product with a vector, which is faster than one with a column
        return np.ascontiguousarray((rows @ weights[0])[None] if len(weights) == 1 else (rows @ weights.T).T)
    return products_apart(weights, rows) if apart() else np.asarray(weights @ rows.T)
