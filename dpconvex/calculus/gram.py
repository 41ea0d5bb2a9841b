"""Inner products of rows of `A_z`, over the whole record domain.

The rows of all leaves of a loss are written in a few *generators*: one variable's worth of coefficients, up to a factor.
A gradient is then a short vector of numbers, and inner products of gradients, of one record or of two, are sums of bilinear
forms with known ranges.  For a classifier with C matrices there are C generators, whatever the number of leaves.

Sums that cancel are bounded outward: an error is relative to what was added up, never to what is left of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.calculus.bilinear_forms import form_range
from dpconvex.calculus.generators import Generator, factor, numbered_runs, terms_of
from dpconvex.core.abstract_values import Term
from dpconvex.core.intervals import Interval
from dpconvex.core.parameter_space import Space
from dpconvex.core.polynomial import Polynomial, concatenate, numbered_rows
from dpconvex.core.record_scalars import Bases
from dpconvex.errors import MissingRule

Array = NDArray[np.float64]
Index = NDArray[np.int64]

LARGEST_NUMBER_OF_FORMS = 4000
# Products of terms that are formed to find them: each takes some hundred bytes.
LARGEST_NUMBER_OF_PRODUCTS = 2**24
FEWER_LEAVES = "write it with fewer leaves, or with leaves that share their features"
# Vertices whose norm is also bounded through the one form that belongs to them (slower, sharper).
LARGEST_EXACT_SET = 64
# Error of a computed sum, relative to the sum of its absolute terms: some five hundred roundings.
ROUNDING = 2.0**-44
EPSILON = 2.0**-52
# Rounding of a norm that is worth the time to avoid, relative to the norm.
CANCELLED = 1e-11
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

    @property
    def fixed(self) -> bool:
        """Whether it is one number, whatever the records."""
        return self.same.low == self.same.high == self.cross.low == self.cross.high


class Gram:
    """Inner products of the leaves' rows.

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
    rounding : ndarray, shape (generators, generators)
        Bound on what rounding does to an inner product, for each unit of the absolute factors of two generators.
    errors : ndarray, shape (generators,)
        How far a row of `A_z` may be from its generator at any record, for each unit of its factor: rounding.
    exact : ndarray of bool, shape (generators,)
        Whether rows are multiples of the generator without any rounding.
    """

    def __init__(self, leaves: list[Polynomial], space: Space, bases: Bases) -> None:
        self.bases = bases
        sizes = [leaf.size for leaf in leaves]
        offsets = np.cumsum([0, *sizes])
        parts = [leaf.part(with_theta=True) for leaf in leaves]
        joined = [part.entry + offset for part, offset in zip(parts, offsets, strict=False)]
        terms = concatenate(parts, (int(offsets[-1]),), joined) if parts else Polynomial.constant(np.zeros(0))
        self.monomial, mono = numbered_rows(terms.monomial)
        largest = np.max(np.abs(bases.monomial_range(self.monomial)), axis=0)
        table, generators, excess = factor(terms, mono, largest, space, int(offsets[-1]))
        self.rows = [table[offsets[k] : offsets[k + 1]] for k in range(len(leaves))]
        self.blocks = np.array([generator.block for generator in generators], dtype=np.int64)
        self.places = [generator.place for generator in generators]
        self.generators = generators
        self.scale = np.ones(len(generators))
        self._residue = 0.0
        self._squares: dict[tuple[Hashable, ...], float] = {}
        self._ranges: dict[tuple[Hashable, ...], Interval] = {}
        self._terms = terms_of(generators)
        self.forms = self._forms(len(generators))
        lengths, moving = (self._lengths(generators, moving) for moving in (False, True))
        self.errors, self.exact = ROUNDING * lengths + excess, excess == 0
        self._outer, self._moving = ((4 * EPSILON + self._residue) * np.outer(a, a) for a in (lengths, moving))
        self.rounding = self._outer + self._magnitude(self.forms)
        self.upper = upper_of(self.forms, len(generators))
        self._share_length()

    def _magnitude(self, forms: list[Form]) -> Array:
        """Bound the rounding of sums of forms, for each unit of the absolute factors of two generators."""
        count = len(self.generators)
        sizes = (np.abs(form.weight) * max(form.same.size, form.cross.size) for form in forms)
        longest = max(
            (int(np.count_nonzero(form.weight, axis=axis).max()) for form in forms for axis in (0, 1)), default=0
        )
        return EPSILON * (longest + len(forms) + 2) * sum(sizes, np.zeros((count, count)))

    def _lengths(self, generators: list[Generator], moving: bool) -> Array:
        """Bound the norm that each generator would have if all its coefficients and monomials were positive.

        `moving` says to leave out what is the same for every record.
        """
        known: dict[bytes, float] = {}
        kept = sp.csr_array(sp.diags_array(1.0 - moving * (self.monomial < 0).all(axis=1)))
        for generator in generators:
            if generator.key not in known:
                matrix = abs(generator.matrix(len(self.monomial))) @ kept
                square = self._range(sp.csr_array(matrix.T @ matrix), same=True)
                known[generator.key] = float(np.sqrt(square.size))
        return np.array([known[generator.key] for generator in generators])

    def _forms(self, count: int) -> list[Form]:
        """Write the inner products of all pairs of generators as multiples of forms, their constants apart from all else.

        An entry that is small against the sum of its absolute terms is rounding.  What is merely small against other entries is
        not, because the monomials that it multiplies may be large.
        """
        size = len(self.monomial)
        place, value, whole = products(*self._terms, count, size)
        kept = np.abs(value) > RESIDUE * whole
        if np.count_nonzero(value) > np.count_nonzero(kept):
            self._residue = RESIDUE
        place, value = place[kept], value[kept]
        pair, row, column = place // size**2, place // size % size, place % size
        constant = np.asarray((self.monomial < 0).all(axis=1))
        varies = ~(constant[row] & constant[column])
        order = np.lexsort([place, varies, pair])
        pair, row, column, varies, value = pair[order], row[order], column[order], varies[order], value[order]
        begins = np.flatnonzero(np.append(True, (np.diff(pair) != 0) | (np.diff(varies) != 0))[: len(pair)])
        lengths = np.diff(np.append(begins, len(pair)))
        factor_ = value[begins]
        value = value / np.repeat(factor_, lengths)
        token = np.unique(value, return_inverse=True)[1].ravel()
        number = numbered_runs(numbered_rows(np.stack([row, column, token], axis=1))[1], begins, lengths)
        first = np.sort(np.unique(number, return_index=True)[1])
        if len(first) > LARGEST_NUMBER_OF_FORMS:
            raise MissingRule(
                f"the loss sees the record through more than {LARGEST_NUMBER_OF_FORMS} different forms",
                None,
                FEWER_LEAVES,
            )
        forms = []
        for run in first:
            own, members = slice(begins[run], begins[run] + lengths[run]), number == number[run]
            matrix = sp.csr_array((value[own], (row[own], column[own])), shape=(size, size))
            weight = np.zeros((count, count))
            weight[np.divmod(pair[begins][members], count)] = factor_[members]
            forms.append(Form(weight, self._range(matrix, same=True), self._range(matrix, same=False), matrix))
        return forms

    def _range(self, matrix: sp.csr_array, same: bool) -> Interval:
        """Bound a form (`form_range`), once."""
        parts = matrix.indptr, matrix.indices, matrix.data
        key = same, *(part.tobytes() for part in parts)
        if key not in self._ranges:
            self._ranges[key] = form_range(matrix, self.monomial, self.bases, same)
        return self._ranges[key]

    def steepest(self, rows: Array) -> float:
        """Bound the largest singular value of some rows together, at any record."""
        place, part = used(rows)
        forms = [replace(form, weight=form.weight[place]) for form in self.forms if form.weight[place].any()]
        upper = upper_of(forms, part.shape[1])
        inner, size = part @ upper @ part.T, np.abs(part) @ np.abs(upper) @ np.abs(part).T
        largest = float(np.linalg.eigvalsh(inner)[-1]) + ROUNDING * float(np.trace(size))
        return float(np.sqrt(max(largest, 0.0)) + np.linalg.norm(self.slack(np.abs(rows))))

    def _share_length(self) -> None:
        """Bound the Gram matrix of the parts in one cell by its trace, where that is less: parts of one record share its length.

        In units of the parts' lengths the matrix is at most its trace times the identity; cells are orthogonal to each other.
        """
        cells: dict[tuple[int, int], list[int]] = {}
        for g, generator in enumerate(self.generators):
            if generator.divided:
                cells.setdefault((generator.block, generator.cell), []).append(g)
        for members in cells.values():
            parts = [self.generators[g].matrix(len(self.monomial)) for g in members]
            squares = np.array([self._range(sp.csr_array(part.T @ part), same=True).high for part in parts])
            if not (squares > 0).all():
                continue
            total = sp.csr_array(sum(part.T @ part / square for part, square in zip(parts, squares, strict=True)))
            bound = self._range(total, same=True).high * squares * (1 + ROUNDING)
            if bound.sum() < np.trace(self.upper[np.ix_(members, members)]):
                self.upper[members], self.upper[:, members] = 0.0, 0.0
                self.upper[members, members] = bound

    def reweighted(self, weights: Array) -> Gram:
        """Return the same with rows multiplied by a factor for each variable, shape (variables,)."""
        factor = weights[self.blocks]
        result = copy(self)
        result.scale = factor * self.scale
        result.forms = [replace(form, weight=factor[:, None] * form.weight * factor) for form in self.forms]
        result.upper = factor[:, None] * self.upper * factor
        result._outer, result._moving = (factor[:, None] * part * factor for part in (self._outer, self._moving))
        result.rounding = factor[:, None] * self.rounding * factor
        result.errors = factor * self.errors
        return result

    def row_rank(self, rows: Array) -> int:
        """Bound the dimension that some rows of one record's `A_z` span: only what is exactly dependent counts as that."""
        moving = rows[rows.any(axis=1)]
        occurring = moving.any(axis=0)
        if not self.exact[occurring].all():
            return len(moving)
        lead = moving[np.arange(len(moving)), (moving != 0).argmax(axis=1)]
        directions = moving / np.copysign(np.ldexp(1.0, np.frexp(lead)[1]), lead)[:, None]
        return min(len(np.unique(directions, axis=0)), int(occurring.sum()))

    def slack(self, masses: Array) -> Array:
        """Bound how far gradients are from their generator coordinates, whose absolute terms add up to `masses`."""
        return np.asarray(masses @ self.errors)

    def term_slack(self, terms: Sequence[Term]) -> float:
        """Bound how far any gradient in the sum of some terms is from its generator coordinates."""
        return float(sum(self.slack(term.masses).max(initial=0.0) for term in terms))

    def inner(self, rows: Array) -> tuple[Array, float]:
        """Return the upper bound of the Gram matrix of some rows, and a bound on the rounding of each entry."""
        place, rows = used(rows)
        upper = self.upper[place]
        size = float((np.abs(rows) @ np.sqrt(np.maximum(np.diag(upper), 0.0))).max(initial=0.0))
        return rows @ upper @ rows.T, ROUNDING * size**2

    def products(self, left: Array, right: Array, cross: bool, sign: float = 1.0) -> Array:
        """Bound ``sign * <u, v>`` from above for all rows u of `left` and v of `right`, shape (len(left), len(right)).

        `cross` says whether u belongs to one record and v to another.
        """
        total = np.abs(left) @ self.rounding @ np.abs(right).T
        for form in self.forms:
            value = sign * (left @ form.weight @ right.T)
            interval = form.cross if cross else form.same
            highest = value * interval.high
            np.multiply(value, interval.low, out=value)
            total += np.maximum(highest, value, out=value)
        return np.asarray(total)

    def squared_distances(self, left: Array, right: Array, squares: tuple[Array, Array]) -> Array:
        """Bound ``||u - v||^2`` for rows u of `left` of one record and v of `right` of another, given bounds of their squares.

        What is the same for every record is subtracted first: of two large labels, the difference counts.
        """
        apart = squares[0][:, None] + squares[1][None, :] + 2 * self.products(left, right, cross=True, sign=-1.0)
        fixed, moving = copy(self), copy(self)
        fixed.forms = [form for form in self.forms if form.fixed]
        if not fixed.forms:
            return np.asarray(apart)
        fixed.rounding = self._outer + self._magnitude(fixed.forms)
        moving.forms = [form for form in self.forms if not form.fixed]
        moving.rounding = self._moving + self._magnitude(moving.forms)
        own = [moving.summed_squares(rows) for rows in (left, right)]
        result = own[0][:, None] + own[1][None, :] + 2 * moving.products(left, right, cross=True, sign=-1.0)
        for k, row in enumerate(left):
            result[k] += fixed.summed_squares(row - right)
        return np.asarray(np.minimum(apart, result))

    def summed_squares(self, vectors: Array) -> Array:
        """Bound the squared norm of each row form by form."""
        place, vectors = used(vectors)
        total = squared(np.abs(vectors), self.rounding[place])
        for form in self.forms:
            value = squared(vectors, form.weight[place])
            total += np.maximum(value * form.same.low, value * form.same.high)
        return np.asarray(total)

    def squared_norms(self, vectors: Array) -> Array:
        """Bound the squared norm of each row of `vectors` (generator coordinates) over the record's domain."""
        place, part = used(vectors)
        upper, sizes = self.upper[place], np.abs(part)
        result = squared(part, upper) + ROUNDING * squared(sizes, np.abs(upper))
        result = np.minimum(result, self.summed_squares(vectors))
        if len(vectors) <= LARGEST_EXACT_SET:
            several = sum(not form.fixed for form in self.forms) > 1
            cancelled = ~(squared(sizes, self.rounding[place]) <= CANCELLED * result)
            for k in np.flatnonzero(cancelled | several):
                result[k] = min(result[k], self._square(vectors[k] * self.scale))
        return np.maximum(result, 0.0)

    def _square(self, vector: Array) -> float:
        """Bound the squared norm of one combination by its own form: coefficients are added up before they are squared.

        Combinations have one form if they differ in the cells and their signs only: with many labels, few are left.
        """
        cells: dict[tuple[int, int], list[Generator]] = {}
        factors = {id(self.generators[g]): float(vector[g]) for g in np.flatnonzero(vector)}
        for g in np.flatnonzero(vector):
            generator = self.generators[g]
            cells.setdefault((generator.block, generator.cell), []).append(generator)
        known = tuple(sorted(signed([(g.key, factors[id(g)]) for g in part]) for part in cells.values()))
        if known not in self._squares:
            owner, row, column, coefficient = self._terms
            used = np.flatnonzero(vector[owner])
            place = np.unique(row[used], return_inverse=True)[1].ravel(), column[used]
            matrix = sp.csr_array(
                (coefficient[used] * vector[owner[used]], place), shape=(len(used), len(self.monomial))
            )
            self._squares[known] = self._range(sp.csr_array(matrix.T @ matrix), same=True).high
        return self._squares[known]


