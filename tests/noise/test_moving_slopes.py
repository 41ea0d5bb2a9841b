"""Replacements: what is proved where slopes move, against explicit adversaries, and against other angles of the two records."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import ndtr

from dpconvex.accounting.events import Hull
from dpconvex.noise.profiles import gaussian_delta, moving_delta, smallest_scale, swing

NORMAL = np.linspace(-7.0, 9.0, 801)
WEIGHT = np.exp(-(NORMAL**2) / 2) / math.sqrt(2 * math.pi) * (NORMAL[1] - NORMAL[0])


def found(delta_of: object, start: float = 5.0) -> float:
    sigma = smallest_scale(delta_of, 1e-6, start)  # type: ignore[arg-type]
    assert sigma is not None
    return sigma


@given(
    angle=st.floats(0.0, math.pi),
    length=st.floats(0.05, 2.0),
    epsilon=st.floats(0.1, 2.0),
    curvature=st.floats(0.01, 3.0),
)
@settings(max_examples=25)
def test_noise_that_moves_a_slope_counts_most_along_the_difference(
    angle: float, length: float, epsilon: float, curvature: float
) -> None:
    reach = length * (np.cos(angle) * NORMAL[:, None] + np.sin(angle) * NORMAL) + length**2 / 2
    gained = np.clip(-np.expm1(np.minimum(epsilon - curvature - reach, 0.0)), 0.0, -math.expm1(-curvature))
    most = (np.exp(-(NORMAL[:, None] ** 2) / 2) * gained).max(axis=0) / math.sqrt(2 * math.pi) @ WEIGHT
    bound = float(moving_delta(epsilon, length, curvature))
    assert most / -math.expm1(-curvature) <= bound * (1 + 1e-6) + 1e-12
    fine = np.linspace(0.0, 12.0, 40001)
    straight = length * fine + length**2 / 2
    gained = np.clip(-np.expm1(np.minimum(epsilon - curvature - straight, 0.0)), 0.0, -math.expm1(-curvature))
    reached = (np.exp(-(fine**2) / 2) * gained).max() / -math.expm1(-curvature) / math.sqrt(2 * math.pi)
    assert bound <= reached * 1.05 + 1e-12


def hinge(epsilon: float, sigma: float, curvature: float) -> float:
    """Delta of a hinge that replaces an opposite one, as a certificate bounds it."""
    step = 1 / sigma
    hull = Hull(2, 2 * step, curvature, (step, 2 * step), (2.0, 1.0), (step, 0.0, 0.0, 0.0), (0.0, step))
    return hull.delta(epsilon)[0]


def alone(epsilon: float, sigma: float, curvature: float) -> float:
    """Delta of a hinge that appears."""
    step = 1 / sigma
    return Hull(1, step, curvature, (step,), (1.0,), (step, 0.0, 0.0, 0.0), (0.0,)).delta(epsilon)[0]


def one_fall(epsilon: float, sigma: float, curvature: float, behind: float = 1.0) -> float:
    """The slope stays, falls as fast as it may, and stays, beside a record with an opposite slope."""
    start, length = np.linspace(-2, 8, 401)[:, None], np.linspace(0, 12, 481)[None]
    end, left = start + length, np.maximum(0.0, 1 / sigma + math.expm1(-curvature) * length)
    there = ndtr(-start) - ndtr(-end)
    moved = ndtr(-(start + (1 + behind) / sigma)) - ndtr(-(end + left + behind / sigma))
    return float((there - math.exp(epsilon) * moved).max())


@pytest.mark.parametrize("curvature", [0.1, 0.3, 0.5, 0.8])
@pytest.mark.parametrize(("bound", "behind"), [(alone, 0.0), (hinge, 1.0)])
def test_no_adversary_beats_a_hinge_and_one_comes_close(bound: object, behind: float, curvature: float) -> None:
    sigma = found(lambda s: bound(1.0, s, curvature))  # type: ignore[operator]
    assert one_fall(1.0, sigma, curvature, behind) <= 1e-6
    assert one_fall(1.0, 0.9 * sigma, curvature, behind) > 1e-6  # a tenth less would be found out
    steps, counts = (np.array([1, 2]), np.array([2, 1])) if behind else (np.array([1]), np.array([1]))
    everywhere = found(lambda s: float((counts * gaussian_delta(1 - curvature, steps / s)).sum()))
    assert everywhere >= 1.05 * sigma


def test_limits() -> None:
    assert swing(1.0, 0.5, 0.5, 0.3) == swing(1.0, 0.5, 0.0, 0.0) == 0.0
    assert swing(1.0, 0.5, 0.3, 0.3) < swing(1.0, 0.5, 0.0, 0.3) < swing(1.0, 0.5, 0.0, 0.3, behind=1.0)
    everywhere = swing(1.0, 0.3, 0.0, math.log1p(0.5))
    assert swing(1.0, 0.3, 0.0, math.log1p(0.5), 2.0) < everywhere < swing(1.0, 0.3, 0.0, math.log1p(0.5), behind=0.3)
    lengths, bends = np.geomspace(1e-8, 5.0, 40), np.geomspace(1e-6, 50.0, 40)
    assert (np.diff(moving_delta(1.0, lengths, 0.4)) >= 0).all()
    assert (np.diff(moving_delta(1.0, 0.4, bends)) >= -1e-3 * moving_delta(1.0, 0.4, bends)[1:]).all()
    assert np.isfinite(moving_delta(700.0, lengths[:, None], bends)).all()
