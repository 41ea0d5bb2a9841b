"""Monomials of records: their products with coefficients, and the transposed products. Records are the *last* axis."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.data.columns import dense, flattened
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.summation import PIECE, Pairwise, pairwise

Block = Mapping[str, Any]
Product = Callable[[Array, Block, str], Array]

# Keys of a block's monomials of degree two, and of the pieces of sparse records.
TABLE, KEPT_BESIDE = " monomials", "_beside"


def product(weights: Array, block: Block, name: str) -> Array:
    """Return ``weights @ rows.T``, shape (forms, records)."""
    rows = flattened(block[name])
    if sp.issparse(rows):
        return np.ascontiguousarray((rows @ weights[0])[None] if len(weights) == 1 else (rows @ weights.T).T)
    return np.asarray(weights @ rows.T)


def product_apart(weights: Array, block: Block, name: str) -> Array:
    """Return the same product, with a record's bits independent of other records: BLAS adds in another order for each shape."""
    rows = flattened(block[name])
    if sp.issparse(rows):
        return np.stack([rows @ weight for weight in weights])
    return np.asarray(np.einsum("fj,nj->fn", np.ascontiguousarray(weights), np.ascontiguousarray(rows, dtype=float)))


def transposed(gradient: Array, rows: Any) -> Array:
    """Return ``gradient @ rows``, shape (forms, scalars), by pairwise summation over pieces of the records."""
    forms, size = gradient.shape
    if sp.issparse(rows):
        found = beside(rows) @ (gradient[0] if forms == 1 else gradient.T)
        return np.asarray(pairwise(np.asarray(found).reshape(-1, rows.shape[1], forms)).T)
    whole = size // PIECE * PIECE
    rest = np.asarray(gradient[:, whole:] @ rows[whole:])
    if not whole:
        return rest
    pieces = gradient[:, :whole].reshape(forms, -1, PIECE).transpose(1, 0, 2)
    return np.asarray(pairwise(pieces @ rows[:whole].reshape(-1, PIECE, rows.shape[1])) + rest)


def beside(rows: Any) -> Any:
    """Return transposed sparse records, with the pieces side by side as further columns; the result is cached in `rows`."""
    if KEPT_BESIDE not in rows.__dict__:
        count, scalars = rows.shape
        width = -(-count // PIECE) * scalars
        kind = np.int32 if max(width, len(rows.data)) < 2**31 else np.int64
        column = rows.indices + np.repeat((np.arange(count) // PIECE * scalars).astype(kind), np.diff(rows.indptr))
        rows.__dict__[KEPT_BESIDE] = sp.csr_array((rows.data, column, rows.indptr), shape=(count, width)).T
    return rows.__dict__[KEPT_BESIDE]


@dataclass(frozen=True, eq=False)
class Design:
    """The monomials of a record, with the constant last. Scalars are read in place; products of two scalars are computed."""

    count: int
    columns: dict[str, slice]  # which monomials each column of a block holds; none if only the constant one is needed
    fields: tuple[str, ...]
    pairs: tuple[Indices, Indices] | None = None  # of scalars whose products are the monomials; -1 stands for 1

    def with_table(self, block: Block, own: Any = None) -> Array:
        """Return the monomials of degree two, without the constant, shape (records, monomials), in the memory of `own`."""
        assert self.pairs is not None
        rows = [dense(flattened(block[name])) for name in self.fields]
        # Without an explicit order, the values of one scalar would not be contiguous.
        scalars = np.ascontiguousarray(np.concatenate([*(part.T for part in rows), np.ones((1, len(rows[0])))]))
        first, second = self.pairs
        table, shape = getattr(own, "table", None), (len(first), len(rows[0]))
        if table is None or table.shape != shape:
            table = np.empty(shape)
            if own is not None:
                own.table = table
        # Pairs are sorted: pairs with the same first scalar are adjacent, and their second scalars are often consecutive.
        ends = np.flatnonzero((np.diff(first, append=-2) != 0) | (np.diff(second, append=-2) != 1)) + 1
        for start, end in zip((0, *ends), ends, strict=False):
            place = second[start] % len(scalars)
            np.multiply(scalars[place : place + end - start], scalars[first[start]], out=table[start:end])
        return np.asarray(table.T)

    def forward(self, block: Block, coefficients: Array, product: Product = product) -> Array:
        """Return the forms from their coefficients, shape (forms, records), or (forms, 1) if they read no scalar."""
        constant, total = coefficients[:, -1:], Pairwise(None)
        for name, span in self.columns.items():
            if coefficients[:, span].any():
                total.add(product(coefficients[:, span], block, name))
        if total.value is None:
            return constant
        return np.asarray(total.value + constant if constant.any() else total.value)

    def backward(self, block: Block, gradient: Array) -> Array:
        """Return the gradient with respect to the coefficients from the gradient with respect to the forms."""
        parts = [transposed(gradient, flattened(block[name])) for name in self.columns]
        return np.concatenate([*parts, gradient.sum(axis=1, keepdims=True)], axis=1)

    def table(self, block: Block, size: int) -> Array:
        """Return all monomials, shape (size, monomials)."""
        return np.concatenate([*(dense(flattened(block[name])) for name in self.columns), np.ones((size, 1))], axis=1)
