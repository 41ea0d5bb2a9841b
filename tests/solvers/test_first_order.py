"""The built-in solver and the choice of a backend."""

import pytest
from sample_problems import PROBLEMS, large_margin, logistic

from dpconvex.errors import NotConverged, TemplateError
from dpconvex.solvers.backend import solve
from dpconvex.solvers.conic import Conic
from dpconvex.solvers.first_order import FirstOrder


@pytest.mark.parametrize("name", PROBLEMS)
def test_it_reaches_nine_digits(name: str) -> None:
    problem = PROBLEMS[name](seed=5)
    solution = solve(problem, "first-order", 1e-9)
    assert solution.distance_bound <= 1e-9
    assert solution.theta.shape == (problem.space.dim,)


def test_few_steps_are_not_enough() -> None:
    with pytest.raises(NotConverged, match="at most 3 polishing steps"):
        solve(large_margin(), FirstOrder(max_steps=3), 1e-9)


@pytest.mark.parametrize("steps", [0, -1, 2.5])
def test_steps_must_be_positive(steps: int) -> None:
    with pytest.raises(TemplateError, match="max_steps"):
        FirstOrder(max_steps=steps)


@pytest.mark.parametrize("backend", ["newton", 3, Conic])
def test_unknown_backends_are_refused(backend: object) -> None:
    with pytest.raises(TemplateError, match="backend"):
        solve(logistic(), backend)  # type: ignore[arg-type]
