"""The covered release: its noise has the declared law, covers what it must, is paid from a fixed share, and nothing escapes."""

import math
from dataclasses import replace
from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, strategies as st
from learners_of_tests import excess, logistic
from scipy import stats
from scipy.optimize import brentq

import dpconvex as dp
from dpconvex.certificates.integer_noise import IntegerNoise, perturb
from dpconvex.fitting.verify import analyse
from dpconvex.mechanisms import residual_noise as residual
from dpconvex.mechanisms.residual_noise import calibrate_residual_noise, cover_records, margin, noise_cap, room_above
from dpconvex.mechanisms.rounding import answer_radius, largest_count, largest_distance_floor
from dpconvex.noise.gaussian import GRID_LOSS, TRUNCATED, failure_delta, gaussian_delta, integer_level
from dpconvex.noise.samplers import seeded_generator
from dpconvex.optim.backend import resolve_backend
from dpconvex.optim.problem import distance_floor, proximal_step

PROBLEMS = ["logistic_regression", "huber_svm", "large_margin_gaussian"]
ADJACENCIES = ("replace-one", "add-remove")
GAMMA = dp.ObjectivePerturbation()
# Tests on fresh randomness fail by chance with this probability.
CHANCE = 1e-7


def law(noise, k):
    """Return the probabilities of integers, from the definitions."""
    if noise.noise == "discrete Laplace":
        q = math.exp(-1 / noise.scale)
        return (1 - q) / (1 + q) * q ** np.abs(k)
    everything = np.arange(-int(20 * noise.scale) - 20, int(20 * noise.scale) + 21)
    return np.exp(-(k**2) / (2 * noise.scale**2)) / np.exp(-(everything**2) / (2 * noise.scale**2)).sum()


def made(noise="discrete Laplace", scale=5.0, **changes):
    fields = {"epsilon": 1.0, "delta": 1e-6, "distance": 1.0, "step": 0.125, "dimension": 20_000, "sensitivity": 1.0}
    return IntegerNoise(**(fields | {"noise": noise, "scale": scale, "noise_cap": 1.0} | changes))


# The law of the noise.
@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", [None, 1], ids=["OpenDP", "seeded"])
@pytest.mark.parametrize(
    ("kind", "scale"),
    [("discrete Laplace", 0.7), ("discrete Laplace", 17.3), ("discrete Gaussian", 3.7), ("discrete Gaussian", 17.3)],
)
def test_the_noise_has_the_declared_law(kind, scale, seed):
    # A single step of sensitivity keeps OpenDP's own check of the cost content.
    noise = made(kind, scale, epsilon=40.0, delta=0.5)
    drawn = perturb(np.zeros(noise.dimension), noise, None if seed is None else seeded_generator(seed)) / noise.step
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


@given(st.lists(st.floats(-1e300, 1e300), min_size=4, max_size=4), st.integers(-300, 300))
def test_whatever_the_answer_the_result_lies_on_the_grid(theta, exponent):
    noise = made(scale=1e3, step=2.0**exponent, dimension=4)
    result = perturb(np.array(theta), noise)
    assert np.isfinite(result).all()
    assert all((Fraction(value) / Fraction(noise.step)).denominator == 1 for value in result.tolist())
    near = np.abs(np.array(theta)) < 2.0**52 * noise.step
    assert (np.abs(result - theta) <= 200 * noise.scale * noise.step)[near].all()