def squared(vectors: Array, matrix: Array) -> Array:
    """Return ``<v, matrix v>`` for each row v."""
    return np.asarray(((vectors @ matrix) * vectors).sum(axis=1))


def used(vectors: Array) -> tuple[Any, Array]:
    """Return the generators that occur, as places of a part of a matrix, and the vectors in them."""
    place = np.flatnonzero((vectors != 0).any(axis=0))
    return (place[:, None], place[None, :]), vectors[:, place]


def upper_of(forms: Sequence[Form], count: int) -> Array:
    """Return a positive semidefinite matrix above the sum of the forms, at every record."""
    upper = np.zeros((count, count))
    # In units of the generators' lengths, a form between a long and a short one is charged to both in proportion.
    squares = sum((np.diag(form.weight) * form.same.high for form in forms), np.zeros(count))
    length = np.sqrt(np.where(squares > 0, squares, 1.0))
    for form in forms:
        weight = (form.weight + form.weight.T) / 2 / length / length[:, None]
        if np.count_nonzero(weight) == np.count_nonzero(np.diag(weight)):
            diagonal = np.diag(weight)
            highest = np.maximum(form.same.high * diagonal, form.same.low * diagonal)
            highest = highest + 2 * EPSILON * count * form.same.size * np.abs(diagonal).max(initial=0.0)
            upper[np.diag_indices(count)] += highest
            continue
        values, vectors = np.linalg.eigh(weight)
        positive = (vectors * np.maximum(values, 0.0)) @ vectors.T
        negative = (vectors * np.maximum(-values, 0.0)) @ vectors.T
        # With k in [low, high], k (W+ - W-) is below high W+ - low W- in the Loewner order.
        upper += form.same.high * positive - form.same.low * negative
        upper += 2 * EPSILON * count * form.same.size * np.abs(values).max(initial=0.0) * np.eye(count)
    return np.asarray(upper * length * length[:, None])


