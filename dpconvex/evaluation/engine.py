"""Sums over the records of a batch, in blocks through the processor's caches, several at a time where there are processors.

A block is multiplied with the coefficients of the forms, the outer function of each record's forms gives its loss and slopes, and
these are multiplied with the block again.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.summation import BLOCK, PIECE, Pairwise
from dpconvex.evaluation.derivatives import LANES
from dpconvex.evaluation.design import AT_ONCE, TABLE, LinearDesign, Product, design_of, product
from dpconvex.evaluation.forms import Label, LeafForm
from dpconvex.evaluation.gram import Gram
from dpconvex.evaluation.threads import in_order, keep_memory, one_blas_thread
from dpconvex.language.batch import Batch
from dpconvex.language.columns import dense, itself, readers

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
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
# Labels whose tables have more numbers than this are not compared; nor are more than so many forms of a label's own worth it.
LARGEST_SPREAD, MOST_TERMS = 2**22, 2
# Second moments of each label are told apart if they are so many numbers at most: eight megabytes.
APART = 2**20


class Spread(NamedTuple):
    """Leaves as some that all labels share, plus a direction times each label's own few forms; and constants."""

    common: sp.csr_array
    back: sp.csr_array
    direction: Array
    places: Indices  # of a label's own forms, shape (terms, labels)
    weights: Array
    shift: Array  # shape (entries, labels)


@dataclass(frozen=True, eq=False)
class Kind:
    """Labels whose losses are one function of different leaves; records of several labels go through it together."""

    members: Indices
    labels: tuple[Label, ...]

    @cached_property
    def diagonal(self) -> tuple[Array, Array] | None:
        """If each leaf is a multiple of the form of the same number, plus a constant: both, shape (entries, labels)."""
        tables = [label.combine for label in self.labels]
        square = all(t.shape[0] == t.shape[1] and (t.tocoo().row == t.tocoo().col).all() for t in tables)
        if not square or any(label.moving is not None for label in self.labels):
            return None
        return np.stack([t.diagonal() for t in tables], axis=1), np.stack(
            [label.shift for label in self.labels], axis=1
        )

    @cached_property
    def spread(self) -> Spread | None:
        """What the leaves of all labels share, if they differ by multiples of one direction, as differences with one's own do."""
        tables = [label.combine for label in self.labels]
        if len(tables) * np.prod(tables[0].shape) > LARGEST_SPREAD or any(x.moving is not None for x in self.labels):
            return None
        apart = np.stack([table.toarray() for table in tables]) - tables[0].toarray()
        label, entry, form = (int(k) for k in np.unravel_index(np.argmax(np.abs(apart)), apart.shape))
        if apart[label, entry, form] == 0:
            return None
        direction, own = apart[label, :, form] / apart[label, entry, form], apart[:, entry]
        terms = int((own != 0).sum(axis=1).max())
        if terms > MOST_TERMS or (apart != direction[:, None] * own[:, None]).any():
            return None
        places = np.argsort(own == 0, axis=1, kind="stable")[:, :terms]
        weights = np.take_along_axis(own, places, axis=1)
        shift = np.stack([label.shift for label in self.labels], axis=1)
        return Spread(tables[0], sp.csr_array(tables[0].T), direction, places.T, weights.T, shift)


def kinds_of(form: LeafForm) -> list[Kind]:
    """Group the labels, whatever the records; functions of all parameters stay apart, because records share these."""
    found: dict[Any, list[int]] = {}
    for number, label in enumerate(form.labels):
        numbers = tuple((c.shape, c.tobytes()) for c in label.lowered.constants)
        apart = number if len(form.monomials) == 1 else -1
        found.setdefault((label.lowered.program, label.lowered.fields, numbers, apart), []).append(number)
    return [Kind(np.array(members), tuple(form.labels[m] for m in members)) for members in found.values()]


@dataclass(frozen=True, eq=False)
class Share:
    """The records of one kind in one block: which (None if all), in order of their labels, and where each label's end."""

    kind: Kind
    rows: Indices | None
    ends: tuple[int, ...]
    columns: tuple[Array, ...] = ()  # of all records together: multiples of forms, or those of their own, and constants


