"""Sums over records in partitions: those of all records at once, up to rounding, for every mechanism; and what is refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from threading import Event

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from learners_of_tests import CUTS, X, Y, pieces
from refused import refused

import dpconvex as dp
from dpconvex.data.batch import Batch, PartitionedBatch
from dpconvex.expressions.parameter_space import Space
from dpconvex.noise.samplers import NoiseSource
from dpconvex.sums.batch_loss import BatchedLoss, part_of
from dpconvex.sums.engine import FEWEST
from dpconvex.sums.forms import form_of
from dpconvex.sums.hessian_sums import HessianSums
from dpconvex.util.runtime import in_order
from dpconvex.util.summation import SumLengths

DATA = {"x": X, "y": Y}


def cut(data=DATA, cuts=CUTS):
    return dp.Partitions(pieces(data, cuts))


def learner(loss=lambda y, score: cp.logistic(-y * score)):
    w, record = cp.Variable(3, name="w"), dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1]))
    return dp.Template(record, lambda x, y: loss(y, x @ w), 0.05 * cp.sum_squares(w), [cp.norm(w) <= 5])


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_sums_are_those_of_all_records_up_to_rounding(kind):
    data = DATA if kind == "dense" else {**DATA, "x": sp.csr_array(X)}
    template = learner()
    space, theta = Space(template.variables), np.array([1.0, -2.0, 0.5])
    losses = [BatchedLoss(template, space, template.record.validate(d)) for d in (data, cut(data))]
    one, many = losses
    rounding = SumLengths(3, 1, 1).gradient_error(700, 1.0, 0.25, 3.0, 0.0)
    assert np.linalg.norm(one.gradient(theta) - many.gradient(theta)) <= 2 * rounding
    assert many.value_and_gradient(theta)[0] == pytest.approx(one.value_and_gradient(theta)[0], rel=1e-14)
    np.testing.assert_allclose(many.hessian(theta), one.hessian(theta), 1e-13)
    chosen = np.random.default_rng(0).random(700) < 0.3
    for some in (None, chosen):
        clipped = [loss.clipped_gradient(theta, 0.1, some) for loss in losses]
        np.testing.assert_allclose(clipped[1], clipped[0], rtol=0, atol=2 * rounding)


def test_a_form_comes_out_of_its_bytes_as_it_was():
    cloudpickle = pytest.importorskip("cloudpickle")
    plus = dp.Atom("smooth", lambda m: np.sqrt(1 + m**2), slope=(-1.0, 1.0), curvature=1.0)
    own = learner(lambda y, score: plus(1 - y * score) + cp.exp(-5 + cp.square(score)))
    for template in (learner(), own, dp.load("large_margin_gaussian", features=3, classes=3)):
        space = Space(template.variables)
        batch = template.record.sample(50, np.random.default_rng(1))
        program = form_of(template, space)
        again = pickle.loads(cloudpickle.dumps(program))
        theta = np.random.default_rng(2).normal(size=space.dim)
        found = [part_of(batch, form, "gradient_and_value", (theta,)) for form in (again, program)]
        assert (found[0] == found[1]).all()
        assert (pickle.loads(pickle.dumps(batch)).group == batch.group).all()


Q, TWO = dp.Privacy(2.0, 1e-6), dp.Privacy(2.0)
ADDED, PURE = (dp.Privacy(2.0, delta, adjacency="add-remove") for delta in (1e-6, 0.0))
PREDICTING, HUBER = (dp.load(name, features=3) for name in ("logistic_regression", "huber_regression"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("privacy", "options"),
    [
        (TWO, {}),
        (Q, {"mechanism": dp.OutputPerturbation()}),
        (Q, {"mechanism": dp.NoisyGradientDescent(steps=4)}),
        (Q, {"mechanism": dp.NoisyGradientDescent(steps=4, clip=0.5)}),
        (ADDED, {"mechanism": dp.NoisyGradientDescent(steps=4, clip=0.5, sampling=0.2), "size": 700}),
        (ADDED, {"size": 700}),
        (ADDED, {"mechanism": dp.AdaptiveSteps(), "size": 700}),
    ],
    ids=["objective", "output", "descent", "clipped", "sampled", "added", "adaptive"],
)
def test_every_mechanism_gives_the_same_release(privacy, options, monkeypatch):
    made, original = [], NoiseSource.__init__
    monkeypatch.setattr(NoiseSource, "__init__", lambda *source: (made.append(source[1]), original(*source))[1])
    one, many = (dp.solve(learner(), d, privacy, seed=1, **options) for d in (DATA, cut()))
    assert made == [1, 1]  # noise is drawn once, however many partitions there are
    assert one.certificate.noise_scale == many.certificate.noise_scale
    apart = 1e-6 + 2 * one.certificate.tolerance  # adaptive steps have none, and are the same to the bit
    np.testing.assert_allclose(many["w"], one["w"], rtol=0, atol=apart if np.isfinite(apart) else 0)


MODEL = dp.Release({"w": [1.0, 0.2, 0.0]}, not_private_because="a test", predictor=PREDICTING.predict)
LINE = dp.Release({"w": [0.5, 0.0, 0.1]}, not_private_because="a test", predictor=HUBER.predict)
GRID = {f"{r:g}": dp.load("logistic_regression", features=3, regularization=r) for r in (1e-3, 0.1)}


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("template", "model"), [(PREDICTING, MODEL), (HUBER, LINE)], ids=["labels", "numbers"])
def test_an_evaluation_has_the_bits_of_one_in_memory(adjacency, template, model):
    data = DATA if template is PREDICTING else {"x": X, "y": np.clip(X[:, 0], -1, 1)}
    promise = dp.Privacy(1.0, adjacency=adjacency)
    found, expected = (dp.evaluate(template, model, some, promise, seed=3) for some in (cut(data), data))
    assert found.to_dict() == expected.to_dict()


@pytest.mark.parametrize(("privacy", "options"), [(TWO, {}), (PURE, {"size": 700}), (TWO, {"split": False})])
def test_tuning_is_the_same(privacy, options):
    expected, budget = dp.tune(GRID, DATA, privacy, seed=4, **options), dp.Budget(privacy)
    found = dp.tune(GRID, cut(), privacy, seed=4, budget=budget, **options)
    assert found.choice == expected.choice
    np.testing.assert_allclose(found.release["w"], expected.release["w"], rtol=0, atol=1e-6)
    assert len(budget.entries) == 1


def test_nobody_gets_at_the_records():
    batch = learner().record.validate(cut())
    assert isinstance(batch, PartitionedBatch)
    assert isinstance(batch, Batch)
    for look in (lambda: batch.fields["x"], lambda: len(batch.group), lambda: batch.rows(0), lambda: [*batch.fields]):
        refused(dp.TemplateError, "in partitions", look)
    refused(dp.TemplateError, "in partitions", learner().problem, cut())


def test_no_records_at_all():
    template, empty = learner(), cut(cuts=[0, 0, 0])
    refused(dp.DomainError, "no record to learn from", template.record.validate, empty)
    release = dp.solve(template, empty, ADDED, size=700, seed=1)
    expected = dp.solve(template, {"x": np.zeros((0, 3)), "y": []}, ADDED, size=700, seed=1)
    np.testing.assert_allclose(release["w"], expected["w"], rtol=0, atol=1e-9)


# Threads over blocks: order, bounds, errors, and the limit on the linear algebra library
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

    refused(FloatingPointError, "first block", list, in_order([fail, work], 2))
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
    mapped = np.load(folder / "x.npy", mmap_mode="r")
    return {"dense": x, "single": x.astype(np.float32), "mapped": mapped, "sparse": sp.csr_array(x)}


@pytest.mark.parametrize("name", ["softmax_regression", "large_margin_gaussian"])
def test_bits_do_not_depend_on_how_many_threads_run(name, tmp_path, monkeypatch):
    monkeypatch.setattr("dpconvex.sums.engine.BLOCK_BYTES", 2**16)
    monkeypatch.setattr("dpconvex.sums.engine.LARGE", 1)
    template = dp.load(name, features=6, classes=5)
    space, rng = Space(template.variables), np.random.default_rng(0)
    size = 5 * FEWEST + 77
    data = rng.normal(size=(size, 6)) / 9 * (rng.random((size, 6)) < 0.5)
    y, theta = rng.integers(0, 5, size), rng.normal(size=space.dim)
    for kind, x in columns(data, tmp_path).items():
        found = []
        for workers in (1, 3):
            monkeypatch.setattr("dpconvex.sums.engine.one_blas_thread", partial(nullcontext, workers))
            batch = template.record.validate({"x": x, "y": y})
            engine = HessianSums(form_of(template, space), batch)
            assert len(engine.shares) >= 3
            found.append((engine.gradient_and_value(theta), engine.hessian(theta, 1)))
        assert all((a == b).all() for a, b in zip(*found, strict=True)), kind
