"""Partitions on the workers of a Dask cluster: equal bits, errors, lost workers, and what is logged."""

import logging
import os
import signal
from contextlib import contextmanager
from itertools import count

import pytest
from learners_of_tests import X, Y, in_files, pieces
from refused import refused

import dpconvex as dp

distributed = pytest.importorskip("distributed")
delayed = pytest.importorskip("dask.delayed").delayed
IGNORED = ("DeprecationWarning", "ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in IGNORED]

Q = dp.Privacy(2.0, 1e-6)
PIECES = pieces({"x": X, "y": Y})
HERE = dp.Partitions(PIECES)  # of arrays in this process, which are not sent away
LEARNER = dp.load("logistic_regression", features=3)


@contextmanager
def cluster(processes=False):
    """Start two workers of one thread each, on this machine only, without a dashboard; yields their client."""
    address = "127.0.0.1:0"
    options = {"host": "127.0.0.1"} if processes else {}
    options |= {"threads_per_worker": 1, "processes": processes, "memory_limit": 0, "dashboard_address": address}
    options |= {"worker_dashboard_address": address, "scheduler_kwargs": {"dashboard": False}}
    with distributed.LocalCluster(2, **options) as made, distributed.Client(made) as client:
        yield client


@pytest.fixture(scope="module")
def client():
    with cluster() as found:
        yield found


def fitted(data, **options):
    return dp.solve(LEARNER, data, Q, seed=1, **options)["w"]


def on_workers(data):
    batch = LEARNER.record.validate(data)
    assert type(batch.place).__name__ == "Workers"
    return batch


def delays(keep=None):
    return dp.Partitions(list(map(delayed, PIECES)), keep=keep)


DESCENT = dp.NoisyGradientDescent(steps=3, clip=0.5)


@pytest.mark.parametrize("options", [{"mechanism": dp.OutputPerturbation()}, {"mechanism": DESCENT}])
def test_mechanisms_have_the_same_bits_on_workers(client, options):
    expected = fitted(HERE, **options)
    assert all((fitted(delays(keep), **options) == expected).all() for keep in (None, False))


def arrays(client, folder):
    da, rows = pytest.importorskip("dask.array"), tuple(len(piece["y"]) for piece in PIECES)
    return {"x": da.from_array(X, chunks=(rows, (2, 1))), "y": da.from_array(Y, chunks=350)}


KINDS = {
    "array": arrays,
    "futures": lambda client, folder: {name: client.scatter([p[name] for p in PIECES]) for name in "xy"},
    "functions": lambda client, folder: dp.Partitions([lambda piece=piece: piece for piece in PIECES]),
    "files": lambda client, folder: in_files(folder, {"x": X, "y": Y}),
}


@pytest.mark.parametrize("kind", [k if k == "files" else pytest.param(k, marks=pytest.mark.slow) for k in KINDS])
def test_whatever_holds_the_records(client, tmp_path, kind):
    data = KINDS[kind](client, tmp_path)
    found = fitted(data)
    assert on_workers(data).sizes == (1, 299, 0, 5, 395)
    assert (found == fitted(HERE)).all()


def test_a_bad_record_is_named_and_not_logged(client, caplog):
    parts, x, budget = list(map(delayed, PIECES)), PIECES[3]["x"].copy(), dp.Budget(Q)
    x[2, 1] = 4321.0
    parts[3] = delayed({**PIECES[3], "x": x})
    with caplog.at_level(logging.DEBUG), pytest.raises(dp.DomainError, match=r"partition 3: field 'x'.*row 2"):
        fitted(dp.Partitions(parts), budget=budget)
    assert len(budget.entries) == 1
    assert "4321" not in caplog.text
    assert "partition 3" not in caplog.text


def on_round(monkeypatch, number, act):
    original, rounds = distributed.wait, count(1)

    def wait(*arguments, **options):
        if next(rounds) == number:
            act()
        return original(*arguments, **options)

    monkeypatch.setattr(distributed, "wait", wait)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_time_only(monkeypatch):
    expected, budget = fitted(HERE), dp.Budget(Q)
    with cluster(processes=True) as client:
        victims = list(client.run(os.getpid).values())
        on_round(monkeypatch, 5, lambda: os.kill(victims[0], signal.SIGKILL))
        assert (fitted(delays(), budget=budget) == expected).all()
        assert victims[0] not in client.run(os.getpid).values()
    assert len(budget.entries) == 1


def test_without_a_scheduler_there_is_no_release(monkeypatch):
    budget = dp.Budget(Q)
    with cluster() as client:
        on_round(monkeypatch, 5, client.cluster.close)
        refused(dp.WorkersLost, "nothing is released, and the charge stays", fitted, delays(), budget=budget)
    assert len(budget.entries) == 1


def test_a_partition_that_changes_is_refused(client, tmp_path):
    def some():
        rows = len(list(tmp_path.iterdir())) + 10
        (tmp_path / f"{rows}").touch()
        return {"x": X[:rows], "y": Y[:rows]}

    data = dp.Partitions([delayed(some, pure=False)(), delayed({"x": X, "y": Y})], keep=False)
    changed = "partition 0: its records have changed since the check"
    refused(dp.DomainError, changed, dp.solve, LEARNER, data, dp.Privacy(1.0, adjacency="add-remove"), size=700, seed=1)


class Unsendable(Exception):
    def __reduce__(self):
        raise TypeError("stays here")


def raising(error):
    raise type(error)(*error.args)


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone", "x7.npy"), ValueError("4321"), Unsendable("4321")])
def test_a_partition_that_nobody_can_make_is_named(client, error):
    parts, said = [delayed(PIECES[4]), delayed(raising)(error)], rf"partition 1 cannot be read \({type(error).__name__}"
    if isinstance(error, Unsendable):  # raised by a function, where Dask does not see it
        parts, said = [lambda: PIECES[4], lambda: raising(Unsendable("4321"))], "a partition cannot be read: Unsendable"
    with pytest.raises(dp.DomainError, match=said) as found:
        dp.solve(LEARNER, dp.Partitions(parts), dp.Privacy(1.0, adjacency="add-remove"), size=700)
    assert "4321" not in str(found.value)
