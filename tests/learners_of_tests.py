"""Learners, records and partitions that tests in several folders take."""

import inspect
import math
import runpy
from fractions import Fraction
from itertools import pairwise, permutations
from pathlib import Path

import cvxpy as cp
import numpy as np

import dpconvex as dp
from dpconvex.fitting import adaptive
from dpconvex.mechanisms.noisy_queries import NORM_SLACK, QueryNoise, choice_weights
from dpconvex.noise.gaussian import GRID_VARIANCE

# Where 700 records are cut: partitions of very different sizes, and one without records.
CUTS = [0, 1, 300, 300, 305, 700]
RNG = np.random.default_rng(5)
X = RNG.normal(size=(700, 3))
X /= np.linalg.norm(X, axis=1, keepdims=True) * RNG.uniform(1, 2, size=(700, 1))
Y = np.where(X[:, 0] + 0.3 * RNG.normal(size=700) > 0, 1, -1)


def pieces(data, cuts=CUTS):
    if isinstance(data, dict):
        return [{name: column[a:b] for name, column in data.items()} for a, b in pairwise(cuts)]
    return [data[a:b] for a, b in pairwise(cuts)]


def in_files(folder, data):
    parts = pieces(data)
    for k, part in enumerate(parts):
        for name, column in part.items():
            np.save(folder / f"{name}{k}.npy", column)
    return dp.Partitions([{name: folder / f"{name}{k}.npy" for name in part} for k, part in enumerate(parts)])


def ridge(w):
    return 0.05 * cp.sum_squares(w)


def free(w):
    return []


def linear(w, x):
    return x @ w


def logistic(shape=3, regularizer=ridge, constraints=free, score=linear, **attributes):
    """Return a template of a variable w for the signs of scores of records in a ball."""
    w = cp.Variable(shape, name="w", **attributes)
    record = dp.Record(x=dp.Ball(w.shape[0]), y=dp.Choice([-1, 1]))
    return dp.Template(record, lambda x, y: cp.logistic(-y * score(w, x)), regularizer(w), constraints(w))


def bounded(name):
    """Return the bound on the coefficients of a shipped problem that pure guarantees ask for."""
    option = options_of(name).get("bound")
    asked = option is not None and option.default is None
    return {"bound": 2.0 if name == "probit_regression" else 1.0} if asked else {}


def records_of(template, size=60, seed=0):
    return fields_of(template, template.record.sample(size, np.random.default_rng(seed)))


def fields_of(template, batch):
    return {**batch.fields, **{name: template.record.values(batch, name) for name in template.record.discrete}}


def problem_file(name):
    """Return the function of a shipped problem file that makes its template."""
    return runpy.run_path(str(Path(__file__).parents[1] / "problems" / f"{name}.py"))["template"]


def options_of(name):
    return inspect.signature(problem_file(name)).parameters


def calls_of(monkeypatch, owner, name, told=lambda *given: 1):
    """Return a list that grows, with each call of a function, by what is told of its arguments."""
    found, honest = [], getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *given, **more: found.append(told(*given)) or honest(*given, **more))
    return found


class Told(QueryNoise):
    """Queries whose answers and choices are noted, with sums and scales; or, for another data set, repeated."""

    answers = seen = ()

    def drawn(self, scale, sums):
        number = len(self.seen)
        told = self.answers[number][2] if self.answers else super().drawn(scale, sums)
        self.seen = (*self.seen, (scale, np.array(sums, dtype=object), told))
        return told.copy()

    def picked(self, levels, rate):
        number = len(self.seen)
        place = self.answers[number][2] if self.answers else super().picked(levels, rate)
        weights = choice_weights(levels, rate)
        self.seen = (*self.seen, (0.0, math.log(weights[place]) - math.log(sum(weights)), place))
        return place


def lost_at_answers(monkeypatch, fit, *neighbours):
    """Return what two data sets lose at the answers to a fit of the first, and the square of its part for shifts of sums."""
    asked = []

    def queries(level, generator):
        asked.append(Told(level, generator))
        asked[-1].answers = asked[0].seen
        return asked[-1]

    monkeypatch.setattr(adaptive, "QueryNoise", queries)
    first, second = map(fit, neighbours)
    assert all((second[name] == value).all() for name, value in first.items())  # a function of the answers
    loss = square = 0.0
    for (scale, one, told), (again, two, _) in zip(asked[0].seen, asked[1].seen, strict=True):
        assert scale == again
        if scale:
            moved, noise = (one - two).astype(float), (told - one).astype(float)
            square += float(moved @ moved) / (scale**2 - GRID_VARIANCE)
            loss += float(((noise + moved) ** 2 - noise**2).sum()) / (2 * scale**2)
        else:
            loss += one - two
    assert square <= asked[0].most ** 2
    assert asked[0].spent <= Fraction(asked[0].most * (1 + NORM_SLACK)) ** 2
    return loss, square / asked[0].most ** 2


def choice_law(counts, factor):
    """Return the exact probabilities that each candidate is chosen, averaged over all orders."""
    chances = np.exp(-factor * (counts - counts.min()))
    orders = np.array(list(permutations(range(len(counts)))))
    rejected = np.insert(1 - chances[orders], 0, 1.0, axis=1)  # those before a candidate are
    weights = chances[orders] * np.cumprod(rejected, axis=1)[:, :-1]
    return np.bincount(orders.ravel(), weights=weights.ravel()) / len(orders)


def excess(epsilon, first, second):
    """The exact delta between two discrete laws."""
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())
