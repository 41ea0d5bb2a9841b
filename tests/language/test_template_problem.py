"""The perturbed program that a template gives back is the one that is solved."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp


def drawn(template: dp.Template, size: int) -> dict[str, Any]:
    batch = template.record.sample(size, np.random.default_rng(5))
    groups = [template.record.combinations[group] for group in batch.group]
    return {**batch.fields, **{name: [group[name] for group in groups] for name in template.record.discrete}}


@pytest.mark.parametrize("name", ["logistic_regression", "softmax_regression", "metric_learning", "ridge_regression"])
def test_without_noise_it_is_the_plain_fit(name: str) -> None:
    template = dp.load(name, features=2, regularization=0.1)
    data = drawn(template, 40)
    problem = template.problem(data)
    problem.solve(solver=cp.CLARABEL)
    fitted = dp.minimize(template, data)
    for variable in problem.variables():
        np.testing.assert_allclose(variable.value, fitted[variable.name()], atol=2e-4)


def test_noise_the_quadratic_and_the_size_enter_the_sum_form() -> None:
    w, P = cp.Variable(2, name="w"), cp.Variable((2, 2), PSD=True, name="P")
    template = dp.Template(
        dp.Record(x=dp.Ball(2)), lambda x: cp.logistic(x @ w + x @ P @ x), 0.5 * cp.sum_squares(w) + cp.sum_squares(P)
    )
    data = drawn(template, 7)
    noise = {"w": np.array([1.0, -2.0]), "P": np.array([[1.0, 0.5], [0.5, 3.0]])}
    problem = template.problem(data, noise, added=0.25, size=10)
    point = {"w": np.array([0.3, -0.1]), "P": np.array([[0.5, 0.2], [0.2, 0.4]])}
    for variable in problem.variables():
        variable.value = point[variable.name()]
    margins = data["x"] @ point["w"] + np.einsum("ni,ij,nj->n", data["x"], point["P"], data["x"])
    squares = {name: float((value**2).sum()) for name, value in point.items()}
    inner = sum(float((noise[name] * point[name]).sum()) for name in point)
    expected = np.log1p(np.exp(margins)).sum() + 10 * (0.5 * squares["w"] + squares["P"])
    expected += 0.125 * (squares["w"] + squares["P"]) + inner
    assert problem.objective.value == pytest.approx(expected, rel=1e-12)
    with pytest.raises(dp.TemplateError, match=r"noise for 'v'"):
        template.problem(data, {"v": np.zeros(2)})
    with pytest.raises(dp.TemplateError, match=r"noise for 'w' must be finite numbers of shape \(2,\)"):
        template.problem(data, {"w": np.zeros(3)})
    with pytest.raises(dp.DomainError):
        template.problem({"x": [[3.0, 0.0]]})
