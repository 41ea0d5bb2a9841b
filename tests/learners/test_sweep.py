"""Many fits: complete releases, each with its own noise, paid one by one."""

import os
from functools import cache
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.errors import TemplateError
from dpconvex.solvers import backend as backends

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
X /= 1.001 * np.linalg.norm(X, axis=1)[:, None]
DATA = {"x": X, "y": np.where(X[:, 0] > 0, 1, -1)}
PROMISES = [dp.Privacy(1.0), dp.Privacy(5.0)]


@cache
def learner(regularization: float = 0.1) -> dp.Template:
    return dp.load("logistic_regression", features=3, regularization=regularization)


def test_an_interruption_releases_nothing_half_done_and_is_paid_for(tmp_path: Any) -> None:
    budget, count = dp.Budget(dp.Privacy(10.0)), 0
    seen: list[dp.Release] = []

    class Interrupted:
        def solve(self, problem: Any, tolerance: float) -> Any:
            nonlocal count
            count += 1
            if count == 3:
                raise KeyboardInterrupt
            return backends.solve(problem, None, tolerance)

    releases = dp.sweep(learner(), DATA, PROMISES[0], draws=5, budget=budget, backend=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        seen.extend(releases)
    assert len(seen) == 2
    assert budget.spent.epsilon == pytest.approx(3.0)


def test_a_total_is_for_the_records_that_it_was_proved_for() -> None:
    total, data, budget = dp.Privacy(2.0, 1e-6), dict(DATA), dp.Budget(dp.Privacy(2.0, 1e-6))
    fits = dp.sweep(learner(), data, total=total, draws=2, budget=budget)
    data.update({name: column[:4] for name, column in DATA.items()})
    with pytest.raises(TemplateError, match="60, but there are 4 records"):
        next(fits)
    assert budget.entries == ()
    # Between the fits of two learners the data are read anew.
    data = dict(DATA)
    fits = dp.sweep([learner(), learner(0.2)], data, total=total, budget=budget)
    next(fits)
    data.update({name: column[:4] for name, column in DATA.items()})
    with pytest.raises(TemplateError, match="60, but there are 4 records"):
        next(fits)


@pytest.mark.filterwarnings("ignore:.*fork")  # other packages warn of forks where there are threads
def test_a_fork_does_not_go_on_with_a_sweep_that_was_paid_for_once() -> None:
    fits = dp.sweep(learner(), DATA, total=dp.Privacy(2.0, 1e-6), draws=3)
    next(fits)
    child = os.fork()
    if not child:
        try:
            next(fits)
        except dp.DPConvexError as error:
            os._exit(7 if "fork" in str(error) else 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(fits)) == 2


@cache
def declared() -> dp.Template:
    """A loss of one's own, by a function that no module defines, with constraints."""
    w = cp.Variable(3, name="w")
    mine = dp.Atom("mine", lambda m: np.logaddexp(m, 0.0), slope=(0.0, 1.0), curvature=0.25, lower=0.0)
    record = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    return dp.Template(record, lambda x, y: mine(-y * (x @ w)), 0.1 * cp.sum_squares(w) + cp.norm1(w), [cp.sum(w) <= 1])


def bits(releases: Any) -> list[bytes]:
    return [b"".join(value.tobytes() for value in release.parameters.values()) for release in releases]


def test_every_number_of_workers_gives_the_bits_of_single_fits() -> None:
    templates = [learner(), declared()]
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
    assert 1 <= len(budget.entries) <= 4
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
