"""Curvature less what it takes away from length, against fine grids."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpconvex.calculus.opposed_slopes import Segment, Spread

powers = st.floats(-2.0, 2.0).map(lambda power: 10.0**power)
shares = st.floats(0.0, 1.0, allow_subnormal=False)


@given(low=shares, least=shares, high=shares, scale=powers, radius=powers, mu=powers, sigma=powers)
def test_a_segment_is_never_below_a_grid_and_close(
    low: float, least: float, high: float, scale: float, radius: float, mu: float, sigma: float
) -> None:
    low, least, high = sorted((low, least, high))
    s = np.linspace(least, high, 1001)[:, None]
    w = np.concatenate([np.linspace(0, 1, 101), np.geomspace(1e-7, 1, 150)])
    gain, loss = scale * radius**2 / mu * s * (1 - s), (scale * radius / sigma) ** 2 / 2 * (s - low) * (high - s)
    seen = float((np.log1p(w * gain) - w * loss).max())
    found = Segment(scale, radius, low, high, least).excess(mu, sigma)
    assert seen <= found * (1 + 1e-9) + 1e-14
    assert found <= seen * (1 + 2e-3) + 1e-5


@given(scale=powers, radius=powers, mu=powers, sigma=powers)
def test_all_slopes_are_a_covariance_of_two_points(scale: float, radius: float, mu: float, sigma: float) -> None:
    segment = Segment(scale, radius, 0.0, 1.0, 0.0).excess(mu, sigma)
    assert segment == pytest.approx(Spread(scale, radius**2 / 4, 1).excess(mu, sigma), rel=1e-9, abs=1e-12)


def test_narrowed_slopes_keep_their_curvature_at_both_ends() -> None:
    # All slopes are free at scale mu >= 2 sigma^2; slopes from .25 to .75 are not.
    assert Segment(1.0, 1.0, 0.0, 1.0, 0.0).excess(2.0, 1.0) == 0.0
    assert Segment(1.0, 1.0, 0.25, 0.75, 0.25).excess(2.0, 1.0) >= np.log1p(0.25 * 0.75 / 2)


@pytest.mark.parametrize("sigma", [1e-200, 1e-9, 1e9, 1e200])
@pytest.mark.parametrize("mu", [1e-200, 1e-9, 1e9, 1e200])
def test_extremes_are_numbers(mu: float, sigma: float) -> None:
    found = Segment(1.0, 1.0, 0.3, 0.6, 0.3).excess(mu, sigma)
    assert 0 <= found <= np.log1p(0.25 / mu) * (1 + 1e-9)
    assert Spread(1.0, 0.25, 1).excess(mu, sigma) <= np.log1p(0.25 / mu) * (1 + 1e-9)
