"""Terms that cancel: every constant against exact rational arithmetic, over coefficients from 1e-12 to 1e12.

Constants are compared without any allowance for rounding: they are upper bounds of what the given floating-point coefficients
mean in exact arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import cvxpy as cp
import numpy as np
import pytest
from derivatives import analyse
from hypothesis import given, settings, strategies as st

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.abstract_values import Interval
from dpconvex.core.record_domains import Box, Choice
from dpconvex.errors import NotPrivate
from dpconvex.language.record import Record
from dpconvex.language.template import Template

w = cp.Variable(2, name="w")
SEEDS = st.integers(0, 2**32 - 1)
Row = tuple[Fraction, ...]
CORNERS = list(product((-1.0, 0.75), repeat=2))


@dataclass
class Leaf:
    """A leaf ``f1 (a o w) + (f2 b o x)'w - c'w + d'(x o w)``, whose terms may cancel, and its rows in exact arithmetic."""

    numbers: np.ndarray  # shape (4, 2)
    factors: np.ndarray  # shape (2,)

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Leaf:
        sizes = 10.0 ** rng.uniform(-12, 12, size=2) * rng.choice([-1, 1], size=2)
        apart = rng.choice([0.0, 1e-16, 3e-13, 1e-9, 1e-3, 1.0], size=(4, 2)) * rng.normal(size=(4, 2))
        factors = rng.choice([1.0, 0.1, 3.0, 1 / 3, 1e8], size=2)
        numbers = sizes * (1 + apart)
        numbers[2] = factors[0] * numbers[0] * (1 + apart[2])
        numbers[3] = -factors[1] * numbers[1] * (1 + apart[3])
        return cls(numbers, factors)

    def expression(self, x: cp.Expression) -> cp.Expression:
        a, b, c, d = self.numbers
        first = float(self.factors[0]) * (a @ w) + float(self.factors[1]) * (cp.multiply(b, x) @ w)
        return first - c @ w + d @ cp.multiply(x, w)

    def row(self, x: tuple[float, ...]) -> Row:
        numbers = [[Fraction(float(v)) for v in line] for line in self.numbers]
        one, two = (Fraction(float(f)) for f in self.factors)
        a, b, c, d = numbers
        return tuple(one * a[j] + two * b[j] * Fraction(x[j]) - c[j] + d[j] * Fraction(x[j]) for j in range(2))


def combine(left: Row, right: Row, factor: Fraction) -> Row:
    return tuple(a + factor * b for a, b in zip(left, right, strict=True))


def square(row: Row) -> Fraction:
    return sum((a * a for a in row), Fraction(0))


def analysis_of(loss, label: Choice) -> Analysis:  # type: ignore[no-untyped-def]
    return analyse(loss, x=Box([-1.0, -1.0], [0.75, 0.75]), y=label)


@settings(max_examples=8, deadline=None)
@given(SEEDS)
def test_gradients_and_their_differences(seed: int) -> None:
    """Loss of label y: ``|leaf_y| - other_y``; at some parameters the absolute value has either sign."""
    rng = np.random.default_rng(seed)
    leaves = {y: (Leaf.draw(rng), Leaf.draw(rng)) for y in range(2)}
    if rng.random() < 0.5:  # the second leaf nearly undoes the first
        leaves[0] = (
            leaves[0][0],
            Leaf(leaves[0][0].numbers * (1 + 1e-14 * rng.normal(size=(4, 2))), leaves[0][0].factors),
        )
    if rng.random() < 0.5:  # the labels' losses nearly agree
        leaves[1] = tuple(Leaf(leaf.numbers * (1 + 1e-13 * rng.normal()), leaf.factors) for leaf in leaves[0])  # type: ignore[assignment]

    def loss(x, y):  # type: ignore[no-untyped-def]
        return cp.abs(leaves[y][0].expression(x)) - leaves[y][1].expression(x)

    try:
        found = analysis_of(loss, Choice([0, 1]))
        bound, apart = found.gradient_bound, found.replacement_bound
    except NotPrivate:  # nothing would be learnt, but for rounding: refused, which is safe
        return
    gradients = []
    for y, x in product(range(2), CORNERS):
        inner, other = (leaf.row(x) for leaf in leaves[y])
        gradients += [(inner, sign, combine(tuple(sign * a for a in inner), other, Fraction(-1))) for sign in (1, -1)]
    assert all(square(gradient) <= Fraction(bound) ** 2 for _, _, gradient in gradients)
    for (first, one, left), (second, two, right) in product(gradients, repeat=2):
        # Both signs occur at one parameter if the leaves' rows are independent, equal signs if they are equal.
        independent = first[0] * second[1] != first[1] * second[0]
        if independent or (first == second and one == two):
            assert square(combine(left, right, Fraction(-1))) <= Fraction(apart) ** 2


