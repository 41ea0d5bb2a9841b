"""Newton steps by slopes alone, and the end of a solve: what the tolerance leaves is asked where the point is."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray
from sample_problems import PROBLEMS, build

from dpconvex.core.record_domains import Ball, Choice
from dpconvex.language.batch import Batch
from dpconvex.language.huber_hinge import huber_hinge
from dpconvex.language.record import Record
from dpconvex.language.template import Template
from dpconvex.solvers.certify import certify
from dpconvex.solvers.composite import Composite
from dpconvex.solvers.distance import at_point, floor
from dpconvex.solvers.newton import descend_by_slopes
from dpconvex.solvers.problem import Problem

Array = NDArray[np.float64]
SMOOTH = [name for name in PROBLEMS if Composite(PROBLEMS[name]()).is_smooth]


class Blind(Composite):
    """A problem whose values say nothing."""

    def smooth(self, theta: Array) -> tuple[float, Array]:
        value, gradient = super().smooth(theta)
        return (0.0 if np.isfinite(value) else value), gradient


def kinked(width: float, weight: float, signs: Array, **options: Any) -> Problem:
    """Return a Huber SVM whose records all change their curvature at the same place."""
    w = cp.Variable(2, name="w")
    template = Template(
        Record(x=Ball(2), y=Choice([-1, 1])),
        lambda x, y: huber_hinge(1 - y * (x @ w), width),
        weight * cp.sum_squares(w),
    )
    x = np.stack([signs, np.zeros(len(signs))], axis=1)
    batch = Batch({"x": x}, (signs > 0).astype(np.int64))
    return build(template, 2 * weight, batch=batch, gradient_bound=1.0, hessian_bound=0.5 / width, **options)


def solved_blindly(problem: Problem, start: Array) -> float:
    """Return the distance bound of a solve by slopes, in units of the smallest that rounding allows to certify."""
    composite, zero = Blind(problem), np.zeros(problem.space.dim)
    least = floor(composite, at_point(composite, zero, *composite.smooth(zero)))
    bound = 0.5 * problem.strong_convexity * least
    best = at_point(composite, *descend_by_slopes(composite, start, *composite.smooth(start), bound, 300))
    return best.distance_bound / floor(composite, best)


@pytest.mark.parametrize("name", SMOOTH)
def test_slopes_alone_reach_the_floor(name: str) -> None:
    for seed in range(3):
        problem = PROBLEMS[name](seed=seed)
        rng = np.random.default_rng(seed)
        assert solved_blindly(problem, 100 * rng.normal(size=problem.space.dim)) < 2


@pytest.mark.parametrize("weight", [1e-8, 1e-3])
@pytest.mark.parametrize("width", [1e-6, 1e-3, 0.5])
@pytest.mark.parametrize("size", [1, 2, 57, 200])
def test_slopes_alone_find_their_way_over_kinks_of_the_curvature(size: int, width: float, weight: float) -> None:
    for signs in (np.ones(size), 1.0 - 2.0 * (np.arange(size) % 2)):
        for noise in (0.0, 1e-3, 1.0, 30.0):
            assert solved_blindly(kinked(width, weight, signs, noise=noise), np.zeros(2)) < 2


def far_away() -> Problem:
    """Return a problem whose answer is far from where solvers start, so that rounding is much larger there."""
    w = cp.Variable(4, name="w")
    template = Template(
        Record(x=Ball(4), y=Choice([-1, 1])), lambda x, y: cp.logistic(-y * (x @ w)), 5e-4 * cp.sum_squares(w)
    )
    return build(template, 1e-3, size=200, noise=100.0, gradient_bound=1.0, hessian_bound=0.25)


@pytest.mark.parametrize("above", [1.02, 1.1, 1.3, 1.5, 2.0, 10.0])
def test_what_rounding_takes_from_the_tolerance_is_asked_where_the_point_is(above: float) -> None:
    problem = far_away()
    composite = Composite(problem)
    there = certify(problem, np.zeros(4), 1e-6).theta
    lowest = floor(composite, at_point(composite, there, *composite.smooth(there)))
    start = floor(composite, at_point(composite, np.zeros(4), *composite.smooth(np.zeros(4))))
    assert start < 0.7 * lowest
    assert certify(problem, np.zeros(4), above * lowest).distance_bound <= above * lowest
