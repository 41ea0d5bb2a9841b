"""Noisy gradient descent, clipped or not: exact privacy of its transcript, any loss, any K, and what it refuses."""

import math
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from scipy import stats

import dpconvex as dp
from dpconvex.fitting.engine import DataEngine
from dpconvex.fitting.verify import analyse
from dpconvex.mechanisms.gradient_descent import GAUSSIAN, most_drawn, path_rounding
from dpconvex.mechanisms.residual_noise import cover_records
from dpconvex.noise.gaussian import gaussian_delta

ADJACENCIES = ("replace-one", "add-remove")
ADD = dp.Privacy(1.0, 1e-5, "add-remove")


def learner(kind, features=1, public=None):
    """Least squares on all of space, where no gradient is bounded, or losses of margins on a ball."""
    w = cp.Variable(features, name="w")
    losses = {
        "squares": lambda x, y: cp.square(y - x @ w) / 2,
        "hinges": lambda x, y: cp.pos(1 - y * (x @ w)),
        "logistic": lambda x, y: cp.logistic(-y * (x @ w)),
    }
    record = dp.Record(x=dp.Ball(features), y=dp.Box(-1, 1) if kind == "squares" else dp.Choice([-1, 1]))
    ball = [] if kind == "squares" else [cp.norm(w) <= 2]
    return dp.Template(record, losses[kind], public(w) if public else 0.0, ball)


def slopes(theta, records, clip):
    """Clipped gradients of the sum of squares on the line, at each theta; records are pairs (x, y)."""
    x, y = records[:, 0], records[:, 1]
    return np.clip((theta[:, None] * x - y) * x, -clip, clip).sum(axis=1)


def hinges(theta, records, radius):
    """Gradients of the sum of hinges on the line, at each theta cut to the ends of K; records are pairs (x, y)."""
    margins = records[:, 0] * records[:, 1]
    m = np.clip(theta, -radius, radius)[:, None] * margins
    return np.where(m < 1, -1.0, np.where(m > 1, 0.0, -0.5)) @ margins


def transcript_delta(slopes, first, second, clip, step, sigma, epsilon):
    """Delta of two noisy sums: the second is taken where the first one led to."""
    noise = np.linspace(-8.0, 8.0, 801) * sigma
    start = [slopes(np.zeros(1), records, clip)[0] for records in (first, second)]
    seen = start[0] + noise
    then = [slopes(-step * seen, records, clip) for records in (first, second)]
    lead = (seen - start[1]) ** 2 - noise**2
    loss = (lead[:, None] + ((then[0][:, None] + noise - then[1][:, None]) ** 2 - noise**2)) / (2 * sigma**2)
    weight = np.multiply.outer(*[stats.norm.pdf(noise / sigma)] * 2) * (noise[1] - noise[0]) ** 2 / sigma**2
    return float((weight * np.maximum(-np.expm1(epsilon - loss), 0.0)).sum())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("clipped", [True, False])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_two_adaptive_steps_keep_their_promise(adjacency, clipped):
    epsilon, delta, clip = 0.7, 1e-3, 0.25 if clipped else 2.0
    options = {"clip": clip, "momentum": 0.0, "step_size": 0.02} if clipped else {}
    mechanism, sums = dp.NoisyGradientDescent(steps=2, **options), slopes if clipped else hinges
    analysis = analyse(learner("squares" if clipped else "hinges"), mechanism)
    certificate = mechanism.certify(analysis, dp.Privacy(epsilon, delta, adjacency), 6)
    step, sigma = certificate.settings["step_size"], certificate.noise_scale
    others = np.array([[1.0, 1.0], [1.0, -1.0], [0.3, 0.7], [-0.9, 0.2], [1.0, 0.1]])

    def worst(deviation, limit):
        found = 0.0
        for record in ([1.0, 1.0], [1.0, -1.0], [0.6, -0.5]):
            mine = np.vstack([others, record])
            theirs = others if adjacency == "add-remove" else np.vstack([others, [-record[0], record[1]]])
            for a, b in ((mine, theirs), (theirs, mine)):
                found = max(found, transcript_delta(sums, a, b, limit, step, deviation, epsilon))
        return found

    # Gradients beyond the clip use the guarantee up, where the second step finds them beyond it too.
    assert (0.3 if clipped else 0.1) * delta <= worst(sigma, clip) <= delta
    assert not clipped or worst(sigma, 2 * clip) > delta  # records that are not clipped to the clip
    assert worst((0.8 if clipped else 0.4) * sigma, clip) > delta


