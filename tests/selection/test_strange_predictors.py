"""Whatever a predictor answers, says or raises for one record, it moves no other record's count and gets nowhere."""

import contextlib
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings
from dataclasses import replace
from functools import partial

import cvxpy as cp
import numpy as np
import pytest
from judged_models import HUBER, LOGISTIC, MODEL, X, Y
from refused import refused
from scipy.special import expit

import dpconvex as dp
from dpconvex.mechanisms.cell_counts import RESIDUALS, STEPS
from dpconvex.selection.record_counter import RecordCounter
from dpconvex.util.runtime import Interrupt, Shared
from dpconvex.util.silence import silence


def test_where_a_record_may_be_missing_each_is_predicted_by_itself():
    """Rows on a boundary: their rounding follows the place in a batch, and must not."""
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=300), rng.normal(size=300)
    x -= w * (x @ w) / (w @ w)
    x /= 2 * np.linalg.norm(x)
    template = dp.load("logistic_regression", features=300)
    release = dp.Release({"w": w}, not_private_because="a test", predictor=template.predict)
    counter = RecordCounter(template.record, release, "x", "y", dp.Privacy(1.0, adjacency="add-remove"))
    several = [{"x": np.tile(x, (count, 1)), "y": np.ones(count, dtype=int)} for count in range(1, 12)]
    assert [counter.mistakes(template.record.validate(data)) for data in several] in ([0] * 11, list(range(1, 12)))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("parts", [None, [400, 600], [999, 1]], ids=str)
def test_one_record_that_fails_changes_its_own_mistake_alone(adjacency, parts):
    """All others lie on the boundary, where a batch and single records are rounded to different sides."""
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(2, 300))
    for _ in range(60):  # until a batch disagrees with single records
        x = rng.normal(size=300)
        x -= w * (x @ w) / (w @ w)
        x /= 2 * np.linalg.norm(x)
        if ((np.tile(x, (1000, 1)) @ w > 0) != (x[None] @ w > 0)).any():
            break

    def predict(parameters, rows):
        if (rows[:, 0] == 0.25).any():
            raise ZeroDivisionError
        return np.where(rows @ parameters["w"] > 0, 1, -1)

    template = dp.load("logistic_regression", features=300)
    release = dp.Release({"w": w}, not_private_because="a test", predictor=predict)
    counter = RecordCounter(template.record, release, "x", "y", dp.Privacy(1.0, adjacency=adjacency))
    fine = {"x": np.tile(x, (1000, 1)), "y": np.full(1000, 1 if x[None] @ w > 0 else -1)}
    bad = {**fine, "x": fine["x"].copy()}
    bad["x"][500] = 0.25 * np.eye(300)[0]
    less = {name: np.delete(column, 500, axis=0) for name, column in fine.items()}
    for data, expected in ((fine, 0), (bad, 1), (less, 0)):
        if parts is not None:
            data = dp.Partitions([{n: c[k] for n, c in data.items()} for k in (slice(parts[0]), slice(parts[0], None))])
        assert counter.mistakes(template.record.validate(data)) == expected


def test_an_answer_that_depends_on_the_batch_decides_nothing():
    """A predictor that is right about several records and wrong about one: each record is predicted alone, whatever it says."""

    def predict(parameters, rows):
        return np.where(rows[:, 0] > 0.5, 1, -1) * (1 if len(rows) > 2 else -1)

    release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=predict)
    for count in (1, 2, 3, 200):
        data = {"x": X[:count], "y": Y[:count]}
        found = dp.evaluate(LOGISTIC, release, data, dp.Privacy(1e6), measures=("error",), seed=0)
        assert found.error == pytest.approx(1.0, abs=1e-3)


def judged(function, y, template=HUBER):
    """Return the counts of cells, and those of the same records one by one."""
    x = np.column_stack([np.linspace(-1, 1, len(y)), np.zeros(len(y))])
    release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=function)
    counter = RecordCounter(template.record, release, "x", "y", dp.Privacy(1.0), ())
    each = [counter.counts(template.record.validate({"x": x[k : k + 1], "y": y[k : k + 1]})) for k in range(len(y))]
    each = [np.concatenate([*found.values()]) for found in each]
    return np.concatenate([*counter.counts(template.record.validate({"x": x, "y": y})).values()]), each


def raises_at_zero(parameters, x, error=ZeroDivisionError):
    if (x[:, 0] == 0).any():
        raise error
    return x[:, 0]