def signed(terms: list[tuple[bytes, float]]) -> tuple[tuple[bytes, float], ...]:
    """Put terms in order and make the first factor positive."""
    ordered = sorted(terms)
    sign = 1.0 if ordered[0][1] > 0 else -1.0
    return tuple((key, sign * factor_) for key, factor_ in ordered)


def products(
    owner: Index, row: Index, column: Index, coefficient: Array, count: int, monomials: int
) -> tuple[Index, Array, Array]:
    """Return the products of all pairs of generators, and those of their absolute values, entry by entry.

    The place of an entry is ``((first * generators + second) * monomials + row) * monomials + column``.
    """
    line, times = np.unique(row, return_inverse=True, return_counts=True)[1:]
    if (times.astype(float) ** 2).sum() > LARGEST_NUMBER_OF_PRODUCTS:
        raise MissingRule(
            f"the loss sees the record through so many different forms that they have more than {LARGEST_NUMBER_OF_PRODUCTS} "
            "products",
            None,
            FEWER_LEAVES,
        )
    place = line.ravel(), owner * monomials + column
    table = sp.csr_array((coefficient, place), shape=(len(row), count * monomials))
    value, whole = (sp.coo_array(part.T @ part) for part in (table, abs(table)))
    places = []
    for part in (value, whole):
        (first, i), (second, j) = (np.divmod(index.astype(np.int64), monomials) for index in part.coords)
        places.append(((first * count + second) * monomials + i) * monomials + j)
    order = np.argsort(places[1])
    place, size = places[1][order], whole.data[order]
    exact = np.zeros(len(place))
    exact[np.searchsorted(place, places[0])] = value.data
    return place, exact, size
