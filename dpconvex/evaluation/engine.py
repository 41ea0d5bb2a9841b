"""Sums over the records of a batch, in blocks through the processor's caches, several at a time where there are processors.

A block is multiplied with the coefficients of the forms, the outer function of each record's forms gives its loss and slopes, and
these are multiplied with the block again.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

from dpconvex.core.arrays import Array, Indices
from dpconvex.core.summation import BLOCK, PIECE, Pairwise
from dpconvex.evaluation.design import TABLE, Design, Product, product
from dpconvex.evaluation.forms import Label, LeafForm
from dpconvex.evaluation.programs import LANES, Program, gradient, hessian_product
from dpconvex.evaluation.threads import in_order, one_blas_thread
from dpconvex.language.batch import Batch
from dpconvex.language.columns import dense, itself, readers

Records = dict[str, Any]
T = TypeVar("T")

# A block's records take about so many bytes, so that they are still in a shared cache when they are needed again; but a block has
# at least so many records, because each costs some calls of compiled functions.
BLOCK_BYTES, FEWEST = 2**23, 4096
# So many sums of pieces of sparse records are made at a time.
WIDE = 2**22
# With so many numbers, or more, to read, several threads are worth while.
LARGE = 2**17
# Monomials of degree two are kept if they are so many at most: 128 MB.
KEPT = 2**24
# So many records are multiplied at a time for second moments: they stay in a cache.
AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class Share:
    """The records of a block whose losses are one function of different leaves, label by label."""

    labels: tuple[Label, ...]
    ends: tuple[int, ...]  # of each label's records
    rows: Indices | None  # None if it has all records, in their order

    @property
    def size(self) -> int:
        return self.ends[-1]

    @property
    def function(self) -> tuple[Program, tuple[Array, ...]]:
        """What is computed of the leaves, and its numbers."""
        return self.labels[0].lowered.program, self.labels[0].lowered.constants

    @property
    def parts(self) -> Iterator[tuple[Label, slice]]:
        """Labels, and where their records are among those of the share."""
        return ((label, slice(a, b)) for label, a, b in zip(self.labels, (0, *self.ends), self.ends, strict=False))

    def of(self, values: Array) -> Array:
        """Take the share's records, the last axis, of those of the block."""
        return values if self.rows is None or values.shape[-1] == 1 else values.take(self.rows, axis=-1)

    def leaves(self, forms: Array) -> Array:
        """Return leaves without their offsets; one column if all records share it."""
        own = self.of(forms)
        if len(self.labels) == 1:
            return np.asarray(self.labels[0].combine @ own)
        return np.concatenate([label.combine @ own[:, some] for label, some in self.parts], axis=1)

    def fields(self, block: Records) -> list[Array]:
        """Fields for the outer function, records first."""
        found = [dense(block[name]) for name in self.labels[0].lowered.fields]
        return found if self.rows is None else [values.take(self.rows, axis=0) for values in found]

    def back(self, slopes: Array) -> Array:
        """Turn slopes by the leaves into those by the forms."""
        return np.concatenate([label.back @ slopes[:, some] for label, some in self.parts], axis=1)


@dataclass(frozen=True, eq=False)
class Plan:
    """Who handles which records of a block, and where each is among those that are handled (None: in place)."""

    shares: tuple[Share, ...]
    place: Indices | None
    size: int

    def put_back(self, parts: list[Array]) -> Array:
        """Join what the shares made, records last, in the order of the block."""
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        return whole if self.place is None else whole.take(self.place, axis=-1)


def kinds_of(form: LeafForm) -> list[list[int]]:
    """Group the labels by their function; those that depend on all parameters stay apart, because records share these."""
    found: dict[Any, list[int]] = {}
    for number, label in enumerate(form.labels):
        numbers = tuple((c.shape, c.tobytes()) for c in label.lowered.constants)
        apart = number if len(form.monomials) == 1 else -1
        found.setdefault((label.lowered.program, label.lowered.fields, numbers, apart), []).append(number)
    return list(found.values())


