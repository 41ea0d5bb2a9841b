"""Steps over spectra: derivatives, models of Hessians, and answers, against finite differences and interior points."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from sample_problems import build, large_margin

import dpconvex as dp
from dpconvex.optim.certify import closest
from dpconvex.optim.conic import ConicSolver
from dpconvex.optim.distance import Composite
from dpconvex.optim.hessian_models import Corrected, sampled_hessian, second_moments
from dpconvex.optim.spectral_coordinates import Coordinates
from dpconvex.sets.convex_sets import IntervalSet, Spectral

SIDE = 4


def bounded(shift, lower, upper, count=1):
    """Return the problem of a metric whose eigenvalues, but for a shift, lie in an interval, and of a weight in [0, 1]."""
    M, b = cp.Variable((SIDE, SIDE), symmetric=True, name="M"), cp.Variable(name="b")
    constraints = [M - shift >> lower * np.eye(SIDE), b >= 0, b <= 1]
    if np.isfinite(upper):
        constraints.append(M - shift << upper * np.eye(SIDE))

    def loss(x, y):
        return dp.huber_hinge(1 + y * (x @ M @ x - b), 0.5)

    template = dp.Template(
        dp.Record(x=dp.Ball(SIDE), y=dp.Choice([-1, 1])), loss, 0.02 * (cp.sum_squares(M) + cp.square(b)), constraints
    )
    return build(template, 0.04, gradient_bound=2.0, hessian_bound=2.0)


PROBLEMS = {
    "cones": large_margin,
    "26 forms": lambda: large_margin(classes=6, side=3),
    "shifted": lambda: bounded(0.3 * np.ones((SIDE, SIDE)), 0.0, np.inf),
    "bounded": lambda: bounded(np.zeros((SIDE, SIDE)), -0.2, 0.5),
    "far": lambda: bounded(np.diag([1e3, 1.0, 1e-3, 0.0]), 0.0, np.inf),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_steps_reach_what_interior_points_reach(name, monkeypatch):
    problem = PROBLEMS[name]()
    monkeypatch.setattr("dpconvex.optim.certify.proximal.descend", lambda *_: pytest.fail("other steps were taken"))
    found, _ = closest(problem, np.zeros(problem.space.dim), 1e-7)
    assert found.distance_bound <= 1e-7
    other = ConicSolver().solve(problem, 1e-6)
    assert np.linalg.norm(found.theta - other.theta) <= 1e-7 + 1e-6
    assert 0 < found.evaluations < 60


@pytest.mark.parametrize("seed", range(20))
def test_derivative_of_the_projection(seed):
    rng = np.random.default_rng(seed)
    size = SIDE * (SIDE + 1) // 2
    low, high = (0.0, np.inf) if seed % 2 else (-0.5, 0.7)
    inner = IntervalSet(np.arange(SIDE), np.full(SIDE, low), np.full(SIDE, high))
    shift = np.zeros((SIDE, SIDE)) if seed % 4 < 2 else np.diag(rng.normal(size=SIDE))
    pieces = [Spectral(np.arange(k * size, (k + 1) * size), shift, inner, True) for k in range(2)]
    pieces.append(IntervalSet(np.arange(2 * size, 2 * size + 3), np.zeros(3), np.ones(3)))
    plain = Coordinates.of(tuple(pieces))
    dim = 2 * size + 5  # the last two coordinates are free
    bend = rng.normal(size=(dim, dim))
    chart = plain.evened(lambda x: bend @ (bend.T @ x), 1e-3, dim) if seed % 3 else plain
    x, move = rng.normal(size=(2, dim))
    np.testing.assert_allclose(chart.new(chart.original(x)), x, atol=1e-9)
    projected, derivative = chart.project(x)
    there = chart.original(projected)
    for piece in pieces:
        np.testing.assert_allclose(piece.project(there[piece.coordinates]), there[piece.coordinates], atol=1e-9)
    step = 1e-6
    expected = (chart.project(x + step * move)[0] - chart.project(x - step * move)[0]) / (2 * step)
    turned = derivative.turned(derivative.weights * derivative.turned(move), back=True)
    np.testing.assert_allclose(turned, expected, atol=1e-6)


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])  # at which no records bend, some do, and many do
def test_models_are_hessians(scale, monkeypatch):
    problem = large_margin(classes=4)
    theta = problem.feasible.project(scale * np.random.default_rng(0).normal(size=problem.space.dim))
    move = np.random.default_rng(1).normal(size=problem.space.dim)
    exact = problem.hessian(theta) @ move
    ahead, behind = (problem.value_and_gradient(theta + sign * 1e-6 * move)[1] for sign in (1, -1))
    np.testing.assert_allclose((ahead - behind) / 2e-6, exact, atol=1e-7)
    np.testing.assert_allclose(sampled_hessian(problem, theta, problem.batch.size)(move), exact, rtol=1e-12)
    monkeypatch.setattr("dpconvex.sums.batch_loss.LARGEST_HESSIAN", 0)
    np.testing.assert_allclose(sampled_hessian(problem, theta, problem.batch.size)(move), exact, atol=1e-6)
    model = second_moments(problem, theta, problem.batch.size)
    np.testing.assert_allclose(model.inverse()(model(move)), move, rtol=1e-9)
    corrected = Corrected(model, 3)
    for seed in range(5):
        step = np.random.default_rng(seed).normal(size=problem.space.dim)
        corrected.update(step, problem.hessian(theta) @ step)
        np.testing.assert_allclose(
            corrected(step), problem.hessian(theta) @ step, rtol=1e-8, err_msg="the secant equation"
        )
    assert len(corrected.pairs) == 3


def test_passes_are_counted_models_too():
    problem = large_margin(size=3000)
    composite = Composite(problem)
    composite.read(second_moments, np.zeros(composite.dim), 1500)
    assert composite.evaluations == 0.5
    composite.smooth(np.zeros(composite.dim))
    assert composite.evaluations == 1.5


def test_sets_of_other_kinds_are_left_to_other_steps():
    W = cp.Variable((2, 3), name="W")
    template = dp.Template(
        dp.Record(x=dp.Ball(2), y=dp.Choice(range(3))),
        lambda x, y: dp.huber_hinge(1 - x @ W[:, y], 0.5),
        0.1 * cp.sum_squares(W),
        [cp.sigma_max(W) <= 1],
    )
    assert Coordinates.of(build(template, 0.2).feasible.pieces) is None
    assert Coordinates.of(()) is None


def test_tolerances_may_be_relative():
    problem = bounded(np.diag([1e3, 1.0, 1e-3, 0.0]), 0.0, np.inf)
    found, _ = closest(replace(problem, relative=True), np.zeros(problem.space.dim), 1e-6)
    assert 1e-6 < found.distance_bound <= 1e-6 * np.linalg.norm(found.theta)
