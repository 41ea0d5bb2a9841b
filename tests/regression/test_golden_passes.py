"""How many passes over the records fits take.  A change may lower these numbers, and raises one only with a reason."""

from typing import Any

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.solvers import backend as backends

# Learner and options; passes of `dp.minimize`, and of `dp.solve` (epsilon 1, delta 1e-6, seed 0).
PASSES: dict[str, tuple[dict[str, Any], int, int]] = {
    "logistic_regression": ({"features": 20, "regularization": 1e-4}, 12, 13),
    "softmax_regression": ({"features": 12, "classes": 5, "regularization": 1e-3}, 15, 12),
    "huber_svm": ({"features": 20, "regularization": 1e-3}, 15, 15),
    "elastic_net_logistic": ({"features": 20}, 19, 17),
    "large_margin_gaussian": ({"features": 10, "classes": 4}, 135, 22),
    "fair_logistic_regression": ({"features": 6, "covariance": [0.1, 0.2, 0, 0, 0, 0.1], "tolerance": 0.01}, 23, 19),
}


def records(name: str, options: dict[str, Any], size: int = 2000) -> dict[str, Any]:
    """Return records of unit length, whose classes a noisy linear rule gives, and whose features differ in size."""
    rng = np.random.default_rng(0)
    features, classes = options["features"], options.get("classes", 2)
    x = rng.normal(size=(size, features)) * np.geomspace(1, 0.05, features)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.argmax(x @ rng.normal(size=(features, classes)) + 0.3 * rng.normal(size=(size, classes)), axis=1)
    return {"x": x, "y": 2 * y - 1 if classes == 2 else y}


@pytest.mark.parametrize("name", PASSES)
def test_fits_take_no_more_passes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options, most, private = PASSES[name]
    passes, solve = [], backends.solve

    def counted(*arguments: Any) -> Any:
        found = solve(*arguments)
        passes.append(found.evaluations)
        return found

    monkeypatch.setattr(backends, "solve", counted)
    learner = dp.load(name, **options)
    data = records(name, options)
    dp.minimize(learner, data)
    dp.solve(learner, data, dp.Privacy(1.0, 1e-6), dp.ObjectivePerturbation("gaussian"), seed=0)
    assert passes[0] <= most, f"{passes[0]} passes without privacy"
    assert passes[1] <= private, f"{passes[1]} passes with privacy"
