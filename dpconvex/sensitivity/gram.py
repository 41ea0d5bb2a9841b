"""Bounds on inner products of rows of `A_z` over the record's domain, in coordinates of a few *generators*."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.errors import MissingRule
from dpconvex.expressions.abstract_values import GradientSet
from dpconvex.expressions.expansion import RecordVariables
from dpconvex.expressions.parameter_space import Space
from dpconvex.expressions.polynomial import Polynomial, numbered_rows, stack_entries
from dpconvex.numerics import EPSILON, GRAM_ROUNDING, Interval
from dpconvex.sensitivity.bilinear_forms import form_range
from dpconvex.sensitivity.generators import GradientBasis, factor_rows, numbered_runs, terms_of
from dpconvex.util.arrays import Array, Indices

LARGEST_NUMBER_OF_FORMS = 4000
# Products of terms that are formed to find the forms: each takes about a hundred bytes.
LARGEST_NUMBER_OF_PRODUCTS = 2**24
SPARSE = 16  # Rows with at most one nonzero coordinate in this many are multiplied without the zeros
FEWER_LEAVES = "write the loss with fewer affine terms, or with terms that share their features"
# Entries of a matrix product below this fraction of the sum of absolute terms are rounding.
RESIDUE = 1e-14


@dataclass(frozen=True, eq=False)
class BilinearForm:
    """A bilinear form in the record, with a weight for each pair of generators, and its ranges for one record and for two."""

    weight: Array
    same: Interval
    cross: Interval


class GradientGram:
    """Bounds on inner products of the leaves' rows.

    `rows`: rows of `A_z` by leaf, in generator coordinates; `upper`: an upper bound (Loewner order) on the Gram matrix of the
    generators at every record; `rounding`: rounding errors of inner products, per unit of the coordinates of two generators;
    `errors`: distance of rows from their generator coordinates, per unit coordinate; `exact`: whether rows are exact multiples.
    """

    def __init__(self, leaves: list[Polynomial], space: Space, bases: RecordVariables) -> None:
        self.bases = bases
        offsets = np.cumsum([0, *(leaf.size for leaf in leaves)])
        terms = stack_entries([leaf.part(with_theta=True) for leaf in leaves])
        self.monomial, mono = numbered_rows(terms.monomial)
        largest = np.max(np.abs(bases.monomial_range(self.monomial)), axis=0)
        table, generators, excess = factor_rows(terms, mono, largest, space, int(offsets[-1]))
        self.rows = [table[offsets[k] : offsets[k + 1]] for k in range(len(leaves))]
        self.generators = generators
        self._ranges: dict[tuple[Hashable, ...], Interval] = {}
        self._inner: dict[tuple[int, bytes], tuple[Array, float]] = {}
        self._squares: dict[tuple[int, bytes], Array] = {}
        self.widest: dict[tuple[float, float, float, bytes], tuple[float, Array]] = {}  # Cache of `maximise_trace`
        self.forms, residue = self._forms(generators)
        lengths = self._lengths(generators)
        self.errors, self.exact = GRAM_ROUNDING * lengths + excess, excess == 0
        sizes = [np.abs(form.weight) * max(form.same.size, form.cross.size) for form in self.forms]
        counts = [np.count_nonzero(form.weight, axis=axis).max() for form in self.forms for axis in (0, 1)]
        summed = EPSILON * (max(map(int, counts), default=0) + len(self.forms) + 2)
        self.rounding = (4 * EPSILON + residue) * np.outer(lengths, lengths) + summed * sum(sizes)
        self.upper = upper_of(self.forms, len(generators))
        self._share_length(generators)

    def _lengths(self, generators: list[GradientBasis]) -> Array:
        """Return bounds on the norm of each generator with absolute coefficients."""
        known: dict[bytes, float] = {}
        for generator in generators:
            if generator.key not in known:
                matrix = abs(generator.matrix(len(self.monomial)))
                known[generator.key] = float(np.sqrt(self._range(sp.csr_array(matrix.T @ matrix), same=True).size))
        return np.array([known[generator.key] for generator in generators])

    def _forms(self, generators: list[GradientBasis]) -> tuple[list[BilinearForm], float]:
        """Return the inner products of generators as weighted forms, and a relative bound on the dropped rounding errors."""
        size, count = len(self.monomial), len(generators)
        place, value, whole = products(*terms_of(generators), count, size)
        kept = np.abs(value) > RESIDUE * whole
        residue = RESIDUE if np.count_nonzero(value) > np.count_nonzero(kept) else 0.0
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
            seen = f"inner products of gradients have more than {LARGEST_NUMBER_OF_FORMS} different forms in the record"
            raise MissingRule(seen, None, FEWER_LEAVES)
        forms = []
        for run in first:
            own, members = slice(begins[run], begins[run] + lengths[run]), number == number[run]
            matrix = sp.csr_array((value[own], (row[own], column[own])), shape=(size, size))
            weight = np.zeros((count, count))
            weight[np.divmod(pair[begins][members], count)] = factor_[members]
            forms.append(BilinearForm(weight, self._range(matrix, same=True), self._range(matrix, same=False)))
        return forms, residue

    def _range(self, matrix: sp.csr_array, same: bool) -> Interval:
        """Return the range of a form (`form_range`), cached."""
        parts = matrix.indptr, matrix.indices, matrix.data
        key = same, *(part.tobytes() for part in parts)
        if key not in self._ranges:
            self._ranges[key] = form_range(matrix, self.monomial, self.bases, same)
        return self._ranges[key]

    def steepest(self, rows: Array) -> float:
        """Return a bound on the largest singular value of the matrix of rows, at any record."""
        place, part = used_generators(rows)
        forms = [replace(form, weight=form.weight[place]) for form in self.forms if form.weight[place].any()]
        upper = upper_of(forms, part.shape[1])
        inner, size = part @ upper @ part.T, np.abs(part) @ np.abs(upper) @ np.abs(part).T
        largest = float(np.linalg.eigvalsh(inner)[-1]) + GRAM_ROUNDING * float(np.trace(size))
        return float(np.sqrt(max(largest, 0.0)) + np.linalg.norm(self.slack(np.abs(rows))))

    def _share_length(self, generators: list[GradientBasis]) -> None:
        """Bound the Gram matrix of the parts in one cell by its trace, in units of the parts' lengths, if that is smaller."""
        cells: dict[tuple[int, int], list[int]] = {}
        for g, generator in enumerate(generators):
            if generator.divided:
                cells.setdefault((generator.block, generator.cell), []).append(g)
        for members in cells.values():
            parts = [generators[g].matrix(len(self.monomial)) for g in members]
            squares = np.array([self._range(sp.csr_array(part.T @ part), same=True).high for part in parts])
            if not (squares > 0).all():
                continue
            total = sp.csr_array(sum(part.T @ part / square for part, square in zip(parts, squares, strict=True)))
            bound = self._range(total, same=True).high * squares * (1 + GRAM_ROUNDING)
            if bound.sum() < np.trace(self.upper[np.ix_(members, members)]):
                self.upper[members], self.upper[:, members] = 0.0, 0.0
                self.upper[members, members] = bound

    def row_rank(self, rows: Array) -> int:
        """Return a bound on the dimension of the span of rows of one record's `A_z`; only exact multiples count as dependent."""
        moving = rows[rows.any(axis=1)]
        occurring = moving.any(axis=0)
        if not self.exact[occurring].all():
            return len(moving)
        lead = moving[np.arange(len(moving)), (moving != 0).argmax(axis=1)]
        directions = moving / np.copysign(np.ldexp(1.0, np.frexp(lead)[1]), lead)[:, None]
        return min(len(set(map(bytes, directions + 0.0))), int(occurring.sum()))  # -0 is 0

    def slack(self, masses: Array) -> Array:
        """Return bounds on the distance of gradients from their generator coordinates; `masses` are sums of absolute terms."""
        return np.asarray(masses @ self.errors)

    def term_slack(self, terms: Sequence[GradientSet]) -> float:
        """Return a bound on the distance of any gradient in the sum of `terms` from its generator coordinates."""
        return float(sum(self.slack(term.masses).max(initial=0.0) for term in terms))

    def inner(self, rows: Array) -> tuple[Array, float]:
        """Return an upper bound on the Gram matrix of rows (cached), and a bound on the rounding error of each entry."""
        key = len(rows), sha256(rows.tobytes()).digest()
        if key not in self._inner:
            place, rows = used_generators(rows)
            upper = self.upper[place]
            size = float((np.abs(rows) @ np.sqrt(np.maximum(np.diag(upper), 0.0))).max(initial=0.0))
            self._inner[key] = rows @ upper @ rows.T, GRAM_ROUNDING * size**2
        return self._inner[key]

    def products(self, left: Array, right: Array, cross: bool, sign: float = 1.0) -> Array:
        """Return bounds on ``sign * <u, v>`` for all rows u of `left` and v of `right`; at two records if `cross`."""
        total = np.abs(left) @ self.rounding @ np.abs(right).T
        for form in self.forms:
            value = sign * (left @ form.weight @ right.T)
            interval = form.cross if cross else form.same
            highest = value * interval.high
            np.multiply(value, interval.low, out=value)
            total += np.maximum(highest, value, out=value)
        return np.asarray(total)

    @cached_property
    def _multiples(self) -> list[tuple[Indices, Indices, tuple[float, float]]]:
        """Return, for each scalar field, the generators k and l with k = field * l, and the ends of the field."""
        every, found = self.generators, []
        numbers = {row.tobytes(): k for k, row in enumerate(self.monomial)}
        names = {g.name(np.arange(len(self.monomial))): k for k, g in enumerate(every)}
        for base in (base for base in self.bases.bases if base.size == 1):
            place = self.monomial == base.start
            rest = np.sort(np.where(place & (np.cumsum(place, axis=1) == 1), -1, self.monomial), axis=1)
            less = np.array([numbers.get(row.tobytes(), -1) for row in rest], dtype=np.int64)
            these = [k for k, g in enumerate(every) if place.any(axis=1)[g.monomial].all()]
            pairs = [(k, names[name]) for k in these if (name := every[k].name(less)) in names]
            if pairs:
                found.append((*np.array(pairs).T, (float(base.lower[0]), float(base.upper[0]))))
        return found

    def squared_norms(self, vectors: Array) -> Array:
        """Return bounds on squared norms of generator coordinates (cached); maxima are at the ends of scalar fields."""
        key = len(vectors), sha256(vectors.tobytes()).digest()  # labels share terms
        if key not in self._squares:
            found = self._squared_norms(vectors)
            for these, others, ends in self._multiples:
                moved = np.stack([vectors, vectors])
                moved[..., these] = 0.0
                moved[..., others] += np.multiply.outer(ends, vectors[:, these])
                found = np.minimum(found, np.maximum(*map(self._squared_norms, moved)))
            self._squares[key] = found
        return self._squares[key]

    def lengths(self, rows: Array) -> Array:
        """Return a bound on the norm of each row of `A_z`."""
        return np.asarray(np.sqrt(self.squared_norms(rows)) + self.slack(np.abs(rows)))

    @cached_property
    def row_lengths(self) -> list[Array]:
        """Return bounds on the norms of the rows of each leaf."""
        return [self.lengths(rows) for rows in self.rows]

    def _squared_norms(self, vectors: Array) -> Array:
        place, part = used_generators(vectors)
        lengths = np.count_nonzero(part, axis=1)
        most = int(lengths.max(initial=0))
        if most * SPARSE <= part.shape[1]:  # few nonzero coordinates each, as for differences of classes
            row, column = np.nonzero(part)
            slot = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            own, few = np.zeros((len(part), most), dtype=np.int64), np.zeros((len(part), most))
            own[row, slot], few[row, slot] = place[1][0, column], part[row, column]
            place, part = (own[:, :, None], own[:, None, :]), few
        sizes, upper = np.abs(part), self.upper[place]
        dominated = squared(part, upper) + GRAM_ROUNDING * squared(sizes, np.abs(upper))
        total = squared(sizes, self.rounding[place])
        for form in self.forms:
            value = squared(part, form.weight[place])
            total += np.maximum(value * form.same.low, value * form.same.high)
        return np.maximum(np.minimum(dominated, total), 0.0)


