"""Whitened releases: exact sums, maps that see one record at a time, files, and predictions from original records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

import dpconvex as dp
from dpconvex.mechanisms.private_whitening import calibrated
from dpconvex.mechanisms.whitening_noise import LEVELS
from dpconvex.release.whitening import Whitening, second_moment

Array = NDArray[np.float64]
ADD = dp.Privacy(2.0, 1e-5, "add-remove")
DESCENT = dp.NoisyGradientDescent(clip=0.3)


def flat(count: int, seed: int = 0) -> tuple[Array, NDArray[np.int64]]:
    """Records with one long direction that says nothing, and a short one that says all."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, size=count) * 2 - 1
    x = np.column_stack([np.ones(count), 0.02 * y, 0.02 * rng.normal(size=count)])
    return x / np.linalg.norm(x, axis=1, keepdims=True), y


def template() -> dp.Template:
    return dp.load("logistic_regression", features=3, regularization=0)


def test_one_record_moves_exact_sums_by_its_squared_length() -> None:
    rng = np.random.default_rng(0)
    x = dp.Ball(5, radius=2.0).sample(50, rng)
    whole = second_moment(x, 5, 2.0)
    assert (whole == second_moment(sp.csr_array(x), 5, 2.0)).all()
    assert whole / LEVELS**2 == pytest.approx(x.T @ x / 4, abs=50 * 3 / LEVELS)
    longest = apart = 0.0
    for k in range(50):
        fewer = second_moment(np.delete(x, k, axis=0), 5, 2.0)
        longest = max(longest, float(np.linalg.norm((whole - fewer).astype(float))) / LEVELS**2)
        changed = x.copy()
        changed[k] = 2.0 * np.eye(5)[k % 5]
        apart = max(apart, float(np.linalg.norm((whole - second_moment(changed, 5, 2.0)).astype(float))) / LEVELS**2)
    bounds = [
        calibrated("x", dp.Ball(5), adjacency, 1.0, 1.0).sensitivity for adjacency in ("add-remove", "replace-one")
    ]
    assert 0.99 * bounds[0] <= longest <= bounds[0]
    assert 0.99 * bounds[1] <= apart <= bounds[1]
    assert (second_moment(np.zeros((0, 5)), 5, 2.0) == 0).all()


def test_a_record_is_whitened_by_itself() -> None:
    rng = np.random.default_rng(1)
    x = np.vstack([dp.Ball(40).sample(500, rng), np.zeros((1, 40))])
    whitening = Whitening("x", 3.0, rng.normal(size=(40, 40)))
    found = whitening(x)
    assert (np.linalg.norm(found, axis=1) <= 3.0).all()
    assert np.linalg.norm(found[:500], axis=1) == pytest.approx(3.0)
    assert (found[500] == 0).all()
    assert (whitening(sp.csr_array(x)) == found).all()
    for k in range(0, 500, 97):  # to the last bit, whatever stands beside it
        assert (whitening(x[k : k + 1])[0] == found[k]).all()
        assert (whitening(x[k:])[0] == found[k]).all()
    straight = x[:500] @ whitening.matrix.T
    turned = 3.0 * straight / np.linalg.norm(straight, axis=1, keepdims=True)
    assert found[:500] == pytest.approx(turned, abs=1e-3)


