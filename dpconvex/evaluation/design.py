"""The two products of a pass over the records: monomials with coefficients, and their transposes with gradients.

Forms and gradients have the records as their *last* axis.  Monomials of degree one are the data themselves, dense or sparse;
those of degree two are one more column of a block, which `Design.with_table` makes.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.core.arrays import Array, Indices
from dpconvex.core.summation import PIECE, TERMS, Pairwise, pairwise
from dpconvex.language.columns import dense, flattened

Block = Mapping[str, Any]
Product = Callable[[Array, Any], Array]

# Where a block keeps its monomials of degree two, and sparse records their pieces.
TABLE, KEPT_PARTS, KEPT_BESIDE = " monomials", "_parts", "_beside"


def product(weights: Array, rows: Any) -> Array:
    """Return ``weights @ rows.T``, shape (forms, records), each inner product in pieces, and these in pairs."""
    if sp.issparse(rows):
        found = pairwise(np.stack([part @ (weights[0] if len(weights) == 1 else weights.T) for part in parts_of(rows)]))
        return np.asarray(found[None] if len(weights) == 1 else np.ascontiguousarray(found.T))
    total = Pairwise(None)
    for some in (slice(start, start + TERMS) for start in range(0, weights.shape[1], TERMS)):
        total.add(weights[:, some] @ rows[:, some].T)
    return np.asarray(total.value)


def transposed(gradient: Array, rows: Any) -> Array:
    """Return ``gradient @ rows``, shape (forms, scalars), summed over the records in pieces, and these in pairs."""
    forms, size = gradient.shape
    if sp.issparse(rows):
        found = beside(rows) @ (gradient[0] if forms == 1 else gradient.T)
        return np.asarray(pairwise(np.asarray(found).reshape(-1, rows.shape[1], forms)).T)
    whole = size // PIECE * PIECE
    rest = np.asarray(gradient[:, whole:] @ rows[whole:])
    if not whole:
        return rest
    pieces = gradient[:, :whole].reshape(forms, -1, PIECE).transpose(1, 0, 2)
    if rows.flags.c_contiguous:
        others = rows[:whole].reshape(-1, PIECE, rows.shape[1])
    else:  # columns lie side by side
        others = rows[:whole].T.reshape(-1, len(pieces), PIECE).transpose(1, 2, 0)
    return np.asarray(pairwise(pieces @ others) + rest)


def parts_of(rows: Any) -> list[Any]:
    """Return sparse records as a sum of ones with few terms each; they are kept."""
    if KEPT_PARTS not in rows.__dict__:
        counts = np.diff(rows.indptr)
        piece = (np.arange(len(rows.data)) - np.repeat(rows.indptr[:-1], counts)) // TERMS
        parts = []
        for number in range(int(piece.max(initial=0)) + 1):
            ends = np.concatenate([[0], np.cumsum(np.clip(counts - number * TERMS, 0, TERMS))])
            own = piece == number
            parts.append(sp.csr_array((rows.data[own], rows.indices[own], ends), shape=rows.shape))
        rows.__dict__[KEPT_PARTS] = parts if len(parts) > 1 else []  # no circle
    return rows.__dict__[KEPT_PARTS] or [rows]


def beside(rows: Any) -> Any:
    """Return sparse records, transposed, with the columns of each piece beside those of the last; they are kept."""
    if KEPT_BESIDE not in rows.__dict__:
        count, scalars = rows.shape
        width = -(-count // PIECE) * scalars
        kind = np.int32 if max(width, len(rows.data)) < 2**31 else np.int64
        column = rows.indices + np.repeat((np.arange(count) // PIECE * scalars).astype(kind), np.diff(rows.indptr))
        rows.__dict__[KEPT_BESIDE] = sp.csr_array((rows.data, column, rows.indptr), shape=(count, width)).T
    return rows.__dict__[KEPT_BESIDE]


class Design:
    """Monomials, shape (count, degree), the constant one last, of blocks of records, times matrices."""

    def __init__(self, monomials: Indices, fields: Mapping[str, slice]) -> None:
        self.count, self.fields = len(monomials), fields
        self.pairs: tuple[Indices, Indices] | None = None
        # Of each column: which monomials it has, where these are in it, and how wide it is.
        self.places: dict[str, tuple[Any, Any, int]] = {}
        if monomials.shape[1] > 1:
            first, second = monomials[:-1].T
            self.pairs, every = (first, second), slice(0, self.count - 1)
            self.places[TABLE] = (every, every, self.count - 1)
            return
        scalars = monomials[:-1].ravel()
        for name, span in fields.items():
            place = np.flatnonzero((scalars >= span.start) & (scalars < span.stop))
            if len(place):
                self.places[name] = (run(place), run(scalars[place] - span.start), span.stop - span.start)

    def with_table(self, block: Block) -> Array:
        """Return the monomials of degree two, but for the constant one, shape (records, monomials)."""
        assert self.pairs is not None
        rows = [dense(flattened(block[name])) for name in self.fields]
        ones = np.ones((1, len(rows[0])))  # the last row, which -1 stands for
        scalars = np.concatenate([*(part.T for part in rows), ones])
        return np.asarray((scalars[self.pairs[0]] * scalars[self.pairs[1]]).T)

    def forward(self, block: Block, coefficients: Array, size: int, product: Product = product) -> Array:
        """Return forms, shape (forms, size), from coefficients; one column, which all share, if nothing is read of them."""
        constant, total = coefficients[:, -1:], Pairwise(None)
        for name, (place, column, width) in self.places.items():
            weights = np.zeros((len(coefficients), width))
            weights[:, column] = coefficients[:, place]
            if weights.any():
                total.add(product(weights, flattened(block[name])))
        if total.value is None:
            return np.broadcast_to(constant, (len(constant), size)) if self.places else constant
        return np.asarray(total.value + constant if constant.any() else total.value)

    def backward(self, block: Block, gradient: Array) -> Array:
        """Return the gradient with respect to the coefficients from that with respect to the forms."""
        result = np.zeros((len(gradient), self.count))
        for name, (place, column, _) in self.places.items():
            result[:, place] = transposed(gradient, flattened(block[name]))[:, column]
        result[:, -1] = gradient.sum(axis=1)
        return result

    def table(self, block: Block, size: int) -> Array:
        """Return the monomials themselves, shape (size, monomials)."""
        result = np.ones((size, self.count))
        for name, (place, column, _) in self.places.items():
            result[:, place] = dense(flattened(block[name]))[:, column]
        return result


def run(numbers: Indices) -> Indices | slice:
    """Return numbers as a slice if they follow one another: what it takes is not copied."""
    return slice(numbers[0], numbers[-1] + 1) if (np.diff(numbers) == 1).all() else numbers
