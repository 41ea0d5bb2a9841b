"""Sums over the records of a batch, in blocks through the processor's caches, several at a time where there are processors.

A block is multiplied with the coefficients of the forms, the outer function of each record's forms gives its loss and slopes, and
these are multiplied with the block again.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp

from dpconvex.core.arrays import Array, Indices
from dpconvex.core.summation import BLOCK, PIECE, Pairwise
from dpconvex.evaluation.design import TABLE, Design, Product, product
from dpconvex.evaluation.forms import Label, LeafForm
from dpconvex.evaluation.programs import LANES, gradient, hessian_product
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
    """Records of a block whose losses are one function of different leaves, label by label.

    The last is repeated up to a multiple of `LANES`: where each is computed apart, none is one of few that are left over.
    """

    parts: tuple[tuple[Label, slice], ...]  # the last axis of what is computed for the share, by label
    rows: Any  # where the records are in the block: places, or a slice of all

    @property
    def label(self) -> Label:
        """One whose function, numbers and fields are those of all."""
        return self.parts[0][0]

    @property
    def size(self) -> int:
        return int(self.parts[-1][1].stop)

    def of(self, values: Array) -> Array:
        """Take the share's records, the last axis, of those of the block, unless all share one column."""
        return values if isinstance(self.rows, slice) or values.shape[-1] == 1 else values.take(self.rows, axis=-1)

    def leaves(self, forms: Array) -> Array:
        """Return leaves without their offsets; one column if all records share it."""
        own = self.of(forms)
        if len(self.parts) == 1:
            return np.asarray(self.label.combine @ own)
        return np.concatenate([label.combine @ own[:, some] for label, some in self.parts], axis=1)

    def fields(self, block: Records) -> list[Array]:
        """Return fields for the outer function, records first."""
        return [dense(block[name])[self.rows] for name in self.label.lowered.fields]

    def back(self, slopes: Array) -> Array:
        """Turn slopes by the leaves into those by the forms."""
        return np.concatenate([label.combine.T @ slopes[:, some] for label, some in self.parts], axis=1)


class Plan(NamedTuple):
    """Who handles which of a block's records."""

    size: int
    shares: list[Share]


def filled(rows: Indices) -> Indices:
    """Repeat the last of some records until they are a multiple of `LANES`."""
    return np.concatenate([rows, np.full(-len(rows) % LANES, rows[-1])])


