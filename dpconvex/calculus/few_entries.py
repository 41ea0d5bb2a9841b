"""Products of tables that hold little but zeros: with very many labels, rows mention two of a thousand generators."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

__all__ = ["bilinear", "squares", "times", "used"]

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
    """Return ``left @ matrix @ right.T``."""
    if few(left) and few(right):
        return times(right, times(left, matrix).T).T
    return np.asarray(left @ matrix @ right.T)


def squares(vectors: Array, matrix: Array) -> Array:
    """Return ``<v, matrix v>`` for each row v."""
    if not few(vectors):
        return np.asarray(((vectors @ matrix) * vectors).sum(axis=1))
    rows = sp.csr_array(vectors)
    return np.asarray(rows.multiply(rows @ (sp.csr_array(matrix) if few(matrix) else matrix)).sum(axis=1)).ravel()


def used(vectors: Array) -> tuple[Any, Array]:
    """Return the generators that occur, as places of a part of a matrix, and the vectors in them."""
    if few(vectors):
        return (slice(None), slice(None)), vectors
    place = np.flatnonzero((vectors != 0).any(axis=0))
    return (place[:, None], place[None, :]), vectors[:, place]
