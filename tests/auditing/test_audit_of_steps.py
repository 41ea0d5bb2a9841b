"""The audit of adaptive steps finds every error that is planted in their questions, sums and noise, and nothing without one."""

from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.auditing import audit, queries
from dpconvex.fitting import adaptive, verify
from dpconvex.mechanisms import noisy_queries
from dpconvex.sums import engine, exact_rows, private_queries

SLOW = pytest.mark.slow


@pytest.fixture(autouse=True)
def proved_anew(monkeypatch):
    """What is planted in a proof is not answered by one that is remembered."""
    monkeypatch.setattr(verify, "remembered", verify.proved)


def unpaid(kind):
    """Questions of one kind are answered without counting."""

    def plant(monkeypatch):
        name = "noisy_symmetric" if kind == "second moment" else "noisy"
        honest = getattr(noisy_queries.QueryNoise, name)

        def answered(self, sums, sensitivity, level):
            known = {"curvatures": 1, "slopes along": 1, "counts by length": 2 * len(queries.EDGES)}
            before, free = self.spent, known.get(kind) in (None, len(sums))
            found = honest(self, sums, sensitivity, level)
            self.spent = before if free else self.spent
            return found

        monkeypatch.setattr(noisy_queries.QueryNoise, name, answered)

    return plant


def twice(owner, name):
    def plant(monkeypatch):
        honest = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: honest(*given) + honest(*given))

    return plant


def longer(monkeypatch):
    for name, honest in (("block_sums", engine.block_sums), ("person_sums", engine.person_sums)):
        wide = lambda part: replace(part, query=part.query._replace(bound=1.4 * part.query.bound))  # noqa: E731
        monkeypatch.setattr(engine, name, lambda part, *more, honest=honest, wide=wide: honest(wide(part), *more))


def quieter(owner, name, place):
    def plant(monkeypatch):
        honest = getattr(owner, name)
        less = lambda *given: honest(*given) * 0.7 if place is None else honest(given[0], given[1] * 0.7, *given[2:])  # noqa: E731
        monkeypatch.setattr(owner, name, less)

    return plant


