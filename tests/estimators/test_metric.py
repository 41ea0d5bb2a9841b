"""A metric learnt from pairs: what it says of pairs and of objects agrees, and it learns nothing undeclared."""

import pickle
from typing import Any

import numpy as np
from sklearn.base import clone

import dpconvex as dp

FIXED: dict[str, Any] = {"epsilon": 50.0, "seed": 0, "radius": 3.0, "regularization": 1e-4}


def pairs(size: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of objects that are alike if their first features are near; the second says nothing."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(size, 2, 2))
    return x, np.where(np.abs(x[:, 0, 0] - x[:, 1, 0]) < 0.6, "same", "other")


def test_it_finds_what_pairs_share() -> None:
    x, y = pairs()
    model = dp.MetricLearner(**FIXED, classes=("other", "same"))
    fitted = clone(model).fit(x, y)
    assert fitted.score(x, y) > 0.8
    assert fitted.metric_[0, 0] > 5 * abs(fitted.metric_[1, 1])
    assert fitted.n_features_in_ == 2
    assert model.certificate(2, len(x)) == fitted.release_.certificate
    gaps = (fitted.transform(x[:, 0]) - fitted.transform(x[:, 1])) ** 2
    np.testing.assert_allclose(fitted.decision_function(x), fitted.threshold_ - gaps.sum(axis=1), atol=1e-12)
    between = x[:, 0] - x[:, 1]
    np.testing.assert_allclose(gaps.sum(axis=1), np.einsum("ni,ij,nj->n", between, fitted.metric_, between), atol=1e-12)
    assert np.linalg.eigvalsh(fitted.metric_)[0] >= -1e-15
    # The problem file says the same of differences.
    named = np.where(fitted.predict(x) == "same", "alike", "different")
    assert np.mean(fitted.release_.predict(between) == named) == 1
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
