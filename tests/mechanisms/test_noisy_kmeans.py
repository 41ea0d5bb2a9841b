"""Noisy k-means: its sensitivity is attacked, its noise has the declared law, and whole runs have the promised profile."""

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

import dpconvex as dp
from dpconvex.learners.clustering import Grouping
from dpconvex.mechanisms import noisy_kmeans
from dpconvex.mechanisms.noisy_kmeans import (
    GAMMA,
    GAUSSIAN,
    NoisyKMeans,
    Statistics,
    block_sensitivity,
    draw,
    euclidean_sensitivity,
)
from dpconvex.noise.samplers import seeded_generator

Array = NDArray[np.float64]
ADJACENCIES = ("replace-one", "add-remove")
ALARM = 1e-6
SHAPE: dict[str, Any] = {"classes": 2, "components": 3, "features": 4, "radius": 1.5}


# Sensitivity: neighbours are formed from records, and their statistics are those of the code that is run.


def moved(first: Array, second: Array, weight: float) -> tuple[float, float]:
    """Return the distance of two sets of statistics, in the Euclidean norm and summed over cells."""
    difference = first - second
    difference[..., -1] *= weight
    cells = np.linalg.norm(difference, axis=-1)
    return float(np.linalg.norm(cells)), float(cells.sum())


def cells(x: Array, y: Array, centers: Array, radius: float) -> Array:
    """Return sums (in units of the features) and counts of all cells, shape (C, K, d + 1)."""
    record = dp.Record(x=dp.Ball(x.shape[1], radius=radius), y=dp.Choice(range(len(centers))))
    batch, step = record.validate({"x": x, "y": y}), noisy_kmeans.grid_step(radius)
    sums, counts = Grouping(record, "x", "y").statistics(batch, step, np.rint(centers / step))
    return np.concatenate([sums * step, counts[..., None]], axis=-1)


def inside(size: int, features: int, radius: float, rng: np.random.Generator) -> Array:
    return dp.Ball(features, radius=radius).sample(size, rng)


