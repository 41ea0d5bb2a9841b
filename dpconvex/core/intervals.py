"""Closed intervals of numbers, rounded outward."""

from __future__ import annotations

import math
from dataclasses import dataclass

EPSILON = 2.0**-52
# Bounds of one number may miss each other by this fraction of the size of its terms, for rounding: there may be millions of them.
APART = 1e-9


@dataclass(frozen=True)
class Interval:
    """A closed interval; sums, products and powers are rounded outward, unless they are exact.

    An end that is not a number, after an overflow, is infinite: nothing is known.

    Examples
    --------
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
        """Largest absolute value."""
        return max(abs(self.low), abs(self.high))

    def __add__(self, other: Interval) -> Interval:
        return Interval(plus(self.low, other.low)[0], plus(self.high, other.high)[1])

    def __mul__(self, other: Interval) -> Interval:
        corners = [times(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        return Interval(min(low for low, _ in corners), max(high for _, high in corners))

    def rounded(self, magnitude: float = 0.0, count: int = 8) -> Interval:
        """Move the ends outward by a few roundings of themselves, or of the size of what they are sums of.

        >>> Interval(0.0, 1.0).rounded().low
        0.0
        """
        low, high = (count * EPSILON * max(abs(end), magnitude) for end in (self.low, self.high))
        return Interval(
            self.low - low if math.isfinite(self.low) else self.low,
            self.high + high if math.isfinite(self.high) else self.high,
        )

    def meet(self, other: Interval, magnitude: float = 0.0) -> Interval:
        """Intersect two intervals that contain one number, both computed with rounding."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        if low <= high:
            return Interval(low, high)
        ends = (self.low, self.high, other.low, other.high)
        if not low - high <= APART * max([magnitude, *(abs(end) for end in ends if math.isfinite(end))]):
            raise AssertionError(f"bounds of one number contradict each other: {self} and {other}.")
        return Interval(high, low)

    def power(self, exponent: int) -> Interval:
        """Raise to a whole power."""
        if exponent == 0:
            return Interval(1.0, 1.0)
        even = exponent % 2 == 0 and self.low < 0
        base = Interval(0.0 if self.high > 0 else -self.high, max(-self.low, self.high)) if even else self
        result = base
        for _ in range(exponent - 1):
            result = result * base
        return result


def plus(a: float, b: float) -> tuple[float, float]:
    """Bound a sum from below and above; the same number twice if it is exact."""
    total = a + b
    other = total - a
    if not math.isfinite(total) or (other == b and total - other == a):  # Knuth's error is 0
        return total, total
    return math.nextafter(total, -math.inf), math.nextafter(total, math.inf)


def times(a: float, b: float) -> tuple[float, float]:
    """Bound a product from below and above, where zero times an infinite end is zero; the same number twice if it is exact."""
    if a == 0 or b == 0:
        return 0.0, 0.0
    product = a * b
    whole = abs(product) < 1 / EPSILON and a % 1 == 0 and b % 1 == 0
    if whole or abs(a) == 1 or abs(b) == 1 or not math.isfinite(product):
        return product, product
    low, high = math.nextafter(product, -math.inf), math.nextafter(product, math.inf)
    return (max(low, 0.0), high) if (a > 0) == (b > 0) else (low, min(high, 0.0))
