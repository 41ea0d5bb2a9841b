"""Privacy profile of Gaussian noise for the norm of a record's distance and of a constant: what is steep is hardly curved.

The gradient is short where the norm is mostly the constant, and there is all of its curvature (docs/theory.md, section 6, norms).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaincc, gammainccinv

from dpconvex.calculus.norm_angles import stretches

# Cells of the norm of the noise, and how many of them share one chord of the loss.
CELLS, STEP = 1200, 10
# Where the tail is cut, as a fraction of the mass that is left; all of the rest is counted.
TAIL = 1e-9


def cap_delta(
    epsilon: float, dimension: int, shift: float, ratio: float, across: float, along: float, behind: float = 0.0
) -> float:
    """Bound ``E (1 - exp(epsilon - L(t)))_+`` for t the norm of `dimension` standard normal variates.

    ``L(t) = max over angles of l t + l^2/2 + curvature``, with ``l = shift * sine + behind``.
    """
    sine, curvature = stretches(ratio, across, along)
    length = shift * sine + behind
    base = length**2 / 2 + curvature
    start = max(float(((epsilon - base) / length).min()), 0.0)
    mass = float(gammaincc(dimension / 2, start**2 / 2))
    if mass <= 0:
        return 1e-300
    end = math.sqrt(2 * float(gammainccinv(dimension / 2, max(mass * TAIL, 1e-300))))
    if end <= start:
        return min(mass * (1 + 1e-9), 1.0)
    points = np.linspace(start, end, CELLS + 1)
    coarse = points[::STEP]  # the loss is convex: between points it is below its chords
    loss = np.interp(points, coarse, np.maximum(np.max(length * coarse[:, None] + base, axis=1), epsilon))
    survival = gammaincc(dimension / 2, points**2 / 2)
    # By parts: the integral of the survival function against 1 - exp(epsilon - L), which grows.
    kept = np.exp(epsilon - loss)
    total = survival[0] * -math.expm1(epsilon - loss[0]) + float(survival[:-1] @ (kept[:-1] - kept[1:])) + survival[-1]
    return min(float(total) * (1 + 1e-9), 1.0)
