"""Sums over the records of a batch, in blocks that fit the processor's caches, with several threads for large batches."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import repeat
from threading import local
from typing import Any, NamedTuple, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.data.batch import Batch
from dpconvex.data.columns import Stored, block_readers, dense, take_rows as taken, unchanged_block
from dpconvex.sums.clipping import WRITTEN, Norms, clip_gradients, sum_by_person, sum_one_by_one
from dpconvex.sums.design import TABLE, Design, Product, product, product_apart
from dpconvex.sums.exact_sums import RecordBlock, SumQuery, Sums, block_sums
from dpconvex.sums.forms import Label, LeafForm
from dpconvex.sums.grouped_sums import person_sums, vector_sums
from dpconvex.sums.programs import LANES
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import in_order, one_blas_thread
from dpconvex.util.summation import BLOCK, PIECE, pairwise_sum

Records = dict[str, Any]
T = TypeVar("T")

# Bytes of a block's records: a shared cache must still hold them at their second use. And the fewest records of a block: each
# block costs some function calls.
BLOCK_BYTES, FEWEST = 2**23, 4096
WIDE = 2**22  # Sums of pieces of sparse records that are computed at a time
LARGE = 2**17  # Numbers to read from which several threads pay off
SHARE = 2**16  # Leaves that an outer function takes at a time: arrays of all leaves would not fit the nearest caches
KEPT = 2**24  # Most monomials of degree two that are cached: 128 MB


class Share(NamedTuple):
    """Records of a block with the same outer loss function, ordered by label, padded to a multiple of `LANES`."""

    parts: tuple[tuple[Label, slice], ...]  # each label's slice of the share's last axis
    rows: Any  # the records' places in the block, or a slice of all
    # If the only leaf is a multiple of one form: these multiples, for each record or one for all
    factors: Array | None = None

    @property
    def size(self) -> int:
        return int(self.parts[-1][1].stop)

    def of(self, values: Array) -> Array:
        """Return the share's columns of a block's values; a single common column is returned as it is."""
        return values if isinstance(self.rows, slice) or values.shape[-1] == 1 else values.take(self.rows, axis=-1)

    def numbers(self) -> list[Array]:
        """Return the function's constants, with the records last, or one column if all labels share it."""
        sizes, found = [own.stop - own.start for _, own in self.parts], list[Array]()
        for c in zip(*(label.lowered.constants for label, _ in self.parts), strict=True):
            alike = len({one.tobytes() for one in c}) == 1
            found.append(c[0][..., None] if alike else np.repeat(np.stack(c, axis=-1), sizes, axis=-1))
        return found

    def leaves(self, forms: Array) -> Array:
        """Return the leaves without their offsets, records last; one column if all records share it."""
        if self.factors is not None:
            return np.asarray(forms * self.factors)
        own = self.of(forms)
        if len(self.parts) == 1:
            return np.asarray(self.parts[0][0].combine @ own)
        return np.concatenate([label.combine @ own[:, some] for label, some in self.parts], axis=1)

    def back(self, slopes: Array) -> Array:
        """Return gradients with respect to the forms from gradients with respect to the leaves."""
        if self.factors is not None:
            return slopes * self.factors
        return np.concatenate([label.back @ slopes[:, some] for label, some in self.parts], axis=1)


