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

Kinds = dict[tuple[int, ...], NDArray[np.int64]]
Block: TypeAlias = sp.csr_array | NDArray[np.float64]

SMALL, LARGEST_DENSE = 100, 1500
ALIKE = 1e-12  # Diagonal entries that agree to this fraction count as equal


def form_range(form: sp.csr_array, monomial: NDArray[np.int64], bases: RecordVariables, same: bool) -> Interval:
    """Return the range of ``m(z)' P m(z')`` over the record's domain, with z' = z if `same`."""
    table = sp.coo_array(form)
    used, place = np.unique(np.concatenate(table.coords), return_inverse=True)
    if not table.nnz:
        return Interval(0.0, 0.0)
    row, column = place.reshape(2, -1)
    monomial = monomial[used]
    weight = np.sqrt(bases.multiplicity(monomial))
    sparse = sp.csr_array((table.data / (weight[row] * weight[column]), (row, column)), shape=(len(used), len(used)))
    # Small matrices are faster dense.
    scaled: Block = sparse.toarray() if len(used) <= SMALL else sparse
    kinds = bases.kinds(monomial)
    largest = np.max(np.abs(bases.monomial_range(monomial)), axis=0)
    magnitude = float(np.abs(table.data) @ (largest[row] * largest[column]))
    result = spectral_range(scaled, monomial, kinds, bases, same)
    isotropic = isotropic_coefficients(scaled, kinds, bases)
    if isotropic is not None:
        result = result.meet(polynomial_range(isotropic, bases, same), magnitude)
    return result


def isotropic_coefficients(
    scaled: Block, kinds: Kinds, bases: RecordVariables
) -> dict[tuple[int, ...], Interval] | None:
    """Return c with P = c I, up to rounding, for each type of monomials; None if P does not have this form."""
    if not is_diagonal(scaled):
        return None
    diagonal = scaled.diagonal()
    coefficients = {}
    for kind, members in kinds.items():
        values = diagonal[members]
        if len(members) != tensor_size(kind, bases) or np.ptp(values) > ALIKE * np.abs(values).max():
            return None
        coefficients[kind] = Interval(float(values.min()), float(values.max()))
    return coefficients


def tensor_size(kind: tuple[int, ...], bases: RecordVariables) -> int:
    """Return the number of distinct monomials of a type."""
    size = 1
    for base in set(kind):
        power = kind.count(base)
        size *= math.comb(bases.bases[base].size + power - 1, power)
    return size


def polynomial_range(coefficients: dict[tuple[int, ...], Interval], bases: RecordVariables, same: bool) -> Interval:
    """Return the range of a polynomial in the inner products of the bases, term by term."""
    total = Interval(0.0, 0.0)
    for kind, term in coefficients.items():
        for base in set(kind):
            ends = bases.bases[base].squared if same else bases.bases[base].paired
            term = term * Interval(*ends).power(kind.count(base))
        total = total + term
    return total


def spectral_range(
    scaled: Block, monomial: NDArray[np.int64], kinds: Kinds, bases: RecordVariables, same: bool
) -> Interval:
    """Return the range of the form, block by block: by eigenvalues, or singular values and norms. Scalar fields keep signs."""
    total = Interval(0.0, 0.0)
    size = np.array([base.size for base in bases.bases])
    single = np.append(size == 1, True)[np.append(bases.owner, -1)]
    longer = {kind: tuple(b for b in kind if size[b] > 1) for kind in kinds}
    for first, rows in kinds.items():
        for second, columns in kinds.items():
            block = scaled[rows][:, columns]
            if not (block.any() if isinstance(block, np.ndarray) else block.nnz):
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
