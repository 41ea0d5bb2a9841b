"""The two products of a pass over the records: monomials with coefficients, and their transposes with gradients.

Forms and gradients have the records as their *last* axis.  Monomials of degree one are the data themselves, dense or sparse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.summation import PIECE, TERMS, Pairwise, apart, inner_products, pairwise, products_apart
from dpconvex.language.columns import flattened

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Block = Mapping[str, Any]

# So many monomials of degree two are made at a time, but of no fewer records than the second number.
TOGETHER, FEWEST = 2**20, 256
# So many sums of pieces of sparse records are made at a time.
WIDE = 2**22
# Where a block keeps its monomials.
TABLE = " monomials"
# Where sparse records keep their pieces.
BESIDE = "_beside"


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

    def forward(self, block: Block, coefficients: Array, size: int) -> Array:
        total = Pairwise(None)
        for name, (place, column, width) in self.places.items():
            weights = np.zeros((len(coefficients), width))
            weights[:, column] = coefficients[:, place]
            if weights.any():
                total.add(product(flattened(block[name]), weights))
        constant = coefficients[:, -1]
        if total.value is None:
            return np.repeat(constant[:, None], size, axis=1)
        result: Array = total.value
        if constant.any():
            result += constant[:, None]
        return result

    def backward(self, block: Block, gradient: Array) -> Array:
        result = np.zeros((len(gradient), self.count))
        for name, (place, column, _) in self.places.items():
            rows = flattened(block[name])
            result[:, place] = transposed(gradient, rows)[:, column]
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

    def forward(self, block: Block, coefficients: Array, size: int) -> Array:
        result = np.empty((len(coefficients), size))
        for some, rows in self._tables(block, size):
            result[:, some] = inner_products(coefficients, rows)
        return result

    def backward(self, block: Block, gradient: Array) -> Array:
        total = Pairwise(np.zeros((len(gradient), self.count)))
        for some, rows in self._tables(block, gradient.shape[1]):
            total.add(transposed(gradient[:, some], rows.T))
        return np.asarray(total.value)

    def table(self, block: Block, size: int) -> Array:
        return self._rows(block, slice(0, size)).T

    def _tables(self, block: Block, size: int) -> Iterator[tuple[slice, Array]]:
        """Yield the monomials of few records at a time, records last."""
        if TABLE in block:
            yield slice(0, size), block[TABLE].T
            return
        step = max(TOGETHER // self.count // FEWEST, 1) * FEWEST
        for start in range(0, size, step):
            some = slice(start, min(start + step, size))
            yield some, self._rows(block, some)

    def _rows(self, block: Block, some: slice) -> Array:
        scalars = [np.ones((1, some.stop - some.start))]
        for name, columns in reversed(self.fields.items()):
            rows = flattened(block[name][some])
            scalars.insert(0, (rows.toarray() if sp.issparse(rows) else rows)[:, columns].T)
        table = np.concatenate(scalars)
        return np.asarray(table[self.first] * table[self.second])


def product(rows: Any, weights: Array) -> Array:
    """Return ``weights @ rows.T``, shape (forms, records), each inner product in pieces, and these in pairs."""
    if not sp.issparse(rows):
        return products_apart(weights, rows) if apart() else inner_products(weights, rows.T)
    parts = np.maximum(-(-np.diff(rows.indptr) // TERMS), 1)
    if parts.max(initial=1) > 1:  # the pieces of a record are several rows
        ends = np.append(starts(parts, TERMS, rows.indptr[:-1]), rows.indptr[-1])
        rows = sp.csr_array(
            (rows.data, rows.indices, ends.astype(rows.indptr.dtype)), shape=(len(ends) - 1, rows.shape[1])
        )
    # For one form a product with a vector, which is faster than one with a column.
    found = (rows @ weights[0])[:, None] if len(weights) == 1 else rows @ weights.T
    while len(found) > len(parts):
        found = np.add.reduceat(found, starts(-(-parts // 2), 2, np.cumsum(parts) - parts), axis=0)
        parts = -(-parts // 2)
    return np.ascontiguousarray(found.T)


def starts(counts: Indices, step: int, first: Indices) -> Indices:
    """Return where parts begin: so many for each record, from a first place on."""
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.asarray(np.repeat(first, counts) + step * within)


def beside(rows: Any, start: int, step: int) -> sp.csc_array:
    """Return some sparse records, transposed, with the columns of each piece beside those of the last; they are kept."""
    kept: dict[int, sp.csc_array] = rows.__dict__.setdefault(BESIDE, {})
    if start not in kept:
        ends, scalars = rows.indptr[start : start + step + 1], rows.shape[1]
        count, inside = len(ends) - 1, slice(ends[0], ends[-1])
        shape = (count, -(-count // PIECE) * scalars)
        kind = np.int32 if max(shape[1], len(rows.data)) < 2**31 else np.int64
        column = rows.indices[inside] + np.repeat((np.arange(count) // PIECE * scalars).astype(kind), np.diff(ends))
        kept[start] = sp.csr_array(
            (rows.data[inside], column.astype(kind), (ends - ends[0]).astype(kind)), shape=shape
        ).T
    return kept[start]


def transposed(gradient: Array, rows: Any) -> Array:
    """Return ``gradient @ rows``, summed over the records in pieces, and these in pairs (`dpconvex.core.summation`)."""
    (forms, size), count = gradient.shape, gradient.shape[1] // PIECE
    if sp.issparse(rows):
        scalars, total = rows.shape[1], Pairwise(np.zeros((forms, rows.shape[1])))
        step = max(WIDE // max(scalars, 1), 1) * PIECE
        for start in range(0, size, step):
            some, few = beside(rows, start, step), gradient[:, start : start + step]
            parts = some @ few[0] if forms == 1 else some @ few.T
            total.add(pairwise(np.asarray(parts).reshape(-1, scalars, forms)).T)
        return np.asarray(total.value)
    rest = gradient[:, count * PIECE :] @ rows[count * PIECE :]
    if not count:
        return np.asarray(rest)
    pieces = gradient[:, : count * PIECE].reshape(forms, count, PIECE).transpose(1, 0, 2)
    whole = rows[: count * PIECE]
    sides = whole.T.reshape(-1, count, PIECE).transpose(1, 2, 0)  # of columns that lie side by side, without a copy
    others = whole.reshape(count, PIECE, -1) if rows.flags.c_contiguous else sides
    return np.asarray(pairwise(pieces @ others) + rest)
