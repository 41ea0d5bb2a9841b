"""Inner products of rows of `A_z`, over the whole record domain.

The rows of all leaves of a loss are written in a few *generators*: one variable's worth of coefficients, up to a factor.
A gradient is then a short vector of numbers, and inner products of gradients, of one record or of two, are sums of bilinear
forms with known ranges.  For a classifier with C matrices there are C generators, whatever the number of leaves.

If all rows are ``a (x) H(z)`` in a variable, one weight for each of its columns (or rows, or entries) times one and the same H,
a generator is H in one column: C generators for a matrix with one column for each of C classes, and not one for each of the
C(C-1)/2 differences of columns.  No constant changes: the inner product of two rows is ``<a, a'> H(z)'H(z')`` either way.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.bases import Bases
from dpconvex.errors import MissingRule
from dpconvex.polynomial import Polynomial, concatenate, numbered_rows
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
    places : list of ndarray of int
        The coordinates of theta that each generator lives on: a variable's, or one of its columns'.
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
        self.monomial, mono = numbered_rows(terms.monomial)
        table, generators = factor(terms, mono, space, int(offsets[-1]))
        self.rows = [table[offsets[k] : offsets[k + 1]] for k in range(len(leaves))]
        self.blocks = np.array([generator.block for generator in generators], dtype=np.int64)
        self.places = [generator.place for generator in generators]
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
                if (left.block, left.cell) != (right.block, right.cell):
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
            highest = value * interval.high
            np.multiply(value, interval.low, out=value)
            total += np.maximum(highest, value, out=value)
        return total

    def squared_norms(self, vectors: Array) -> Array:
        """Bound the squared norm of each row of `vectors` (generator coordinates) over the record's domain."""
        result = ((vectors @ self.upper) * vectors).sum(axis=1)
        total = np.zeros(len(vectors))
        for form in self.forms:
            value = ((vectors @ form.weight) * vectors).sum(axis=1)
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
    """Coefficients of one row of `A_z` within one cell of a variable (all of it, or one column), up to a factor.

    Attributes
    ----------
    block, cell : int
        Number of the variable, and of the cell within it.
    key : bytes
        What generators with equal coefficients in different cells share.
    place : ndarray of int
        The cell's coordinates of theta.
    coordinate, monomial : ndarray of int, shape (terms,)
        Of each term; coordinates are counted within the cell.
    coefficient : ndarray, shape (terms,)
    """

    block: int
    cell: int
    key: bytes
    place: Index
    coordinate: Index
    monomial: Index
    coefficient: Array

    def matrix(self, monomials: int) -> sp.csr_array:
        """Return the coefficients as a matrix, shape (cell's coordinates, monomials)."""
        return sp.csr_array((self.coefficient, (self.coordinate, self.monomial)), shape=(len(self.place), monomials))


def factor(terms: Polynomial, mono: Index, space: Space, rows: int) -> tuple[Array, list[Generator]]:
    """Write every row as a combination of generators; returns the table of factors and the generators."""
    blocks = list(space.blocks.values())
    starts = np.array([block.start for block in blocks])
    owner = np.searchsorted(starts, terms.coordinate, side="right") - 1
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=len(blocks)))
    generators: list[Generator] = []
    found: list[tuple[Index, Index, Array]] = []
    for number, block in enumerate(blocks):
        own = order[(ends[number - 1] if number else 0) : ends[number]]
        if len(own) == 0:
            continue
        part = (terms.entry[own], terms.coordinate[own] - block.start, mono[own], terms.coefficient[own])
        best = patterns(number, block.start, np.arange(block.dim)[None, :], *part)
        if len(best[0]) > 1 and not block.symmetric:
            for cells in layouts(block.variable.shape):
                split = patterns(number, block.start, cells, *part)
                if len({generator.key for generator in split[0]}) == 1 and len(split[0]) <= len(best[0]):
                    best = split
        found.append((best[1], best[2] + len(generators), best[3]))
        generators.extend(best[0])
    table = np.zeros((rows, len(generators)))
    for row, column, lead in found:
        table[row, column] = lead
    return table, generators


def layouts(shape: tuple[int, ...]) -> list[Index]:
    """Return the ways to divide a variable's coordinates into cells of one size, shape (cells, size) each."""
    numbers = np.arange(int(np.prod(shape, dtype=np.int64)))
    found = [numbers[:, None]]
    if len(shape) == 2:
        columns = numbers.reshape(shape[::-1])
        found += [columns, columns.T]
    return found


def patterns(
    block: int, start: int, cells: Index, entry: Index, coordinate: Index, mono: Index, coefficient: Array
) -> tuple[list[Generator], Index, Index, Array]:
    """Divide the rows within one variable into multiples of generators, cell by cell.

    Parameters
    ----------
    block, start : int
        Number of the variable, and its first coordinate.
    cells : ndarray of int, shape (cells, size)
        The coordinates of each cell, counted within the variable.
    entry, coordinate, mono : ndarray of int, shape (terms,)
        The row, the coordinate within the variable and the monomial of each term.
    coefficient : ndarray, shape (terms,)

    Returns
    -------
    generators : list of Generator
    row, number : ndarray of int
    factor : ndarray
        In that row, that generator has this factor.
    """
    cell, position = np.empty((2, cells.size), dtype=np.int64)
    cell[cells], position[cells] = np.indices(cells.shape)
    cell, position = cell[coordinate], position[coordinate]
    order = np.lexsort([mono, position, cell, entry])
    entry, cell, position, mono = entry[order], cell[order], position[order], mono[order]
    coefficient = coefficient[order]
    begins = np.flatnonzero(np.append(True, (np.diff(entry) != 0) | (np.diff(cell) != 0)))
    lengths = np.diff(np.append(begins, len(entry)))
    lead = coefficient[begins]
    pattern = coefficient / np.repeat(lead, lengths)
    merged = significant(pattern)
    known: dict[tuple[int, bytes], int] = {}
    generators: list[Generator] = []
    number = np.empty(len(begins), dtype=np.int64)
    for k, a in enumerate(begins):
        run = slice(a, a + lengths[k])
        key = position[run].tobytes() + b"|" + mono[run].tobytes() + b"|" + merged[run].tobytes()
        number[k] = known.setdefault((int(cell[a]), key), len(generators))
        if number[k] == len(generators):
            place = start + cells[cell[a]]
            generators.append(Generator(block, int(cell[a]), key, place, position[run], mono[run], pattern[run]))
    return generators, entry[begins], number, lead


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
