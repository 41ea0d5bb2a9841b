"""Sums over the records of a batch, in blocks through the processor's caches, several at a time where there are processors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.summation import BLOCK, Pairwise
from dpconvex.evaluation.design import TABLE, LinearDesign, design_of
from dpconvex.evaluation.gram import Gram, groups_of, passes_of
from dpconvex.evaluation.shared_forms import LeafForm
from dpconvex.evaluation.shared_losses import Affine, Kind, Share, kinds_of
from dpconvex.evaluation.threads import in_order, keep_memory, one_blas_thread
from dpconvex.language.batch import Batch
from dpconvex.language.columns import dense, itself, readers

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Block = dict[str, Any]
T = TypeVar("T")

# A block's records take about so many bytes, so that they are still in a shared cache when they are needed again; or it takes
# about so many multiplications, some milliseconds, so that several threads find work; but a block has at least so many records,
# because each costs some calls of compiled functions.
BLOCK_BYTES, BLOCK_WORK = 2**23, 2**25
FEWEST, MOST = 4096, BLOCK // 2
# With so many numbers, or more, to read, several threads are worth while.
LARGE = 2**17
# How losses of several forms bend is asked of about so many forms of records.
SAMPLE = 2**14
# So many monomials of records are made at a time for their second moments: two megabytes.
AT_ONCE = 2**18
# Monomials of degree two are kept if they are so many at most: 128 MB.
KEPT = 2**24


def padded_size(count: int) -> int:
    """Round a number of records up, by at most an eighth (at least to 8), so that few different sizes occur.

    >>> [padded_size(n) for n in (1, 9, 100, 583, 20000)]
    [8, 16, 104, 640, 20480]
    """
    step = max(8, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


class BlockEngine:
    """Sums over blocks of records that are read where they lie."""

    def __init__(self, form: LeafForm, batch: Batch) -> None:
        keep_memory()
        self.form = form
        self.batch = batch
        self.design = design_of(form.monomials, form.fields)
        self.step = self._step()
        self.large = self._size() >= LARGE
        self._turned = form.map.T
        self._moments: dict[int, Array] = {}  # the second moments of the monomials of so many groups, once asked for
        # Blocks of sparse columns are kept: they share the column's numbers.
        self._sparse = {
            name: [partial(itself, read()) for read in readers(column, self.step)]
            for name, column in batch.fields.items()
            if sp.issparse(column)
        }
        self.kinds = kinds_of(form, self._labels())
        self._tables: dict[int, Array] = {}  # of blocks whose monomials of degree two are kept
        self.plan = [self._shares(batch.group[start : start + self.step]) for start in range(0, batch.size, self.step)]

    def _labels(self) -> Indices:
        """Numbers of the labels that are prepared: those that occur."""
        return np.flatnonzero(np.bincount(self.batch.group))

    def _size(self) -> int:
        """Numbers in the records, as they are stored."""
        columns = self.batch.fields.values()
        return sum(c.nnz if sp.issparse(c) else int(np.prod(c.shape, dtype=np.int64)) for c in columns)

    def _step(self) -> int:
        width = sum(
            12 * column.nnz / max(column.shape[0], 1)
            if sp.issparse(column)
            else 8 * int(np.prod(column.shape[1:], dtype=np.int64))
            for column in self.batch.fields.values()
        )
        leaves = max(label.combine.shape[0] for label in self.form.labels)
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
                found.append(Share(kind, None, (len(group),), self.step, affine))
                continue
            if kind.together and len(self.kinds) == 1:
                found.append(Share(kind, None, (len(group),), self.step))
                continue
            chosen = [np.flatnonzero(group == member) for member in kind.members]
            ends = tuple(np.cumsum([len(rows) for rows in chosen]).tolist())
            size = self.step if len(self.kinds) == 1 and not one_block else padded_size(ends[-1])
            if ends[-1]:
                found.append(Share(kind, np.concatenate(chosen), ends, size))
        return found

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
            if self.keeps:
                functions[TABLE] = partial(self._kept, number, functions | {}, len(group))
            yield partial(read, functions), group, shares

    @cached_property
    def keeps(self) -> bool:
        """Whether the monomials of all records are kept: not of columns whose owners may change them."""
        plain = all(isinstance(c, np.ndarray) or sp.issparse(c) for c in self.batch.fields.values())
        return plain and not isinstance(self.design, LinearDesign) and self.batch.size * self.design.count <= KEPT

    def _kept(self, number: int, functions: dict[str, Callable[[], Any]], size: int) -> Array:
        if number not in self._tables:
            self._tables[number] = self.design.table({name: read() for name, read in functions.items()}, size)
        return self._tables[number]

    def _sums(self, function: Callable[[int, Block, Indices, list[Share]], tuple[float, Array]]) -> tuple[float, Array]:
        """Sum a function of blocks over them, in their order whoever is done first: the bits do not depend on threads."""
        # Single forms of records as they lie in memory take no longer than to fetch these, which threads do not speed up.
        fetching = isinstance(self.design, LinearDesign) and self.form.forms == 1
        total, slope = 0.0, Pairwise(np.zeros((self.form.forms, len(self.form.monomials))))
        for value, part in self._each(function, alone=fetching):
            total += value
            slope.add(part)
        return total, np.asarray(self._turned @ slope.value.ravel())

    def _each(self, function: Callable[[int, Block, Indices, list[Share]], T], alone: bool = False) -> Iterator[T]:
        def task(number: int, read: Callable[[], Block], group: Indices, shares: list[Share]) -> T:
            return function(number, read(), group, shares)

        with one_blas_thread() if self.large else nullcontext(1) as threads:
            workers = 1 if alone else min(threads, len(self.plan))
            yield from in_order((partial(task, k, *block) for k, block in enumerate(self._blocks())), workers)

    def _coefficients(self, theta: Array) -> Array:
        return np.asarray(self.form.map @ theta).reshape(self.form.forms, -1)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient, shape (dim,)."""
        coefficients = self._coefficients(theta)

        def one(number: int, block: Block, group: Indices, shares: list[Share]) -> tuple[float, Array]:
            total, gradient = self._slopes(coefficients, block, group, shares)
            return total, self.design.backward(block, gradient)

        return self._sums(one)

    def _slopes(self, coefficients: Array, block: Block, group: Indices, shares: list[Share]) -> tuple[float, Array]:
        """Sum of the losses of a block, and their gradients by the forms, shape (forms, records)."""
        forms = self.design.forward(block, coefficients, len(group))
        total, gradient = 0.0, np.zeros_like(forms)
        for share in shares:
            if share.scalar:
                values, part = self._scalar(share, forms, block, group)
            else:
                leaves, fields = self._leaves(share, forms, block, group), self._fields(share, block)
                values, part = share.kind.outer.gradient(leaves, fields)
            total += float(values.sum())
            if share.scalar and share.affine is not None:
                gradient = part[None]
            else:
                gradient = self._collect(share, np.atleast_2d(part), gradient, group)
        return total, gradient

    def _scalar(self, share: Share, forms: Array, block: Block, group: Indices) -> tuple[Array, Array]:
        """Losses of a share's records, and their derivatives by the form or the leaf."""
        kind, fields = share.kind, self._fields(share, block)
        if share.affine is not None:
            values = self._affine(share.affine, kind, forms, block)
            return kind.outer.along_one([(v, a.scale) for v, a in zip(values, share.affine, strict=True)], fields)
        return kind.outer.along_one([(self._leaves(share, forms, block, group)[0], 1.0)], fields)

    def hessian_product(self, theta: Array, direction: Array) -> Array:
        """Hessian of the sum of the losses times a direction, shape (dim,)."""
        coefficients, along = self._coefficients(theta), self._coefficients(direction)

        def one(number: int, block: Block, group: Indices, shares: list[Share]) -> tuple[float, Array]:
            both = self.design.forward(block, np.concatenate([coefficients, along]), len(group))
            forms, moves = both[: len(coefficients)], both[len(coefficients) :]
            return 0.0, self.design.backward(block, self._bent(block, group, shares, (forms, moves)))

        return self._sums(one)[1]

    def _bent(self, block: Block, group: Indices, shares: list[Share], both: tuple[Array, Array]) -> Array:
        """Hessians by the forms times moves of these, shape (forms, records)."""
        forms, moves = both
        product = np.zeros_like(forms)
        for share in shares:
            leaves = self._leaves(share, forms, block, group)
            change = self._leaves(share, moves, block, group, offset=False)
            part = share.kind.outer.hessian_product(leaves, change, self._fields(share, block))
            product = self._collect(share, part, product, group)
        return product

    def hessian(self, theta: Array) -> Array:
        """Hessian of the sum of the losses, shape (dim, dim): forms bend in as many directions as there are forms."""
        coefficients = self._coefficients(theta)
        forms, monomials = coefficients.shape

        def one(number: int, block: Block, group: Indices, shares: list[Share]) -> Array:
            total = np.zeros((forms, monomials, forms, monomials))
            values, table = self.design.forward(block, coefficients, len(group)), block.get(TABLE)
            rows = self.design.table(block, len(group)) if table is None else table
            for number in range(forms):
                moves = np.zeros_like(values)
                moves[number] = 1.0
                bent = self._bent(block, group, shares, (values, moves))
                for other in range(number, forms):
                    if bent[other].any():
                        total[other, :, number] = rows.T @ (bent[other][:, None] * rows)
                        total[number, :, other] = total[other, :, number].T
            return total

        total = sum(self._each(one))
        whole = np.asarray(total).reshape(forms * monomials, -1)
        return np.asarray(self.form.map.T @ np.asarray(self.form.map.T @ whole).T)

    def gram(self, theta: Array, by_label: bool = False) -> Gram:
        coefficients, form = self._coefficients(theta), self.form
        groups = groups_of(len(form.labels), len(form.monomials), form.forms, by_label)
        counts = np.bincount(self.batch.group if groups > 1 else np.zeros(self.batch.size, int), minlength=groups)
        if form.forms == 1:
            moments, bend = self._weighted(coefficients, 1), np.ones((1, 1, 1))
        else:
            if groups not in self._moments:
                self._moments[groups] = self._weighted(None, groups)
            moments, bend = self._moments[groups], self._mean_bend(coefficients, groups)
        return Gram(bend, moments, counts.astype(float), form.map, exact=form.forms == 1)

    @property
    def gram_passes(self) -> float:
        """How many evaluations `gram` takes as long as, about: numbers that are multiplied, in a faster product."""
        monomials = len(self.form.monomials)
        if not isinstance(self.design, LinearDesign):
            return passes_of(monomials, self.form.forms)
        columns = self.batch.fields.values()
        read = self._size() + sum(c.nnz for c in columns if sp.issparse(c))  # sparse ones take twice as long
        return passes_of(monomials**2 * self.batch.size / max(read, 1), self.form.forms)

    def _weighted(self, coefficients: Array | None, groups: int) -> Array:
        """Sum of the second moments of the monomials, shape (groups, monomials, monomials).

        With coefficients of one form, weighted with the curvature by it.
        """

        def one(number: int, block: Block, group: Indices, shares: list[Share]) -> Array:
            roots = None
            if coefficients is not None:
                values = self.design.forward(block, coefficients, len(group))
                bent = self._bent(block, group, shares, (values, np.ones_like(values)))
                roots = np.sqrt(np.maximum(bent, 0.0)).T
            total = np.zeros((groups, self.design.count, self.design.count))
            step = max(AT_ONCE // self.design.count, 1)
            for some in (slice(start, start + step) for start in range(0, len(group), step)):
                table = self.design.table({name: column[some] for name, column in block.items()}, len(group[some]))
                if roots is not None:
                    table *= roots[some]
                for which, rows in members(group[some], groups):
                    part = table if rows is None else table[rows]
                    total[which] += part.T @ part
            return total

        return np.asarray(sum(self._each(one)))

    def _mean_bend(self, coefficients: Array, groups: int) -> Array:
        """Mean over some records of each group of the Hessians of their losses by the forms, shape (groups, forms, forms)."""
        forms = len(coefficients)
        every = max(self.batch.size * forms // SAMPLE, 1)

        def one(number: int, block: Block, group: Indices, shares: list[Share]) -> tuple[Array, Array]:
            total, counts = np.zeros((groups, forms, forms)), np.zeros(groups)
            parts = [np.arange(len(group)) if rows is None else rows for _, rows in members(group, groups)]
            rows = np.sort(np.concatenate([part[::every] for part in parts]))
            some, labels = {name: column[rows] for name, column in block.items()}, group[rows]
            values, share = self.design.forward(some, coefficients, len(rows)), self._shares(labels)
            units = np.eye(forms)[:, :, None] * np.ones(len(rows))
            bent = np.stack([self._bent(some, labels, share, (values, u)) for u in units])
            for which, chosen in members(labels, groups):
                part = bent if chosen is None else bent[:, :, chosen]
                total[which], counts[which] = part.sum(axis=2), part.shape[2]
            return total, counts

        sums, counts = (np.asarray(sum(part)) for part in zip(*self._each(one), strict=True))
        mean = sums / np.maximum(counts, 1.0)[:, None, None]
        return np.asarray(mean + mean.swapaxes(1, 2)) / 2

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
                    leaves, fields = self._leaves(share, forms, block, group), self._fields(share, block)
                    found = share.kind.outer.values(leaves, fields)
                rows = np.arange(len(group)) if share.rows is None else share.rows
                values[start + rows] = found
            start += len(group)
        return values

    def _leaves(self, share: Share, forms: Array, block: Block, group: Indices, offset: bool = True) -> Array:
        kind = share.kind
        if share.affine is not None:
            return np.stack(self._affine(share.affine, kind, forms, block, offset))
        if share.rows is None:
            assert kind.shift is not None
            if kind.scale is not None:
                leaves = forms * self._table(kind, kind.scale, group)
            else:
                assert kind.spread is not None
                leaves = kind.spread.leaves(forms, kind.place[group])
            if offset and kind.shift.any():
                leaves += self._table(kind, kind.shift, group)
            return leaves
        leaves = np.empty((kind.outer.entries, share.ends[-1]))
        start = 0
        for label, end in zip(kind.labels, share.ends, strict=True):
            if end > start:
                rows = share.rows[start:end]
                if sp.issparse(label.combine):
                    leaves[:, start:end] = label.combine @ forms[:, rows]
                else:
                    np.matmul(label.combine, forms[:, rows], out=leaves[:, start:end])
                if offset and label.offset.nnz:
                    constant = label.constant
                    if constant is not None:
                        leaves[:, start:end] += constant[:, None]
                    else:
                        leaves[:, start:end] += self.design.forward(block, label.offset.toarray(), forms.shape[1])[
                            :, rows
                        ]
            start = end
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

    def _collect(self, share: Share, part: Array, gradient: Array, group: Indices) -> Array:
        if share.affine is not None:
            return np.asarray(sum(a.scale * row for a, row in zip(share.affine, part, strict=True)))[None]
        if share.rows is None:
            kind = share.kind
            if kind.scale is not None:
                return part * self._table(kind, kind.scale, group)
            assert kind.spread is not None
            return kind.spread.slopes(part, kind.place[group])
        start = 0
        for label, end in zip(share.kind.labels, share.ends, strict=True):
            if end > start:
                gradient[:, share.rows[start:end]] = label.back @ part[:, start:end]
            start = end
        return gradient

    @staticmethod
    def _fields(share: Share, block: Block) -> list[Array]:
        """Fields for the outer function of a share, records first."""
        found = [dense(block[name]) for name in share.kind.fields]
        return found if share.rows is None else [values[share.rows] for values in found]


def members(group: Indices, groups: int) -> Iterator[tuple[int, Indices | None]]:
    """Yield the numbers of groups, and which records are theirs: those with one label, or, of a single group, all (None)."""
    if groups == 1:
        yield 0, None
        return
    for label in np.unique(group).tolist():
        yield label, np.flatnonzero(group == label)