def test_it_finds_what_hides_in_a_short_direction() -> None:
    x, y = flat(600)
    errors = []
    for whitening in (None, dp.PrivateWhitening()):
        wrong = 0.0
        for seed in range(3):
            fit = dp.solve(template(), {"x": x, "y": y}, ADD, DESCENT, size=600, seed=seed, whitening=whitening)
            wrong += float((fit.predict(x) != y).mean()) / 3
        errors.append(wrong)
    assert errors[1] < 0.02 < errors[0]


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_saved_and_read(adjacency: str, tmp_path: Path) -> None:
    x, y = flat(200)
    promise = dp.Privacy(2.0, 1e-5, adjacency)
    size = None if adjacency == "replace-one" else 200
    budget = dp.Budget(promise)
    fit = dp.solve(
        template(), {"x": x, "y": y}, promise, DESCENT, size=size, whitening=dp.PrivateWhitening(), budget=budget
    )
    assert fit.spent == promise
    assert budget.remaining is None or budget.spent.epsilon <= promise.epsilon
    assert fit.whitening is not None
    again = dp.Release.load(_saved(fit, tmp_path), template())
    assert again.certificate == fit.certificate
    assert (again.predict(x) == fit.predict(x)).all()
    assert again.whitening is not None
    assert (again.whitening.matrix == fit.whitening.matrix).all()
    linear = np.where(x @ (fit.whitening.matrix.T @ fit["w"]) > 0, 1, -1)
    assert (linear == fit.predict(x)).mean() > 0.99  # linear in the original features
    with pytest.raises(dp.TemplateError, match="shape"):
        again.predict(x[:, :2])


def test_untuned_on_digits() -> None:
    """Ten classes and 1,257 records: what took a tuned objective perturbation .153 at epsilon = 1."""
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_digits(return_X_y=True)
    x = x - x.mean(axis=1, keepdims=True)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1257], order[1257:]
    learner = dp.load("softmax_regression", features=64, classes=10, regularization=0)
    for epsilon, most in ((1.0, 0.12), (8.0, 0.06)):
        promise = dp.Privacy(epsilon, 1e-5, "add-remove")
        data = {"x": x[train], "y": y[train]}
        fit = dp.solve(learner, data, promise, DESCENT, size=1257, seed=0, clip=True, whitening=dp.PrivateWhitening())
        assert (fit.predict(x[test]) != y[test]).mean() < most


def _saved(fit: dp.Release, folder: Path) -> Path:
    fit.save(folder / "fit.npz")
    return folder / "fit.npz"


def test_files_from_before_are_read(tmp_path: Path) -> None:
    from dpconvex.release.file_format import pack, unpack

    release = dp.Release({"w": [1.0, 2.0]}, not_private_because="no noise was added")
    fields, parameters = unpack(release.to_bytes(), tmp_path)
    assert fields["whitening"] is None
    header = {"names": ["w"], "certificate": None, "spent": None, "source": None, "table": None}
    old = pack({**header, "not_private_because": "old"}, [parameters["w"]])
    assert unpack(old, tmp_path)[0]["not_private_because"] == "old"


def test_other_mechanisms_and_no_records() -> None:
    x, y = flat(300)
    ridge = dp.load("logistic_regression", features=3, regularization=0.01)
    for mechanism in (None, dp.ObjectivePerturbation("gaussian"), dp.OutputPerturbation("gaussian")):
        fit = dp.solve(ridge, {"x": x, "y": y}, ADD, mechanism, size=300, seed=0, whitening=dp.PrivateWhitening())
        assert fit.certificate is not None
        assert fit.certificate.whitening is not None
        assert fit.predict(x).shape == (300,)
    empty = dp.solve(
        template(), {"x": np.zeros((0, 3)), "y": []}, ADD, DESCENT, size=300, seed=0, whitening=dp.PrivateWhitening()
    )
    assert np.isfinite(empty["w"]).all()


def test_longer_steps_where_records_share_directions() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3000, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.where(x[:, 0] > 0, 1, -1)
    promise = dp.Privacy(50.0, 1e-5, "add-remove")
    before = dp.verify(template(), promise, 3000, DESCENT, whitening=dp.PrivateWhitening())
    fit = dp.solve(template(), {"x": x, "y": y}, promise, DESCENT, size=3000, seed=0, whitening=dp.PrivateWhitening())
    assert fit.certificate is not None
    step = fit.certificate.settings["step_size"]
    assert 2 * before.settings["step_size"] < step <= before.settings["largest_step"]
