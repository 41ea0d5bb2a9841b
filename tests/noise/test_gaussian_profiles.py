"""Privacy profiles of Gaussian noise: upper bounds, close to what quadrature gives, and right in known cases."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from dpconvex.noise.profiles import (
    chi_delta,
    gaussian_delta,
    gaussian_sigma,
    smallest_scale,
)


def hockey_stick(epsilon: float, a: float) -> float:
    """Integrate the positive part of N(a, 1) minus exp(epsilon) N(0, 1) numerically."""
    edge = epsilon / a + a / 2  # beyond it the difference is positive

    def difference(t: float) -> float:
        return float(stats.norm.pdf(t - a) - math.exp(epsilon) * stats.norm.pdf(t))

    return float(integrate.quad(difference, edge, edge + 12, epsabs=0, epsrel=1e-11, limit=200)[0])


@pytest.mark.parametrize("a", [0.05, 0.5, 2.0, 6.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 5.0])
def test_the_profile_of_the_gaussian_mechanism_is_exact(epsilon: float, a: float) -> None:
    exact = hockey_stick(epsilon, a)
    found = float(gaussian_delta(epsilon, a))
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-7) + 1e-18


def test_extreme_numbers_do_no_harm() -> None:
    assert float(gaussian_delta(1.0, 0.0)) == 0.0
    assert float(gaussian_delta(0.0, 1e-12)) < 1e-12
    assert float(gaussian_delta(1.0, 1e6)) == 1.0
    assert 0 <= float(gaussian_delta(700.0, 1.0)) < 1e-300
    assert float(gaussian_delta(-1.0, 0.0)) == pytest.approx(1 - math.exp(-1))
    assert (np.diff(gaussian_delta(1.0, np.geomspace(1e-3, 1e3, 50))) >= 0).all()


def by_quadrature(epsilon: float, dimension: int, a: float) -> float:
    c = epsilon - a**2 / 2

    def term(t: float) -> float:
        return max(-math.expm1(c - a * t), 0.0) * float(stats.chi.pdf(t, dimension))

    start = max(c / a, 0.0)
    return float(integrate.quad(term, start, np.inf, epsabs=0, epsrel=1e-10, limit=400)[0])


@pytest.mark.parametrize(
    ("dimension", "a", "epsilon"),
    [(1, 0.5, 0.5), (3, 1.0, 0.3), (9, 0.1, 0.5), (2, 3.0, 1.0), (20, 0.4, 5.0), (5, 1.0, -0.1), (2, 2.0, 1.0)],
)
def test_the_chi_bound_is_above_quadrature_and_close(dimension: int, a: float, epsilon: float) -> None:
    exact = by_quadrature(epsilon, dimension, a)
    assert exact * (1 - 1e-8) <= chi_delta(epsilon, dimension, a) <= exact * (1 + 2e-4)


def test_a_delta_that_is_no_number_proves_nothing() -> None:
    found = smallest_scale(lambda scale: math.nan if scale < 3 else 1 / scale, 1e-3, 1.0)
    assert found == pytest.approx(1e3)
    assert smallest_scale(lambda scale: math.nan, 1e-3, 1.0) is None


def scale(delta_of: object, start: float) -> float:
    found = smallest_scale(delta_of, 1e-6, start)  # type: ignore[arg-type]
    assert found is not None
    return found


@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
def test_calibration_is_rounded_up_and_tight(epsilon: float, delta: float) -> None:
    sigma = gaussian_sigma(epsilon, delta, 3.0)
    assert float(gaussian_delta(epsilon, 3.0 / sigma)) <= delta
    assert float(gaussian_delta(epsilon, 3.0 / (sigma * (1 - 1e-6)))) > delta


@pytest.mark.parametrize("epsilon", [700.0, 1000.0, 1e5])
def test_huge_promises_do_not_overflow(epsilon: float) -> None:
    sigma = gaussian_sigma(epsilon, 1e-6, 1.0)
    assert 0.0 < sigma < 0.1
    assert float(gaussian_delta(epsilon, 1.0 / sigma)) <= 1e-6
    assert chi_delta(epsilon, 3, 0.0) == 0.0
    assert chi_delta(epsilon, 3, 1.0 / sigma) <= 1.0
