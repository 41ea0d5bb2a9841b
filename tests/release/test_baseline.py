"""Fits without privacy: of anything that CVXPY solves, and they say how accurate they are."""

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp

D = 3


def records(n: int = 80, features: int = D) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, features))
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    return {"x": x, "y": np.where(x[:, 0] + 0.3 * rng.normal(size=n) > 0, 1, -1)}


def logistic_loss(x: Any, y: Any, w: Any) -> Any:
    return cp.logistic(-y * (x @ w))


def squares(w: Any) -> Any:
    return 0.05 * cp.sum_squares(w)


def free(w: Any) -> list[Any]:
    return []


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "hinge": (lambda x, y, w: cp.pos(1 - y * (x @ w)), squares, free),
    "logistic, lasso": (logistic_loss, lambda w: 0.01 * cp.norm1(w), free),
    "nothing added": (lambda x, y, w: cp.square(x @ w - y), lambda w: 0.0, free),
    "exponential": (lambda x, y, w: cp.exp(-y * (x @ w)), squares, free),
    "second-order cone": (logistic_loss, squares, lambda w: [cp.norm(w[:2]) <= w[2]]),
    "cubic norm": (lambda x, y, w: cp.pnorm(cp.hstack([x @ w - y, w[0]]), 3), squares, free),
}


@pytest.mark.parametrize("case", CASES)
def test_a_baseline_agrees_with_cvxpy_and_its_accuracy_is_true(case: str) -> None:
    loss, regularizer, constraints = CASES[case]
    data = records()
    w, v = cp.Variable(D, name="w"), cp.Variable(D)
    record = dp.Record(x=dp.Ball(D), y=dp.Choice([-1, 1]))
    template = dp.Template(record, lambda x, y: loss(x, y, w), regularizer(w), constraints(w))
    fit = dp.minimize(template, data)
    mean = sum(loss(x, y, v) for x, y in zip(data["x"], data["y"], strict=True)) / len(data["y"]) + regularizer(v)
    reference = cp.Problem(cp.Minimize(mean), constraints(v))
    reference.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    assert np.linalg.norm(fit["w"] - v.value) < 1e-4
    assert not fit.private
    v.value = fit["w"]
    assert mean.value <= reference.value + 1e-9
    assert fit.accuracy in fit.status
    assert fit.gap is None or fit.gap < 1e-7
    assert fit.distance < 1e-3 or case in ("logistic, lasso", "nothing added", "exponential")


@pytest.mark.parametrize(
    ("regularizer", "constraints", "reason"),
    [
        (lambda w: 0.0, free, "decreases without end"),
        (squares, lambda w: [cp.sum(w) >= 1, w <= -1], "no point satisfies"),
    ],
)
def test_without_a_least_value_it_says_so(regularizer: Any, constraints: Any, reason: str) -> None:
    w = cp.Variable(D, name="w")
    record = dp.Record(x=dp.Ball(D), y=dp.Choice([-1, 1]))
    template = dp.Template(record, lambda x, y: -y * (x @ w), regularizer(w), constraints(w))
    with pytest.raises((dp.NotConverged, dp.TemplateError), match=reason):
        dp.minimize(template, records())
