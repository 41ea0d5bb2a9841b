"""Moments: sums of quadratic losses exactly, refusals by name, and sensitivities that no records exceed, weighted or not."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dpconvex as dp
from dpconvex.auditing.parts import Statistics
from dpconvex.calculus.loss_form import LossForm
from dpconvex.calculus.moment_sensitivity import difference_bound, length_bound
from dpconvex.calculus.moments import Moments, quadratic_loss, turned_parameters
from dpconvex.core.evaluate import evaluate
from dpconvex.evaluation.moment_sums import WEIGHTS, moment_sums, record_moments
from dpconvex.language.batch import Batch
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics, on_whitened
from dpconvex.release.verify import form_of
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
        lambda x, t, y: cp.square(cp.pnorm(x @ W, 2)) / 3 + (y == "b") * cp.square(cp.trace(s)),
        lambda x, t, y: cp.quad_form(W[0], np.eye(k) + 1) * t - cp.sum(W) * x[0],
    ]
    kept = [term for term in curved if rng.random() < 0.6] or curved[:1]
    return dp.Template(record, lambda x, t, y: sum(term(x, t, y) for term in kept))


@pytest.mark.parametrize("seed", range(8))
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
                expected += float(evaluate(template.losses[batch.group[i]], {**parameters, **fields}))
            found = theta @ (noisy.hessian @ theta) / 2 - noisy.slope @ theta + noisy.constant
            assert found == pytest.approx(expected, rel=1e-9)
            # The linear maps that noise goes through are those of the value and the gradient.
            if not counted:
                assert values[:-1] @ noisy.value_map(theta) == pytest.approx(expected, rel=1e-9)
                slope = noisy.gradient_map(theta) @ values[:-1]
                assert slope == pytest.approx(noisy.hessian @ theta - noisy.slope, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize(
    ("loss", "place"),
    [
        (lambda w, x, y: cp.logistic(x @ w), "logistic(x @ w)"),
        (lambda w, x, y: cp.square(x @ w) + cp.norm(w - x), "norm(w - x)"),
        (lambda w, x, y: cp.power(x @ w, 4), "power(x @ w, 4)"),
        (lambda w, x, y: cp.huber(x @ w - y), "huber(x @ w - y, 1)"),
        (lambda w, x, y: cp.exp(y) * cp.square(w[0] - x[0]), "exp(y)"),
    ],
)
def test_losses_that_are_not_quadratic_are_refused_by_name(loss: Loss, place: str) -> None:
    w = cp.Variable(3, name="w")
    template = dp.Template(
        dp.Record(x=dp.Ball(3), y=dp.Box(-1, 1)), lambda x, y: loss(w, x, y), constraints=[cp.norm(w) <= 1]
    )
    with pytest.raises(dp.NotPrivate, match=r"not a quadratic function|not a polynomial of the record") as error:
        dp.verify(template, dp.Privacy(1, 1e-6), 100, dp.SufficientStatistics())
    assert str(error.value.expression) == place


# How far records are apart.


def bounds_of(template: dp.Template, weight: float, residuals: bool = False) -> tuple[Moments, float, float]:
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
        _, length, apart = bounds_of(template, weight)
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
    moments, length, apart = bounds_of(template, 1.2, residuals)
    search = Statistics(form_of(template), moments, np.random.default_rng(5))
    alone, found = (search.farthest(adjacency)[1] for adjacency in ("add-remove", "replace-one"))
    assert alone <= length * (1 + 1e-12)
    assert found <= apart * (1 + 1e-12)
    assert alone >= 0.97 * length or name in ("weights", "labels")  # an l1 ball has fewer corners than its hull
    assert found >= 0.7 * apart


def test_records_that_hardly_differ_keep_a_sensitivity() -> None:
    u = cp.Variable(name="u")
    template = dp.Template(dp.Record(x=dp.Box(1e6, 1e6 + 1e-3)), lambda x: cp.square(u - x))
    _, _, apart = bounds_of(template, 1.0)
    assert 1e-9 <= apart <= 1e-5


# Weighted records.

SOME = 100
LEARNERS = {
    "offset": dp.load("linear_regression", features=2),
    "plain": dp.load("ridge_regression", features=2),
    "classes": dp.load("least_squares_classifier", features=2, classes=3),
}


@cache
def parts(name: str, residuals: bool = False) -> tuple[Any, Any, Any]:
    form = form_of(LEARNERS[name])
    mechanism = on_whitened(SufficientStatistics(residuals=residuals), form, "x")
    return form, quadratic_loss(form), mechanism.moments(form, "replace-one")


@pytest.mark.parametrize("name", LEARNERS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_weighted_records_are_longer_or_farther_apart_than_the_bounds(name: str, seed: int) -> None:
    form, loss, moments = parts(name, residuals=True)
    rng = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        batch = form.template.record.sample(SOME, rng)
        lengths = np.linalg.norm(batch.fields["x"], axis=1, keepdims=True)
        batch.fields["x"][: SOME // 2] /= np.maximum(lengths[: SOME // 2], 1e-12)  # the longest are the worst
        weights = np.where(rng.random(SOME) < 0.5, rng.random(SOME), rng.integers(0, 2, SOME))
        sides.append(record_moments(moments, Batch({**batch.fields, WEIGHTS: weights}, batch.group)))
    assert np.linalg.norm(sides[0], axis=1).max() <= length_bound(moments, loss.bases)
    assert np.linalg.norm(sides[0] - sides[1], axis=1).max() <= difference_bound(moments, loss.bases)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_turn_of_the_features_is_one_of_the_parameters(name: str) -> None:
    form = parts(name)[0]
    matrix = np.array([[1.0, 2.0], [-0.5, 3.0]])
    turn = turned_parameters(form, "x", matrix).toarray()
    assert turn.shape == (form.space.dim, form.space.dim)
    assert turn[:2, :2] == pytest.approx(matrix.T)
    if name == "offset":
        assert turn[2] == pytest.approx([0.0, 0.0, 1.0])
