"""Gaussian noise, continuous and on the integers: delta for each epsilon in closed form, and calibration to a guarantee."""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import scipy  # what is used of it is imported on first use
from numpy.typing import ArrayLike

from dpconvex.errors import NotPrivate
from dpconvex.numerics import FUNCTION_SLACK, ROUNDED_UP
from dpconvex.util.arrays import Array

# Shifts are limited to FARTHEST.  Logarithms of the largest multiple of a guessed scale, and of the largest scale.
FARTHEST, REACH, LARGEST_LOG = 1e100, 25.0, 700.0
# Integers with probability proportional to ``exp(-k^2/(2 s^2))`` are as private as normal noise of variance
# ``s^2 - GRID_VARIANCE``, if (1 + exp(epsilon)) * GRID_LOSS is added to delta (docs/theory.md, section 8, on the integers).
GRID_VARIANCE, GRID_LOSS = 9.0, 1e-60
TRUNCATED = 2.0**-100  # Probability that the noise of a mechanism exceeds the cap for which tau was chosen


def bisect(holds: Callable[[float], bool], low: float, high: float, steps: int) -> tuple[float, float]:
    """Return an interval, halved `steps` times.  `holds` is true at its lower end if it is true at `low`."""
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low, high


def gaussian_delta(epsilon: ArrayLike, shift: ArrayLike, sign: int = 1) -> Array:
    """Return the exact delta of a Gaussian mechanism (Balle & Wang 2018, theorem 8), rounded up, or down if `sign` is -1."""
    epsilon, a = np.asarray(epsilon, dtype=float), np.minimum(np.asarray(shift, dtype=float), FARTHEST)
    safe = np.where(a > 0, a, 1.0)
    # The limit avoids infinities; exponentials are 0 long before it.
    first, second = (np.maximum(scipy.special.log_ndtr(side * safe / 2 - epsilon / safe), -1e300) for side in (1, -1))
    pad = sign * (FUNCTION_SLACK + 1e-15 * (np.abs(first) + np.abs(second) + np.abs(epsilon)))
    with np.errstate(over="ignore"):
        delta = np.exp(first) * (1 + pad) - np.exp(epsilon + second) * (1 - pad)
    still = -np.expm1(np.minimum(epsilon, 0.0))  # delta for a shift of 0
    return np.asarray(np.where(a > 0, np.clip(delta, 0.0, 1.0), still))


def profile_epsilon(shift: float, delta: float) -> float:
    """Return the epsilon of mu-GDP at a delta, rounded up; mu is `shift`.  Infinite if there is none."""
    ends = np.append(0.0, 2.0 ** np.arange(20))
    enough = np.flatnonzero(gaussian_delta(ends, shift) <= delta)
    if not shift < LARGEST_LOG or not len(enough):
        return math.inf
    if enough[0] == 0:
        return 0.0
    low, high = ends[enough[0] - 1 : enough[0] + 1].tolist()
    return bisect(lambda epsilon: float(gaussian_delta(epsilon, shift)) > delta, low, high, 60)[1]


def smallest_scale(
    delta_of: Callable[[float], float], delta: float, start: float, accuracy: float = 1e-10, reach: float = REACH
) -> float | None:
    """Return a scale of noise with ``delta_of(scale) <= delta``, close to the smallest, or None; `start` is a guess."""

    def excess(log_scale: float) -> float:
        found = delta_of(math.exp(log_scale))
        return math.log(max(found, 1e-300) if found <= 1 else 1.0) - math.log(delta)  # NaN counts as a delta of 1

    high, stride = math.log(start), 0.7
    while excess(high) > 0:
        high, stride = high + stride, 1.4 * stride
        if high > min(math.log(start) + reach, LARGEST_LOG):
            return None
    low = high - stride
    while excess(low) <= 0:
        high, low, stride = low, low - 1.4 * stride, 1.4 * stride
        if low < -300:
            return math.exp(high)
    root = float(scipy.optimize.brentq(excess, low, high, xtol=accuracy, rtol=1e-12))
    step = accuracy
    while excess(root) > 0:
        root, step = min(root + step, high), 4 * step
    return math.exp(root)


@lru_cache(maxsize=1024)
def gaussian_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the smallest standard deviation of Gaussian noise for a guarantee, rounded up."""
    found = smallest_scale(
        lambda s: gaussian_delta(epsilon, sensitivity / s).item(), delta, sensitivity, reach=math.inf
    )
    if found is None:
        why = "no Gaussian noise with a standard deviation in floating point keeps the guarantee"
        raise NotPrivate(why, f"epsilon = {epsilon:g}, delta = {delta:g}", "ask for a larger epsilon or delta")
    return found


def gaussian_level(epsilon: float, delta: float) -> float:
    """Return the largest GDP level mu that implies a guarantee; 0 without a delta."""
    return 1 / gaussian_sigma(epsilon, delta, 1.0) if epsilon > 0 and delta > 0 else 0.0


def integer_scale(sigma: float) -> float:
    """Return the scale of integer noise that is as private as normal noise of standard deviation `sigma`."""
    return math.nextafter(math.hypot(sigma, math.sqrt(GRID_VARIANCE)) * ROUNDED_UP, math.inf)


def integer_level(sensitivity: float, scale: float) -> float:
    """Return the GDP level mu of integer noise of this scale on a query of this sensitivity."""
    variance = scale**2 * (2 - ROUNDED_UP) - GRID_VARIANCE
    return sensitivity / math.sqrt(variance) * ROUNDED_UP if variance > 0 else math.inf


def failure_delta(probability: float, epsilon: float) -> float:
    """Return the delta of failures that have this probability under each of two neighbours."""
    return (1 + math.exp(min(epsilon, LARGEST_LOG))) * probability
