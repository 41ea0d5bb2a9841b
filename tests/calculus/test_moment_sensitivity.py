"""Sensitivity of moments: closed forms where there are some, and brute force over records everywhere."""

import math

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.auditing.released_statistics import farthest
from dpconvex.calculus.loss_form import LossForm
from dpconvex.calculus.moment_sensitivity import difference_bound, length_bound
from dpconvex.calculus.moments import Moments, quadratic_loss


def moments_of(template: dp.Template, weight: float, residuals: bool = False) -> tuple[Moments, float, float]:
    """Return the moments, and the bounds for one record and for two."""
    loss = quadratic_loss(LossForm(template))
    moments = loss.moments(weight, residuals, True)
    return moments, length_bound(moments, loss.bases), difference_bound(moments, loss.bases)


@pytest.mark.parametrize("weight", [0.3, 1.0, 2**0.5])
def test_least_squares_have_the_sensitivities_of_the_theorem(weight: float) -> None:
    for template in (
        dp.load("least_squares_classifier", features=3, classes=4, radius=5.0),
        dp.load("ridge_regression", features=3, radius=0.2, target=7.0),
    ):
        _, length, apart = moments_of(template, weight)
        assert length == pytest.approx(math.sqrt(1 + weight**2), rel=1e-6)
        assert apart == pytest.approx(math.sqrt(2 + 2 * weight**2 + weight**4 / 2), rel=1e-5)


def templates() -> dict[str, dp.Template]:
    w, u, b = cp.Variable(2, name="w"), cp.Variable(name="u"), cp.Variable(name="b")
    table = dp.Record(x=dp.Box([0.0, -1.0], [1.0, 1.0]), t=dp.Box(-0.5, 2.0), y=dp.Choice([0, 1, 2]))
    return {
        "offset": dp.load("linear_regression", features=2),
        "no target below 0": dp.Template(
            dp.Record(x=dp.Ball(2), y=dp.Box(0.0, 1.0)), lambda x, y: cp.square(x @ w + b - y)
        ),
        "scalars": dp.Template(
            dp.Record(x=dp.Box(-1.0, 2.0), y=dp.Box(-1.0, 1.0)), lambda x, y: cp.square(x * u + b - y)
        ),
        "weights": dp.Template(
            dp.Record(x=dp.Ball(2, norm=1), t=dp.Box(0.0, 1.0)), lambda x, t: t * cp.square(x @ w - 1)
        ),
        "labels": dp.Template(table, lambda x, t, y: (y + 1) * cp.square(x @ w - t) + cp.square(u - y)),
        "degree four": dp.Template(
            dp.Record(x=dp.Box(-1.0, 1.0), y=dp.Choice([-1, 1])), lambda x, y: cp.square(x * u + x**2 * b - y)
        ),
        "location": dp.Template(dp.Record(x=dp.Ball(2)), lambda x: cp.sum_squares(w - x) / 2),
    }


@pytest.mark.parametrize("residuals", [False, True])
@pytest.mark.parametrize("name", sorted(templates()))
def test_no_two_records_are_farther_apart_and_some_nearly_are(name: str, residuals: bool) -> None:
    template = templates()[name]
    moments, length, apart = moments_of(template, 1.2, residuals)
    rng = np.random.default_rng(5)
    _, alone = farthest(template, moments, "add-remove", rng)
    _, found = farthest(template, moments, "replace-one", rng)
    assert alone <= length * (1 + 1e-12)
    assert found <= apart * (1 + 1e-12)
    assert alone >= 0.97 * length or name in ("weights", "labels")  # an l1 ball has fewer corners than its hull
    assert found >= 0.7 * apart


def test_records_that_hardly_differ_keep_a_sensitivity() -> None:
    u = cp.Variable(name="u")
    template = dp.Template(dp.Record(x=dp.Box(1e6, 1e6 + 1e-3)), lambda x: cp.square(u - x))
    _, _, apart = moments_of(template, 1.0)
    assert 1e-9 <= apart <= 1e-5
