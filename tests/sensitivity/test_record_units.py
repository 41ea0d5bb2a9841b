"""Losses that centre and scale fields in place: bounds are those of the affine map's values, whatever its constants are."""

from fractions import Fraction
from itertools import product

import cvxpy as cp
import numpy as np
import pytest
from test_soundness import analyse, attack

import dpconvex as dp
from dpconvex.checker import check

UNIT, LABELS = dp.Box(np.zeros(2), np.ones(2)), dp.Choice([-1, 1])
HALF = np.full(2, 0.5)


def drawn(rng):
    """Draw a box and constants of very different sizes: centres in it, at its ends, and far from it."""
    size = 10.0 ** rng.uniform(-6, 6, 2)
    lower = size * rng.normal(size=2) * 10.0 ** rng.integers(0, 3)
    upper = lower + size * rng.random(2)
    share = rng.choice([0.0, 0.5, 1.0, rng.random(), -3.0])
    return lower, upper, lower + share * (upper - lower), 10.0 ** rng.uniform(-3, 3, 2) / (upper - lower)


WRITTEN = {
    "scaled after": lambda x, c, a: cp.multiply(a, x - c),
    "scaled apart": lambda x, c, a: cp.multiply(a, x) - a * c,
    "centred twice": lambda x, c, a: cp.multiply(a, (x - 3 * c) + 2 * c),
}


def longest(how, lower, upper, c, a):
    """Return the length of the longest row, exactly, of ``(map(x), 1)`` at a corner of the box."""
    exact = [list(map(Fraction, part.tolist())) for part in (c, a, a * c, 3 * c, 2 * c)]
    rows = []
    for corner in product(*zip(lower.tolist(), upper.tolist(), strict=True)):
        row = []
        for x, c_, a_, ac, three, two in zip(map(Fraction, corner), *exact, strict=True):
            row.append(a_ * (x - c_) if how == "scaled after" else a_ * x - ac)
            row[-1] = a_ * (x - three + two) if how == "centred twice" else row[-1]
        rows.append(sum(value**2 for value in row) + 1)
    return float(max(rows)) ** 0.5


@pytest.mark.parametrize("seeds", [range(3), pytest.param(range(3, 100), marks=pytest.mark.slow)])
def test_bounds_are_those_of_the_map_over_the_box(seeds):
    for seed in seeds:
        lower, upper, c, a = drawn(np.random.default_rng(seed))
        how = [*WRITTEN][seed % 3]
        w, b = cp.Variable(2, name="w"), cp.Variable(name="b")

        def loss(x, y, how=how, c=c, a=a, w=w, b=b):
            return cp.logistic(-y * (WRITTEN[how](x, c, a) @ w + b))

        found = analyse(dp.Template(dp.Record(x=dp.Box(lower, upper), y=LABELS), loss, cp.sum_squares(w)))
        exact = longest(how, lower, upper, c, a)
        assert exact * (1 - 1e-12) <= found.gradient_bound <= exact * 1.0102, seed  # less is not worth it


MAP = np.array([[1.0, 0.5], [-0.25, 2.0]])
LOSSES = {
    "margin": lambda x, t, w, b: cp.logistic((x - HALF) @ w + b),
    "Huber": lambda x, t, w, b: cp.huber((t - 3) / 2 - b - cp.multiply([2.0, 30.0], x - 0.3) @ w, 0.5),
    "mixed": lambda x, t, w, b: cp.square((MAP @ x - MAP @ HALF) @ w - b) + cp.logistic((x - HALF) @ w),
    "interaction": lambda x, t, w, b: cp.logistic((t - 3) * ((x - HALF) @ w) + b),
    "squares": lambda x, t, w, b: cp.sum_squares(cp.hstack([cp.multiply(x - HALF, w), (t - 3) * b])) / 2,
}


@pytest.mark.parametrize(
    "name", [name if name == "interaction" else pytest.param(name, marks=pytest.mark.slow) for name in LOSSES]
)
def test_gradients_and_hessians_are_in_their_sets(name):
    w, b = cp.Variable(2, name="w"), cp.Variable(name="b")
    record = dp.Record(x=UNIT, t=dp.Box(1.0, 5.0))
    template = dp.Template(
        record, lambda x, t: LOSSES[name](x, t, w, b), cp.sum_squares(w), [cp.norm(w) <= 1, cp.abs(b) <= 1]
    )
    assert analyse(template).bases.units
    attack(template, np.random.default_rng(1))


def test_less_noise_is_needed_and_the_checker_agrees():
    w = cp.Variable(2, name="w")
    low, high = np.array([0.0, 100.0]), np.array([1.0, 180.0])
    turn = np.array([[0.6, 0.8], [-0.8, 0.6]])  # A public map that mixes the features
    scaled = lambda x: (2 * x - low - high) / (high - low)  # noqa: E731
    losses = (
        (0.5**0.5, UNIT, lambda x, y: cp.logistic(-y * ((x - HALF) @ w))),
        (2**0.5, dp.Box(low, high), lambda x, y: cp.logistic(-y * (scaled(x) @ w))),
        (2**0.5, dp.Box(low, high), lambda x, y: cp.logistic(-y * (scaled(x) @ turn @ w))),
    )
    for needed, domain, loss in losses:
        template = dp.Template(dp.Record(x=domain, y=LABELS), loss, 0.01 * cp.sum_squares(w))
        certificate = dp.verify(template, dp.Privacy(1.0), 500, dp.ObjectivePerturbation())
        assert certificate.gradient_bound == pytest.approx(needed, rel=1e-9)
        assert str(check(certificate.proof)).startswith("replayed")
