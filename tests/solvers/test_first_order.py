"""The built-in solver and the choice of a backend."""

import numpy as np
import pytest
from sample_problems import PROBLEMS, large_margin, logistic

from dpconvex.errors import NotConverged, TemplateError
from dpconvex.solvers.backend import resolve_backend, solve
from dpconvex.solvers.conic import Conic
from dpconvex.solvers.first_order import FirstOrder


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_reaches_nine_digits(name: str) -> None:
    problem = PROBLEMS[name](seed=5)
    solution = solve(problem, "first-order", 1e-9)
    assert solution.distance_bound <= 1e-9
    assert solution.theta.shape == (problem.space.dim,)


def test_weak_regularization_takes_longer_and_still_arrives() -> None:
    problem = large_margin(weight=1e-4, size=200)
    solution = solve(problem, FirstOrder(), 1e-6)
    again = solve(problem, FirstOrder(), 1e-7)
    assert np.linalg.norm(solution.theta - again.theta) <= solution.distance_bound + again.distance_bound


def test_few_steps_are_not_enough() -> None:
    with pytest.raises(NotConverged, match="at most 3 polishing steps"):
        solve(large_margin(), FirstOrder(max_steps=3), 1e-9)


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_steps_must_be_positive(steps: int) -> None:
    with pytest.raises(TemplateError, match="max_steps"):
        FirstOrder(max_steps=steps)


def test_names_and_objects_are_resolved() -> None:
    assert resolve_backend(None) == FirstOrder()
    assert resolve_backend("first-order") == FirstOrder()
    assert resolve_backend("conic") == Conic()
    chosen = Conic(solver="SCS")
    assert resolve_backend(chosen) is chosen


@pytest.mark.parametrize("backend", ["newton", 3, Conic])
def test_unknown_backends_are_refused(backend: object) -> None:
    with pytest.raises(TemplateError, match="backend"):
        solve(logistic(), backend)  # type: ignore[arg-type]


def test_records_of_one_label_only() -> None:
    problem = logistic(size=6)
    batch = problem.template.record.validate({"x": problem.batch.fields["x"], "y": [1] * 6})
    from dataclasses import replace

    assert solve(replace(problem, batch=batch), "first-order", 1e-9).distance_bound <= 1e-9
