"""The sensitive subspace: the directions of theta that the data can see.

The rows of `A_z`, over all records, lie in the span of their coefficient vectors, one for each leaf entry and monomial.  The
span is found coordinate block by coordinate block: two coordinates belong together if a coefficient vector touches both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.polynomial import Polynomial

__all__ = ["sensitive_basis", "settled"]

Index = NDArray[np.int64]

# Coefficient vectors are compared at unit length, so that a small feature is still a feature; singular values below this
# fraction of the largest are rounding.  Erring on the large side of the rank only adds noise, so the fraction is small.
RANK_TOLERANCE = 1e-10


def sensitive_basis(leaves: Sequence[Polynomial], dim: int) -> sp.csc_array:
    """Return an orthonormal basis of a subspace that contains every row of every leaf, for every record.

    Parameters
    ----------
    leaves : sequence of Polynomial
        All affine leaves of the loss, for all labels.
    dim : int
        Dimension of the parameter space.

    Returns
    -------
    sparse array, shape (dim, p)
        Orthonormal columns; p is the dimension in which noise is drawn.
    """
    columns = coefficient_vectors(leaves, dim)
    if columns.shape[1] == 0:
        return sp.csc_array((dim, 0))
    count, label = sp.csgraph.connected_components(
        sp.block_array([[None, columns], [columns.T, None]], format="csr"), directed=False
    )
    owner, group = label[:dim], label[dim:]
    order_rows, order_columns = np.argsort(owner, kind="stable"), np.argsort(group, kind="stable")
    row_ends, column_ends = (
        np.cumsum(np.bincount(owner, minlength=count)),
        np.cumsum(np.bincount(group, minlength=count)),
    )
    known: dict[bytes, NDArray[np.float64]] = {}
    data, rows, places = [], [], []
    width = 0
    for k in range(count):
        members = order_columns[(column_ends[k - 1] if k else 0) : column_ends[k]]
        if len(members) == 0:
            continue
        index = order_rows[(row_ends[k - 1] if k else 0) : row_ends[k]]
        block = columns[:, members][index].toarray()
        block = block / np.linalg.norm(block, axis=0)
        key = np.round(block, 12).tobytes() + str(block.shape).encode()
        if key not in known:
            vectors, values, _ = np.linalg.svd(block, full_matrices=False)
            known[key] = settled(vectors[:, values > RANK_TOLERANCE * values[0]])
        basis = known[key]
        rows.append(np.repeat(index, basis.shape[1]))
        places.append(np.tile(width + np.arange(basis.shape[1]), len(index)))
        data.append(basis.ravel())
        width += basis.shape[1]
    return sp.csc_array((np.concatenate(data), (np.concatenate(rows), np.concatenate(places))), shape=(dim, width))


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
    blocks = []
    for leaf in leaves:
        part = leaf.part(with_theta=True)
        if len(part.entry) == 0:
            continue
        labels = np.concatenate([part.entry[:, None], part.monomial], axis=1)
        _, column = np.unique(labels, axis=0, return_inverse=True)
        column = column.ravel()
        blocks.append(sp.csc_array((part.coefficient, (part.coordinate, column)), shape=(dim, int(column.max()) + 1)))
    if not blocks:
        return sp.csc_array((dim, 0))
    return distinct_columns(sp.csc_array(sp.hstack(blocks, format="csc")))


def distinct_columns(matrix: sp.csc_array) -> sp.csc_array:
    """Drop repeated columns (the same direction with the same entries)."""
    matrix.sort_indices()
    seen: dict[bytes, int] = {}
    for k in range(matrix.shape[1]):
        a, b = matrix.indptr[k], matrix.indptr[k + 1]
        if a < b:
            lead = matrix.data[a]
            key = matrix.indices[a:b].tobytes() + np.round(matrix.data[a:b] / lead, 12).tobytes()
            seen.setdefault(key, k)
    return sp.csc_array(matrix[:, list(seen.values())])
