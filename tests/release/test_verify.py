"""The checker says yes with the right constants, and no with the reason, the place and a remedy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import pytest

import dpconvex as dp

PROMISE = dp.Privacy(epsilon=1.0)
DIGITS = {"rel": 1e-9, "abs": 0.0}


def certified(name: str, adjacency: str = "replace-one", **options: Any) -> dp.Certificate:
    return dp.verify(dp.load(name, **options), dp.Privacy(1.0, adjacency=adjacency), 583, dp.ObjectivePerturbation())


# The constants of the shipped problems, known by hand.


@pytest.mark.parametrize(
    ("classes", "gradient", "replacement", "dimension", "eigenvalue"),
    [
        (2, math.sqrt(2), 2 * math.sqrt(2), 55, 2.0),
        (4, math.sqrt(12), 4 * math.sqrt(2), 165, 4.0),
    ],
)
def test_constants_of_large_margin_gaussians(
    classes: int, gradient: float, replacement: float, dimension: int, eigenvalue: float
) -> None:
    options = {"features": 9, "classes": classes, "competitors": "summed"}
    certificate = certified("large_margin_gaussian", radius=1.0, width=0.5, **options)
    assert certificate.gradient_bound == pytest.approx(gradient, **DIGITS)
    assert certificate.sensitivity == pytest.approx(replacement, **DIGITS)
    assert certificate.hessian_bound == pytest.approx(eigenvalue, **DIGITS)
    assert certificate.noise_dimension == dimension
    removal = certified("large_margin_gaussian", "add-remove", **options)
    assert removal.sensitivity == pytest.approx(gradient, **DIGITS)


@pytest.mark.parametrize("radius", [1.0, 2.0])
def test_constants_of_logistic_regression(radius: float) -> None:
    certificate = certified("logistic_regression", features=3, radius=radius)
    assert certificate.gradient_bound == pytest.approx(radius, **DIGITS)
    assert certificate.sensitivity == pytest.approx(2 * radius, **DIGITS)
    assert certificate.hessian_bound == pytest.approx(radius**2 / 4, **DIGITS)
    assert certificate.noise_dimension == 3
    assert certified("logistic_regression", "add-remove", features=3).sensitivity == pytest.approx(1.0, **DIGITS)


# How the constants turn into noise.


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("problem", ["logistic_regression", "huber_svm", "large_margin_gaussian"])
def test_what_is_spent_adds_up(problem: str, adjacency: str) -> None:
    for epsilon in (0.01, 1.0, 30.0):
        template = dp.load(problem, features=4)
        certificate = dp.verify(template, dp.Privacy(epsilon, adjacency=adjacency), 300, dp.ObjectivePerturbation())
        assert certificate.epsilon == epsilon
        cover = certificate.cover
        assert cover is not None
        assert (cover.counting > 0) == (adjacency == "add-remove")
        spent = certificate.noise_epsilon + certificate.jacobian_epsilon + cover.epsilon + cover.counting
        assert spent == pytest.approx(epsilon, rel=1e-9)
        assert certificate.noise_scale == pytest.approx(certificate.sensitivity / certificate.noise_epsilon, rel=1e-9)
        assert certificate.expected_noise == pytest.approx(certificate.noise_dimension * certificate.noise_scale)


# Refusals.


def declared(make: Callable[[Any, Any, cp.Variable], Any], regularizer: Any = None) -> dp.Template:
    w = cp.Variable(3, name="w")
    return dp.Template(
        record=dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1])),
        loss=lambda x, y: make(x, y, w),
        regularizer=0.01 * cp.sum_squares(w) if regularizer is None else regularizer(w),
    )


def logistic(x: Any, y: Any, w: cp.Variable) -> Any:
    return cp.logistic(-y * (x @ w))


REFUSED: dict[str, tuple[dp.Template, str, str, str]] = {
    "hinge": (
        declared(lambda x, y, w: cp.pos(1 - y * (x @ w))),
        "not differentiable",
        "pos(",
        "dp.huber_hinge",
    ),
    "absolute value": (declared(lambda x, y, w: cp.abs(y - x @ w)), "not differentiable", "abs", "huber"),
    "square": (declared(lambda x, y, w: cp.square(y - x @ w)), "bounded sets", "square(", "bound the parameters"),
    "exponential": (declared(lambda x, y, w: cp.exp(-y * (x @ w))), "bounded above", "exp", "bound the parameters"),
    "concave": (declared(lambda x, y, w: -logistic(x, y, w)), "not convex", "logistic", "convex"),
    "not convex": (declared(lambda x, y, w: cp.sqrt(cp.pos(x @ w))), "not convex", "power", "convex"),
    "no variable": (declared(lambda x, y, w: cp.sum_squares(x)), "mentions no variable", "x", "variables"),
    "constant": (declared(lambda x, y, w: 1.0), "same for all records", "1", "arguments"),
    "no regularizer": (declared(logistic, lambda w: 0.0), "not strongly convex", "0", "sum_squares"),
    "norm": (declared(logistic, lambda w: 0.1 * cp.norm1(w)), "not strongly convex", "norm(w, 1)", "sum_squares"),
    "concave regularizer": (declared(logistic, lambda w: -cp.sum_squares(w)), "not convex", "w", "convex regularizer"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_says_why_where_and_what_to_do(case: str) -> None:
    template, reason, place, remedy = REFUSED[case]
    with pytest.raises(dp.NotPrivate) as caught:
        dp.verify(template, PROMISE, 100, dp.ObjectivePerturbation())
    error = caught.value
    assert reason in error.reason
    assert error.expression is not None
    assert place in error.expression
    assert error.remedy is not None
    assert remedy in error.remedy
    assert str(error) == f"{error.reason}\n  where: {error.expression}\n  remedy: {error.remedy}"
    assert not dp.is_private(template, PROMISE, 100, dp.ObjectivePerturbation())


def test_a_missing_rule_names_the_subexpression() -> None:
    P = cp.Variable((2, 2), PSD=True, name="P")
    with pytest.raises(dp.MissingRule, match="no rule for the atom tr_inv") as caught:
        dp.Template(
            record=dp.Record(x=dp.Ball(2)),
            loss=lambda x: x @ P @ x + 2 * cp.tr_inv(P),
            regularizer=cp.sum_squares(P),
        )
    assert caught.value.expression == "tr_inv(P)"
