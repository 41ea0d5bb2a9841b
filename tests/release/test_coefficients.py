"""Coefficients from noisy statistics: intervals hold as often as they say."""

from typing import Any

import numpy as np
import pytest

import dpconvex as dp

PROMISE = dp.Privacy(1.0, 1e-6)
RESIDUALS = dp.SufficientStatistics(residuals=True)


def table(truth: np.ndarray, size: int, rng: np.random.Generator, spread: float = 0.2) -> dict[str, Any]:
    x = rng.standard_normal((size, len(truth) - 1))
    x /= np.maximum(np.linalg.norm(x, axis=1), 1)[:, None]
    return {"x": x, "y": np.clip(x @ truth[:-1] + truth[-1] + spread * rng.uniform(-1, 1, size), -1, 1)}


@pytest.mark.parametrize(
    ("size", "privacy", "noisy"),
    [(3000, PROMISE, True), (300, dp.Privacy(1e4, 1e-6), False), (20000, dp.Privacy(0.5, 1e-6, "add-remove"), True)],
)
def test_intervals_cover_the_truth_as_often_as_they_say(size: int, privacy: dp.Privacy, noisy: bool) -> None:
    """With 400 intervals that hold independently with probability .95, fewer than .92 or more than .98 do once in a hundred."""
    truth, rng = np.array([0.5, -0.3, 0.2, 0.1]), np.random.default_rng(1)
    learner = dp.load("linear_regression", features=3)
    held, without, moved = [], [], []
    for seed in range(100):
        data = table(truth, size, rng)
        found = dp.coefficients(dp.statistics(learner, data, privacy, RESIDUALS, size=size, seed=seed))
        held.append((found.lower < truth) & (truth < found.upper))
        sampling = np.sqrt(found.standard_errors**2 - found.noise_errors**2)
        without.append(np.abs(found.estimates - truth) < 1.96 * sampling)
        moved.append((found.estimates - truth) / found.standard_errors)
    assert 0.92 <= np.mean(held) <= 0.98
    assert np.abs(np.mean(moved, axis=0)).max() < 0.4
    assert (float(np.mean(without)) < 0.7) is noisy  # errors that do not count the noise are far too small


def test_without_noise_it_is_ordinary_least_squares() -> None:
    truth, rng = np.array([0.4, 0.4, 0.0]), np.random.default_rng(2)
    data = table(truth, 500, rng)
    learner = dp.load("linear_regression", features=2, regularization=5.0)  # a penalty plays no part
    found = dp.coefficients(dp.statistics(learner, data, dp.Privacy(1e6, 0.4), RESIDUALS))
    design = np.column_stack([data["x"], np.ones(500)])
    exact, squares, *_ = np.linalg.lstsq(design, data["y"], rcond=None)
    variance = squares[0] / (500 - 3)
    assert found.estimates == pytest.approx(exact, abs=1e-3)
    assert found.residual_deviation == pytest.approx(np.sqrt(variance), rel=1e-2)
    errors = np.sqrt(np.diag(variance * np.linalg.inv(design.T @ design)))
    assert found.standard_errors == pytest.approx(errors, rel=1e-2)
    assert found.names == ("w[0]", "w[1]", "b")
    assert "95 % intervals" in str(found)


def test_what_cannot_be_known_is_refused() -> None:
    rng = np.random.default_rng(3)
    data = table(np.array([0.4, 0.4, 0.0]), 500, rng)
    learner = dp.load("linear_regression", features=2)
    with pytest.raises(dp.TemplateError, match="residuals=True"):
        dp.coefficients(dp.statistics(learner, data, PROMISE))
    with pytest.raises(dp.NotConverged, match=r"noise alone.*whitening=True"):
        dp.coefficients(dp.statistics(learner, data, dp.Privacy(0.01, 1e-6), RESIDUALS))
    with pytest.raises(dp.NotConverged, match=r"no standard errors hold\. More records"):
        dp.coefficients(dp.statistics(learner, data, dp.Privacy(0.01, 1e-6), RESIDUALS, whitening=True))
    classes = dp.load("least_squares_classifier", features=2)
    sums = dp.statistics(classes, {"x": data["x"], "y": (data["y"] > 0).astype(int)}, PROMISE, RESIDUALS)
    with pytest.raises(dp.TemplateError, match=r"left out|several"):
        dp.coefficients(sums)
