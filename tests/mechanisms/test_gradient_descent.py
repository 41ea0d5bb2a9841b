"""Noisy gradient descent: exact privacy of its transcript, the risk that the theory promises, and what it needs."""

import math
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import dpconvex as dp
from dpconvex.mechanisms.gradient_descent import GAUSSIAN
from dpconvex.noise.gaussian_profiles import gaussian_delta
from dpconvex.release.engine import DataEngine
from dpconvex.release.verify import analyse

Array = NDArray[np.float64]
ADJACENCIES = ("replace-one", "add-remove")


def template(kind: str = "logistic", features: int = 1, radius: float = 2.0, regularizer: Any = None) -> dp.Template:
    w = cp.Variable(features, name="w")
    atoms = {"logistic": lambda m: cp.logistic(-m), "hinge": lambda m: cp.pos(1 - m)}
    return dp.Template(
        record=dp.Record(x=dp.Ball(features), y=dp.Choice([-1, 1])),
        loss=lambda x, y: atoms[kind](y * (x @ w)),
        regularizer=0.0 if regularizer is None else regularizer(w),
        constraints=[cp.norm(w) <= radius],
    )


def slopes(kind: str, theta: Array, margins: Array) -> Array:
    """Gradient of the sum of losses on the line at each theta."""
    m = theta[:, None] * margins
    first = -np.exp(-np.logaddexp(0.0, m)) if kind == "logistic" else np.where(m < 1, -1.0, np.where(m > 1, 0.0, -0.5))
    return np.asarray(first @ margins)


def transcript_delta(
    kind: str, first: Array, second: Array, radius: float, step: float, sigma: float, epsilon: float
) -> float:
    """Delta of two noisy gradients: the second is taken where the first one led to."""
    noise = np.linspace(-8.0, 8.0, 801) * sigma
    start = np.zeros(1)
    one = [slopes(kind, start, records)[0] for records in (first, second)]
    seen = one[0] + noise  # what the first step reveals
    theta = np.clip(-step * seen, -radius, radius)
    two = [slopes(kind, theta, records) for records in (first, second)]
    # log density ratio of the pair, for the second gradient seen at two[0] + v
    lead = (seen - one[1]) ** 2 - (seen - one[0]) ** 2
    v = noise[None, :]
    follow = (two[0][:, None] + v - two[1][:, None]) ** 2 - v**2
    loss = (lead[:, None] + follow) / (2 * sigma**2)
    weight = stats.norm.pdf(noise / sigma)[:, None] * stats.norm.pdf(noise / sigma)[None, :]
    cell = (noise[1] - noise[0]) ** 2 / sigma**2
    return float((weight * np.maximum(-np.expm1(epsilon - loss), 0.0)).sum() * cell)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("kind", ["logistic", "hinge"])
def test_two_adaptive_steps_keep_their_promise(kind: str, adjacency: str) -> None:
    epsilon, delta, size = 0.7, 1e-3, 6
    mechanism = dp.NoisyGradientDescent(steps=2)
    certificate = mechanism.certify(analyse(template(kind)), dp.Privacy(epsilon, delta, adjacency), size)
    step, sigma = certificate.settings["step_size"], certificate.noise_scale

    def worst(deviation: float) -> float:
        found = 0.0
        for others in (np.full(5, 1.0), np.full(5, -1.0), np.array([1.0, -1.0, 0.3, -0.4, 0.9])):
            for v in (1.0, -1.0):
                mine = np.append(others, v)
                theirs = others if adjacency == "add-remove" else np.append(others, -v)
                for a, b in ((mine, theirs), (theirs, mine)):
                    found = max(found, transcript_delta(kind, a, b, 2.0, step, deviation, epsilon))
        return found

    kept = worst(sigma)
    assert kept <= delta
    # At 0 a hinge has its full slope, so much of its promise is used up, and half of the noise is found out.
    assert kept >= (0.2 if kind == "hinge" else 0.0) * delta
    assert worst(sigma / 2 if kind == "hinge" else sigma / 4) > delta


def test_the_noise_of_all_steps_is_that_of_one_release() -> None:
    analysis = analyse(template())
    for steps in (1, 9, 400):
        promise = dp.Privacy(0.5, 1e-6, "add-remove")
        certificate = dp.NoisyGradientDescent(steps=steps).certify(analysis, promise, 100)
        slope = 1 / (1 + math.exp(-2))  # margins do not exceed 2 on K
        assert certificate.sensitivity == pytest.approx(slope)
        spent = float(gaussian_delta(0.5, math.sqrt(steps) * certificate.sensitivity / certificate.noise_scale))
        assert 0.999 * promise.delta <= spent <= promise.delta


class Quadratic:
    """An engine whose gradient is theta minus a target, and a public constant; it counts what it is asked."""

    def __init__(self, target: Array, radius: float, public: float = 0.0) -> None:
        self.target, self.radius, self.public, self.seen = target, radius, public, []

    def minimise(self, strong_convexity: float, tolerance: float, **options: Any) -> Array:
        raise AssertionError("gradient descent asks for no minimiser")

    def loss_gradient(self, theta: Array) -> Array:
        self.seen.append(theta)
        return theta - self.target

    def public_gradient(self, theta: Array) -> Array:
        return np.full_like(theta, self.public)

    def project(self, theta: Array) -> Array:
        return theta * min(1.0, self.radius / max(float(np.linalg.norm(theta)), 1e-300))


