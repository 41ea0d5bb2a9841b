"""The exact laws of an answer: against closed forms, against each other, and their total mass."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import norm

from dpconvex.auditing.laws import grid, line_masses
from dpconvex.noise.profiles import gaussian_delta

SIGMA, MODULUS = 0.7, 2.0


@given(st.floats(0.01, 5.0), st.floats(0.05, 6.0))
def test_a_shift_has_the_profile_of_the_gaussian_mechanism(epsilon: float, shift: float) -> None:
    points = grid(0.0, 30.0, -np.inf, np.inf, 4000)
    masses = line_masses(points, lambda t: MODULUS * t, lambda t: MODULUS * t + shift * SIGMA, "gaussian", SIGMA)
    claimed = float(gaussian_delta(epsilon, shift))
    found = masses.delta(epsilon)
    assert found <= claimed * (1 + 1e-9) + 1e-300
    if claimed > 1e-15:
        assert found == pytest.approx(claimed, rel=1e-2)


def test_a_shift_of_laplace_noise_costs_its_length() -> None:
    points = grid(0.0, 30.0, -np.inf, np.inf, 2000)
    masses = line_masses(points, lambda t: t, lambda t: t + 0.8, "gamma", 1.6)
    assert masses.epsilon == pytest.approx(0.5, rel=1e-6)
    assert masses.epsilon <= 0.5
    assert masses.epsilon_at(0.0) == masses.epsilon
    assert masses.delta(0.5) == 0
    total = masses.delta(0.0)  # half of what the interval between the two medians holds more
    assert total == pytest.approx(-math.expm1(-0.25), rel=1e-3)


@pytest.mark.parametrize("noise", ["gamma", "gaussian"])
@pytest.mark.parametrize("ends", [(-np.inf, np.inf), (-0.1, 0.4), (0.2, np.inf)])
def test_the_line_has_mass_one_and_what_is_cut_off_lies_at_the_ends(noise: str, ends: tuple[float, float]) -> None:
    points = grid(0.1, 9.0, *ends, 300)
    masses = line_masses(points, lambda t: 2 * t, lambda t: 2 * t + 1, noise, SIGMA)
    assert masses.first.sum() == pytest.approx(1.0, rel=1e-12)
    assert masses.second.sum() == pytest.approx(1.0, rel=1e-12)
    if np.isfinite(ends[0]) and noise == "gaussian":
        assert masses.first[0] == pytest.approx(norm.cdf(2 * points[0] / SIGMA), rel=1e-9)