# What it covers, and what that costs.
@pytest.mark.parametrize("dimension", [1, 2, 7, 110])
@pytest.mark.parametrize("delta", [0.0, 1e-3])
def test_two_answers_are_no_further_apart_on_the_grid_than_declared(dimension, delta):
    distance, rng, worst = 3e-9, np.random.default_rng(0), 0.0
    noise = calibrate_residual_noise(dp.Privacy(0.5, delta), distance, dimension)
    for trial in range(400):
        exact = rng.normal(size=dimension)
        if trial % 2:  # one coordinate each half a step on either side of where rounding jumps
            exact = (np.rint(exact / noise.step) + 0.5) * noise.step - 0.5 * distance / math.sqrt(dimension)
        direction = rng.normal(size=dimension) if trial % 3 else np.ones(dimension)
        direction *= distance / np.linalg.norm(direction)
        steps = [np.rint((exact + sign * direction) / noise.step) for sign in (1, -1)]
        worst = max(worst, float(np.linalg.norm(steps[0] - steps[1], 1 if noise.noise == "discrete Laplace" else 2)))
    assert 0.85 * noise.sensitivity < worst <= noise.sensitivity


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-4), (0.1, 1e-3), (3.0, 1e-8)])
def test_the_profile_of_the_gaussian_cover_is_its_share(epsilon, delta):
    noise = calibrate_residual_noise(dp.Privacy(epsilon, delta), 1e-10, 300)
    assert noise.noise == "discrete Gaussian"
    k, shift = np.arange(-int(12 * noise.scale), int(12 * noise.scale) + 1), math.floor(noise.sensitivity)
    assert excess(epsilon, law(noise, k), law(noise, k - shift)) <= delta
    smaller = replace(noise, scale=0.98 * noise.scale)
    assert excess(epsilon, law(smaller, k), law(smaller, k - shift)) > delta


@pytest.mark.parametrize("scale", [3.2, 5.0, 40.0])
def test_noise_on_the_integers_is_as_private_as_a_little_less_normal_noise(scale):
    """Exact profiles, on the line and for a shift along both axes of the plane."""
    k = np.arange(-int(14 * scale), int(14 * scale) + 1)
    mass = np.exp(-(k**2) / (2 * scale**2))
    mass /= mass.sum()
    for shift in (1, 2, round(scale), round(3 * scale)):
        loss = (2 * k * shift - shift**2) / (2 * scale**2)
        for epsilon in (0.0, 0.1, 1.0, 5.0):
            found = float((mass * np.maximum(-np.expm1(epsilon + loss), 0.0)).sum())
            bound = float(gaussian_delta(epsilon, integer_level(shift, scale))) + failure_delta(GRID_LOSS, epsilon)
            assert found <= bound + 1e-14
            plane = np.add.outer(loss, loss)
            both = float((np.outer(mass, mass) * np.maximum(-np.expm1(epsilon + plane), 0.0)).sum())
            assert both <= float(gaussian_delta(epsilon, integer_level(math.sqrt(2) * shift, scale))) + 1e-14


# The tolerance lies above what rounding allows, so a fit that fails is a mistake in the program.
class Spy:
    """A backend that keeps the problems and the solutions."""

    def __init__(self):
        self.seen = []

    def solve(self, problem, tolerance):
        solution = resolve_backend("first-order").solve(problem, tolerance)
        self.seen.append((problem, solution))
        return solution


@pytest.mark.sampled(3)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_no_fit_fails_and_the_public_bounds_hold(problem, adjacency):
    size, rng = 80, np.random.default_rng(0)
    template = dp.load(problem, features=3, regularization=1e-3)
    analysis = analyse(template)
    x, y = dp.Ball(3).project(rng.normal(size=(size, 3))), rng.integers(2, size=size)
    labels = y if problem == "large_margin_gaussian" else 2 * y - 1
    corner = {"x": np.eye(3)[np.zeros(size, int)], "y": np.full(size, 1)}  # the records that bend and pull the most
    for epsilon in (1e-3, 0.3, 30.0):
        promise, spy = dp.Privacy(epsilon, adjacency=adjacency), Spy()
        certificate = dp.verify(template, promise, size, GAMMA)
        cap = certificate.cover.noise_cap
        seen = analysis, certificate, cap, largest_count(promise, size)
        lowest, radius = largest_distance_floor(*seen), answer_radius(*seen)
        assert certificate.tolerance >= room_above(analysis) * lowest * (1 - 1e-12)
        for data in ({"x": x, "y": labels}, corner):
            dp.solve(template, data, promise, GAMMA, backend=spy, size=size, seed=0)
        for problem_made, solution in spy.seen:
            assert solution.distance_bound <= certificate.tolerance
            assert np.linalg.norm(solution.theta) <= radius
            assert np.linalg.norm(problem_made.linear) <= cap
            value, gradient = problem_made.smooth(solution.theta)
            ahead = problem_made.curvature_ahead(solution.theta, gradient)
            step = proximal_step(problem_made, solution.theta, value, gradient, ahead)
            assert distance_floor(problem_made, step) <= lowest  # what the backends would certify at best


