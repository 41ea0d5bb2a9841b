"""Threads over blocks: order, bounds, errors, and the limit on the linear algebra library."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from threading import Event

import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.expressions.parameter_space import Space
from dpconvex.sums.engine import FEWEST, RecordSums
from dpconvex.sums.forms import form_of
from dpconvex.util.runtime import in_order


def test_what_was_begun_comes_before_a_refusal_of_what_would_come_next():
    """Fits that are paid for are not lost because the next one cannot be paid."""
    done = []

    def tasks():
        for k in range(3):
            yield lambda k=k: (time.sleep(0.02), k)[1]
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        done.extend(in_order(tasks(), 4))  # extends by one after the other
    assert done == [0, 1, 2]


def test_nothing_runs_on_after_an_error():
    begun, ended = Event(), []

    def fail():
        begun.wait(30)
        raise FloatingPointError("first block")

    def work():
        begun.set()
        time.sleep(0.2)
        ended.append(True)

    with pytest.raises(FloatingPointError, match="first block"):
        list(in_order([fail, work], 2))
    assert ended == [True]


def test_settings_of_the_caller_hold_in_tasks():
    with np.errstate(over="raise"), pytest.raises(FloatingPointError):
        list(in_order([lambda: np.float64(1e300) * np.float64(1e300)] * 4, 2))


FORK = """
import os
from dpconvex.util.runtime import controller, in_order, one_blas_thread

def most():
    return max((found["num_threads"] for found in controller().info()), default=1)

before, numbers = most(), list(range(9))
work = lambda: list(in_order([lambda k=k: k for k in numbers], 2))
assert work() == numbers
with one_blas_thread():
    child = os.fork()
    if child == 0:
        with one_blas_thread():
            os._exit(0 if work() == numbers else 1)
    assert os.waitpid(child, 0)[1] == 0
    with one_blas_thread() as threads:
        assert threads == before
    assert most() == 1
try:
    with one_blas_thread():
        raise ValueError
except ValueError:
    pass
assert most() == before
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system does not fork")
def test_threads_work_after_a_fork():
    subprocess.run([sys.executable, "-c", FORK], check=True, timeout=60)


def columns(x, folder):
    np.save(folder / "x.npy", x)
    return {
        "dense": x,
        "single": x.astype(np.float32),
        "mapped": np.load(folder / "x.npy", mmap_mode="r"),
        "sparse": sp.csr_array(x),
    }


@pytest.mark.parametrize("name", ["softmax_regression", "large_margin_gaussian"])
def test_bits_do_not_depend_on_how_many_threads_run(name, tmp_path, monkeypatch):
    monkeypatch.setattr("dpconvex.sums.engine.BLOCK_BYTES", 2**16)
    monkeypatch.setattr("dpconvex.sums.engine.LARGE", 1)
    template = dp.load(name, features=6, classes=5)
    space = Space(template.variables)
    rng = np.random.default_rng(0)
    size = 5 * FEWEST + 77
    data = rng.normal(size=(size, 6)) / 9 * (rng.random((size, 6)) < 0.5)
    y = rng.integers(0, 5, size)
    theta = rng.normal(size=space.dim)
    for kind, x in columns(data, tmp_path).items():
        found = []
        for workers in (1, 3):
            monkeypatch.setattr("dpconvex.sums.engine.one_blas_thread", partial(nullcontext, workers))
            batch = template.record.validate({"x": x, "y": y})
            engine = RecordSums(form_of(template, space), batch)
            assert len(engine.plans) >= 3
            found.append((engine.gradient_and_value(theta), engine.hessian(theta, 1)))
        assert all((a == b).all() for a, b in zip(*found, strict=True)), kind
