"""Published mechanisms are what the papers print; those of Pathak & Raj are refused for each of their defects, and attacked."""

import math

import numpy as np
import pytest
from scipy import stats

import dpconvex as dp
from benchmarks.published.chaudhuri import output_calibration
from benchmarks.published.noise_coverage import check_coverage
from benchmarks.published.pathak_raj import PublishedPerturbation
from benchmarks.published.reproduce import repeat_chaudhuri, reproduce
from benchmarks.published.stationarity_attack import explain, tell_apart
from dpconvex.fitting.verify import analyse
from dpconvex.noise.samplers import seeded_generator

PROMISE = dp.Privacy(1.0)
PUBLISHED = PublishedPerturbation.of(2012)


def two_groups(size, features, seed=0):
    """Overlapping classes in the unit ball."""
    rng = np.random.default_rng(seed)
    y = np.arange(size) % 2
    x = rng.normal(size=(size, features)) * 0.25
    x[:, 0] += np.where(y == 0, -0.4, 0.4)
    return {"x": x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)), "y": y}


# Chaudhuri, Monteleoni and Sarwate: to the letter, and never private
def test_the_noise_of_algorithm_1_has_its_law():
    template = dp.load("huber_svm", features=3, regularization=0.01)
    data = {"x": np.zeros((40, 3)), "y": np.tile([-1, 1], 20)}
    drawn = np.array([release["w"] for release in repeat_chaudhuri(template, data, 1.0, 1, draws=60, seed=0)])
    assert "as published" in next(repeat_chaudhuri(template, data, 1.0, 2, seed=1)).not_private_because
    rate = output_calibration(1.0, 40, 0.01).rate
    assert stats.kstest(np.linalg.norm(drawn, axis=1) * rate, stats.gamma(3).cdf).pvalue > 1e-3


# Pathak and Raj
@pytest.mark.sampled(2)
@pytest.mark.parametrize("epsilon", [1e-3, 1e3])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("year", "fitted"), [("2010", ()), ("2012", ()), ("2012_mixture", ("m",))])
def test_the_papers_are_refused_at_every_epsilon(year, fitted, adjacency, epsilon):
    template, promise = dp.load(f"pathak_raj_{year}", features=3), dp.Privacy(epsilon, adjacency=adjacency)
    with pytest.raises(dp.NotPrivate, match="does not cover the sensitive subspace"):
        dp.verify(template, promise, 583, PublishedPerturbation.of(int(year[:4]), fitted=fitted))


def test_noise_on_one_class_misses_a_part_of_the_sensitive_subspace():
    form = analyse(dp.load("large_margin_gaussian", features=1)).form
    first = np.eye(form.space.dim)[:, form.space.blocks["Phi_0"].slice]
    with pytest.raises(dp.NotPrivate, match=r"(?s)does not cover the sensitive subspace.*Phi_1"):
        check_coverage(form, first, "noise on the first class alone")


def test_a_variant_with_every_premise_repaired_is_certified_and_runs():
    template = dp.load("pathak_raj_2012", features=2, rescale=True)
    mechanism = PublishedPerturbation(shared=False)
    certificate = mechanism.certify(analyse(template), PROMISE, 40)
    assert isinstance(certificate, dp.Certificate)
    assert certificate.noise_scale == pytest.approx(40.0)
    assert certificate.noise_dimension == 2 * 3**2
    assert certificate.noise_epsilon + certificate.jacobian_epsilon < 1.0
    assert "times what the proof needs" in certificate.advice[0]
    release = dp.solve(template, two_groups(40, 2), PROMISE, mechanism)
    assert release.private
    assert release["Phi_0"].shape == (3, 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shared", [True, False])
def test_the_noise_has_the_printed_law(shared):
    # ||b|| ~ Gamma(m, s) with mean square m (m + 1) s^2, spread evenly over the m entries; only the symmetric part acts.
    space = analyse(dp.load("pathak_raj_2012", features=1)).form.space
    mechanism, rng = PublishedPerturbation(shared=shared), seeded_generator(7)
    draws = np.array([mechanism.noise(space, 3.0, rng) for _ in range(8000)]).reshape(-1, 2, 3)
    entries = 4 if shared else 8
    square = entries * (entries + 1) * 9.0 / entries * 3  # three symmetric directions in each class
    assert np.mean(np.sum(draws**2, axis=2)) == pytest.approx(square, rel=0.05)
    assert np.array_equal(draws[:, 0], draws[:, 1]) is shared
    assert shared or abs(np.corrcoef(draws[:, 0, 0], draws[:, 1, 0])[0, 1]) < 0.05


# The attack tells neighbours apart where noise misses a direction, and is held to epsilon where it covers them all.
def successes(template, adjacency, fit, runs, mechanism=None):
    """Count how often the attack names the data set that a release was made from, from the released numbers alone."""
    data, found = two_groups(80, 3), 0
    data["x"][0] = [1.0, 0.0, 0.0]
    x, y = data["x"], data["y"]
    other = {"x": x, "y": np.append(1, y[1:])} if adjacency == "replace-one" else {"x": x[1:], "y": y[1:]}
    for seed in range(runs):
        release = fit((data, other)[seed % 2], seed)
        if mechanism is not None:
            numbers = {name: value.copy() for name, value in release.items()}
            release = dp.Release(numbers, not_private_because="copied by hand")
        found += tell_apart(release, template, (data, other), mechanism) == seed % 2
    return found


@pytest.mark.parametrize("adjacency", [pytest.param("add-remove", marks=pytest.mark.slow), "replace-one"])
def test_published_releases_are_told_apart_and_repaired_ones_are_not(adjacency):
    template = dp.load("pathak_raj_2012", features=3, regularization=0.1, trace=0.01, width=0.5)
    privacy = dp.Privacy(1.0, adjacency=adjacency)
    fit = lambda data, seed: reproduce(template, data, PROMISE, PUBLISHED, seed=seed)  # noqa: E731
    assert successes(template, adjacency, fit, 12, PUBLISHED) >= 11
    repaired = dp.load("large_margin_gaussian", features=3, regularization=0.1, trace=0.01)
    fit = lambda data, seed: dp.solve(repaired, data, privacy, size=80, seed=seed)  # noqa: E731
    likely = math.e / (1 + math.e)  # outside this range once in a thousand, at most
    least, most = stats.binom.ppf(1e-3, 30, 1 - likely), stats.binom.ppf(1 - 1e-3, 30, likely)
    assert most < 30
    assert least <= successes(repaired, adjacency, fit, 30) <= most


def test_noise_that_is_needed_is_the_noise_that_was_drawn():
    # Without an active constraint the stationarity condition gives the noise back.
    template = dp.load("logistic_regression", features=2, regularization=0.1)
    x = np.random.default_rng(1).uniform(-0.5, 0.5, size=(30, 2))
    data = {"x": x, "y": np.where(x[:, 0] > 0, 1, -1)}
    release = dp.solve(template, data, PROMISE, seed=4)
    explanation = explain(release, template, data)
    assert explanation.residual < 1e-9
    # sum form: grad losses + size * 0.1 * w + added * w + b = 0
    w, sign = release["w"], data["y"]
    slope = -(x * (sign / (1 + np.exp(sign * (x @ w))))[:, None]).sum(axis=0)
    b = -(slope + (30 * 0.1 + release.certificate.added) * w)
    assert explanation.noise == pytest.approx(np.linalg.norm(b), rel=1e-4)
