"""Whitened releases: exact sums, maps that see one record at a time, files, and predictions from original records."""

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
    bounds = [calibrated("x", dp.Ball(5), adjacency, 1.0).sensitivity for adjacency in ("add-remove", "replace-one")]
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
    fit.save(tmp_path / "fit.npz")
    again = dp.Release.load(tmp_path / "fit.npz", template())
    assert again.certificate == fit.certificate
    assert (again.predict(x) == fit.predict(x)).all()
    assert again.whitening is not None
    assert (again.whitening.matrix == fit.whitening.matrix).all()
    linear = np.where(x @ (fit.whitening.matrix.T @ fit["w"]) > 0, 1, -1)
    assert (linear == fit.predict(x)).mean() > 0.99  # linear in the original features
    with pytest.raises(dp.TemplateError, match="shape"):
        again.predict(x[:, :2])
