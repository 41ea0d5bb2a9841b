"""What needs no values is refused before anything is paid, at every entry; values are paid for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp

N = 12
X = np.random.default_rng(0).uniform(-0.5, 0.5, size=(N, 2))
Y = np.where(X[:, 0] > 0, 1, -1)

FORMS: dict[str, tuple[Callable[[], Any], str]] = {
    "another field": (lambda: {"x": X, "z": Y}, r"missing: \['y'\], extra: \['z'\]"),
    "a further field": (lambda: {"x": X, "y": Y, "z": Y}, r"missing: \[\], extra: \['z'\]"),
    "a missing field": (lambda: {"x": X}, r"missing: \['y'\]"),
    "no mapping": (lambda: [X, Y], "must map each declared field"),
    "too many columns": (lambda: {"x": np.c_[X, X], "y": Y}, r"expected shape \(n, 2\), got \(12, 4\)"),
    "no axis": (lambda: {"x": 1.0, "y": Y}, r"got \(\)"),
    "three axes": (lambda: {"x": X[:, :, None], "y": Y}, "expected shape"),
    "ragged rows": (lambda: {"x": [[1.0, 0.0], [1.0]], "y": [1, -1]}, "'x': not an array of numbers"),
    "other lengths": (lambda: {"x": X, "y": Y[:-1]}, "different numbers of records: {'x': 12, 'y': 11}"),
    "complex numbers": (lambda: {"x": X * 1j, "y": Y}, "expected real numbers"),
    "texts": (lambda: {"x": X.astype(str).tolist(), "y": Y}, "expected real numbers"),
    "times": (lambda: {"x": X.astype("M8[s]"), "y": Y}, "expected real numbers"),
    "a set": (lambda: {"x": {1.0, 2.0}, "y": Y}, r"got \(\)"),
    "None": (lambda: {"x": None, "y": Y}, r"got \(\)"),
    "a wide sparse matrix": (lambda: {"x": sp.csr_array(np.c_[X, X]), "y": Y}, "expected shape"),
    "sparse and complex": (lambda: {"x": sp.coo_array(X * 1j), "y": Y}, "expected real numbers"),
    "a sparse vector": (lambda: {"x": sp.coo_array(X[:, 0]), "y": Y}, r"got \(12,\)"),
    "wide chunks": (lambda: {"x": dp.Chunks([X[:6], X[6:, :1]]), "y": Y}, r"chunk 1: expected .*, got \(6, 1\)"),
    "short chunks": (lambda: {"x": dp.Chunks(lambda: iter([X[:6]])), "y": Y}, "different numbers of records"),
    "labels in two axes": (lambda: {"x": X, "y": Y[:, None]}, r"one value per record, got an array of shape \(12, 1\)"),
    "labels in lists": (lambda: {"x": X, "y": [[1]] * N}, r"one value per record, but row 0 is \[1\]"),
    "labels of another type": (lambda: {"x": X, "y": Y.astype(str)}, "none of the declared values"),
    "labels in an iterator": (lambda: {"x": X, "y": iter(Y.tolist())}, "expected one value per record"),
    "labels in a mapping": (lambda: {"x": X, "y": dict(enumerate(Y))}, "expected one value per record"),
    "sparse labels": (lambda: {"x": X, "y": sp.csr_array(Y[:, None])}, "expected one value per record"),
    "a partition with another width": (
        lambda: dp.Partitions([{"x": X, "y": Y}, {"x": X[:, :1], "y": Y}]),
        "partition 1: field 'x': expected shape",
    ),
    "a partition with other fields": (lambda: dp.Partitions([{"x": X, "y": Y}, {"x": X}]), "partition 1: .*missing"),
    "a partition with other lengths": (
        lambda: dp.Partitions([{"x": X, "y": Y[1:]}]),
        "partition 0: .*different numbers",
    ),
}
VALUES: dict[str, Callable[[], Any]] = {
    "NaN": lambda: {"x": np.where(X[3, 0] == X, np.nan, X), "y": Y},
    "outside": lambda: {"x": 9 * X, "y": Y},
    "an unknown label": lambda: {"x": X, "y": np.where(Y > 0, 2, Y)},
}


def learner(regularization: float = 0.1) -> dp.Template:
    return dp.load("logistic_regression", features=2, regularization=regularization)


ENTRIES: dict[str, Callable[[Any, Any, dp.Budget], Any]] = {
    "solve": lambda data, promise, budget: dp.solve(learner(), data, promise, budget=budget, **sized(promise)),
    "solve, whitened": lambda data, promise, budget: dp.solve(
        learner(), data, promise, budget=budget, whitening=True, **sized(promise)
    ),
    "statistics": lambda data, promise, budget: dp.statistics(
        dp.load("least_squares_classifier", features=2), data, promise, budget=budget, **sized(promise)
    ),
    "cluster": lambda data, promise, budget: dp.cluster(learner(), data, promise, 2, group="y", budget=budget),
    "tune": lambda data, promise, budget: dp.tune(
        [learner(), learner(1.0)], data, promise, budget=budget, **sized(promise)
    ),
    "tune, undivided": lambda data, promise, budget: dp.tune(
        [learner(), learner(1.0)], data, promise, split=False, budget=budget, **sized(promise)
    ),
    "tune_repeated": lambda data, promise, budget: dp.tune_repeated(
        [learner(), learner(1.0)], data, promise, budget=budget, **sized(promise)
    ),
    "sweep": lambda data, promise, budget: list(
        dp.sweep(learner(), data, total=promise, draws=2, budget=budget, **sized(promise))
    ),
    "solve_mixture": lambda data, promise, budget: dp.solve_mixture(
        dp.load("large_margin_gaussian_mixture", features=2, components=2, labels=(-1, 1)),
        data,
        promise,
        budget=budget,
        **sized(promise),
    ),
    "evaluate": lambda data, promise, budget: dp.evaluate(
        learner(), dp.minimize(learner(), {"x": X, "y": Y}), data, promise, budget=budget
    ),
}


def sized(promise: dp.Privacy) -> dict[str, Any]:
    return {"size": N} if promise.adjacency == "add-remove" else {}


def charged(entry: str, data: Callable[[], Any], adjacency: Any, said: str = ".") -> int:
    promise = dp.Privacy(2.0, 1e-6, adjacency)
    budget = dp.Budget(dp.Privacy(9.0, 1e-3, adjacency))
    with pytest.raises(dp.DPConvexError, match=said):
        ENTRIES[entry](data(), promise, budget)
    return len(budget.entries)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("form", FORMS)
def test_a_wrong_form_costs_nothing(form: str, adjacency: Any) -> None:
    make, said = FORMS[form]
    assert charged("solve", make, adjacency, said if adjacency == "add-remove" else ".") == 0


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_entry_charges_for_a_wrong_form(entry: str) -> None:
    for form in ("a missing field", "too many columns", "other lengths", "texts", "labels in two axes"):
        assert charged(entry, FORMS[form][0], "add-remove") == 0, form


@pytest.mark.parametrize("values", VALUES)
def test_wrong_values_are_paid_for(values: str) -> None:
    assert charged("solve", VALUES[values], "replace-one") == 1


def test_no_records_are_refused_unless_their_number_is_protected() -> None:
    assert charged("solve", lambda: {"x": X[:0], "y": Y[:0]}, "replace-one") == 0


def test_what_dask_says_of_its_arrays_is_looked_at() -> None:
    da = pytest.importorskip("dask.array")
    for x in (np.c_[X, X], X.astype(str)):
        data = {"x": da.from_array(x, chunks=(6, -1)), "y": da.from_array(Y, chunks=6)}
        assert charged("solve", lambda data=data: data, "add-remove") == 0  # type: ignore[misc]


def test_an_estimator_looks_at_the_form_of_partitions() -> None:
    pytest.importorskip("sklearn")
    budget = dp.Budget(dp.Privacy(9.0))
    parts = dp.Partitions([{"x": X, "y": Y}, {"x": X[:, :1], "y": Y}])
    with pytest.raises(dp.DomainError, match="partition 1: field 'x': expected shape"):
        dp.LogisticRegression(epsilon=1.0, classes=(-1, 1), budget=budget).fit(parts)
    assert not budget.entries


def test_private_bounds_are_numbers_before_they_are_paid_for() -> None:
    import cvxpy as cp

    room, x = dp.PrivateBound("room", shape=2, sensitivity=1.0, minimum=0.0), cp.Variable(2, nonneg=True, name="x")
    problem, budget = cp.Problem(cp.Maximize(cp.sum(x)), [x <= room.parameter]), dp.Budget(dp.Privacy(9.0, 1e-3))
    for values in (["a", "b"], [1.0], [1j, 2j]):
        with pytest.raises(dp.DPConvexError):
            dp.solve_bounded(problem, {room: values}, dp.Privacy(1.0, 1e-6), budget=budget)
    assert not budget.entries


def test_labels_of_mixed_types_have_the_form_of_labels() -> None:
    record = dp.Record(x=dp.Ball(2), y=dp.Choice(["a", 1, (0, 1)]))
    data = {"x": X[:4], "y": ["a", (0, 1), 1, "a"]}
    record.check_form(data)
    assert record.validate(data).group.tolist() == [0, 2, 1, 0]
    for column in (np.array([0.5, 1.0], dtype=object), sp.csr_array(X[:2]), dp.Chunks([X[:1], X[1:2].tolist()])):
        shape = dp.Record(x=dp.Box(0.0, 1.0) if isinstance(column, np.ndarray) else dp.Ball(2))
        shape.check_form({"x": column})
