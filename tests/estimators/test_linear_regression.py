"""Linear regression: estimates with errors in the units of the target, whose intervals hold, and honest about too much noise."""

import pickle

import numpy as np
import pandas as pd
import pytest

import dpconvex as dp

SLOPES = np.array([10.0, -4.0])


def sample(size: int = 4000, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-0.7, 0.7, size=(size, 2))
    return pd.DataFrame(x, columns=["age", "dose"]), 60 + x @ SLOPES + rng.uniform(-3, 3, size)


def test_errors_are_those_of_the_statistics_in_units_of_the_target() -> None:
    X, y = sample()
    model = dp.LinearRegression(epsilon=1.0, delta=1e-6, bounds=(0, 100), fit_intercept=True, seed=1).fit(X, y)
    table = model.coefficients_
    assert table.names == ("age", "dose", "intercept")
    np.testing.assert_allclose(table.estimates, [*model.coef_, model.intercept_])
    np.testing.assert_allclose(table.standard_errors, [*model.coef_std_, model.intercept_std_])
    raw = dp.coefficients(model.statistics_)
    np.testing.assert_allclose(model.coef_std_, 50 * raw.standard_errors[:2])
    np.testing.assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_)
    assert model.certificate(2, 4000) == model.release_.certificate


@pytest.mark.slow
def test_intervals_hold_the_truth() -> None:
    covered = []
    for seed in range(20):
        X, y = sample(1000, seed)
        model = dp.LinearRegression(epsilon=4.0, delta=1e-6, bounds=(0, 100), fit_intercept=True, seed=seed).fit(X, y)
        table = model.coefficients_
        covered.append((table.lower <= [*SLOPES, 60]) & (table.upper >= [*SLOPES, 60]))
    assert 0.85 < np.mean(covered) < 1  # 60 intervals of 95 %


def test_the_sums_are_pickled_too() -> None:
    X, y = sample()
    model = dp.LinearRegression(epsilon=5.0, delta=1e-6, bounds=(0, 100), seed=1).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.coef_std_, model.coef_std_)
    np.testing.assert_array_equal(again.statistics_.fit()["w"], model.statistics_.fit()["w"])
    assert model.intercept_ == 50  # the middle of the bounds
