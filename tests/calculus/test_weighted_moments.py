"""Moments of weighted records: how long they are, how far apart, and what they add up to."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dpconvex as dp
from dpconvex.calculus.moment_sensitivity import difference_bound, length_bound
from dpconvex.calculus.moments import quadratic_loss
from dpconvex.calculus.weighted_moments import turned_parameters
from dpconvex.evaluation.moment_sums import WEIGHTS, record_moments
from dpconvex.language.batch import Batch
from dpconvex.mechanisms.sufficient_statistics import SufficientStatistics, on_whitened
from dpconvex.release.verify import form_of

LEARNERS = {
    "offset": dp.load("linear_regression", features=2),
    "plain": dp.load("ridge_regression", features=2),
    "classes": dp.load("least_squares_classifier", features=2, classes=3),
}


def parts(name: str, residuals: bool = False) -> tuple[Any, Any, Any]:
    form = form_of(LEARNERS[name])
    mechanism = on_whitened(SufficientStatistics(residuals=residuals), form, "x")
    return form, quadratic_loss(form), mechanism.moments(form, "replace-one")


def with_weights(batch: Batch, weights: Any) -> Batch:
    return Batch({**batch.fields, WEIGHTS: np.asarray(weights, dtype=float)}, batch.group)


@pytest.mark.parametrize("name", LEARNERS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_no_weighted_records_are_longer_or_farther_apart_than_the_bounds(name: str, seed: int) -> None:
    form, loss, moments = parts(name, residuals=True)
    rng = np.random.default_rng(seed)
    sides = []
    for _ in range(2):
        batch = form.template.record.sample(300, rng)
        lengths = np.linalg.norm(batch.fields["x"], axis=1, keepdims=True)
        batch.fields["x"][:200] /= np.maximum(lengths[:200], 1e-12)  # the longest are the worst
        weights = np.where(rng.random(300) < 0.5, rng.random(300), rng.integers(0, 2, 300))
        sides.append(record_moments(moments, with_weights(batch, weights)))
    assert np.linalg.norm(sides[0], axis=1).max() <= length_bound(moments, loss.bases)
    assert np.linalg.norm(sides[0] - sides[1], axis=1).max() <= difference_bound(moments, loss.bases)


def test_the_bound_on_differences_is_reached_by_records_that_count_fully() -> None:
    form, loss, moments = parts("plain")
    x, y = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([1.0, -1.0])
    found = record_moments(moments, with_weights(form.template.record.validate({"x": x, "y": y}), np.ones(2)))
    apart = max(np.linalg.norm(found[0] - found[1]), 0.0)
    assert 0.7 * difference_bound(moments, loss.bases) <= apart <= difference_bound(moments, loss.bases)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_turn_of_the_features_is_one_of_the_parameters(name: str) -> None:
    form, loss, _ = parts(name)
    matrix = np.array([[1.0, 2.0], [-0.5, 3.0]])
    turn = turned_parameters(loss, form.space, "x", matrix).toarray()
    assert turn.shape == (form.space.dim, form.space.dim)
    assert turn[:2, :2] == pytest.approx(matrix.T)
    if name == "offset":
        assert turn[2] == pytest.approx([0.0, 0.0, 1.0])
