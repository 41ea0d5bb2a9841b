"""The sensitive subspace: the directions of theta that the data can see.

The rows of `A_z`, over all records, lie in the span of their coefficient vectors, one for each leaf entry and monomial.  The
span is found coordinate block by coordinate block: two coordinates belong together if a coefficient vector touches both.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.polynomial import Polynomial, concatenate, numbered_rows
from dpconvex.core.ranks import numerical_rank, rank_tolerance

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# Columns with so few entries are compared by sorting, all at once; there may be very many of them.
SHORT = 8
# Differences of more coordinates than this get a basis of few entries.
LARGE = 64


@dataclass(frozen=True, eq=False)
class Part:
    """The part of the sensitive subspace on some coordinates that no coefficient vector connects with others.

    Attributes
    ----------
    coordinates : ndarray of int, shape (k,)
    basis : ndarray or sparse array, shape (k, p)
        Orthonormal columns.
    sums_to_zero : bool
        Whether it is all vectors whose entries add up to 0.
    """

    coordinates: Index
    basis: Any
    sums_to_zero: bool

    @property
    def kind(self) -> str | None:
        """What it is, if that does not depend on the order of the coordinates."""
        return "sums to zero" if self.sums_to_zero else "whole" if np.equal(*self.basis.shape) else None


def sensitive_parts(leaves: Sequence[Polynomial], dim: int) -> list[Part]:
    """Return the parts of a subspace that contains every row of every leaf, for every record."""
    columns = coefficient_vectors(leaves, dim)
    if columns.shape[1] == 0:
        return []
    count, label = sp.csgraph.connected_components(
        sp.block_array([[None, columns], [columns.T, None]], format="csr"), directed=False
    )
    owner, group = label[:dim], label[dim:]
    order_rows, order_columns = np.argsort(owner, kind="stable"), np.argsort(group, kind="stable")
    row_ends = np.cumsum(np.bincount(owner, minlength=count))
    column_ends = np.cumsum(np.bincount(group, minlength=count))
    position = np.empty(dim, dtype=np.int64)  # of each coordinate among those of its component
    position[order_rows] = np.arange(dim) - np.concatenate([[0], row_ends])[owner[order_rows]]
    columns = sp.csc_array(columns[:, order_columns])
    known: dict[Hashable, Any] = {}
    parts = []
    for k in range(count):
        first, last = (int(column_ends[k - 1]) if k else 0), int(column_ends[k])
        if first == last:
            continue
        index = order_rows[(row_ends[k - 1] if k else 0) : row_ends[k]]
        terms = slice(columns.indptr[first], columns.indptr[last])
        lengths = np.diff(columns.indptr[first : last + 1])
        pairs = (
            bool((lengths == 2).all())
            and not np.add.reduceat(columns.data[terms], np.arange(0, 2 * (last - first), 2)).any()
        )
        if pairs and len(index) > LARGE:
            key: Hashable = len(index)
            if key not in known:
                known[key] = differences(len(index))
        else:
            block = np.zeros((len(index), last - first))
            block[position[columns.indices[terms]], np.repeat(np.arange(last - first), lengths)] = columns.data[terms]
            # Coefficient vectors are compared at unit length, so that a small feature is still a feature.
            block = np.ldexp(block, -np.frexp(np.abs(block).max(axis=0))[1])
            block = block / np.linalg.norm(block, axis=0)
            key = (block.shape, block.tobytes())
            if key not in known:
                known[key] = settled(span(block))
        # Differences of two coordinates that connect all of them span all vectors that add up to 0.
        parts.append(Part(index, known[key], pairs and known[key].shape[1] == len(index) - 1))
    return parts


def joined(parts: Sequence[Part], dim: int) -> sp.csc_array:
    """Return the orthonormal basis of a space of parts, shape (dim, p)."""
    tables = [sp.coo_array(part.basis) for part in parts]
    widths = np.cumsum([0, *(table.shape[1] for table in tables)])
    empty = np.zeros(0, dtype=np.int64)
    rows = [part.coordinates[table.coords[0]] for part, table in zip(parts, tables, strict=True)]
    columns = [table.coords[1] + start for table, start in zip(tables, widths, strict=False)]
    data = [np.zeros(0), *(table.data for table in tables)]
    places = np.concatenate([empty, *rows]), np.concatenate([empty, *columns])
    return sp.csc_array((np.concatenate(data), places), shape=(dim, int(widths[-1])))


def sensitive_basis(leaves: Sequence[Polynomial], dim: int) -> sp.csc_array:
    """Return an orthonormal basis of a subspace that contains every row of every leaf, for every record."""
    return joined(sensitive_parts(leaves, dim), dim)


def differences(count: int) -> sp.csc_array:
    """Return an orthonormal basis of all vectors whose entries add up to 0, shape (count, count - 1): Haar's, of few entries.

    >>> basis = differences(5)
    >>> bool(np.allclose((basis.T @ basis).toarray(), np.eye(4))), bool(np.allclose(basis.sum(axis=0), 0))
    (True, True)
    """
    rows, columns, data = [], [], []
    waiting, column = [(0, count)], 0
    while waiting:
        first, last = waiting.pop()
        middle = (first + last) // 2
        left, right = middle - first, last - middle
        if left and right:
            rows.append(np.arange(first, last))
            columns.append(np.full(last - first, column))
            size = np.sqrt(left * right / (left + right))
            data.append(np.repeat([size / left, -size / right], [left, right]))
            waiting += [(first, middle), (middle, last)]
            column += 1
    places = np.concatenate(rows), np.concatenate(columns)
    return sp.csc_array((np.concatenate(data), places), shape=(count, count - 1))


def is_invariant(parts: Sequence[Part], orders: Sequence[Index]) -> bool:
    """Whether permutations of the coordinates are seen to take each part to a part of the same kind."""
    known = {(part.kind, frozenset(part.coordinates.tolist())) for part in parts}
    return all(part.kind is not None for part in parts) and all(
        (part.kind, frozenset(order[part.coordinates].tolist())) in known for part in parts for order in orders
    )


class Projection:
    """Orthogonal projection on the sensitive subspace, on the last axis.

    With it the solved program sees the data through that subspace by construction, not up to the rounding of `A_z`.  Of
    large parts of vectors that add up to 0 the mean is taken off; others are multiplied with a matrix.

    Attributes
    ----------
    reach : float
        The largest product, over the rows, of the number of terms and the sum of their absolute values.
    """

    def __init__(self, parts: Sequence[Part], dim: int) -> None:
        large = [part for part in parts if part.sums_to_zero and len(part.coordinates) > LARGE]
        others = [part for part in parts if not (part.sums_to_zero and len(part.coordinates) > LARGE)]
        basis = joined(others, dim)
        self.matrix = sp.csr_array(basis @ basis.T)
        self.reach = float((np.diff(self.matrix.indptr) * abs(self.matrix).sum(axis=1)).max(initial=0.0))
        self._kept = None
        if large:
            self._kept = np.zeros(dim)
            ones = [Part(part.coordinates, np.full((len(part.coordinates), 1), 1.0), False) for part in large]
            for part in ones:
                self._kept[part.coordinates] = 1.0
            self._sums = joined(ones, dim)
            self._counts = np.asarray(self._sums.sum(axis=0)).ravel()
            # A mean of k numbers is rounded k times, and has a k-th of the sum of their sizes; the difference is rounded once.
            self.reach = max(self.reach, float(self._counts.max()) + 4)

    def __call__(self, theta: Array) -> Array:
        found = np.asarray((self.matrix @ theta.T).T)
        if self._kept is None:
            return found
        means = (self._sums.T @ theta.T).T / self._counts
        return np.asarray(found + (theta * self._kept - (self._sums @ means.T).T))


def span(block: Array) -> Array:
    """Return an orthonormal basis of a space that contains all columns, each of length 1.

    A coordinate that is small in all columns counts like any other, so the rank is that of the block with its rows, too,
    brought to one size.  If directions then show that are lost beside the larger ones, the whole block is taken: it is never
    wrong to cover more.
    """
    vectors, values, _ = np.linalg.svd(block, full_matrices=False)
    kept = values > rank_tolerance(block.shape) * values[0]
    return vectors[:, kept] if int(kept.sum()) == numerical_rank(block) else np.eye(len(block))


def settled(basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the one orthonormal basis of the same space that is nearest to fixed vectors, shape (rows, p).

    Equal singular values leave the singular vectors undetermined, and another processor rounds to others.  Any basis serves
    privacy, but with this one a seed draws the same noise everywhere.  It is the orthogonal polar factor (N. Higham, "Computing
    the polar decomposition", 1986, theorem 2.1), unique because fixed vectors of no pattern are in general position.
    """
    rows, p = basis.shape
    fixed = np.cos(np.outer(np.arange(1, rows + 1), np.arange(1, p + 1)))
    left, _, right = np.linalg.svd(basis.T @ fixed)
    return np.asarray(basis @ (left @ right))


