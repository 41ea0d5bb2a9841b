"""Fits by workers: the same bits, the same errors, and no noise that is not drawn here."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.errors import DPConvexError, NotConverged
from dpconvex.noise.samplers import NoiseSource
from dpconvex.solvers.elsewhere import sendable

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


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


def test_every_number_of_workers_gives_the_bits_of_single_fits(processes: ProcessPoolExecutor) -> None:
    templates = [learner(), matrices(), declared()]  # the last ones with functions that no module defines
    plan = [(template, promise) for template in templates for promise in PROMISES]
    alone = bits(dp.solve(template, DATA, promise, seed=7 + k) for k, (template, promise) in enumerate(plan))
    with ThreadPoolExecutor(3) as threads:
        for workers in (1, threads, processes):
            swept = list(dp.sweep(templates, DATA, PROMISES, seed=7, workers=workers))
            assert bits(swept) == alone
            assert all(release.spent is None for release in swept)


def test_own_processes_draw_no_noise_and_never_share_any() -> None:
    budget = dp.Budget(dp.Privacy(4.0))
    found = list(dp.sweep(learner(), DATA, PROMISES[0], draws=4, workers=2, budget=budget))
    assert len(set(bits(found))) == 4
    assert all(release.spent == PROMISES[0] for release in found)
    assert budget.remaining.epsilon == 0
    with pytest.raises(DPConvexError, match="cannot be copied, pickled or sent to a worker"):
        sendable({"source": NoiseSource()})


class Watched:
    """An executor that looks at the budget whenever a problem is sent."""

    _max_workers = 1

    def __init__(self, budget: dp.Budget, error: BaseException | None = None) -> None:
        self.budget, self.error, self.seen = budget, error, []

    def submit(self, function: Any, *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.seen.append(len(self.budget.entries))
        if self.error is not None:
            future.set_exception(self.error)
        else:
            future.set_result(function(*arguments))
        return future


def test_each_fit_is_paid_for_before_it_is_sent_and_few_are_begun_ahead() -> None:
    budget = dp.Budget(dp.Privacy(20.0))
    watched = Watched(budget)
    releases = dp.sweep(learner(), DATA, PROMISES[0], draws=6, workers=watched, budget=budget)
    next(releases)
    releases.close()
    assert watched.seen == [1, 1, 2]  # the first is sent twice: the second time with the data
    assert len(budget.entries) == 2


def test_a_worker_that_dies_is_an_error_and_no_release() -> None:
    budget = dp.Budget(dp.Privacy(9.0))
    with pytest.raises(NotConverged, match="a worker came to its end") as caught:
        next(dp.sweep(learner(), DATA, PROMISES[0], budget=budget, workers=Watched(budget, BrokenProcessPool("gone"))))
    assert isinstance(caught.value.__cause__, BrokenProcessPool)
    assert len(budget.entries) == 1
