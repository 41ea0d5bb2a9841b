"""Fits in threads: the same bits, the same errors, and noise that nobody shares."""

from __future__ import annotations

from functools import cache
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp

RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 3))
X /= 1.001 * np.linalg.norm(X, axis=1)[:, None]
DATA = {"x": X, "y": np.where(X[:, 0] > 0, 1, -1)}
PROMISES = [dp.Privacy(1.0), dp.Privacy(5.0)]


@cache
def learner(regularization: float = 0.1) -> dp.Template:
    return dp.load("logistic_regression", features=3, regularization=regularization)


@cache
def declared() -> dp.Template:
    """A loss of one's own, by a function that no module defines, with constraints."""
    w = cp.Variable(3, name="w")
    mine = dp.Atom("mine", lambda m: np.logaddexp(m, 0.0), slope=(0.0, 1.0), curvature=0.25, lower=0.0)
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    return dp.Template(record, lambda x, y: mine(-y * (x @ w)), 0.1 * cp.sum_squares(w) + cp.norm1(w), [cp.sum(w) <= 1])


@cache
def matrices() -> dp.Template:
    P, c = cp.Variable((3, 3), PSD=True, name="P"), cp.Variable(name="c")
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    regularizer = 0.1 * (cp.sum_squares(P) + cp.trace(P) + cp.square(c))
    return dp.Template(record, lambda x, y: dp.huber_hinge(1 - y * (x @ P @ x + c), width=0.5), regularizer)


def bits(releases: Any) -> list[bytes]:
    return [b"".join(value.tobytes() for value in release.parameters.values()) for release in releases]


def test_every_number_of_workers_gives_the_bits_of_single_fits() -> None:
    templates = [learner(), matrices(), declared()]
    plan = [(template, promise) for template in templates for promise in PROMISES]
    alone = bits(dp.solve(template, DATA, promise, seed=7 + k) for k, (template, promise) in enumerate(plan))
    for workers in (1, 3):
        swept = list(dp.sweep(templates, DATA, PROMISES, seed=7, workers=workers))
        assert bits(swept) == alone
        assert all(release.spent is None for release in swept)


def test_no_two_fits_share_noise_and_few_are_begun_ahead() -> None:
    budget = dp.Budget(dp.Privacy(9.0))
    releases = dp.sweep(learner(), DATA, PROMISES[0], draws=9, workers=3, budget=budget)
    found = [next(releases)]
    assert 3 <= len(budget.entries) <= 4
    found += releases
    assert len(set(bits(found))) == 9
    assert all(release.spent == PROMISES[0] for release in found)
    assert budget.remaining.epsilon == 0


def test_a_fit_that_fails_fails_at_its_turn_and_ends_the_sweep() -> None:
    budget = dp.Budget(dp.Privacy(2.5))
    releases = dp.sweep(learner(), DATA, PROMISES[0], draws=9, workers=2, budget=budget)
    with pytest.raises(dp.BudgetExceeded):
        list(releases)
    assert len(budget.entries) == 2
    with pytest.raises(dp.TemplateError, match="workers must be a positive number"):
        dp.sweep(learner(), DATA, PROMISES[0], workers="two")