class Engine:
    """Sums over blocks of records that are read where they lie."""

    product: Product = staticmethod(product)

    def __init__(self, form: LeafForm, batch: Batch) -> None:
        self.form, self.batch = form, batch
        self.design = Design(form.monomials, form.fields)
        self.kinds = kinds_of(form)
        self.step = self._step()
        columns = batch.fields.values()
        size = sum(c.nnz if sp.issparse(c) else int(np.prod(c.shape, dtype=np.int64)) for c in columns)
        self.large = size >= LARGE
        # Blocks of sparse columns are kept: they share the column's numbers.
        self._sparse = {
            name: [partial(itself, read()) for read in readers(column, self.step)]
            for name, column in batch.fields.items()
            if sp.issparse(column)
        }
        self._plain = all(isinstance(c, np.ndarray) or sp.issparse(c) for c in columns)  # nobody can change them
        self._keeps = self._plain and batch.size * self.design.count <= KEPT
        self._tables: dict[int, Array] = {}  # of monomials of degree two, by block
        starts = range(0, batch.size, self.step)
        self.plans = [self.dealt(batch.group[start : start + self.step]) for start in starts]

    def _step(self) -> int:
        """Return the number of records in a block: a multiple of `LANES`."""
        width = sum(
            12 * column.nnz / max(column.shape[0], 1)
            if sp.issparse(column)
            else 8 * int(np.prod(column.shape[1:], dtype=np.int64))
            for column in self.batch.fields.values()
        )
        if self.design.pairs is not None:
            width += 8 * self.design.count
        leaves = max(label.combine.shape[0] for label in self.form.labels)
        rows = np.clip(BLOCK_BYTES / max(width, 16 * (leaves + self.form.forms), 1), FEWEST, BLOCK)
        wide = max((c.shape[1] for c in self.batch.fields.values() if sp.issparse(c)), default=1)
        rows = min(rows, max(WIDE // (wide * self.form.forms), 1) * PIECE)
        count = max(1, -(-self.batch.size // int(rows)))
        return -(-max(self.batch.size, 1) // count // LANES) * LANES if count == 1 else int(rows) // LANES * LANES

    def dealt(self, group: Indices) -> Plan:
        """Deal records with these labels to outer functions."""
        size = len(group)
        if len(self.form.labels) == 1:
            return Plan((Share(self.form.labels, (size,), None),), None, size)
        shares = []
        for members in self.kinds:
            rows = [np.flatnonzero(group == member) for member in members]
            ends = np.cumsum([len(some) for some in rows])
            if ends[-1]:
                labels = tuple(self.form.labels[member] for member in members)
                shares.append(self.share(labels, tuple(ends.tolist()), np.concatenate(rows)))
        handled = np.concatenate([share.rows for share in shares if share.rows is not None])
        place = np.empty(size, dtype=np.int64)
        place[handled] = np.arange(len(handled))
        return Plan(tuple(shares), place, size)

    def share(self, labels: tuple[Label, ...], ends: tuple[int, ...], rows: Indices) -> Share:
        return Share(labels, ends, rows)

    def blocks(self) -> Iterator[tuple[Callable[[], Records], Plan]]:
        """Yield functions that read a block of records, and who handles which."""
        columns = {
            name: iter(self._sparse[name]) if name in self._sparse else readers(column, self.step)
            for name, column in self.batch.fields.items()
        }
        for number, plan in enumerate(self.plans):
            yield partial(self._read, number, {name: next(column) for name, column in columns.items()}), plan

    def _read(self, number: int, functions: dict[str, Callable[[], Any]]) -> Records:
        block = {name: function() for name, function in functions.items()}
        if self.design.pairs is not None:
            table = self._tables.get(number)
            block[TABLE] = self.design.with_table(block) if table is None else table
            if self._keeps:
                self._tables[number] = block[TABLE]
        return block

    def each(self, function: Callable[[int, Records, Plan], T]) -> Iterator[T]:
        """Yield what a function makes of blocks, in their order whoever is done first: the bits do not depend on threads."""

        def task(number: int, read: Callable[[], Records], plan: Plan) -> T:
            return function(number, read(), plan)

        with one_blas_thread() if self.large else nullcontext(1) as threads:
            yield from in_order(
                (partial(task, k, *b) for k, b in enumerate(self.blocks())), min(threads, len(self.plans))
            )

    def coefficients(self, theta: Array) -> Array:
        return np.asarray(self.form.map @ theta).reshape(self.form.forms, -1)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient, shape (dim,)."""
        coefficients = self.coefficients(theta)

        def one(number: int, block: Records, plan: Plan) -> tuple[float, Array]:
            values, slopes = self.slopes(coefficients, block, plan)
            return float(values.sum()), self.design.backward(block, slopes)

        total, slope = 0.0, Pairwise(np.zeros(coefficients.shape))
        for value, part in self.each(one):
            total += value
            slope.add(part)
        return total, np.asarray(self.form.map.T @ slope.value.ravel())

    def slopes(self, coefficients: Array, block: Records, plan: Plan) -> tuple[Array, Array]:
        """Losses of a block's records, and their gradients by the forms, shape (forms, records)."""
        forms = self.design.forward(block, coefficients, plan.size, self.product)
        losses, gradients = [], []
        for share in plan.shares:
            leaves = self.leaves(share, forms, block, plan.size)
            values, slopes = gradient(*share.function, leaves, share.fields(block), share.size)
            losses.append(values)
            gradients.append(share.back(slopes))
        return plan.put_back(losses), plan.put_back(gradients)

    def leaves(self, share: Share, forms: Array, block: Records, size: int) -> Array:
        """Leaves of a share's records from all forms of a block, shape (entries, records), or one column."""
        leaves = share.leaves(forms)
        for label, some in share.parts:
            if label.offset.any():
                own = self.design.forward(block, label.offset, size, self.product) if label.is_moving else label.shift
                leaves[:, some] += own if own.shape[1] == 1 else share.of(own)[:, some]
        return leaves

    def _bent(self, block: Records, plan: Plan, forms: Array, moves: Array) -> Array:
        """Hessians by the forms times moves of these, shape (forms, records)."""
        parts = []
        for share in plan.shares:
            leaves, change = self.leaves(share, forms, block, plan.size), share.leaves(moves)
            parts.append(share.back(hessian_product(*share.function, leaves, change, share.fields(block), share.size)))
        return plan.put_back(parts)

    def hessian(self, theta: Array, records: int) -> Array:
        """Hessian of the sum of the losses, shape (dim, dim), from about so many records."""
        coefficients = self.coefficients(theta)
        forms, monomials = coefficients.shape

        def one(number: int, block: Records, plan: Plan) -> Array:
            total = np.zeros((forms, monomials, forms, monomials))
            weight, table, bends = self._bends(coefficients, number, block, plan, records)
            for k, bent in enumerate(bends):
                for other in range(k, forms):
                    if bent[other].any():
                        for few in (slice(start, start + AT_ONCE) for start in range(0, len(table), AT_ONCE)):
                            total[other, :, k] += table[few].T @ (bent[other][few, None] * table[few])
                        total[k, :, other] = total[other, :, k].T
            return total * weight

        whole = np.asarray(sum(self.each(one))).reshape(forms * monomials, -1)
        return np.asarray(self.form.map.T @ np.asarray(self.form.map.T @ whole).T)

    def moments(self, theta: Array, records: int) -> Array:
        """Sum the Hessians by the forms, and the products of monomials, from about so many records, as one vector."""
        coefficients = self.coefficients(theta)

        def one(number: int, block: Records, plan: Plan) -> Array:
            weight, table, bends = self._bends(coefficients, number, block, plan, records)
            bend = np.array([bent.sum(axis=1) for bent in bends])
            return weight * np.concatenate([((bend + bend.T) / 2).ravel(), (table.T @ table).ravel()])

        return np.asarray(sum(self.each(one)))

    def _bends(
        self, coefficients: Array, number: int, block: Records, plan: Plan, records: int
    ) -> tuple[float, Array, Iterator[Array]]:
        """Return how many records each of some stands for, the monomials of these, and their Hessians by the forms, by rows."""
        size = plan.size
        every = max(self.batch.size // max(records, 1), 1)
        if every > 1:
            start = number * self.step
            block = {name: column[::every] for name, column in block.items()}
            plan = self.dealt(self.batch.group[start : start + size : every])
        few = plan.size
        forms = self.design.forward(block, coefficients, few)
        moves = (np.repeat(unit[:, None], forms.shape[1], axis=1) for unit in np.eye(len(forms)))
        bends = (self._bent(block, plan, forms, move) for move in moves)
        return size / few, self.design.table(block, few), bends

    def records(self, theta: Array) -> tuple[Array, Array]:
        """Loss of each record, and its gradient, shape (n, dim).  Needs memory for all of them: for small batches."""
        coefficients, dim = self.coefficients(theta), self.form.map.shape[1]

        def one(number: int, block: Records, plan: Plan) -> tuple[Array, Array]:
            values, slopes = self.slopes(coefficients, block, plan)
            return values, self.written_down(slopes, self.design.table(block, len(values))).T

        values, gradients = zip((np.zeros(0), np.zeros((0, dim))), *self.each(one), strict=True)
        return np.concatenate(values), np.concatenate(gradients)

    def written_down(self, slopes: Array, table: Array) -> Array:
        """Return gradients of records, shape (dim, records), from those by the forms."""
        return np.asarray(self.form.map.T @ (slopes[:, None] * table.T[None]).reshape(-1, len(table)))
