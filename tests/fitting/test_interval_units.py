"""Intervals of levels beside a constant, and what warnings and refusals say of units and constraints."""

import warnings
from contextlib import suppress

import cvxpy as cp
import numpy as np
import pytest
from test_intervals import PRIVACY, drawn

import dpconvex as dp


def test_levels_beside_a_constant_have_the_intervals_of_what_is_determined():
    """The steps' own rows forgot that a record has one level, so that all effects and the constant were hidden by noise."""
    w, a, b = cp.Variable(1, name="w"), cp.Variable(2, name="a"), cp.Variable(name="b")
    record = dp.Record(x=dp.Box([-1.0], [1.0]), g=dp.Choice([0, 1]), y=dp.Box(-1, 1))
    rng = np.random.default_rng(0)
    x, g = rng.uniform(-1, 1, (20_000, 1)), rng.integers(0, 2, 20_000)
    y = (0.3 * x[:, 0] + 0.2 * g + rng.normal(0, 0.1, 20_000)).clip(-1, 1)

    def expectile(x, g, y):
        u = x @ w + a[g] - y
        return 0.7 * cp.square(cp.pos(-u)) + 0.3 * cp.square(cp.pos(u))

    squares = dp.Template(record, lambda x, g, y: cp.square(x @ w + a[g] + b - y))
    for template in (squares, dp.Template(record, expectile)):
        found = dp.intervals(template, None, {"x": x, "g": g, "y": y}, PRIVACY, seed=1)
        assert found.undetermined == ()
        estimates = dict(zip(found.names, found.estimates, strict=True))
        assert estimates["a[1]"] - estimates["a[0]"] == pytest.approx(0.2, abs=0.03)


def test_doubts_are_said_before_payment():
    data, _ = drawn("logistic_regression", 8_000, np.random.default_rng(0))
    w, wide = cp.Variable(3, name="w"), dp.Record(x=dp.Box(-np.full(3, 50.0), np.full(3, 50.0)), y=dp.Choice([-1, 1]))
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))

    def loss(x, y):
        return cp.logistic(-y * (x @ w))

    within = dp.Template(record, loss, constraints=[w <= 1])
    for largest, at_end in ((1.0, True), (0.5, False)):
        fit = dp.Release({"w": [largest, 0.0, 0.0]}, spent=PRIVACY)
        with warnings.catch_warnings(record=True) as said, suppress(dp.NotConverged):
            warnings.simplefilter("always")
            dp.intervals(within, fit, data, PRIVACY, seed=1)
        assert any("a constraint is active at the release" in str(one.message) for one in said) == at_end
    with pytest.warns(dp.PrivacyWarning, match="pass a release that tells"), suppress(dp.NotConverged):
        dp.intervals(within, None, data, PRIVACY, seed=1)
    fewer = {name: column[:4_000] for name, column in data.items()}
    for kind, some, warned in ((wide, data, False), (record, fewer, False), (wide, fewer, True)):
        with warnings.catch_warnings(record=True) as said, suppress(dp.NotConverged):
            warnings.simplefilter("always")
            dp.intervals(dp.Template(kind, loss), None, some, PRIVACY, seed=1)
        assert any("too few records" in str(one.message) for one in said) == warned
    few, natural = {"x": 50 * data["x"][:600], "y": data["y"][:600]}, dp.Template(wide, loss)
    with pytest.warns(dp.PrivacyWarning, match="scale 'x' to -1 to 1"), suppress(dp.NotConverged):
        dp.intervals(natural, None, few, PRIVACY, seed=1)


def test_intervals_cover_the_best_line_where_a_skewed_effect_levels_off():
    """A few long gradients, all of one sign, were cut: estimates were 8 standard errors off."""
    w, b, covered = cp.Variable(1, name="w"), cp.Variable(name="b"), []
    record = dp.Record(x=dp.Box([0.0], [50.0]), y=dp.Box(0, 200))
    line = dp.Template(record, lambda x, y: cp.square(x @ w + b - y), 1e-9 * cp.sum_squares(w))

    def drawn_wages(size, rng):
        x = np.exp(0.9 * rng.normal(size=size)).clip(0, 50)
        return x, (50 + 30 * np.minimum(x / 1.5, 2) + 10 * rng.normal(size=size)).clip(0, 200)

    true = np.polyfit(*drawn_wages(1_000_000, np.random.default_rng(9)), 1)
    for seed in range(8):
        x, y = drawn_wages(20_000, np.random.default_rng(seed))
        found = dp.intervals(line, None, {"x": x[:, None], "y": y}, PRIVACY, seed=seed)
        covered.append((found.lower <= true) & (true <= found.upper))
    assert np.mean(covered) > 0.7
