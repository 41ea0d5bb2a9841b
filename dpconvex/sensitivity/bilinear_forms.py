"""Ranges of bilinear forms ``m(z)' P m(z')`` in the monomials of one or two records, for inner products of gradients."""

import math
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.data.columns import dense
from dpconvex.expressions.expansion import RecordVariables
from dpconvex.expressions.polynomial import numbered_rows
from dpconvex.numerics import EPSILON, Interval

Block: TypeAlias = sp.csr_array | NDArray[np.float64]

SMALL, LARGEST_DENSE = 100, 1500
ALIKE = 1e-12  # Diagonal entries that agree to this fraction count as equal


def form_range(form: sp.csr_array, monomial: NDArray[np.int64], bases: RecordVariables, same: bool) -> Interval:
    """Return the range of ``m(z)' P m(z')`` over the record's domain, with z' = z if `same`, block by block.

    A block between two types of monomials is bounded by inner products if it is a multiple of the identity, and otherwise by
    eigenvalues, or by singular values and norms. Scalar fields keep signs.
    """
    total = Interval(0.0, 0.0)
    table = sp.coo_array(form)
    if not table.nnz:
        return total
    used, place = np.unique(np.concatenate(table.coords), return_inverse=True)
    row, column = place.reshape(2, -1)
    monomial = monomial[used]
    weight = np.sqrt(bases.multiplicity(monomial))
    sparse = sp.csr_array((table.data / (weight[row] * weight[column]), (row, column)), shape=(len(used), len(used)))
    # Small matrices are faster dense.
    scaled: Block = sparse.toarray() if len(used) <= SMALL else sparse
    kinds = bases.kinds(monomial)
    size = np.array([base.size for base in bases.bases])
    single = np.append(size == 1, True)[np.append(bases.owner, -1)]
    longer = {kind: tuple(b for b in kind if size[b] > 1) for kind in kinds}
    for first, rows in kinds.items():
        for second, columns in kinds.items():
            block = scaled[rows][:, columns]
            if not (block.any() if isinstance(block, np.ndarray) else block.nnz):
                continue
            multiple = identity_factor(block) if first == second and len(rows) == tensor_size(first, bases) else None
            if multiple is not None:
                for b in set(first):
                    ends = bases.bases[b].squared if same else bases.bases[b].paired
                    multiple = multiple * Interval(*ends).power(first.count(b))
                total = total + multiple
                continue
            # A few roundings for each factor of a monomial, and for the decomposition; constants are exact.
            room = EPSILON * (8 * (len(first) + len(second)) + (max(block.shape) if first or second else 0))
            kind = longer[first]
            if kind == longer[second] and (same or not kind):
                # Places of rows and columns among the monomials of the longer fields.
                rest = np.sort(np.where(single[monomial], -1, monomial)[np.concatenate([rows, columns])], axis=1)
                distinct, place = numbered_rows(rest)
                entries = sp.coo_array(block)
                places = place[: len(rows)][entries.coords[0]], place[len(rows) :][entries.coords[1]]
                low, high = eigenvalue_range(sp.csr_array((entries.data, places), shape=(len(distinct),) * 2))
                # The least norm holds for a whole tensor power of the record; a part of it can vanish.
                whole = len(distinct) == tensor_size(kind, bases)
                least, most = (math.prod(bases.bases[b].squared[end] for b in kind) for end in (0, 1))
                factor = Interval(least * (1 - room) if whole else 0.0, most * (1 + room))
                for side in (first + second,) if same else (first, second):
                    for b in (b for b in set(side) if size[b] == 1):
                        one = Interval(bases.bases[b].lower[0], bases.bases[b].upper[0])
                        factor = factor * one.power(side.count(b))
                total = total + Interval(low, high) * factor
            else:
                bound = singular_bound(block) * math.prod(bases.bases[b].norm for b in first + second) * (1 + room)
                total = total + Interval(-bound, bound)
    return total


def identity_factor(block: Block) -> Interval | None:
    """Return c for a block that equals c I up to rounding; None for others."""
    values = block.diagonal()
    if not is_diagonal(block) or np.ptp(values) > ALIKE * np.abs(values).max():
        return None
    return Interval(float(values.min()), float(values.max()))


def tensor_size(kind: tuple[int, ...], bases: RecordVariables) -> int:
    """Return the number of distinct monomials of a type."""
    size = 1
    for base in set(kind):
        power = kind.count(base)
        size *= math.comb(bases.bases[base].size + power - 1, power)
    return size


def eigenvalue_range(block: Block) -> tuple[float, float]:
    """Return lower and upper bounds on the eigenvalues of the symmetric part of a block."""
    symmetric = (block + block.T) / 2
    if is_diagonal(symmetric):
        diagonal = symmetric.diagonal()
        return float(diagonal.min()), float(diagonal.max())
    if symmetric.shape[0] <= LARGEST_DENSE:
        values = np.linalg.eigvalsh(dense(symmetric))
        room = EPSILON * len(values) * float(np.abs(values).max())
        return float(values[0]) - room, float(values[-1]) + room
    size = singular_bound(symmetric)
    return -size, size


def singular_bound(block: Block) -> float:
    if is_diagonal(block):
        return float(np.abs(block.diagonal()).max(initial=0.0))
    if max(block.shape) <= LARGEST_DENSE:
        return float(np.linalg.norm(dense(block), 2))
    magnitude = abs(block)
    return float(np.sqrt(magnitude.sum(axis=0).max() * magnitude.sum(axis=1).max()))


def is_diagonal(block: Block) -> bool:
    row, column = block.nonzero()
    return bool((row == column).all())