@pytest.mark.parametrize("ratio", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("features", [1, 3])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_no_neighbours_move_the_statistics_further_and_some_move_them_as_far(
    adjacency: str, features: int, ratio: float
) -> None:
    rng = np.random.default_rng(features)
    radius, worst = 1.7, (0.0, 0.0)
    weight = ratio * radius
    bound = euclidean_sensitivity(adjacency, radius, weight), block_sensitivity(adjacency, radius, weight)
    pole = radius * np.eye(features)[0]
    extreme = [(pole, 0), (-pole, 0), (pole, 1), (-pole, 1)]  # turned around, moved to another class, or both
    for trial in range(40):
        centers = inside(6, features, radius, rng).reshape(2, 3, features)
        if trial % 2:  # both poles share a centre
            centers[:, 0], centers[:, 1:] = 0.0, 0.9 * radius * np.eye(features)[-1] if features > 1 else 0.0
        x, y = inside(8, features, radius, rng), rng.integers(0, 2, 8)
        drawn = [(v, int(c)) for v, c in zip(inside(3, features, radius, rng), rng.integers(0, 2, 3), strict=True)]
        found = [
            cells(np.vstack([x, value]), np.append(y, group), centers, radius) for value, group in [*extreme, *drawn]
        ]
        if adjacency == "add-remove":
            pairs = [(one, cells(x, y, centers, radius)) for one in found]
        else:
            pairs = list(itertools.combinations(found, 2))
        for first, second in pairs:
            worst = tuple(map(max, worst, moved(first, second, weight)))  # type: ignore[assignment]
    assert worst[0] <= bound[0] * (1 + 1e-12)
    assert worst[1] <= bound[1] * (1 + 1e-12)
    assert worst[0] >= 0.999 * bound[0]
    assert worst[1] >= 0.999 * bound[1]


# Calibration


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(("epsilon", "delta", "rounds"), [(0.1, 1e-6, 5), (1.0, 1e-9, 10), (8.0, 1e-2, 20)])
def test_gaussian_noise_spends_the_promise_exactly(epsilon: float, delta: float, rounds: int, adjacency: str) -> None:
    def profile(shift: float) -> float:
        upper = stats.norm.cdf(shift / 2 - epsilon / shift)
        return float(upper - math.exp(epsilon) * stats.norm.cdf(-shift / 2 - epsilon / shift))

    noise = NoisyKMeans(rounds=rounds).calibrate(dp.Privacy(epsilon, delta, adjacency), **SHAPE)
    assert noise.noise == GAUSSIAN
    assert noise.sensitivity == euclidean_sensitivity(adjacency, 1.5, noise.weight)
    assert noise.composed == pytest.approx(math.sqrt(rounds) * noise.sensitivity)
    shift = noise.composed / noise.scale
    assert profile(shift) <= delta * (1 + 1e-9)
    assert profile(shift * (1 + 1e-6)) > delta


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_gamma_noise_spends_the_promise_exactly(adjacency: str) -> None:
    noise = NoisyKMeans(rounds=7).calibrate(dp.Privacy(0.3, 0.0, adjacency), **SHAPE)
    assert noise.noise == GAMMA
    assert noise.sensitivity == block_sensitivity(adjacency, 1.5, noise.weight)
    assert 0.3 * (1 - 1e-9) <= noise.composed / noise.scale <= 0.3


# The law of the noise, and of whole runs


class Listener:
    """Statistics of one data set, and of a neighbour for the same centres."""

    def __init__(self, own: Statistics, other: Statistics) -> None:
        self.own, self.other = own, other
        self.differences: list[Array] = []

    def __call__(self, centers: Array) -> tuple[Array, Array]:
        sums, counts = self.own(centers)
        sums_too, counts_too = self.other(centers)
        difference = np.concatenate([sums - sums_too, (counts - counts_too)[..., None]], axis=-1)
        self.differences.append(difference)
        return sums, counts


def neighbours(adjacency: str, step: float) -> tuple[Statistics, Statistics]:
    """Return data on the line that differ in one extreme record."""
    record = dp.Record(x=dp.Ball(1), y=dp.Choice([0, 1]))
    x, y = np.array([[0.3], [-0.4], [0.0], [1.0]]), np.array([0, 0, 1, 0])
    changed = x.copy()
    changed[-1] = -1.0
    data = {"x": x, "y": y}
    near = {"x": x[:-1], "y": y[:-1]} if adjacency == "add-remove" else {"x": changed, "y": y}
    first, second = (partial(Grouping(record, "x", "y").statistics, record.validate(d), step) for d in (data, near))
    return first, second


def losses(privacy: dp.Privacy, runs: int, monkeypatch: pytest.MonkeyPatch) -> Array:
    """Return the exact privacy loss of each of many whole runs on the line, from the noise that was drawn in them."""
    method = NoisyKMeans(rounds=3)
    noise = method.calibrate(privacy, classes=2, components=2, features=1, radius=1.0)
    heard: list[Array] = []

    def recorded(*arguments: Any) -> Array:
        heard.append(draw(*arguments))
        return heard[-1]

    monkeypatch.setattr(noisy_kmeans, "draw", recorded)
    unit = np.array([noise.step, noise.weight])
    rng, found = seeded_generator(11), []
    data, near = neighbours(privacy.adjacency, noise.step)
    for _ in range(runs):
        listener = Listener(data, near)
        heard.clear()
        method.run(noise, listener, rng)
        total = 0.0
        for b, difference in zip(heard, listener.differences, strict=True):
            shift = difference * unit
            if noise.noise == GAUSSIAN:
                total += float(np.sum((b + shift) ** 2 - b**2)) / (2 * noise.scale**2)
            else:
                norms = np.linalg.norm(b + shift, axis=-1) - np.linalg.norm(b, axis=-1)
                total += float(norms.sum()) / noise.scale
        assert len(heard) == 3
        found.append(total)
    return np.array(found)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_whole_runs_have_the_promised_profile(adjacency: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The loss of all rounds is that of one Gaussian; with a delta of a tenth, its mean excess can be measured.
    loss = losses(dp.Privacy(1.0, 0.1, adjacency), 700, monkeypatch)
    excess = np.maximum(0.0, -np.expm1(1.0 - loss))
    spread = float(np.std(excess)) / math.sqrt(len(excess))
    assert spread < 0.012
    assert abs(float(excess.mean()) - 0.1) < 3 * spread  # seeded, so this cannot flake


def test_only_noisy_numbers_are_used_after_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two data sets whose noisy statistics agree must give the same centres.
    method = NoisyKMeans(rounds=3)
    noise = method.calibrate(dp.Privacy(1.0, 1e-6), classes=2, components=2, features=1, radius=1.0)
    target = np.array([300.0, 900.0])

    def run(sums: float, counts: float) -> Array:
        def fill(_: Any, shape: tuple[int, ...], __: Any) -> Array:
            return np.broadcast_to((target - [sums, counts]) * [noise.step, noise.weight], (*shape, 2)).copy()

        monkeypatch.setattr(noisy_kmeans, "draw", fill)
        return method.run(noise, lambda c: (np.full(c.shape, sums), np.full(c.shape[:2], counts)), seeded_generator(0))

    np.testing.assert_array_equal(run(5.0, 2.0), run(-7.0, 30.0))


# Refusals


def test_noise_beyond_all_sums_is_refused() -> None:
    with pytest.raises(dp.NotPrivate, match="larger share"):
        NoisyKMeans().calibrate(dp.Privacy(1e-8), **SHAPE)
