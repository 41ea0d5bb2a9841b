"""Numbers of any size: constants against exact rational arithmetic where terms cancel, ranges, and what is refused.

Constants are compared without any allowance for rounding: they are upper bounds of what the given floating-point coefficients,
from 1e-12 to 1e12, mean in exact arithmetic.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import inf, nextafter

import cvxpy as cp
import numpy as np
import pytest
from derivatives import analyse, form_of
from hypothesis import given, settings, strategies as st

import dpconvex as dp
from dpconvex import numerics
from dpconvex.numerics import (
    Interval,
    float_down,
    interval_product,
    interval_sums,
    norm_up,
    quotient_ends,
    root_up,
    sum_ends,
)
from dpconvex.sensitivity.analysis import Analysis

SEEDS = st.integers(0, 2**32 - 1)
w, v = cp.Variable(2, name="w"), cp.Variable(name="v")
BOX = dp.Box([-1.0, -1.0], [0.75, 0.75])
CORNERS = list(product((-1.0, 0.75), repeat=2))


@dataclass
class Leaf:
    """A leaf ``f1 (a o w) + (f2 b o x)'w - c'w + d'(x o w)``, whose terms may cancel, and its rows in exact arithmetic."""

    numbers: np.ndarray  # shape (4, 2)
    factors: np.ndarray  # shape (2,)

    @classmethod
    def draw(cls, rng):
        sizes = 10.0 ** rng.uniform(-12, 12, size=2) * rng.choice([-1, 1], size=2)
        apart = rng.choice([0.0, 1e-16, 3e-13, 1e-9, 1e-3, 1.0], size=(4, 2)) * rng.normal(size=(4, 2))
        factors = rng.choice([1.0, 0.1, 3.0, 1 / 3, 1e8], size=2)
        numbers = sizes * (1 + apart)
        numbers[2] = factors[0] * numbers[0] * (1 + apart[2])
        numbers[3] = -factors[1] * numbers[1] * (1 + apart[3])
        return cls(numbers, factors)

    def near(self, relative):
        return Leaf(self.numbers * (1 + relative), self.factors)

    def expression(self, x):
        a, b, c, d = self.numbers
        first = float(self.factors[0]) * (a @ w) + float(self.factors[1]) * (cp.multiply(b, x) @ w)
        return first - c @ w + d @ cp.multiply(x, w)

    def row(self, x):
        a, b, c, d = ([Fraction(float(number)) for number in line] for line in self.numbers)
        one, two = (Fraction(float(f)) for f in self.factors)
        return tuple(one * a[j] + two * b[j] * Fraction(x[j]) - c[j] + d[j] * Fraction(x[j]) for j in range(2))


def square(left, right=(0, 0)):
    return sum((a - b) ** 2 for a, b in zip(left, right, strict=True))


@settings(max_examples=8, deadline=None)
@given(SEEDS)
def test_gradients_and_their_differences(seed):
    """Loss of label y: ``|leaf_y| - other_y``; at some parameters the absolute value has either sign."""
    rng = np.random.default_rng(seed)
    leaves = {y: (Leaf.draw(rng), Leaf.draw(rng)) for y in range(2)}
    if rng.random() < 0.5:  # the second leaf nearly undoes the first
        leaves[0] = (leaves[0][0], leaves[0][0].near(1e-14 * rng.normal(size=(4, 2))))
    if rng.random() < 0.5:  # the labels' losses nearly agree
        leaves[1] = tuple(leaf.near(1e-13 * rng.normal()) for leaf in leaves[0])
    try:
        found = analyse(
            lambda x, y: cp.abs(leaves[y][0].expression(x)) - leaves[y][1].expression(x), x=BOX, y=dp.Choice([0, 1])
        )
        bound, apart = found.gradient_bound, found.replacement_bound
    except dp.NotPrivate:  # nothing would be learnt, but for rounding: refused, which is safe
        return
    gradients = []
    for y, x in product(range(2), CORNERS):
        inner, other = (leaf.row(x) for leaf in leaves[y])
        gradients += [(inner, sign, tuple(sign * a - b for a, b in zip(inner, other, strict=True))) for sign in (1, -1)]
    assert all(square(gradient) <= Fraction(bound) ** 2 for _, _, gradient in gradients)
    for (first, one, left), (second, two, right) in product(gradients, repeat=2):
        # Both signs occur at one parameter if the leaves' rows are independent, equal signs if they are equal.
        independent = first[0] * second[1] != first[1] * second[0]
        if independent or (first == second and one == two):
            assert square(left, right) <= Fraction(apart) ** 2