STRANGE = {
    "NaN": lambda p, x: (x @ p["w"]) / np.linalg.norm(x, axis=1),
    "infinite": lambda p, x: np.where(x[:, 0] == 0, np.inf, x[:, 0]),
    "complex": lambda p, x: np.where(x[:, 0] == 0, 1j, x[:, 0]),
    "missing row": lambda p, x: x[x[:, 0] != 0, 0],
    "a further row": lambda p, x: np.append(x[:, 0], x[x[:, 0] == 0, 0]),
    "text": lambda p, x: [v if v else "nothing" for v in x[:, 0]],
    "object": lambda p, x: np.array([v if v else None for v in x[:, 0]], dtype=object),
    "masked, over the right label": lambda p, x: np.ma.masked_where(x[:, 0] == 0, np.where(x[:, 0] == 0, 1.0, x[:, 0])),
    "raises": raises_at_zero,
    "ends the program": lambda p, x: raises_at_zero(p, x, SystemExit),
}


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("kind", STRANGE)
def test_a_record_that_cannot_be_predicted_counts_in_full_and_changes_no_other(kind):
    total, each = judged(STRANGE[kind], np.linspace(-1, 1, 5))
    assert each[2][0] + each[2][len(RESIDUALS) - 1] == STEPS  # the first or the last of residuals
    np.testing.assert_array_equal(total, sum(each))
    total, each = judged(lambda p, x: STRANGE[kind](p, np.sign(x)), np.array([-1, -1, 1, 1, 1]), LOGISTIC)
    np.testing.assert_array_equal(total, [4, 1, 2, 0, 2, 1])
    np.testing.assert_array_equal(each[2], [0, 1, 0, 0, 0, 1])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit, BaseException])
def test_what_a_predictor_says_or_raises_for_one_record_does_not_get_out(kind, capfd):
    def predict(parameters, rows):
        if (rows[:, 0] == 1).any():
            sys.stdout.write("a record")
            warnings.warn("a record", stacklevel=1)
            raise kind
        return np.ones(len(rows), dtype=int)

    release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=predict)
    data = {"x": np.array([[1.0, 0.0], [0.0, 0.0]] * 50), "y": np.ones(100, dtype=int)}
    found = dp.evaluate(LOGISTIC, release, data, dp.Privacy(100.0))
    assert 0.4 < found.error < 0.6
    assert capfd.readouterr() == ("", "")


def test_nothing_gets_out_by_kept_streams_high_levels_or_processes(capfd, caplog):
    """A stream that somebody kept has a buffer, a level above CRITICAL is not disabled by it, and a fork inherits descriptors."""
    with open(1, "w", closefd=False) as kept, contextlib.redirect_stdout(kept):

        def predict(parameters, rows):
            if (rows[:, 0] == 1).any():
                kept.write("a record")
                logging.getLogger("a predictor").log(60, "a record")
                for start in (os.fork, own_process):
                    process = start()
                    if not process:
                        os.write(1, b"a record")
                        os._exit(0)
                    if process > 0:
                        os.waitpid(process, 0)
            return np.ones(len(rows), dtype=int)

        def own_process():
            process = multiprocessing.get_context("fork").Process(target=os.write, args=(2, b"a record"))
            process.start()
            process.join()
            return -1

        release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=predict)
        data = {"x": np.array([[1.0, 0.0], [0.0, 0.0]]), "y": np.ones(2, dtype=int)}
        dp.evaluate(LOGISTIC, release, data, dp.Privacy(100.0))
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_a_fork_beside_a_silent_thread_may_speak_and_be_silent_again(capfd):
    inside, done = threading.Event(), threading.Event()

    def quiet():
        with silence():
            inside.set()
            done.wait(60)

    thread = threading.Thread(target=quiet)
    thread.start()
    inside.wait(60)
    process = os.fork()
    if not process:
        os.write(1, b"spoken")
        with silence():
            os.write(1, b"silent")
        os._exit(0)
    os.waitpid(process, 0)
    done.set()
    thread.join()
    assert capfd.readouterr() == ("spoken", "")


def test_a_real_interrupt_ends_an_evaluation():
    seen = []

    def predict(parameters, rows):
        seen.append(0)
        if (rows[:, 0] == 1).any():
            signal.raise_signal(signal.SIGINT)
        return np.ones(len(rows), dtype=int)

    release = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", predictor=predict)

    def own(*_):
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    try:
        for handler in (signal.default_int_handler, own):
            signal.signal(signal.SIGINT, handler)
            with pytest.raises(KeyboardInterrupt):
                dp.evaluate(LOGISTIC, release, {"x": [[1.0, 0.0]] * 9, "y": [1] * 9}, dp.Privacy(100.0))
            assert len(seen) <= 4  # at once: no record after this one is predicted
            seen.clear()
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


