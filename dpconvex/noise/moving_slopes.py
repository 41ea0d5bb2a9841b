"""What curvature adds to a Gaussian privacy profile where it is the rate at which a record's slope moves along the noise.

A record of one margin whose slope stays costs no more than a Gaussian mechanism.  Where its slope falls, curvature is charged
too, but a slope can fall by its range only, and noise that leads there is rare (docs/theory.md, section 7, one margin, replaced).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Slices of the slopes, and halvings of the interval of noise that counts most.
SLICES, HALVINGS = 60, 14
# Differences of gradients that are shorter, in units of sigma, count as this long.
SHORTEST = 1e-9


def moving_delta(epsilon: float, length: ArrayLike, curvature: ArrayLike) -> Array:
    """Bound what curvature adds to delta while a slope falls, for each unit, in units of sigma, that it falls by.

    With J = `curvature`, and l = `length` that of the difference of gradients, this is
    ``max_x phi(x) min(1 - exp(epsilon - J - l x - l^2/2), 1 - exp(-J))_+ / (1 - exp(-J))``.  It grows with both.
    """
    long, bend = np.broadcast_arrays(np.maximum(length, SHORTEST), np.maximum(curvature, SHORTEST))
    base = long**2 / 2 - epsilon + bend + 1e-12 * (1 + abs(epsilon) + bend)
    low = np.maximum(-base / long, 0.0)
    high = np.maximum((bend - base) / long, low)
    for _ in range(HALVINGS):  # the derivative of the logarithm falls
        middle = (low + high) / 2
        rising = middle * np.expm1(np.clip(long * middle + base, 0.0, bend)) < long
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    gained = np.expm1(-np.clip(long * high + base, 0.0, bend)) / np.expm1(-bend)
    return np.asarray(np.exp(-(low**2) / 2) * gained * ((1 + 1e-9) / math.sqrt(2 * math.pi)))


def swing(epsilon: float, steepest: float, room: float, curvature: float, behind: float = 0.0) -> float:
    """Bound what curvature adds where slopes fall from `steepest` by at most `room`, beside a gradient of length `behind`."""
    if room <= 0 or curvature <= 0:
        return 0.0
    slopes = steepest - room * np.arange(SLICES) / SLICES
    return room * float(moving_delta(epsilon, slopes + behind, curvature).mean())


def logistic_swing(epsilon: float, shift: float, ratio: float, high: float = 1.0, behind: float = 0.0) -> float:
    """Bound the same for a logistic record, whose curvature at slope s is ``log(1 + ratio s (1 - s))``."""
    ends = np.linspace(0.0, high, SLICES + 1)
    steepest = np.clip(0.5, ends[:-1], ends[1:])
    curvature = np.log1p(ratio * steepest * (1 - steepest)) * (1 + 1e-12)
    return high * shift * float(moving_delta(epsilon, ends[1:] * shift + behind, curvature).mean())