def ranges(form):
    known = Analysis(form).ranges
    return [(form.polynomial(leaf), *known[leaf][1]) for leaf in form.leaves[0]]


def sets(w, P, t, r):
    center, shift = t[0] * np.eye(2), np.array([[t[0], t[1]], [t[1], t[2]]])
    return {
        "ball": [cp.norm(w - t) <= r],
        "box": [w >= t - r, w <= t + 2 * r],
        "ball and bound": [cp.norm(w[:2] - t[:2]) <= r, cp.abs(w[2] - t[2]) <= r],
        "half": [w >= t],
        "spectrum": [P >> center, P << center + r * np.eye(2)],
        "shifted cone": [P >> shift],
        "matrix ball": [cp.norm(P - shift, "fro") <= r],
    }


@given(
    st.sampled_from(list(sets(cp.Variable(3), cp.Variable((2, 2), symmetric=True), np.zeros(3), 1.0))),
    st.sampled_from([0.0, 1.0, 30.0, 1e6, 1e12]),
    st.sampled_from([1e-6, 0.5, 2.0]),
    SEEDS,
)
@settings(max_examples=20)
def test_nothing_leaves_its_range_wherever_the_set_lies(kind, shift, radius, seed):
    rng = np.random.default_rng(seed)
    t, A, B = shift * rng.normal(size=3), rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    w, P = cp.Variable(3, name="w"), cp.Variable((2, 2), name="P", symmetric=True)

    def loss(x, u):
        leaf = A @ cp.multiply(x, w - t) + u * (B @ w) - u * (B @ t) + x[:2]
        return cp.sum(cp.logistic(leaf)) + cp.logistic(x[:2] @ (P - t[0] * np.eye(2)) @ x[:2] + u)

    form = form_of(loss, sets(w, P, t, radius)[kind], cp.sum_squares(w), x=dp.Ball(3), u=dp.Box(0, 2))
    for polynomial, low, high in ranges(form):
        assert np.less_equal(low, high).all()
        for _ in range(20):
            x = rng.normal(size=3)
            x *= rng.choice([1.0, rng.uniform()]) / np.linalg.norm(x)
            far = form.space.pack({"w": t, "P": t[0] * np.eye(2)}) + rng.normal(size=form.space.dim) * 10 * radius
            try:
                theta = form.feasible.project(far)
            except dp.NotConverged:  # the set is smaller than rounding there, and is refused
                return
            value = polynomial.evaluate(np.append(x, rng.choice([0.0, 2.0, rng.uniform(0, 2)])), theta).ravel(order="F")
            rounding = 1e-14 * (1 + np.abs(theta).max(initial=0.0) * 10)  # what evaluates the leaf rounds too
            assert ((low - rounding <= value) & (value <= high + rounding)).all()


def test_intervals_are_rounded_outward():
    rng = np.random.default_rng(0)
    for _ in range(2000):
        ends = rng.normal(size=4) * 10.0 ** rng.uniform(-12, 12, size=4)
        a, b = Interval(*sorted(ends[:2].tolist())), Interval(*sorted(ends[2:].tolist()))
        pairs = [(Fraction(x), Fraction(y)) for x in (a.low, a.high) for y in (b.low, b.high)]
        for found, exact in [
            (a + b, [x + y for x, y in pairs]),
            (a * b, [x * y for x, y in pairs]),
            (a.power(3), [x**3 for x, _ in pairs]),
        ]:
            assert Fraction(found.low) <= min(exact)
            assert max(exact) <= Fraction(found.high)
    assert Interval(3.0, 3.0) * Interval(5.0, 5.0) + Interval(-15.0, -15.0) == Interval(0.0, 0.0)


