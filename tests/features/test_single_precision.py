"""Columns in single precision stay so on their way through an estimator, and answers are the same to the last bit."""

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.data import validation
from dpconvex.estimators import base

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(3000, 20)).astype(np.float32)
ROWS /= np.linalg.norm(ROWS, axis=1, keepdims=True)  # some a little longer than 1, by rounding
LABELS = (ROWS[:, 0] > 0).astype(int)


def test_a_large_column_is_kept_as_it_is_and_a_change_of_the_original_does_not_reach_it(monkeypatch):
    record, rows = dp.Record(x=dp.Ball(20)), ROWS.copy()
    small = record.validate({"x": rows}).fields["x"]
    monkeypatch.setattr(validation, "LARGEST_DOUBLED", 0)
    large = record.validate({"x": rows}).fields["x"]
    assert (small.dtype, large.column.dtype) == (np.float64, np.float32)
    rows[:] = 0.0
    np.testing.assert_array_equal(large[:], small)
    assert np.linalg.norm(ROWS.astype(float), axis=1).max() > 1 >= np.linalg.norm(large[:], axis=1).max() - 1e-15
    rows[7, 3] = 2.0
    with pytest.raises(dp.DomainError, match=r"worst: row 7, by 100 %"):
        record.validate({"x": rows})
    rows[7, 3] = np.nan
    with pytest.raises(dp.DomainError, match="row 7, column 3 is NaN"):
        record.validate({"x": rows}, clip=True)


@pytest.mark.parametrize("options", [{}, {"delta": 1e-5}, {"delta": 1e-5, "fit_intercept": True}])
def test_fits_are_those_of_the_same_numbers_in_double_precision(options, monkeypatch):
    seen = []

    def solve(template, data, *arguments, **more):
        seen.append(data["x"][:].dtype)
        return original(template, data, *arguments, **more)

    original = base.solve
    monkeypatch.setattr(base, "solve", solve)
    double = 0.999999 * ROWS.astype(float)
    double = double.astype(np.float32).astype(float)  # the same numbers, inside the ball in either precision
    model = dp.LogisticRegression(epsilon=3.0, seed=0, **options)
    found = model.fit(double, LABELS).coef_
    monkeypatch.setattr(validation, "LARGEST_DOUBLED", 0)
    single = double.astype(np.float32)
    np.testing.assert_array_equal(model.fit(single, LABELS).coef_, found)
    assert seen == [np.float64, np.float32]
    np.testing.assert_array_equal(model.decision_function(single), model.decision_function(double))
