"""Affine expressions as polynomials of the record's scalars, and ranges of functions of the record.

Each continuous field is a *base*: consecutive scalars with coordinatewise bounds and a Euclidean norm bound.  An expression that
is affine in the variables is expanded exactly into a `Polynomial`.  Each atom's definition gives its effect on polynomials
(`expand`) and on ranges (`bounds`).  A function of the record that is not a polynomial (a norm, an exponential) becomes a base.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpconvex.data.domains import Ball, Box
from dpconvex.errors import NotPrivate
from dpconvex.expressions.abstract_values import AbstractValue
from dpconvex.expressions.atoms.matrices import eigenvalue_range
from dpconvex.expressions.atoms.rules import NARROWER, cancelled, entry_ends, norm_of
from dpconvex.expressions.discipline import sign
from dpconvex.expressions.expression import Constant, Expression, Field, Variable
from dpconvex.expressions.parameter_space import Space
from dpconvex.expressions.polynomial import Polynomial, numbered_rows
from dpconvex.numerics import APART, EPSILON, abs_ends, interval_product, interval_sums, intervals, norm_up, sum_ends
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import once

T = TypeVar("T")
Units = tuple[Array, Array]  # s and a > 0, entry by entry: the field is s + x'/a, for scalars x'
ROUNDING = 16 * float(np.finfo(float).eps)  # Relative error of a few roundings


@dataclass(frozen=True, eq=False)
class Base:
    """Consecutive scalars of a record, with public bounds on each scalar and on the Euclidean norm."""

    name: str
    start: int  # number of the first scalar
    lower: Array
    upper: Array
    norm: float

    @property
    def size(self) -> int:
        return len(self.lower)

    @cached_property
    def squared(self) -> tuple[float, float]:
        """Return the range of the squared Euclidean norm."""
        near, far = abs_ends(self.lower, self.upper)
        return self._sum(interval_product((near, near), (near, near))[0], interval_product((far, far), (far, far))[1])

    @cached_property
    def paired(self) -> tuple[float, float]:
        """Return the range of the inner product of two values of the base."""
        both = self.lower, self.upper
        return self._sum(*interval_product(both, both))

    def _sum(self, low: Array, high: Array) -> tuple[float, float]:
        norm = np.array(self.norm)
        square = float(interval_product((norm, norm), (norm, norm))[1])
        (least,), (most,) = interval_sums(np.zeros(self.size, dtype=np.int64), low, high, 1)
        return max(float(least), -square), min(float(most), square)


class RecordVariables:
    """The bases of a record: bounds on scalars, each scalar's base (`owner`), and fields as polynomials, scaled by `units`."""

    def __init__(self, domains: Mapping[str, Ball | Box], units: Mapping[str, Units] = MappingProxyType({})) -> None:
        self.units = units
        self.bases: list[Base] = []
        self.lower, self.upper = np.empty(0), np.empty(0)
        self.owner = np.empty(0, dtype=np.int64)
        self.polynomials: dict[str, Polynomial] = {}
        for name, domain in domains.items():
            lower, upper = (bound.reshape(-1, order="F") for bound in domain.bounds)
            if name not in units:
                self.polynomials[name] = self.add(name, domain.shape, lower, upper, domain.norm_bound)
                continue
            shift, scale = units[name]
            lower, upper = interval_product((sum_ends(lower, -shift)[0], sum_ends(upper, -shift)[1]), (scale, scale))
            scalars = self.add(name, domain.shape, lower, upper, norm_up(abs_ends(lower, upper)[1]))
            moved = Polynomial.constant(shift.reshape(domain.shape, order="F"))
            self.polynomials[name] = scalars.divided(scale) + moved

    def add(self, name: str, shape: tuple[int, ...], lower: Array, upper: Array, norm: float) -> Polynomial:
        """Add a base and return it as an array of the given shape (entries in column order)."""
        base = Base(name, self.count, np.asarray(lower, dtype=float), np.asarray(upper, dtype=float), float(norm))
        self.lower, self.upper = np.append(self.lower, base.lower), np.append(self.upper, base.upper)
        self.owner = np.append(self.owner, np.full(base.size, len(self.bases)))
        self.bases.append(base)
        return Polynomial.scalars(shape, base.start)

    @property
    def count(self) -> int:
        return len(self.owner)

    def range(self, polynomial: Polynomial) -> tuple[Array, Array]:
        """Return bounds on the entries of a polynomial without theta: the tighter of interval arithmetic and Cauchy-Schwarz."""
        monomial = self.monomial_range(polynomial.monomial)
        largest = np.max(np.abs(monomial), axis=0)
        box = interval_sums(polynomial.entry, *interval_product(monomial, polynomial.ends), polynomial.size)
        if polynomial.monomial.shape[1] == 0:  # numbers
            return box
        centre, radius = np.zeros((2, polynomial.size))
        for kind, members in self.kinds(polynomial.monomial).items():
            entry, coefficient = polynomial.entry[members], polynomial.coefficient[members]
            if not kind:
                centre += np.bincount(entry, weights=coefficient, minlength=polynomial.size)
                continue
            weight = coefficient**2 / self.multiplicity(polynomial.monomial[members])
            norm = np.prod([self.bases[b].norm for b in kind])
            radius += norm * np.sqrt(np.bincount(entry, weights=weight, minlength=polynomial.size))
        radius *= 1 + ROUNDING
        radius += ROUNDING * np.where(radius > 0, np.abs(centre), 0.0)
        radius += np.bincount(polynomial.entry, weights=polynomial.error * largest, minlength=polynomial.size)
        return np.maximum(box[0], centre - radius), np.minimum(box[1], centre + radius)

    def norm(self, polynomial: Polynomial) -> float:
        """Return a bound on the Euclidean norm of a polynomial without theta."""
        box = norm_up(abs_ends(*self.range(polynomial))[1])
        total = 0.0
        for kind, members in self.kinds(polynomial.monomial).items():
            _, column = numbered_rows(polynomial.monomial[members])
            weight = polynomial.coefficient[members] / np.sqrt(self.multiplicity(polynomial.monomial[members]))
            matrix = np.zeros((polynomial.size, int(column.max(initial=0)) + 1))
            np.add.at(matrix, (polynomial.entry[members], column), weight)
            total += float(np.linalg.norm(matrix, 2)) * float(np.prod([self.bases[b].norm for b in kind]))
        largest = np.max(np.abs(self.monomial_range(polynomial.monomial)), axis=0)
        error = float(np.linalg.norm(polynomial.error * largest))
        return min(box, total + error * len(polynomial.entry) ** 0.5) * (1 + ROUNDING)

    def kinds(self, monomial: NDArray[np.int64]) -> dict[tuple[int, ...], NDArray[np.int64]]:
        """Return the row numbers of the monomials by type, the tuple of bases of the factors."""
        types, number = numbered_rows(np.sort(np.append(self.owner, -1)[monomial], axis=1))
        return {tuple(int(b) for b in row if b >= 0): np.flatnonzero(number == k) for k, row in enumerate(types)}

    def multiplicity(self, monomial: NDArray[np.int64]) -> Array:
        """Return how many entries of the symmetric tensor equal each monomial: Cauchy-Schwarz divides by the square root."""
        owner, result = np.append(self.owner, -1)[monomial], np.ones(len(monomial))
        for k in range(monomial.shape[1]):  # numbers of factors so far of the same base, and of equal factors
            same_base, same = ((table[:, : k + 1] == table[:, [k]]).sum(axis=1) for table in (owner, monomial))
            result *= same_base / same
        return result

    def monomial_range(self, monomial: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return bounds on each monomial by interval arithmetic; two equal factors are a square, and so not negative."""
        lower, upper = np.append(self.lower, 1.0), np.append(self.upper, 1.0)
        nearest, farthest = abs_ends(lower, upper)
        low, high, paired = np.ones(len(monomial)), np.ones(len(monomial)), np.zeros(monomial.shape, dtype=bool)
        for k in range(monomial.shape[1] - 1):
            paired[:, k : k + 2] |= ((monomial[:, k] == monomial[:, k + 1]) & ~paired[:, k])[:, None]
        for index, square in zip(monomial.T, paired.T, strict=True):
            ends = np.where(square, nearest[index], lower[index]), np.where(square, farthest[index], upper[index])
            low, high = ends if (low == 1).all() and (high == 1).all() else interval_product((low, high), ends)
        return low, high


def for_alike(method: Callable[..., T]) -> Callable[..., T]:
    """Cache a method of an expression and of bounds on theta; expressions that differ only in their variables share results."""

    @wraps(method)
    def known(self: "Expander", expression: Expression, extent: Array | None = None) -> T:
        pattern, variables = self.pattern(expression)
        blocks = () if extent is None else tuple(extent[self.space.blocks[v.name].slice].tobytes() for v in variables)
        key = method, pattern, blocks
        if key not in self._alike:
            self._alike[key] = method(self, expression, extent)
        found: T = self._alike[key]
        return found

    return known


class Expander:
    """Expands affine expressions over one space and one record; other functions of the record are added to its bases."""

    def __init__(self, space: Space, bases: RecordVariables, declared: "Expander | None" = None) -> None:
        self.space, self.bases, self.declared = space, bases, declared
        self.functions_of_record: list[Expression] = []
        self._numbers: dict[Hashable, int] = {}
        self._alike: dict[Hashable, Any] = {}

    def expand(self, expression: Expression) -> Polynomial:
        found = self.polynomial(expression)
        if found is not None:
            return found
        assert not expression.variables
        return self._function(expression)

    @once
    def polynomial(self, expression: Expression) -> Polynomial | None:
        if expression.is_constant:
            return Polynomial.constant(expression.value if isinstance(expression, Constant) else expression.number)
        if isinstance(expression, Variable):
            block = self.space.blocks[expression.name]
            return Polynomial.coordinates(expression.shape, block.start, block.lift)
        if isinstance(expression, Field):
            field = self.bases.polynomials.get(expression.name)
            if field is None:
                why = f"the parameter {expression.name!r} is not a field of the record"
                raise NotPrivate(why, expression, "declare it as a field, or make it a constant")
            return field
        expand, (pattern, variables) = expression.operation.expand, self.pattern(expression)
        if expand is None or not variables:
            return None if expand is None else expand(self, expression)
        own = np.concatenate([np.arange(self.space.dim)[self.space.blocks[v.name].slice] for v in variables])
        if pattern not in self._alike:
            self._alike[pattern] = expand(self, expression), own
        known, first = self._alike[pattern]
        places = np.full(self.space.dim + 1, -1)
        places[first] = own
        return None if known is None else replace(known, coordinate=places[known.coordinate])

    @once
    def pattern(self, expression: Expression) -> tuple[Hashable, tuple[Variable, ...]]:
        """Return a key, equal for expressions that differ only in their variables, and the variables in order of occurrence."""
        if isinstance(expression, Variable):
            return ("variable", expression.shape, self.space.blocks[expression.name].symmetric), (expression,)
        if not expression.variables:
            return expression, ()
        parts = [self.pattern(argument) for argument in expression.args]
        place = {variable: k for k, variable in enumerate(dict.fromkeys(v for _, own in parts for v in own))}
        inner = tuple((number, tuple(place[variable] for variable in own)) for number, own in parts)
        key = expression.operation.name, expression.options, expression.shape, inner
        return self._numbers.setdefault(key, len(self._numbers)), tuple(place)

    def bounds(self, expression: Expression) -> tuple[Array, Array]:
        """Return bounds on the entries, in column order, of an expression without variables."""
        return entry_ends(self._ranges(expression))

    def _ranges(self, expression: Expression) -> list[AbstractValue]:
        if self.declared is not None:
            return self.declared._ranges(expression)
        polynomial = self.polynomial(expression)
        if polynomial is None:
            found = self.applied(expression, [self._ranges(argument) for argument in expression.args])
            return [AbstractValue(entry.value, array_norm=entry.array_norm) for entry in found]

        self.check_rounding(expression)
        low, high = self.bases.range(polynomial)
        cancelled, added = self.rounding(expression)
        near = np.maximum(cancelled, added)
        below, above = self.bases.monomial_range(polynomial.monomial)
        terms = interval_product((below, above), polynomial.ends)
        # Terms of one sign have a sum of that sign, in any order of summation.
        signs = (np.bincount(polynomial.entry, side, polynomial.size) == 0 for side in (terms[0] < 0, terms[1] > 0))
        least, most = (np.where(same & (cancelled == 0), 0.0, np.inf) for same in signs)
        low, high = np.maximum(low - near, -least), np.minimum(high + near, most)

        def length(places: list[int]) -> float:
            return self.bases.norm(polynomial.gathered(np.array(places))) + norm_up(near[places])

        return [AbstractValue(value, array_norm=(length, k)) for k, value in enumerate(intervals(low, high))]

    @for_alike
    def rounding(self, expression: Expression, extent: Array | None = None) -> tuple[Array, Array]:
        """Return two bounds on each entry's rounding error: if terms cancel, and for sums of three or more terms; otherwise 0."""
        extent = np.zeros(self.space.dim) if extent is None else np.where(np.isfinite(extent), extent, 1e150)
        factors = [np.append(0 * extent, 1.0), np.append(extent, 1.0)]
        polynomial, sizes = self.expand(expression), self.sizes.expand(expression)
        moves = np.bincount(polynomial.part(True).entry, minlength=polynomial.size) > 0
        fixed, whole = np.stack([self._added(part, factors) for part in (polynomial, sizes)], axis=1)
        left, written = np.where(moves, whole, fixed)
        count = np.bincount(sizes.entry, minlength=sizes.size)
        error = np.where(left > 0, EPSILON * (16 + count) * written, 0.0)  # complete cancellation is exact
        return np.where(written > left * (1 + APART), error, 0.0), np.where(count > 2, error, 0.0)

    @for_alike
    def check_rounding(self, expression: Expression, extent: Array | None = None) -> Array:
        """Return the size of the terms without theta and the mean slope of each entry. Raise if terms cancel up to rounding."""
        none = np.zeros(self.space.dim)
        extent = none if extent is None else np.where(np.isfinite(extent), extent, 1.0)
        factors = [np.append(part, number) for part, number in ((none, 1.0), (none + 1, 0.0), (extent, 1.0))]
        polynomial = self.expand(expression)
        left, written = (self._added(part, factors) for part in (polynomial, self.sizes.expand(expression)))
        moves = left[1] > 0
        written[2] = np.where(moves, written[2], written[0])
        lost = (EPSILON * written > APART * left) & (left > 0)
        if lost[1:].any():
            raise cancelled(written[lost].max(), expression)
        terms = np.bincount(polynomial.part(True).entry, minlength=polynomial.size)
        return np.stack([written[0], np.divide(left[1], terms, out=np.full(len(terms), np.inf), where=moves)])

    @for_alike
    def mixed_slopes(self, expression: Expression, extent: Array | None = None) -> Array:
        """Return bounds on each entry's gradient norm, as written, along coordinates of theta with terms that may cancel."""
        dim, (written, left) = self.space.dim, [f.expand(expression).part(True) for f in (self.sizes, self)]
        count, keys = len(written.entry), [part.entry * dim + part.coordinate for part in (written, left)]
        places, number = np.unique(np.concatenate(keys), return_inverse=True)
        size, largest = np.bincount(number[:count], self._extents(written), len(places)), np.zeros(len(places))
        np.maximum.at(largest, number[count:], self._extents(left))
        squares = np.where(size > largest * (1 + APART), size, 0.0) ** 2
        return np.sqrt(np.bincount(places // dim, squares, written.size))

    def _added(self, polynomial: Polynomial, factors: Sequence[Array]) -> Array:
        """Return sums of the sizes of terms by entry, weighted by each array of factors; the last factor is for no theta."""
        weights = [self._extents(polynomial) * factor[polynomial.coordinate] for factor in factors]
        return np.stack([np.bincount(polynomial.entry, each, polynomial.size) for each in weights])

    def _extents(self, polynomial: Polynomial) -> Array:
        largest = np.max(np.abs(self.bases.monomial_range(polynomial.monomial)), axis=0)
        return np.asarray(np.abs(polynomial.coefficient) * largest)

    @cached_property
    def sizes(self) -> "Sizes":
        return Sizes(self)

    def applied(self, expression: Expression, arguments: Sequence[Sequence[AbstractValue]]) -> list[AbstractValue]:
        """Return an atom's bounds from the bounds on its arguments. Raise if an argument can leave the atom's domain."""
        atom, inside = expression.operation, []
        for argument, kind, entries in zip(expression.args, atom.domain(expression), arguments, strict=True):
            low, high = entry_ends(entries)
            if kind in ("positive", "not negative") and sign(argument) == 1:
                low = np.maximum(low, 0.0)
                entries = [replace(e, value=v) for e, v in zip(entries, intervals(low, high), strict=True)]
            inside.append(entries)
            symmetric = kind in ("symmetric", "semidefinite")
            if symmetric and not (argument.is_affine and self.expand(argument).is_symmetric):
                why = f"{atom.name} is defined for symmetric matrices, and this one is not symmetric for every record"
                remedy = "declare the variable symmetric, and add fields of the record as outer products or diagonals"
                raise NotPrivate(why, expression, remedy)
            least = low.min(initial=np.inf)
            if kind == "semidefinite":
                least = eigenvalue_range(argument.shape, low, high).low
            if kind not in (None, "symmetric") and (least < 0 or (least == 0 and kind == "positive")):
                why = f"{atom.name} needs an argument that is {kind}, and it goes down to {least:.4g}"
                raise NotPrivate(why, expression, f"shift the argument, or {NARROWER}")
        try:
            with np.errstate(over="ignore"):  # infinite bounds raise later, with the name of the expression
                return list(atom.bounds(expression, inside))
        except NotPrivate as error:
            if error.expression is not None:
                raise
            raise type(error)(error.reason, expression, error.remedy) from error  # name the expression

    @once
    def _function(self, expression: Expression) -> Polynomial:
        found = self._ranges(expression)
        lower, upper = entry_ends(found)
        if not np.isfinite([lower, upper]).all():
            why, remedy = "a function of the record is unbounded over", "use a function that is bounded on"
            raise NotPrivate(f"{why} the record's domain", expression, f"{remedy} the declared domain")
        norm = min(norm_up(np.maximum(-lower, upper)), norm_of(found))
        self.functions_of_record.append(expression)
        return self.bases.add(str(expression), expression.shape, lower, upper, norm)


class Sizes(Expander):
    """Expands expressions with the absolute values of all coefficients, so that no terms cancel."""

    def __init__(self, expander: Expander) -> None:
        super().__init__(expander.space, expander.bases)
        self._expander = expander

    def polynomial(self, expression: Expression) -> Polynomial | None:
        found = super().polynomial(expression)
        return None if found is None else replace(found, coefficient=np.abs(found.coefficient))

    def _function(self, expression: Expression) -> Polynomial:
        return self._expander.expand(expression)
