"""Many fits: complete releases, each with its own noise, paid one by one."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.errors import DomainError, NotPrivate, TemplateError
from dpconvex.solvers import backend as backends

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
X /= np.linalg.norm(X, axis=1)[:, None]
DATA = {"x": X, "y": np.where(X[:, 0] > 0, 1, -1)}
PROMISES = [dp.Privacy(1.0), dp.Privacy(5.0)]


def learner(regularization: float = 0.1) -> dp.Template:
    return dp.load("logistic_regression", features=3, regularization=regularization)


def test_a_sweep_gives_what_single_fits_give() -> None:
    template = learner()
    swept = list(dp.sweep(template, DATA, PROMISES, draws=2, seed=7))
    for number, release in enumerate(swept):
        alone = dp.solve(template, DATA, PROMISES[number // 2], seed=7 + number)
        assert alone.certificate is not None
        assert release["w"] == pytest.approx(alone["w"], abs=4 * alone.certificate.tolerance)
        assert release.spent is None


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


def test_everything_is_proved_before_data_are_read() -> None:
    class Untouchable(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            pytest.fail("the data were read")

    with pytest.raises(NotPrivate):
        dp.sweep(learner(), Untouchable(DATA), dp.Privacy(1.0, adjacency="add-remove"))
    with pytest.raises(DomainError, match="lie outside"):
        next(dp.sweep(learner(), {"x": 2 * X, "y": DATA["y"]}, PROMISES))


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