LOGISTIC = dp.load("logistic_regression", features=2, regularization=0.0)


class Line:
    """An engine whose sum of gradients pulls to a target, and is public otherwise; it records what it is asked."""

    def __init__(self, target, public=0.0):
        self.target, self.public, self.records = target, public, 1000
        self.chosen, self.clips = [], []

    def clipped_gradient(self, theta, clip, chosen=None):
        self.chosen.append(chosen)
        self.clips.append(clip)
        return self.loss_gradient(theta)

    def loss_gradient(self, theta):
        return theta - self.target

    def public_gradient(self, theta):
        return np.full_like(theta, self.public)

    def project(self, theta):
        return theta


def test_nearly_equal_gradients_may_be_clipped_differently():
    w, found = cp.Variable(2, name="w"), []
    template = dp.Template(dp.Record(u=dp.Box(0.0, 1.0)), lambda u: w[0] + 1e-6 * u * w[1], 0.0)
    for clip in (0.5, 1.0, 1.1):
        mechanism, engine = dp.NoisyGradientDescent(clip=clip, steps=1, step_size=0.01), Line(np.zeros(2))
        certificate = dp.verify(template, dp.Privacy(1.0, 1e-6), 10, mechanism)
        found.append(certificate.sensitivity)
        mechanism.run(analyse(template, mechanism), certificate, engine, np.random.default_rng(0))
        assert engine.clips == [clip if clip <= 1 else math.inf]
    # Norms are rounded up, by more for one record than for another: gradients differ by 1e-6, what is left of them may by more.
    assert found[:2] == pytest.approx([1.0, 2.0], rel=1e-6)
    assert 1e-6 <= found[2] <= 2e-6


def test_poisson_samples_are_drawn_anew_at_every_step():
    engine, analysis = Line(np.zeros(2)), analyse(LOGISTIC)
    mechanism = dp.NoisyGradientDescent(clip=0.1, steps=30, sampling=0.2)
    certificate = mechanism.certify(analysis, dp.Privacy(50.0, 1e-5, "add-remove"), 100)
    mechanism.run(analysis, certificate, engine, np.random.Generator(np.random.PCG64(3)))
    counts = np.array([chosen.sum() for chosen in engine.chosen])
    assert abs(counts.mean() - 200) < 10
    assert 6 < counts.std() < 20  # a batch of a fixed size is no Poisson sample
    sampled, full = (dp.NoisyGradientDescent(clip=0.1, sampling=rate) for rate in (0.2, None))
    scales = [dp.verify(LOGISTIC, ADD, 100, mechanism).noise_scale for mechanism in (sampled, full)]
    assert 0.2 * scales[1] < scales[0] < 0.4 * scales[1]
    with pytest.raises(dp.NotPrivate, match="Poisson"):
        dp.verify(LOGISTIC, dp.Privacy(1.0, 1e-5), 100, sampled)


def test_gradients_whose_squares_overflow_are_refused():
    steep = learner("logistic", public=lambda w: 1e154 * w[0])
    with pytest.raises(dp.TemplateError, match="1e\\+156; use other units"):
        dp.verify(steep, dp.Privacy(1.0, 1e-6), 100, dp.NoisyGradientDescent())


