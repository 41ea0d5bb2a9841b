"""Whole releases of adaptive steps: what neighbours lose at the answers of real fits, and the exact law of counts."""

import math

import cvxpy as cp
import numpy as np
import pytest
from learners_of_tests import Told
from scipy.signal import fftconvolve

import dpconvex as dp
from dpconvex.fitting import adaptive
from dpconvex.mechanisms.noisy_queries import deviation
from dpconvex.noise.profiles import GRID_VARIANCE, gaussian_delta


def whole_releases(monkeypatch, privacy, seed, n, kind):
    """Release two neighbouring data sets on a line, the second with the answers of the first; return what each was asked."""
    rng, most, replaced = np.random.default_rng(seed), privacy.most, privacy.adjacency == "replace-one"
    x = rng.uniform(-1, 1, (n, 1))
    y, own = np.where(x[:, 0] > 0, 1, -1), rng.choice([-1.0, 1.0])
    asked, found, learner = [], [], dp.load("logistic_regression", features=1, regularization=0.1)
    if kind == "numbers":  # Targets at one end of their bounds, so that the constant is sought
        w, b = cp.Variable(1, name="w"), cp.Variable(name="b")
        record = dp.Record(x=dp.Ball(1), y=dp.Box(-1, 1))
        y, learner = 0.01 * x[:, 0] - 0.97, dp.Template(record, lambda x, y: cp.square(x @ w + b - y))
    first = np.r_[x, np.full((most, 1), own)], np.r_[y, np.full(most, -1)]
    other = (
        (np.r_[x, np.full((most, 1), rng.choice([own, 0.0, -own]))], np.r_[y, np.full(most, 1)]) if replaced else (x, y)
    )

    def queries(level, generator):
        asked.append(Told(level, generator))
        asked[-1].answers = asked[0].seen
        return asked[-1]

    monkeypatch.setattr(adaptive, "Queries", queries)
    for rows, labels in (first, other):
        whose = {} if privacy.unit is None else {"unit": np.minimum(np.arange(len(rows)), n)}
        size = None if replaced else n
        released = dp.solve(
            learner, {"x": rows, "y": labels}, privacy, dp.AdaptiveSteps(rounds=4), size=size, seed=seed, **whose
        )
        found.append(released["w"])
    assert (found[0] == found[1]).all()  # it is a function of the answers
    assert [scale for scale, *_ in asked[0].seen] == [scale for scale, *_ in asked[1].seen]
    return asked


MANY = {"unit": "patient", "most": 3}


@pytest.mark.parametrize("adjacency", ["add-remove", pytest.param("replace-one", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("n", "kind", "people"),
    [
        pytest.param(12, "classes", {}, id="records of classes"),
        pytest.param(1000, "numbers", MANY, id="numbers of people"),
        pytest.param(12, "classes", MANY, id="classes of people", marks=pytest.mark.slow),
        pytest.param(1000, "numbers", {}, id="records of numbers", marks=pytest.mark.slow),
    ],
)
def test_whole_releases_of_adaptive_steps_lose_no_more_than_is_claimed(n, kind, people, adjacency, monkeypatch):
    """By theorem 8.9's proof the loss is that of squares of shifts, at the answers of real releases; and by the masses' ratio."""
    privacy, lost, largest = dp.Privacy(1.0, 1e-2, adjacency, **people), [], 0.0
    for seed in range(20):
        asked = whole_releases(monkeypatch, privacy, seed, n, kind)
        loss = square = 0.0
        for (scale, one, told), (_, two, _) in zip(asked[0].seen, asked[1].seen, strict=True):
            moved, noise = (one - two).astype(float), (told - one).astype(float)
            square += float(moved @ moved) / (scale**2 - GRID_VARIANCE)
            loss += float(((noise + moved) ** 2 - noise**2).sum()) / (2 * scale**2)
        assert square <= asked[0].most ** 2
        largest, lost = max(largest, square / asked[0].most ** 2), [*lost, loss]
    assert largest > 0.3
    assert np.mean(np.maximum(1 - np.exp(privacy.epsilon - np.array(lost)), 0.0)) <= 0.1


@pytest.mark.parametrize(("level", "counts"), [(0.3, 4), (1.0, 6), (3.0, 3)])
def test_counts_with_integer_noise_have_the_law_that_their_level_says(level, counts):
    """Losses of integer noise, exactly, convolved for all queries of one level, beside the Gaussian mechanism's."""
    each, grid = level / math.sqrt(counts), 2.0**-12
    scale = deviation(1.0, each)
    k = np.arange(-int(40 * scale), int(40 * scale) + 1)
    mass = np.exp(-(k**2) / (2 * scale**2))
    mass /= mass.sum()
    # Of k against k - 1, rounded down, so that no loss is made up.
    losses = np.floor((1 - 2 * k) / (2 * scale**2) / grid).astype(int)
    whole = law = np.bincount(losses - losses.min(), mass)
    for _ in range(counts - 1):
        whole = fftconvolve(whole, law)
    place = (np.arange(len(whole)) + counts * losses.min()) * grid
    for epsilon in (0.0, 0.5 * level, level, 2 * level):
        found = float(whole @ np.maximum(1 - np.exp(epsilon - place), 0.0))
        assert found <= float(gaussian_delta(epsilon, level)) + 1e-9
        assert found >= 0.95 * float(gaussian_delta(epsilon, math.sqrt(counts) / scale)) - 1e-4


def test_parameters_that_no_score_reads_do_not_make_a_fit_fail():
    weights, unread = cp.Variable((4, 3), name="W"), cp.Variable(4, name="m")
    record = dp.Record(x=dp.Ball(4, 2.0), y=dp.Choice([0, 1, 2]))
    template = dp.Template(
        record, lambda x, y: cp.log_sum_exp(x @ weights + unread[:3]) - (x @ weights + unread[:3])[y]
    )
    data = {"x": np.random.default_rng(0).uniform(-1, 1, (500, 4)), "y": np.arange(500) % 3}
    release = dp.solve(template, data, dp.Privacy(1.0, 1e-6, "add-remove"), dp.AdaptiveSteps(), size=500, seed=1)
    assert all(np.isfinite(value).all() for value in release.values())
