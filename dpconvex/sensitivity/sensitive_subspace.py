"""The sensitive subspace: the span of the coefficient vectors of all rows of `A_z`, by connected components."""

from collections.abc import Hashable, Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.expressions.polynomial import Polynomial, numbered_rows, stack_entries
from dpconvex.util.arrays import Array

ROUNDS = 8  # Rounds of scaling the rows and columns of a matrix


def basis_of(columns: sp.csc_array) -> sp.csc_array:
    """Return an orthonormal basis of a subspace that contains the given nonzero columns, component by component."""
    dim = columns.shape[0]
    graph = sp.block_array([[None, columns], [columns.T, None]], format="csr")
    label = sp.csgraph.connected_components(graph, directed=False)[1]
    order = np.argsort(label[dim:], kind="stable")
    columns, ends = sp.csc_array(columns[:, order]), np.searchsorted(label[dim:][order], np.arange(label.max() + 2))
    owners = np.argsort(label[:dim], kind="stable")
    rows = np.split(owners, np.searchsorted(label[:dim][owners], np.arange(1, label.max() + 1)))
    position = np.empty(dim, dtype=np.int64)  # of each coordinate within its component
    position[np.concatenate(rows)] = np.concatenate([np.arange(len(index)) for index in rows])
    known: dict[Hashable, sp.coo_array] = {}
    width, empty = 0, np.zeros(0, dtype=np.int64)
    parts = [(np.zeros(0), empty, empty)]
    for k in np.flatnonzero(np.diff(ends)):
        index, starts = rows[k], columns.indptr[ends[k] : ends[k + 1] + 1]
        data, places = (part[starts[0] : starts[-1]] for part in (columns.data, columns.indices))
        lengths = np.diff(starts)
        block = np.zeros((len(index), len(lengths)))
        block[position[places], np.repeat(np.arange(len(lengths)), lengths)] = data
        # Coefficient vectors are scaled to unit length, so that small features count.
        block = np.ldexp(block, -np.frexp(np.abs(block).max(axis=0))[1])
        block = block / np.linalg.norm(block, axis=0)
        key = (block.shape, block.tobytes())
        if key not in known:
            known[key] = sp.coo_array(nearest_basis(span(block)))
        part = known[key]
        parts.append((part.data, index[part.coords[0]], part.coords[1] + width))
        width += part.shape[1]
    data, row, column = (np.concatenate(one) for one in zip(*parts, strict=True))
    return sp.csc_array((data, (row, column)), shape=(dim, width))


class Projection:
    """Orthogonal projection on the sensitive subspace; `reach` is the largest number of terms times absolute sum of a row."""

    def __init__(self, basis: sp.csc_array) -> None:
        self.matrix = sp.csr_array(basis @ basis.T)
        self.reach = float((np.diff(self.matrix.indptr) * abs(self.matrix).sum(axis=1)).max(initial=0.0))

    def __call__(self, theta: Array) -> Array:
        return np.asarray((self.matrix @ theta.T).T)


def span(block: Array) -> Array:
    """Return an orthonormal basis of the span of unit columns; the identity if small coordinates would be lost."""
    # Reduce many columns to a square matrix first: right singular vectors are not needed.
    square = np.asarray(np.linalg.qr(block.T, mode="r")).T if block.shape[1] > len(block) else block
    vectors, values, _ = np.linalg.svd(square, full_matrices=False)
    kept = values > rank_tolerance(block.shape) * values[0]
    return vectors[:, kept] if int(kept.sum()) == numerical_rank(block) else np.eye(len(block))


def nearest_basis(basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the basis of the space nearest to fixed vectors (polar factor), so that a seed gives the same noise everywhere."""
    rows, p = basis.shape
    left, _, right = np.linalg.svd(basis.T @ np.cos(np.outer(np.arange(1, rows + 1), np.arange(1, p + 1))))
    return np.asarray(basis @ (left @ right))


def coefficient_vectors(leaves: Sequence[Polynomial], dim: int) -> sp.csc_array:
    """Return the distinct coefficient vectors of all leaf entries and monomials as columns, shape (dim, vectors)."""
    terms = stack_entries([leaf.part(with_theta=True) for leaf in leaves])
    if not len(terms.entry):
        return sp.csc_array((dim, 0))
    column = numbered_rows(np.column_stack([terms.entry, terms.monomial]))[1]
    shape = dim, int(column.max()) + 1
    return distinct_columns(sp.csc_array((terms.coefficient, (terms.coordinate, column)), shape=shape))


def distinct_columns(matrix: sp.csc_array) -> sp.csc_array:
    """Drop columns that are multiples of others, and differences of two entries that are sums of kept differences."""
    matrix.sort_indices()
    lengths, first = np.diff(matrix.indptr), [np.zeros(0, dtype=np.int64)]
    for length in np.unique(lengths[lengths > 0]):
        columns = np.flatnonzero(lengths == length)
        places = matrix.indptr[columns][:, None] + np.arange(length)
        data = matrix.data[places] / matrix.data[places[:, :1]]
        number = numbered_rows(np.concatenate([matrix.indices[places], data.view(np.int64)], axis=1))[1]
        distinct = np.unique(number, return_index=True)[1]
        if length == 2:  # Differences are edges of a graph: a spanning forest spans all, exactly
            apart = matrix.data[places[distinct]].sum(axis=1) == 0
            # SciPy before 1.16 builds graphs of no other type
            edges = matrix.indices[places[distinct[apart]]].T.astype(np.int32)
            turn = np.arange(1.0, apart.sum() + 1)
            graph = sp.csr_array((turn, tuple(edges)), shape=matrix.shape[:1] * 2)
            forest = sp.csgraph.minimum_spanning_tree(graph).data.astype(np.int64) - 1
            distinct = np.concatenate([distinct[~apart], distinct[apart][forest]])
        first.append(columns[distinct])
    return sp.csc_array(matrix[:, np.sort(np.concatenate(first))])


def rank_tolerance(shape: tuple[int, ...]) -> float:
    """Return the rank tolerance, relative to the largest singular value, of a matrix with correctly rounded entries."""
    return 4 * float(np.finfo(float).eps) * max(shape)


def numerical_rank(matrix: Array) -> int:
    """Return the rank of a matrix, independent of the scales of its rows and columns.

    >>> numerical_rank(np.array([[1.0, 1e-17], [1.0, 0.0]])), numerical_rank(np.array([[0.1, 0.3], [0.2, 0.6]]))
    (2, 1)
    """
    matrix = matrix[matrix.any(axis=1)][:, matrix.any(axis=0)]
    if not matrix.size:
        return 0
    for _ in range(ROUNDS):  # by powers of two, until the largest entry of each row and column is about 1
        for axis in (1, 0):
            matrix = np.ldexp(matrix, -np.frexp(np.abs(matrix).max(axis=axis, keepdims=True))[1])
    values = np.linalg.svd(matrix, compute_uv=False)
    return int((values > rank_tolerance(matrix.shape) * values[0]).sum())
