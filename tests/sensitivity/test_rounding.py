"""Bounds of templates with numbers of any size, and offsets that cancel, against exact rational numbers.

Sets, leaves and outer functions are evaluated twice: in floating point, which is declared and certified, and exactly, at points
that attain the bounds or nearly so.  A bound may be infinite, or a template refused; none may be too small, by any amount.
"""

from fractions import Fraction
from math import isqrt

import cvxpy as cp
import mpmath
import numpy as np
import pytest
from derivatives import analyse, form_of

import dpconvex as dp

DIGITS = 60


def root_below(x):
    scale = 10 ** (2 * DIGITS + 2 * max(0, len(str(x.denominator)) - len(str(x.numerator))))
    return Fraction(isqrt(x.numerator * scale // x.denominator), isqrt(scale))


class Draw:
    """Random numbers, many of which are near others."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def pick(self, *options):
        return options[self.rng.integers(len(options))]

    def size(self, wide=True):
        span = self.pick(3, 3, 17, 17, 70, 300 if wide else 70)
        number = 10.0 ** self.rng.uniform(-span, span)
        return self.pick(float(number), float(f"{number:.0e}"), 2.0 ** int(np.log2(number)), 1.0, 0.1, 3.0)

    def signed(self, wide=True):
        return self.size(wide) * self.pick(1.0, -1.0)

    def near(self, number):
        """Draw what may cancel most of a number's digits."""
        apart = self.pick(0.0, 1e-17, 1e-16, 3e-16, 1e-15, 1e-12, 1e-8, 1e-3, 1.0) * self.rng.normal()
        found = float(number * (1 + apart))
        return found if np.isfinite(found) else 1.0


def fixed_reach(r, s, f):
    left = Fraction(r) ** 2 - Fraction(f) ** 2
    return root_below(left) / Fraction(s) if left >= 0 else None


# Sets of centre c, radius r and scale s, one with a fixed number f: constraints, and exactly how far a coordinate can move.
SETS = {
    "ball": lambda w, c, r, s, f: ([cp.norm(s * (w - c)) <= r], Fraction(r) / Fraction(s)),
    "cone": lambda w, c, r, s, f: ([cp.SOC(cp.Constant(r), s * (w - c))], Fraction(r) / Fraction(s)),
    "fixed": lambda w, c, r, s, f: ([cp.norm(cp.hstack([s * (w - c), f])) <= r], fixed_reach(r, s, f)),
    "squares": lambda w, c, r, s, f: ([s * cp.sum_squares(w - c) <= r], root_below(Fraction(r) / Fraction(s))),
    "box": lambda w, c, r, s, f: ([cp.abs(s * (w - c)) <= r], Fraction(r) / Fraction(s)),
    "rows": lambda w, c, r, s, f: ([s * (w - c) <= r, s * (w - c) >= -r], Fraction(r) / Fraction(s)),
    "absolute": lambda w, c, r, s, f: ([s * cp.norm1(w - c) <= r], Fraction(r) / Fraction(s)),
    "bounded": lambda w, c, r, s, f: (
        [w >= c - r, w <= c + r],
        min(Fraction(c + r) - Fraction(c), Fraction(c) - Fraction(c - r)),
    ),
    "simplex": lambda w, c, r, s, f: ([w >= c, cp.sum(w - c) <= r], (Fraction(0), Fraction(r))),
}


def leaf_of(draw, c, x0=0.0):
    """Return an affine function of w that may cancel near x = x0, w = c, for floating-point numbers and for rational ones."""
    q = draw.near(x0)
    a, b, e = draw.signed(False), draw.signed(False), draw.signed(False)
    o, p = draw.near(c), draw.near(draw.pick(a * c, b * c, a * c + b * c))
    kind = draw.pick(*range(8))

    def leaf(x, w, F):
        one, two = w[0], w[1]
        forms = (
            lambda: F(a) * x * (one - F(o)),
            lambda: F(a) * x * one - F(p) * x + F(e),
            lambda: F(a) * (x * one) - F(a) * one + F(b) * two - F(p),
            lambda: (F(a) * one - F(p)) / F(b),
            lambda: F(0.1) * (F(3.0) * one) - F(0.3) * one + x * (two - F(o)),
            lambda: F(a) * (one - F(o)) + F(b) * x + F(e),
            lambda: F(a) * ((x - F(q)) * (one - F(o))) + F(e),
            lambda: F(b) * ((x - F(q)) * one) - F(e) * (x - F(q)) + two - F(o),
        )
        return forms[kind]()

    return leaf


def sigmoid(m):
    return 1 / (1 + mpmath.exp(-m))


def softplus(m):
    """Return log(1 + exp(m)), its slope and its second derivative."""
    return mpmath.log1p(mpmath.exp(m)), sigmoid(m), sigmoid(m) * sigmoid(-m)


def logarithm(m):
    return (-mpmath.log(m), -1 / m, 1 / m**2) if m > 0 else None


def length(m, k):
    whole = mpmath.hypot(m, k)
    return whole, m / whole, k**2 / whole**3


def huber(m, k):
    cut = max(-k, min(k, m))
    return cut * (2 * m - cut), 2 * cut, 2 if abs(m) < k else 0


def outer_of(draw, typical):
    """Return an outer function in CVXPY, and its value and derivatives: None outside its domain, or where there is none."""
    k = abs(draw.near(typical)) or 1.0
    K = mpmath.mpf(k)
    return draw.pick(
        (cp.square, lambda m: (m * m, 2 * m, 2)),
        (lambda m: cp.huber(m, k), lambda m: huber(m, K)),
        (cp.logistic, softplus),
        (lambda m: cp.logistic(m + k), lambda m: softplus(m + K)),
        (cp.exp, lambda m: (mpmath.exp(m),) * 3),
        (lambda m: cp.exp(m - k), lambda m: (mpmath.exp(m - K),) * 3),
        (lambda m: -cp.log(m), logarithm),
        (lambda m: -cp.log(m + k), lambda m: logarithm(m + K)),
        (lambda m: cp.norm(cp.hstack([m, k])), lambda m: length(m, K)),
        (lambda m: cp.power(m, 4), lambda m: (m**4, 4 * m**3, 12 * m**2)),
        (lambda m: cp.inv_pos(m + k), lambda m: (1 / (m + K), -1 / (m + K) ** 2, 2 / (m + K) ** 3) if m > -K else None),
        (lambda m: cp.square(m) / k, lambda m: (m * m / K, 2 * m / K, 2 / K)),
        (lambda m: cp.log_sum_exp(cp.hstack([m, k])), lambda m: (K + softplus(m - K)[0], *softplus(m - K)[1:])),
        (cp.abs, lambda m: (abs(m), mpmath.sign(m), None)),
        (lambda m: cp.maximum(m, k), lambda m: (max(m, K), 1 if m > K else 0, None)),
        (lambda m: cp.logistic(m) / 3 - k, lambda m: (softplus(m)[0] / 3 - K, softplus(m)[1] / 3, softplus(m)[2] / 3)),
    )


def real(x):
    return mpmath.mpf(x.numerator) / x.denominator


def norm(row):
    return mpmath.sqrt(real(sum((a * a for a in row), Fraction(0))))


def at_most(exact, bound, what):
    """Assert that an exact number, in many digits, is no larger than a floating-point bound; what underflows counts as 0."""
    over = abs(exact) > 1e-300 and exact - mpmath.mpf(bound) > abs(exact) * mpmath.mpf(10) ** (10 - DIGITS)
    assert not over, f"{what}: {mpmath.nstr(exact, 20)} exactly, {bound!r} certified"


def compare(seed, losses=1):
    """Certify losses over one set with one regularizer, and compare; return how many were not refused."""
    draw = Draw(seed)
    c, s = draw.pick(0.0, draw.signed(), draw.signed()), draw.pick(1.0, 1.0, draw.size(False))
    r = abs(draw.near(c * draw.pick(1e-18, 1e-16, 1e-15, 1e-8, 1.0) or draw.size())) or 1.0
    r *= draw.pick(1.0, s)
    kind, w = draw.pick(*SETS), cp.Variable(2, name="w")
    with np.errstate(all="ignore"):
        f = draw.near(r)
        constraints, reach = SETS[kind](w, c, r, s, f)
    if reach is None or not np.isfinite([c, r, s, f, c + r, c - r]).all():
        return 0
    least, most = reach if isinstance(reach, tuple) else (-reach, reach)
    moves = [(a, b) for a, b in ((least, 0), (most, 0), (0, least), (0, most), (0, 0))]
    points = [(Fraction(c) + a, Fraction(c) + b) for a, b in moves]
    public, weight = leaf_of(draw, c), draw.size(False)
    typical = float(min(max(abs(public(Fraction(1), point, Fraction)) for point in points), 10**300) or 1)
    rest, rest_at = outer_of(draw, typical)
    regularizer, count = weight * rest(public(1.0, w, float)) + cp.sum_squares(w), 0
    for _ in range(losses):
        low, high = sorted(map(float, draw.rng.choice([-1.0, -0.5, 0.0, 1e-9, 0.1, 1.0, 3.0], 2)))
        if draw.rng.random() < 0.3:
            low, high = sorted((high, draw.near(draw.pick(high, 1e9, 1e16) or 1.0)))
        leaf, (loss, loss_at) = leaf_of(draw, c, high), outer_of(draw, typical)
        with np.errstate(all="ignore"):
            try:
                found = analyse(lambda x: loss(leaf(x, w, float)), constraints, regularizer, x=dp.Box(low, high))  # noqa: B023
                bent, bound = float(found.regularizer[0].toarray()[0, 0]), found.gradient_bound
            except (dp.DPConvexError, ValueError):
                continue
        count += 1
        with mpmath.workdps(DIGITS):
            for point in points:
                at, ahead = (public(Fraction(1), (point[0] + e, point[1]), Fraction) for e in (0, 1))
                if (here := rest_at(real(at))) is not None:  # else a point outside the domain of the regularizer
                    least_bend = mpmath.mpf(weight) * (here[2] or 0) * real(ahead - at) ** 2 + 2
                    at_most(-least_bend, -bent, "the curvature of the regularizer")
                    compare_set(found.form.feasible, point, kind)
                    compare_loss(found, bound, leaf, loss_at, point, (Fraction(low), Fraction(high)))
    return count


def compare_set(feasible, point, name):
    for value, below, above in zip(point, feasible.lower, feasible.upper, strict=True):
        at_most(real(value), above, f"the upper bound of a {name}")
        at_most(-real(value), -below, f"the lower bound of a {name}")
    at_most(norm(point), feasible.norm_bound, f"the norm of a {name}")


def compare_loss(found, bound, leaf, loss_at, point, records):
    scalar, curvature = found.losses[0].scalar, found.losses[0].curvature
    for x in records:
        m = leaf(x, point, Fraction)
        row = [leaf(x, moved, Fraction) - m for moved in ((point[0] + 1, point[1]), (point[0], point[1] + 1))]
        value, slope, second = loss_at(real(m))
        at_most(value, scalar.value.high, "the largest value")
        at_most(-value, -scalar.value.low, "the least value")
        at_most(abs(slope) * norm(row), bound, "the gradient")
        if second is not None and found.kink is None:
            at_most(second * norm(row) ** 2, curvature.eigenvalue, "the eigenvalue")
            at_most(second * norm(row) ** 2, curvature.trace, "the trace")


w, v = cp.Variable(2, name="w"), cp.Variable(name="v")
UNIT = dp.Box(0.0, 1.0)


def test_curvature_of_logistic_functions_far_out():
    """A record and a parameter of 0 attain it: 1e18 s(37)(1 - s(37))."""
    assert 85 < analyse(lambda x: cp.logistic(1e9 * x * v + 37), [v >= 0, v <= 1], x=UNIT).hessian_bound < 86


@pytest.mark.parametrize("center", [1e9, 1e12, 1e15, 1e16])
def test_ranges_of_regularizers(center):
    """Of -log(a v - b) at the largest v, whose argument is exactly this."""
    a, b = 0.1, center / 10 - 0.5
    most = Fraction(a) * Fraction(center) - Fraction(b)
    found = analyse(lambda x: cp.logistic(x * v), [v >= center - 2, v <= center], -cp.log(a * v - b), x=UNIT)
    assert 0 < Fraction(found.modulus) <= (Fraction(a) / most) ** 2


@pytest.mark.parametrize("kind", ["ball", "cone", "squares", "box", "rows", "absolute"])
def test_sets_far_from_the_origin(kind):
    found = analyse(lambda x: x * cp.exp(10 * (w[0] - 1e16)), SETS[kind](w, 1e16, 1.0, 1.0, 0.0)[0], x=UNIT)
    assert found.gradient_bound >= 10 * np.exp(10)


def test_balls_with_a_fixed_part():
    """What is left of the radius is the root of a difference: of 1e-15 relative here, and of much larger numbers."""
    for radius in (1 + 1e-15, 3.0, 1 + 1e-9):
        f = radius * (1 - 2.0**-50)
        feasible = form_of(lambda x: cp.logistic(x * w[0]), SETS["fixed"](w, 0.0, radius, 1.0, f)[0], x=UNIT).feasible
        assert Fraction(feasible.upper[0]) ** 2 >= Fraction(radius) ** 2 - Fraction(f) ** 2 > 0


def test_coefficients_that_cancel_in_regularizers():
    """0.1 times 3 is not 0.3: what is left of the difference is known but for its rounding."""
    found = analyse(lambda x: cp.logistic(x * v), (), cp.square(0.1 * (3.0 * v) - 0.3 * v), x=UNIT)
    assert Fraction(found.modulus) <= 2 * (3 * Fraction(0.1) - Fraction(0.3)) ** 2
    weights = analyse(lambda x: cp.logistic(x * v), (), 0.1 * (3 * cp.square(v)) + 1e-17 * cp.square(v), x=UNIT)
    assert 0.6 <= weights.modulus <= 6 * Fraction(0.1) + 2 * Fraction(1e-17)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("start", range(0, 80, 20))
def test_bounds_are_not_too_small(start):
    assert sum(map(compare, range(start, start + 20))) > 5


@pytest.mark.slow
def test_ten_thousand():
    assert sum(compare(seed, losses=4) for seed in range(1_000, 6_000)) > 10_000