@settings(max_examples=6, deadline=None)
@given(SEEDS)
def test_curvature(seed: int) -> None:
    """The Hessian of a log-sum-exp of two leaves is at most a quarter of the outer square of their difference, and reaches it."""
    rng = np.random.default_rng(seed)
    first, second = Leaf.draw(rng), Leaf.draw(rng)
    if rng.random() < 0.7:
        second = Leaf(first.numbers * (1 + 10.0 ** rng.uniform(-15, -1) * rng.normal(size=(4, 2))), first.factors)

    def loss(x, y):  # type: ignore[no-untyped-def]
        return cp.log_sum_exp(cp.hstack([first.expression(x), second.expression(x)])) - y * first.expression(x)

    try:
        found = analysis_of(loss, Choice([0, 1]))
    except NotPrivate:
        return
    truth = max(square(combine(first.row(x), second.row(x), Fraction(-1))) for x in CORNERS) / 4
    for bounds in found.losses:
        assert Fraction(bounds.curvature.eigenvalue) >= truth
        assert Fraction(bounds.curvature.trace) >= truth
        assert float(truth) == 0 or bounds.curvature.rank >= 1


@settings(max_examples=8, deadline=None)
@given(SEEDS)
def test_ranges(seed: int) -> None:
    """Of a leaf on a box of parameters, offset included."""
    rng = np.random.default_rng(seed)
    leaf = Leaf.draw(rng)
    offset = float(10.0 ** rng.uniform(-12, 12))
    K = [w >= -1, w <= 0.5]
    template = Template(
        Record(x=Box([-1.0, -1.0], [0.75, 0.75])), lambda x: cp.abs(leaf.expression(x) + offset), constraints=K
    )
    found = Analysis(LossForm(template))
    (bound,) = (
        found.ranges.values[id(found.form.polynomial(leaf))][0] for group in found.form.leaves for leaf in group
    )
    values = [
        sum((a * Fraction(t) for a, t in zip(leaf.row(x), theta, strict=True)), Fraction(offset))
        for x, theta in product(CORNERS, product((-1.0, 0.5), repeat=2))
    ]
    assert Fraction(bound.low) <= min(values)
    assert max(values) <= Fraction(bound.high)


def test_intervals_are_rounded_outward() -> None:
    rng = np.random.default_rng(0)
    for _ in range(2000):
        ends = rng.normal(size=4) * 10.0 ** rng.uniform(-12, 12, size=4)
        a, b = Interval(*sorted(ends[:2].tolist())), Interval(*sorted(ends[2:].tolist()))
        sums = [Fraction(x) + Fraction(y) for x in (a.low, a.high) for y in (b.low, b.high)]
        products = [Fraction(x) * Fraction(y) for x in (a.low, a.high) for y in (b.low, b.high)]
        for found, exact in (
            (a + b, sums),
            (a * b, products),
            (a.power(3), [Fraction(a.low) ** 3, Fraction(a.high) ** 3]),
        ):
            assert Fraction(found.low) <= min(exact)
            assert max(exact) <= Fraction(found.high)
    assert Interval(3.0, 3.0) * Interval(5.0, 5.0) + Interval(-15.0, -15.0) == Interval(0.0, 0.0)


@pytest.mark.parametrize("size", [1.0, 1e12, 1e16, -1e16, 1e20])
def test_a_branch_of_a_maximum_is_dropped_only_if_it_never_wins(size: float) -> None:
    """At 1e16 the constant swallows the parameters; the other branch may still be larger."""
    v = cp.Variable(name="v")
    record, K = Record(x=Box(0.0, 1.0)), [v >= -1.5, v <= 1]
    for loss in (
        lambda x: cp.maximum(size + x * v, size),
        lambda x: cp.max(cp.hstack([size, size + x * v])),
        lambda x: cp.norm_inf(cp.hstack([abs(size) + x * v, size])),
        lambda x: -cp.minimum(-size - x * v, -size),
    ):
        assert Analysis(LossForm(Template(record, loss, constraints=K))).gradient_bound >= 1.0
