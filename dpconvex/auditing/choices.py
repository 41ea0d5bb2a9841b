"""Attacks on choices and counts, whose laws can be enumerated: selection, the best of several runs, and clustering."""

import math
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from dpconvex.auditing.parts import gaussian_attack
from dpconvex.auditing.report import Attack
from dpconvex.language.privacy import Privacy
from dpconvex.mechanisms import private_selection as selection
from dpconvex.mechanisms.noisy_kmeans import ClusteringNoise
from dpconvex.mechanisms.private_selection import Repetitions

Array = NDArray[np.float64]

# Candidates of a choice that is enumerated, at most.
CANDIDATES = 3
# The largest gap between two counts of mistakes, in units of the inverse rate: what is left is e to the minus this.
GAP = 12.0
# Numbers of runs that are counted; those beyond have this mass at most, and are taken to add nothing.
TAIL, MOST_RUNS = 1e-13, 200_000


def choice_law(counts: Array, rate: float, how: str) -> Array:
    """Return the exact probabilities that each candidate is chosen, shape (candidates,).

    Permute-and-flip is averaged over all orders: a candidate is chosen if those before it are all rejected.
    """
    chances = np.exp(-rate * (counts - counts.min()))
    if how == "exponential":
        return np.asarray(chances / chances.sum())
    orders = np.array(list(permutations(range(len(counts)))))
    accepted = chances[orders] * np.cumprod(np.insert(1 - chances[orders], 0, 1.0, axis=1), axis=1)[:, :-1]
    return np.bincount(orders.ravel(), weights=accepted.ravel()) / len(orders)


def attack_selection(candidates: int, privacy: Privacy, how: str) -> Attack:
    """Attack a private choice by enumeration: all ways in which one record moves the counts of mistakes."""
    rate, m = selection.rate(privacy.epsilon, privacy.adjacency), min(candidates, CANDIDATES)
    gaps = np.unique(np.rint(np.append(0, np.geomspace(1, GAP / min(rate, 1.0) + 1, 8))))
    moves = [np.array(move) for move in product((-1.0, 0.0, 1.0), repeat=m)]
    if privacy.adjacency == "add-remove":
        moves = [move for move in moves if (move >= 0).all() or (move <= 0).all()]
    worst, place = 0.0, (np.zeros(m), np.zeros(m))
    for gap in product(gaps, repeat=m - 1):
        counts = np.array([*gap, 0.0]) + 1
        law = choice_law(counts, rate, how)
        for move in moves:
            other = choice_law(counts + move, rate, how)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = float(np.nanmax(np.where(law > 1e-300, np.log(law) - np.log(other), -np.inf)))
            if ratio > worst:
                worst, place = ratio, (counts, counts + move)
    first, second = (counts.astype(int).tolist() for counts in place)
    note = f"The counts of mistakes are {first} with the one data set and {second} with the other."
    return Attack("choice", privacy.epsilon, 0.0, worst * (1 - 1e-12), 0.0, f"enumeration of {how}", notes=(note,))


def attack_repetitions(repetitions: Repetitions, privacy: Privacy) -> Attack:
    """Attack the best of a random number of runs, with the worst mechanism of a pure promise that a single run may be.

    With f the generating function of the number of runs, a result with probability w, better than all but a share a, is the
    best with probability ``f(a + w) - f(a)``: for small w, ``w f'(a)``.
    """
    each = repetitions.each(privacy)
    count = min(max(repetitions.quantile(1 - TAIL), 2), MOST_RUNS)
    number, weight = np.arange(float(count)), repetitions.probabilities(count) * np.arange(1.0, count + 1)
    share = np.concatenate([np.geomspace(1e-12, 0.5, 1500), 1 - np.geomspace(1e-12, 0.5, 1500)])
    # What does not beat the result has the mass `share` with one data set, and as little as epsilon allows with the other.
    least = np.maximum(np.exp(-each.epsilon) * share, 1 - np.exp(each.epsilon) * (1 - share))
    most = np.minimum(np.exp(each.epsilon) * share, 1 - np.exp(-each.epsilon) * (1 - share))
    up, down, here = (np.log([weight @ np.power(a, number) for a in shares]) for shares in (most, least, share))
    found = each.epsilon + float(max((here - down).max(), (up - here).max()))
    note = f"Each run may cost epsilon = {each.epsilon:.6g}; the number of runs has the mean {repetitions.mean:g}."
    how = "the worst run with that epsilon, and the law of the number of runs"
    return Attack("best of all runs", privacy.epsilon, 0.0, found * (1 - 1e-9), 0.0, how, notes=(note,))


def attack_clustering(noise: ClusteringNoise, adjacency: str) -> Attack:
    """Attack the counts and sums of a clustering: one record that moves within its cell, or to another one, in every round."""
    record = np.array([noise.radius, noise.weight])
    cells = [[record]] if adjacency == "add-remove" else [[np.array([2 * noise.radius, 0.0])], [record, -record]]
    if noise.noise == "gaussian":
        worst = max(float(np.linalg.norm(np.concatenate(change))) for change in cells)
        shift = math.sqrt(noise.rounds) * worst / noise.scale
        return gaussian_attack("clustering", noise.epsilon, noise.delta, shift, "Gaussian profile of all rounds")
    found = noise.rounds * max(sum(float(np.linalg.norm(part)) for part in change) for change in cells) / noise.scale
    return Attack("clustering", noise.epsilon, 0.0, found, 0.0, "composition of the rounds' privacy losses")
