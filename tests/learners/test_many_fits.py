"""Fits by workers: the same bits, the same errors, and no noise that is not drawn here."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.core.packing import packed, unpacked
from dpconvex.errors import BudgetExceeded, DPConvexError, NotConverged, TemplateError
from dpconvex.evaluation.batch_loss import batched_loss
from dpconvex.noise.samplers import NoiseSource
from dpconvex.release.solve import DataEngine
from dpconvex.release.verify import analyse
from dpconvex.solvers.elsewhere import sendable
from dpconvex.solvers.first_order import FirstOrder

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


def test_whitened_fits_and_shared_promises_too(processes: ProcessPoolExecutor) -> None:
    options: dict[str, Any] = {"total": dp.Privacy(4.0, 1e-5), "draws": 2, "seed": 3, "whitening": True}
    found = [
        list(dp.sweep(learner(), DATA, mechanism=dp.ObjectivePerturbation(), workers=w, **options))
        for w in (1, processes)
    ]
    assert bits(found[0]) == bits(found[1])
    assert [r.certificate for r in found[0]] == [r.certificate for r in found[1]]


@pytest.mark.parametrize("tune", [dp.tune, partial(dp.tune, split=False), dp.tune_repeated])
def test_tuning_chooses_the_same(tune: Any, processes: ProcessPoolExecutor) -> None:
    candidates = {"a little": learner(0.01), "more": learner(0.1)}
    outcomes = [tune(candidates, DATA, dp.Privacy(2.0), seed=1, workers=w) for w in (None, 1, processes)]
    assert len({(outcome.choice, outcome.mistakes, *bits([outcome.release])) for outcome in outcomes}) == 1


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


def test_the_budget_ends_a_sweep_and_what_was_paid_for_is_yielded() -> None:
    seen: list[dp.Release] = []
    with pytest.raises(BudgetExceeded):
        seen.extend(dp.sweep(learner(), DATA, PROMISES[0], draws=5, budget=dp.Budget(dp.Privacy(2.0)), workers=1))
    assert len(seen) == 2 or not seen  # `extend` keeps what came before the error
    releases = dp.sweep(learner(), DATA, PROMISES[0], draws=5, budget=dp.Budget(dp.Privacy(2.0)), workers=1)
    assert [next(releases).spent, next(releases).spent] == [PROMISES[0]] * 2
    with pytest.raises(BudgetExceeded):
        next(releases)


def test_a_fit_that_fails_there_is_the_error_that_it_is_here(processes: ProcessPoolExecutor) -> None:
    texts = []
    for workers in (None, processes):
        with pytest.raises(NotConverged) as caught:
            list(dp.sweep(learner(1e-6), DATA, PROMISES, seed=0, backend=FirstOrder(max_steps=1), workers=workers))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_a_worker_that_dies_is_an_error_and_no_release() -> None:
    budget = dp.Budget(dp.Privacy(9.0))
    with pytest.raises(NotConverged, match="a worker came to its end") as caught:
        next(dp.sweep(learner(), DATA, PROMISES[0], budget=budget, workers=Watched(budget, BrokenProcessPool("gone"))))
    assert isinstance(caught.value.__cause__, BrokenProcessPool)
    assert len(budget.entries) == 1


def test_noise_of_gradients_is_drawn_here_too(processes: ProcessPoolExecutor) -> None:
    w = cp.Variable(3, name="w")
    bounded = dp.Template(
        dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1])), lambda x, y: cp.logistic(-y * (x @ w)), 0.0, [cp.norm(w) <= 2]
    )
    plain, clipped = dp.NoisyGradientDescent(), dp.NoisyGradientDescent(clip=0.5, sampling=0.3)
    ways: list[tuple[dp.Template, Any, str]] = [(bounded, plain, "replace-one"), (learner(), clipped, "add-remove")]
    for template, mechanism, adjacency in ways:
        options: dict[str, Any] = {"size": 90, "draws": 2, "seed": 5, "mechanism": mechanism}
        promise = dp.Privacy(1.0, 1e-5, adjacency)
        found = [bits(dp.sweep(template, DATA, promise, workers=w, **options)) for w in (None, 1, processes)]
        assert found[0] == found[1] == found[2]


def test_workers_that_are_none_are_refused_before_anything_is_paid() -> None:
    budget, candidates = dp.Budget(dp.Privacy(9.0, 1e-3)), [learner()]
    for workers in (0, "two", True):
        for begin in (
            partial(dp.sweep, learner()),
            partial(dp.tune, candidates),
            partial(dp.tune_repeated, candidates),
        ):
            with pytest.raises(TemplateError, match="workers must be"):
                begin(DATA, PROMISES[0], workers=workers, budget=budget)
    with dp.devices(), pytest.raises(TemplateError, match="leave one of them out"):
        dp.sweep(learner(), DATA, PROMISES, workers=2, budget=budget)
    with pytest.raises(TemplateError, match="sweep with workers needs all records in one place"):
        dp.sweep(learner(), dp.Partitions([DATA]), PROMISES, workers=2, budget=budget)
    assert not budget.entries


def test_what_cannot_travel_says_so() -> None:
    lock = Lock()
    column = dp.Chunks(lambda: [X] if lock else [])
    with pytest.raises(TemplateError, match=r"cannot be sent to another process(.|\n)*Or fit without workers"):
        next(dp.sweep(learner(), {**DATA, "x": column}, PROMISES, workers=1))


def test_memory_maps_travel_by_name(tmp_path: Path) -> None:
    column = np.memmap(tmp_path / "x", dtype=np.float64, mode="w+", shape=X.shape)
    column[:] = X
    column.flush()
    assert len(packed(column)) < X.nbytes / 4
    assert (unpacked(packed(column)) == X).all()
    assert (unpacked(packed(column[5:])) == X[5:]).all()
    assert (unpacked(packed(column.T)) == X.T).all()
    found = [bits(dp.sweep(learner(), {**DATA, "x": data}, PROMISES, seed=0, workers=1)) for data in (X, column)]
    assert found[0] == found[1]


def test_a_problem_is_the_same_after_the_journey() -> None:
    """Values and gradients of what is unpacked, for learners with matrices, constraints, kinks and declared atoms."""
    for template in (learner(), matrices(), declared()):
        form = analyse(template).form
        batch = template.record.sample(50, np.random.default_rng(0))
        problem = DataEngine(analyse(template), batch, 50, None)._plain
        bare = form.template.with_parts(predict=None, decision=None, probabilities=None, source=None)
        losses, space, records, feasible = unpacked(packed((bare, form.space, batch, problem.feasible)))
        theta = np.random.default_rng(1).normal(size=form.space.dim)
        value, slope = batched_loss(losses, space, records).value_and_gradient(theta)
        assert value == problem.loss.value(theta)
        assert (slope == problem.loss.gradient(theta)).all()
        assert (feasible.project(theta) == problem.feasible.project(theta)).all()


def test_executors_of_dask_will_do() -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=":0") as client:
        swept = dp.sweep(learner(), DATA, PROMISES, seed=7, workers=client.get_executor())
        assert bits(swept) == bits(dp.sweep(learner(), DATA, PROMISES, seed=7, workers=1))
