"""Exact laws of an answer on the line: with noise b, the answer is at most t if and only if ``-b <= F'(t)``.

So a cell of answers has the mass of an interval of the noise: no density is needed, kinks and the ends of K are covered, and for
any choice of cells the delta that is found is a lower bound on the true one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dpconvex.auditing.masses import Masses

Array = NDArray[np.float64]

# Rounding of a gradient, relative to its size.
ROUNDING = 1e-15
# The least relative error of a mass.
LEAST = 1e-12
# No cell begins or ends at a number that a declaration would name, such as a kink at 0.
OFFSET = 1.2345e-7


def grid(center: float, reach: float, lower: float, upper: float, count: int, feature: float = 1.0) -> Array:
    """Return ends of cells, rising, shape (m,), strictly between `lower` and `upper`.

    Half of them are equally spaced within `reach` of the center; the others are close together near 0 and near the center, at
    the scale of `feature`, where losses bend.
    """
    even = center + reach * np.linspace(-1, 1, count // 2)
    wide = np.arcsinh(2 * (abs(center) + reach) / feature)
    bent = np.sinh(np.linspace(-wide, wide, count // 4)) * feature
    points = np.concatenate([even, bent, center + bent])
    if np.isfinite(lower) and np.isfinite(upper):
        points = np.concatenate([points, lower + (upper - lower) * np.linspace(0, 1, count // 2)[1:-1]])
    points = np.unique(points + OFFSET * feature)
    return np.asarray(points[(points > lower) & (points < upper)])


def interval_mass(noise: str, scale: float, low: Array, high: Array) -> Array:
    """Return the probability that noise on the line lies between `low` and `high`, shape (m,), accurate in both tails."""
    mirrored = low + high < 0
    low, high = np.where(mirrored, -high, low) / scale, np.where(mirrored, -low, high) / scale
    if noise == "gaussian":
        return np.asarray(np.maximum(ndtr(-low) - ndtr(-high), 0.0))
    with np.errstate(invalid="ignore", over="ignore"):
        right = 0.5 * np.exp(-np.maximum(low, 0.0)) * -np.expm1(-(high - np.maximum(low, 0.0)))
        left = -0.5 * np.expm1(np.minimum(low, 0.0))
    return np.asarray(np.maximum(np.nan_to_num(right) + left, 0.0))


def line_masses(
    points: Array, first: Callable[[Array], Array], second: Callable[[Array], Array], noise: str, scale: float
) -> Masses:
    """Return the masses of cells of answers for two objectives."""
    found, error = [], np.full(len(points) + 1, LEAST)
    for derivative in (first, second):
        slope = np.maximum.accumulate(derivative(points))  # rounding must not turn cells inside out
        ends = np.concatenate([[-np.inf], slope, [np.inf]])
        found.append(interval_mass(noise, scale, ends[:-1], ends[1:]))
        inner = np.diff(slope)
        size = np.abs(slope[1:]) + np.abs(slope[:-1]) + scale
        with np.errstate(divide="ignore"):
            lost = np.where(inner > 0, 4 * ROUNDING * size * np.maximum(size / scale, 1.0) / inner, 1.0)
        error[1:-1] = np.maximum(error[1:-1], np.minimum(lost, 1.0))
        error[[0, -1]] += ROUNDING * (np.abs(slope[[0, -1]]) / scale + 1) ** 2
    return Masses(found[0], found[1], error)
