"""The smoothed hinge against its formula, its constants, and CVXPY's own proof of convexity."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpconvex.errors import TemplateError
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


@given(VIOLATIONS, st.floats(1e-3, 1e3))
def test_lies_at_most_a_quarter_of_the_width_above_the_hinge(m: float, h: float) -> None:
    gap = huber_hinge(m, h).value - max(m, 0.0)
    assert -1e-9 * (1 + abs(m)) <= gap <= h / 4 + 1e-9 * (1 + abs(m))


def test_the_gap_at_the_corner_is_exactly_a_quarter_of_the_width() -> None:
    assert huber_hinge(0.0, 0.5).value == 0.125


def test_tends_to_the_hinge_as_the_width_shrinks() -> None:
    m = np.linspace(-2, 2, 401)
    gaps = [np.abs(huber_hinge(m, h).value - np.maximum(m, 0)).max() for h in (1.0, 0.1, 0.01, 1e-6)]
    np.testing.assert_allclose(gaps, [0.25, 0.025, 0.0025, 2.5e-7], rtol=1e-6)


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


def test_is_convex_for_convex_violations_and_not_for_concave_ones() -> None:
    w = cp.Variable(3)
    assert huber_hinge(1 - w, 0.5).is_convex()
    assert huber_hinge(cp.norm(w), 0.5).is_dcp()
    assert not huber_hinge(cp.sqrt(w), 0.5).is_dcp()


def test_works_elementwise_and_in_a_problem() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(20, 3))
    w = cp.Variable(3)
    loss = huber_hinge(1 - x @ w, 0.5)
    assert loss.shape == (20,)
    problem = cp.Problem(cp.Minimize(cp.sum(loss) + cp.sum_squares(w)))
    problem.solve(solver="CLARABEL")
    direct = sum(formula(m, 0.5) for m in 1 - x @ w.value) + w.value @ w.value
    assert problem.value == pytest.approx(direct, rel=1e-6)
    # The minimiser is stationary: the slope is (m + h) / (2h), cut off at 0 and 1.
    slope = np.clip((1 - x @ w.value + 0.5) / 1.0, 0, 1)
    np.testing.assert_allclose(-x.T @ slope + 2 * w.value, 0, atol=1e-4)


@pytest.mark.parametrize("width", [0, 0.0, -1.0, np.nan, np.inf, True, "1", None, 1e-320, 1j])
def test_refuses_a_width_that_is_not_positive_and_finite(width: object) -> None:
    with pytest.raises(TemplateError, match="width"):
        huber_hinge(cp.Variable(), width)  # type: ignore[arg-type]


@pytest.mark.parametrize("expr", ["m", None, [1j], [np.nan], np.inf, cp.Variable(complex=True), object()])
def test_refuses_what_is_not_a_real_expression(expr: object) -> None:
    with pytest.raises(TemplateError, match="huber_hinge"):
        huber_hinge(expr, 0.5)
