"""Estimators take partitions: what they release is what they release of the same table in memory, up to rounding."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dpconvex as dp

pytest.importorskip("sklearn")

CUTS = [0, 1, 300, 300, 305, 700]
RNG = np.random.default_rng(5)
X: NDArray[np.float64] = RNG.normal(size=(700, 3))
X /= np.linalg.norm(X, axis=1, keepdims=True) * RNG.uniform(1, 2, size=(700, 1))
Y = np.where(X[:, 0] + 0.3 * RNG.normal(size=700) > 0, "yes", "no")
Z = 50 + 40 * X[:, 0]
LABELS = ("no", "yes")


def cut(y: Any = Y, x: Any = X) -> dp.Partitions:
    return dp.Partitions([{"x": x[a:b], "y": y[a:b]} for a, b in pairwise(CUTS)])


def in_files(folder: Path, y: Any = Y) -> dp.Partitions:
    entries = []
    for k, (a, b) in enumerate(pairwise(CUTS)):
        entries.append({name: folder / f"{name}{k}.npy" for name in "xy"})
        np.save(folder / f"x{k}.npy", X[a:b])
        np.save(folder / f"y{k}.npy", y[a:b])
    return dp.Partitions(entries)


MODELS: dict[str, tuple[Any, Any]] = {
    "logistic": (lambda: dp.LogisticRegression(classes=LABELS, seed=1, epsilon=2.0), Y),
    "kernel": (lambda: dp.KernelSVC(classes=LABELS, seed=1, epsilon=9.0, components=5, fit_intercept=True), Y),
    "line": (lambda: dp.LinearRegression(bounds=(0, 100), seed=1, epsilon=2.0, delta=1e-6, fit_intercept=True), Z),
    "mixture": (lambda: dp.LargeMarginGaussianMixture(classes=LABELS, seed=1, epsilon=9.0), Y),
    "own": (lambda: dp.PrivateEstimator(dp.load("logistic_regression", features=3, labels=LABELS), seed=1), Y),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_fit_to_partitions_is_one_to_the_table(name: str, tmp_path: Path) -> None:
    make, y = MODELS[name]
    expected = make().fit(X, y)
    for parts in (cut(y), in_files(tmp_path, y)):
        found = make().fit(parts)
        for parameter, value in expected.release_.items():
            np.testing.assert_allclose(found.release_[parameter], value, rtol=0, atol=1e-6)
        assert found.n_features_in_ == 3
        assert not hasattr(found, "feature_names_in_")
        if y is Y:
            assert (found.predict(X) == expected.predict(X)).mean() > 0.99
            assert list(found.classes_) == list(LABELS)
        else:
            np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=0, atol=1e-3)


def test_arrays_and_frames_of_dask() -> None:
    da, dd, pd = (pytest.importorskip(name) for name in ("dask.array", "dask.dataframe", "pandas"))
    expected = dp.LogisticRegression(classes=LABELS, seed=1).fit(X, Y)
    rows = tuple(b - a for a, b in pairwise(CUTS))
    found = dp.LogisticRegression(classes=LABELS, seed=1).fit(
        da.from_array(X, chunks=(rows, (2, 1))), da.from_array(Y, chunks=350)
    )
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=0, atol=1e-6)
    for y, complaint in ((Y, "is in memory here, and others are of Dask"), (None, "pass the labels, too")):
        with pytest.raises((dp.DomainError, dp.TemplateError), match=complaint):
            found.fit(da.from_array(X, chunks=350), y)
    frame = dd.from_pandas(pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y), npartitions=3)
    found.fit(frame[["a", "b", "c"]], frame["y"])
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=0, atol=1e-6)
    assert list(found.feature_names_in_) == ["a", "b", "c"]
    found.fit(cut())  # names of an earlier fit are forgotten
    assert not hasattr(found, "feature_names_in_")


def test_tables_with_a_schema_are_saved_with_it(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"a": 50 + 40 * X[:, 0], "b": 50 + 20 * X[:, 1], "y": Y, "z": Z})
    features = {"a": (0, 100), "b": (0, 100)}
    schema = dp.Schema(features, label="y", labels=LABELS, ignore=["z"])
    parts = dp.Partitions([table[a:b] for a, b in pairwise(CUTS)], schema)
    model = dp.LogisticRegression(classes=LABELS, seed=1).fit(parts)
    expected = dp.LogisticRegression(classes=LABELS, seed=1).fit(*schema.encode(table))
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=0, atol=1e-6)
    model.save(tmp_path / "model.npz")
    assert dp.Release.load(tmp_path / "model.npz", template=dp.load).schema == schema

    schema = dp.Schema(features, label="z", label_bounds=(0, 100), ignore=["y"])
    parts = dp.Partitions([table[a:b] for a, b in pairwise(CUTS)], schema)
    line = dp.Ridge(bounds=(0, 100), seed=1, epsilon=5.0).fit(parts)  # in the units of the table
    straight = dp.Ridge(bounds=(0, 100), seed=1, epsilon=5.0).fit(schema.encode(table)[0], Z)
    np.testing.assert_allclose(line.coef_, straight.coef_, rtol=0, atol=1e-4)
    line.save(tmp_path / "line.npz")
