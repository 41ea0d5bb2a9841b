"""What is refused, is refused with words: no exception of a library's own leaves `verify`."""

import time
from contextlib import suppress
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_a_loss_of_no_field_is_refused(adjacency: Any) -> None:
    w, captured = cp.Variable(2, name="w"), np.ones((5, 2))
    record = dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1]))
    blind = dp.Template(record, lambda x, y: cp.sum(cp.huber(captured @ w)), cp.sum_squares(w))
    with pytest.raises(dp.NotPrivate, match="the same for all records"):
        dp.verify(blind, dp.Privacy(1.0, 1e-6, adjacency), 100)
    labelled = dp.Template(record, lambda x, y: cp.huber(w[0] - y), cp.sum_squares(w))
    assert dp.verify(labelled, dp.Privacy(1.0, 1e-6, adjacency), 100)


def test_data_written_into_a_loss_are_refused_before_anything_is_expanded() -> None:
    rng = np.random.default_rng(0)
    X, y, w = rng.normal(size=(20_000, 5)), rng.choice([-1.0, 1.0], 20_000), cp.Variable(5, name="w")
    start = time.process_time()
    template = dp.Template(
        dp.Record(x=dp.Ball(5)), lambda x: cp.sum(cp.logistic(-cp.multiply(y, X @ w))) / 20_000, cp.sum_squares(w)
    )
    with pytest.raises(dp.NotPrivate, match="the same for all records"):
        dp.verify(template, dp.Privacy(1.0), 20_000)
    assert time.process_time() - start < 5.0


def test_labels_that_a_schema_makes_texts_of_are_refused_before_anything_is_paid() -> None:
    pd = pytest.importorskip("pandas")
    schema = dp.Schema({"a": (-1.0, 1.0)}, label="y", labels=[-1, 1])
    parts = dp.Partitions([pd.DataFrame({"a": [0.1, -0.2], "y": [1, -1]})], schema)
    budget = dp.Budget(dp.Privacy(5.0, 1e-3))
    learner = dp.load("logistic_regression", features=len(schema.feature_names))
    with pytest.raises(dp.DomainError, match="declare them as texts"):
        dp.solve(learner, parts, dp.Privacy(1.0), budget=budget)
    pytest.importorskip("sklearn")
    with pytest.raises(dp.DomainError, match="pass classes="):
        dp.LogisticRegression(epsilon=1.0, classes=(-1, 1), budget=budget).fit(parts)
    assert budget.remaining.epsilon == 5.0


@pytest.mark.parametrize("scale", [1e-150, 1e-155, 1e-160])
def test_losses_whose_squares_underflow_are_proved_or_refused(scale: float) -> None:
    w = cp.Variable(2, name="w")
    template = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: scale * cp.logistic(x @ w), 0.1 * cp.sum_squares(w))
    with suppress(dp.DPConvexError):
        assert dp.verify(template, dp.Privacy(1.0), 20, dp.OutputPerturbation()).gradient_bound <= 2 * scale
