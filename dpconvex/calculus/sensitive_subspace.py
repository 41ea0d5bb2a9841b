"""The sensitive subspace: the directions of theta that the data can see.

The rows of `A_z`, over all records, lie in the span of their coefficient vectors, one for each leaf entry and monomial.  The
span is found coordinate block by coordinate block: two coordinates belong together if a coefficient vector touches both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.polynomial import Polynomial, concatenate, numbered_rows, significant
from dpconvex.core.ranks import numerical_rank, rank_tolerance

__all__ = ["sensitive_basis", "settled"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

# Factors of coefficient vectors that agree to so many binary digits are one direction, but for rounding.
SAME_BITS = 48
# Columns with so few entries are compared by sorting, all at once; there may be very many of them.
SHORT = 8


def sensitive_basis(leaves: Sequence[Polynomial], dim: int) -> sp.csc_array:
    """Return an orthonormal basis of a subspace that contains every row of every leaf, for every record."""
    columns = coefficient_vectors(leaves, dim)
    if columns.shape[1] == 0:
        return sp.csc_array((dim, 0))
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
    known: dict[tuple[tuple[int, ...], bytes], Array] = {}
    data, rows, places = [], [], []
    width = 0
    for k in range(count):
        first, last = (int(column_ends[k - 1]) if k else 0), int(column_ends[k])
        if first == last:
            continue
        index = order_rows[(row_ends[k - 1] if k else 0) : row_ends[k]]
        block = np.zeros((len(index), last - first))
        terms = slice(columns.indptr[first], columns.indptr[last])
        place = np.repeat(np.arange(last - first), np.diff(columns.indptr[first : last + 1]))
        block[position[columns.indices[terms]], place] = columns.data[terms]
        # Coefficient vectors are compared at unit length, so that a small feature is still a feature.
        block = np.ldexp(block, -np.frexp(np.abs(block).max(axis=0))[1])
        block = block / np.linalg.norm(block, axis=0)
        key = (block.shape, significant(block, SAME_BITS).tobytes())
        if key not in known:
            known[key] = settled(span(block))
        basis = known[key]
        rows.append(np.repeat(index, basis.shape[1]))
        places.append(np.tile(width + np.arange(basis.shape[1]), len(index)))
        data.append(basis.ravel())
        width += basis.shape[1]
    return sp.csc_array((np.concatenate(data), (np.concatenate(rows), np.concatenate(places))), shape=(dim, width))


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
        index, value = matrix.indices[terms], significant(data / data[:, :1], SAME_BITS)
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
