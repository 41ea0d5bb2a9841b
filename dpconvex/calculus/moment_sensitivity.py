"""How long the moments of one record are, and how far those of two records are apart, over the record's domain.

All moments of one kind together are the tensor product of the record's fields with a row of patterns, so the inner product of
those of two records z and z' is

    K(z, z') = sum over kinds of  weight^2  P(y, y')  product over the kind's fields b of <b, b'>,

P being inner products of patterns.  Moments that are left out of a kind only make differences shorter.  The squared distance
K(z, z) + K(z', z') - 2 K(z, z') is a polynomial in few numbers for each field (docs/theory.md, section 18):

- a field with several scalars: its squared norms count in the first two terms alone, where they are best largest, so what is left
  is the inner product c of both values, anywhere in its range;
- a field with one scalar: both values.  If it occurs to no higher power than one, the distance is convex in each, and its
  bounds are enough;
- the weights of both records, from 0 to 1, likewise.

The largest value is enclosed by halving boxes; whenever that ends, the enclosure is a bound.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.moments import Kind, Moments
from dpconvex.core.record_scalars import Bases
from dpconvex.core.runtime import once

Array = NDArray[np.float64]
# Values of one scalar and of the other record's, or inner products and None.
Box = tuple[tuple[float, float], tuple[float, float] | None]

# Rounding of all that is computed here, and of records that are checked in floating point: of results, and of terms that cancel.
SLACK, ROUNDING = 1 + 1e-9, 1e-12
# The enclosure is this close to the largest value found, unless that takes more boxes.
CLOSE, MOST_BOXES, ROUNDS = 1e-6, 2**14, 200
# Boxes are tried at their corners, in so many dimensions.
CORNERS = 6


def length_bound(moments: Moments, bases: Bases) -> float:
    """Bound the Euclidean norm of one record's moments."""
    squares = sum((scaled(kind, bases) * np.sum(kind.patterns**2, axis=1) for kind in moments.kinds), np.zeros(1))
    return float(np.sqrt(np.max(squares))) * SLACK


@once
def difference_bound(moments: Moments, bases: Bases) -> float:
    length = length_bound(moments, bases)
    fields = sorted({b for kind in moments.kinds for b in kind.bases})
    choices = [boxes_of(base, moments, bases) for base in fields]
    powers = np.array([[kind.bases.count(base) for base in fields] for kind in moments.kinds], dtype=np.int64)
    weights = np.array([scaled(kind, bases) for kind in moments.kinds])
    if any(kind.weights for kind in moments.kinds):
        choices.append([((0.0, 1.0), (0.0, 1.0))])
        powers = np.column_stack([powers, [kind.weights for kind in moments.kinds]])
    largest = 0.0
    for own, other, cross in {tuple(map(tuple, case)) for case in pattern_pairs(moments)}:
        parts = [weights * np.array(part) for part in (own, other, cross)]
        for choice in itertools.product(*choices):
            largest = float(np.maximum(largest, Distance(parts, powers, list(choice)).largest(largest)))
    return min(float(np.sqrt(largest + ROUNDING * length**2)) * SLACK, 2 * length)


def pattern_pairs(moments: Moments) -> set[tuple[tuple[float, ...], ...]]:
    """Return for all pairs of combinations the products P(y, y), P(y', y') and P(y, y') of every kind, each case once."""
    found = set()
    products = np.array([kind.patterns @ kind.patterns.T for kind in moments.kinds])
    for y in range(products.shape[1]):
        for z in range(y + 1):
            case = products[:, y, y], products[:, z, z], products[:, y, z]
            found.add(tuple(tuple(part.tolist()) for part in case))
    return found


def scaled(kind: Kind, bases: Bases) -> float:
    """Bound the squared norm of all moments of a kind but for the patterns: a weight, if nothing is rounded."""
    result = kind.scale**2
    for base in kind.bases:
        result *= bases.bases[base].squared[1]
    return result


def boxes_of(base: int, moments: Moments, bases: Bases) -> list[Box]:
    """Return what to search for a field, in units of its largest norm."""
    field = bases.bases[base]
    square = field.squared[1]
    if field.size > 1:
        low, high = (end / square for end in field.paired)
        return [((low, high), None)]
    low, high = (float(end[0]) / float(np.sqrt(square)) for end in (field.lower, field.upper))
    if max(kind.bases.count(base) for kind in moments.kinds) > 1:
        return [((low, high), (low, high))]
    return [((a, a), (b, b)) for a, b in itertools.product((low, high), repeat=2)]