def test_more_records_than_planned_get_more_noise():
    analysis = analyse(LOGISTIC)
    for sampling in (None, 0.5):
        mechanism = dp.NoisyGradientDescent(clip=0.3, sampling=sampling, steps=5)
        certificate = dp.verify(LOGISTIC, ADD, 100, mechanism)
        more = cover_records(mechanism, analysis, certificate, 1e7)
        rounding = [(found.sensitivity - 0.3 * (1 + 1e-12)) / 2 for found in (certificate, more)]
        assert rounding[1] >= path_rounding(analysis, more, 1e7, more.noise_scale) * (1 - 1e-9)
        assert rounding[1] > 100 * rounding[0] > 0
        assert more.noise_scale > certificate.noise_scale
        if sampling is None:
            spent = float(gaussian_delta(more.noise_epsilon, math.sqrt(5) * more.sensitivity / more.noise_scale))
            assert spent <= more.noise_delta
        else:  # what hides rounding is not amplified by sampling
            own = math.sqrt((more.noise_scale**2 - certificate.noise_scale**2) / 5)
            assert gaussian_delta(1e-3 * more.noise_epsilon, 2 * rounding[1] / own) <= 1e-3 * more.noise_delta


def test_noise_of_samples_does_not_grow_with_records_that_take_no_part():
    for records, rate in ((1000, 0.01), (10**6, 1e-4), (50, 0.9), (10**5, 0.3)):
        for probability in (1e-3, 1e-12, 2.0**-100):
            assert stats.binom.sf(most_drawn(records, rate, probability), records, rate) <= probability
    steps = dp.NoisyGradientDescent(clip=0.3, steps=300, sampling=0.01)
    scales = [dp.verify(LOGISTIC, ADD, size, steps).noise_scale for size in (100, 100_000)]
    assert scales[1] == pytest.approx(scales[0], rel=0.02)


def test_noise_comes_before_what_is_public():
    """A public gradient of 4e16 would round those of neighbours, which are 1.3 apart at most, to multiples of 8."""
    far, n = 1.1e12, 20_000
    template = learner("logistic", public=lambda w: far * cp.sum_squares(w - 1))
    certificate = dp.verify(template, dp.Privacy(1.0, 1e-6), n, dp.NoisyGradientDescent())
    x, found = np.zeros((n, 1)), []
    x[:8] = 0.7
    for last in (1.0, -1.0):
        x[-1] = last
        engine = DataEngine(analyse(template), template.record.validate({"x": x, "y": np.ones(n)}), n, None)
        found.append(engine.loss_gradient(np.zeros(1)))
    assert 0.5 < abs(found[0] - found[1]) <= certificate.sensitivity
    assert engine.public_gradient(np.zeros(1)) == -2 * far * n

    slope, public = 270.0, 2.0**61
    one = replace(certificate, settings={**certificate.settings, "steps": 1.0, "step_size": 1.0})
    seeds = [np.random.Generator(np.random.PCG64(3)) for _ in range(2)]
    noisy = slope + GAUSSIAN.draw(1, one.noise_scale, seeds[0])
    moved = 2 * dp.NoisyGradientDescent().run(analyse(template), one, Line(np.full(1, -slope), public), seeds[1])
    assert moved == -(noisy + public)
    assert moved != -(noisy - slope + (slope + public))


def test_neighbours_at_a_tie_are_as_far_apart_as_certified():
    """At w = 1 the gradient of max(10 x w, 10) is 5 for x = 1, the mean of both pieces', and 0 for all other records."""
    w, n = cp.Variable(name="w"), 20
    record = dp.Record(x=dp.Box(-1, 1))
    template = dp.Template(record, lambda x: cp.maximum(10 * x * w, 10) + 0.01 * x * w, 0.0, [cp.abs(w) <= 1])
    mechanism, analysis = dp.NoisyGradientDescent(steps=10), analyse(template)
    for adjacency in ADJACENCIES:
        certificate, sums = dp.verify(template, dp.Privacy(1.0, 1e-5, adjacency), n, mechanism), []
        for last in (1.0, 0.0):
            data = {"x": np.append(np.ones(n - 1), last)[: n if last or adjacency == "replace-one" else n - 1]}
            engine = DataEngine(analysis, record.validate(data), n, None)
            theta = engine.project(np.array([123.4]))  # where a step of noise ends
            assert theta == 1
            sums.append(engine.loss_gradient(theta))
        assert 5 <= abs(sums[0] - sums[1]) <= certificate.sensitivity
        assert certificate.sensitivity <= (20.1 if adjacency == "replace-one" else 10.1)
    smooth = dp.Template(record, lambda x: cp.maximum(10 * x * w, 10.1) + 0.01 * x * w, 0.0, [cp.abs(w) <= 1])
    assert analyse(smooth).kink is None  # what stays below is left out
    assert analyse(smooth).gradient_bound == pytest.approx(0.01)