def test_it_averages_projected_iterates() -> None:
    analysis = analyse(template(features=2))
    mechanism = dp.NoisyGradientDescent(steps=50)
    certificate = mechanism.certify(analysis, dp.Privacy(1.0, 1e-6), 100)
    engine = Quadratic(np.array([5.0, 0.0]), 2.0)
    theta = mechanism.run(analysis, certificate, engine, np.random.Generator(np.random.PCG64(3)))
    assert len(engine.seen) == 50
    assert (engine.seen[0] == 0).all()
    assert max(np.linalg.norm(t) for t in engine.seen) <= 2 * (1 + 1e-12)
    last = 51 * theta - sum(engine.seen[1:], engine.seen[0])
    assert np.linalg.norm(last) <= 2 * (1 + 1e-9)  # the average is of 51 points, and the last one lies in K too


def test_noise_comes_before_what_is_public() -> None:
    """A public gradient of 4e16 would round those of neighbours, which are 1.3 apart at most, to multiples of 8."""
    far, n = 1.1e12, 20_000
    learner = template(regularizer=lambda w: far * cp.sum_squares(w - 1))
    certificate = dp.verify(learner, dp.Privacy(1.0, 1e-6), n, dp.NoisyGradientDescent())
    x = np.zeros((n, 1))
    x[:8] = 0.7
    found = []
    for last in (1.0, -1.0):
        x[-1] = last
        engine = DataEngine(analyse(learner), learner.record.validate({"x": x, "y": np.ones(n)}), n, None)
        found.append(engine.loss_gradient(np.zeros(1)))
    assert 0.5 < abs(found[0] - found[1]) <= certificate.sensitivity
    assert engine.public_gradient(np.zeros(1)) == -2 * far * n

    slope, start, public = 270.0, np.zeros(1), 2.0**61
    one = replace(certificate, settings={**certificate.settings, "steps": 1.0, "step_size": 1.0})
    seeds = [np.random.Generator(np.random.PCG64(3)) for _ in range(2)]
    noisy = slope + GAUSSIAN.draw(1, one.noise_scale, seeds[0])
    moved = 2 * dp.NoisyGradientDescent().run(analyse(learner), one, Quadratic(start - slope, np.inf, public), seeds[1])
    assert moved == -(noisy + public)
    assert moved != -(noisy - slope + (slope + public))


def test_what_it_cannot_do_is_refused() -> None:
    mechanism = dp.NoisyGradientDescent()
    with pytest.raises(dp.NotPrivate, match="delta = 0"):
        dp.verify(template(), dp.Privacy(1.0), 10, mechanism)
    unbounded = dp.load("logistic_regression", features=2)
    with pytest.raises(dp.NotPrivate, match="bounded parameters"):
        dp.verify(unbounded, dp.Privacy(1.0, 1e-6), 10, mechanism)


def test_steps_stay_in_a_set_without_a_projection_in_closed_form() -> None:
    w = cp.Variable(2, name="w")
    odd = dp.Template(
        dp.Record(x=dp.Ball(2)), lambda x: cp.logistic(x @ w), 0.0, [cp.norm(w) <= 1, cp.sum(cp.exp(w)) <= 3]
    )
    found = dp.solve(odd, {"x": np.eye(2)}, dp.Privacy(1.0, 1e-6), dp.NoisyGradientDescent(steps=5))["w"]
    assert np.linalg.norm(found) <= 1 + 1e-9
    assert np.exp(found).sum() <= 3 + 1e-9


@pytest.mark.parametrize(
    "options", [{"steps": 0}, {"steps": 2.5}, {"steps": True}, {"radius": 0.0}, {"step_size": -1.0}]
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(dp.TemplateError, match=next(iter(options))):
        dp.NoisyGradientDescent(**options)


def test_one_more_record_flips_no_kink_of_others() -> None:
    d, rng = 150, np.random.default_rng(1)
    w, theta, x = cp.Variable(d, name="w"), rng.uniform(0.05, 0.2, d), rng.uniform(size=d)
    x /= 1.0001 * np.linalg.norm(x)
    learner = dp.Template(
        dp.Record(x=dp.Ball(d), u=dp.Box(-2.0, 2.0)), lambda x, u: cp.abs(x @ w - u), 0.0, [cp.norm(w) <= 3]
    )
    for level in (float(x @ theta), float(np.einsum("i,i->", x, theta))):  # on the kink, but for rounding
        found = []
        for count in (7, 8, 2001, 20001):
            data = {"x": np.broadcast_to(x, (count, d)), "u": np.full(count, level)}
            found.append(
                DataEngine(analyse(learner), learner.record.validate(data), 1, None).loss_gradient(theta) / count
            )
        assert np.linalg.norm(np.array(found) - found[0], axis=1).max() < 1e-12
