"""Noisy choices of vertices: exact laws of choices, what attacks find, and what is learnt on the hull of those chosen."""

import itertools
import math
from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from learners_of_tests import lost_at_answers
from scipy.special import expit, ndtri

import dpconvex as dp
from dpconvex.data.batch import Batch
from dpconvex.mechanisms import noisy_queries
from dpconvex.mechanisms.noisy_queries import QueryNoise, choice_weights
from dpconvex.noise.choices import choice_width, choices_level
from dpconvex.noise.gaussian import gaussian_delta
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sums.linear_scores import linear_scores
from dpconvex.sums.private_queries import VertexQueries

ADJACENCIES = ("add-remove", "replace-one")
MANY = {"unit": "patient", "most": 2}
EPSILONS = (0.0, 0.1, 0.3, 0.7, 1.5, 3.0)


def logistic(features, bound=10.0, constant=True, norm="inf"):
    w, b = cp.Variable(features, name="w"), cp.Variable(name="b") if constant else 0.0
    record = dp.Record(x=dp.Ball(features, norm=norm), y=dp.Choice([-1, 1]))
    says = {"decision": lambda found, x: x @ found["w"] + found.get("b", 0.0)}
    return dp.Template(record, lambda x, y: cp.logistic(-y * (x @ w + b)), constraints=[cp.norm1(w) <= bound], **says)


# What so many choices cost: proposition 8.10.
def largest_delta(width, count, epsilon, strategy):
    """Return the exact delta of choices of two outcomes with losses t and t - width, t by a strategy of earlier outcomes."""
    total = 0.0
    for path in itertools.product((0, 1), repeat=count):
        p = q = 1.0
        for k in range(count):
            t = strategy(path[:k]) * width
            share = math.expm1(width - t) / (math.exp(-t) * math.expm1(width))
            loss = t - width * path[k]
            p *= 1 - share if path[k] else share
            q *= (1 - share if path[k] else share) * math.exp(-loss)
        total += max(p - math.exp(epsilon) * q, 0.0)
    return total


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("width", "count"), [(0.05, 1), (0.3, 2), (1.0, 3), (3.0, 5), (0.2, 8)])
def test_adaptive_choices_lose_no_more_than_their_level_says(width, count):
    level, nearest, rng = choices_level(width, count), 0.0, np.random.default_rng(count)
    for k in range(60):
        table = rng.uniform(0, 1, 2**count) if k else np.full(2**count, 0.5)
        number = lambda path: int("1" + "".join(map(str, path)), 2) % 2**count  # noqa: E731

        def strategy(path, table=table, k=k, number=number):
            return round(table[number(path)]) * 0.98 + 0.01 if k % 3 == 2 else table[number(path)]

        for epsilon in level * np.array(EPSILONS):
            found, allowed = largest_delta(width, count, epsilon, strategy), float(gaussian_delta(epsilon, level))
            assert found <= allowed + 1e-12
            nearest = max(nearest, found / max(allowed, 1e-9))
    assert nearest > 0.8


def test_the_level_of_choices_is_nearly_the_least_that_any_bound_has():
    for width in (1e-4, 0.1, 1.0):
        assert choices_level(width, 1) == pytest.approx(2 * ndtri(expit(width / 2)), rel=1e-4)
    levels = [choices_level(0.1, count) / math.sqrt(count) for count in (1, 2, 4, 8, 16)]
    assert sorted(levels, reverse=True) == levels
    assert 0.05 < levels[-1] < 0.0517
    for level, count in itertools.product((1e-9, 1e-3, 0.1, 1.0, 8.0), (1, 3, 16)):
        width = choice_width(level, count)
        assert choices_level(width, count) <= level
        assert width >= 0.99 * level / (0.62666 * math.sqrt(count)) or width == 8.0


class Scripted(QueryNoise):
    """Queries that choose as they are told, and multiply the probabilities."""

    probability = Fraction(1)

    def picked(self, levels, rate):
        weights, place = choice_weights(levels, rate), self.script.pop(0)
        self.probability *= Fraction(weights[place], sum(weights))
        return place


def law(form, batch, privacy, count, vertices, level=0.8):
    scores, found = linear_scores(form), []
    for script in itertools.product(*(range(count - k) for k in range(vertices))):
        noise = Scripted(1.0, None)
        noise.script = list(script)
        queries = VertexQueries(scores, batch, privacy, noise)
        queries.choose(np.full(scores.shape, 0.3), 0.4, np.ones((2, count, 1)), level, vertices)
        found.append(noise.probability)
    assert sum(found) == 1
    return np.array(found, dtype=float)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("people", [{}, MANY], ids=["records", "people"])
