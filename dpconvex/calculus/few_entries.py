"""Products of tables that hold little but zeros: with very many labels, rows mention two of a thousand generators."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Tables of so many entries, of which at most one in this number is not 0, are multiplied as sparse ones.
MANY, SPARSE = 1 << 14, 16


def few(table: Array) -> bool:
    """Whether a large table holds little but zeros."""
    return bool(table.size >= MANY and np.count_nonzero(table) * SPARSE < table.size)


def times(left: Array, right: Array) -> Array:
    """Multiply matrices; with very many labels, rows have few entries."""
    return np.asarray((sp.csr_array(left) if few(left) else left) @ right)


def bilinear(left: Array, matrix: Array, right: Array) -> Array:
    if few(left) and few(right):
        return times(right, times(left, matrix).T).T
    return np.asarray(left @ matrix @ right.T)


class Squares:
    """The numbers ``<v, matrix v>`` for each row v of a table, for any matrix."""

    def __init__(self, vectors: Array) -> None:
        self._vectors = vectors
        self._paired = False
        if not few(vectors):
            return
        row, column = np.nonzero(vectors)
        lengths = np.bincount(row, minlength=len(vectors))
        self._paired = int((lengths**2).sum()) <= vectors.size
        if self._paired:  # each entry with every entry of its row
            each = lengths[row]
            left = np.repeat(np.arange(len(row)), each)
            right = np.arange(len(left)) + np.repeat((np.cumsum(lengths) - lengths)[row] - np.cumsum(each) + each, each)
            entry = vectors[row, column]
            self._row, self._place, self._products = (
                row[left],
                (column[left], column[right]),
                entry[left] * entry[right],
            )

    def of(self, matrix: Array, *, absolute: bool = False) -> Array:
        """Return them for the rows, or for the rows of absolute values."""
        if self._paired:
            weights = (np.abs(self._products) if absolute else self._products) * matrix[self._place]
            return np.asarray(np.bincount(self._row, weights=weights, minlength=len(self._vectors)), dtype=float)
        vectors = np.abs(self._vectors) if absolute else self._vectors
        return np.asarray(((vectors @ matrix) * vectors).sum(axis=1))


def used(vectors: Array) -> tuple[Any, Array]:
    """Return the generators that occur, as places of a part of a matrix, and the vectors in them."""
    if few(vectors):
        return (slice(None), slice(None)), vectors
    place = np.flatnonzero((vectors != 0).any(axis=0))
    return (place[:, None], place[None, :]), vectors[:, place]
