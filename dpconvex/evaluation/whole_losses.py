"""Sums over records whose losses have leaves of any kind: each group with equal discrete fields with its whole loss, in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.expression import Expression
from dpconvex.core.parameter_space import Space
from dpconvex.core.summation import PIECE, Pairwise, each_apart, filled
from dpconvex.evaluation.clipping import clipped
from dpconvex.evaluation.derivatives import gradient, hessian_product, values
from dpconvex.evaluation.design import transposed
from dpconvex.evaluation.lowered_template import LoweredTemplate
from dpconvex.evaluation.programs import Lowered
from dpconvex.language.batch import Batch

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# So many numbers of a kind are made at a time: they stay in a cache.
CACHED = 2**16
# Relative error of a squared norm, at most.
ROUNDED = 1e-9


class WholeLosses:
    """Sums over records."""

    def __init__(self, lowered: LoweredTemplate, space: Space, batch: Batch) -> None:
        self.lift, self.space, self.batch = lowered.lift, space, batch
        self._groups = [(loss, rows) for g, loss in enumerate(lowered.losses) if len(rows := batch.rows(g))]

    def _entries(self, theta: Array) -> Array:
        return np.asarray(self.lift @ theta)[:, None]

    def _pieces(
        self, theta: Array, chosen: NDArray[np.bool_] | None = None, whole: bool = False
    ) -> Iterator[tuple[Lowered, Indices, dict[Expression, Any], int]]:
        """Yield programs, records, what stands in the slots, and how many records that is: one if it is the same for all.

        If it is to be whole `LANES` of them, the last record is repeated.
        """
        entries = self._entries(theta)
        for lowered, everyone in self._groups:
            rows = everyone if chosen is None else everyone[chosen[everyone]]
            if not len(rows):
                continue
            step = max(CACHED // max(len(lowered.place), 1) // PIECE, 1) * PIECE
            for start in range(0, len(rows), step if lowered.fields else len(rows)):
                some = rows[start : start + step] if lowered.fields else rows
                read = filled(some) if whole else some
                fields = {name: self.batch.fields[name][read] for name in lowered.fields}
                leaves = lowered.leaves(entries[lowered.place], fields)
                yield lowered, some, leaves, len(read) if lowered.fields else 1

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient, shape (dim,)."""
        total, slope = 0.0, Pairwise(np.zeros(self.lift.shape[0]))
        for lowered, rows, leaves, count in self._pieces(theta):
            found, part = gradient(lowered.program, leaves, count)
            total += float(found.sum()) * (len(rows) // count)
            slope.add(self._placed(lowered, part, len(rows) // count))
        return total, np.asarray(self.lift.T @ slope.value)

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None) -> Array:
        """Sum of the records' gradients, each scaled to a norm of at most `clip`, shape (dim,); of the chosen records only.

        Each is computed to the same bits whatever records are beside it.
        """
        total = Pairwise(np.zeros(self.lift.shape[1]))
        with each_apart():
            for lowered, rows, leaves, count in self._pieces(theta, chosen, whole=True):
                with np.errstate(all="ignore"):
                    slopes = np.asarray(self.lift[lowered.place].T @ gradient(lowered.program, leaves, count)[1])
                    slopes = clipped(slopes, np.einsum("ij,ij->j", slopes, slopes) * (1 + ROUNDED), clip)
                times, slopes = (1, slopes[:, : len(rows)]) if lowered.fields else (len(rows), slopes)
                total.add(times * transposed(slopes, np.ones((slopes.shape[1], 1)))[:, 0])
        return np.asarray(total.value)

    def hessian_product(self, theta: Array, direction: Array) -> Array:
        """Hessian of the sum of the losses times a direction, shape (dim,)."""
        along, total = self._entries(direction), Pairwise(np.zeros(self.lift.shape[0]))
        for lowered, rows, leaves, count in self._pieces(theta):
            part = hessian_product(lowered.program, leaves, lowered.program.cut(along[lowered.place]), count)
            total.add(self._placed(lowered, part, len(rows) // count))
        return np.asarray(self.lift.T @ total.value)

    def record_values(self, theta: Array) -> Array:
        """Loss of each record, shape (n,)."""
        result = np.empty(self.batch.size)
        for lowered, rows, leaves, count in self._pieces(theta):
            result[rows] = values(lowered.program, leaves, count)
        return result

    def record_gradients(self, theta: Array) -> Array:
        """Gradient of each record's loss, shape (n, dim)."""
        result = np.zeros((self.batch.size, self.space.dim))
        for lowered, rows, leaves, count in self._pieces(theta):
            result[rows] = gradient(lowered.program, leaves, count)[1].T @ self.lift[lowered.place]
        return result

    def _placed(self, lowered: Lowered, slopes: Array, times: int) -> Array:
        """Sum over records, in pieces, and put the sums where the entries are."""
        whole = np.zeros(self.lift.shape[0])
        whole[lowered.place] = times * transposed(slopes, np.ones((slopes.shape[1], 1)))[:, 0]
        return whole