class Swallows:
    """A solver that goes on after a signal."""

    def solve(self, problem, tolerance):
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGALRM)
        return dp.optim.backend.solve(problem, None, tolerance)


DATA = {"x": X[:40], "y": Y[:40]}


def signalled(parameters, rows, swallow=True):
    """Predict labels; a signal comes where records are counted one by one."""
    if len(rows) == 1:
        with contextlib.suppress(*[BaseException] * swallow):
            signal.raise_signal(signal.SIGALRM)
    return np.ones(len(rows), dtype=int)


LOUD = partial(signalled, swallow=False)


def partition():
    signal.raise_signal(signal.SIGALRM)
    return DATA


@pytest.mark.parametrize("kind", [TimeoutError, ValueError, SystemExit, MemoryError, dp.DPConvexError])
@pytest.mark.parametrize(
    "call",
    [
        lambda: dp.evaluate(LOGISTIC, replace(MODEL, predictor=signalled), DATA, dp.Privacy(1.0)),
        lambda: dp.evaluate(LOGISTIC, replace(MODEL, predictor=LOUD), DATA, dp.Privacy(1.0)),
        lambda: dp.evaluate(LOGISTIC, MODEL, dp.Partitions([partition]), dp.Privacy(1.0)),
        lambda: dp.tune([LOGISTIC.with_parts(predict=LOUD)] * 2, DATA, dp.Privacy(1.0)),
        lambda: dp.solve(LOGISTIC, DATA, dp.Privacy(1.0), backend=Swallows()),
    ],
)
def test_what_a_handler_of_a_signal_raises_is_neither_counted_nor_lost(call, kind):
    """A time limit ends a program where it is, and must not be a mistake of the record that was looked at."""

    def limit(*_):
        raise kind("a limit")

    before = signal.signal(signal.SIGALRM, limit)
    try:
        refused(kind, "a limit", call)
        assert Interrupt.raised is None
        assert signal.getsignal(signal.SIGALRM) is limit
    finally:
        signal.signal(signal.SIGALRM, before)


def test_log_losses_of_predictions_that_are_too_sure_are_covered():
    """Labels were taken to come true in a cell as often as predicted: intervals held the true number in .7 of runs."""
    learner, rng = dp.load("logistic_regression", features=1), np.random.default_rng(0)
    x = rng.uniform(-1, 1, (100_000, 1))
    y = np.where(rng.random(100_000) < expit(2 * x[:, 0]), 1, -1)
    few = {"x": np.zeros((2, 1)), "y": np.array([-1, 1])}
    sure = replace(dp.solve(learner, few, dp.Privacy(1.0), seed=0), parameters={"w": np.array([4.0])})
    found = dp.evaluate(learner, sure, {"x": x, "y": y}, dp.Privacy(3.0), seed=1).log_loss
    assert found == pytest.approx(np.logaddexp(0, -4 * x[:, 0] * y).mean(), abs=0.006)


def test_an_interrupt_at_any_time_ends_a_shared_context():
    opened = []

    def context():
        try:
            opened.append(1)
            yield
        finally:
            opened.clear()

    shared = Shared(context)
    Shared.known.remove(shared)

    def entered_until_the_signal():
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-4))
        while True:
            with shared.held():
                pass

    usual = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for _ in range(300):
            with contextlib.suppress(KeyboardInterrupt):
                entered_until_the_signal()
            assert not opened
    finally:
        signal.signal(signal.SIGALRM, usual)


def test_predictions_from_a_discrete_field_alone_are_evaluated():
    w, groups = cp.Variable(3, name="w"), ["a", "b", "c"]
    learner = dp.Template(
        record=dp.Record(g=dp.Choice(groups), y=dp.Box(-1, 1)),
        loss=lambda g, y: cp.square(w[groups.index(g)] - y),
        regularizer=1e-3 * cp.sum_squares(w),
        predict=lambda parameters, g: parameters["w"][np.searchsorted(groups, g)],
    )
    release = dp.Release({"w": [-0.5, 0.0, 0.5]}, not_private_because="a test").with_template(learner)
    assert release.labels is None
    np.testing.assert_array_equal(release.predict(["c", "a"]), [0.5, -0.5])
    refused(dp.DomainError, "field 'g'", release.predict, ["c", "d"])
    g = np.resize(groups, 3000)
    records = {"g": g, "y": np.searchsorted(groups, g) / 2 - 0.5}
    refused(dp.TemplateError, "features='g'", dp.evaluate, learner, release, records, dp.Privacy(9.0))
    found = dp.evaluate(learner, release, records, dp.Privacy(9.0), features="g", seed=0)
    assert found.error < 0.01 < found.constant