@pytest.mark.parametrize("fields", [{}, {"k": dp.Choice([1, 2])}], ids=["", "labels"])
@pytest.mark.parametrize(
    "loss", [cp.abs, lambda u: cp.maximum(0.9 * u, -0.1 * u), cp.square], ids=["absolute", "quantile", "squares"]
)
def test_steps_at_targets_do_not_grow_with_the_records_or_their_bounds(loss, fields):
    """Slopes of targets do not vanish far away: with more records, clipped steps went farther and farther past them."""
    rng, w = np.random.default_rng(0), cp.Variable(3, name="w")
    x = rng.uniform(-1, 1, (3_000, 3)) / 2
    y = np.clip(x @ [0.5, -0.3, 0.2] + 0.05 * rng.normal(size=len(x)), -10, 10)
    record = dp.Record(x=dp.Ball(3), y=dp.Box(-10, 10), **fields)
    template = dp.Template(record, lambda x, y, k=1: k * loss(y - x @ w))
    data = {"x": x, "y": y} | dict.fromkeys(fields, [1] * len(x))
    found = dp.solve(template, data, dp.Privacy(1.0, 1e-6), dp.NoisyGradientDescent(clip=1.0), seed=0)
    assert loss(y - x @ found["w"]).value.mean() < 0.8 * loss(y).value.mean()


def test_the_path_of_shrinking_steps_is_as_long_as_their_sum():
    """It counted as many first steps: fits of 300 records with wide bounds got four times the noise, to hide rounding."""
    w = cp.Variable(name="w")
    template = dp.Template(dp.Record(x=dp.Box(-1, 1), y=dp.Box(-1000, 1000)), lambda x, y: cp.huber(y - x * w, 0.2))
    mechanism = dp.NoisyGradientDescent(clip=1.0, sampling=0.1, momentum=0.0)
    certificate, analysis = dp.verify(template, ADD, 300, mechanism), analyse(template, mechanism)
    assert certificate.noise_scale < 2.5
    found, engine = [np.zeros(1)], Line(0.0)
    engine.loss_gradient, engine.project = np.ones_like, lambda theta: found.append(theta) or theta
    quiet = replace(certificate, noise_scale=1e-12, settings=certificate.settings | {"sampling": 1.0})
    mechanism.run(analysis, quiet, engine, np.random.default_rng(0))
    steps = -np.diff(found, axis=0)
    assert steps.sum() == pytest.approx(certificate.noise_shift / certificate.expected_noise)
    assert (steps**2).sum() == pytest.approx(certificate.sum_of_steps(power=2))


@pytest.mark.parametrize("kind", ["counts", "costs"])
def test_exposures_are_no_targets(kind):
    """Steps shrank for exposures, too: Poisson regression of 30,000 records lost all of the gain over a constant, not .07."""
    w = cp.Variable(2, name="w")
    losses = {"counts": lambda s, y, o: cp.exp(s + o) - y * s, "costs": lambda s, y, o: y * cp.exp(-s - o) + s}
    record = dp.Record(x=dp.Ball(2), y=dp.Box(0, 50), o=dp.Box(-1, 1))
    template = dp.Template(record, lambda x, y, o: losses[kind](x @ w, y, o))
    assert "last_step" not in dp.verify(template, ADD, 300, dp.NoisyGradientDescent(clip=1.0)).settings
