"""Exact numbers, and lower and upper bounds on the functions that proofs need.  Floats only guess; exact numbers prove."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import isqrt
from operator import mul
from typing import TypeVar

from dpconvex.checker.reading import Steps, cached, effort, require, spend

T = TypeVar("T")
Square = tuple[tuple[Fraction, ...], ...]
Range = tuple[Fraction, Fraction]
ZERO, ONE = Fraction(0), Fraction(1)
DIGITS = 31415926535897932384626433832795028841971693993751
PI: Range = (Fraction(DIGITS, 10**49), Fraction(DIGITS + 1, 10**49))
BITS, WIDE = 160, 256  # Significant bits of rounded numbers, and fractional bits of fixed-point numbers
FRACTION = 60  # Terms of a continued fraction
MOST_SIDE, DOUBLINGS, CLOSE = 40, 40, Fraction(1, 2**39)  # Eigenvalues: largest side, squarings, margin of a guess
LONGEST = 12_000  # Largest number of bits before the point


def down(x: Fraction, bits: int = BITS) -> Fraction:
    """Return a lower bound on x with about `bits` significant bits, or x itself if its denominator is short."""
    require(abs(x.numerator) >> LONGEST <= x.denominator, "a number is too large")
    shift = bits - abs(x.numerator).bit_length() + x.denominator.bit_length()
    if x.denominator.bit_length() <= bits or not x:
        return x
    return Fraction((x.numerator << shift) // x.denominator, 1 << shift) if shift > 0 else x


def up(x: Fraction, bits: int = BITS) -> Fraction:
    return -down(-x, bits)


def outward(low: Fraction, high: Fraction) -> Range:
    return down(low), up(high)


def times(a: Range, b: Range) -> Range:
    corners = [x * y for x in a for y in b]
    return outward(min(corners), max(corners))


def plus(a: Range, b: Range) -> Range:
    return outward(a[0] + b[0], a[1] + b[1])


def power(a: Range, exponent: int) -> Range:
    """Bound a power of a number in a range; even powers are nonnegative."""
    spend(exponent * effort(a) // 4)
    ends = sorted(end**exponent for end in a)
    return outward(ZERO if exponent % 2 == 0 and a[0] < 0 < a[1] else ends[0], ends[1])


def root(x: Fraction) -> Range:
    """Bound the square root of a nonnegative number."""
    shift = 2 * BITS + 2 * max(0, x.denominator.bit_length() - x.numerator.bit_length())
    found = isqrt((x.numerator << shift) // x.denominator)
    unit = 1 << shift // 2
    return Fraction(found, unit), Fraction(found + bool(found * found * x.denominator != x.numerator << shift), unit)


def exp(x: Fraction) -> Range:
    """Bound exp(x): halve x until a short series suffices, then square repeatedly, in multiples of 2^-WIDE."""
    spend(15)
    if x < 0:
        other = exp(min(-x, Fraction(4095)))
        return ZERO if x < -4095 else down(1 / other[1]), up(1 / other[0])
    require(x < 4096, "an exponential is too large")
    halvings = max(0, x.numerator.bit_length() - x.denominator.bit_length() + 9)
    y, total, term = (x.numerator << WIDE) // (x.denominator << halvings), 1 << WIDE, 1 << WIDE
    for k in range(1, 24):
        term = term * y // (k << WIDE)
        total += term
    low, high = total, total + 64  # the series leaves out less than 2^-270, and every step less than 2
    for _ in range(halvings):
        low, high = low * low >> WIDE, (high * high >> WIDE) + 1
    return outward(Fraction(low, 1 << WIDE), Fraction(high, 1 << WIDE))


def log(x: Fraction) -> Fraction:
    """Return an upper bound on log(x): ``y + x exp(-y) - 1`` for a guess y."""
    x = up(x)
    guess = Fraction(math.log(x.numerator) - math.log(x.denominator))
    return up(guess + x * exp(-guess)[1] - 1)


def normal_tail(t: Fraction) -> Range:
    """Bound the probability that a standard normal variate exceeds t: by a series, or for t > 8 by a continued fraction.

    Let I(n) be the integral of ``(u - t)^n/n!`` times the density over u > t, and ``K(n) = I(n - 1)/I(n)``, where K(0) is the
    density over the probability.  By parts, ``K(n) = t + (n + 1)/K(n + 1)``, and all K(n) exceed t.
    """
    if t < 0:
        low, high = normal_tail(-t)
        return 1 - high, 1 - low
    spend(40)
    density = normal_density(t)
    if t > 8:
        low, high = hazard(t)
        return down(density[0] / high), up(density[1] / low)
    square, term = (-(-u.numerator << WIDE) // u.denominator for u in (t * t, t))
    total, k = 0, 1
    while term > 1 or k < 2 * t * t:  # in multiples of 2^-WIDE; later terms at least halve
        total, term, k = total + term, term * square // ((k + 2) << WIDE) + 1, k + 2
    found = Fraction(total, 1 << WIDE)
    room = (found + 1) / 2 ** (BITS - 8)
    inside = times(density, (found - room, found + room))
    return max(Fraction(1, 2) - inside[1], ZERO), Fraction(1, 2) - inside[0]


def normal_density(t: Fraction) -> Range:
    exponential, circle = exp(-t * t / 2), [root(2 * end) for end in PI]
    return outward(exponential[0] / circle[1][1], exponential[1] / circle[0][0])


def hazard(t: Fraction) -> Range:
    """Bound the normal hazard rate at t, density over tail; for t > 8 by the continued fraction K(0) of `normal_tail`."""
    spend(20 * effort([t]))
    if t <= 8:
        density, tail = normal_density(t), normal_tail(t)
        return outward(density[0] / tail[1], density[1] / tail[0])
    start = (t.numerator << WIDE) // t.denominator  # in multiples of 2^-WIDE
    low, high = start, start + 2 + (FRACTION << 2 * WIDE) // start
    for k in range(FRACTION - 1, 0, -1):
        low, high = start + (k << 2 * WIDE) // high, start + 2 + (k << 2 * WIDE) // low
    return outward(Fraction(low, 1 << WIDE), Fraction(high, 1 << WIDE))


def chi_tail(t: Fraction, dimension: int) -> tuple[Range, Range]:
    """Bound the probability that the norm of `dimension` standard normals exceeds t > 0, and its hazard rate at t.

    With y = t^2/2, the probability is ``exp(-y)`` times a sum of ``y^k/k!``.  In odd dimensions k runs over half-integers, and
    the probability for one dimension is added.  The density is ``t exp(-y)`` times the last term.
    """
    spend(80 + dimension)
    y, odd, fall = t * t / 2, dimension % 2, exp(-t * t / 2)
    begun = normal_tail(t) if odd else (ZERO, ZERO)
    side = [root(2 / end) for end in PI]
    first = (t * side[1][0], t * side[0][1]) if odd else (ONE, ONE)
    low, high = (int(first[0] * 2**WIDE), int(first[1] * 2**WIDE) + 1) if dimension > 1 else (0, 0)
    last, total = (low, high), (low, high)
    for k in range(1, (dimension - odd) // 2):
        by = y / (Fraction(2 * k + odd, 2))
        last = (last[0] * by.numerator // by.denominator, last[1] * by.numerator // by.denominator + 1)
        total = (total[0] + last[0], total[1] + last[1])
    tail = [2 * b + f * Fraction(e, 2**WIDE) for b, f, e in zip(begun, fall, total, strict=True)]
    ends = [Fraction(e, 2**WIDE) for e in last] if dimension > 1 else [side[1][0] / t, side[0][1] / t]
    density = [t * f * e for f, e in zip(fall, ends, strict=True)]
    return outward(*tail), outward(density[0] / tail[1], density[1] / tail[0])


def common(values: Iterable[Fraction]) -> int:
    """Return a common denominator of the values."""
    denominators = {a.denominator for a in values}
    spend(sum(map(int.bit_length, denominators)) ** 2 >> 21)
    return math.lcm(*denominators)


def pivots(matrix: Sequence[Sequence[Fraction]]) -> list[Fraction] | None:
    """Return the pivots of a symmetric matrix, or None if it is not semidefinite, by integer elimination (Bareiss 1968)."""
    spend(len(matrix) ** 2)
    scale = common(a for row in matrix for a in row)
    rows = [[a.numerator * (scale // a.denominator) for a in row] for row in matrix]
    longest = max((abs(a).bit_length() for row in rows for a in row), default=0)
    spend(len(rows) ** 3 // 6 * (1 + (len(rows) * longest // 3000) ** 2 // 2))  # products of long numbers
    found, last = [], 1
    while rows:
        (lead, *first), *rest = rows
        if lead < 0 or (lead == 0 and any((*first, *(row[0] for row in rest)))):
            return None
        found.append(Fraction(lead, last * scale))
        rows = [row[1:] for row in rest]
        if lead:
            rows = [[(lead * b - row[0] * a) // last for a, b in zip(first, row[1:], strict=True)] for row in rest]
            last = lead
    return found


def blocks(matrix: Mapping[T, Mapping[T, Fraction]]) -> Iterator[Square]:
    """Yield the connected diagonal blocks of a symmetric matrix."""
    left = set(matrix)
    while left:
        group, waiting = set[T](), [left.pop()]
        while waiting:
            c = waiting.pop()
            group.add(c)
            waiting += [d for d, value in matrix[c].items() if value and d not in group]
        left -= group
        spend(3 * len(group) ** 2)
        yield tuple(tuple(matrix[c].get(d, ZERO) for d in group) for c in group)


def spectrum(matrix: Mapping[T, Mapping[T, Fraction]]) -> Range:
    """Return a lower and an upper bound on all eigenvalues of a symmetric matrix."""
    low, high = list[Fraction](), list[Fraction]()
    for block in blocks(matrix):
        high.append(largest_eigenvalue(block))
        semidefinite = len(block) > 1 and pivots(block) is not None
        low.append(ZERO if semidefinite else -largest_eigenvalue(tuple(tuple(-a for a in row) for row in block)))
    return min(low), max(high)


@cached
def largest_eigenvalue(matrix: Square) -> Fraction:
    """Bound a symmetric matrix's largest eigenvalue: by a guess that elimination proves, or by row sums if it is large."""
    side, most = len(matrix), max(sum(map(abs, row), ZERO) for row in matrix)
    spend(2 + 2 * sum(map(effort, matrix)))
    if side == 1 or not most or side > MOST_SIDE:
        Steps.coarse |= side > MOST_SIDE
        return matrix[0][0] if side == 1 else most
    spend(40 + side**3)
    scaled = [[float(a / most) + (i == j) for j, a in enumerate(row)] for i, row in enumerate(matrix)]
    power = scaled
    for _ in range(DOUBLINGS):
        longest = max(row[i] for i, row in enumerate(power))
        power = [[sum(map(mul, one, two)) / longest**2 for two in power] for one in power]
    top = power[max(range(side), key=lambda i: power[i][i])]
    quotient = sum(a * sum(map(mul, row, top)) for a, row in zip(top, scaled, strict=True)) / sum(map(mul, top, top))
    guess = most * (Fraction(quotient - 1) + CLOSE)
    rest = [[(guess if i == j else ZERO) - a for j, a in enumerate(row)] for i, row in enumerate(matrix)]
    return most if pivots(rest) is None else guess
