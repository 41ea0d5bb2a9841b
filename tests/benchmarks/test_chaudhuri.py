"""The calibrations of Chaudhuri, Monteleoni and Sarwate: to the letter, and never private."""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np
import pytest
from scipy import stats

import dpconvex as dp
from benchmarks.published.chaudhuri import objective_calibration, output_calibration, published_calibration
from benchmarks.published.reproduce import repeat_chaudhuri, reproduce_chaudhuri
from dpconvex.release.verify import analyse


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


@pytest.mark.parametrize(("problem", "curvature"), [("logistic_regression", 0.25), ("huber_svm", 1.0)])
def test_the_constants_are_those_of_the_template(problem: str, curvature: float) -> None:
    analysis = analyse(dp.load(problem, features=3, regularization=0.02))
    found = published_calibration(analysis, 1.0, 500, 2)
    expected = objective_calibration(1.0, 500, 0.02, curvature)
    assert found.rate == pytest.approx(expected.rate, rel=1e-9)


def test_ours_needs_less_noise() -> None:
    analysis = analyse(dp.load("logistic_regression", features=3, regularization=0.02))
    for epsilon in (0.1, 1.0):
        published = published_calibration(analysis, epsilon, 500, 2)
        ours = dp.ObjectivePerturbation(added=500 * published.added).certify(analysis, dp.Privacy(epsilon), 500)
        assert ours.noise_scale < 1 / published.rate


def test_what_the_paper_does_not_cover_is_refused() -> None:
    with pytest.raises(dp.NotPrivate, match="norm at most 1"):
        published_calibration(analyse(dp.load("logistic_regression", features=3, radius=2.0)), 1.0, 100, 2)
    hinge = analyse(dp.load("hinge_svm", features=3))
    assert published_calibration(hinge, 1.0, 100, 1).rate == pytest.approx(100 * 0.01 / 2)
    with pytest.raises(dp.NotPrivate, match="differentiable"):
        published_calibration(hinge, 1.0, 100, 2)
    w = cp.Variable(3, name="w")
    flat = dp.Template(dp.Record(x=dp.Ball(3)), lambda x: cp.logistic(x @ w))
    with pytest.raises(dp.NotPrivate, match="strongly convex"):
        published_calibration(analyse(flat), 1.0, 100, 2)
    with pytest.raises(dp.TemplateError, match="Algorithms 1 and 2"):
        published_calibration(analyse(dp.load("logistic_regression", features=3)), 1.0, 100, 3)
    with pytest.raises(dp.TemplateError, match="positive"):
        output_calibration(0.0, 100, 0.1)
    with pytest.raises(dp.TemplateError, match="curvature"):
        objective_calibration(1.0, 100, 0.1, 0.0)


@pytest.mark.parametrize("algorithm", [1, 2])
def test_a_reproduction_says_that_it_is_not_private(algorithm: int) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(600, 2))
    x /= np.linalg.norm(x, axis=1, keepdims=True) * (1 + 1e-12)
    y = np.where(x[:, 0] > 0, 1, -1)
    template = dp.load("logistic_regression", features=2, regularization=0.01)
    release = reproduce_chaudhuri(template, {"x": x, "y": y}, 5.0, algorithm, seed=1)
    assert not release.private
    assert "as published" in release.not_private_because
    assert np.mean(release.predict(x) == y) > 0.85


def test_the_noise_of_algorithm_1_has_its_law() -> None:
    template = dp.load("huber_svm", features=3, regularization=0.01)
    data = {"x": np.zeros((40, 3)), "y": np.tile([-1, 1], 20)}
    drawn = np.array([reproduce_chaudhuri(template, data, 1.0, 1, seed=s)["w"] for s in range(120)])
    rate = output_calibration(1.0, 40, 0.01).rate
    assert stats.kstest(np.linalg.norm(drawn, axis=1) * rate, stats.gamma(3).cdf).pvalue > 1e-3


@pytest.mark.parametrize("algorithm", [1, 2])
def test_repeated_runs_are_single_runs(algorithm: int) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(50, 2))
    data = {"x": x / np.linalg.norm(x, axis=1).max() / (1 + 1e-12), "y": np.tile([-1, 1], 25)}
    template = dp.load("huber_svm", features=2, regularization=0.01)
    runs = [r["w"] for r in repeat_chaudhuri(template, data, 1.0, algorithm, draws=3, seed=5)]
    assert runs[0] == pytest.approx(reproduce_chaudhuri(template, data, 1.0, algorithm, seed=5)["w"], abs=1e-7)
    assert len({run.tobytes() for run in runs}) == 3
