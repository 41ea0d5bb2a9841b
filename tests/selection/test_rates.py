"""What counts do not show: between the cuts of an evaluation, and between its knots."""

import numpy as np
import pytest
from judged_models import FUNCTIONS, HUBER, LINE, LOGISTIC
from refused import refused
from scipy.special import expit

import dpconvex as dp


def test_rates_between_cuts_follow_how_records_slope_within_a_cell():
    """Records spread evenly in cells would make the sensitivity .008 too low, an interval's half-width."""
    rng = np.random.default_rng(0)
    x = np.column_stack([np.clip(rng.normal(size=20_000) / 3, -1, 1), np.zeros(20_000)])

    def likely(parameters, rows):
        second = expit(3 * rows[:, 0])
        return np.column_stack([1 - second, second])

    model = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", **FUNCTIONS | {"probabilities": likely})
    yes, second = rng.random(20_000) < expit(6 * x[:, 0]), likely(None, x)[:, 1]
    found = dp.evaluate(LOGISTIC, model, {"x": x, "y": np.where(yes, 1, -1)}, dp.Privacy(40.0), seed=0).rates(0.37)
    assert found["sensitivity"] == pytest.approx(np.mean(second[yes] > 0.37), abs=0.003)
    assert found["specificity"] == pytest.approx(np.mean(second[~yes] <= 0.37), abs=0.003)


def test_intervals_hold_what_knots_do_not_show():
    """Residuals begin sharply between two knots: intervals were a quarter as long as errors."""
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-1, 1, 8000), np.zeros(8000)])
    apart = 0.13 * (rng.exponential(size=8000) - 1)
    found = dp.evaluate(HUBER, LINE, {"x": x, "y": np.clip(0.5 * x[:, 0] + apart, -1, 1)}, dp.Privacy(40.0))
    for level in (0.02, 0.1, 0.25, 0.9):
        low, high = found.residual_quantile(level).interval
        assert low <= 0.13 * (-np.log1p(-level) - 1) <= high, level
    low, high = found.coverage(0.13 * (-np.log(0.95) - 1), 1.0).interval
    assert low <= 0.95 <= high
    tail = 0.13 * (np.log(10) - 1)  # By the prediction, records are shared by their distances from knots
    assert found.residuals(0.9).y[1:4] == pytest.approx(np.full(3, tail), abs=0.01)
    apart = rng.uniform(-0.18, 0.18, 8000)  # Where both ends are sharp, every second knot says the same by chance
    found = dp.evaluate(HUBER, LINE, {"x": x, "y": 0.5 * x[:, 0] + apart}, dp.Privacy(40.0))
    low, high = found.residual_quantile(0.1).interval
    assert low <= -0.144 <= high
    found = dp.evaluate(HUBER, LINE, {"x": x / 2, "y": 0.25 * x[:, 0] - 0.6}, dp.Privacy(40.0))
    assert found.absolute_error.interval[0] <= 0.6  # which is a knot: errors were taken to lie on both sides


def test_residuals_follow_from_one_release():
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.uniform(-1, 1, 8000), np.zeros(8000)])
    y = np.clip(0.6 * x[:, 0] + 0.1 * rng.normal(size=8000), -1, 1)
    found = dp.evaluate(HUBER, LINE, {"x": x, "y": y}, dp.Privacy(40.0))
    apart = y - 0.5 * x[:, 0]
    assert found.error == pytest.approx(np.mean(apart**2), abs=0.005)
    assert found.constant == pytest.approx(np.var(y), abs=0.01)
    assert found.r2 == pytest.approx(1 - np.mean(apart**2) / np.var(y), abs=0.05)
    assert found.absolute_error == pytest.approx(np.mean(np.abs(apart)), abs=0.01)
    assert found.residual_quantile(0.9) == pytest.approx(np.quantile(apart, 0.9), abs=0.02)
    assert found.coverage(-0.1, 0.1) == pytest.approx(np.mean(np.abs(apart) <= 0.1), abs=0.03)
    assert len(dp.plots.residuals(found).get_legend().get_texts()) >= 2
    assert "concordance" not in str(found)  # Cells are too wide for the order of predictions
    assert found.residuals().y[1] < 0 < found.residuals().y[3]  # 0.6 is the slope, and 0.5 was said
    for strange in ("a", None, np.nan, 2.0):
        refused(dp.TemplateError, None, found.residual_quantile, strange)
    for strange in ("a", None, np.nan):
        refused(dp.TemplateError, None, found.coverage, strange, 1.0)
    refused(dp.TemplateError, "probabilities", found.roc)


def test_a_share_of_records_that_noise_hides_may_be_anything():
    """Intervals of the precision held it in .7 of 150 runs where 8 of 2,000 records lay above the threshold."""
    x = np.zeros((2000, 2))
    x[:20, 0] = 0.9
    functions = FUNCTIONS | {"probabilities": lambda parameters, rows: np.abs(rows[:, :1] - [0.95, 0.05])}
    model = dp.Release({"w": [1.0, 0.0]}, not_private_because="a test", **functions)
    data = {"x": x, "y": np.where(np.arange(2000) % 5, -1, 1)}
    found = [dp.evaluate(LOGISTIC, model, data, dp.Privacy(0.5), seed=seed).rates(0.8) for seed in range(5)]
    assert all(rates["precision"].interval == (0.0, 1.0) for rates in found)
    assert all(abs(rates["specificity"] - 0.99) < 0.02 for rates in found)
