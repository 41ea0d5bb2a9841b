"""Statistics of whitened records: what is fitted from them, what they promise, and where they are the default."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp

PROMISE = dp.Privacy(1.0, 1e-5, "add-remove")
WEAK = dp.Privacy(50.0, 0.4)  # hardly any noise
FIRST: dict[str, Any] = {"mechanism": dp.SufficientStatistics(), "whitening": True}
SPREAD = np.array([1.0, 0.1, 0.1, 0.02])
TRUTH = np.array([0.3, 1.0, -1.0, 4.0])


def table(size: int = 4000, spread: float = 0.05, seed: int = 0) -> dict[str, Any]:
    """Return records that vary much in one direction and little in others."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (size, 4)) * SPREAD
    x /= np.maximum(np.linalg.norm(x, axis=1), 1)[:, None]
    return {"x": x, "y": np.clip(x @ TRUTH + 0.1 + spread * rng.uniform(-1, 1, size), -1, 1)}


def linear() -> dp.Template:
    return dp.load("linear_regression", features=4, regularization=0.0)


def test_regularizer_and_constraints_speak_of_the_original_parameters() -> None:
    data = table(100_000, spread=0.0)
    w, b = cp.Variable(4, name="w"), cp.Variable(name="b")
    picky = dp.Template(
        linear().record,
        lambda x, y: cp.square(x @ w + b - y) / 2,
        0.0,
        [w <= 0.5, cp.norm(w) <= 2],
        predict=lambda p, x: x,
    )
    found = dp.statistics(picky, data, WEAK, whitening=True)
    weights = np.minimum(1.0, found.whitening.weights(data["x"]))  # type: ignore[union-attr]
    goal = cp.sum_squares(cp.multiply(weights, data["x"] @ w + b - data["y"]))
    cp.Problem(cp.Minimize(goal), [w <= 0.5, cp.norm(w) <= 2]).solve(solver="CLARABEL")
    assert found.fit()["w"] == pytest.approx(w.value, abs=0.02)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_an_audit_of_the_whole_promise(adjacency: Any) -> None:
    privacy = dp.Privacy(1.0, 1e-5, adjacency)
    report = dp.audit(linear(), privacy, size=500, **FIRST)
    assert report.holds
    both = next(attack for attack in report.attacks if "whitening" in attack.part)
    assert both.found_delta >= 0.9 * both.delta  # levels are used up


def test_the_same_sums_from_memory_partitions_chunks_and_sparse_matrices() -> None:
    data, options = table(900), {"size": 900, "seed": 3, **FIRST}
    exact = dp.statistics(linear(), data, PROMISE, **options).values
    cut = [{name: column[k::1][:300] for name, column in data.items()} for k in (0, 300, 600)]
    pieces = {"x": dp.Chunks([part["x"] for part in cut]), "y": data["y"]}
    kinds: list[Any] = [dp.Partitions(cut), pieces, {**data, "x": sp.csr_array(data["x"])}]
    for kind in kinds:
        assert dp.statistics(linear(), kind, PROMISE, **options).values == pytest.approx(exact, abs=1e-9)