@pytest.mark.parametrize("count", [10_000, 1_000_000])
def test_the_radius_holds_for_records_that_pull_far_and_little(count):
    """Short records pull the parameter as far as the drop of their losses pays for: nearly to the bound by values."""
    w = cp.Variable(name="w")
    loss = lambda x: dp.huber_hinge(1 - x * w, 0.01)  # noqa: E731
    template = dp.Template(dp.Record(x=dp.Box(0, 1)), loss, 1e-3 * cp.square(w))
    certificate, analysis = dp.verify(template, dp.Privacy(1.0), count, GAMMA), analyse(template)
    mu = certificate.strong_convexity
    assert analysis.largest_drop == pytest.approx(1.0, abs=0.01)
    x = np.sqrt(mu / count)  # the end of the slope is where the quadratic stops a step along it
    assert x <= 1
    for noise in (0.0, 10.0):
        radius = answer_radius(analysis, certificate, noise, count)
        slope = lambda v: mu * v - noise - count * x * np.clip((1 - x * v) / 0.01, 0, 1)  # noqa: B023, E731
        assert brentq(slope, 0, 10 * radius) <= radius
    assert np.sqrt(count / mu) >= 0.98 * answer_radius(analysis, certificate, 0.0, count)


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_curvature_that_grows_is_bounded_where_answers_are_certified_to_lie(epsilon):
    """The program that runs has the radius of its certificate: beyond it exponentials bend too much for any distance."""
    spy, template = Spy(), logistic(2, lambda w: 0.01 * cp.sum_squares(w) + 0.001 * cp.sum(cp.exp(w)))
    x = np.random.default_rng(0).normal(size=(2000, 2))
    x /= np.linalg.norm(x, axis=1, keepdims=True) * 1.001
    release = dp.solve(template, {"x": x, "y": np.where(x[:, 0] > 0, 1, -1)}, dp.Privacy(epsilon), backend=spy, seed=0)
    ((_, solution),) = spy.seen
    assert solution.distance_bound <= release.certificate.tolerance


def test_nothing_is_known_of_values_where_losses_fall_for_ever():
    w = cp.Variable(name="w")
    template = dp.Template(dp.Record(x=dp.Box(-1, 1)), lambda x: cp.logistic(w) - x * w, cp.square(w))
    assert analyse(template).largest_drop == np.inf


# Nothing escapes.
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_noise_that_is_too_small_is_found_out(delta):
    noise = calibrate_residual_noise(dp.Privacy(0.01, delta), 1e-9, 40)
    perturb(np.zeros(40), noise)
    changes = ("scale", 0.99 * noise.scale), ("sensitivity", math.ceil(1.01 * noise.sensitivity))
    for name, value in (*changes, ("epsilon", 0.99 * noise.epsilon)):
        with pytest.raises(dp.DPConvexError, match="does not keep"):
            perturb(np.zeros(40), replace(noise, **{name: value}))