class Engine:
    """Sums over blocks of records that are read where they lie."""

    def __init__(self, form: LeafForm, batch: Batch) -> None:
        self.form, self.batch = form, batch
        self.design = Design(form.monomials, form.fields)
        # Labels by their function; those that depend on all parameters stay apart, because records share these.
        kinds: dict[Any, list[int]] = {}
        for number, label in enumerate(form.labels):
            numbers = tuple((c.shape, c.tobytes()) for c in label.lowered.constants)
            apart = number if len(form.monomials) == 1 else -1
            kinds.setdefault((label.lowered.program, label.lowered.fields, numbers, apart), []).append(number)
        self.kinds = list(kinds.values())
        columns = batch.fields
        self.step = self._step()
        size = sum(c.nnz if sp.issparse(c) else int(np.prod(c.shape, dtype=np.int64)) for c in columns.values())
        self.large = size >= LARGE
        # Blocks of sparse columns are kept: they share the column's numbers.
        self._sparse = {
            name: [partial(itself, read()) for read in readers(column, self.step)]
            for name, column in columns.items()
            if sp.issparse(column)
        }
        # What is made of blocks is kept where nobody can change them, and that is not too much.
        self.keeps = all(isinstance(c, np.ndarray) or sp.issparse(c) for c in columns.values())
        self.keeps &= self.design.pairs is None or batch.size * self.design.count <= KEPT
        self._tables: dict[int, Array] = {}  # of monomials of degree two, by block
        self.plans = [self.dealt(batch.group[start : start + self.step]) for start in range(0, batch.size, self.step)]

    def _step(self) -> int:
        """Return the number of records in a block: a multiple of `LANES`."""
        width, wide = 0.0 if self.design.pairs is None else 8.0 * self.design.count, 1
        for column in self.batch.fields.values():
            if sp.issparse(column):
                width, wide = width + 12 * column.nnz / max(self.batch.size, 1), max(wide, column.shape[1])
            else:
                width += 8 * int(np.prod(column.shape[1:], dtype=np.int64))
        leaves = max(label.combine.shape[0] for label in self.form.labels)
        rows = np.clip(BLOCK_BYTES / max(width, 16 * (leaves + self.form.forms), 1), FEWEST, BLOCK)
        return int(min(rows, max(WIDE // (wide * self.form.forms), 1) * PIECE)) // LANES * LANES

    def dealt(self, group: Indices) -> Plan:
        """Deal records with these labels to outer functions."""
        if len(self.form.labels) == 1:
            return Plan(len(group), [Share(((self.form.labels[0], slice(0, len(group))),), slice(None))])
        shares = []
        for members in self.kinds:
            rows = [np.flatnonzero(group == member) for member in members]
            ends = np.cumsum([0, *map(len, rows)])
            if ends[-1]:
                every = filled(np.concatenate(rows))
                ends[ends == ends[-1]] = len(every)
                parts = zip(members, ends, ends[1:], strict=False)
                shares.append(Share(tuple((self.form.labels[m], slice(a, b)) for m, a, b in parts), every))
        return Plan(len(group), shares)

    def each(self, function: Callable[[int, Records, Plan], T]) -> Iterator[T]:
        """Yield what a function makes of blocks, in their order whoever is done first: the bits do not depend on threads."""
        columns = {
            name: iter(self._sparse[name]) if name in self._sparse else readers(column, self.step)
            for name, column in self.batch.fields.items()
        }

        def task(number: int, reads: dict[str, Callable[[], Any]]) -> T:
            return function(number, self._read(number, reads), self.plans[number])

        tasks = (
            partial(task, k, {name: next(column) for name, column in columns.items()}) for k in range(len(self.plans))
        )
        with one_blas_thread() if self.large else nullcontext(1) as threads:
            yield from in_order(tasks, min(threads, len(self.plans)))

    def _read(self, number: int, reads: dict[str, Callable[[], Any]]) -> Records:
        block = {name: read() for name, read in reads.items()}
        if self.design.pairs is not None:
            table = self._tables.get(number)
            block[TABLE] = self.design.with_table(block) if table is None else table
            if self.keeps:
                self._tables[number] = block[TABLE]
        return block

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

    def slopes(
        self, coefficients: Array, block: Records, plan: Plan, product: Product = product
    ) -> tuple[Array, Array]:
        """Losses of a block's records, and their gradients by the forms, shape (forms, records)."""
        forms = self.design.forward(block, coefficients, plan.size, product)
        losses, slopes = np.empty(plan.size), np.empty((len(forms), plan.size))
        for share in plan.shares:
            own, leaves = share.label.lowered, self.leaves(share, forms, block, plan.size, product)
            values, found = gradient(own.program, own.constants, leaves, share.fields(block), share.size)
            losses[share.rows], slopes[:, share.rows] = values, share.back(found)
        return losses, slopes

    def leaves(self, share: Share, forms: Array, block: Records, size: int, product: Product = product) -> Array:
        """Leaves of a share's records from all forms of a block, shape (entries, records), or one column."""
        leaves = share.leaves(forms)
        for label, some in share.parts:
            if label.is_moving:
                leaves[:, some] += share.of(self.design.forward(block, label.offset, size, product))[:, some]
            elif label.offset.any():
                leaves[:, some] += label.offset[:, -1:]
        return leaves

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
        size, every = plan.size, max(self.batch.size // max(records, 1), 1)
        if every > 1:
            block = {name: column[::every] for name, column in block.items()}
            plan = self.dealt(self.batch.group[number * self.step :][:size:every])
        forms = self.design.forward(block, coefficients, plan.size)

        def bends() -> Iterator[Array]:
            for unit in np.eye(len(forms)):
                bent = np.empty((len(forms), plan.size))
                for share in plan.shares:
                    own, leaves = share.label.lowered, self.leaves(share, forms, block, plan.size)
                    along = share.leaves(np.repeat(unit[:, None], forms.shape[1], axis=1))
                    fields = share.fields(block)
                    found = hessian_product(own.program, own.constants, leaves, along, fields, share.size)
                    bent[:, share.rows] = share.back(found)
                yield bent

        return size / plan.size, self.design.table(block, plan.size), bends()

    def written_down(self, slopes: Array, table: Array) -> Array:
        """Return gradients of records, shape (dim, records), from those by the forms."""
        return np.asarray(self.form.map.T @ (slopes[:, None] * table.T[None]).reshape(-1, len(table)))