ONE, MANY = ("add-remove", "replace-one"), {"unit": "patient", "most": 4}
PLANTED = {
    "nothing": (lambda monkeypatch: None, ()),
    "noise": (quieter(noisy_queries, "noise_scale", None), ("gradients", "noise as drawn")),
    "noise as drawn": (
        quieter(noisy_queries.QueryNoise, "drawn", 1),
        ("noise as drawn", "noise of a second moment as drawn"),
    ),
    "clip": (longer, ("gradients",)),
    "sums twice": (twice(engine, "block_sums"), ("gradients", "counts by length")),
    "people twice": (twice(engine, "person_sums"), ("gradients", "counts by length")),
    "moments twice": (twice(private_queries, "row_moment"), ("second moment",)),
    "lengths twice": (twice(private_queries, "length_counts"), ("lengths of rows",)),
    "rows not cut": (
        lambda m: m.setattr(exact_rows, "clipped_rows", lambda rows, *_: rows),
        ("second moment of cut rows",),
    ),
    "cut moments twice": (twice(private_queries, "clipped_moment"), ("second moment in the metric",)),
    "squares twice": (twice(engine, "vector_sums"), ("squares of gradients", "squares of roots", "counts of roots")),
    "one side of two": (lambda m: m.setattr(private_queries.PrivateQueries, "replaces_one", False), ("gradients",)),
    "one record of many": (
        lambda m: m.setattr(private_queries.PrivateQueries, "sum_sensitivity", lambda self, one, apart: one * apart),
        ("second moment", "second moment in the metric", "curvatures", "slopes along"),
    ),
    "records of a person": (
        lambda m: m.setattr(engine, "person_sums", lambda part, who: engine.block_sums(part)),
        ("gradients",),
    ),
}
UNPAID = "second moment", "counts by length", "curvatures", "slopes along"
PLANTED |= {f"{kind} unpaid": (unpaid(kind), (kind,)) for kind in UNPAID}
FIRST = ("nothing", "noise", "clip", "sums twice", "squares twice", "second moment unpaid")
NOT_FOR = {"sums twice": "people", "people twice": "records", "one side of two": "add-remove"}
NOT_FOR |= {"one record of many": "records", "records of a person": "records"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("adjacency", [ONE[0], pytest.param(ONE[1], marks=pytest.mark.slow)])
@pytest.mark.parametrize("people", [{}, pytest.param(MANY, marks=pytest.mark.slow)], ids=["records", "people"])
@pytest.mark.parametrize("name", [*FIRST, *(pytest.param(name, marks=SLOW) for name in PLANTED if name not in FIRST)])
def test_errors_of_adaptive_steps_are_found(name, people, adjacency, monkeypatch):
    if NOT_FOR.get(name) in (adjacency, "people" if people else "records"):
        pytest.skip("it is no error there")
    plant, found = PLANTED[name]
    plant(monkeypatch)
    learner, privacy = dp.load("logistic_regression", features=3), dp.Privacy(1.0, 1e-5, adjacency, **people)
    audit = dp.audit(learner, privacy, dp.AdaptiveSteps(), size=500, seed=0)
    assert {attack.part for attack in audit.attacks if not attack.holds} >= {*found}, audit
    assert audit.holds == (name == "nothing")
    if name == "nothing":
        assert audit["gradients"].ratio > 0.99
        assert audit["counts by length"].ratio > 0.3


@pytest.mark.parametrize("problem", ["logistic_regression", pytest.param("expectile_regression", marks=SLOW)])
def test_counts_of_roots_tell_apart_records_that_replace_each_other(problem, monkeypatch):
    monkeypatch.setattr(queries, "PARTS", ("counts of roots",))
    monkeypatch.setattr(queries, "SIDES", 3)
    learner, steps = dp.load(problem, features=3), dp.AdaptiveSteps()
    certificate = dp.verify(learner, dp.Privacy(1.0, 1e-5), 500, steps)
    attack = next(queries.attack_queries(verify.analyse(learner, steps).form, certificate, np.random.default_rng(0)))
    assert attack.ratio > 0.9, attack


def test_functions_of_records_that_are_too_long_are_found(monkeypatch):
    honest = adaptive.with_functions

    def longer(batch, given):
        found = honest(batch, given)
        return replace(found, fields=found.fields | {name: 1.2 * found.fields[name] for name in given[0]})

    monkeypatch.setattr(queries, "PARTS", ("second moment",))
    w, record = cp.Variable(2, name="w"), dp.Record(x=dp.Box(np.zeros(2), np.ones(2)), y=dp.Choice([-1, 1]))
    template = dp.Template(record, lambda x, y: cp.logistic(y * ((x - [0.5, 0.3]) @ w)), 1e-3 * cp.sum_squares(w))
    form = verify.analyse(template, dp.AdaptiveSteps()).form
    certificate = dp.verify(template, dp.Privacy(1.0, 1e-5, "add-remove"), 500, dp.AdaptiveSteps())
    for planted in (False, True):
        if planted:
            monkeypatch.setattr(adaptive, "with_functions", longer)
        attack = next(queries.attack_queries(form, certificate, np.random.default_rng(0)))
        assert attack.holds != planted, attack


@pytest.mark.parametrize("adjacency", [ONE[0], pytest.param(ONE[1], marks=SLOW)])
def test_a_clustering_beside_steps_is_attacked(adjacency, monkeypatch):
    monkeypatch.setattr(audit, "attack_queries", lambda *_: [])
    monkeypatch.setattr(audit, "attack_rounds", lambda noise: [])
    learner = dp.load("large_margin_gaussian_mixture", features=1)
    found = dp.audit(learner, dp.Privacy(1.0, 1e-5, adjacency), dp.AdaptiveSteps(), size=500, share=0.2)
    assert 0.99 < found["clustering"].ratio <= 1.0


# Where adaptive steps of one score are tried for the same error, the case with shared parameters is slow.
@pytest.mark.slow
@pytest.mark.parametrize("name", ["people twice", "nothing", "one side of two", "clip", "squares twice", "noise"])
@pytest.mark.parametrize("people", [{}, MANY], ids=["records", "people"])
def test_errors_of_scores_that_share_parameters_are_found(name, people, monkeypatch):
    plant, found = PLANTED[name]
    plant(monkeypatch)
    learner, privacy = dp.load("ordinal_regression", features=2, classes=3), dp.Privacy(1.0, 1e-5, **people)
    audit = dp.audit(learner, privacy, dp.AdaptiveSteps(), size=500, seed=0)
    assert {attack.part for attack in audit.attacks if not attack.holds} >= {*found}, audit
    assert audit.holds == (name == "nothing")
