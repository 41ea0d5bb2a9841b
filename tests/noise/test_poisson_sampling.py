"""Poisson samples: the claimed delta against the exact one, from above and from below, and against sampling in one step."""

from __future__ import annotations

import math

import pytest

import dpconvex as dp
from dpconvex.auditing.sampled import SampledProfile
from dpconvex.auditing.steps import profile_delta
from dpconvex.noise.gaussian_profiles import gaussian_delta, gaussian_sigma
from dpconvex.noise.poisson_sampling import sampled_delta, sampled_multiplier


def one_step(epsilon: float, multiplier: float, rate: float) -> float:
    """The exact delta of one step: both orders, by the profile of the Gaussian mechanism (Balle, Barthe & Gaboardi 2018)."""
    more = math.log1p(math.expm1(epsilon) / rate)
    first = rate * float(gaussian_delta(more, 1 / multiplier))
    less = 1 + math.expm1(-epsilon) / rate
    if less <= 0:
        return first
    # E[(1 - e^eps ((1 - q) + q r))_+] for r the likelihood ratio
    scale = 1 - math.exp(epsilon) * (1 - rate)
    second = scale * float(gaussian_delta(math.log(math.exp(epsilon) * rate / scale), 1 / multiplier))
    return max(first, second)


@pytest.mark.parametrize(("multiplier", "rate", "epsilon"), [(1.0, 0.1, 0.05), (0.8, 0.5, 0.4), (2.0, 0.9, 0.3)])
def test_one_step_is_exact(multiplier: float, rate: float, epsilon: float) -> None:
    pytest.importorskip("dp_accounting")
    exact = one_step(epsilon, multiplier, rate)
    assert exact * (1 - 1e-9) <= sampled_delta(epsilon, multiplier, rate, 1) <= exact * 1.01
    assert exact * 0.95 <= SampledProfile(1 / multiplier, rate, 1).delta(epsilon) <= exact * (1 + 1e-9)


@pytest.mark.parametrize(("rate", "steps", "multiplier", "epsilon"), [(0.1, 60, 3.0, 0.5), (0.3, 20, 2.0, 1.5)])
def test_many_steps_are_bounded_from_both_sides(rate: float, steps: int, multiplier: float, epsilon: float) -> None:
    pytest.importorskip("dp_accounting")
    claimed = sampled_delta(epsilon, multiplier, rate, steps)
    found = SampledProfile(1 / multiplier, rate, steps).delta(epsilon)
    assert 0.95 * claimed <= found <= claimed
    # Noise that is a tenth too small is found out.
    assert SampledProfile(1 / (0.9 * multiplier), rate, steps).delta(epsilon) > claimed


def test_all_records_are_the_gaussian_mechanism() -> None:
    found = SampledProfile(0.2, 1 - 2.0**-53, 20).delta(0.5)
    assert 0.98 * profile_delta(0.5, 0.2 * math.sqrt(20)) <= found <= profile_delta(0.5, 0.2 * math.sqrt(20))


def test_the_multiplier_keeps_the_promise_and_no_more() -> None:
    pytest.importorskip("dp_accounting")
    multiplier = sampled_multiplier(1.0, 1e-5, 0.1, 30)
    assert sampled_delta(1.0, multiplier, 0.1, 30) <= 1e-5
    assert sampled_delta(1.0, 0.999 * multiplier, 0.1, 30) > 1e-5
    assert multiplier < 0.3 * gaussian_sigma(1.0, 1e-5, 1.0) * math.sqrt(30)
    with pytest.raises(dp.NotPrivate, match="not exact enough"):
        sampled_multiplier(1.0, 1e-12, 0.1, 30)
