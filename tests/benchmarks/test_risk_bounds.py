"""The papers' formulas, against numbers worked out by hand, and against the noise that they speak of."""

import math

import pytest
from scipy.stats import gamma

from benchmarks.published.chaudhuri import objective_calibration
from benchmarks.published.lecture import lecture_sigma
from benchmarks.published.risk_bounds import (
    chaudhuri_lemma_3,
    chaudhuri_lemma_5,
    chaudhuri_theorem_3,
    chaudhuri_theorem_4,
    lecture_rate,
    lecture_requirements,
    pathak_raj_theorem_5_2,
    pathak_raj_theorem_5_3,
)

# log(10 / 0.05) = log 200 = 5.298317, log(9 / 0.05) = log 180 = 5.192957, log 20 = 2.995732


def test_chaudhuri_by_hand() -> None:
    # 2 10^2 (0.25 + 0.01) 28.07217 / (0.01 1000 0.1)^2
    assert chaudhuri_lemma_3(1000, 10, 0.1, 0.01, 0.25, 0.05) == pytest.approx(1459.753, rel=1e-6)
    assert chaudhuri_lemma_3(1000, 10, 0.1, 0.01, 0.25, 0.05, smoothness=2.0) == pytest.approx(1515.897, rel=1e-6)
    # 4 10^2 28.07217 / (0.01 1000^2 0.01)
    assert chaudhuri_lemma_5(1000, 10, 0.1, 0.01, 0.05) == pytest.approx(112.28866, rel=1e-6)
    # 9 2.995732 / 0.01;  10 5.298317 3 / (0.1 0.5);  10 5.298317 0.5 9 / (0.0316228 0.5)
    assert chaudhuri_theorem_3(3.0, 0.1, 10, 0.5, 0.25, 0.05) == pytest.approx((2696.159, 3178.990, 15079.28), rel=1e-5)
    # 0.25 9 / (0.1 0.5)
    assert chaudhuri_theorem_4(3.0, 0.1, 10, 0.5, 0.25, 0.05) == pytest.approx((2696.159, 45.0, 3178.990), rel=1e-5)


def test_pathak_and_raj_by_hand() -> None:
    # 8 10^4 2 26.96680 / 0.31
    assert pathak_raj_theorem_5_2(9, 2, 1.0, 0.31, 0.05) == pytest.approx(13918349.0, rel=1e-5)
    # 16 (32 + 2.995732) / (0.31 583)
    more = pathak_raj_theorem_5_3(583, 9, 2, 1.0, 0.31, 0.05) - pathak_raj_theorem_5_2(9, 2, 1.0, 0.31, 0.05)
    assert more == pytest.approx(3.098172, rel=1e-5)
    assert pathak_raj_theorem_5_2(9, 2, 0.5, 0.31, 0.05) == pytest.approx(4 * 13918349.0, rel=1e-5)


def test_the_lecture_by_hand() -> None:
    # sigma = sqrt(2 log 1250000) / 0.5 = 10.597605;  B^2 = 10 (1 + 100 112.3092 10 / 683^2)
    assert lecture_sigma(0.5, 1e-6, 1.0, 1) == pytest.approx(10.597605, rel=1e-6)
    assert lecture_rate(5.0, math.sqrt(10), 100, 10, 683, 0.5, 1e-6) == pytest.approx(1.761217, rel=1e-5)
    # The two terms of the lecture's last line add up to at least as much.
    apart = 5 * math.sqrt(10) / 10 + 5 * math.sqrt(10) * 10.597605 * math.sqrt(10) / 683
    assert lecture_rate(5.0, math.sqrt(10), 100, 10, 683, 0.5, 1e-6) <= apart
    steps, size = lecture_requirements(5.0, math.sqrt(10), 0.2, 10, 0.5, 1e-6)
    assert steps == pytest.approx(4 * 25 * 10 / 0.04)
    assert size == pytest.approx(2 * 5 * 10 * 10.597605 / 0.2, rel=1e-6)
    assert lecture_rate(5.0, math.sqrt(10), math.ceil(steps), 10, math.ceil(size), 0.5, 1e-6) <= 0.2


def test_lemma_5_is_broken_where_curvature_takes_most_of_epsilon() -> None:
    """On records at 0 the objective is Lambda f^2 / 2, and the excess of Algorithm 2 is ||b||^2 / (2 n^2 Lambda) exactly."""
    n, weight, probability = 1000, 1e-3, 0.05
    for d in (1, 5):
        for epsilon, holds in ((2.0, True), (0.5, False)):
            found = objective_calibration(epsilon, n, weight, 0.25)
            assert found.added == 0
            excess = float(gamma.isf(probability, d) / found.rate) ** 2 / (2 * n**2 * weight)
            printed = chaudhuri_lemma_5(n, d, epsilon, weight, probability)
            # log(1 + .5 + .0625) = 0.446 leaves 0.054 of 0.5
            assert (excess <= printed) == holds
            assert excess <= chaudhuri_lemma_5(n, d, found.left, weight, probability)
