"""Exact sums over rows that are clipped together: all rows of a person's records, or of scores that share parameters."""

import math
from typing import Any

import numpy as np

from dpconvex.data.columns import dense
from dpconvex.numerics import INSIDE
from dpconvex.sums.exact_rows import MATRIX_BITS, ExactRows, split_integers
from dpconvex.sums.exact_sums import LARGEST, LONGEST_BITS, RecordBlock, SumQuery, Sums, gradient_sum
from dpconvex.sums.linear_scores import ROW_BITS
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.summation import BLOCK

# Bits of squared lengths: at the bound, and at most; of a person's gradient at the bound; of a record's gradient at most.
WHOLE_BITS, LONG_BITS, FINER_BITS, SUMMED_BITS = 38, 39, 26, 38


def person_sums(part: RecordBlock, people: Indices) -> Sums:
    """Sum over whole people, with each person's records consecutive and each person's sum clipped to the bound.

    A person's slopes become integers of up to 21 bits, so that the sum of products with rows is exact.  Its length in the
    metric is exact but for some rounding.  One factor then shortens all slopes of the person.  Rounding them towards 0 moves
    the sum by at most the sum of leverages, times the root of the number of slopes; the bound is reduced by this.
    """
    query, count, leverage = part.query, part.block.count, part.query.leverage
    assert leverage is not None
    units, levels = part.units(), whole_rows(query.rows, part.column)[: count * query.rows.each]
    first = np.flatnonzero(np.diff(people, prepend=-1))
    counts = np.diff(first, append=count)  # independent of other people, even of the number of their records
    longest = np.maximum.reduceat(np.sqrt(np.einsum("kn,kn->n", units, units))[:count], first)
    finer = 2.0**LONGEST_BITS * INSIDE / np.maximum(longest, 1 / LARGEST) / np.maximum(counts / BLOCK, 1.0)
    units = np.trunc(units[:, :count] * np.repeat(finer, counts))
    square, plain = np.zeros((2, len(first)))
    each = along_rows(query, levels.reshape(count, query.rows.each, -1), units)
    for column in range(0, each.shape[1], query.rows.count):
        # The same order of numbers for one person and for many, so that sums of a person's squares have the same bits.
        own = np.ascontiguousarray(np.add.reduceat(each[:, column : column + query.rows.count], first))
        square += (integer_transform(leverage.matrix, own) ** 2).sum(axis=1)
        plain += (own**2).sum(axis=1)
    lengths, rounding = np.sqrt(square), float(np.linalg.norm(leverage.matrix)) * 2.0**-48
    room = np.add.reduceat(part.leverages[:count], first) * math.sqrt(len(units)) + rounding * np.sqrt(plain)
    share = np.maximum(query.bound * INSIDE - room, 0.0) / np.maximum(lengths, 1.0)
    share = np.repeat(np.minimum(np.minimum(share, 1.0), 1 / finer), counts)
    gradient = split_integers(gradient_sum(query, levels, np.trunc(units * share)))
    return part.sums(gradient, lengths / finer, np.add.reduceat(units[0], first) > 0)


def whole_rows(rows: ExactRows, column: Any) -> Array:
    """Return dense rows of integers with the constant, in multiples of the grid, shape (n * each, count)."""
    found = dense(rows.read(column)) / rows.grid
    return np.pad(found, ((0, 0), (0, 1)), constant_values=rows.constant) if rows.constant else found


def integer_transform(matrix: Array, integers: Array) -> Array:
    """Return ``matrix @ row`` for rows of integers up to 2^53: products of parts are exact, and added in order."""
    bits = 53 - MATRIX_BITS - math.ceil(math.log2(matrix.shape[1] + 1))
    scale, total = 1.0, np.zeros((len(integers), len(matrix)))
    while integers.any():
        high = np.trunc(integers / 2.0**bits)
        total += scale * ((integers - high * 2.0**bits) @ matrix.T)
        integers, scale = high, scale * 2.0**bits
    return total


def vector_sums(part: RecordBlock, people: Indices) -> Sums:
    """Return the sum of ``t t'`` over people, or counts of people by length, after clipping all t of a person by their trace."""
    query, found, leverage = part.query, part.query.nothing, part.query.leverage
    assert leverage is not None
    turned = leverage.turned(part.column)[: len(people) * query.rows.each]
    turned = turned.reshape(len(people), query.rows.each, -1)
    first, longest = np.flatnonzero(np.diff(people, prepend=-1)), query.longest
    if query.vectors == "gradients":
        # Sums of integers are exact: other people's records do not change their bits.
        fine = along_rows(query, turned, part.units()[:, : len(people)]) * (2.0**FINER_BITS / longest)
        fine = np.trunc(np.clip(np.nan_to_num(fine), -(2.0**SUMMED_BITS), 2.0**SUMMED_BITS))
        vectors, longest = [np.ascontiguousarray(np.add.reduceat(fine, first, axis=0))], 2.0**FINER_BITS
        first = np.arange(len(first))
    else:
        vectors = [along_rows(query, turned, root) for root in part.roots()]
    squares = np.zeros(len(vectors[0]))
    for own in vectors:
        for entry in own.T:  # one by one: the same order for one record and for many
            squares += entry**2
    squares = np.ceil(np.nan_to_num(squares * (2.0**WHOLE_BITS / longest**2)))
    own = np.minimum(squares, 2.0**LONG_BITS)
    totals = np.add.reduceat(own, first)  # integers, so the sums are exact
    share = np.repeat(np.minimum(1.0, 2.0**WHOLE_BITS / np.maximum(totals, 1.0)), np.diff(first, append=len(own)))
    scale = np.sqrt(share * (own / np.maximum(squares, 1.0))) * (2.0**ROW_BITS / longest * INSIDE)
    if not query.edges.size:
        for t in vectors:
            whole = np.trunc(np.nan_to_num(t * scale[:, None]))
            found.moment = found.moment + split_integers(whole.T @ whole)
        return found
    lengths = np.sqrt(totals / 2.0**WHOLE_BITS) * query.longest
    return part.sums(found.gradient, lengths, np.ones(len(lengths), dtype=bool))


def along_rows(query: SumQuery, turned: Array, units: Array) -> Array:
    """Return the sum over each record's rows of slope times row, by columns, shape (n, columns * count)."""
    if query.rows.jacobian is None:
        return np.asarray((units.T[:, :, None] * turned).reshape(len(turned), -1))
    total = np.zeros(turned[:, 0].shape)
    for own, rows in zip(units, turned.swapaxes(0, 1), strict=True):  # the same order for one record and for many
        total += own[:, None] * rows
    return total
