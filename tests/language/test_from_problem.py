"""Problems over all records at once become templates, exactly, or are refused with the term that mixes records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.core.evaluate import evaluate, over_records

N, D = 12, 3
Build = Callable[[cp.Parameter, cp.Parameter, cp.Variable, cp.Variable], Any]

# In X (N x D), y (N), w (D) and W (D x 2).
SUMS: dict[str, Build] = {
    "mean logistic": lambda X, y, w, W: cp.sum(cp.logistic(-cp.multiply(y, X @ w))) / N,
    "mean": lambda X, y, w, W: cp.mean(cp.logistic(-cp.multiply(y, X @ w))),
    "sum": lambda X, y, w, W: cp.sum(cp.logistic(-cp.multiply(y, X @ w))),
    "sum of squares": lambda X, y, w, W: cp.sum_squares(X @ w - y) / (2 * N),
    "transposed": lambda X, y, w, W: cp.sum(cp.pos(1 - cp.multiply(y, w @ X.T))),
    "softmax": lambda X, y, w, W: cp.sum(cp.log_sum_exp(X @ W, axis=1)),
    "softmax with kept axes": lambda X, y, w, W: cp.sum(cp.log_sum_exp(X @ W, axis=1, keepdims=True)),
    "columns": lambda X, y, w, W: cp.sum(cp.log_sum_exp(W.T @ X.T, axis=0)),
    "squares of a matrix": lambda X, y, w, W: cp.sum_squares(X @ W) / N,
    "squares and a shared row": lambda X, y, w, W: cp.sum_squares(X - cp.reshape(w, (1, D), order="F")) / N,
    "row norms": lambda X, y, w, W: cp.sum(cp.norm(X @ W, axis=1)) / N,
    "absolute values": lambda X, y, w, W: cp.norm1(X @ w - y) / N,
    "product with labels": lambda X, y, w, W: cp.sum(cp.logistic(X @ w)) - y @ (X @ w),
    "weights of one": lambda X, y, w, W: np.full(N, 0.5) @ cp.square(X @ w),
    "gradient of a correlation": lambda X, y, w, W: cp.sum_squares(w) - w @ (X.T @ y) / N,
    "ones times an intercept": lambda X, y, w, W: cp.sum(cp.huber(X @ W[:, :1] + np.ones((N, 1)) @ W[:1, 1:], 0.5)),
    "columns apart": lambda X, y, w, W: cp.sum(cp.huber(X[:, 0] * w[0] + X[:, 1] - y)),
    "stacked": lambda X, y, w, W: cp.sum(cp.norm(cp.hstack([X @ W, cp.reshape(y, (N, 1), order="F")]), axis=1)),
    "sum along records first": lambda X, y, w, W: cp.sum(cp.multiply([1.0, 2.0], cp.sum(cp.square(X @ W), axis=0))),
    "several terms": lambda X, y, w, W: cp.sum(cp.exp(X @ w)) / N + 0.1 * cp.sum_squares(W) - cp.mean(X @ w),
    "a maximum of two": lambda X, y, w, W: cp.sum(cp.maximum(X @ w, 0.5 * (X @ w), 0)) / N,
}

MIXED: dict[str, tuple[Build, str]] = {
    "a norm of residuals": (lambda X, y, w, W: cp.norm(X @ w - y), r"norm\(X @ w - y\)"),
    "the worst record": (lambda X, y, w, W: cp.max(X @ w), r"max\(X @ w\)"),
    "the square of a sum": (lambda X, y, w, W: cp.square(cp.sum(X @ w)), r"linear in sums"),
    "neighbouring rows": (lambda X, y, w, W: cp.sum_squares(X[1:] @ w - X[:-1] @ w), r"X\[1:"),
    "a weight for each record": (lambda X, y, w, W: np.arange(N) @ cp.square(X @ w), "own for each record"),
    "a log of the total": (lambda X, y, w, W: cp.log_sum_exp(X @ w), "not a sum over"),
    "the largest few": (lambda X, y, w, W: cp.sum_largest(X @ w, 3), "not known to treat each record alone"),
    "a matrix of records": (lambda X, y, w, W: cp.sum(cp.abs(X @ W @ np.ones((2, D)) @ X.T)), "different records"),
}


def symbols() -> tuple[cp.Parameter, cp.Parameter, cp.Variable, cp.Variable]:
    return (
        cp.Parameter((N, D), name="X"),
        cp.Parameter(N, name="y"),
        cp.Variable(D, name="w"),
        cp.Variable((D, 2), name="W"),
    )


def domains(expression: Any) -> dict[str, Any]:
    every = {"X": dp.Ball(D), "y": dp.Choice([-1, 1])}
    return {parameter.name(): every[parameter.name()] for parameter in expression.parameters()}


@pytest.mark.parametrize("name", SUMS)
def test_the_mean_loss_plus_the_regularizer_is_the_objective(name: str) -> None:
    X, y, w, W = symbols()
    objective = SUMS[name](X, y, w, W)
    template = dp.Template.from_problem(cp.Problem(cp.Minimize(objective)), records=domains(objective))
    rng = np.random.default_rng(3)
    batch = template.record.sample(N, rng)
    X.value = batch.fields["X"]
    labels = [combination.get("y", 0) for combination in template.record.combinations]
    y.value = np.array([float(labels[group]) for group in batch.group])
    for variable in (w, W):
        variable.value = rng.normal(size=variable.shape)
    point = {v: {"w": w, "W": W}[v.name].value for v in template.variables}
    total = 0.0
    for group, loss in enumerate(template.written):
        leaves: dict[Any, Any] = {v: value[..., None] for v, value in point.items()}
        leaves |= {field: np.moveaxis(batch.fields[field.name][batch.rows(group)], 0, -1) for field in loss.fields}
        total += float((over_records([loss], leaves)[loss] * np.ones(len(batch.rows(group)))).sum())
    rest = float(evaluate(template.regularizer, point))
    assert total / N + rest == pytest.approx(float(objective.value), rel=1e-9)


@pytest.mark.parametrize("name", MIXED)
def test_a_term_that_mixes_records_is_shown(name: str) -> None:
    X, y, w, W = symbols()
    build, complaint = MIXED[name]
    objective = build(X, y, w, W) + cp.sum_squares(w)
    with pytest.raises(dp.NotPrivate, match=complaint):
        dp.Template.from_problem(cp.Problem(cp.Minimize(objective)), records=domains(objective))


def test_a_variable_for_each_record_is_refused() -> None:
    X, y, w, _ = symbols()
    slack = cp.Variable(N, nonneg=True, name="slack")
    problem = cp.Problem(cp.Minimize(cp.sum(slack) + cp.sum_squares(w)), [cp.multiply(y, X @ w) >= 1 - slack])
    with pytest.raises(dp.NotPrivate, match="a constraint mentions the data 'X'"):
        dp.Template.from_problem(problem, records={X: dp.Ball(D), y: dp.Choice([-1, 1])})
    shifted = cp.Problem(cp.Minimize(cp.sum_squares(X @ w - slack)))
    with pytest.raises(dp.NotPrivate, match="slack has an entry of its own for each record"):
        dp.Template.from_problem(shifted, records={X: dp.Ball(D)})


def test_a_maximum_is_the_minimum_of_its_negative_and_constraints_come_along() -> None:
    X, _, w, _ = symbols()
    problem = cp.Problem(cp.Maximize(cp.sum(cp.log(2 + X @ w)) - cp.sum_squares(w)), [cp.norm(w) <= 1])
    template = dp.Template.from_problem(problem, records={X: dp.Ball(D)})
    assert [str(constraint) for constraint in template.constraints] == ["norm(w) <= 1"]
    assert dp.is_private(template, dp.Privacy(1.0), size=N)


def test_data_without_a_domain_are_no_public_numbers() -> None:
    X, y, w, _ = symbols()
    problem = cp.Problem(cp.Minimize(cp.sum(cp.logistic(-cp.multiply(y, X @ w)))))
    with pytest.raises(dp.NotPrivate, match="parameter 'y', which is not a field"):
        dp.Template.from_problem(problem, {X: dp.Ball(D)})
    with pytest.raises(dp.TemplateError, match=r"expected a cvxpy\.Problem"):
        dp.Template.from_problem("problem", {X: dp.Ball(D)})
