"""Numbers that are declared equal: one copy of them is projected, and handed to all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from dpconvex.geometry.convex_sets import UNIT, AffineSubspace, Piece

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


def tied_coordinates(equations: Sequence[AffineSubspace], coordinates: Indices) -> Indices | None:
    first, second = [], []
    for piece in equations:
        count = (piece.matrix != 0).sum(axis=1)
        if (count != 2).any() or piece.value.any() or piece.matrix.sum(axis=1).any():
            return None
        pairs = np.nonzero(piece.matrix)[1].reshape(-1, 2)
        place = np.searchsorted(coordinates, piece.coordinates)[pairs]
        first.append(place[:, 0])
        second.append(place[:, 1])
    rows, columns = np.concatenate(first), np.concatenate(second)
    n = len(coordinates)
    graph = sp.coo_array((np.ones(len(rows)), (rows, columns)), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Tied(Piece):
    """Copies of the points of a set: coordinate i equals number ``index[i]`` of a point of `whole`.

    Every set in `whole` is on numbers with as many copies each, so the point next to x is the one next to the means.
    """

    whole: Piece
    index: Indices

    @cached_property
    def counts(self) -> Array:
        """How many copies there are of each number."""
        return np.bincount(self.index).astype(float)

    def means(self, x: Array) -> Array:
        """Return the mean of all copies of each number, exactly where they agree."""
        first = np.empty(len(self.counts))
        first[self.index] = x
        return np.asarray(first + np.bincount(self.index, x - first[self.index]) / self.counts)

    def project(self, x: Array) -> Array:
        return np.asarray(self.whole.project(self.means(x))[self.index])

    def bounds(self) -> tuple[Array, Array]:
        """Return those of each number."""
        lower, upper = self.whole.bounds()
        return lower[self.index], upper[self.index]

    def error(self, x: Array) -> float:
        """Means are rounded, and errors copied."""
        most = float(self.counts.max())
        return float(np.sqrt(most)) * self.whole.error(self.means(x)) + 4 * (most + 2) * UNIT * float(np.linalg.norm(x))

    def largest_error(self, norm: float) -> float:
        """Bound the same: no mean is larger than its copies."""
        most = float(self.counts.max())
        return float(np.sqrt(most)) * self.whole.largest_error(norm) + 4 * (most + 2) * UNIT * norm
