"""Sums of second derivatives over records, or over one in so many: Hessians, and what models of them are made of."""

from collections.abc import Iterator
from itertools import chain

import numpy as np

from dpconvex.expressions.evaluate import STEP
from dpconvex.sums.engine import Records, RecordSums, SumPlan
from dpconvex.util.arrays import Array, Indices


class HessianSums(RecordSums):
    """`RecordSums`, and second derivatives by complex steps of the slopes."""

    def hessian(self, theta: Array, every: int) -> Array:
        """Hessian of the sum of the losses, shape (dim, dim), from one in so many records."""
        coefficients = self._coefficients(theta)
        forms, monomials = coefficients.shape

        def one(number: int, block: Records, plan: SumPlan) -> Array:
            total = np.zeros((forms, monomials, forms, monomials))
            weight, table, bending, bends = self._bends(coefficients, number, block, plan, every)
            table = table[bending]
            for k, bent in enumerate(bends):
                for other in range(k, forms):
                    if bent[other].any():
                        total[other, :, k] = table.T @ (bent[other][:, None] * table)
                        total[k, :, other] = total[other, :, k].T
            return total * weight

        whole = np.asarray(sum(self._each(one))).reshape(forms * monomials, -1)
        return np.asarray(self.form.map.T @ np.asarray(self.form.map.T @ whole).T)

    def moments(self, theta: Array, every: int) -> Array:
        """Sum the Hessians by the forms, and the products of monomials, from one in so many records, as one vector."""
        coefficients = self._coefficients(theta)

        def one(number: int, block: Records, plan: SumPlan) -> Array:
            weight, table, _, bends = self._bends(coefficients, number, block, plan, every)
            bend = np.array([bent.sum(axis=1) for bent in bends])
            return weight * np.concatenate([((bend + bend.T) / 2).ravel(), (table.T @ table).ravel()])

        return np.asarray(sum(self._each(one)))

    def factors(self, theta: Array, every: int) -> tuple[Array, Array]:
        """Return monomials and Hessians by the forms of one in so many records, if they bend.

        The shapes are (m, monomials) and (m, forms, forms).
        """
        coefficients = self._coefficients(theta)

        def one(number: int, block: Records, plan: SumPlan) -> tuple[Array, Array]:
            weight, table, bending, bends = self._bends(coefficients, number, block, plan, every)
            bent = weight / 2 * np.stack(list(bends))
            both = (bent + bent.swapaxes(0, 1)).transpose(2, 0, 1)
            return table[bending].astype(np.float32), both.astype(np.float32, order="C")

        tables, bends = zip(*self._each(one), strict=True)
        return np.concatenate(tables), np.concatenate(bends)

    def _bends(
        self, coefficients: Array, number: int, block: Records, plan: SumPlan, every: int
    ) -> tuple[float, Array, Indices, Iterator[Array]]:
        """Return how many records each of some stands for, their monomials, which ones bend, and Hessians of these, by rows."""
        size, group = plan.size, self.batch.group[number * self._step :][: plan.size : every]
        if every > 1:
            block = {name: column[::every] for name, column in block.items()}
        forms, axes = self.design.forward(block, coefficients), np.eye(len(coefficients))
        bending = np.arange(len(group))
        apart = bool(self.design.columns)  # whether records have forms of their own
        forms = np.broadcast_to(forms, (len(forms), len(group))) if apart else forms
        labels = [label for share in plan.shares for label, _ in share.parts]
        read = {name for label in labels for name in (block if label.offset.any() else label.lowered.fields)}

        def along(some: Array) -> Array:
            """Return the change of slopes of those that bend along some directions, (forms, directions, records)."""
            chosen, here = np.tile(bending, len(some)), bending if apart else slice(None)
            if not len(chosen):  # programs are for one record at least
                return np.zeros((len(axes), len(some), 0))
            moved = np.asarray(forms[:, None, here] + 1j * STEP * some.T[:, :, None]).reshape(len(axes), -1)
            wide = {name: block[name][chosen] for name in read}
            bent = np.imag(self._slopes(moved, wide, self._plan(group[chosen]))[1]) / STEP
            return np.asarray(bent.reshape(len(axes), len(some), len(bending)))

        if len(axes) > 2 and apart:
            bending = np.flatnonzero(along(np.cos(np.arange(len(axes)))[None]).any(axis=(0, 1)))
        at_once = size // max(len(bending), 1) if apart else 1  # so that they fill a block
        starts = range(0, len(axes), at_once)
        rows = chain.from_iterable(along(axes[k : k + at_once]).swapaxes(0, 1) for k in starts)
        return size / len(group), self.design.table(block, len(group)), bending, rows
