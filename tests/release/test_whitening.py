"""Whitened releases: exact sums, maps that see one record at a time, files, and predictions from original records."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

import dpconvex as dp
from dpconvex.mechanisms.grid import LEVELS
from dpconvex.mechanisms.private_whitening import calibrated
from dpconvex.release.whitening import Whitening, second_moment

Array = NDArray[np.float64]
DESCENT = dp.NoisyGradientDescent(clip=0.3)


def flat(count: int) -> tuple[Array, NDArray[np.int64]]:
    """Records with one long direction that says nothing, and a short one that says all."""
    rng = np.random.default_rng(0)
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
    # With a least length, those that are shorter are no longer shortened, and the others weigh less.
    least = float(np.median(np.linalg.norm(straight, axis=1)))
    weighed = Whitening("x", 3.0, whitening.matrix, least)
    shorter, weights = weighed(x), weighed.weights(x)
    assert (np.linalg.norm(shorter, axis=1) <= 3.0).all()
    assert weights[:500] == pytest.approx(least / np.maximum(least, np.linalg.norm(straight, axis=1)), abs=1e-3)
    assert shorter == pytest.approx(found * np.minimum(1.0, np.linalg.norm(shorter, axis=1) / 3.0)[:, None], abs=1e-9)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_both_stages_are_paid_once_and_predictions_are_linear_in_original_features(adjacency: str) -> None:
    x, y = flat(200)
    promise, size = dp.Privacy(2.0, 1e-5, adjacency), None if adjacency == "replace-one" else 200
    budget, whitening = dp.Budget(promise), dp.PrivateWhitening()
    fit = dp.solve(template(), {"x": x, "y": y}, promise, DESCENT, size=size, whitening=whitening, budget=budget)
    assert fit.spent == promise
    assert [entry.privacy for entry in budget.entries] == [promise]
    again = dp.Release.from_bytes(fit.to_bytes(), template())
    assert again.certificate == fit.certificate
    assert (again.predict(x) == fit.predict(x)).all()
    assert fit.whitening is not None
    turned = x @ fit.whitening.matrix.T
    scores = turned @ fit["w"] / np.linalg.norm(turned, axis=1) / np.linalg.norm(fit["w"])
    clear = np.abs(scores) > 2e-3  # directions of whitened records are rounded
    assert (np.sign(scores[clear]) == fit.predict(x)[clear]).all()
    with pytest.raises(dp.TemplateError, match="shape"):
        again.predict(x[:, :2])


# Statistics of whitened records

PROMISE = dp.Privacy(1.0, 1e-5, "add-remove")
WEAK = dp.Privacy(50.0, 0.4)  # hardly any noise
FIRST: dict[str, Any] = {"mechanism": dp.SufficientStatistics(), "whitening": True}
SPREAD = np.array([1.0, 0.1, 0.1, 0.02])
TRUTH = np.array([0.3, 1.0, -1.0, 4.0])


def linear_table(size: int, spread: float = 0.05) -> dict[str, Any]:
    """Return records that vary much in one direction and little in others."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (size, 4)) * SPREAD
    x /= np.maximum(np.linalg.norm(x, axis=1), 1)[:, None]
    return {"x": x, "y": np.clip(x @ TRUTH + 0.1 + spread * rng.uniform(-1, 1, size), -1, 1)}


def linear() -> dp.Template:
    return dp.load("linear_regression", features=4, regularization=0.0)


def test_regularizer_and_constraints_speak_of_the_original_parameters() -> None:
    data = linear_table(100_000, spread=0.0)
    w, b = cp.Variable(4, name="w"), cp.Variable(name="b")
    picky = dp.Template(linear().record, lambda x, y: cp.square(x @ w + b - y) / 2, 0.0, [w <= 0.5, cp.norm(w) <= 2])
    found = dp.statistics(picky, data, WEAK, whitening=True)
    weights = np.minimum(1.0, found.whitening.weights(data["x"]))  # type: ignore[union-attr]
    goal = cp.sum_squares(cp.multiply(weights, data["x"] @ w + b - data["y"]))
    cp.Problem(cp.Minimize(goal), [w <= 0.5, cp.norm(w) <= 2]).solve(solver="CLARABEL")
    assert found.fit()["w"] == pytest.approx(w.value, abs=0.02)


def test_the_same_sums_from_memory_partitions_chunks_and_sparse_matrices() -> None:
    data, options = linear_table(900), {"size": 900, "seed": 3, **FIRST}
    exact = dp.statistics(linear(), data, PROMISE, **options).values
    cut = [{name: column[k::1][:300] for name, column in data.items()} for k in (0, 300, 600)]
    pieces = {"x": dp.Chunks([part["x"] for part in cut]), "y": data["y"]}
    kinds: list[Any] = [dp.Partitions(cut), pieces, {**data, "x": sp.csr_array(data["x"])}]
    for kind in kinds:
        assert dp.statistics(linear(), kind, PROMISE, **options).values == pytest.approx(exact, abs=1e-9)
