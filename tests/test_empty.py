"""Where the number of records is protected, none of them is a number like others: a fit on them is released."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp

PROTECTED = dp.Privacy(2.0, adjacency="add-remove")
DELTA = dp.Privacy(2.0, 1e-6, "add-remove")
NOTHING: dict[str, Any] = {"x": np.zeros((0, 3)), "y": np.zeros(0, dtype=int)}
GRID = {f"{r:g}": dp.load("logistic_regression", features=3, regularization=r) for r in (0.01, 0.1)}


LEARNER = GRID["0.1"]
CHUNKS = {"no chunks": dp.Chunks([]), "an empty chunk": dp.Chunks([np.zeros((0, 3))])}
COLUMNS = {"array": np.zeros((0, 3)), "list": [], "one axis": np.array([]), "csr": sp.csr_array((0, 3)), **CHUNKS}


@pytest.mark.parametrize("x", COLUMNS.values(), ids=COLUMNS)
def test_columns_without_records_are_fitted(x: Any) -> None:
    for y in (np.zeros(0, dtype=int), [], np.array([], dtype=object)):
        release = dp.solve(LEARNER, {"x": x, "y": y}, PROTECTED, size=30)
        assert np.isfinite(release["w"]).all()
        assert 0 <= dp.evaluate(LEARNER, release, {"x": x, "y": y}, PROTECTED).error <= 1
        assert dp.cluster(LEARNER, {"x": x, "y": y}, PROTECTED).count == 2


@pytest.mark.parametrize(
    "mechanism", [None, dp.ObjectivePerturbation("gaussian"), dp.OutputPerturbation("gaussian")], ids=repr
)
@pytest.mark.parametrize("backend", ["first-order", "conic"])
def test_every_mechanism_fits_nothing(mechanism: Any, backend: str) -> None:
    assert dp.solve(LEARNER, NOTHING, DELTA, mechanism, backend, size=30).certificate is not None


@pytest.mark.parametrize("size", [0, 1])
def test_tuning_releases_whatever_the_number_of_records(size: int) -> None:
    data = {"x": np.full((size, 3), 0.5), "y": np.ones(size, dtype=int)}
    assert dp.tune(GRID, data, PROTECTED, size=30).choice in GRID
    assert dp.tune_repeated(GRID, data, PROTECTED, size=30, repetitions=dp.Repetitions(mean=2)).choice in GRID
    assert len(list(dp.sweep(LEARNER, data, [PROTECTED, DELTA], size=30))) == 2


def test_mixtures_and_clusters_of_nothing() -> None:
    mixture = dp.load("large_margin_gaussian_mixture", features=2, components=2)
    data: dict[str, Any] = {"x": np.zeros((0, 2)), "y": []}
    assert dp.cluster(mixture, data, PROTECTED, components=2).count == 2
    assert dp.solve_mixture(mixture, data, dp.Privacy(4.0, adjacency="add-remove"), size=50).release is not None


@pytest.mark.parametrize("name", ["LogisticRegression", "KernelSVC", "LargeMarginGaussianMixture"])
def test_estimators_fit_nothing(name: str) -> None:
    fitted = getattr(dp, name)(adjacency="add-remove", size=30, classes=(-1, 1)).fit(np.zeros((0, 3)), [])
    assert fitted.predict(np.zeros((2, 3))).shape == (2,)


CALLS: dict[str, Callable[[], Any]] = {
    "solve": lambda: dp.solve(LEARNER, NOTHING, dp.Privacy(1.0)),
    "sweep": lambda: list(dp.sweep(LEARNER, NOTHING, dp.Privacy(1.0))),
    "tune_repeated": lambda: dp.tune_repeated(GRID, NOTHING, dp.Privacy(1.0)),
    "minimize": lambda: dp.minimize(LEARNER, NOTHING),
    "validate": lambda: LEARNER.record.validate(NOTHING),
}


@pytest.mark.parametrize("call", CALLS)
def test_where_the_number_is_public_none_are_an_error(call: str) -> None:
    with pytest.raises(dp.DomainError, match="no record to learn from"):
        CALLS[call]()


EMPTY: dict[str, Any] = {
    "no entries": sp.csr_array((40, 3)),
    "explicit zeros": sp.csr_array((np.zeros(40), np.zeros(40, dtype=int), np.arange(41)), shape=(40, 3)),
    "a column of zeros": sp.csr_array((np.full(40, 0.5), np.ones(40, dtype=int), np.arange(41)), shape=(40, 3)),
    "one record": sp.csr_array((1, 3)),
    "no record": sp.csr_array((0, 3)),
}


@pytest.mark.parametrize("x", EMPTY.values(), ids=EMPTY)
def test_sparse_columns_with_nothing_in_them_are_fitted(x: Any) -> None:
    """Whether there is a release must not show that all entries are 0."""
    y = np.where(np.arange(x.shape[0]) % 2, 1, -1)
    for backend, mechanism in (("first-order", None), ("conic", None), ("first-order", dp.OutputPerturbation())):
        release = dp.solve(LEARNER, {"x": x, "y": y}, PROTECTED, mechanism, size=40, backend=backend)
        assert np.isfinite(release["w"]).all()
    many = dp.load("softmax_regression", features=3, classes=3)
    release = dp.solve(many, {"x": x, "y": np.arange(x.shape[0]) % 3}, DELTA, size=40)
    assert all(np.isfinite(value).all() for value in release.values())
