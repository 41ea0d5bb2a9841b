"""Inner products of rows of `A_z`, over the whole record domain.

The rows of all leaves of a loss are written in a few *generators*: one variable's worth of coefficients, up to a factor.
A gradient is then a short vector of numbers, and inner products of gradients, of one record or of two, are sums of bilinear
forms with known ranges.  For a classifier with C matrices there are C generators, whatever the number of leaves.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.bases import Bases
from dpconvex.errors import MissingRule
from dpconvex.polynomial import Polynomial, concatenate
from dpconvex.rules.forms import Interval, form_range
from dpconvex.space import Space

__all__ = ["Form", "Gram"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]

LARGEST_NUMBER_OF_FORMS = 4000
# Vertices whose norm is also bounded through the one form that belongs to them (slower, sharper).
LARGEST_EXACT_SET = 64
# Coefficients that agree to so many binary digits are merged; the error is far below the slack on every constant.
MERGED_BITS = 40
# An entry of a product of matrices that is this small against the sum of its absolute terms is rounding.
RESIDUE = 1e-14


@dataclass(frozen=True, eq=False)
class Form:
    """One bilinear form in the record, with its place among the generators.

    Attributes
    ----------
    weight : ndarray, shape (generators, generators)
        The form's coefficient in the inner product of two generators.
    same, cross : Interval
        Its range for one record, and for two independent ones.
    matrix : sparse array, shape (monomials, monomials)
    """

    weight: Array
    same: Interval
    cross: Interval
    matrix: sp.csr_array


class Gram:
    """Inner products of the leaves' rows.

    Parameters
    ----------
    leaves : sequence of Polynomial
        Affine leaves; only their terms in theta matter.
    space : Space
    bases : Bases

    Attributes
    ----------
    rows : list of ndarray, one per leaf, shape (leaf.size, generators)
        Each entry's row of `A_z` in generator coordinates.
    blocks : ndarray of int, shape (generators,)
        Which variable each generator belongs to.
    forms : list of Form
    upper : ndarray, shape (generators, generators)
        Positive semidefinite, and above the Gram matrix of the generators at every record (in the Loewner order).
    """

    def __init__(self, leaves: list[Polynomial], space: Space, bases: Bases) -> None:
        self.bases = bases
        sizes = [leaf.size for leaf in leaves]
        offsets = np.cumsum([0, *sizes])
        parts = [leaf.part(with_theta=True) for leaf in leaves]
        joined = [part.entry + offset for part, offset in zip(parts, offsets, strict=False)]
        terms = concatenate(parts, (int(offsets[-1]),), joined) if parts else Polynomial.constant(np.zeros(0))
        self.monomial, mono = unique_rows(terms.monomial)
        table, generators = factor(terms, mono, space, int(offsets[-1]))
        self.rows = [table[offsets[k] : offsets[k + 1]] for k in range(len(leaves))]
        self.blocks = np.array([generator.block for generator in generators], dtype=np.int64)
        self.forms = self._forms(generators)
        self.upper = self._upper(len(generators))

    def _forms(self, generators: list[Generator]) -> list[Form]:
        count = len(generators)
        weights: dict[bytes, Array] = {}
        matrices: dict[bytes, sp.csr_array] = {}
        products: dict[tuple[bytes, bytes], tuple[bytes, float] | None] = {}
        size = len(self.monomial)
        for g, left in enumerate(generators):
            for k, right in enumerate(generators):
                if left.block != right.block:
                    continue
                pair = (left.key, right.key)
                if pair not in products:
                    first, second = left.matrix(size), right.matrix(size)
                    products[pair] = normalised(first.T @ second, abs(first).T @ abs(second), matrices)
                found = products[pair]
                if found is not None:
                    key, coefficient = found
                    weights.setdefault(key, np.zeros((count, count)))[g, k] = coefficient
                    if len(weights) > LARGEST_NUMBER_OF_FORMS:
                        raise MissingRule(
                            f"the loss sees the record through more than {LARGEST_NUMBER_OF_FORMS} different forms",
                            None,
                            "write it with fewer leaves, or with leaves that share their features",
                        )
        return [
            Form(
                weight,
                form_range(matrices[key], self.monomial, self.bases, same=True),
                form_range(matrices[key], self.monomial, self.bases, same=False),
                matrices[key],
            )
            for key, weight in weights.items()
        ]

    def _upper(self, count: int) -> Array:
        upper = np.zeros((count, count))
        # In units of the generators' lengths, a form between a long and a short one is charged to both in proportion.
        squares = sum((np.diag(form.weight) * form.same.high for form in self.forms), np.zeros(count))
        length = np.sqrt(np.where(squares > 0, squares, 1.0))
        for form in self.forms:
            values, vectors = np.linalg.eigh((form.weight + form.weight.T) / 2 / length / length[:, None])
            positive = (vectors * np.maximum(values, 0.0)) @ vectors.T
            negative = (vectors * np.maximum(-values, 0.0)) @ vectors.T
            # With k in [low, high], k (W+ - W-) is below high W+ - low W- in the Loewner order.
            upper += form.same.high * positive - form.same.low * negative
        return np.asarray(upper * length * length[:, None])

    def reweighted(self, weights: Array) -> Gram:
        """Return the same with rows multiplied by a factor for each variable, shape (variables,)."""
        factor = weights[self.blocks]
        result = copy(self)
        result.forms = [replace(form, weight=factor[:, None] * form.weight * factor) for form in self.forms]
        result.upper = factor[:, None] * self.upper * factor
        return result

    def products(self, left: Array, right: Array, cross: bool, sign: float = 1.0) -> Array:
        """Bound ``sign * <u, v>`` from above for all rows u of `left` and v of `right`, shape (len(left), len(right)).

        `cross` says whether u belongs to one record and v to another.
        """
        total = np.zeros((len(left), len(right)))
        for form in self.forms:
            value = sign * (left @ form.weight @ right.T)
            interval = form.cross if cross else form.same
            total += np.maximum(value * interval.low, value * interval.high)
        return total

    def squared_norms(self, vectors: Array) -> Array:
        """Bound the squared norm of each row of `vectors` (generator coordinates) over the record's domain."""
        result = np.einsum("ij,jk,ik->i", vectors, self.upper, vectors)
        total = np.zeros(len(vectors))
        for form in self.forms:
            value = np.einsum("ij,jk,ik->i", vectors, form.weight, vectors)
            total += np.maximum(value * form.same.low, value * form.same.high)
        result = np.minimum(result, total)
        if len(self.forms) > 1 and len(vectors) <= LARGEST_EXACT_SET:
            for k, vector in enumerate(vectors):
                combined = sp.csr_array((len(self.monomial), len(self.monomial)))
                for form in self.forms:
                    combined = combined + float(vector @ form.weight @ vector) * form.matrix
                bound = form_range(sp.csr_array(combined), self.monomial, self.bases, same=True).high
                result[k] = min(result[k], bound)
        return np.maximum(result, 0.0)


