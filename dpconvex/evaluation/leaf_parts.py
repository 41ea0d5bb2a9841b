"""Leaves of very many labels as sums of parts that the labels share.

The leaves ``x @ W - x @ W[:, y]`` of C labels have C^2 entries, of C^2 different functions, and two parts: the scores, which all
labels share, and one score.  Taken apart they have 2 C entries, of which C are different, and a leaf is a table of few entries
times these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.arrangement import BROADCAST
from dpconvex.core.atoms.sums import ADD, NEGATE
from dpconvex.core.expression import Expression

Indices = NDArray[np.int64]


class Added(NamedTuple):
    """A part of a leaf: a sign, and for each entry of the leaf, in column order, the entry of an expression."""

    sign: float
    expression: Expression
    places: Indices


def added_parts(leaf: Expression) -> list[Added]:
    """Take a leaf apart into what it is a sum of."""
    if leaf.atom is ADD:
        return [part for argument in leaf.args for part in added_parts(argument)]
    if leaf.atom is NEGATE:
        return [Added(-part.sign, *part[1:]) for part in added_parts(leaf.args[0])]
    if leaf.atom is BROADCAST:
        (inner,) = leaf.args
        numbers = np.broadcast_to(np.arange(inner.size).reshape(inner.shape, order="F"), leaf.shape)
        places = numbers.ravel(order="F")
        return [Added(part.sign, part.expression, part.places[places]) for part in added_parts(inner)]
    return [Added(1.0, leaf, np.arange(leaf.size))]


def table_of(leaves: Sequence[Expression], start: dict[Expression, int], width: int) -> sp.csr_array:
    """Return what entries of parts, numbered from `start`, the entries of some leaves are sums of, shape (entries, width)."""
    rows, columns, signs, first = [], [], [], 0
    for leaf in leaves:
        for part in added_parts(leaf):
            rows.append(first + np.arange(leaf.size))
            columns.append(start[part.expression] + part.places)
            signs.append(np.full(leaf.size, part.sign))
        first += leaf.size
    places = np.concatenate(rows), np.concatenate(columns)
    table = sp.csr_array(sp.coo_array((np.concatenate(signs), places), shape=(first, width)))
    table.eliminate_zeros()
    return table


def distinct_rows(rows: sp.csr_array) -> tuple[sp.csr_array, sp.csr_array] | None:
    """Write rows as multiples (0 or 1) of distinct ones that share no column; None if they are not of this kind."""
    rows = rows.copy()
    rows.sum_duplicates()
    known: dict[tuple[bytes, bytes], int] = {}
    first: list[int] = []
    place: list[int] = []
    number: list[int] = []
    for k, (a, b) in enumerate(zip(rows.indptr[:-1], rows.indptr[1:], strict=True)):
        if a == b:
            continue
        own = known.setdefault((rows.indices[a:b].tobytes(), rows.data[a:b].tobytes()), len(known))
        if own == len(first):
            first.append(k)
        place.append(k)
        number.append(own)
    chosen = sp.csr_array(rows[first])
    if not first or np.bincount(chosen.indices).max() > 1:
        return None
    return chosen, sp.csr_array((np.ones(len(place)), (place, number)), shape=(rows.shape[0], len(first)))
