"""Sums of records' moments, block by block: two tables of monomials and one matrix product for each kind."""

from collections.abc import Iterator

import numpy as np

from dpconvex.data.batch import Batch
from dpconvex.data.columns import blocks, dense, flattened
from dpconvex.expressions.polynomial import numbered_rows
from dpconvex.sensitivity.moments import Moments
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.summation import MOMENT_BLOCK


def moment_sums(moments: Moments, batch: Batch) -> Array:
    """Return the sums of the moments of all records, shape (moments,)."""
    found = batch.added_up(moments_of, batch.share(moments))
    return np.zeros(moments.count) if found is None else np.asarray(found)


def moments_of(batch: Batch, moments: Moments) -> Array:
    totals = [np.zeros((len(kind.monomials), kind.patterns.shape[1])) for kind in moments.kinds]
    # Each monomial is the product of a monomial of the first table and one of the second.
    halves = [np.split(table, [table.shape[1] // 2], axis=1) for table in (kind.monomials for kind in moments.kinds)]
    tables = [(*numbered_rows(first), *numbered_rows(second)) for first, second in halves]
    for scalars, group in scalar_blocks(batch):
        for kind, total, (first, row, second, column) in zip(moments.kinds, totals, tables, strict=True):
            one, other = products(scalars, first), products(scalars, second)
            for y in np.unique(group):
                own = group == y
                total += (one[own].T @ other[own])[row, column][:, None] * kind.patterns[y]
    sums = ((total * kind.factors[:, None]).ravel() for kind, total in zip(moments.kinds, totals, strict=True))
    return np.concatenate([np.zeros(0), *sums])


def record_moments(moments: Moments, batch: Batch) -> Array:
    """Return the moments of each record, shape (records, moments), for attacks."""
    parts = []
    for scalars, group in scalar_blocks(batch):
        tables = [
            (products(scalars, kind.monomials) * kind.factors)[:, :, None] * kind.patterns[group][:, None, :]
            for kind in moments.kinds
        ]
        parts.append(np.concatenate([table.reshape(len(group), -1) for table in tables], axis=1))
    return np.concatenate([np.zeros((0, moments.count)), *parts])


def scalar_blocks(batch: Batch) -> Iterator[tuple[Array, Indices]]:
    """Yield the scalars of a block of records, with a last column of ones, and their combinations of discrete fields."""
    columns = [blocks(column, MOMENT_BLOCK) for column in batch.fields.values()]
    for start in range(0, batch.size, MOMENT_BLOCK):
        group = batch.group[start : start + MOMENT_BLOCK]
        parts = [dense(flattened(next(column))).reshape(len(group), -1) for column in columns]
        yield np.concatenate([*parts, np.ones((len(group), 1))], axis=1), group


def products(scalars: Array, monomials: Indices) -> Array:
    """Return the monomials of all records, shape (records, monomials)."""
    result = scalars[:, monomials[:, 0]] if monomials.shape[1] else scalars[:, -1:]
    for column in monomials.T[1:]:
        result = result * scalars[:, column]
    return np.asarray(result)
