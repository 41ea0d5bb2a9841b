"""Noisy k-means: its sensitivity is attacked, its noise keeps the guarantee, and only noisy numbers are used."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

import dpconvex as dp
from dpconvex.mechanisms import noisy_kmeans
from dpconvex.mechanisms.noisy_kmeans import NoisyKMeans, sensitivity
from dpconvex.noise.samplers import seeded_generator
from dpconvex.selection import clustering

ADJACENCIES = ("replace-one", "add-remove")
ALARM = 1e-6
SHAPE = {"classes": 2, "components": 3, "features": 4, "radius": 1.5}


# Sensitivity: neighbours are formed from records, and their statistics are those of the code that is run.


def cells(x, y, centers, radius):
    """Return sums (in units of the features) and counts of all cells, shape (C, K, d + 1)."""
    record = dp.Record(x=dp.Ball(x.shape[1], radius=radius), y=dp.Choice(range(len(centers))))
    batch, step = record.validate({"x": x, "y": y}), noisy_kmeans.grid_step(radius)
    found = clustering.cells(batch, (clustering.Grouping(record, "x", "y"), step), np.rint(centers / step))
    found[..., :-1] *= step
    return found


@pytest.mark.parametrize("ratio", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("features", [1, 3])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_no_neighbours_move_the_statistics_further_and_some_move_them_as_far(adjacency, features, ratio):
    rng, radius, worst = np.random.default_rng(features), 1.7, np.zeros(2)
    weight = ratio * radius
    bound = sensitivity("gaussian", adjacency, radius, weight), sensitivity("gamma", adjacency, radius, weight)
    inside, pole = dp.Ball(features, radius=radius).sample, radius * np.eye(features)[0]
    extreme = [(pole, 0), (-pole, 0), (pole, 1), (-pole, 1)]  # turned around, moved to another class, or both
    for trial in range(40):
        centers = inside(6, rng).reshape(2, 3, features)
        if trial % 2:  # both poles share a centre
            centers[:, 0], centers[:, 1:] = 0.0, 0.9 * radius * np.eye(features)[-1] if features > 1 else 0.0
        x, y = inside(8, rng), rng.integers(0, 2, 8)
        drawn = [(v, int(c)) for v, c in zip(inside(3, rng), rng.integers(0, 2, 3), strict=True)]
        found = [cells(np.vstack([x, v]), np.append(y, group), centers, radius) for v, group in [*extreme, *drawn]]
        others = [cells(x, y, centers, radius)]
        pairs = itertools.product(found, others) if adjacency == "add-remove" else itertools.combinations(found, 2)
        for first, second in pairs:
            lengths = np.linalg.norm((first - second) * [*np.ones(features), weight], axis=-1)
            worst = np.maximum(worst, [np.linalg.norm(lengths), lengths.sum()])  # Euclidean, and summed over cells
    assert (worst <= np.array(bound) * (1 + 1e-12)).all()
    assert (worst >= 0.999 * np.array(bound)).all()


# Calibration


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(("epsilon", "delta", "rounds"), [(0.1, 1e-6, 5), (1.0, 1e-9, 10), (8.0, 1e-2, 20)])
def test_gaussian_noise_spends_the_promise_exactly(epsilon, delta, rounds, adjacency):
    def profile(shift):
        upper = stats.norm.cdf(shift / 2 - epsilon / shift)
        return float(upper - math.exp(epsilon) * stats.norm.cdf(-shift / 2 - epsilon / shift))

    noise = NoisyKMeans(rounds=rounds).calibrate(dp.Privacy(epsilon, delta, adjacency), **SHAPE)
    assert noise.noise == "gaussian"
    assert noise.sensitivity == sensitivity("gaussian", adjacency, 1.5, noise.weight)
    assert noise.composed == pytest.approx(math.sqrt(rounds) * noise.sensitivity)
    shift = noise.composed / noise.scale
    assert profile(shift) <= delta * (1 + 1e-9)
    assert profile(shift * (1 + 1e-6)) > delta


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_gamma_noise_spends_the_promise_exactly(adjacency):
    noise = NoisyKMeans(rounds=7).calibrate(dp.Privacy(0.3, 0.0, adjacency), **SHAPE)
    assert noise.noise == "gamma"
    assert noise.sensitivity == sensitivity("gamma", adjacency, 1.5, noise.weight)
    assert 0.3 * (1 - 1e-9) <= noise.composed / noise.scale <= 0.3


def test_only_noisy_numbers_are_used_after_the_noise(monkeypatch):
    # Two data sets whose noisy statistics agree must give the same centres.
    method = NoisyKMeans(rounds=3)
    noise = method.calibrate(dp.Privacy(1.0, 1e-6), classes=2, components=2, features=1, radius=1.0)
    target, drawn = np.array([300.0, 900.0]), []

    def run(sums, counts):
        def fill(_, shape, __):
            drawn.append(shape)
            return np.broadcast_to((target - [sums, counts]) * [noise.step, noise.weight], (*shape, 2)).copy()

        monkeypatch.setattr(noisy_kmeans, "draw", fill)
        return method.run(noise, lambda c: (np.full(c.shape, sums), np.full(c.shape[:2], counts)), seeded_generator(0))

    np.testing.assert_array_equal(run(5.0, 2.0), run(-7.0, 30.0))
    assert drawn == [(2, 1), (2, 2), (2, 2)] * 2  # as many rounds as are paid for


def test_noise_beyond_all_sums_is_refused():
    with pytest.raises(dp.NotPrivate, match="larger share"):
        NoisyKMeans().calibrate(dp.Privacy(1e-8), **SHAPE)
