"""Steps on models of the objective: fewer passes, the same answer, and no answer from a wrong model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sample_problems import PROBLEMS, large_margin

from dpconvex.evaluation.gram import groups_of
from dpconvex.solvers import proximal_newton
from dpconvex.solvers.certify import certify
from dpconvex.solvers.composite import Composite
from dpconvex.solvers.problem import Problem
from dpconvex.solvers.proximal_newton import Hessian, Model, modelled, pays

CONSTRAINED = [name for name in PROBLEMS if not Composite(PROBLEMS[name]()).is_smooth]


def solved(problem: Problem, tolerance: float = 1e-8) -> Any:
    return certify(problem, np.zeros(problem.space.dim), tolerance)


@pytest.mark.parametrize("name", CONSTRAINED)
def test_the_answer_is_that_of_other_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = solved(PROBLEMS[name]())
    monkeypatch.setattr(proximal_newton, "pays", lambda composite: True)
    monkeypatch.setattr("dpconvex.solvers.polish.pays", lambda composite: True)
    found = solved(PROBLEMS[name]())
    assert max(found.distance_bound, expected.distance_bound) <= 1e-8
    assert np.linalg.norm(found.theta - expected.theta) <= 2e-8


def test_passes_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = large_margin(classes=4, side=6, weight=1e-4, size=2000)
    assert not pays(Composite(problem))
    expected = solved(problem, 1e-6)
    monkeypatch.setattr(proximal_newton, "WORK", 0)
    assert pays(Composite(problem))
    found = solved(problem, 1e-6)
    assert found.evaluations < 0.5 * expected.evaluations
    assert np.linalg.norm(found.theta - expected.theta) <= 2e-6


@pytest.mark.parametrize("wrong", [lambda v: 1e-6 * v, lambda v: -v, lambda v: v * np.nan, lambda v: 1e6 * v[::-1]])
def test_a_wrong_model_costs_steps_and_never_an_answer(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpconvex.solvers.polish.pays", lambda composite: True)
    monkeypatch.setattr(proximal_newton, "modelled", lambda *arguments: Hessian(wrong))
    assert solved(large_margin()).distance_bound <= 1e-8


def test_a_model_has_the_changes_that_it_learnt() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    true, model = root @ root.T + np.eye(6), Hessian(lambda v: 2 * v)
    for _ in range(6):
        move = rng.normal(size=6)
        model.update(move, true @ move)
    assert model.product(move) == pytest.approx(true @ move)  # what was learnt last holds exactly
    for _ in range(300):
        move = rng.normal(size=6)
        model.update(move, true @ move)
    assert model.product(move) == pytest.approx(true @ move)
    assert min(np.linalg.eigvalsh([model.product(e) for e in np.eye(6)])) > 0


def test_second_moments_of_labels_model_the_hessian_better() -> None:
    problem = large_margin(classes=4, side=4, size=1000)
    composite, rng = Composite(problem), np.random.default_rng(0)
    theta = certify(problem, np.zeros(composite.dim), 1e-2).theta
    hessian, errors = problem.hessian(theta), []
    for by_label in (False, True):
        gram = problem.loss.gram(theta, by_label)
        assert gram is not None
        assert gram.matrix() @ theta == pytest.approx(gram.product(theta))
        assert gram.counts.sum() == 1000
        errors.append(np.linalg.norm(gram.matrix() - problem.loss.hessian(theta)))
    assert errors[1] < errors[0]
    found = modelled(composite, theta)
    assert found is not None
    vector = rng.normal(size=composite.dim)
    model = Model(composite, theta, 0.0, np.zeros(composite.dim), found)
    value, gradient = model.smooth(theta + vector)
    assert value == pytest.approx(gradient @ vector / 2)
    assert 0.3 < float(vector @ gradient) / float(vector @ hessian @ vector) < 3


def test_labels_are_told_apart_where_that_takes_little_memory() -> None:
    assert [groups_of(10, 153, 10, True), groups_of(10, 785, 10, True), groups_of(2, 20, 1, True)] == [10, 1, 1]
    assert groups_of(10, 153, 10, False) == 1