@pytest.mark.parametrize(("features", "vertices"), [(2, 1), (3, 2), pytest.param(4, 3, marks=pytest.mark.slow)])
def test_exact_laws_of_choices_keep_their_level(features, vertices, people, adjacency):
    """All sequences of choices, with exact probabilities, of two data sets that differ in one person; the sharpest is near."""
    privacy, form, nearest = dp.Privacy(1.0, 1e-2, adjacency, **people), LossForm(logistic(features)), 0.0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        x, y = rng.choice([-1.0, 1.0], (30, features)), rng.integers(0, 2, 30)
        own = rng.choice([-1.0, 1.0], (1, features))
        sides = [np.repeat(rows, privacy.most, axis=0) for rows in (own, -own)]
        data = [Batch({"x": np.r_[x, rows]}, np.r_[y, np.ones(privacy.most, int)]) for rows in sides]
        data[1] = Batch({"x": x}, y) if adjacency == "add-remove" else data[1]
        one, two = (law(form, batch, privacy, features, vertices) for batch in data)
        for p, q in ((one, two), (two, one)):
            for epsilon in EPSILONS:
                found = np.maximum(p - math.exp(epsilon) * q, 0.0).sum()
                allowed = float(gaussian_delta(epsilon, 0.8))
                assert found <= allowed
                nearest = max(nearest, found / allowed)
    assert nearest > (0.75 if vertices == 1 else 0.4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_whole_releases_lose_no_more_than_is_claimed(adjacency, monkeypatch):
    """What two neighbours lose at the answers and choices of real fits: they are functions of these, and of nothing else."""
    privacy, lost = dp.Privacy(1.0, 1e-2, adjacency), []
    for seed in range(8):
        rng, size = np.random.default_rng(seed), 10 if adjacency == "add-remove" else None
        x, y, own = rng.uniform(-1, 1, (10, 3)), rng.choice([-1, 1], 10), rng.choice([-1.0, 1.0], (1, 3))
        other = (np.r_[x, -own], np.r_[y, 1]) if adjacency == "replace-one" else (x, y)

        def fit(data, seed=seed, size=size):
            mechanism = dp.NoisyFrankWolfe(rounds=3, vertices=1 + seed % 3)
            return dp.solve(logistic(3), dict(zip("xy", data, strict=True)), privacy, mechanism, size=size, seed=seed)

        lost.append(lost_at_answers(monkeypatch, fit, (np.r_[x, own], np.r_[y, 1]), other)[0])
    assert np.mean(np.maximum(1 - np.exp(privacy.epsilon - np.array(lost)), 0.0)) <= 0.1


# Attacks find what is planted.
def quieter(levels, rate):
    return choice_weights(levels, rate / 0.7)


def planted(error, monkeypatch):
    if error == "noise times 0.7":
        monkeypatch.setattr("dpconvex.auditing.queries.choice_weights", quieter)
        monkeypatch.setattr(noisy_queries, "choice_weights", quieter)
    elif error == "a record twice":
        sums = VertexQueries._sums
        twice = lambda self, *at, **of: sums(self, *at, **of) + sums(self, *at, **of)  # noqa: E731
        monkeypatch.setattr(VertexQueries, "_sums", twice)
    else:
        choose = QueryNoise.choose

        def unpaid(self, *arguments):
            before = self.spent
            found = choose(self, *arguments)
            self.spent = before
            return found

        monkeypatch.setattr(QueryNoise, "choose", unpaid)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("error", ["none", "noise times 0.7", "a record twice", "scores unpaid"])
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_an_audit_finds_errors_that_are_planted_in_choices(error, adjacency, monkeypatch):
    if error != "none":
        planted(error, monkeypatch)
    monkeypatch.setattr("dpconvex.auditing.queries.PARTS", ())  # which are those of AdaptiveSteps
    monkeypatch.setattr("dpconvex.auditing.queries.MATRICES", 2)
    privacy = dp.Privacy(1.0, 1e-5, adjacency)
    found = dp.audit(logistic(30), privacy, dp.NoisyFrankWolfe(), size=100, seed=0)["choices of vertices"]
    assert (found.ratio <= 1) == (error == "none")
    assert found.ratio > 0.95


# What is learnt, and where.
@pytest.mark.parametrize("size", [10.0, 0.1])
def test_one_feature_far_from_others_does_not_make_a_paid_fit_fail(size):
    w, random = cp.Variable(40, name="w"), np.random.default_rng(0)
    sizes = np.where(np.arange(40) == 3, size, 1.0)
    record = dp.Record(x=dp.Box(-sizes + 2 * (sizes < 1), sizes + 2 * (sizes < 1)), y=dp.Box(-1, 1))
    template = dp.Template(record, lambda x, y: cp.square(x @ w - y), constraints=[cp.norm1(w) <= 1])
    x = random.uniform(-1, 1, size=(500, 40)) * sizes + 2 * (sizes < 1)
    data = {"x": x, "y": x[:, 0].clip(-1, 1)}
    found = dp.solve(template, data, dp.Privacy(1.0, 1e-6), dp.NoisyFrankWolfe(), seed=0)
    assert np.isfinite(found["w"]).all()


def written_down(array, *_, **__):
    assert array.shape[0] < 64, "sparse records were written down"
    return array.tocoo().toarray()


def test_sparse_rows_stay_sparse_and_choose_as_dense_ones_do(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (300, 200)) * (rng.random((300, 200)) < 0.1)
    y = np.where(rng.random(300) < expit(3 * x[:, 0]), 1, -1)
    privacy, found = dp.Privacy(2.0, 1e-5, "add-remove"), []
    for rows in (x, sp.csr_array(x)):
        if sp.issparse(rows):
            monkeypatch.setattr(sp.csr_array, "toarray", written_down)
        found.append(dp.solve(logistic(200), {"x": rows, "y": y}, privacy, dp.NoisyFrankWolfe(), size=300, seed=5)["w"])
    assert (found[0] == found[1]).all()


def test_no_records_and_one_are_fitted_like_others():
    privacy, template = dp.Privacy(1.0, 1e-5, "add-remove"), logistic(50)
    for x in (np.zeros((0, 50)), sp.csr_array((0, 50)), np.ones((1, 50))):
        data = {"x": x, "y": np.ones(x.shape[0], dtype=int)}
        found = dp.solve(template, data, privacy, dp.NoisyFrankWolfe(), size=100)
        assert np.isfinite(found["w"]).all()
