"""Sums over the records of a batch, in blocks through the processor's caches, several at a time where there are processors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.summation import Pairwise, SparseRows
from dpconvex.evaluation.compiled import double_precision
from dpconvex.evaluation.design import LinearDesign, design_of
from dpconvex.evaluation.dual_numbers import value_and_slope
from dpconvex.evaluation.shared_forms import LeafForm
from dpconvex.evaluation.shared_losses import Affine, Kind, Share, kinds_of
from dpconvex.evaluation.threads import in_order, one_blas_thread
from dpconvex.language.columns import dense, itself, readers
from dpconvex.language.record import Batch

__all__ = ["BlockEngine", "padded_size"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Block = dict[str, Any]

# A block's records take about so many bytes, so that they are still in a shared cache when they are needed again; or it takes
# about so many multiplications, some milliseconds, so that several threads find work; but a block has at least so many records,
# because each costs some calls of compiled functions.
BLOCK_BYTES, BLOCK_WORK = 2**23, 2**25
FEWEST, MOST = 4096, 2**18
# With so many numbers, or more, to read, several threads are worth while.
LARGE = 2**17


def padded_size(count: int) -> int:
    """Round a number of records up, by at most an eighth (at least to 8), so that few different sizes occur.

    >>> [padded_size(n) for n in (1, 9, 100, 583, 20000)]
    [8, 16, 104, 640, 20480]
    """
    step = max(8, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


class BlockEngine:
    """Sums over blocks of records that are read where they lie.

    Parameters
    ----------
    form : LeafForm
    batch : Batch
    """

    def __init__(self, form: LeafForm, batch: Batch) -> None:
        self.form = form
        self.batch = batch
        self.design = design_of(form.monomials, form.fields, form.forms)
        self.step = self._step()
        self.large = self._size() >= LARGE
        if isinstance(self.design, LinearDesign):
            self.design.stream = batch.size > self.step
        self._known_weights: dict[tuple[int, int], Any] = {}
        # Blocks of sparse columns are kept: they share the column's numbers, and know how to sum over records in pieces.
        self._sparse = {
            name: [partial(itself, SparseRows(read())) for read in readers(column, self.step)]
            for name, column in batch.fields.items()
            if sp.issparse(column)
        }
        self.kinds = kinds_of(form, np.flatnonzero(np.bincount(batch.group)))
        self.plan = [self._shares(batch.group[start : start + self.step]) for start in range(0, batch.size, self.step)]

    def _size(self) -> int:
        """Numbers in the records, as they are stored."""
        columns = self.batch.fields.values()
        return sum(c.nnz if sp.issparse(c) else int(np.prod(c.shape, dtype=np.int64)) for c in columns)

    def _step(self) -> int:
        """Number of records in a block."""
        width = sum(
            12 * column.nnz / max(column.shape[0], 1)
            if sp.issparse(column)
            else 8 * int(np.prod(column.shape[1:], dtype=np.int64))
            for column in self.batch.fields.values()
        )
        leaves = max(len(label.combine) for label in self.form.labels)
        rows = BLOCK_BYTES / max(width, 16 * (leaves + self.form.forms), 1)
        if not isinstance(self.design, LinearDesign):
            rows = min(4 * rows, BLOCK_WORK / (self.form.forms * len(self.form.monomials)))
        count = max(1, round(self.batch.size / np.clip(rows, FEWEST, MOST)))
        return padded_size(-(-self.batch.size // count))

    def _shares(self, group: Indices) -> list[Share]:
        found = []
        one_block = self.batch.size <= self.step
        for kind in self.kinds:
            affine = kind.affine(group) if len(self.kinds) == 1 else None
            if affine is not None:
                found.append(Share(kind, None, (len(group),), self.step, None, affine))
                continue
            if kind.scale is not None and len(self.kinds) == 1:
                found.append(Share(kind, None, (len(group),), self.step, self._label(kind, group)))
                continue
            chosen = [np.flatnonzero(group == member) for member in kind.members]
            ends = tuple(np.cumsum([len(rows) for rows in chosen]).tolist())
            size = self.step if len(self.kinds) == 1 and not one_block else padded_size(ends[-1])
            if ends[-1]:
                found.append(Share(kind, np.concatenate(chosen), ends, size))
        return found

    def _label(self, kind: Kind, group: Indices) -> Any:
        """Return numbers of labels within a kind for the records of a block, padded, on the device; None if all are equal."""
        import jax

        assert kind.scale is not None
        assert kind.shift is not None
        if all((table == table[:, :1]).all() for table in (kind.scale, kind.shift)):
            return None
        return jax.device_put(np.pad(kind.place[group], (0, self.step - len(group))))

    def _blocks(self) -> Iterator[tuple[Callable[[], Block], Indices, list[Share]]]:
        """Yield functions that read a block of records, their labels, and who handles which."""
        columns = {
            name: iter(self._sparse[name]) if name in self._sparse else readers(column, self.step)
            for name, column in self.batch.fields.items()
        }

        def read(functions: dict[str, Callable[[], Any]]) -> Block:
            return {name: function() for name, function in functions.items()}

        for number, shares in enumerate(self.plan):
            functions = {name: next(column) for name, column in columns.items()}
            group = self.batch.group[number * self.step : (number + 1) * self.step]
            yield partial(read, functions), group, shares

    def _sums(self, function: Callable[[Block, Indices, list[Share]], tuple[float, Array]]) -> tuple[float, Array]:
        """Sum a function of blocks over them, in their order whoever is done first: the bits do not depend on threads."""

        def task(read: Callable[[], Block], group: Indices, shares: list[Share]) -> tuple[float, Array]:
            return function(read(), group, shares)

        total, slope = 0.0, Pairwise(np.zeros((self.form.forms, len(self.form.monomials))))
        with one_blas_thread() if self.large else nullcontext(1) as threads:
            # Single forms of records as they lie in memory take no longer than to fetch these, which threads do not speed up.
            fetching = isinstance(self.design, LinearDesign) and self.form.forms == 1
            workers = 1 if fetching else min(threads, len(self.plan))
            for value, part in in_order((partial(task, *block) for block in self._blocks()), workers):
                total += value
                slope.add(part)
        return total, np.asarray(self.form.map.T @ slope.value.ravel())

    def _coefficients(self, theta: Array) -> Array:
        return np.asarray(self.form.map @ theta).reshape(self.form.forms, -1)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient, shape (dim,)."""
        coefficients = self._coefficients(theta)

        def one(block: Block, group: Indices, shares: list[Share]) -> tuple[float, Array]:
            forms = self.design.forward(block, coefficients, len(group))
            # Compiled functions run on threads of their own: all are started before the first one is waited for.
            results = [(share, self._started(share, forms, block, group)) for share in shares]
            return self._finished(block, group, results)

        return self._sums(one)

    def _started(self, share: Share, forms: Array, block: Block, group: Indices) -> Any:
        """Start to compute the value of a share, and its gradient with respect to the forms or the leaves."""
        kind = share.kind
        if share.scalar:
            values, slopes = self._scalar(share, forms, block, group)
            return values.sum(), slopes
        with double_precision():
            arguments = self._arguments(share, block, group)
            if share.rows is not None:
                return kind.functions.value_and_gradient(self._leaves(share, forms, block, group), *arguments)
            assert kind.scale is not None
            assert kind.shift is not None
            width = None if share.label is not None else 1
            tables = kind.scale[:, :width], kind.shift[:, :width]
            return kind.functions.of_forms(padded(forms, share.size), share.label, *tables, *arguments)

    def _scalar(self, share: Share, forms: Array, block: Block, group: Indices) -> tuple[Array, Array]:
        """Losses of a share's records, and their derivatives by the form or the leaf, shape (1, records)."""
        kind = share.kind
        fields = [dense(block[name]) for name in kind.fields]
        if share.affine is not None:
            given = list(
                zip(self._affine(share.affine, kind, forms, block), [a.scale for a in share.affine], strict=True)
            )
        else:
            given = [(self._leaves(share, forms, block, group)[0, : share.ends[-1]], 1.0)]
            fields = [values[share.rows] for values in fields]
        values, slopes = value_and_slope(kind.labels[0].lowered.tape, given, fields, kind.constants)
        return values, slopes[None]

    def _finished(self, block: Block, group: Indices, results: list[tuple[Share, Any]]) -> tuple[float, Array]:
        """Return a block's value, and its gradient with respect to the coefficients."""
        total = 0.0
        gradient = np.zeros((self.form.forms, len(group)))
        for share, (value, part) in results:
            total += float(value)
            if share.rows is None:  # then it is the only one
                gradient = np.asarray(part)[:, : len(group)]
            else:
                self._collect(share, np.asarray(part), gradient)
        return total, self.design.backward(block, gradient)

    def hessian_product(self, theta: Array, direction: Array) -> Array:
        """Hessian of the sum of the losses times a direction, shape (dim,)."""
        coefficients, along = self._coefficients(theta), self._coefficients(direction)

        def one(block: Block, group: Indices, shares: list[Share]) -> tuple[float, Array]:
            both = self.design.forward(block, np.concatenate([coefficients, along]), len(group))
            forms, moves = both[: len(coefficients)], both[len(coefficients) :]
            product = np.zeros_like(forms)
            for share in shares:
                leaves = self._leaves(share, forms, block, group)
                change = self._leaves(share, moves, block, group, offset=False)
                with double_precision():
                    arguments = self._arguments(share, block, group)
                    part = share.kind.functions.hessian_product(leaves, change, *arguments)
                if share.affine is not None:
                    parts = zip(share.affine, np.asarray(part)[:, : len(group)], strict=True)
                    product = sum(a.scale * row for a, row in parts)[None]
                elif share.rows is None:
                    scale = share.kind.scale
                    assert scale is not None
                    product = np.asarray(part)[:, : len(group)] * self._table(share.kind, scale, group)
                else:
                    self._collect(share, np.asarray(part), product)
            return 0.0, self.design.backward(block, product)

        return self._sums(one)[1]

    def record_values(self, theta: Array) -> Array:
        """Loss of each record, shape (n,)."""
        coefficients, values, start = self._coefficients(theta), np.empty(self.batch.size), 0
        for read, group, shares in self._blocks():
            block = read()
            forms = self.design.forward(block, coefficients, len(group))
            for share in shares:
                if share.scalar:
                    found = self._scalar(share, forms, block, group)[0]
                else:
                    leaves = self._leaves(share, forms, block, group)
                    with double_precision():
                        arguments = self._arguments(share, block, group)
                        found = np.asarray(share.kind.functions.record_values(leaves, *arguments))
                rows = np.arange(len(group)) if share.rows is None else share.rows
                values[start + rows] = found[: share.ends[-1]]
            start += len(group)
        return values

    def _leaves(self, share: Share, forms: Array, block: Block, group: Indices, offset: bool = True) -> Array:
        """Leaves of a share's records from the forms of the block, padded, shape (entries, share.size)."""
        kind, count = share.kind, share.ends[-1]
        if share.affine is not None:
            return padded(np.stack(self._affine(share.affine, kind, forms, block, offset)), share.size)
        if share.rows is None:
            assert kind.scale is not None
            assert kind.shift is not None
            leaves = forms * self._table(kind, kind.scale, group)
            if offset and kind.shift.any():
                leaves += self._table(kind, kind.shift, group)
            return padded(leaves, share.size)
        leaves = np.empty((len(kind.labels[0].combine), share.size))
        start = 0
        for label, end in zip(kind.labels, share.ends, strict=True):
            if end > start:
                rows = share.rows[start:end]
                np.matmul(label.combine, forms[:, rows], out=leaves[:, start:end])
                if offset and label.offset.nnz:
                    constant = label.constant
                    if constant is not None:
                        leaves[:, start:end] += constant[:, None]
                    else:
                        leaves[:, start:end] += self.design.forward(block, label.offset.toarray(), len(group))[:, rows]
            start = end
        leaves[:, count:] = leaves[:, :1]
        return leaves

    def _affine(
        self, leaves: tuple[Affine, ...], kind: Kind, forms: Array, block: Block, offset: bool = True
    ) -> list[Array]:
        """Values of leaves that depend on a single form."""
        if not offset:
            return [a.scale * forms[0] for a in leaves]
        if kind.labels[0].constant is not None:
            return [a.scale * forms[0] + a.shift for a in leaves]
        shifts = self.design.forward(block, kind.labels[0].offset.toarray(), forms.shape[1])
        return [a.scale * forms[0] + shift for a, shift in zip(leaves, shifts, strict=True)]

    @staticmethod
    def _table(kind: Kind, table: Array, group: Indices) -> Array:
        """Columns of a table with one for each label, for each record; one column if they are equal."""
        if (table == table[:, :1]).all():
            return table[:, :1]
        return np.asarray(np.take(table, kind.place[group], axis=1))

    @staticmethod
    def _collect(share: Share, part: Array, gradient: Array) -> None:
        """Set the gradient with respect to the forms of a share's records from that with respect to the leaves."""
        assert share.rows is not None
        start = 0
        for label, end in zip(share.kind.labels, share.ends, strict=True):
            if end > start:
                gradient[:, share.rows[start:end]] = label.combine.T @ part[:, start:end]
            start = end

    def _arguments(self, share: Share, block: Block, group: Indices) -> tuple[Any, Any, Any]:
        """Fields, weights and constants for the outer function of a share."""
        count = share.ends[-1]
        fields = []
        for name in share.kind.fields:
            values = dense(block[name])
            chosen = values if share.rows is None else values[share.rows]
            fields.append(np.concatenate([chosen, np.repeat(chosen[:1], share.size - count, axis=0)]))
        return tuple(fields), self._weights(count, share.size), share.kind.constants

    def _weights(self, count: int, size: int) -> Any:
        """Weights of records and padding, on the device; few different ones occur."""
        if (count, size) not in self._known_weights:
            import jax

            self._known_weights[count, size] = jax.device_put(np.repeat([1.0, 0.0], [count, size - count]))
        return self._known_weights[count, size]


def padded(leaves: Array, size: int) -> Array:
    """Repeat the first column until there are `size`: a value that occurs keeps every function finite."""
    missing = size - leaves.shape[1]
    return leaves if missing == 0 else np.concatenate([leaves, np.repeat(leaves[:, :1], missing, axis=1)], axis=1)
