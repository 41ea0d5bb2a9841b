"""Rates at thresholds between the cuts of an evaluation."""

import numpy as np
import pytest
from judged_models import FUNCTIONS, LOGISTIC
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
