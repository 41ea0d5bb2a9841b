"""What curvature adds under normal noise, as the checker bounds it: above the largest value, and no looser than the calculus."""

from fractions import Fraction

import numpy as np
from hypothesis import given, strategies as st

from dpconvex.checker.mechanisms import falling
from dpconvex.checker.reading import Steps
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
