"""Total cost of several adaptive choices by noisy scores, each of bounded range (docs/theory.md, proposition 8.10)."""

import math
from functools import lru_cache

import numpy as np
import scipy  # what is used of it is imported on first use

from dpconvex.noise.profiles import Profile
from dpconvex.numerics import NORM_SLACK, SUM_SLACK
from dpconvex.util.arrays import Array

# Largest number of choices bounded together, grid points for the loss of one choice, and grid points of the curve on each side.
# The bounds on ranges, and the largest slope of one choice's level in its range: sqrt(2 pi) / 4.
TOGETHER, SHIFTS, SIDE = 16, 100, 250
NARROW, WIDEST, STEEPEST = 1e-3, 8.0, 0.62666


@lru_cache(maxsize=1024)
def choices_level(width: float, count: int) -> float:
    """Return the GDP level mu of `count` adaptive choices together, each of range `width`.

    For each choice, the log-likelihood ratios of its outcomes lie in some interval of length `width`.  The curve H of all
    choices follows by a recursion that rounds upwards in every step (docs/theory.md, proposition 8.10).
    """
    if count == 1 or width < NARROW:
        one = 2 * float(scipy.special.ndtri(scipy.special.expit(width / 2)))
        return max(one * (1 + SUM_SLACK), STEEPEST * width * (width < NARROW)) * math.sqrt(count)
    step = width / SHIFTS
    wide = width + step  # length of the union of all intervals that begin between two grid points
    top = np.linspace(step, width, SHIFTS)[:, None]
    share = np.expm1(wide - top) / (np.exp(-top) * math.expm1(wide))
    logs = count * wide * np.arange(-SIDE, SIDE + 1) / SIDE
    ratios = np.exp(logs)
    bound = np.maximum(1 - ratios, 0.0)

    def at(moved: Array) -> Array:
        points = np.exp(logs - moved - NORM_SLACK)
        return np.where(points < ratios[0], 1 - points, np.interp(points, ratios, bound))

    for _ in range(count):
        bound = (share * at(top) + (1 - share) * at(top - wide)).max(axis=0) * (1 + 1e-13)
    deltas = np.append(np.minimum.accumulate(bound[SIDE:-1]), 0.0)  # no loss exceeds the last
    return Profile(logs[SIDE:], deltas).level


@lru_cache(maxsize=1024)
def choice_width(level: float, count: int) -> float:
    """Return a range, rounded down, at which `count` adaptive choices together have at most this level."""
    width = min(level / (STEEPEST * math.sqrt(count)), WIDEST)  # valid if levels of single choices add in quadrature
    for _ in range(4 * (width > NARROW)):
        width = min(width * level / choices_level(width, count), WIDEST)
    while not choices_level(width, count) <= level:
        width *= 1 - 1e-4
    return width
