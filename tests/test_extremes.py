"""Extreme and malformed arguments of everything public: refused in words, with what to do, and never with a bare Python error."""

import inspect
from itertools import product

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.datasets import unit_ball

X = np.eye(3)[np.arange(30) % 3]
DATA = {"x": X, "y": np.where(np.arange(30) % 2, 1, -1)}
LEARNER = dp.load("logistic_regression", features=3)
PROMISE = dp.Privacy(1.0)
W = cp.Variable(3, name="w")
KINKED = dp.Template(LEARNER.record, lambda x, y: cp.pos(1 - y * (x @ W)), 0.05 * cp.sum_squares(W), [cp.norm(W) <= 1])
MECHANISMS = [
    *(None, dp.NoisyGradientDescent(steps=3)),
    *(law(noise) for law in (dp.ObjectivePerturbation, dp.OutputPerturbation) for noise in ("gamma", "gaussian")),
]
EXTREME = [(5e-324, 0.0), (1.7e308, 0.0), (1e-300, 1e-6), (1e300, 1e-6), (1.0, 5e-324), (1.0, 1e-300), (1e-99, 1e-99)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("promise", EXTREME, ids=str)
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_extreme_promises_are_kept_or_refused(promise, mechanism):
    privacy = dp.Privacy(*promise)
    for template in (LEARNER, KINKED):
        try:
            certificate = dp.verify(template, privacy, 30, mechanism)
        except dp.DPConvexError as error:
            assert len(getattr(error, "remedy", None) or str(error)) > 20  # noqa: PT017
        else:
            assert 0 < certificate.noise_scale < np.inf
            assert str(certificate)
    if not 1e-100 <= privacy.epsilon <= 1e100:
        with pytest.raises(dp.NotPrivate, match="so extreme a guarantee"):
            dp.verify(LEARNER, privacy, 30)


@pytest.mark.parametrize("promise", EXTREME, ids=str)
def test_nothing_is_paid_for_an_extreme_promise_that_is_refused(promise):
    privacy, budget = dp.Privacy(*promise), dp.Budget(dp.Privacy(1.7e308, 0.5))
    for use in (
        lambda: dp.solve(LEARNER, DATA, privacy, budget=budget),
        lambda: dp.cluster(LEARNER.record, DATA, privacy, budget=budget),
        lambda: dp.tune_repeated([LEARNER], DATA, privacy, repetitions=dp.Repetitions(mean=2), budget=budget),
    ):
        before = len(budget.entries)
        try:
            use()
        except dp.DPConvexError as error:
            assert len(budget.entries) == before or not isinstance(error, dp.NotPrivate)  # noqa: PT017


BAD = [
    *(None, True, -1, 0, 1.5, 1e300, -1e300, 1e-320, float("nan"), float("inf"), 10**400, 10**13, np.float64("nan"), 3 + 1j),
    *("x", "", b"x", [], [1], {}, {"a": 1}, (), [[1], 2], range(3), np.zeros(3), np.array("x"), sp.eye_array(3)),
    *(object(), lambda *a, **k: 1, type, int),
]  # fmt: skip
# Calls with what they need; each of their options is then given everything that is bad.
CALLS = {
    dp.Privacy: {"epsilon": 1},
    dp.Ball: {"dim": 3},
    dp.Box: {"lower": 0, "upper": 1},
    dp.Choice: {"values": [1, 2]},
    dp.Record: {"x": dp.Ball(3)},
    dp.Budget: {"privacy": PROMISE},
    dp.ObjectivePerturbation: {},
    dp.OutputPerturbation: {},
    dp.NoisyGradientDescent: {},
    dp.ResidualNoise: {},
    dp.Repetitions: {},
    dp.NoisyKMeans: {},
    dp.ConicSolver: {},
    dp.ComponentCenters: {"centers": [[[0.0], [0.5]]]},
    dp.Release: {"parameters": {"w": [1.0]}, "spent": PROMISE},
    dp.Release.load: {"path": __file__},
    unit_ball: {"X": X, "lower": -1, "upper": 1, "clip": True},
    dp.RandomFourierFeatures: {"features": 2, "components": 3},
    dp.load: {"name_or_path": "logistic_regression", "features": 3, "regularization": 0.01, "radius": 1.0},
    dp.verify: {"template": LEARNER, "privacy": PROMISE, "size": 30},
    dp.solve_without_privacy: {"template": LEARNER, "data": DATA},
    dp.solve: {"template": LEARNER, "data": DATA, "privacy": PROMISE},
    dp.cluster: {"record": LEARNER.record, "data": DATA, "privacy": PROMISE},
}


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__qualname__)
def test_what_is_wrong_is_said_in_words(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # ledgers are files
    named = {name for name, option in inspect.signature(call).parameters.items() if option.kind != option.VAR_KEYWORD}
    for option, bad in product(sorted(named | set(CALLS[call])), BAD):
        try:
            made = call(**{**CALLS[call], option: bad})
            if isinstance(made, dp.RandomFourierFeatures):
                made.transform(np.zeros((2, 2)))
        except dp.DPConvexError as error:
            assert len(str(error)) > 15, (option, bad)  # noqa: PT017
        except FileNotFoundError:
            assert option == "path"
