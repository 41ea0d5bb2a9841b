"""Curvature of regularizers: bounded where it is claimed to be, and refused before anything is paid where nothing bounds it."""

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.calculus.regularizer_slope import slope_of
from dpconvex.evaluation.batch_loss import BatchedLoss
from dpconvex.mechanisms.rounding import bend_of, bends
from dpconvex.release.verify import analyse

GAMMA = dp.ObjectivePerturbation()
BALL: Callable[[cp.Variable], list[Any]] = lambda w: [cp.norm(w, 2) <= 4]  # noqa: E731
FREE: Callable[[cp.Variable], list[Any]] = lambda w: []  # noqa: E731
SMOOTH: dict[str, tuple[Callable[[cp.Variable], Any], Callable[[cp.Variable], list[Any]]]] = {
    "huber": (lambda w: 0.1 * cp.sum(cp.huber(w, 0.5)), BALL),
    "huber, free": (lambda w: 0.1 * cp.sum(cp.huber(w, 0.5)), FREE),
    "log-sum-exp": (lambda w: 0.05 * cp.log_sum_exp(3 * w), BALL),
    "powers": (lambda w: 0.01 * cp.sum(cp.power(w, 4)), BALL),
    "powers, free": (lambda w: 0.01 * cp.sum(cp.power(w, 4)), FREE),
    "exponentials": (lambda w: 0.01 * cp.sum(cp.exp(w)), BALL),
    "logarithms": (lambda w: -0.1 * cp.sum(cp.log(w + 5)), BALL),
    "entropy": (lambda w: -0.1 * cp.sum(cp.entr(w)), lambda w: [w >= 0.1, w <= 2]),
    "quadratic form": (lambda w: cp.quad_form(w, np.array([[1, 0.5, 0], [0.5, 1, 0], [0, 0, 2]])), BALL),
    "squared hinges": (lambda w: 0.1 * cp.sum(cp.square(cp.pos(w))), BALL),
}
# What the normal form of a template writes as squares, whose curvature is read off.
READ_OFF = {"quadratic form"}


def template_of(more: Callable[[cp.Variable], Any], constraints: Callable[[cp.Variable], list[Any]]) -> dp.Template:
    w = cp.Variable(3, name="w")
    loss = lambda x, y: cp.logistic(-y * (x @ w))  # noqa: E731
    regularizer = 0.05 * cp.sum_squares(w) + more(w)
    return dp.Template(dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1])), loss, regularizer, constraints(w))


@pytest.mark.parametrize("name", SMOOTH)
def test_the_curvature_is_at_least_what_is_observed(name: str) -> None:
    template = template_of(*SMOOTH[name])
    form = analyse(template).form
    assert bends(form) == (name not in READ_OFF)
    bend = bend_of(form, 3.0)
    assert np.isfinite(bend.rest)
    assert (bend.rest > 0) == (name not in READ_OFF)
    rng = np.random.default_rng(0)
    batch = template.record.validate({"x": np.zeros((1, 3)), "y": [1]})
    loss = BatchedLoss(template, form.space, batch)
    largest = 0.0
    for _ in range(300):
        theta = form.feasible.project(rng.normal(size=3) * rng.choice([0.01, 0.5, 2.0]))
        if np.linalg.norm(theta) > bend.radius:
            continue
        direction = rng.normal(size=3)
        direction /= np.linalg.norm(direction)
        largest = max(largest, float(direction @ loss.regularizer_hessian(theta) @ direction))
    assert 0.05 < largest <= (bend.quadratic + bend.rest) * (1 + 1e-9)


@pytest.mark.parametrize("mechanism", [GAMMA, dp.OutputPerturbation(), None], ids=repr)
def test_what_may_have_no_certified_answer_is_refused_before_anything_is_paid(mechanism: Any) -> None:
    template = template_of(lambda w: 0.1 * cp.sum(cp.power(cp.abs(w - 1), 1.5)), BALL)
    budget = dp.Budget(dp.Privacy(3.0))
    with pytest.raises(dp.NotPrivate, match="nothing bounds the curvature of the regularizer"):
        dp.solve(template, {"x": np.zeros((2, 3)), "y": [1, -1]}, dp.Privacy(1.0), mechanism, budget=budget)
    assert not budget.entries


def test_a_determinant_is_bounded_by_the_least_eigenvalue_in_the_feasible_set() -> None:
    P = cp.Variable((3, 3), symmetric=True, name="P")
    template = dp.Template(
        dp.Record(x=dp.Ball(3)),
        lambda x: x @ P @ x,
        0.05 * cp.sum_squares(P) - 0.3 * cp.log_det(P),
        [P >> np.diag([0.2, 0.3, 0.4])],
    )
    form = analyse(template).form
    bend = bend_of(form, 7.0)
    assert not bends(form)
    assert bend.rest == pytest.approx(0.3 / 0.2**2, rel=1e-8)
    assert bend.radius == np.inf
    slope = slope_of(template.regularizer, form, ball=2.0)
    rng = np.random.default_rng(3)
    for _ in range(200):
        root = rng.normal(size=(3, 3)) * rng.choice([0.01, 0.3])
        matrix = np.diag([0.2, 0.3, 0.4]) + root @ root.T
        inverse = np.linalg.inv(matrix)
        direction = rng.normal(size=(3, 3))
        direction = (direction + direction.T) / np.linalg.norm(direction + direction.T)
        assert 0.3 * np.trace(inverse @ direction @ inverse @ direction) <= bend.rest
        if np.linalg.norm(matrix) <= 2:
            assert np.linalg.norm(0.1 * matrix - 0.3 * inverse) <= slope
    assert np.isfinite(slope)
    assert dp.verify(template, dp.Privacy(1.0), 100).noise_scale > 0
