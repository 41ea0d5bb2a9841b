"""Declaring a learner: what is accepted and refused, problems over all records that become one, and the program given back."""

import cvxpy as cp
import numpy as np
import pytest
from learners_of_tests import records_of
from refused import refused

import dpconvex as dp

w = cp.Variable(2, name="w")


def test_noise_the_quadratic_and_the_size_enter_the_sum_form():
    w, P = cp.Variable(2, name="w"), cp.Variable((2, 2), PSD=True, name="P")
    public = 0.5 * cp.sum_squares(w) + cp.sum_squares(P)
    template = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: cp.logistic(x @ w + x @ P @ x), public)
    data = records_of(template, 7)
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
    for wrong in ({"v": np.zeros(2)}, {"w": np.zeros(3)}):
        refused(dp.TemplateError, "noise for", template.problem, data, wrong)
    with pytest.raises(dp.DomainError):
        template.problem({"x": [[3.0, 0.0]]})


# Problems over all records
N, D = 12, 3

# In X (N x D), y (N), w (D) and W (D x 2).
SUMS = {
    "logistic": lambda X, y, w, W: cp.sum(cp.logistic(-cp.multiply(y, X @ w))),
    "sum of squares": lambda X, y, w, W: cp.sum_squares(X @ w - y) / (2 * N),
    "softmax": lambda X, y, w, W: cp.sum(cp.log_sum_exp(X @ W, axis=1)),
    "squares and a shared row": lambda X, y, w, W: cp.sum_squares(X - cp.reshape(w, (1, D), order="F")) / N,
    "row norms": lambda X, y, w, W: cp.sum(cp.norm(X @ W, axis=1)) / N,
    "absolute values": lambda X, y, w, W: cp.norm1(X @ w - y) / N,
    "product with labels": lambda X, y, w, W: cp.sum(cp.logistic(X @ w)) - y @ (X @ w),
    "gradient of a correlation": lambda X, y, w, W: cp.sum_squares(w) - w @ (X.T @ y) / N,
    "ones times an intercept": lambda X, y, w, W: cp.sum(cp.huber(X @ W[:, :1] + np.ones((N, 1)) @ W[:1, 1:], 0.5)),
    "stacked": lambda X, y, w, W: cp.sum(cp.norm(cp.hstack([X @ W, cp.reshape(y, (N, 1), order="F")]), axis=1)),
    "sum along records first": lambda X, y, w, W: cp.sum(cp.multiply([1.0, 2.0], cp.sum(cp.square(X @ W), axis=0))),
}

MIXED = {
    "a norm of residuals": (lambda X, y, w, W: cp.norm(X @ w - y), r"norm\(X @ w - y\)"),
    "the square of a sum": (lambda X, y, w, W: cp.square(cp.sum(X @ w)), r"linear in sums"),
    "neighbouring rows": (lambda X, y, w, W: cp.sum_squares(X[1:] @ w - X[:-1] @ w), r"X\[1:"),
    "a weight for each record": (lambda X, y, w, W: np.arange(N) @ cp.square(X @ w), "entries for different records"),
    "the largest few": (lambda X, y, w, W: cp.sum_largest(X @ w, 3), "not known to treat each record alone"),
    "a matrix of records": (lambda X, y, w, W: cp.sum(cp.abs(X @ W @ np.ones((2, D)) @ X.T)), "different records"),
}


def symbols():
    data = cp.Parameter((N, D), name="X"), cp.Parameter(N, name="y")
    return (*data, cp.Variable(D, name="w"), cp.Variable((D, 2), name="W"))


def domains(expression):
    every = {"X": dp.Ball(D), "y": dp.Choice([-1, 1])}
    return {parameter.name(): every[parameter.name()] for parameter in expression.parameters()}


@pytest.mark.parametrize("name", SUMS)
def test_the_mean_loss_plus_the_regularizer_is_the_objective(name):
    X, y, w, W = symbols()
    objective = SUMS[name](X, y, w, W)
    template = dp.Template.from_problem(cp.Problem(cp.Minimize(objective)), records=domains(objective))
    data = records_of(template, N)
    X.value, y.value = data["X"], data.get("y", np.zeros(N))
    rng, problem = np.random.default_rng(3), template.problem(data)
    w.value, W.value = rng.normal(size=w.shape), rng.normal(size=W.shape)
    for variable in problem.variables():
        variable.value = {"w": w, "W": W}[variable.name()].value
    assert float(problem.objective.value) / N == pytest.approx(float(objective.value), rel=1e-9)


@pytest.mark.parametrize("name", MIXED)
def test_a_term_that_mixes_records_is_shown(name):
    X, y, w, W = symbols()
    build, complaint = MIXED[name]
    objective = build(X, y, w, W) + cp.sum_squares(w)
    with pytest.raises(dp.NotPrivate, match=complaint):
        dp.Template.from_problem(cp.Problem(cp.Minimize(objective)), records=domains(objective))


def test_a_variable_for_each_record_is_refused():
    X, y, w, _ = symbols()
    slack = cp.Variable(N, nonneg=True, name="slack")
    problem = cp.Problem(cp.Minimize(cp.sum(slack) + cp.sum_squares(w)), [cp.multiply(y, X @ w) >= 1 - slack])
    with pytest.raises(dp.NotPrivate, match="a constraint mentions the data"):
        dp.Template.from_problem(problem, records={X: dp.Ball(D), y: dp.Choice([-1, 1])})
    shifted = cp.Problem(cp.Minimize(cp.sum_squares(X @ w - slack)))
    with pytest.raises(dp.NotPrivate, match="slack has different entries for different records"):
        dp.Template.from_problem(shifted, records={X: dp.Ball(D)})


def test_a_maximum_is_the_minimum_of_its_negative_and_constraints_come_along():
    X, _, w, _ = symbols()
    problem = cp.Problem(cp.Maximize(cp.sum(cp.log(2 + X @ w)) - cp.sum_squares(w)), [cp.norm(w) <= 1])
    template = dp.Template.from_problem(problem, records={X: dp.Ball(D)})
    assert [str(constraint) for constraint in template.constraints] == ["norm(w) <= 1"]
    assert dp.is_private(template, dp.Privacy(1.0), size=N)


def test_data_without_a_domain_are_no_public_numbers():
    X, y, w, _ = symbols()
    problem = cp.Problem(cp.Minimize(cp.sum(cp.logistic(-cp.multiply(y, X @ w)))))
    refused(dp.NotPrivate, "parameter 'y', which is not a field", dp.Template.from_problem, problem, {X: dp.Ball(D)})
    refused(dp.TemplateError, r"problem must be a cvxpy\.Problem", dp.Template.from_problem, "problem", {X: dp.Ball(D)})
