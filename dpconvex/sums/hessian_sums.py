"""Sums of second derivatives over all records, or over every k-th record: Hessians, and parts of models of Hessians."""

from collections.abc import Iterator
from functools import cached_property
from itertools import chain

import numpy as np

from dpconvex.expressions.evaluate import STEP
from dpconvex.sums.engine import Block, RecordSums
from dpconvex.util.arrays import Array, Indices


class HessianSums(RecordSums):
    """`RecordSums` with second derivatives, by complex steps of the gradients."""

    def hessian(self, theta: Array, every: int) -> Array:
        """Return the Hessian of the sum of the losses, shape (dim, dim), estimated from one record in `every`."""
        coefficients = self._coefficients(theta)
        forms, monomials = coefficients.shape

        def one(block: Block) -> Array:
            total = np.zeros((forms, monomials, forms, monomials))
            weight, table, bending, bends = self._bends(coefficients, block, every)
            table = table[bending]
            for along, bent in bends:
                for k in np.unique(along[along >= 0]):
                    some = along == k
                    own, rows = table[some], bent[:, some]
                    for other in k + np.flatnonzero(rows[k:].any(axis=1)):
                        part = own.T @ (rows[other][:, None] * own)
                        total[other, :, k] += part
                        if other > k:
                            total[k, :, other] += part.T
            return total * weight

        whole = np.asarray(sum(self._each(one))).reshape(forms * monomials, -1)
        return np.asarray(self.form.map.T @ np.asarray(self.form.map.T @ whole).T)

    def moments(self, theta: Array, every: int) -> Array:
        """Return, as one vector, sums of the Hessians by the forms and of products of monomials, from one record in `every`."""
        coefficients = self._coefficients(theta)
        forms = len(coefficients)

        def one(block: Block) -> Array:
            weight, table, _, bends = self._bends(coefficients, block, every)
            bend = np.zeros((forms, forms))
            for along, bent in bends:
                for k in np.unique(along[along >= 0]):
                    bend[k] += bent[:, along == k].sum(axis=1)
            return weight * np.concatenate([((bend + bend.T) / 2).ravel(), (table.T @ table).ravel()])

        return np.asarray(sum(self._each(one)))

    def factors(self, theta: Array, every: int) -> tuple[Array, Array]:
        """Return monomials, (m, monomials), and Hessians, (m, forms, forms), of the curved records among one in `every`."""
        coefficients = self._coefficients(theta)

        def one(block: Block) -> tuple[Array, Array]:
            weight, table, bending, bends = self._bends(coefficients, block, every)
            both = np.zeros((len(bending), len(coefficients), len(coefficients)))
            for along, bent in bends:
                some = np.flatnonzero(along >= 0)
                both[some, along[some]] = weight / 2 * bent[:, some].T
            return table[bending].astype(np.float32), (both + both.swapaxes(1, 2)).astype(np.float32)

        tables, bends = zip(*self._each(one), strict=True)
        return np.concatenate(tables), np.concatenate(bends)

    @cached_property
    def _places(self) -> Indices:
        """Return the forms that each label's loss reads, shape (labels, most forms of a label), padded with -1."""
        own = [np.unique(label.combine.indices) for label in self.form.labels]
        most = max(map(len, own))
        return np.array([np.pad(forms, (0, most - len(forms)), constant_values=-1) for forms in own])

    def _bends(
        self, coefficients: Array, block: Block, every: int
    ) -> tuple[float, Array, Indices, Iterator[tuple[Indices, Array]]]:
        """Return the weight of the sampled records, their monomials, the curved records, and an iterator over rows of Hessians.

        Each item is one form of each record (-1 for none), and the derivative of the record's slopes along it, shape (forms,
        records): one evaluation moves records that read different forms.
        """
        size, which, records, count = block.size, block.rows[::every], block.records, len(coefficients)
        group = self.batch.group[which]
        if every > 1:
            records = {name: column[::every] for name, column in records.items()}
        forms = self.design.forward(records, coefficients)
        bending = np.arange(len(group))
        apart = bool(self.design.columns)  # whether the forms depend on the record
        forms = np.broadcast_to(forms, (count, len(group)))
        labels = [label for share in block.shares for label, _ in share.parts]
        read = {name for label in labels for name in (records if label.offset.any() else label.lowered.fields)}

        def change(directions: Array) -> Array:
            """Return derivatives of the curved records' slopes along directions, both (forms, directions, records)."""
            many = directions.shape[1]
            if not len(bending):  # programs are for one record at least
                return np.zeros((count, many, 0))
            chosen = np.tile(bending, many)
            moved = np.asarray(forms[:, None, bending] + 1j * STEP * directions).reshape(count, -1)
            wide = {name: records[name][chosen] for name in read}
            repeated = Block(self.design, wide, self._deal(group[chosen]), len(chosen), which[chosen])
            bent = np.imag(repeated.slopes(moved)[1]) / STEP
            return np.asarray(bent.reshape(count, many, len(bending)))

        def rows(along: Indices) -> Iterator[tuple[Indices, Array]]:
            found = change((np.arange(count)[:, None, None] == along.T).astype(float))
            return zip(along.T, found.swapaxes(0, 1), strict=True)

        most = self._places.shape[1]
        if most > 2 and apart:
            bending = np.flatnonzero(change(np.cos(np.arange(count))[:, None, None]).any(axis=(0, 1)))
        places = self._places[group[bending]]
        at_once = size // max(len(bending), 1)  # so that they fill a block
        parts = (places[:, k : k + at_once] for k in range(0, most, at_once))
        return size / len(group), self.design.table(records, len(group)), bending, chain.from_iterable(map(rows, parts))
