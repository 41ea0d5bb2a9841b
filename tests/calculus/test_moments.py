"""Quadratic losses as linear functions of moments: exact for any way of writing them, and refused by name if they are none."""

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.calculus.loss_form import LossForm
from dpconvex.calculus.moments import Moments, quadratic_loss
from dpconvex.core.evaluate import evaluate
from dpconvex.evaluation.moment_sums import moment_sums, record_moments
from dpconvex.solvers.noisy_quadratic import NoisyQuadratic

Loss = Callable[..., Any]


def moments_of(template: dp.Template, counted: bool = True, residuals: bool = True) -> tuple[LossForm, Moments]:
    form = LossForm(template)
    return form, quadratic_loss(form).moments(1.5, residuals, counted)


def random_template(rng: np.random.Generator) -> dp.Template:
    """Return a template of squares of random affine expressions, some of them weighted with fields."""
    d, k = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    W, s = cp.Variable((d, k), name="W"), cp.Variable((2, 2), name="S", symmetric=True)
    domains = [dp.Ball(d, radius=float(rng.uniform(0.5, 3))), dp.Box(-np.ones(d), rng.uniform(1, 2, d))]
    record = dp.Record(
        x=domains[int(rng.integers(2))], t=dp.Box(0.0, float(rng.uniform(0.5, 2))), y=dp.Choice(["a", "b", "c"])
    )
    table, offset = rng.normal(size=(3, k)), float(rng.integers(0, 2))
    curved = [
        lambda x, t, y: cp.sum_squares(x @ W - table["abc".index(y)] - offset),
        lambda x, t, y: t * cp.square(cp.sum(x @ W) + s[0, 1] * x[0] - t),
        lambda x, t, y: cp.square(cp.norm(x @ W)) / 3 + (y == "b") * cp.square(cp.trace(s)),
        lambda x, t, y: cp.quad_form(W[0], np.eye(k) + 1) * t - cp.sum(W) * x[0],
    ]
    kept = [term for term in curved if rng.random() < 0.6] or curved[:1]
    return dp.Template(record, lambda x, t, y: sum(term(x, t, y) for term in kept))


@pytest.mark.parametrize("seed", range(12))
def test_sums_of_losses_are_recovered_from_sums_of_moments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    template = random_template(rng)
    for counted in (True, False):
        form, moments = moments_of(template, counted)
        batch = template.record.sample(50, rng)
        values = np.append(moment_sums(moments, batch), batch.size)
        assert values[:-1] == pytest.approx(record_moments(moments, batch).sum(axis=0), rel=1e-9, abs=1e-9)
        noisy = NoisyQuadratic(quadratic_loss(form), moments, values, 1.0)
        for _ in range(3):
            theta = rng.normal(size=form.space.dim)
            parameters = form.space.unpack(theta)
            expected = 0.0
            for i in range(batch.size):
                fields = {name: np.asarray(column[i]) for name, column in batch.fields.items()}
                expected += float(evaluate(template.written[batch.group[i]], {**parameters, **fields}))
            found = theta @ (noisy.hessian @ theta) / 2 - noisy.slope @ theta + noisy.constant
            assert found == pytest.approx(expected, rel=1e-9)
            # The linear maps that noise goes through are those of the value and the gradient.
            if not counted:
                assert values[:-1] @ noisy.value_map(theta) == pytest.approx(expected, rel=1e-9)
                slope = noisy.gradient_map(theta) @ values[:-1]
                assert slope == pytest.approx(noisy.hessian @ theta - noisy.slope, rel=1e-8, abs=1e-8)


def test_what_coincides_is_summed_once() -> None:
    classifier = dp.load("least_squares_classifier", features=4, classes=5)
    _, moments = moments_of(classifier, residuals=False)
    assert moments.count == 4 * 5 // 2 + 4 * 5  # one x x' for all classes, and x for each of them
    regression = dp.load("linear_regression", features=4)
    assert [
        moments_of(regression, counted, residuals)[1].count for counted in (True, False) for residuals in (False, True)
    ] == [
        10 + 4 + 4 + 1,  # x x', x y, x, y; the number of records is public
        10 + 4 + 4 + 1 + 1,  # y^2
        10 + 4 + 4 + 1 + 1,
        10 + 4 + 4 + 1 + 1 + 1,
    ]


@pytest.mark.parametrize(
    ("loss", "place"),
    [
        (lambda w, x, y: cp.logistic(x @ w), "logistic(x @ w)"),
        (lambda w, x, y: cp.square(x @ w) + cp.norm(w - x), "norm(w - x)"),
        (lambda w, x, y: cp.power(x @ w, 4), "power(x @ w, 4)"),
        (lambda w, x, y: cp.huber(x @ w - y), "huber(x @ w - y, 1)"),
    ],
)
def test_losses_that_are_not_quadratic_are_refused_by_name(loss: Loss, place: str) -> None:
    w = cp.Variable(3, name="w")
    template = dp.Template(
        dp.Record(x=dp.Ball(3), y=dp.Box(-1, 1)), lambda x, y: loss(w, x, y), constraints=[cp.norm(w) <= 1]
    )
    with pytest.raises(dp.NotPrivate, match="not a quadratic function") as error:
        dp.verify(template, dp.Privacy(1, 1e-6), 100, dp.SufficientStatistics())
    assert str(error.value.expression) == place


def test_coefficients_that_are_no_polynomials_are_refused() -> None:
    w = cp.Variable(name="w")
    template = dp.Template(dp.Record(x=dp.Box(0.0, 1.0)), lambda x: cp.exp(x) * cp.square(w - 1))
    with pytest.raises(dp.NotPrivate, match="not a polynomial of the record"):
        dp.verify(template, dp.Privacy(1, 1e-6), 100, dp.SufficientStatistics())