@pytest.mark.parametrize("theta", [np.full(40, np.nan), np.full(40, np.inf), np.zeros(39)])
def test_an_answer_that_is_no_vector_of_numbers_is_not_perturbed(theta):
    with pytest.raises(dp.DPConvexError, match="expected 40 finite numbers; nothing is released"):
        perturb(theta, calibrate_residual_noise(dp.Privacy(0.01), 1e-9, 40))


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_noise_that_is_not_confirmed_is_refused_before_it_is_paid(adjacency, monkeypatch):
    def refuse(law, scale):
        raise dp.DPConvexError("not confirmed")

    monkeypatch.setattr(residual, "measurement", refuse)
    privacy, data = dp.Privacy(1.0, 1e-6, adjacency), {"x": np.zeros((20, 2)), "y": np.ones(20, dtype=int)}
    budget, size = dp.Budget(privacy), None if adjacency == "replace-one" else 20
    output = dp.OutputPerturbation()
    with pytest.raises(dp.DPConvexError, match="not confirmed"):
        dp.solve(dp.load("logistic_regression", features=2), data, privacy, output, size=size, budget=budget)
    assert budget.spent.epsilon == 0


# The number of records, where it is protected.
W3 = cp.Variable(3, name="w")
LOGISTIC = dp.load("logistic_regression", features=3, regularization=1e-3)
BALL, RIDGE = [cp.norm(W3, 2) <= 5], 1e-3 * cp.sum_squares(W3)
BOUNDED = dp.Template(dp.Record(x=dp.Ball(3)), lambda x: cp.huber(1 - x @ W3, 0.5), RIDGE, BALL)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("times", [0, 2000])
@pytest.mark.parametrize(
    ("mechanism", "delta"),
    [(GAMMA, 0.0), (dp.OutputPerturbation(), 0.0), (dp.OutputPerturbation("gaussian"), 1e-6)],
    ids=["objective", "output", "gaussian output"],
)
def test_fits_on_many_more_records_than_the_nominal_number(mechanism, delta, times):
    size = 30
    x = np.eye(3)[np.zeros(times * size, int)]
    for template, data in ((LOGISTIC, {"x": x, "y": np.ones(len(x), dtype=int)}), (BOUNDED, {"x": x})):
        for epsilon, seed in ((0.5, None), (80.0, 1)):
            promise = dp.Privacy(epsilon, delta, "add-remove")
            release = dp.solve(template, data, promise, mechanism, size=size, seed=seed)
            assert release.certificate.cover.records >= len(x)


def test_the_bound_is_one_but_for_two_to_the_minus_hundred():
    for epsilon in (1e-4, 0.0025, 0.3):
        reach = margin(epsilon)
        # Integer Laplace noise of scale 1/epsilon is below -k with probability exp(-k epsilon) / (1 + exp(-epsilon)) at most.
        assert -reach * epsilon - math.log1p(math.exp(-epsilon)) < math.log(TRUNCATED)
        assert (reach - 2) * epsilon < -math.log(TRUNCATED)


def test_a_certificate_for_more_records():
    analysis, certificate = analyse(LOGISTIC), dp.verify(LOGISTIC, dp.Privacy(1.0, adjacency="add-remove"), 50, GAMMA)
    before = certificate.cover
    assert before.records > 100 + margin(before.counting)
    assert cover_records(GAMMA, analysis, certificate, before.records) is certificate
    more = cover_records(GAMMA, analysis, certificate, 1e6)
    assert (more.noise_scale, more.privacy) == (certificate.noise_scale, certificate.privacy)
    lowest = largest_distance_floor(analysis, more, noise_cap(GAMMA, more), 1e6)
    assert more.tolerance >= room_above(analysis) * lowest * (1 - 1e-12)
    assert more.cover.distance > more.tolerance > certificate.tolerance
    assert (more.cover.epsilon, more.cover.counting) == (before.epsilon, before.counting)
    assert more.cover.size > before.size
    assert dp.Certificate.from_dict(more.to_dict()) == more


def test_noise_keeps_its_share_whatever_it_is():
    """Rounding of the scale of integer noise is covered by its slack."""
    for epsilon in np.geomspace(1e-3, 10.0, 16).tolist():
        assert all(
            calibrate_residual_noise(dp.Privacy(epsilon, delta), 1e-3, 50).holds for delta in (1e-12, 1e-7, 1e-4)
        )
