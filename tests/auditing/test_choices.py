"""Choices whose laws are enumerated."""

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.auditing.choices import attack_clustering, attack_repetitions, attack_selection, choice_law
from dpconvex.mechanisms.private_selection import rate, select
from dpconvex.noise.samplers import seeded_generator

ADJACENCIES = ("replace-one", "add-remove")


@pytest.mark.parametrize("how", ["permute-and-flip", "exponential"])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_law_of_a_choice_is_that_of_the_program(how: str, adjacency: str) -> None:
    counts, rng = [3, 1, 2], seeded_generator(5)
    drawn = np.bincount([select(counts, 1.5, adjacency, rng, how) for _ in range(20_000)], minlength=3) / 20_000
    law = choice_law(np.array(counts, dtype=float), rate(1.5, adjacency), how)
    assert law.sum() == pytest.approx(1.0)
    assert np.abs(drawn - law).max() < 0.02


@pytest.mark.parametrize("candidates", [2, 5])
@pytest.mark.parametrize("how", ["permute-and-flip", "exponential"])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_a_choice_costs_its_epsilon_and_no_more(how: str, adjacency: str, candidates: int) -> None:
    for epsilon in (0.1, 1.0, 4.0):
        found = attack_selection(candidates, dp.Privacy(epsilon, adjacency=adjacency), how)
        assert found.holds
        assert found.ratio > 0.95


@pytest.mark.parametrize("shape", [-0.5, 0.0, 3.0])
@pytest.mark.parametrize("mean", [1.5, pytest.param(10.0, marks=pytest.mark.slow)])
def test_the_best_of_several_runs_costs_what_the_theorem_says(mean: float, shape: float) -> None:
    repetitions = dp.Repetitions(mean, shape)
    found = attack_repetitions(repetitions, dp.Privacy(1.0))
    assert found.holds
    assert found.ratio > 0.99


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_a_clustering_costs_its_share(adjacency: str, delta: float) -> None:
    privacy = dp.Privacy(2.0, delta, adjacency=adjacency)
    noise = dp.NoisyKMeans().calibrate(privacy, classes=2, components=2, features=3, radius=1.0)
    found = attack_clustering(noise, adjacency)
    assert found.holds
    assert found.ratio > 0.98
