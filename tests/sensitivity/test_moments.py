"""Moments: sums of quadratic losses exactly, refusals by name, and sensitivities that no records exceed, weighted or not."""

import math

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.auditing.parts import StatisticsSearch
from dpconvex.expressions.evaluate import evaluate
from dpconvex.fitting.verify import form_of
from dpconvex.optim.noisy_quadratic import NoisyQuadratic
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.moments import difference_bound, length_bound, quadratic_loss
from dpconvex.sums.moment_sums import moment_sums, record_moments


def random_template(rng):
    """Return a template of squares of random affine expressions, some of them weighted with fields."""
    d, k = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    W, s = cp.Variable((d, k), name="W"), cp.Variable((2, 2), name="S", symmetric=True)
    domains = [dp.Ball(d, radius=float(rng.uniform(0.5, 3))), dp.Box(-np.ones(d), rng.uniform(1, 2, d))]
    domain, height = domains[int(rng.integers(2))], float(rng.uniform(0.5, 2))
    record = dp.Record(x=domain, t=dp.Box(0.0, height), y=dp.Choice(["a", "b", "c"]))
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
def test_sums_of_losses_are_recovered_from_sums_of_moments(seed):
    rng = np.random.default_rng(seed)
    template = random_template(rng)
    form = LossForm(template)
    for counted in (True, False):
        moments = quadratic_loss(form).moments(1.5, True, counted)
        batch = template.record.sample(50, rng)
        values = np.append(moment_sums(moments, batch), batch.size)
        assert values[:-1] == pytest.approx(record_moments(moments, batch).sum(axis=0), rel=1e-9, abs=1e-9)
        noisy = NoisyQuadratic(quadratic_loss(form), moments, values, 1.0)
        for theta in rng.normal(size=(3, form.space.dim)):
            expected = 0.0
            for i in range(batch.size):
                fields = {name: np.asarray(column[i]) for name, column in batch.fields.items()}
                expected += float(evaluate(template.losses[batch.group[i]], {**form.space.unpack(theta), **fields}))
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
def test_losses_that_are_not_quadratic_are_refused_by_name(loss, place):
    w, record = cp.Variable(3, name="w"), dp.Record(x=dp.Ball(3), y=dp.Box(-1, 1))
    template = dp.Template(record, lambda x, y: loss(w, x, y), constraints=[cp.norm(w) <= 1])
    with pytest.raises(dp.NotPrivate, match=r"not a quadratic function|not a polynomial of the record") as error:
        dp.verify(template, dp.Privacy(1, 1e-6), 100, dp.SufficientStatistics())
    assert str(error.value.expression) == place


# How far records are apart.


def bounds_of(template, weight, residuals=False):
    """Return the moments, and the bounds for one record and for two."""
    loss = quadratic_loss(LossForm(template))
    moments = loss.moments(weight, residuals, True)
    return moments, length_bound(moments, loss.bases), difference_bound(moments, loss.bases)


@pytest.mark.parametrize("weight", [0.3, 1.0, 2**0.5])
def test_least_squares_have_the_sensitivities_of_the_theorem(weight):
    for template in (
        dp.load("least_squares_classifier", features=3, classes=4, radius=5.0),
        dp.load("ridge_regression", features=3, radius=0.2, target=7.0),
    ):
        _, length, apart = bounds_of(template, weight)
        assert length == pytest.approx(math.sqrt(1 + weight**2), rel=1e-6)
        assert apart == pytest.approx(math.sqrt(2 + 2 * weight**2 + weight**4 / 2), rel=1e-5)


w, u, b = cp.Variable(2, name="w"), cp.Variable(name="u"), cp.Variable(name="b")


def of(loss, **fields):
    return dp.Template(dp.Record(**fields), loss)


UNIT, THREE = dp.Box(-1.0, 1.0), dp.Choice([0, 1, 2])
TEMPLATES = {
    "offset": dp.load("linear_regression", features=2),
    "no target below 0": of(lambda x, y: cp.square(x @ w + b - y), x=dp.Ball(2), y=dp.Box(0.0, 1.0)),
    "scalars": of(lambda x, y: cp.square(x * u + b - y), x=dp.Box(-1.0, 2.0), y=UNIT),
    "weights": of(lambda x, t: t * cp.square(x @ w - 1), x=dp.Ball(2, norm=1), t=dp.Box(0.0, 1.0)),
    "labels": of(
        lambda x, t, y: (y + 1) * cp.square(x @ w - t) + cp.square(u - y),
        **{"x": dp.Box([0.0, -1.0], [1.0, 1.0]), "t": dp.Box(-0.5, 2.0), "y": THREE},
    ),
    "degree four": of(lambda x, y: cp.square(x * u + x**2 * b - y), x=UNIT, y=dp.Choice([-1, 1])),
    "location": of(lambda x: cp.sum_squares(w - x) / 2, x=dp.Ball(2)),
}


@pytest.mark.parametrize("residuals", [False, True])
@pytest.mark.parametrize("name", TEMPLATES)
def test_no_two_records_are_farther_apart_and_some_nearly_are(name, residuals):
    template = TEMPLATES[name]
    moments, length, apart = bounds_of(template, 1.2, residuals)
    search = StatisticsSearch(form_of(template), moments, np.random.default_rng(5))
    alone, found = (search.farthest(adjacency)[1] for adjacency in ("add-remove", "replace-one"))
    assert alone <= length * (1 + 1e-12)
    assert found <= apart * (1 + 1e-12)
    assert alone >= 0.97 * length or name in ("weights", "labels")  # an l1 ball has fewer corners than its hull
    assert found >= 0.7 * apart


def test_records_that_hardly_differ_keep_a_sensitivity():
    _, _, apart = bounds_of(of(lambda x: cp.square(u - x), x=dp.Box(1e6, 1e6 + 1e-3)), 1.0)
    assert 1e-9 <= apart <= 1e-5
