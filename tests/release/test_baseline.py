"""Fits without privacy: of anything that CVXPY solves, and they say how accurate they are."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp

RNG = np.random.default_rng(1)
X = dp.Ball(3).project(RNG.normal(size=(80, 3)))
DATA: dict[str, Any] = {"x": X, "y": np.where(X[:, 0] + 0.3 * RNG.normal(size=80) > 0, 1, -1)}


def squares(w: Any) -> Any:
    return 0.05 * cp.sum_squares(w)


def logistic(x: Any, y: Any, w: Any) -> Any:
    return cp.logistic(-y * (x @ w))


# Loss, regularizer, and constraints, if there are any.
CASES: dict[str, tuple[Any, ...]] = {
    "hinge": (lambda x, y, w: cp.pos(1 - y * (x @ w)), squares),
    "logistic, lasso": (logistic, lambda w: 0.01 * cp.norm1(w)),
    "nothing added": (lambda x, y, w: cp.square(x @ w - y), lambda w: 0.0),
    "exponential": (lambda x, y, w: cp.exp(-y * (x @ w)), squares),
    "second-order cone": (logistic, squares, lambda w: [cp.norm(w[:2]) <= w[2]]),
    "cubic norm": (lambda x, y, w: cp.pnorm(cp.hstack([x @ w - y, w[0]]), 3), squares),
    "without end": (lambda x, y, w: -y * (x @ w), lambda w: 0.0),
    "without a point": (logistic, squares, lambda w: [cp.sum(w) >= 1, w <= -1]),
}


def template_of(case: str, w: Any) -> dp.Template:
    loss, regularizer, *constraints = CASES[case]
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    return dp.Template(record, lambda x, y: loss(x, y, w), regularizer(w), [c for made in constraints for c in made(w)])


@pytest.mark.parametrize("case", [case for case in CASES if "without" not in case])
def test_a_baseline_agrees_with_cvxpy_and_its_accuracy_is_true(case: str) -> None:
    loss, regularizer, *constraints = CASES[case]
    fit, v = dp.minimize(template_of(case, cp.Variable(3, name="w")), DATA), cp.Variable(3)
    mean = sum(loss(x, y, v) for x, y in zip(X, DATA["y"], strict=True)) / 80 + regularizer(v)
    reference = cp.Problem(cp.Minimize(mean), [c for made in constraints for c in made(v)])
    reference.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    assert np.linalg.norm(fit["w"] - v.value) < 1e-4
    assert not fit.private
    v.value = fit["w"]
    assert mean.value <= reference.value + 1e-9
    assert "above the least" in fit.status if fit.distance > 1e-6 else "of the minimiser" in fit.status
    assert fit.gap is None or fit.gap < 1e-7
    assert fit.distance < 1e-3 or case in ("logistic, lasso", "nothing added", "exponential")


@pytest.mark.parametrize(("case", "reason"), [("end", "decreases without end"), ("a point", "no point satisfies")])
def test_without_a_least_value_it_says_so(case: str, reason: str) -> None:
    with pytest.raises((dp.NotConverged, dp.TemplateError), match=reason):
        dp.minimize(template_of(f"without {case}", cp.Variable(3, name="w")), DATA)