@dataclass(eq=False)
class Block:
    """Records in memory, and their shares by outer function. Padding records have no part in sums."""

    design: Design
    records: Records
    shares: list[Share]
    size: int
    rows: Indices  # The batch's records that are summed

    @property
    def count(self) -> int:
        return len(self.rows)

    def forms(self, coefficients: Array, product: Product = product) -> Array:
        return self.design.forward(self.records, coefficients, product)

    def table(self) -> Array:
        return self.design.table(self.records, self.size)

    def slopes(
        self, forms: NDArray[Any], product: Product = product, valued: bool = False
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return losses (NaN unless `valued`) and gradients by the forms, shape (forms, records), at real or complex forms."""
        forms = np.broadcast_to(forms, (len(forms), self.size)) if self.design.columns else forms
        losses, slopes = np.empty(self.size, forms.dtype), np.empty((len(forms), self.size), forms.dtype)
        for share in self.shares:
            leaves, own = share.leaves(forms), share.parts[0][0].lowered
            for label, some in share.parts:
                if label.offset.any():
                    offset = share.of(self.design.forward(self.records, label.offset, product))
                    leaves[:, some] += np.broadcast_to(offset, leaves.shape)[:, some]
            fields = [dense(self.records[name])[share.rows] for name in own.fields]
            values, found = own.gradient(leaves, fields, share.size, valued, share.numbers())
            if isinstance(share.rows, slice):
                return values, share.back(found)
            losses[share.rows], slopes[:, share.rows] = values, share.back(found)
        return losses, slopes


def padded_indices(rows: Indices) -> Indices:
    """Repeat the last index until the number of indices is a multiple of `LANES`."""
    return np.concatenate([rows, np.full(-len(rows) % LANES, rows[-1])])


def numbers_in(batch: Batch) -> int:
    return sum(c.nnz if sp.issparse(c) else int(np.prod(c.shape, dtype=np.int64)) for c in batch.fields.values())


def by_person(people: Indices, step: int) -> Iterator[Indices]:
    """Yield the record indices of whole people, person by person, about `step` records at a time."""
    order = np.argsort(people, kind="stable")
    ends, start = np.flatnonzero(np.diff(people[order], append=-1)) + 1, 0
    while start < len(order):
        stop = int(ends[max(np.searchsorted(ends, start + step, "right") - 1, np.searchsorted(ends, start + 1))])
        yield order[start:stop]
        start = stop


class RecordSums:
    """Sums over blocks of records, which are read in place."""

    def __init__(self, form: LeafForm, batch: Batch) -> None:
        self.form, self.design, self.batch = form, form.design, batch
        # Group labels by outer function. If the forms read no field, labels stay apart: their records share one column.
        kinds: dict[Any, list[int]] = {}
        for number, label in enumerate(form.labels):
            # Small constants may differ within a group, such as zeros at a label's own score: they are stored by record.
            few, constants = len(label.lowered.place), label.lowered.constants
            numbers = tuple((c.shape, c.tobytes() if c.size > few else b"") for c in constants)
            apart = -1 if self.design.columns else number
            kinds.setdefault((label.lowered.program, label.lowered.fields, numbers, apart), []).append(number)
        self._kinds = list(kinds.values())
        factors = [label.combine for label in form.labels if len(form.labels) == 1 or not label.offset.any()]
        exact = {tuple(c.tobytes() for c in label.lowered.constants) for label in form.labels}
        single = [(c.shape, c.nnz) for c in factors] == [((1, 1), 1)] * len(form.labels)
        alone = len(kinds) == len(exact) == 1 and single
        self._factors = np.concatenate([factor.data for factor in factors]) if alone else None
        self._step, self._large = self._records_in_a_block(), numbers_in(batch) >= LARGE
        # Read a column and its source together: a file may change between two readings.
        pairs = ((n, name, c) for name, c in batch.fields.items() if isinstance(c, Stored) for n in batch.fields)
        self._made_of = {name: (n, c.function) for n, name, c in pairs if c.column is batch.fields[n]}
        self._read = {name: c for name, c in batch.fields.items() if name not in self._made_of}
        # Keep blocks of sparse columns: they share the column's memory.
        self._columns = {
            name: [partial(unchanged_block, read()) for read in block_readers(c, self._step)] if sp.issparse(c) else c
            for name, c in self._read.items()
        }
        # Cache results of blocks only if nobody can change the records, and the results are not too large.
        fixed = all(isinstance(c, np.ndarray) or sp.issparse(c) for c in batch.fields.values())
        self._keeps = fixed and (self.design.pairs is None or batch.size * self.design.count <= KEPT)
        self._made: dict[tuple[str, int], Any] = {}
        self._evaluated: dict[int, RecordBlock] = {}  # Gradients often follow a histogram at the same parameters
        self._own = None if self._keeps else local()  # Memory of each thread for monomials that are not cached
        self.rows = np.split(np.arange(batch.size), np.arange(self._step, batch.size, self._step)) if batch.size else []
        self.shares = [self._deal(batch.group[rows]) for rows in self.rows]

    @cached_property
    def _norms(self) -> Norms | None:
        return Norms.of(self.form)

    def _records_in_a_block(self) -> int:
        """Return the number of records of a block, a multiple of `LANES`."""
        made = 0 if self.design.pairs is None else self.design.count
        numbers = numbers_in(self.batch) / max(self.batch.size, 1) + made
        wide = max((c.shape[1] for c in self.batch.fields.values() if sp.issparse(c)), default=1)
        leaves = max(label.combine.shape[0] for label in self.form.labels)
        rows = np.clip(BLOCK_BYTES / (8 * max(numbers, 2 * (leaves + self.form.forms))), FEWEST, BLOCK)
        return int(min(rows, max(WIDE // (wide * self.form.forms), 1) * PIECE)) // LANES * LANES

    def _deal(self, group: Indices) -> list[Share]:
        """Divide records with these labels into shares by outer function."""
        if len(self.form.labels) == 1 or self._factors is not None:
            factors = self._factors if self._factors is None or len(self._factors) == 1 else self._factors[group]
            return [Share(((self.form.labels[0], slice(0, len(group))),), slice(None), factors)]
        shares = []
        for members in self._kinds:
            rows = [np.flatnonzero(group == member) for member in members]
            ends = np.cumsum([0, *map(len, rows)])
            every = padded_indices(np.concatenate(rows)) if ends[-1] else np.zeros(0, dtype=np.int64)
            ends[ends == ends[-1]] = len(every)
            step = max(SHARE // max(self.form.labels[members[0]].combine.shape[0], 1) // LANES, 1) * LANES
            for start in range(0, len(every), step):
                own = every[start : start + step]
                near = np.clip(ends - start, 0, len(own))
                parts = [(m, a, b) for m, a, b in zip(members, near, near[1:], strict=False) if a < b]
                shares.append(Share(tuple((self.form.labels[m], slice(a, b)) for m, a, b in parts), own))
        return shares

    def _kept(self, what: str, number: int, make: Callable[[], T]) -> T:
        """Return `make()` for a block, named by the number of its first record; reuse it in later passes if blocks are cached."""
        found: T = self._made[what, number] if (what, number) in self._made else make()
        if self._keeps:
            self._made[what, number] = found
        return found

    def _whole(self, block: Records) -> Records:
        return block | {name: function(block[source]) for name, (source, function) in self._made_of.items()}

    def _each(self, function: Callable[[Block], T], fill: bool = False) -> Iterator[T]:
        """Yield `function(block)` for each block of all records; `fill` pads blocks to multiples of `LANES`."""
        columns = {
            n: iter(c) if isinstance(c, list) else block_readers(c, self._step) for n, c in self._columns.items()
        }

        def task(rows: Indices, shares: list[Share], reads: dict[str, Callable[[], Any]]) -> T:
            records = self._whole({name: read() for name, read in reads.items()})
            if self.design.pairs is not None:
                records[TABLE] = self._kept(TABLE, rows[0], partial(self.design.with_table, records, self._own))
            block = Block(self.design, records, shares, len(rows), rows)
            return function(self._kept("filled", rows[0], partial(self._filled, block)) if fill else block)

        reads = ({name: next(column) for name, column in columns.items()} for _ in self.rows)
        return self._in_order(list(map(partial, repeat(task), self.rows, self.shares, reads)))

    def _filled(self, block: Block) -> Block:
        """Return the block, padded to a multiple of `LANES`."""
        if not block.size % LANES:
            return block
        every = padded_indices(np.arange(block.size))
        records = {name: column[every] for name, column in block.records.items()}
        return Block(self.design, records, self._deal(self.batch.group[block.rows[every]]), len(every), block.rows)

    def _of_groups(self, groups: Iterable[Indices], function: Callable[[Block], T], what: str = "") -> Iterator[T]:
        """Yield `function(block)` for each group of records; groups are cached under the name `what`, if given."""

        def task(rows: Indices) -> T:
            make = partial(self.read, rows, fill=True)
            return function(self._kept(what, rows[0], make) if what else make())

        return self._in_order([partial(task, rows) for rows in groups])

    def _in_order(self, tasks: list[Callable[[], T]]) -> Iterator[T]:
        """Run tasks in threads, and yield their results in the order of the tasks, so that threads do not change the bits."""
        with one_blas_thread() if self._large else nullcontext(1) as threads:
            yield from in_order(tasks, min(threads, len(tasks)))

    def _coefficients(self, theta: Array) -> Array:
        return np.asarray(self.form.map @ theta).reshape(self.form.forms, -1)

    def gradient_and_value(self, theta: Array) -> Array:
        """Return the gradient of the sum of the losses, and the sum, shape (dim + 1,)."""
        coefficients = self._coefficients(theta)

        def one(block: Block) -> Array:
            losses, slopes = block.slopes(block.forms(coefficients), valued=True)
            return np.append(self.design.backward(block.records, slopes), losses.sum())

        found = np.zeros(coefficients.size + 1) + pairwise_sum(self._each(one))
        return np.append(self.form.map.T @ found[:-1], found[-1])

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None = None) -> Array:
        """Return the sum of the (chosen) records' gradients, each clipped to the norm `clip`, shape (dim,)."""
        coefficients = self._coefficients(theta)

        def one(block: Block) -> Array:
            with np.errstate(all="ignore"):
                slopes = block.slopes(block.forms(coefficients, product_apart), product_apart)[1]
                if self._norms is None:
                    return sum_one_by_one(self.form, slopes, block.table(), clip, block.count)
                make = partial(self._norms.lengths, self.design, block.records)
                lengths = self._kept("lengths", block.rows[0], make) if chosen is None else make()
                slopes = clip_gradients(slopes, self._norms.squares(slopes, lengths), clip)
            slopes[:, block.count :] = 0.0
            return np.asarray(self.form.map.T @ self.design.backward(block.records, slopes).ravel())

        if chosen is None:
            return np.zeros(len(theta)) + pairwise_sum(self._each(one, fill=True))
        groups = (rows[chosen[rows]] for rows in self.rows)
        return np.zeros(len(theta)) + pairwise_sum(self._of_groups((rows for rows in groups if len(rows)), one))

    def clipped_sums(self, theta: Array, clip: float, people: Indices) -> Array:
        """Return the sum over people of each person's gradient sum, clipped to the norm `clip`, shape (dim,)."""
        coefficients = self._coefficients(theta)
        step = max(WRITTEN // coefficients.size // LANES, 1) * LANES  # so few that their gradients can be stored

        def one(block: Block) -> Array:
            with np.errstate(all="ignore"):
                slopes = block.slopes(block.forms(coefficients, product_apart), product_apart)[1]
                return sum_by_person(self.form, slopes, block.table(), clip, people[block.rows])

        return np.zeros(len(theta)) + pairwise_sum(self._of_groups(by_person(people, step), one, "people"))

    def query(self, query: SumQuery, people: Indices | None = None) -> Sums:
        """Return exact sums of clipped gradients, curvatures and counts by gradient norm; `people` clip each person's sum."""

        def one(block: Block) -> Sums:
            part = self._evaluated.pop(block.rows[0], None)
            if part is None or not np.array_equal(part.query.coefficients, query.coefficients):
                part = RecordBlock(query, block)
            part.query = query
            if query.edges.size and self._keeps:
                self._evaluated[block.rows[0]] = part
            return block_sums(part)

        with np.errstate(all="ignore"):
            if query.leverage is None:
                return sum(self._each(one, fill=True), start=query.nothing)
            owner = np.arange(self.batch.size) if people is None else people
            apart = bool(query.vectors) and query.rows.jacobian is None
            each = query.rows.each * query.rows.count * (query.to_forms.shape[0] if apart else 1)
            step = max(min(FEWEST, WRITTEN // each // LANES * LANES), 1)
            of_block, groups = vector_sums if query.vectors else person_sums, by_person(owner, step)
            parts = self._of_groups(groups, lambda b: of_block(RecordBlock(query, b), owner[b.rows]), f"query {step}")
            return sum(parts, start=query.nothing)

    def read(self, rows: Indices, fill: bool = False) -> Block:
        """Return a block of some records; `fill` pads it to a multiple of `LANES`."""
        every, columns = padded_indices(rows) if fill else rows, self._read.items()
        records = self._whole({name: next(iter(block_readers(taken(c, every), len(every))))() for name, c in columns})
        if self.design.pairs is not None:
            records[TABLE] = self.design.with_table(records)
        return Block(self.design, records, self._deal(self.batch.group[every]), len(every), rows)
