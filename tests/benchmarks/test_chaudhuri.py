"""The calibrations of Chaudhuri, Monteleoni and Sarwate: to the letter, and never private."""

import math

import numpy as np
import pytest
from scipy import stats

import dpconvex as dp
from benchmarks.published.chaudhuri import objective_calibration, output_calibration
from benchmarks.published.reproduce import reproduce_chaudhuri


def test_algorithm_1() -> None:
    found = output_calibration(0.1, 45_222, 10**-2.5)
    assert found.rate == pytest.approx(45_222 * 10**-2.5 * 0.1 / 2)
    assert found.added == 0


def test_algorithm_2_with_enough_regularization() -> None:
    ratio = 0.25 / (45_222 * 10**-2.5)
    found = objective_calibration(0.1, 45_222, 10**-2.5, 0.25)
    assert found.left == pytest.approx(0.1 - 2 * math.log1p(ratio))
    assert found.rate == pytest.approx(found.left / 2)
    assert found.added == 0


def test_algorithm_2_with_too_little() -> None:
    found = objective_calibration(0.1, 1000, 1e-10, 0.25)
    assert found.left == pytest.approx(0.05)
    assert found.added == pytest.approx(0.25 / (1000 * math.expm1(0.025)) - 1e-10)


def test_the_noise_of_algorithm_1_has_its_law() -> None:
    template = dp.load("huber_svm", features=3, regularization=0.01)
    data = {"x": np.zeros((40, 3)), "y": np.tile([-1, 1], 20)}
    drawn = np.array([reproduce_chaudhuri(template, data, 1.0, 1, seed=s)["w"] for s in range(60)])
    release = reproduce_chaudhuri(template, data, 1.0, 2, seed=1)
    assert "as published" in release.not_private_because
    rate = output_calibration(1.0, 40, 0.01).rate
    assert stats.kstest(np.linalg.norm(drawn, axis=1) * rate, stats.gamma(3).cdf).pvalue > 1e-3