@dataclass(frozen=True, eq=False)
class Generator:
    """Coefficients of one row of `A_z` within one variable, up to a factor."""

    block: int
    key: bytes
    coordinate: Index
    monomial: Index
    coefficient: Array
    dim: int

    def matrix(self, monomials: int) -> sp.csr_array:
        """Return the coefficients as a matrix, shape (variable's coordinates, monomials)."""
        return sp.csr_array((self.coefficient, (self.coordinate, self.monomial)), shape=(self.dim, monomials))


def factor(terms: Polynomial, mono: Index, space: Space, rows: int) -> tuple[Array, list[Generator]]:
    """Write every row as a combination of generators; returns the table of factors and the generators."""
    blocks = list(space.blocks.values())
    starts = np.array([block.start for block in blocks])
    block = np.searchsorted(starts, terms.coordinate, side="right") - 1
    order = np.lexsort([mono, terms.coordinate, block, terms.entry])
    entry, block = terms.entry[order], block[order]
    coordinate, mono, coefficient = terms.coordinate[order] - starts[block], mono[order], terms.coefficient[order]
    cuts = np.flatnonzero((np.diff(entry) != 0) | (np.diff(block) != 0)) + 1
    begins, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(entry)]
    place: dict[tuple[int, bytes], int] = {}
    generators: list[Generator] = []
    found: list[tuple[int, int, float]] = []
    for a, b in zip(begins, ends, strict=True):
        if a == b:
            continue
        lead = float(coefficient[a])
        pattern = coefficient[a:b] / lead
        key = coordinate[a:b].tobytes() + b"|" + mono[a:b].tobytes() + b"|" + significant(pattern).tobytes()
        number = place.setdefault((int(block[a]), key), len(generators))
        if number == len(generators):
            dim = blocks[block[a]].dim
            generators.append(Generator(int(block[a]), key, coordinate[a:b], mono[a:b], pattern, dim))
        found.append((int(entry[a]), number, lead))
    table = np.zeros((rows, len(generators)))
    for row, number, lead in found:
        table[row, number] = lead
    return table, generators


def normalised(
    matrix: sp.csr_array, size: sp.csr_array, known: dict[bytes, sp.csr_array]
) -> tuple[bytes, float] | None:
    """Split a matrix into a factor and a normal form, which is remembered under its key; None for zero.

    `size` holds the sums of absolute values that the entries came from: what is small against its own sum is rounding.
    What is merely small against other entries is not, because the monomials that it multiplies may be large.
    """
    matrix = sp.csr_array(sp.csr_array(matrix).multiply(abs(matrix) > RESIDUE * size))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    if matrix.nnz == 0:
        return None
    factor_ = float(matrix.data[0])
    matrix.data = matrix.data / factor_
    key = matrix.indptr.tobytes() + matrix.indices.tobytes() + significant(matrix.data).tobytes()
    known.setdefault(key, matrix)
    return key, factor_


def significant(values: Array) -> Array:
    """Round each number to `MERGED_BITS` binary digits of its own: those that then agree count as equal.

    >>> bool(significant(np.array([1e-20])) == significant(np.array([1e-20 * (1 + 1e-15)])))
    True
    >>> bool(significant(np.array([1e-20])) == significant(np.array([2e-20])))
    False
    """
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(np.ldexp(mantissa, MERGED_BITS)), exponent - MERGED_BITS))


def unique_rows(table: Index) -> tuple[Index, Index]:
    """Return the distinct rows of a table, and for each row its number among them."""
    if table.shape[1] == 0 or len(table) == 0:
        return table[:1], np.zeros(len(table), dtype=np.int64)
    unique, inverse = np.unique(table, axis=0, return_inverse=True)
    return unique, inverse.ravel()