class Engine:
    """Sums over blocks of records that are read where they lie."""

    def __init__(self, form: LeafForm, batch: Batch) -> None:
        keep_memory()
        self.form, self.batch = form, batch
        self.design = design_of(form.monomials, form.fields)
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
        self._keeps = (
            self._plain and not isinstance(self.design, LinearDesign) and batch.size * self.design.count <= KEPT
        )
        self._tables: dict[int, Array] = {}  # of blocks whose monomials of degree two are kept
        self.plan = [self.shares(batch.group[start : start + self.step]) for start in range(0, batch.size, self.step)]

    def _step(self) -> int:
        """Return the number of records in a block: a multiple of `LANES`."""
        width = sum(
            12 * column.nnz / max(column.shape[0], 1)
            if sp.issparse(column)
            else 8 * int(np.prod(column.shape[1:], dtype=np.int64))
            for column in self.batch.fields.values()
        )
        leaves = max(label.combine.shape[0] for label in self.form.labels)
        rows = np.clip(BLOCK_BYTES / max(width, 16 * (leaves + self.form.forms), 1), FEWEST, BLOCK)
        wide = max((c.shape[1] for c in self.batch.fields.values() if sp.issparse(c)), default=1)
        rows = min(rows, max(WIDE // (wide * self.form.forms), 1) * PIECE)
        count = max(1, -(-self.batch.size // int(rows)))
        return -(-max(self.batch.size, 1) // count // LANES) * LANES if count == 1 else int(rows) // LANES * LANES

    def shares(self, group: Indices) -> list[Share]:
        """Deal records with these labels to kinds."""
        kind = self.kinds[0]
        tables: Any = kind.diagonal or (kind.spread and kind.spread[3:])
        if len(self.kinds) == 1 and tables:
            columns = tuple(t[:, :1] if (t == t[:, :1]).all() else np.take(t, group, axis=1) for t in tables)
            return [Share(kind, None, (len(group),), columns)]
        found = []
        for kind in self.kinds:
            chosen = [np.flatnonzero(group == member) for member in kind.members]
            ends = tuple(np.cumsum([len(rows) for rows in chosen]).tolist())
            if ends[-1]:
                found.append(Share(kind, np.concatenate(chosen), ends))
        return found

    def blocks(self) -> Iterator[tuple[Callable[[], Records], Indices, list[Share]]]:
        """Yield functions that read a block of records, their labels, and who handles which."""
        columns = {
            name: iter(self._sparse[name]) if name in self._sparse else readers(column, self.step)
            for name, column in self.batch.fields.items()
        }

        def read(functions: dict[str, Callable[[], Any]]) -> Records:
            return {name: function() for name, function in functions.items()}

        for number, shares in enumerate(self.plan):
            functions = {name: next(column) for name, column in columns.items()}
            group = self.batch.group[number * self.step : (number + 1) * self.step]
            if self._keeps:
                functions[TABLE] = partial(self._kept, number, functions | {}, len(group))
            yield partial(read, functions), group, shares

    def _kept(self, number: int, functions: dict[str, Callable[[], Any]], size: int) -> Array:
        if number not in self._tables:
            self._tables[number] = self.design.table({name: read() for name, read in functions.items()}, size)
        return self._tables[number]

    def each(self, function: Callable[[int, Records, Indices, list[Share]], T]) -> Iterator[T]:
        """Yield what a function makes of blocks, in their order whoever is done first: the bits do not depend on threads."""

        def task(number: int, read: Callable[[], Records], group: Indices, shares: list[Share]) -> T:
            return function(number, read(), group, shares)

        with one_blas_thread() if self.large else nullcontext(1) as threads:
            yield from in_order(
                (partial(task, k, *b) for k, b in enumerate(self.blocks())), min(threads, len(self.plan))
            )

    def summed(
        self, function: Callable[[int, Records, Indices, list[Share]], tuple[float, Array]]
    ) -> tuple[float, Array]:
        """Sum a value and a gradient by the coefficients over blocks; returns that by the coordinates."""
        total, slope = 0.0, Pairwise(np.zeros((self.form.forms, len(self.form.monomials))))
        for value, part in self.each(function):
            total += value
            slope.add(part)
        return total, np.asarray(self.form.map.T @ slope.value.ravel())

    def coefficients(self, theta: Array) -> Array:
        return np.asarray(self.form.map @ theta).reshape(self.form.forms, -1)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient, shape (dim,)."""
        coefficients = self.coefficients(theta)

        def one(number: int, block: Records, group: Indices, shares: list[Share]) -> tuple[float, Array]:
            values, gradient = self.slopes(coefficients, block, len(group), shares)
            return float(values.sum()), self.design.backward(block, gradient)

        return self.summed(one)

    def slopes(
        self, coefficients: Array, block: Records, size: int, shares: list[Share], product: Product = product
    ) -> tuple[Array, Array]:
        """Losses of a block's records, and their gradients by the forms, shape (forms, records)."""
        forms = self.design.forward(block, coefficients, size, product)
        losses, gradient = np.empty(size), np.zeros((len(forms), size) if shares[0].rows is not None else 0)
        for share in shares:
            leaves = self._leaves(share, forms, block, size, product)
            values, part = share.kind.labels[0].outer.gradient(leaves, self._fields(share, block), share.ends[-1])
            losses[slice(None) if share.rows is None else share.rows] = values
            gradient = self._collect(share, part, gradient)
        return losses, gradient

    def hessian_product(self, theta: Array, direction: Array) -> Array:
        """Hessian of the sum of the losses times a direction, shape (dim,)."""
        coefficients, along = self.coefficients(theta), self.coefficients(direction)

        def one(number: int, block: Records, group: Indices, shares: list[Share]) -> tuple[float, Array]:
            both = self.design.forward(block, np.concatenate([coefficients, along]), len(group))
            bent = self._bent(block, len(group), shares, both[: len(along)], both[len(along) :])
            return 0.0, self.design.backward(block, bent)

        return self.summed(one)[1]

    def _bent(self, block: Records, size: int, shares: list[Share], forms: Array, moves: Array) -> Array:
        """Hessians by the forms times moves of these, shape (forms, records)."""
        result = np.zeros((len(forms), size))
        for share in shares:
            leaves, change = self._leaves(share, forms, block, size), self._leaves(share, moves, None, size)
            outer, fields = share.kind.labels[0].outer, self._fields(share, block)
            result = self._collect(share, outer.hessian_product(leaves, change, fields, share.ends[-1]), result)
        return result

    def hessian(self, theta: Array, records: int) -> Array:
        """Hessian of the sum of the losses, shape (dim, dim), from about so many records."""
        coefficients = self.coefficients(theta)
        forms, monomials = coefficients.shape

        def one(number: int, block: Records, group: Indices, shares: list[Share]) -> Array:
            total = np.zeros((forms, monomials, forms, monomials))
            some, labels, shares = self._some(block, group, records)
            values, rows = self.design.forward(some, coefficients, len(labels)), self.design.table(some, len(labels))
            for number in range(forms):
                moves = np.zeros((forms, values.shape[1]))
                moves[number] = 1.0
                bent = self._bent(some, len(labels), shares, values, moves)
                for other in range(number, forms):
                    if bent[other].any():
                        for few in (slice(k, k + AT_ONCE) for k in range(0, len(rows), AT_ONCE)):  # in a cache
                            total[other, :, number] += rows[few].T @ (bent[other][few, None] * rows[few])
                        total[number, :, other] = total[other, :, number].T
            return total * (len(group) / len(labels))

        whole = np.asarray(sum(self.each(one))).reshape(forms * monomials, -1)
        return np.asarray(self.form.map.T @ np.asarray(self.form.map.T @ whole).T)

    def gram(self, theta: Array, records: int) -> Gram:
        """Model the Hessian by second moments of about so many records, and of how the losses of some of these bend."""
        coefficients, forms, monomials = self.coefficients(theta), self.form.forms, len(self.form.monomials)
        groups = groups_of(self.form)

        def one(number: int, block: Records, group: Indices, shares: list[Share]) -> Array:
            bends, moments = np.zeros((groups, forms, forms)), np.zeros((groups, monomials, monomials))
            some, labels, shares = self._some(block, group, records)
            values, table = self.design.forward(some, coefficients, len(labels)), self.design.table(some, len(labels))
            bent = np.stack(
                [
                    self._bent(some, len(labels), shares, values, np.repeat(e[:, None], values.shape[1], 1))
                    for e in np.eye(forms)
                ]
            )
            counts = np.bincount(group if groups > 1 else np.zeros(len(group), int), minlength=groups).astype(float)
            for which in np.flatnonzero(counts):
                rows = labels == which if groups > 1 else slice(None)
                part = table[rows]
                share = counts[which] / max(len(part), 1)
                bends[which], moments[which] = share * bent[:, :, rows].sum(axis=2), share * (part.T @ part)
            return Gram((bends + bends.swapaxes(1, 2)) / 2, moments, counts, self.form.map).sums()

        return Gram.of(np.asarray(sum(self.each(one))), groups, forms, self.form.map)

    def _some(self, block: Records, group: Indices, records: int) -> tuple[Records, Indices, list[Share]]:
        """Choose every k-th record of each label of a block, about so many of all blocks together."""
        every = self.batch.size // max(records, 1)
        if every < 2:
            return block, group, self.shares(group)
        parts = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group)))
        rows = np.sort(np.concatenate([part[::every] for part in parts]))
        return {name: column[rows] for name, column in block.items()}, group[rows], self.shares(group[rows])

    def record_values(self, theta: Array) -> Array:
        return self.records(theta)[0]

    def records(self, theta: Array) -> tuple[Array, Array]:
        """Loss of each record, and its gradient, shape (n, dim).  Needs memory for all of them: for small batches."""
        coefficients, dim = self.coefficients(theta), self.form.map.shape[1]

        def one(number: int, block: Records, group: Indices, shares: list[Share]) -> tuple[Array, Array]:
            values, slopes = self.slopes(coefficients, block, len(group), shares)
            rows = self.design.table(block, len(group))
            return values, np.asarray((slopes.T[:, :, None] * rows[:, None]).reshape(len(rows), -1) @ self.form.map)

        values, gradients = zip((np.zeros(0), np.zeros((0, dim))), *self.each(one), strict=True)
        return np.concatenate(values), np.concatenate(gradients)

    def tables(self, label: Label) -> tuple[Any, Any]:
        return label.small_tables

    def _leaves(
        self, share: Share, forms: Array, block: Records | None, size: int, product: Product = product
    ) -> Array:
        """Leaves of a share's records from all forms of a block; without the block, how they change with the forms."""
        if share.columns:
            *own, shift = share.columns
            if share.kind.diagonal is not None:
                leaves = forms * own[0]
            else:
                assert share.kind.spread is not None
                leaves = share.kind.spread.common @ forms
                records = np.arange(forms.shape[1])
                along = sum(weight * forms[place, records] for place, weight in zip(*own, strict=True))
                leaves += share.kind.spread.direction[:, None] * along
            return leaves + shift if block is not None and shift.any() else leaves
        assert share.rows is not None
        if forms.shape[1] < size and len(share.kind.labels) == 1:  # all records share them
            leaves = share.kind.labels[0].combine @ forms
            return leaves + share.kind.labels[0].shift[:, None] if block is not None else leaves
        forms = np.broadcast_to(forms, (len(forms), size))
        leaves, start = np.empty((share.kind.labels[0].combine.shape[0], share.ends[-1])), 0
        for label, end in zip(share.kind.labels, share.ends, strict=True):
            rows = share.rows[start:end]
            if end > start:
                leaves[:, start:end] = self.tables(label)[0] @ forms[:, rows]
                if block is not None and label.shift.any():
                    leaves[:, start:end] += label.shift[:, None]
                if block is not None and label.moving is not None:
                    leaves[:, start:end] += self.design.forward(block, label.moving, size, product)[:, rows]
            start = end
        return leaves

    def _collect(self, share: Share, part: Array, gradient: Array) -> Array:
        """Turn slopes by the leaves into those by the forms."""
        if share.columns:
            *own, _ = share.columns
            if share.kind.diagonal is not None:
                return np.asarray(part * own[0])
            assert share.kind.spread is not None
            gradient, records = share.kind.spread.back @ part, np.arange(part.shape[1])
            along = np.einsum("e,en->n", share.kind.spread.direction, part)
            for place, weight in zip(*own, strict=True):
                gradient[place, records] += weight * along
            return np.asarray(gradient)
        assert share.rows is not None
        start = 0
        for label, end in zip(share.kind.labels, share.ends, strict=True):
            if end > start:
                gradient[:, share.rows[start:end]] = self.tables(label)[1] @ part[:, start:end]
            start = end
        return gradient

    @staticmethod
    def _fields(share: Share, block: Records) -> list[Array]:
        """Fields for the outer function of a share, records first."""
        found = [dense(block[name]) for name in share.kind.labels[0].lowered.fields]
        return found if share.rows is None else [values[share.rows] for values in found]


def groups_of(form: LeafForm) -> int:
    """Return how many groups of records a model tells apart: those with different labels, if that is not too much."""
    labels = len(form.labels)
    return labels if form.forms > 1 and labels * len(form.monomials) ** 2 <= APART else 1
