"""Choices whose laws are enumerated: they cost their epsilon and no more, and a tenth too much would be seen."""

import math
from itertools import permutations, product

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.mechanisms.private_selection import rate, select
from dpconvex.noise.samplers import seeded_generator

ADJACENCIES = ("replace-one", "add-remove")
# Numbers of runs that are counted, at most; those beyond have this mass at most, and are taken to add nothing.
TAIL, MOST_RUNS = 1e-13, 200_000


def choice_law(counts, factor):
    """Return the exact probabilities that each candidate is chosen, averaged over all orders."""
    chances = np.exp(-factor * (counts - counts.min()))
    orders = np.array(list(permutations(range(len(counts)))))
    rejected = np.insert(1 - chances[orders], 0, 1.0, axis=1)  # those before a candidate are
    weights = chances[orders] * np.cumprod(rejected, axis=1)[:, :-1]
    return np.bincount(orders.ravel(), weights=weights.ravel()) / len(orders)


def worst_choice(factor, adjacency):
    moves = [np.array(move) for move in product((-1.0, 0.0, 1.0), repeat=3)]
    if adjacency == "add-remove":
        moves = [move for move in moves if (move >= 0).all() or (move <= 0).all()]
    gaps = np.unique(np.rint(np.append(0, np.geomspace(1, 12 / min(factor, 1.0) + 1, 8))))
    worst = 0.0
    for gap in product(gaps, repeat=2):
        counts = np.array([*gap, 0.0]) + 1
        law = np.log(np.maximum(choice_law(counts, factor), 1e-300))
        worst = max(worst, *((law - np.log(choice_law(counts + move, factor) + 1e-300)).max() for move in moves))
    return worst


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_a_choice_costs_its_epsilon_and_no_more(adjacency):
    rng = seeded_generator(5)
    drawn = np.bincount([select([3, 1, 2], 1.5, adjacency, rng) for _ in range(20_000)], minlength=3) / 20_000
    assert np.abs(drawn - choice_law(np.array([3.0, 1, 2]), rate(1.5, adjacency))).max() < 0.02
    for epsilon in (0.1, 1.0, 4.0):
        assert 0.95 * epsilon < worst_choice(rate(epsilon, adjacency), adjacency) <= epsilon * (1 + 1e-9)
        assert worst_choice(1.1 * rate(epsilon, adjacency), adjacency) > epsilon


def worst_best_run(repetitions, each):
    """Return the loss of privacy of the best of several runs, with the worst mechanism of a pure guarantee that one may be.

    With f the generating function of the number of runs, a result with probability w, better than all but a share a, is the
    best with probability ``f(a + w) - f(a)``: for small w, ``w f'(a)``.
    """
    count = min(max(repetitions.quantile(1 - TAIL), 2), MOST_RUNS)
    rest, eta, length = 1 - repetitions.gamma, repetitions.shape, -math.log(repetitions.gamma)
    first = rest * eta / math.expm1(eta * length) if eta else rest / length
    probabilities = first * np.cumprod([1.0, *(rest * (k + eta) / (k + 1) for k in range(1, count))])
    number, weight = np.arange(float(count)), probabilities * np.arange(1.0, count + 1)
    share = np.concatenate([np.geomspace(1e-12, 0.5, 1500), 1 - np.geomspace(1e-12, 0.5, 1500)])
    # What does not beat the result has the mass `share` with one data set, and as little as epsilon allows with the other.
    least = np.maximum(np.exp(-each) * share, 1 - np.exp(each) * (1 - share))
    most = np.minimum(np.exp(each) * share, 1 - np.exp(-each) * (1 - share))
    up, down, here = (np.log([weight @ np.power(a, number) for a in shares]) for shares in (most, least, share))
    return each + float(max((here - down).max(), (up - here).max()))


@pytest.mark.parametrize("shape", [-0.5, 0.0, 3.0])
@pytest.mark.parametrize("mean", [1.5, pytest.param(10.0, marks=pytest.mark.slow)])
def test_the_best_of_several_runs_costs_what_the_theorem_says(mean, shape):
    repetitions = dp.Repetitions(mean, shape)
    each = repetitions.each(dp.Privacy(1.0)).epsilon
    assert 0.99 < worst_best_run(repetitions, each) <= 1 + 1e-7
    assert worst_best_run(repetitions, 1.1 * each) > 1.05
