"""The covered release: its noise has the declared law, covers what it must, is paid from a fixed share, and nothing escapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from learners_of_tests import logistic
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import brentq

import dpconvex as dp
from dpconvex.mechanisms import residual_noise as residual
from dpconvex.mechanisms.certificate import TAIL
from dpconvex.mechanisms.grid import IntegerNoise, perturb
from dpconvex.mechanisms.residual_noise import (
    ABOVE_FLOOR,
    calibrate_residual_noise,
    for_count,
    margin,
    noise_cap,
)
from dpconvex.mechanisms.rounding import answer_radius, largest_floor
from dpconvex.noise.profiles import gaussian_delta, grid_loss, integer_level
from dpconvex.noise.samplers import seeded_generator
from dpconvex.release.verify import analyse
from dpconvex.solvers.backend import resolve_backend
from dpconvex.solvers.distance import Composite, floor, step
from dpconvex.solvers.problem import Problem, Solution

Array = NDArray[np.float64]
PROBLEMS = ["logistic_regression", "huber_svm", "large_margin_gaussian"]
GAMMA, GAUSSIAN_OUTPUT = dp.ObjectivePerturbation(), dp.OutputPerturbation("gaussian")
# Tests on fresh randomness fail by chance with this probability.
CHANCE = 1e-7


def law(noise: IntegerNoise, k: NDArray[np.int64]) -> Array:
    """Return the probabilities of integers, from the definitions."""
    if noise.noise == "discrete Laplace":
        q = math.exp(-1 / noise.scale)
        return (1 - q) / (1 + q) * q ** np.abs(k)
    everything = np.arange(-int(20 * noise.scale) - 20, int(20 * noise.scale) + 21)
    total = np.exp(-(everything**2) / (2 * noise.scale**2)).sum()
    return np.exp(-(k**2) / (2 * noise.scale**2)) / total


def made(noise: str = "discrete Laplace", scale: float = 5.0, **changes: Any) -> IntegerNoise:
    fields = {"epsilon": 1.0, "delta": 1e-6, "distance": 1.0, "step": 0.125, "dimension": 20_000, "sensitivity": 1.0}
    return IntegerNoise(**(fields | {"noise": noise, "scale": scale, "noise_cap": 1.0} | changes))


def records(name: str, size: int, features: int = 3, classes: int = 2, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, features))
    y = rng.integers(classes, size=size)
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    return {"x": x, "y": y if name == "large_margin_gaussian" else 2 * y - 1}


def pull_together(data: dict[str, Any]) -> dict[str, Any]:
    """Return the records that bend and pull the most: all at one corner."""
    x = np.zeros_like(data["x"])
    x[:, 0] = 1.0
    return {"x": x, "y": np.full(len(x), data["y"].max())}


# The law of the noise.


@pytest.mark.parametrize("seed", [None, 1], ids=["OpenDP", "seeded"])
@pytest.mark.parametrize(
    ("kind", "scale"),
    [("discrete Laplace", 0.7), ("discrete Laplace", 17.3), ("discrete Gaussian", 3.7), ("discrete Gaussian", 17.3)],
)
def test_the_noise_has_the_declared_law(kind: str, scale: float, seed: int | None) -> None:
    # A single step of sensitivity keeps OpenDP's own check of the cost content.
    noise = made(kind, scale, epsilon=40.0, delta=0.5)
    rng = None if seed is None else seeded_generator(seed)
    drawn = perturb(np.zeros(noise.dimension), noise, rng) / noise.step
    assert (drawn == np.rint(drawn)).all()
    edge = int(stats.norm.isf(1e-3) * scale) + 1
    inside = np.arange(-edge, edge + 1)
    expected = np.append(law(noise, inside), 0.0)
    expected[-1] = 1 - expected.sum()
    counts = [int((drawn == k).sum()) for k in inside]
    counts.append(noise.dimension - sum(counts))
    assert stats.chisquare(counts, noise.dimension * expected).pvalue > CHANCE
    # Neighbouring coordinates are independent.
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 6 / math.sqrt(noise.dimension)


# The grid.


def on_grid(values: Array, step: float) -> bool:
    return all((Fraction(float(v)) / Fraction(step)).denominator == 1 for v in np.ravel(values))


@given(st.lists(st.floats(-1e300, 1e300), min_size=4, max_size=4), st.integers(-300, 300))
def test_whatever_the_answer_the_result_lies_on_the_grid(theta: list[float], exponent: int) -> None:
    noise = made(scale=1e3, step=2.0**exponent, dimension=4)
    result = perturb(np.array(theta), noise)
    assert np.isfinite(result).all()
    assert on_grid(result, noise.step)
    near = np.abs(np.array(theta)) < 2.0**52 * noise.step
    assert (np.abs(result - theta) <= 200 * noise.scale * noise.step)[near].all()


# What it covers, and what that costs.


@pytest.mark.parametrize("dimension", [1, 2, 7, 110])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_two_answers_are_no_further_apart_on_the_grid_than_declared(dimension: int, delta: float) -> None:
    distance = 3e-9
    noise = calibrate_residual_noise(dp.Privacy(0.5, delta), distance, dimension)
    rng = np.random.default_rng(0)
    worst = 0.0
    for trial in range(400):
        exact = rng.normal(size=dimension)
        if trial % 2:  # one coordinate each half a step on either side of where rounding jumps
            exact = (np.rint(exact / noise.step) + 0.5) * noise.step - 0.5 * distance / math.sqrt(dimension)
        direction = rng.normal(size=dimension) if trial % 3 else np.ones(dimension)
        direction *= distance / np.linalg.norm(direction)
        steps = [np.rint((exact + sign * direction) / noise.step) for sign in (1, -1)]
        order = 1 if noise.noise == "discrete Laplace" else 2
        worst = max(worst, float(np.linalg.norm(steps[0] - steps[1], order)))
    assert 0.85 * noise.sensitivity < worst <= noise.sensitivity


def hockey_stick(first: Array, second: Array, epsilon: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum())


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-4), (0.1, 1e-3), (3.0, 1e-8)])
def test_the_profile_of_the_gaussian_cover_is_its_share(epsilon: float, delta: float) -> None:
    noise = calibrate_residual_noise(dp.Privacy(epsilon, delta), 1e-10, 300)
    assert noise.noise == "discrete Gaussian"
    reach = int(12 * noise.scale)
    k = np.arange(-reach, reach + 1)
    shift = math.floor(noise.sensitivity)
    along_axis = hockey_stick(law(noise, k), law(noise, k - shift), epsilon)
    assert along_axis <= delta
    smaller = replace(noise, scale=0.98 * noise.scale)
    assert hockey_stick(law(smaller, k), law(smaller, k - shift), epsilon) > delta


@pytest.mark.parametrize("scale", [3.2, 5.0, 40.0])
def test_noise_on_the_integers_is_as_private_as_a_little_less_normal_noise(scale: float) -> None:
    """Exact profiles, on the line and for a shift along both axes of the plane."""
    k = np.arange(-int(14 * scale), int(14 * scale) + 1)
    mass = np.exp(-(k**2) / (2 * scale**2))
    mass /= mass.sum()
    for shift in (1, 2, round(scale), round(3 * scale)):
        loss = (2 * k * shift - shift**2) / (2 * scale**2)
        for epsilon in (0.0, 0.1, 1.0, 5.0):
            found = float((mass * np.maximum(-np.expm1(epsilon + loss - 0 * k), 0.0)).sum())
            claimed = float(gaussian_delta(epsilon, integer_level(shift, scale))) + grid_loss(epsilon)
            assert found <= claimed + 1e-14
            plane = np.add.outer(loss, loss)
            both = float((np.outer(mass, mass) * np.maximum(-np.expm1(epsilon + plane), 0.0)).sum())
            assert both <= float(gaussian_delta(epsilon, integer_level(math.sqrt(2) * shift, scale))) + 1e-14


# The share.


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_parts_of_a_certificate_add_up(problem: str, adjacency: str) -> None:
    for epsilon, delta in ((0.01, 0.0), (1.0, 1e-6), (50.0, 0.0)):
        promise = dp.Privacy(epsilon, delta, adjacency)
        certificate = dp.verify(dp.load(problem, features=3), promise, 200, GAMMA)
        cover = certificate.cover
        assert cover is not None
        assert certificate.privacy == promise
        parts = certificate.noise_epsilon + certificate.jacobian_epsilon + cover.epsilon + cover.counting
        assert parts == pytest.approx(epsilon, rel=1e-9)
        assert cover.epsilon + cover.counting == pytest.approx(min(0.01 * epsilon, 0.1))
        assert (cover.counting > 0) == (adjacency == "add-remove")
        assert cover.delta == pytest.approx(0.01 * delta)
        root = certificate.derivation
        assert root.claims["epsilon"] == epsilon
        assert sum(step.claims["epsilon"] for step in root.children) == pytest.approx(epsilon, rel=1e-12)
        _, *counted, step = root.children
        assert [count.claims["epsilon"] for count in counted] == ([cover.counting] if cover.counting else [])
        assert step.claims["epsilon"] == cover.epsilon
        assert step.claims["tau"] == cover.distance


# The tolerance lies above what rounding allows, so a fit that fails is a mistake in the program.


def observed_floor(problem: Problem, theta: Array) -> float:
    """Return the smallest distance that the backends would certify near a point."""
    composite = Composite(problem)
    value, gradient = composite.smooth(theta)
    return floor(composite, step(composite, theta, value, gradient, composite.curvature_ahead(theta, gradient)))


class Spy:
    """A backend that keeps the problems and the solutions."""

    def __init__(self) -> None:
        self.seen: list[tuple[Problem, Solution]] = []

    def solve(self, problem: Problem, tolerance: float) -> Solution:
        solution = resolve_backend("first-order").solve(problem, tolerance)
        self.seen.append((problem, solution))
        return solution


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_fit_fails_and_the_public_bounds_hold(problem: str, adjacency: str) -> None:
    size = 80
    template = dp.load(problem, features=3, regularization=1e-3)
    analysis = analyse(template)
    for epsilon in (1e-3, 0.3, 30.0):
        promise = dp.Privacy(epsilon, adjacency=adjacency)
        certificate = dp.verify(template, promise, size, GAMMA)
        assert certificate.cover is not None
        cap = certificate.cover.noise_cap
        lowest, radius = largest_floor(analysis, certificate, cap), answer_radius(analysis, certificate, cap)
        assert certificate.tolerance >= ABOVE_FLOOR * lowest * (1 - 1e-12)
        usual = records(problem, size)
        for data in (usual, pull_together(usual)):
            spy = Spy()
            for seed in range(3):
                dp.solve(template, data, promise, GAMMA, backend=spy, size=size, seed=seed)
            for made_problem, solution in spy.seen:
                assert solution.distance_bound <= certificate.tolerance
                assert np.linalg.norm(solution.theta) <= radius
                assert np.linalg.norm(made_problem.linear) <= cap
                assert observed_floor(made_problem, solution.theta) <= lowest


@pytest.mark.parametrize("count", [10_000, 1_000_000])
def test_the_radius_holds_for_records_that_pull_far_and_little(count: int) -> None:
    """Short records pull the parameter as far as the drop of their losses pays for: nearly to the bound by values."""
    w = cp.Variable(name="w")
    loss = lambda x: dp.huber_hinge(1 - x * w, 0.01)  # noqa: E731
    template = dp.Template(dp.Record(x=dp.Box(0, 1)), loss, 1e-3 * cp.square(w))
    certificate = dp.verify(template, dp.Privacy(1.0), count, GAMMA)
    analysis, mu = analyse(template), certificate.strong_convexity
    assert analysis.largest_drop == pytest.approx(1.0, abs=0.01)
    x = np.sqrt(mu / count)  # the end of the slope is where the quadratic stops a step along it
    assert x <= 1

    def slope(v: float, noise: float) -> float:
        return float(mu * v - noise - count * x * np.clip((1 - x * v) / 0.01, 0, 1))

    for noise in (0.0, 10.0):
        radius = answer_radius(analysis, certificate, noise)
        moved = brentq(slope, 0, 10 * radius, args=(noise,))
        assert moved <= radius
    assert np.sqrt(count / mu) >= 0.65 * answer_radius(analysis, certificate, 0.0)


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_curvature_that_grows_is_bounded_where_answers_are_certified_to_lie(epsilon: float) -> None:
    """The program that runs has the radius of its certificate: beyond it exponentials bend too much for any distance."""
    template = logistic(2, lambda w: 0.01 * cp.sum_squares(w) + 0.001 * cp.sum(cp.exp(w)))
    x = np.random.default_rng(0).normal(size=(2000, 2))
    x /= np.linalg.norm(x, axis=1, keepdims=True) * 1.001
    spy = Spy()
    release = dp.solve(template, {"x": x, "y": np.where(x[:, 0] > 0, 1, -1)}, dp.Privacy(epsilon), backend=spy, seed=0)
    ((_, solution),) = spy.seen
    assert solution.distance_bound <= release.certificate.tolerance


def test_nothing_is_known_of_values_where_losses_fall_for_ever() -> None:
    w = cp.Variable(name="w")
    template = dp.Template(dp.Record(x=dp.Box(-1, 1)), lambda x: cp.logistic(w) - x * w, cp.square(w))
    assert analyse(template).largest_drop == np.inf


# Nothing escapes.


def broken(change: Callable[[IntegerNoise], IntegerNoise]) -> Iterator[IntegerNoise]:
    for delta in (0.0, 1e-6):
        yield change(calibrate_residual_noise(dp.Privacy(0.01, delta), 1e-9, 40))


def test_noise_that_is_too_small_is_found_out() -> None:
    for noise in broken(lambda n: n):
        perturb(np.zeros(40), noise)
    for noise in [
        *broken(lambda n: replace(n, scale=0.99 * n.scale)),
        *broken(lambda n: replace(n, sensitivity=math.ceil(1.01 * n.sensitivity))),
        *broken(lambda n: replace(n, epsilon=0.99 * n.epsilon)),
    ]:
        with pytest.raises(dp.DPConvexError, match="does not keep"):
            perturb(np.zeros(40), noise)


@pytest.mark.parametrize("theta", [np.full(40, np.nan), np.full(40, np.inf), np.zeros(39)])
def test_an_answer_that_is_no_vector_of_numbers_is_not_perturbed(theta: Array) -> None:
    with pytest.raises(dp.DPConvexError, match="expected 40 finite numbers; nothing is released"):
        perturb(theta, calibrate_residual_noise(dp.Privacy(0.01), 1e-9, 40))


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_noise_that_is_not_confirmed_is_refused_before_it_is_paid(
    adjacency: dp.Adjacency, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(law: str, scale: float) -> None:
        raise dp.DPConvexError("not confirmed")

    monkeypatch.setattr(residual, "measurement", refuse)
    budget, privacy = dp.Budget(dp.Privacy(1.0, 1e-6, adjacency)), dp.Privacy(1.0, 1e-6, adjacency)
    data = {"x": np.zeros((20, 2)), "y": np.ones(20, dtype=int)}
    size = None if adjacency == "replace-one" else 20
    with pytest.raises(dp.DPConvexError, match="not confirmed"):
        dp.solve(dp.load("logistic_regression", features=2), data, privacy, size=size, budget=budget)
    assert budget.spent.epsilon == 0


# The number of records, where it is protected.


def learner() -> dp.Template:
    return dp.load("logistic_regression", features=3, regularization=1e-3)


def bounded() -> dp.Template:
    w = cp.Variable(3, name="w")
    loss = lambda x: cp.huber(1 - x @ w, 0.5)  # noqa: E731
    return dp.Template(dp.Record(x=dp.Ball(3)), loss, 1e-3 * cp.sum_squares(w), [cp.norm(w, 2) <= 5])


@pytest.mark.parametrize("times", [0, 2000])
@pytest.mark.parametrize(
    ("mechanism", "delta"),
    [(GAMMA, 0.0), (dp.OutputPerturbation(), 0.0), (dp.OutputPerturbation("gaussian"), 1e-6)],
    ids=["objective", "output", "gaussian output"],
)
def test_fits_on_many_more_records_than_the_nominal_number(mechanism: Any, delta: float, times: int) -> None:
    size = 30
    for template in (learner(), bounded()):
        x = np.zeros((times * size, 3))
        x[:, 0] = 1.0
        data = {"x": x, "y": np.ones(len(x), dtype=int)}
        data = {name: data[name] for name in template.record.fields}
        for epsilon in (0.5, 80.0):
            promise = dp.Privacy(epsilon, delta, "add-remove")
            for seed in (None, 1):
                release = dp.solve(template, data, promise, mechanism, size=size, seed=seed)
                assert release.certificate is not None
                assert release.certificate.cover is not None
                assert release.certificate.cover.records >= len(x)


def test_the_bound_is_one_but_for_two_to_the_minus_hundred() -> None:
    for epsilon in (1e-4, 0.0025, 0.3):
        reach = margin(epsilon)
        # Integer Laplace noise of scale 1/epsilon is below -k with probability exp(-k epsilon) / (1 + exp(-epsilon)) at most.
        assert -reach * epsilon - math.log1p(math.exp(-epsilon)) < math.log(TAIL)
        assert (reach - 2) * epsilon < -math.log(TAIL)


def test_a_certificate_for_more_records() -> None:
    analysis = analyse(learner())
    certificate = dp.verify(learner(), dp.Privacy(1.0, adjacency="add-remove"), 50, GAMMA)
    assert certificate.cover is not None
    assert certificate.cover.records > 100 + margin(certificate.cover.counting)
    assert for_count(GAMMA, analysis, certificate, certificate.cover.records) is certificate
    more = for_count(GAMMA, analysis, certificate, 1e6)
    assert more.cover is not None
    assert (more.noise_scale, more.privacy) == (certificate.noise_scale, certificate.privacy)
    lowest = largest_floor(analysis, more, noise_cap(GAMMA, more), 1e6)
    assert more.tolerance >= ABOVE_FLOOR * lowest * (1 - 1e-12)
    assert more.cover.distance > more.tolerance > certificate.tolerance
    assert (more.cover.epsilon, more.cover.counting) == (certificate.cover.epsilon, certificate.cover.counting)
    assert more.cover.size > certificate.cover.size
    assert dp.Certificate.from_dict(more.to_dict()) == more
