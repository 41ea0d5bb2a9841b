"""A backend from elsewhere can do what it likes to the problem that it is given: what is certified does not change."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.core.expression import Constant, postorder
from dpconvex.solvers.certify import FirstOrder
from dpconvex.solvers.problem import Problem, Solution

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
X /= np.linalg.norm(X, axis=1)[:, None]
DATA = {"x": X, "y": np.where(X[:, 0] > 0, 1, -1)}
SEED = 3
GAMMA = dp.ObjectivePerturbation("gamma")


def learner() -> dp.Template:
    return dp.load("logistic_regression", features=3, regularization=0.1)


class Meddling:
    """Changes the problem, and then solves what it has made of it."""

    def __init__(self, change: Callable[[Problem], Any]) -> None:
        self.change = change

    def solve(self, problem: Problem, tolerance: float) -> Solution:
        self.change(problem)
        return FirstOrder().solve(problem, tolerance)


def anew(name: str, value: Callable[[Problem], Any]) -> Callable[[Problem], None]:
    return lambda problem: object.__setattr__(problem, name, value(problem))


def scale_constants(problem: Problem) -> None:
    for node in postorder([problem.template.regularizer, *problem.template.losses]):
        if isinstance(node, Constant):
            node.value.setflags(write=True)
            node.value[...] *= 3.0


def rewrite_batch(problem: Problem) -> None:
    problem.batch.fields["x"] = -np.asarray(problem.batch.fields["x"])


def rewrite_loss(problem: Problem) -> None:
    loss = problem.loss
    loss.value_and_gradient = lambda theta: (0.0, np.zeros(3))  # type: ignore[method-assign]


def rewrite_quadratic(problem: Problem) -> None:
    hessian = problem.loss.quadratic().hessian  # type: ignore[union-attr]
    hessian.data.setflags(write=True)
    hessian.data *= 100.0


def rewrite_form(problem: Problem) -> None:
    form = problem.loss._engine.form  # type: ignore[union-attr]
    form.map.data.setflags(write=True)
    form.map.data *= 0.0


CHANGES = {
    "takes the noise away": anew("linear", lambda p: 0 * p.linear),
    "shrinks a copy of the noise": anew("linear", lambda p: 1e-3 * p.linear),
    "has a milder regularization": anew("size", lambda p: p.size / 50),
    "has another quadratic": anew("added", lambda p: p.added + 7.0),
    "claims more convexity": anew("strong_convexity", lambda p: 1e9),
    "sees other records": rewrite_batch,
    "has other labels": lambda p: object.__setattr__(p.batch, "group", 1 - p.batch.group),
    "has no losses": rewrite_loss,
    "has another regularizer": rewrite_quadratic,
    "has other leaves": rewrite_form,
    "rewrites the template's constants": scale_constants,
    "replaces the template": anew("template", lambda p: dp.load("huber_svm", features=3)),
}


def test_what_reaches_a_backend_cannot_be_written_to() -> None:
    """Scaling the noise in place is how a backend would take it away."""
    for name in ("linear", "x", "group"):

        def change(problem: Problem, name: str = name) -> None:
            array = {"linear": problem.linear, "group": problem.batch.group, **problem.batch.fields}[name]
            array *= 0

        with pytest.raises(dp.NotConverged, match=r"failed.*read-only.*nothing is released"):
            dp.solve(learner(), DATA, dp.Privacy(1.0), GAMMA, backend=Meddling(change))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_answer_to_another_problem_is_not_released(change: Callable[[Problem], None]) -> None:
    template = learner()
    expected = dp.solve(template, DATA, dp.Privacy(1.0), GAMMA, seed=SEED)["w"]
    try:
        found = dp.solve(template, DATA, dp.Privacy(1.0), GAMMA, backend=Meddling(change), seed=SEED)["w"]
    except dp.NotConverged:
        found = expected
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # And what comes after is untouched.
    again = dp.solve(template, DATA, dp.Privacy(1.0), GAMMA, seed=SEED)["w"]
    np.testing.assert_array_equal(again, expected)


class Answering:
    """Returns something that is no solution, or not the one."""

    def __init__(self, answer: Callable[[Problem], Any]) -> None:
        self.answer = answer

    def solve(self, problem: Problem, tolerance: float) -> Any:
        return self.answer(problem)


class Evil(np.ndarray):
    """An array that says that it is finite."""

    def __array_function__(self, function: Any, *arguments: Any) -> Any:
        return np.array(True) if function is np.isfinite else NotImplemented


ANSWERS = {
    "nothing": lambda p: None,
    "a number": lambda p: 3.0,
    "complex numbers": lambda p: Solution(np.full(3, 1e-9 + 0j), 0.0),
    "an array": lambda p: np.zeros(3),
    "NaN": lambda p: Solution(np.full(3, np.nan), 0.0),
    "infinity": lambda p: Solution(np.full(3, np.inf), 0.0),
    "too few coordinates": lambda p: Solution(np.zeros(2), 0.0),
    "a column": lambda p: Solution(np.zeros((3, 1)), 0.0),
    "text": lambda p: Solution("abc", 0.0),  # type: ignore[arg-type]
    "no point": lambda p: SimpleNamespace(theta=None, distance_bound=0.0),
    "an array of another class": lambda p: Solution(np.full(3, np.nan).view(Evil), 0.0),
    "far away": lambda p: Solution(np.full(3, 1e300), 0.0),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_solution_is_refused(answer: Callable[[Problem], Any]) -> None:
    budget = dp.Budget(dp.Privacy(1.0))
    with pytest.raises(dp.NotConverged, match="nothing is released"):
        dp.solve(learner(), DATA, dp.Privacy(1.0), GAMMA, backend=Answering(answer), budget=budget)
    assert len(budget.entries) == 1


class Fickle:
    """Its point is another one whenever it is asked for again."""

    distance_bound = 0.0

    def __init__(self, *points: np.ndarray) -> None:
        self.points = list(points)

    @property
    def theta(self) -> np.ndarray:
        return self.points.pop(0) if len(self.points) > 1 else self.points[0]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda exact: Fickle(exact, np.full(3, 1e6)),
        lambda exact: Solution(exact + 1e-3, 0.0),
        lambda exact: Solution(exact + 1e-3, 1e-9),
        lambda exact: Solution(exact, 5.0),
    ],
)
def test_a_backends_word_does_not_count(wrong: Callable[[np.ndarray], Any]) -> None:
    template = learner()
    expected = dp.solve(template, DATA, dp.Privacy(1.0), GAMMA, seed=SEED)["w"]
    backend = Answering(lambda problem: wrong(FirstOrder().solve(problem, 1e-12).theta))
    found = dp.solve(template, DATA, dp.Privacy(1.0), GAMMA, backend=backend, seed=SEED)["w"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_point_outside_of_the_constraints_is_brought_back() -> None:
    w = cp.Variable(3, name="w")
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    template = dp.Template(
        record, lambda x, y: cp.logistic(-y * (x @ w)), 0.05 * cp.sum_squares(w), [cp.norm(w, 2) <= 0.1]
    )

    def beyond(problem: Problem) -> Solution:
        found = FirstOrder().solve(problem, 1e-6)
        return Solution(found.theta * 5.0, 0.0)

    try:
        released = dp.solve(template, DATA, dp.Privacy(1.0), GAMMA, backend=Answering(beyond))["w"]
    except dp.NotConverged:
        return
    assert np.linalg.norm(released) <= 0.1 * (1 + 1e-9)


def test_a_backend_of_ones_own_gets_sets_of_any_kind() -> None:
    w = cp.Variable(3, name="w")
    for within in (cp.sum(cp.exp(w)) <= 5, cp.pnorm(w, 3) <= 1):
        template = dp.Template(
            dp.Record(x=dp.Ball(3)), lambda x: cp.logistic(x @ w), 0.01 * cp.sum_squares(w), [within]
        )
        release = dp.solve(template, {"x": X}, dp.Privacy(1.0, 1e-6), backend=Meddling(lambda problem: None))
        assert release.private