@pytest.mark.parametrize("size", [1.0, 1e12, 1e16, -1e16, 1e20])
def test_a_branch_of_a_maximum_is_dropped_only_if_it_never_wins(size):
    """At 1e16 the constant swallows the parameters; the other branch may still be larger."""
    for loss in (
        lambda x: cp.maximum(size + x * v, size),
        lambda x: cp.max(cp.hstack([size, size + x * v])),
        lambda x: cp.norm_inf(cp.hstack([abs(size) + x * v, size])),
        lambda x: -cp.minimum(-size - x * v, -size),
    ):
        assert analyse(loss, [v >= -1.5, v <= 1], x=dp.Box(0.0, 1.0)).gradient_bound >= 1.0


# Numbers whose squares vanish or overflow are refused, wherever they come from: bounds would be wrong, and quietly.

MECHANISMS = [dp.ObjectivePerturbation("gamma"), dp.OutputPerturbation("gamma"), dp.NoisyGradientDescent(steps=3)]


def learner(loss, bound=1.0, limit=3.0):
    record = dp.Record(x=dp.Box(-bound, bound), y=dp.Choice([0, 1]))
    return dp.Template(record, loss, 0.5 * cp.square(v), [v >= -limit, v <= limit])


def steep(x):
    return cp.huber(cp.pos(1e155 * x * v), 1.0)


def small(x, y):
    return 1e15 * cp.huber(cp.pos(1e-165 * x * v), 100.0) if y else 0.01 * 1e-150 * x * v


CASES = {
    "a steep hinge of one label": learner(lambda x, y: steep(x) if y else cp.logistic(x * v)),
    "a steep hinge beside another loss": learner(lambda x, y: steep(x) + cp.logistic(x * v)),
    "small coefficients of huge records": learner(small, 1e150, 1e16),
    "huge records": learner(lambda x, y: cp.logistic(1e-70 * x * v), 1e150),
    "tiny records": learner(lambda x, y: 1e70 * cp.logistic(x * v), 1e-160),
    "a huge set": learner(lambda x, y: cp.logistic(x * v), 1.0, 1e160),
    "a huge factor": learner(lambda x, y: 1e160 * cp.logistic(x * v)),
    "a huge curvature": learner(lambda x, y: 1e120 * cp.huber(1e-60 * cp.pos(x * v), 1.0)),
    "products of fields": learner(lambda x, y: cp.logistic(x * x * x * v), 1e60),
}


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("case", CASES)
def test_they_are_refused_with_every_mechanism(case, mechanism):
    with pytest.raises(dp.NotPrivate) as caught:
        dp.verify(CASES[case], dp.Privacy(1.0, 1e-6), 50, mechanism)
    assert caught.value.remedy


# Directed rounding against exact rational arithmetic, for numbers of any size
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
        sums, products, nonzero = sum_ends(a, b), interval_product((a, a), (b, b)), b != 0
        quotients = quotient_ends(a[nonzero], b[nonzero])
    for one, two, *ends in zip(*map(np.ndarray.tolist, (a, b, *sums, *products)), strict=True):
        x, y = Fraction(one), Fraction(two)
        assert encloses(ends[0], x + y, ends[1])
        assert encloses(numerics.plus(one, two)[0], x + y, numerics.plus(one, two)[1])
        assert encloses(ends[2], x * y, ends[3])
        assert encloses(numerics.times(one, two)[0], x * y, numerics.times(one, two)[1])
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


def test_overflow_is_no_number_from_below():
    assert (Interval(LARGEST, LARGEST) + Interval(LARGEST, LARGEST)).low == LARGEST
    assert (Interval(1e200, inf) * Interval(1e200, 1e200)) == Interval(LARGEST, inf)
    for a, b in product((inf, -inf), (1.0, -1.0)):
        assert np.max(interval_product((np.array([a]),) * 2, (np.array([b]),) * 2)) >= a * b
