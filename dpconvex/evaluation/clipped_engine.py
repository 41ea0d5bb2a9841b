"""Sums of clipped gradients, of which each is computed to the same bits whatever records are beside it.

Such a sum moves by no more than the clip with one record, also where rounding decides what a gradient is, as at kinks.  Nothing
here depends on the number of records, on which labels occur among them, or on a record's place: products are added one term after
the other (`each_apart`), every block and every part of it with one outer function is filled up to a multiple of `LANES`, and
compiled functions, which are used where there are many records, are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.summation import LANES, each_apart, filled
from dpconvex.evaluation.block_engine import BlockEngine
from dpconvex.evaluation.clipping import GradientNorms, clipped
from dpconvex.evaluation.shared_forms import LeafForm
from dpconvex.evaluation.shared_losses import Share
from dpconvex.language.batch import Batch
from dpconvex.language.columns import itself

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Chosen = NDArray[np.bool_]
Block = dict[str, Any]


class ClippedEngine(BlockEngine):
    """Sums of clipped gradients over blocks of records."""

    def __init__(self, form: LeafForm, batch: Batch, norms: GradientNorms) -> None:
        # Sparse tables are multiplied entry by entry, and most of their entries are 0.
        labels = tuple(replace(label, combine=sp.csr_array(label.combine)) for label in form.labels)
        super().__init__(replace(form, labels=labels), batch)
        self.norms = norms
        self._lengths: dict[int, Array] = {}  # by block: what does not change in the norms of gradients
        self._last: tuple[Block, Indices] | None = None

    def clipped_gradient(self, theta: Array, clip: float, chosen: Chosen | None) -> Array:
        """Sum of the records' gradients, each scaled to a norm of at most `clip`, shape (dim,); of the chosen records only."""
        coefficients = self._coefficients(theta)

        def one(number: int, block: Block, group: Indices, shares: list[Share]) -> tuple[float, Array]:
            start = number * self.step
            count = min(self.batch.size - start, self.step)
            if number not in self._lengths:
                self._lengths[number] = self.norms.lengths(self.design, block, len(group))
            lengths = self._lengths[number]
            if chosen is not None:
                rows = np.flatnonzero(chosen[start : start + count])
                count, rows = len(rows), filled(rows)
                if not count:
                    return 0.0, np.zeros((self.form.forms, len(self.form.monomials)))
                block, group, lengths = {name: c[rows] for name, c in block.items()}, group[rows], lengths[:, rows]
                shares = self._shares(group)
            with np.errstate(all="ignore"):
                _, gradient = self._slopes(coefficients, block, group, shares)
                gradient = clipped(gradient, self.norms.squares(gradient, lengths), clip)
            gradient[:, count:] = 0.0
            return 0.0, self.design.backward(block, gradient)

        with each_apart():
            return self._sums(one)[1]

    def _labels(self) -> Indices:
        return np.arange(len(self.form.labels))

    def _step(self) -> int:
        """Number of records in a block."""
        return -(-super()._step() // LANES) * LANES

    def _shares(self, group: Indices) -> list[Share]:
        """See `BlockEngine`, with the last records repeated."""
        found = []
        for share in super()._shares(group[filled(np.arange(len(group)))]):
            if share.rows is None:
                found.append(share)
                continue
            rows = filled(share.rows)
            ends = tuple(len(rows) if end == len(share.rows) else end for end in share.ends)
            found.append(replace(share, rows=rows, ends=ends))
        return found

    def _blocks(self) -> Iterator[tuple[Callable[[], Block], Indices, list[Share]]]:
        """See `BlockEngine`, with the last records repeated."""
        for read, group, shares in super()._blocks():
            if len(group) % LANES:
                block, labels = self._whole(read, group)
                yield partial(itself, block), labels, shares
            else:
                yield read, group, shares

    def _whole(self, read: Callable[[], Block], group: Indices) -> tuple[Block, Indices]:
        """Return the last block, with its last record repeated, and its labels; it is made once."""
        if self._last is None:
            rows = filled(np.arange(len(group)))
            self._last = {name: column[rows] for name, column in read().items()}, group[rows]
        return self._last