class Distance:
    """The squared distance of two records' moments as a polynomial, and its largest value in a box."""

    def __init__(
        self,
        parts: list[Array],
        powers: NDArray[np.int64],
        choice: list[Box],
    ) -> None:
        own, other, cross = parts
        box: list[tuple[float, float]] = []
        exponents: list[NDArray[np.int64]] = []
        none = np.zeros(len(own), dtype=np.int64)
        for column, (first, second) in enumerate(choice):
            power = powers[:, column]
            box.append(first)
            if second is None:  # an inner product, which the first two parts do not see
                exponents.append(np.concatenate([none, none, power]))
            else:
                box.append(second)
                exponents.append(np.concatenate([2 * power, none, power]))
                exponents.append(np.concatenate([none, 2 * power, power]))
        self.coefficients = np.concatenate([own, other, -2 * cross])
        self.exponents = np.array(exponents, dtype=np.int64).reshape(len(box), len(self.coefficients))
        corners = itertools.product((0.0, 1.0), repeat=min(len(box), CORNERS))
        self.probes = [np.array([*corner, *[0.5] * (len(box) - len(corner))]) for corner in corners]
        self.low, self.high = (np.array([side[k] for side in box]).reshape(1, len(box)) for k in (0, 1))

    def largest(self, known: float) -> float:
        low, high = self.low, self.high
        if low.shape[1] == 0:
            return float(self.coefficients.sum())
        best = known
        for _ in range(ROUNDS):
            best = max(best, *(float(self.values(low + at * (high - low)).max()) for at in self.probes))
            bound = self.bounds(low, high)
            open_ = ~(bound <= best + CLOSE * abs(best))
            if not open_.any() or 2 * open_.sum() > MOST_BOXES:
                return max(best * (1 + CLOSE), float(bound.max()) if open_.any() else best)
            low, high = low[open_], high[open_]
            row, axis = np.arange(len(low)), np.argmax(high - low, axis=1)
            cut = (low[row, axis] + high[row, axis]) / 2
            left, right = high.copy(), low.copy()
            left[row, axis] = right[row, axis] = cut
            low, high = np.concatenate([low, right]), np.concatenate([left, high])
        return float(self.bounds(low, high).max())

    def values(self, at: Array) -> Array:
        """Evaluate at points, shape (n, variables)."""
        return np.asarray(np.prod(at[:, :, None] ** self.exponents, axis=1) @ self.coefficients)

    def bounds(self, low: Array, high: Array) -> Array:
        """Bound the polynomial over boxes from above: term by term, or by its slopes around the middle."""
        natural = self.enclosed(self.coefficients, self.exponents, low, high)[1]
        middle = self.values((low + high) / 2)
        for k in range(low.shape[1]):
            lower = self.exponents.copy()
            lower[k] = np.maximum(lower[k] - 1, 0)
            down, up = self.enclosed(self.coefficients * self.exponents[k], lower, low, high)
            middle = middle + np.maximum(np.abs(down), np.abs(up)) * (high[:, k] - low[:, k]) / 2
        return np.minimum(natural, middle)

    @staticmethod
    def enclosed(coefficients: Array, exponents: NDArray[np.int64], low: Array, high: Array) -> tuple[Array, Array]:
        """Bound sums of terms over boxes from below and above, term by term."""
        down, up = np.ones((len(low), len(coefficients))), np.ones((len(low), len(coefficients)))
        for k in range(low.shape[1]):
            ends = low[:, k, None] ** exponents[k], high[:, k, None] ** exponents[k]
            least, most = np.minimum(*ends), np.maximum(*ends)
            crosses = (low[:, k, None] < 0) & (high[:, k, None] > 0) & (exponents[k] % 2 == 0) & (exponents[k] > 0)
            least = np.where(crosses, 0.0, least)
            products = [down * least, down * most, up * least, up * most]
            down, up = np.minimum.reduce(products), np.maximum.reduce(products)
        ends = coefficients * down, coefficients * up
        return np.minimum(*ends).sum(axis=1), np.maximum(*ends).sum(axis=1)
