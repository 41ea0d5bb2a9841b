"""The privacy of one record of one margin, against explicit adversaries: slopes that fall along the noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ndtr

from dpconvex.noise.gaussian_profiles import gaussian_delta, margin_delta, smallest_scale

CASES = [(1e-2, 0.2), (1e-2, 0.8), (1e-4, 0.5), (1e-6, 0.2), (1e-6, 0.5), (1e-6, 0.8)]


def one_fall(epsilon: float, steepest: float, room: float, curvature: float) -> float:
    """The slope stays, falls as fast as it may, and stays: the noise it falls on goes where it is farther and less."""
    start, length = np.linspace(-2, 8, 401)[:, None], np.linspace(0, 12, 481)[None]
    end, left = start + length, np.maximum(steepest - room, steepest + math.expm1(-curvature) * length)
    there = ndtr(-start) - ndtr(-end)
    moved = ndtr(-(start + steepest)) - ndtr(-(end + left))
    return float((there - math.exp(epsilon) * moved).max())


def any_fall(epsilon: float, steepest: float, curvature: float, levels: int = 50) -> float:
    """Dynamic programming over all ways to fall from `steepest` to 0."""
    rate = -math.expm1(-curvature)
    slope, step = np.linspace(0, steepest, levels + 1), steepest / levels / rate
    middle, values = (slope[1:] + slope[:-1]) / 2, np.zeros(levels + 1)
    for t in np.arange(9.0, -6.0, -step):
        here = math.exp(-(t**2) / 2)
        stay = values + step * np.maximum(here - math.exp(epsilon) * np.exp(-((t + slope) ** 2) / 2), 0)
        fall = np.full(levels + 1, -1.0)
        moved = math.exp(epsilon - curvature) * np.exp(-((t + middle) ** 2) / 2)
        fall[1:] = values[:-1] + step * np.maximum(here - moved, 0)
        values = np.maximum(stay, fall)
    return float(values.max()) / math.sqrt(2 * math.pi)


@pytest.mark.parametrize(("delta", "curvature"), CASES)
def test_no_adversary_beats_the_bound_and_one_comes_close(delta: float, curvature: float) -> None:
    sigma = smallest_scale(lambda s: margin_delta(1.0, 1 / s, 1 / s, curvature), delta, 5.0)
    assert sigma is not None
    assert any_fall(1.0, 1 / sigma, curvature) <= delta * 1.02  # its cells round a little
    assert one_fall(1.0, 1 / sigma, 1 / sigma, curvature) <= delta
    # With a tenth less noise the claim would be false, and with curvature everywhere it would cost more.
    assert one_fall(1.0, 1.1 / sigma, 1.1 / sigma, curvature) > delta
    everywhere = smallest_scale(lambda s: float(gaussian_delta(1.0 - curvature, 1 / s)), delta, 5.0)
    assert everywhere is not None
    assert everywhere > 1.05 * sigma


def test_limits() -> None:
    assert margin_delta(1.0, 0.5, 0.5, 0.0) == pytest.approx(float(gaussian_delta(1.0, 0.5)))
    assert margin_delta(1.0, 0.5, 0.0, 0.3) == pytest.approx(float(gaussian_delta(1.0, 0.5)), rel=1e-6)
    values = [margin_delta(1.0, 0.5, room, curvature) for room in (0.25, 0.5) for curvature in (0.1, 0.5, 0.9, 1.5)]
    assert values[:4] == sorted(values[:4])
    assert values[4:] == sorted(values[4:])
    assert all(a <= b for a, b in zip(values[:4], values[4:], strict=True))
