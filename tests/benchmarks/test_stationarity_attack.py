"""The attack tells neighbours apart where noise misses a direction, and is held to epsilon where it covers them all."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest
from scipy.stats import binom

import dpconvex as dp
from benchmarks.published.pathak_raj import PublishedPerturbation
from benchmarks.published.reproduce import reproduce
from benchmarks.published.stationarity_attack import explain, tell_apart
from dpconvex.release.release import Release

Data = Mapping[str, np.ndarray]

SIZE = 80
EPSILON = 1.0
PUBLISHED = PublishedPerturbation.of(2012)


def neighbours(adjacency: str, features: int) -> tuple[Data, Data]:
    """Two overlapping groups, and the same with one far record left out, or given the other label."""
    rng = np.random.default_rng(0)
    y = np.arange(SIZE) % 2
    x = rng.normal(size=(SIZE, features)) * 0.25
    x[:, 0] += np.where(y == 0, -0.4, 0.4)
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    x[0] = np.eye(features)[0]
    if adjacency == "add-remove":
        return {"x": x, "y": y}, {"x": x[1:], "y": y[1:]}
    return {"x": x, "y": y}, {"x": x, "y": np.append(1 - y[0], y[1:])}


def successes(
    template: dp.Template,
    pair: tuple[Data, Data],
    fit: Callable[[Data, int], Release],
    runs: int,
    mechanism: PublishedPerturbation | None = None,
) -> int:
    """Count how often the attack names the data set that a release was made from, from the released numbers alone."""
    found = 0
    for seed in range(runs):
        release = fit(pair[seed % 2], seed)
        if mechanism is not None:
            numbers = {name: value.copy() for name, value in release.items()}
            release = Release(numbers, not_private_because="copied by hand")
        found += tell_apart(release, template, pair, mechanism) == seed % 2
    return found


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_published_releases_are_told_apart(adjacency: str) -> None:
    template = dp.load("pathak_raj_2012", features=3, regularization=0.1, trace=0.01, width=0.5)

    def fit(data: Data, seed: int) -> Release:
        return reproduce(template, data, dp.Privacy(EPSILON), PUBLISHED, seed=seed)

    assert successes(template, neighbours(adjacency, 3), fit, 12, PUBLISHED) >= 11


def allowed(runs: int) -> tuple[int, int]:
    """Return the range of successes that epsilon leaves likely: outside it once in a thousand, at most."""
    most = np.exp(EPSILON) / (1 + np.exp(EPSILON))
    return int(binom.ppf(1e-3, runs, 1 - most)), int(binom.ppf(1 - 1e-3, runs, most))


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_repaired_releases_are_not(adjacency: str) -> None:
    template = dp.load("large_margin_gaussian", features=3, regularization=0.1, trace=0.01)

    def fit(data: Data, seed: int) -> Release:
        return dp.solve(template, data, dp.Privacy(EPSILON, adjacency=adjacency), size=SIZE, seed=seed)

    least, most = allowed(30)
    assert most < 30
    assert least <= successes(template, neighbours(adjacency, 3), fit, 30) <= most


def test_noise_that_is_needed_is_the_noise_that_was_drawn() -> None:
    # Without an active constraint the stationarity condition gives the noise back.
    template = dp.load("logistic_regression", features=2, regularization=0.1)
    rng = np.random.default_rng(1)
    x = rng.uniform(-0.5, 0.5, size=(30, 2))
    data = {"x": x, "y": np.where(x[:, 0] > 0, 1, -1)}
    release = dp.solve(template, data, dp.Privacy(1.0), seed=4)
    assert release.certificate is not None
    explanation = explain(release, template, data)
    assert explanation.residual < 1e-9
    # sum form: grad losses + size * 0.1 * w + added * w + b = 0
    w = release["w"]
    sign = data["y"]
    slope = -(x * (sign / (1 + np.exp(sign * (x @ w))))[:, None]).sum(axis=0)
    b = -(slope + (30 * 0.1 + release.certificate.added) * w)
    assert explanation.noise == pytest.approx(np.linalg.norm(b), rel=1e-4)
