"""What curvature adds under normal noise, as the checker bounds it: above the largest value, and no looser than the calculus."""

from fractions import Fraction

import numpy as np
from hypothesis import assume, given, settings, strategies as st
from scipy.integrate import quad
from scipy.stats import chi

from dpconvex.checker.gaussian import chi_delta, falling
from dpconvex.checker.reading import Steps
from dpconvex.noise import profiles
from dpconvex.noise.profiles import moving_delta


@given(st.floats(0.01, 8), st.floats(1e-3, 4), st.floats(1e-6, 3))
def test_what_curvature_adds_is_bounded_and_no_looser_than_the_calculus(epsilon, length, curved):
    Steps.left = 10**6
    found = float(falling(Fraction(epsilon), Fraction(length), Fraction(curved)))
    noise = np.linspace(0.0, 12.0, 20_001)
    left = epsilon - length * noise - length**2 / 2
    seen = np.minimum(-np.expm1(left - curved), -np.expm1(-curved)) / -np.expm1(-curved)
    largest = float((np.exp(-(noise**2) / 2) * np.maximum(seen, 0.0)).max()) / np.sqrt(2 * np.pi)
    assert largest * (1 - 1e-9) <= found <= float(moving_delta(epsilon, length, curved)) * (1 + 1e-9)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.3, 8), st.integers(1, 12), st.floats(0.2, 0.95))
def test_the_law_of_a_norm_is_bounded_and_no_looser_than_in_the_calculus(epsilon, dimension, part):
    Steps.left, shift = 10**6, part * epsilon / (2 + np.sqrt(dimension))
    found = float(chi_delta(Fraction(epsilon), dimension, Fraction(shift)))
    start = epsilon / shift - shift / 2
    assume(start < 11)  # normal tails are coarser beyond 12
    true = quad(
        lambda t: -np.expm1(-shift * (t - start)) * chi.pdf(t, dimension), start, start + 30, epsabs=0, limit=500
    )[0]
    assert true * (1 - 1e-7) <= found <= profiles.chi_delta(epsilon, dimension, shift)
