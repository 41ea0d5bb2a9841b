"""The record's scalars, numbered, with their public bounds.

Each continuous field is a *base*: consecutive scalars with coordinatewise bounds and a Euclidean norm bound.  A function of
the record that is not a polynomial (a norm, an exponential) becomes a base of its own, with bounds found by interval rules.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.arrays import Array
from dpconvex.core.polynomial import Polynomial, interval_product, interval_sums, numbered_rows
from dpconvex.core.record_domains import Fields

# A few roundings, relative to what is rounded.
ROUNDING = 16 * float(np.finfo(float).eps)


@dataclass(frozen=True, eq=False)
class Base:
    """Consecutive record scalars with public bounds, on each of them and on the Euclidean norm of all."""

    name: str
    start: int  # number of the first scalar
    lower: Array
    upper: Array
    norm: float

    @property
    def size(self) -> int:
        return len(self.lower)

    @property
    def extent(self) -> Array:
        return np.maximum(np.abs(self.lower), np.abs(self.upper))

    @cached_property
    def squared(self) -> tuple[float, float]:
        """Range of the squared Euclidean norm."""
        near = np.maximum(np.maximum(self.lower, -self.upper), 0.0)
        ends = interval_product((near, near), (near, near))[0], interval_product(*[(self.extent, self.extent)] * 2)[1]
        low, high = interval_sums(np.zeros(self.size, dtype=np.int64), *ends, 1)
        return float(low[0]), min(float(high[0]), self._square)

    @cached_property
    def _square(self) -> float:
        norm = np.array(self.norm)
        return float(interval_product((norm, norm), (norm, norm))[1])

    @cached_property
    def paired(self) -> tuple[float, float]:
        """Range of the inner product of two values of the base."""
        both = self.lower, self.upper
        low, high = interval_sums(np.zeros(self.size, dtype=np.int64), *interval_product(both, both), 1)
        return max(float(low[0]), -self._square), min(float(high[0]), self._square)


class Bases:
    """All bases of a record: bounds of all scalars, the number of each scalar's base (`owner`), and the fields as polynomials."""

    def __init__(self, record: Fields) -> None:
        self.bases: list[Base] = []
        self.lower, self.upper = np.empty(0), np.empty(0)
        self.owner = np.empty(0, dtype=np.int64)
        self.polynomials: dict[str, Polynomial] = {}
        for name, domain in record.continuous.items():
            lower, upper = (bound.reshape(-1, order="F") for bound in domain.bounds)
            self.polynomials[name] = self.add(name, domain.shape, lower, upper, domain.norm_bound)

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
        """Bound the entries of a record-only polynomial from below and above, each of shape (size,).

        Each monomial is bounded by interval arithmetic; as an alternative, monomials of one type (so many factors from each
        base) are bounded together by Cauchy-Schwarz with the bases' norms.  The tighter bound wins, entry by entry.
        """
        coefficient, error = polynomial.coefficient, polynomial.error
        around = np.where(error > 0, np.nextafter(coefficient - error, -np.inf), coefficient)
        about = np.where(error > 0, np.nextafter(coefficient + error, np.inf), coefficient)
        monomial = self.monomial_range(polynomial.monomial)
        largest = np.max(np.abs(monomial), axis=0)
        ends = interval_product(monomial, (around, about))
        box = interval_sums(polynomial.entry, *ends, polynomial.size)
        if polynomial.monomial.shape[1] == 0:  # numbers
            return box
        centre = np.zeros(polynomial.size)
        radius = np.zeros(polynomial.size)
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
        radius += np.bincount(polynomial.entry, weights=error * largest, minlength=polynomial.size)
        return np.maximum(box[0], centre - radius), np.minimum(box[1], centre + radius)

    def norm(self, polynomial: Polynomial) -> float:
        """Bound the Euclidean norm of all entries of a record-only polynomial together."""
        low, high = self.range(polynomial)
        box = float(np.linalg.norm(np.maximum(np.abs(low), np.abs(high))))
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
        """Group monomials by type: the bases that their factors come from.  Returns type -> row numbers."""
        owner = np.append(self.owner, -1)
        types, number = numbered_rows(np.sort(owner[monomial], axis=1))
        return {tuple(int(b) for b in row if b >= 0): np.flatnonzero(number == k) for k, row in enumerate(types)}

    def multiplicity(self, monomial: NDArray[np.int64]) -> Array:
        """Count, for each monomial, the equal entries that stand for it in the tensor product of its bases.

        The tensor power of a base holds the product of k of its distinct scalars k! times.  Coefficients divided by the
        square root of this count are those of the symmetric tensor, whose norm Cauchy-Schwarz needs.
        """
        owner = np.append(self.owner, -1)[monomial]
        result = np.ones(len(monomial))
        in_base, in_scalar = np.zeros(len(monomial)), np.zeros(len(monomial))
        for column in range(monomial.shape[1]):
            same_base, same_scalar = repeats(owner, column), repeats(monomial, column)
            in_base = np.where(same_base, in_base + 1, 1)
            in_scalar = np.where(same_scalar, in_scalar + 1, 1)
            result *= in_base / in_scalar
        return result

    def monomial_range(self, monomial: NDArray[np.int64]) -> tuple[Array, Array]:
        """Bound each monomial by interval arithmetic, knowing that even powers are not negative."""
        lower, upper = np.append(self.lower, 1.0), np.append(self.upper, 1.0)
        low, high = np.ones(len(monomial)), np.ones(len(monomial))
        run, square = np.zeros(len(monomial), dtype=int), np.ones(len(monomial), dtype=bool)
        for column in range(monomial.shape[1]):
            index = monomial[:, column]
            low, high = interval_product((low, high), (lower[index], upper[index]))
            same = repeats(monomial, column)
            square &= same | (run % 2 == 0)
            run = np.where(index < 0, 0, np.where(same, run + 1, 1))
        square &= run % 2 == 0
        return np.where(square, np.maximum(low, 0.0), low), high


def repeats(table: NDArray[np.int64], column: int) -> NDArray[np.bool_]:
    """Say for which rows the entry in a column equals the one before it (padding, -1, never does)."""
    if column == 0:
        return np.zeros(len(table), dtype=bool)
    return (table[:, column] == table[:, column - 1]) & (table[:, column] >= 0)
