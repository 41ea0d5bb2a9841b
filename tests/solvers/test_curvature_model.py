"""Models of the Hessian from second moments: what they are, when they are made, and that only the path depends on them."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from sample_problems import PROBLEMS, build, logistic

from dpconvex.core.record_domains import Ball, Choice
from dpconvex.language.batch import Batch
from dpconvex.language.record import Record
from dpconvex.language.template import Template
from dpconvex.solvers import curvature
from dpconvex.solvers.certify import certify
from dpconvex.solvers.composite import Composite
from dpconvex.solvers.curvature import Models, inverse
from dpconvex.solvers.lbfgs import descend
from dpconvex.solvers.problem import Problem

SMOOTH = [name for name in PROBLEMS if Composite(PROBLEMS[name]()).is_smooth]


def scaled(
    classes: int = 2, features: int = 12, size: int = 3000, sparse: bool = False, weight: float = 1e-4
) -> Problem:
    """Features of very different lengths, little regularized."""
    rng = np.random.default_rng(0)
    record = Record(x=Ball(features, radius=4.0), y=Choice(range(classes)))
    x = rng.normal(size=(size, features)) * np.logspace(0, -3, features)
    if classes == 2:
        w = cp.Variable(features, name="w")
        template = Template(record, lambda x, y: cp.logistic((1 - 2 * y) * (x @ w)), weight * cp.sum_squares(w))
        labels = (x @ rng.normal(size=features) > 0).astype(np.int64)
    else:
        W = cp.Variable((features, classes), name="W")
        template = Template(record, lambda x, y: cp.log_sum_exp(x @ W) - x @ W[:, y], weight * cp.sum_squares(W))
        labels = (x @ rng.normal(size=(features, classes))).argmax(axis=1)
    x *= 3.9 / np.linalg.norm(x, axis=1).max()
    batch = Batch({"x": sp.csr_array(x) if sparse else x}, labels.astype(np.int64))
    return build(template, 2 * weight, batch=batch, noise=0.1, gradient_bound=4.0 * np.sqrt(2), hessian_bound=8.0)


@pytest.mark.parametrize("name", SMOOTH)
def test_of_one_form_it_is_the_inverse_of_the_hessian(name: str) -> None:
    problem = PROBLEMS[name]()
    composite, rng = Composite(problem), np.random.default_rng(1)
    theta, vector = rng.normal(size=(2, composite.dim)) / 4
    gram = problem.loss.gram(theta)
    assert gram is not None
    model = inverse(composite, theta, gram)
    assert model is not None
    found = problem.hessian_product(theta, model(vector))
    if gram.exact:
        assert found == pytest.approx(vector, rel=1e-8, abs=1e-10)
    else:
        assert 0.2 < float(found @ model(vector)) / float(vector @ model(vector)) < 5


def test_second_moments_are_those_of_the_monomials() -> None:
    for problem in (scaled(3), scaled(3, sparse=True)):
        rows = problem.batch.fields["x"]
        x = rows.toarray() if sp.issparse(rows) else rows
        gram = problem.loss.gram(np.zeros(problem.space.dim))
        assert gram is not None
        assert gram.moments[0, :-1, :-1] == pytest.approx(x.T @ x, rel=1e-10)
        # At zero every class has probability 1/3, so all records bend alike and the model is the Hessian.
        assert gram.matrix() == pytest.approx(problem.loss.hessian(np.zeros(problem.space.dim)), abs=1e-8)


def test_classes_times_features_are_decomposed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = scaled(4)
    composite, zero = Composite(problem), np.zeros(problem.space.dim)
    gram, vector = problem.loss.gram(zero), np.random.default_rng(0).normal(size=problem.space.dim)
    assert gram is not None
    whole = inverse(composite, zero, gram)
    monkeypatch.setattr(curvature, "SMALL", 0)
    apart = inverse(composite, zero, gram)
    assert whole is not None
    assert apart is not None
    assert apart(vector) == pytest.approx(whole(vector), rel=1e-6)


@pytest.mark.parametrize("options", [{}, {"sparse": True}, {"classes": 4}])
def test_it_saves_passes_and_leads_to_the_same_answer(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = scaled(**options)
    start, tolerance = np.zeros(problem.space.dim), 1e-7
    found = certify(problem, start, tolerance)
    monkeypatch.setattr(Models, "inverse", lambda *arguments: None)
    other = certify(problem, start, tolerance)
    assert found.evaluations < 0.7 * other.evaluations
    assert np.linalg.norm(found.theta - other.theta) <= 2 * tolerance


def test_what_converges_anyway_makes_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "inverse", lambda *arguments: pytest.fail("a model was made"))
    problem = logistic(size=500, added=100.0)
    assert certify(problem, np.zeros(problem.space.dim), 1e-9).distance_bound <= 1e-9


@pytest.mark.parametrize("wrong", [lambda v: 1e-6 * v, lambda v: -v, lambda v: v * np.nan, lambda v: 1e6 * v[::-1]])
def test_a_wrong_model_costs_steps_and_never_an_answer(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = scaled(size=300, weight=1e-3)
    monkeypatch.setattr(curvature, "inverse", lambda *arguments: wrong)
    assert certify(problem, np.zeros(problem.space.dim), 1e-8).distance_bound <= 1e-8


def test_passes_do_not_grow_with_the_records() -> None:
    counts = []
    for size in (1000, 10000, 30000):
        problem = scaled(size=size, weight=1e-5)
        composite, zero = Composite(problem), np.zeros(problem.space.dim)
        descend(composite, zero, *composite.smooth(zero), 1e-7 * size, 1000)
        counts.append(composite.evaluations)
    assert max(counts) < 1.5 * min(counts)