def coefficient_vectors(leaves: Sequence[Polynomial], dim: int) -> sp.csc_array:
    """Return the distinct coefficient vectors of all leaf entries and monomials as columns, shape (dim, vectors)."""
    offsets = np.cumsum([0, *(leaf.size for leaf in leaves)])
    parts = [leaf.part(with_theta=True) for leaf in leaves]
    if not any(len(part.entry) for part in parts):
        return sp.csc_array((dim, 0))
    joined = [part.entry + offset for part, offset in zip(parts, offsets, strict=False)]
    terms = concatenate(parts, (int(offsets[-1]),), joined)
    _, monomial = numbered_rows(terms.monomial)
    _, column = np.unique(terms.entry * (int(monomial.max()) + 1) + monomial, return_inverse=True)
    table = (terms.coefficient, (terms.coordinate, column))
    return distinct_columns(sp.csc_array(table, shape=(dim, int(column.max()) + 1)))


def distinct_columns(matrix: sp.csc_array) -> sp.csc_array:
    """Drop repeated columns (the same direction with the same entries)."""
    matrix.sort_indices()
    lengths = np.diff(matrix.indptr)
    chosen = []
    for length in np.unique(lengths[lengths > 0]):
        members = np.flatnonzero(lengths == length)
        terms = matrix.indptr[members][:, None] + np.arange(length)
        data = matrix.data[terms]
        index, value = matrix.indices[terms], data / data[:, :1]
        if length <= SHORT:
            keys = np.concatenate([index, value], axis=1)
            order = np.lexsort(keys.T)
            repeated = (np.diff(keys[order], axis=0) == 0).all(axis=1)
            chosen.append(members[order[np.append(True, ~repeated)]])
        else:
            seen: dict[bytes, int] = {}
            for k, one, other in zip(members, index, value, strict=True):
                seen.setdefault(one.tobytes() + other.tobytes(), int(k))
            chosen.append(np.array(list(seen.values()), dtype=np.int64))
    return sp.csc_array(matrix[:, np.sort(np.concatenate(chosen))])
