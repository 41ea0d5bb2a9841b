"""Arithmetic with outward rounding: intervals, and bounds on sums, products, quotients, roots and norms.

Every bound of a proof uses these functions. Exact results are unchanged; other results are rounded outward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Ends = tuple[Array, Array]  # lower and upper bounds

# Tolerances: each number once, with its purpose and its tests.  A slack covers the rounding of the named computation: the
# bound in a proof is multiplied by 1 + slack.
UNIT_ROUNDOFF = 2.0**-53  # One operation in double precision: tests/sums/test_summation.py
ROUNDED_UP = 1 + 1e-15  # Factor for up to four roundings of one number: tests/noise/test_samplers.py
BOUND_SLACK = 1e-14  # A few roundings of one bound: tests/sensitivity/test_atom_bounds.py
SUM_SLACK = 1e-11  # Sums of up to some thousand terms, in each certified constant: tests/noise/test_samplers.py
NORM_SLACK = 1e-12  # Norms of records as computed, levels of noise, short sums of them: tests/noise/test_samplers.py
TAIL_SLACK = 1e-9  # Quantiles, tails, and results of searches: tests/noise/test_samplers.py
FUNCTION_SLACK = 1e-13  # SciPy's special functions: tests/noise/test_profiles.py
MATRIX_SLACK = 1e-6  # Quantiles of matrix-shaped noise, which a search finds: tests/noise/test_samplers.py
GRID_SLACK = 4e-9  # The scale of integer noise beside that of real noise: tests/mechanisms/test_residual_noise.py
LOSS_ROUNDING = 4e-15  # Elementary functions of tables of privacy losses: tests/noise/test_profiles.py
EIGENVALUE_ROUNDING = 1e-15  # A computed eigenvalue or gradient, next to the largest: tests/sensitivity/test_bounds.py
GRAM_ROUNDING = 2.0**-44  # A sum next to its absolute terms, some 500 roundings: tests/sensitivity/test_bounds.py
CLIP_ROUNDING = 2.0**-50  # One term of the squared norm by which a gradient is clipped: tests/sums/test_summation.py
RECORD_TOLERANCE = 1e-6  # A record outside its domain by rounding is put back: tests/data/test_columns.py
DRAW_TOLERANCE = 1e-9  # Orthonormal columns keep the length of drawn noise: tests/noise/test_samplers.py
TRANSLATION_TOLERANCE = 1e-9  # Values here and CVXPY's, next to the largest: tests/sums/test_compiled.py
EPSILON = 2.0**-52  # The distance of 1 from the next larger number
TINY = 2.0**-1021  # Results of functions below this have lost digits, or all of them
# Two bounds of one number may contradict each other by this fraction of the size of its terms, which may be millions.
APART = 1e-9
HALF, SMALLEST = 26, 1e-290  # Half of the digits of a number, and the smallest number that has them all
POINT_BITS = 20  # Numbers with at most so many binary digits after the point are summed exactly, if they are not large
CANCELLED = 2.0**-10  # A sum that is smaller than its terms by this factor is added up again, exactly
INSIDE = 1 - 2.0**-36  # Covers the rounding of norms of 2^16 numbers and of products, before these are made whole


@dataclass(frozen=True)
class Interval:
    """A closed interval; sums, products and powers are rounded outward, unless they are exact.

    After an overflow that leaves NaN as an end, both ends are infinite.

    >>> Interval(1e16, 1e16) + Interval(1.0, 1.0)
    Interval(low=9999999999999998.0, high=1.0000000000000002e+16)
    >>> Interval(-1.0, 2.0) * Interval(3.0, 3.0)
    Interval(low=-3.0, high=6.0)
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if math.isnan(self.low) or math.isnan(self.high):
            object.__setattr__(self, "low", -math.inf)
            object.__setattr__(self, "high", math.inf)

    @property
    def size(self) -> float:
        return max(abs(self.low), abs(self.high))

    def __add__(self, other: Interval) -> Interval:
        return Interval(plus(self.low, other.low)[0], plus(self.high, other.high)[1])

    def __mul__(self, other: Interval) -> Interval:
        corners = [times(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(min(low for low, _ in corners), max(high for _, high in corners))

    def rounded(self, magnitude: float = 0.0, count: int = 8) -> Interval:
        """Return the interval widened by `count` roundings of each end, or of `magnitude` if it is larger."""
        low, high = (count * EPSILON * max(abs(end), magnitude) for end in (self.low, self.high))
        return Interval(self.low - low, self.high + high)

    def power(self, exponent: int) -> Interval:
        base = self
        if exponent % 2 == 0 and self.low < 0:
            base = Interval(max(0.0, -self.high), max(-self.low, self.high))
        return reduce(mul, [base] * exponent)


def intervals(low: Array, high: Array) -> list[Interval]:
    return list(map(Interval, low.tolist(), high.tolist()))


def abs_ends(low: Array, high: Array) -> Ends:
    """Return lower and upper bounds on the absolute values of numbers in intervals."""
    return np.maximum(np.maximum(low, -high), 0.0), np.maximum(np.abs(low), np.abs(high))


def outward(value: float, exact: bool) -> tuple[float, float]:
    """Return bounds on the exact number of a rounded value: its neighbours, or the value itself if it is exact."""
    if exact:
        return value, value
    return math.nextafter(value, -math.inf), math.nextafter(value, math.inf)


def plus(a: float, b: float) -> tuple[float, float]:
    total = a + b
    other = total - a
    return outward(total, other == b and total - other == a)  # Knuth's error is 0


def times(a: float, b: float) -> tuple[float, float]:
    """Return bounds on a product; zero times an infinite end is zero."""
    if a == 0 or b == 0:
        return 0.0, 0.0
    whole = abs(a * b) < 1 / EPSILON and a % 1 == 0 and b % 1 == 0
    low, high = outward(a * b, whole or abs(a) == 1 or abs(b) == 1)
    return (max(low, 0.0), high) if (a > 0) == (b > 0) else (low, min(high, 0.0))


def sum_ends(a: Any, b: Any) -> Ends:
    """Return lower and upper bounds on sums of arrays; Knuth's error term is exact."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.asarray(a + b, dtype=float)
        other = total - a
        error = (a - (total - other)) + (b - other)
    return moved(total, error < 0, error > 0, np.isfinite(a) & np.isfinite(b))


def quotient_ends(a: Any, b: Any) -> Ends:
    """Return lower and upper bounds on quotients of arrays, with divisors that are not zero."""
    with np.errstate(all="ignore"):
        quotient = np.asarray(a / b, dtype=float)
        product, error = rounded_product(quotient, np.asarray(b, dtype=float))
    missed = (product != a) | (error > 0)
    return moved(quotient, missed, missed, np.isfinite(a) & np.isfinite(b))


def moved(values: Array, below: Any, above: Any, known: Any) -> Ends:
    """Return bounds: the neighbours of values if exact ones may lie below or above, or if `known` (finite) inputs overflow."""
    with np.errstate(over="ignore"):
        down, up = np.nextafter(values, -np.inf), np.nextafter(values, np.inf)
    low = np.where(below | (known & (values == np.inf)), down, values)
    return low, np.where(above | (known & (values == -np.inf)), up, values)


def float_down(number: Fraction) -> float:
    """Return the largest floating-point number, up to 2^1023, that does not exceed an exact number."""
    if abs(number) >= 2**1023:
        return 2.0**1023 if number > 0 else -math.inf
    found = float(number)
    return found if found <= number else math.nextafter(found, -math.inf)


def root_up(square: float) -> float:
    """Return an upper bound on the square root; 0 for a negative number."""
    return root_ends(max(square, 0.0))[1]


def root_ends(square: float) -> tuple[float, float]:
    """Return lower and upper bounds on a square root."""
    root = np.array(math.sqrt(square))
    product, error = rounded_product(root, root)
    return outward(float(root), bool(product == square and error == 0))


def norm_up(values: Any) -> float:
    """Return an upper bound on a Euclidean norm, for entries of any size."""
    sizes = np.abs(np.asarray(values, dtype=float)).ravel()
    largest = float(sizes.max(initial=0.0))
    if not 0 < largest < np.inf or np.count_nonzero(sizes) == 1:
        return largest
    unit = math.ldexp(1.0, max(math.frexp(largest)[1] - 1, -1000))
    scaled = sizes / unit
    squares, missed = rounded_product(scaled, scaled)
    (total,), (error,) = rounded_sums(squares, np.zeros(1, dtype=np.int64))
    error += missed.sum() + SMALLEST * bool((scaled * unit != sizes).any())
    found = unit * root_up(math.nextafter(total + error, math.inf) if error else float(total))
    return found if found > TINY else math.nextafter(found, math.inf)


def rounded_product(a: Array, b: Array) -> Ends:
    """Return products and bounds on their rounding errors, which are 0 for exact products."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        product = a * b
        a0, b0 = (np.ldexp(np.rint(np.ldexp(m, HALF)), e - HALF) for m, e in (np.frexp(a), np.frexp(b)))
        # The product of two halves of the digits is exact, so this is the error (Dekker 1971), itself without rounding.
        error = np.abs(((a0 * b0 - product) + a0 * (b - b0) + (a - a0) * b0) + (a - a0) * (b - b0))
        tiny = (np.abs(product) < SMALLEST) & (a != 0) & (b != 0)
        error = np.where(np.isfinite(error), error, np.abs(product) * EPSILON)
    return product, np.where(tiny, np.maximum(error, SMALLEST * EPSILON), error)


def rounded_sums(values: Array, starts: Indices) -> Ends:
    """Return sums of runs of numbers, each from one of `starts` to the next, and bounds on their rounding errors."""
    total, size = np.add.reduceat(values, starts), np.add.reduceat(np.abs(values), starts)
    ends = np.append(starts[1:], len(values))
    # Sums of few whole multiples of a unit are exact.
    units = np.ldexp(values, POINT_BITS)
    whole = np.logical_and.reduceat(np.rint(units) == units, starts) & (np.ldexp(size, POINT_BITS) < 1 / EPSILON)
    error = np.where((ends - starts > 1) & ~whole, (ends - starts) * EPSILON * size, 0.0)
    for k in np.flatnonzero((ends - starts > 1) & (np.abs(total) <= CANCELLED * size) & (size < np.inf)):
        total[k] = math.fsum(values[starts[k] : ends[k]])
        error[k] = 0.0 if whole[k] else EPSILON * abs(total[k])
    return total, error


def interval_product(first: Ends, second: Ends) -> Ends:
    """Return lower and upper bounds on products of numbers in intervals, rounded outward unless they are exact."""
    low, high = np.full(np.shape(first[0]), np.inf), np.full(np.shape(first[0]), -np.inf)
    for a in first:
        for b in second:
            product, error = rounded_product(a, b)
            product = np.where((a == 0) | (b == 0), 0.0, product)  # also where the other factor is infinite
            inexact = (error > 0) & (a != 0) & (b != 0)
            below, above = moved(product, inexact, inexact, False)
            if (vanished := inexact & (product == 0)).any():  # an underflow keeps its sign
                same = (a > 0) == (b > 0)
                below, above = np.where(vanished & same, 0.0, below), np.where(vanished & ~same, 0.0, above)
            low, high = np.minimum(low, below), np.maximum(high, above)
    return low, high


def interval_sums(entry: Indices, low: Array, high: Array, size: int) -> Ends:
    """Return lower and upper bounds on sums of intervals by entry, rounded outward unless exact, each of shape (size,)."""
    order = np.argsort(entry, kind="stable")
    found, starts = np.unique(entry[order], return_index=True)
    least, most = np.zeros(size), np.zeros(size)
    if len(found):
        with np.errstate(invalid="ignore"):
            (lower, lost), (upper, gained) = (rounded_sums(end[order], starts) for end in (low, high))
        least[found] = np.where(lost > 0, np.nextafter(lower - lost, -np.inf), lower)
        most[found] = np.where(gained > 0, np.nextafter(upper + gained, np.inf), upper)
    return least, most


def falling_sum(last: float, count: int) -> float:
    """Bound the sum of `count` numbers that fall in proportion from 1; the next one would be `last`, at most 1."""
    fall = math.log(min(max(last, 1e-300), 1.0))
    return math.expm1(fall) / math.expm1(fall / count) * (1 + SUM_SLACK) if fall else float(count)


def grid_step(bound: float, bits: int) -> float:
    """Return the power of two u for which numbers up to `bound` are at most 2^bits times u."""
    return 2.0 ** (math.ceil(math.log2(bound)) - bits)
