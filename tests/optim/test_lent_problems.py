"""A backend from elsewhere can do what it likes to the problem that it is given: what is certified does not change."""

from collections import namedtuple
from types import SimpleNamespace

import cvxpy as cp
import numpy as np
import pytest
from learners_of_tests import X, Y
from refused import refused

import dpconvex as dp

DATA = {"x": X[:60], "y": Y[:60]}
GAMMA = dp.ObjectivePerturbation("gamma")
LEARNER = dp.load("logistic_regression", features=3, regularization=0.1)


Solution = namedtuple("Solution", "theta distance_bound")


def answering(answer):
    return SimpleNamespace(solve=lambda problem, tolerance: answer(problem))


def meddling(change):

    def answer(problem):
        change(problem)
        return dp.ConicSolver().solve(problem, 1e-6)

    return answering(answer)


def released(backend=None, **options):
    return dp.solve(LEARNER, DATA, dp.Privacy(1.0), GAMMA, backend=backend, seed=3, **options)["w"]


def anew(name, value):
    return lambda problem: object.__setattr__(problem, name, value(problem))


def scale_constants(problem):
    nodes = {problem.template.regularizer, *problem.template.losses}
    while more := {part for node in nodes for part in node.args} - nodes:
        nodes |= more
    for node in nodes:
        if hasattr(node, "value"):
            scale(node.value, 3.0)


def scale(array, factor):
    array.setflags(write=True)
    array *= factor


CHANGES = {
    "takes the noise away": anew("linear", lambda p: 0 * p.linear),
    "shrinks a copy of the noise": anew("linear", lambda p: 1e-3 * p.linear),
    "has a milder regularization": anew("size", lambda p: p.size / 50),
    "has another quadratic": anew("added", lambda p: p.added + 7.0),
    "claims more convexity": anew("strong_convexity", lambda p: 1e9),
    "sees other records": lambda p: p.batch.fields.__setitem__("x", -np.asarray(p.batch.fields["x"])),
    "has other labels": lambda p: object.__setattr__(p.batch, "group", 1 - p.batch.group),
    "has no losses": lambda p: setattr(p.loss, "value_and_gradient", lambda theta: (0.0, np.zeros(3))),
    "has another regularizer": lambda p: scale(p.public().hessian.data, 100.0),
    "has other leaves": lambda p: scale(p.loss.form.map.data, 0.0),
    "rewrites the template's constants": scale_constants,
    "replaces the template": anew("template", lambda p: dp.load("huber_svm", features=3)),
}


@pytest.mark.parametrize("name", ["linear", "x", "group"])
def test_what_reaches_a_backend_cannot_be_written_to(name):
    """Scaling the noise in place is how a backend would take it away."""

    def change(problem):
        array = {"linear": problem.linear, "group": problem.batch.group, **problem.batch.fields}[name]
        array *= 0

    refused(dp.NotConverged, r"failed.*ValueError.*nothing is released.*read-only", released, meddling(change))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_answer_to_another_problem_is_not_released(change):
    expected = released()
    try:
        found = released(meddling(change))
    except dp.NotConverged:
        found = expected
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(released(), expected)  # and what comes after is untouched


class Evil(np.ndarray):
    """An array that says that it is finite."""

    def __array_function__(self, function, *arguments):
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
    "text": lambda p: Solution("abc", 0.0),
    "no point": lambda p: SimpleNamespace(theta=None, distance_bound=0.0),
    "an array of another class": lambda p: Solution(np.full(3, np.nan).view(Evil), 0.0),
    "far away": lambda p: Solution(np.full(3, 1e300), 0.0),
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_solution_is_refused(answer):
    budget = dp.Budget(dp.Privacy(1.0))
    refused(dp.NotConverged, "nothing is released", released, answering(answer), budget=budget)
    assert len(budget.entries) == 1


class Fickle:
    """Its point is another one whenever it is asked for again."""

    distance_bound = 0.0

    def __init__(self, *points):
        self.points = list(points)

    @property
    def theta(self):
        return self.points.pop(0) if len(self.points) > 1 else self.points[0]


CLAIMED = [
    lambda exact, far=far, bound=b: Solution(exact + far, bound) for far, b in ((1e-3, 0), (1e-3, 1e-9), (0, 5.0))
]


@pytest.mark.parametrize("wrong", [lambda exact: Fickle(exact, np.full(3, 1e6)), *CLAIMED])
def test_a_backends_word_does_not_count(wrong):
    found = released(answering(lambda problem: wrong(dp.ConicSolver().solve(problem, 1e-12).theta)))
    np.testing.assert_allclose(found, released(), atol=1e-5)


@pytest.mark.parametrize("kind", ["ball", "exponentials", "p-norm"])
def test_points_outside_of_sets_of_any_kind_are_brought_back(kind):
    w = cp.Variable(3, name="w")
    known = {"ball": cp.norm(w) <= 0.1, "exponentials": cp.sum(cp.exp(w)) <= 3.1, "p-norm": cp.pnorm(w, 3) <= 0.1}
    within, record = known[kind], dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    template = dp.Template(record, lambda x, y: cp.logistic(-y * (x @ w)), 0.05 * cp.sum_squares(w), [within])
    backend = answering(lambda problem: Solution(dp.ConicSolver().solve(problem, 1e-6).theta * 5.0, 0.0))
    w.value = dp.solve(template, DATA, dp.Privacy(1.0), GAMMA, backend=backend)["w"]
    assert within.violation() <= 1e-9
