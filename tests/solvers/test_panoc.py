"""Quasi-Newton proximal steps and the coordinates that they are taken in."""

from __future__ import annotations

import itertools
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from sample_problems import PROBLEMS, build, large_margin

from dpconvex.core.record_domains import Ball, Choice
from dpconvex.language.record import Record
from dpconvex.language.template import Template
from dpconvex.solvers import polish as polishing
from dpconvex.solvers.backend import solve
from dpconvex.solvers.composite import Composite
from dpconvex.solvers.distance import step
from dpconvex.solvers.panoc import quasi_newton
from dpconvex.solvers.polish import accelerate
from dpconvex.solvers.problem import Problem
from dpconvex.solvers.whitening import Coordinates, plain, whitened


def started(problem: Problem) -> tuple[Composite, object]:
    composite = Composite(problem)
    zero = problem.feasible.project(np.zeros(composite.dim))
    value, gradient = composite.smooth(zero)
    return composite, step(composite, zero, value, gradient, composite.curvature_ahead(zero, gradient))


@pytest.mark.parametrize("name", [name for name in PROBLEMS if not Composite(PROBLEMS[name]()).is_smooth])
def test_two_methods_agree(name: str) -> None:
    for seed in range(3):
        found = []
        for method in (quasi_newton, accelerate):
            composite, start = started(PROBLEMS[name](seed=seed))
            found.append(method(composite, start, 1e-8, 5000))  # type: ignore[arg-type]
        assert all(iterate.distance_bound <= 1e-8 for iterate in found)
        assert np.linalg.norm(found[0].theta - found[1].theta) <= 2e-8


def test_steps_that_got_stuck_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = []

    def soon_stuck(composite, start, tolerance, max_steps):  # type: ignore[no-untyped-def]
        found = quasi_newton(composite, start, max(tolerance, start.distance_bound / 100), max_steps)
        bounds.append(found.distance_bound)
        return found

    def never(*arguments: object) -> None:
        raise AssertionError("accelerated steps are for where quasi-Newton steps do not help")

    monkeypatch.setattr(polishing, "quasi_newton", soon_stuck)
    monkeypatch.setattr(polishing, "accelerate", never)
    assert solve(large_margin(classes=3, side=3), tolerance=1e-8).distance_bound <= 1e-8
    assert len(bounds) > 1
    assert all(later < earlier / 2 for earlier, later in itertools.pairwise(bounds[:-1]))


def mixed() -> Problem:
    """Cones of two sizes, one of them negative and shifted, and a vector with bounds."""
    P, Q = cp.Variable((3, 3), PSD=True, name="P"), cp.Variable((2, 2), symmetric=True, name="Q")
    w = cp.Variable(2, name="w", nonneg=True)

    def loss(x: object, y: int) -> object:
        return cp.logistic(y * (cp.quad_form(x, P) + x[:2] @ Q @ x[1:] - x[1:] @ w))  # type: ignore[index]

    regularizer = 0.01 * (cp.sum_squares(P) + cp.sum_squares(Q) + cp.sum_squares(w))
    template = Template(Record(x=Ball(3), y=Choice([-1, 1])), loss, regularizer, [np.diag([1.0, 2.0]) >> Q])
    return build(template, 0.02, size=60, gradient_bound=3.0)


@pytest.mark.parametrize("problem", [mixed(), large_margin(classes=3, side=3), large_margin(classes=6, side=2)])
def test_coordinates_are_equivalent(problem: Problem) -> None:
    composite, rng = Composite(problem), np.random.default_rng(0)
    theta, direction, other = rng.normal(size=(3, composite.dim))
    for coordinates in (whitened(composite, theta), plain(composite), Coordinates(composite, scale=3.0)):
        y = coordinates.of(theta)
        assert coordinates.point(y) == pytest.approx(theta, rel=1e-9, abs=1e-9)
        assert coordinates.point(
            y + coordinates.of(direction) - coordinates.of(np.zeros(composite.dim))
        ) == pytest.approx(theta + direction, rel=1e-9, abs=1e-9)
        pulled = coordinates.pulled(other)
        assert coordinates.pushed(pulled) == pytest.approx(other, rel=1e-9, abs=1e-9)
        assert pulled @ direction == pytest.approx(other @ coordinates.along(direction))
        # A projection: its result lies in K, and what is cut off makes an obtuse angle with everything in K.
        projected = coordinates.proximal(y, 0.7)
        inside = coordinates.point(projected)
        assert problem.feasible.project(inside) == pytest.approx(inside, abs=1e-9)
        for _ in range(5):
            member = coordinates.of(problem.feasible.project(3 * rng.normal(size=composite.dim)))
            assert (y - projected) @ (member - projected) <= 1e-9


def test_curvature_looks_alike_in_whitened_coordinates() -> None:
    """Records near a line: the Hessian's eigenvalues differ by far less in the coordinates chosen by it."""
    rng = np.random.default_rng(0)
    P = cp.Variable((4, 4), PSD=True, name="P")
    template = Template(Record(x=Ball(4)), lambda x: cp.square(cp.quad_form(x, P) - 1), 5e-7 * cp.sum_squares(P))
    x = np.array([1.0, 0.05, 0.02, 0.01]) * rng.normal(size=(400, 4)) / 6
    problem = build(template, 1e-6, batch=template.record.validate({"x": x}, clip=True))
    composite = Composite(problem)
    theta = rng.normal(size=composite.dim)

    def condition(coordinates: Coordinates) -> float:
        hessian = np.stack([coordinates.hessian_product(theta, e) for e in np.eye(composite.dim)])
        values = np.linalg.eigvalsh((hessian + hessian.T) / 2)
        return float(values[-1] / values[0])

    assert condition(whitened(composite, theta)) < 0.05 * condition(plain(composite))


def test_weak_regularization_takes_few_evaluations() -> None:
    problem = large_margin(classes=3, side=4, weight=2e-5, size=300)
    quick, slow = Composite(problem), Composite(problem)
    zero = np.zeros(quick.dim)
    value, gradient = quick.smooth(zero)
    start = step(quick, zero, value, gradient, quick.curvature_ahead(zero, gradient))
    assert quasi_newton(quick, start, 1e-6, 5000).distance_bound <= 1e-6
    assert accelerate(slow, start, 1e-6, 20000).distance_bound <= 1e-6
    assert quick.evaluations < slow.evaluations / 3


def test_what_rounding_forbids_ends_soon() -> None:
    composite, start = started(replace(large_margin(), gradient_bound=1e6))
    found = quasi_newton(composite, start, 1e-13, 5000)  # type: ignore[arg-type]
    assert found.distance_bound > 1e-13
    assert composite.evaluations < 500
    assert solve(large_margin(), None, 1e-9).distance_bound <= 1e-9