def squared(vectors: Array, matrix: Array) -> Array:
    """Return ``<v, matrix v>`` for each row v; `matrix` is one matrix, or one matrix per row."""
    image = vectors @ matrix if matrix.ndim == 2 else (vectors[:, None, :] @ matrix)[:, 0]
    return np.asarray((image * vectors).sum(axis=1))


def used_generators(vectors: Array) -> tuple[Any, Array]:
    """Return the index of the submatrix of generators with nonzero coordinates, and the vectors without zero columns."""
    place = np.flatnonzero((vectors != 0).any(axis=0))
    return (place[:, None], place[None, :]), vectors[:, place]


def upper_of(forms: Sequence[BilinearForm], count: int) -> Array:
    """Return a positive semidefinite upper bound (Loewner order) on the sum of the forms, at every record."""
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


def products(
    owner: Indices, row: Indices, column: Indices, coefficient: Array, count: int, monomials: int
) -> tuple[Indices, Array, Array]:
    """Return the products of all pairs of generators: places of entries, entries, and entries for absolute coefficients."""
    line, times = np.unique(row, return_inverse=True, return_counts=True)[1:]
    if (times.astype(float) ** 2).sum() > LARGEST_NUMBER_OF_PRODUCTS:
        seen = f"inner products of gradients have more than {LARGEST_NUMBER_OF_PRODUCTS} products of terms"
        raise MissingRule(seen, None, FEWER_LEAVES)
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
