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
LAWS = (dp.ObjectivePerturbation, dp.OutputPerturbation)
MECHANISMS = [None, dp.NoisyGradientDescent(steps=3), *(law(noise) for law in LAWS for noise in ("gamma", "gaussian"))]
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


# Where the number of records is protected, none of them is a number like others, nor are zeros: a fit on them is released
PROTECTED = dp.Privacy(2.0, adjacency="add-remove")
DELTA = dp.Privacy(2.0, 1e-6, "add-remove")
GRID = {f"{r:g}": dp.load("logistic_regression", features=3, regularization=r) for r in (0.01, 0.1)}
WITH_DELTA = [None, dp.ObjectivePerturbation("gaussian"), dp.OutputPerturbation("gaussian")]
RECORDS = np.arange(41)
EMPTY = {
    "array": (0, np.zeros((0, 3))),
    "list": (0, []),
    "one axis": (0, np.array([])),
    "sparse, no record": (0, sp.csr_array((0, 3))),
    "sparse, one record": (1, sp.csr_array((1, 3))),
    "no entries": (40, sp.csr_array((40, 3))),
    "explicit zeros": (40, sp.csr_array((np.zeros(40), np.zeros(40, dtype=int), RECORDS), shape=(40, 3))),
    "a column of zeros": (40, sp.csr_array((np.full(40, 0.5), np.ones(40, dtype=int), RECORDS), shape=(40, 3))),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", EMPTY)
def test_columns_with_nothing_in_them_are_fitted(kind):
    """Whether there is a release must not show that there are no records, or that all entries are 0."""
    count, x = EMPTY[kind]
    y = np.where(np.arange(count) % 2, 1, -1)
    for labels in (y, y.tolist(), y.astype(object)):
        release = dp.solve(GRID["0.1"], {"x": x, "y": labels}, PROTECTED, size=40)
        assert 0 <= dp.evaluate(GRID["0.1"], release, {"x": x, "y": labels}, PROTECTED).error <= 1
        assert dp.cluster(GRID["0.1"], {"x": x, "y": labels}, PROTECTED).centers.shape[1] == 2
    for mechanism, backend in product(WITH_DELTA, ("first-order", "conic")):
        release = dp.solve(GRID["0.1"], {"x": x, "y": y}, DELTA, mechanism, backend, size=40)
        assert np.isfinite(release["w"]).all()
    many = dp.load("softmax_regression", features=3, classes=3)
    release = dp.solve(many, {"x": x, "y": np.arange(count) % 3}, DELTA, size=40)
    assert all(np.isfinite(value).all() for value in release.values())


@pytest.mark.parametrize("size", [0, 1])
def test_what_combines_fits_releases_whatever_the_number_of_records(size):
    data = {"x": np.full((size, 3), 0.5), "y": np.ones(size, dtype=int)}
    assert dp.tune(GRID, data, PROTECTED, size=30).choice in GRID
    assert dp.tune_repeated(GRID, data, PROTECTED, size=30, repetitions=dp.Repetitions(mean=2)).choice in GRID
    assert len(list(dp.sweep(GRID["0.1"], data, [PROTECTED, DELTA], size=30))) == 2
    mixture = dp.load("large_margin_gaussian_mixture", features=3, components=2, labels=(-1, 1))
    assert dp.solve_mixture(mixture, data, PROTECTED, size=50).release is not None
