"""Directed rounding against exact rational arithmetic, for numbers of any size."""

from fractions import Fraction
from itertools import product
from math import inf, isqrt, nextafter

import numpy as np
import pytest

from dpconvex.numerics import (
    Interval,
    float_down,
    interval_product,
    interval_sums,
    norm_up,
    plus,
    quotient_ends,
    root_up,
    sum_ends,
    times,
)

LARGEST = float(np.finfo(float).max)
SPECIAL = [0.0, 1.0, -1.0, 3.0, 0.1, -0.1, 1e16, -1e16, 5e-324, 1e-300, -1e-200, 1e300, LARGEST, 1 / 3, 2.0**-1022]


def drawn(count, seed=0):
    rng = np.random.default_rng(seed)
    ordinary = rng.normal(size=count) * 10.0 ** rng.uniform(-300, 300, size=count)
    whole = rng.integers(-(2**53), 2**53, size=count) * 2.0 ** rng.integers(-60, 60, size=count)
    return np.where(rng.random(count) < 0.5, ordinary, whole)


def value(end):
    return Fraction(end) if abs(end) < inf else Fraction(10) ** 700 * (1 if end > 0 else -1)


def encloses(low, exact, high, tight=True):
    """Whether two floating-point numbers enclose an exact one, and are neighbours of it or nearly so."""
    close = not tight or high in (low, nextafter(low, inf), nextafter(nextafter(low, inf), inf))
    return value(low) <= exact <= value(high) and close


def test_sums_products_and_quotients():
    numbers = np.append(drawn(150), SPECIAL)
    a, b = (side.ravel() for side in np.meshgrid(numbers, numbers))
    with np.errstate(all="ignore"):
        sums, products = sum_ends(a, b), interval_product((a, a), (b, b))
        nonzero = b != 0
        quotients = quotient_ends(a[nonzero], b[nonzero])
    for one, two, *ends in zip(*map(np.ndarray.tolist, (a, b, *sums, *products)), strict=True):
        x, y = Fraction(one), Fraction(two)
        assert encloses(ends[0], x + y, ends[1])
        assert encloses(*[plus(one, two)[0], x + y, plus(one, two)[1]])
        assert encloses(ends[2], x * y, ends[3])
        assert encloses(times(one, two)[0], x * y, times(one, two)[1])
        assert ends[2] >= 0 or x * y < 0, "a product that is not negative keeps its sign"
    for one, two, low, high in zip(a[nonzero], b[nonzero], *quotients, strict=True):
        assert encloses(low, Fraction(one) / Fraction(two), high)


@pytest.mark.parametrize("seed", range(20))
def test_sums_norms_and_roots(seed):
    numbers = drawn(12, seed)
    if seed % 2:
        numbers[6:] = -numbers[:6] * (1 + 2.0**-52)
    low, high = interval_sums(np.zeros(12, dtype=int), numbers, numbers, 1)
    assert value(low[0]) <= sum(map(Fraction, numbers)) <= value(high[0])
    bound = norm_up(numbers)
    assert value(bound) ** 2 >= sum(Fraction(x) ** 2 for x in numbers)
    assert bound <= np.abs(numbers).max() * 12
    for x in np.abs(numbers).tolist():
        assert Fraction(root_up(x)) ** 2 >= Fraction(x)


def test_exact_numbers_are_rounded_down():
    for x in (*drawn(50).tolist(), *SPECIAL):
        for number in (Fraction(x), Fraction(x) + Fraction(1, 10**400), Fraction(x) * Fraction(1, 3), Fraction(x) ** 2):
            found = float_down(number)
            assert found == -inf or Fraction(found) <= number
            assert number >= 2**1023 or Fraction(nextafter(found, inf)) > number


def test_what_is_exact_stays():
    assert norm_up([3.0, -4.0]) == 5
    assert norm_up([0.0, 0.1, 0.0]) == 0.1
    assert norm_up([]) == 0
    assert norm_up([1e-200, 1e-200]) > 1.4e-200
    assert norm_up([1e200, 1e200]) < 1.5e200
    assert norm_up([5e-324, 5e-324]) > 5e-324
    assert norm_up([2.0**600, 1e-300]) > 2.0**600
    assert root_up(0.25) == 0.5
    assert root_up(isqrt(2**52) ** 2) == 2.0**26
    assert root_up(2.0) > 2**0.5
    assert [ends[0] for ends in sum_ends(np.array([0.1]), np.array([0.4]))] == [0.5, np.nextafter(0.5, 1)]
    assert quotient_ends(1.0, 4.0) == (0.25, 0.25)
    assert quotient_ends(1.0, 3.0)[0] < 1 / 3 < quotient_ends(1.0, 3.0)[1]


def test_overflow_is_no_number_from_below():
    assert (Interval(LARGEST, LARGEST) + Interval(LARGEST, LARGEST)).low == LARGEST
    assert (Interval(1e200, inf) * Interval(1e200, 1e200)) == Interval(LARGEST, inf)
    for a, b in product((inf, -inf), (1.0, -1.0)):
        assert np.max(interval_product((np.array([a]),) * 2, (np.array([b]),) * 2)) >= a * b
