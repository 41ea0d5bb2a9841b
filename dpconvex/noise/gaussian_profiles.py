"""Privacy profiles of Gaussian noise: the smallest delta for each epsilon, and the noise that a promise needs.

A mechanism whose privacy loss is at most L(t) for a random t is (epsilon, delta)-private with
``delta = E[(1 - exp(epsilon - L(t)))_+]``.  Each law of L is bounded from above, quadrature and rounding included:

- *Gaussian*, when the difference of two neighbours is one fixed vector v: the exact profile of the Gaussian mechanism
  (Balle & Wang 2018, "Improving the Gaussian mechanism for differential privacy", theorem 8);
- *chi*, when the difference depends on the noise but stays in a subspace of dimension s: L = a t + a^2/2 with t the norm of s
  normal variates (for s = 1 the profile of Redberg, Koskela & Wang 2023);
- *moving slopes*, when one record's gradient moves along one line, and curvature is the rate at which it does.
"""

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import gammaincc, gammainccinv, gammaln, log_ndtr

from dpconvex.core.bisection import bisect
from dpconvex.errors import NotPrivate

Array = NDArray[np.float64]

# Cells of the quadrature, an upper bound for any number, and where its tail is cut, as a fraction of the mass that is left.
CELLS, TAIL = 240, 1e-9
# Relative slack that covers rounding in the special functions and in sums.
SLACK = 1e-13
# Where slopes move: slices of the slopes, halvings of the noise that counts most, and the least length.
SLICES, HALVINGS, SHORTEST = 60, 14, 1e-9
# The largest shift that is told from infinity; logarithms of the largest multiple of a guessed scale, and of the largest scale.
FARTHEST, REACH, LARGEST_LOG = 1e100, 25.0, 700.0


def gaussian_delta(epsilon: ArrayLike, shift: ArrayLike) -> Array:
    """Return the exact delta of a Gaussian mechanism, rounded up.

    Examples
    --------
    >>> float(gaussian_delta(0.0, 2.0).round(6))  # total variation of N(0, 1) and N(2, 1)
    0.682689
    """
    epsilon, a = np.asarray(epsilon, dtype=float), np.minimum(np.asarray(shift, dtype=float), FARTHEST)
    safe = np.where(a > 0, a, 1.0)
    first, second = log_ndtr(safe / 2 - epsilon / safe), log_ndtr(-safe / 2 - epsilon / safe)
    pad = SLACK + 1e-15 * (np.abs(first) + np.abs(second) + np.abs(epsilon))
    with np.errstate(over="ignore"):
        delta = np.exp(first) * (1 + pad) - np.exp(epsilon + second) * (1 - pad)
    still = -np.expm1(np.minimum(epsilon, 0.0))  # without any shift
    return np.asarray(np.where(a > 0, np.clip(delta, 0.0, 1.0), still))


def profile_epsilon(shift: float, delta: float) -> float:
    """Return the epsilon of Gaussian noise for a delta, if neighbours are `shift` deviations apart."""
    if not shift < LARGEST_LOG:
        return math.inf
    if float(gaussian_delta(0.0, shift)) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while float(gaussian_delta(high, shift)) > delta:
        low, high = high, 2 * high
        if high > 1e6:
            return math.inf
    return bisect(lambda epsilon: float(gaussian_delta(epsilon, shift)) > delta, low, high, 60)[1]


def chi_delta(epsilon: float, dimension: int, shift: float) -> float:
    """Bound ``E[(1 - exp(epsilon - a t - a^2/2))_+]`` for t the norm of `dimension` standard normal variates."""
    if shift <= 0:
        return -math.expm1(min(epsilon, 0.0))
    a, c = shift, epsilon - shift**2 / 2
    start = max(c / a, 0.0)
    mass = float(gammaincc(dimension / 2, start**2 / 2))
    if mass <= 0:
        return 1e-300
    end = math.sqrt(2 * float(gammainccinv(dimension / 2, max(mass * TAIL, 1e-300))))
    if end <= start:
        return min(mass * (1 + SLACK), 1.0)
    points = np.linspace(start, end, CELLS + 1)
    survival = gammaincc(dimension / 2, points**2 / 2)
    left, width = points[:-1], np.diff(points)
    with np.errstate(divide="ignore"):
        logarithm = (dimension - 1) * np.log(left) if dimension > 1 else np.zeros(CELLS)
        density = np.exp(logarithm - left**2 / 2 - (dimension / 2 - 1) * math.log(2) - gammaln(dimension / 2))
    hazard = density / np.maximum(survival[:-1], 1e-300) * (1 - 1e-9)
    rate = a + hazard
    cells = a * np.exp(c - a * left) * survival[:-1] * -np.expm1(-rate * width) / rate
    total = float(cells.sum()) + float(survival[-1]) - math.expm1(min(c, 0.0))
    return min(total * (1 + 1e-9), 1.0)


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
        rising = middle * np.expm1(np.minimum(np.maximum(long * middle + base, 0.0), bend)) < long
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    gained = np.expm1(-np.clip(long * high + base, 0.0, bend)) / np.expm1(-bend)
    return np.asarray(np.exp(-(low**2) / 2) * gained * ((1 + 1e-9) / math.sqrt(2 * math.pi)))


def swing(
    epsilon: float, steepest: float, flattest: float, curvature: float, ratio: float = 0.0, behind: float = 0.0
) -> float:
    """Bound what curvature adds where slopes fall from `steepest` to `flattest`, beside a gradient of length `behind`.

    Of a logistic record with the slopes ``s * steepest``, 0 <= s <= 1, curvature is ``log(1 + ratio s (1 - s))`` if that is less.
    """
    if steepest <= flattest or curvature <= 0:
        return 0.0
    ends = np.linspace(flattest, steepest, SLICES + 1)
    bend = np.full(SLICES, curvature)
    if ratio > 0:
        s = np.clip(steepest / 2, ends[:-1], ends[1:]) / steepest
        bend = np.minimum(bend, np.log1p(ratio * s * (1 - s)) * (1 + 1e-12))
    return (steepest - flattest) * float(moving_delta(epsilon, ends[1:] + behind, bend).mean())


def smallest_scale(
    delta_of: Callable[[float], float],
    delta: float,
    start: float,
    accuracy: float = 1e-10,
    reach: float = REACH,
    stride: float = 0.7,
) -> float | None:
    """Return a scale of noise, close to the smallest, whose delta is at most the one asked for, from a start that near it."""

    def excess(log_scale: float) -> float:
        found = delta_of(math.exp(log_scale))
        return math.log(max(found, 1e-300) if found <= 1 else 1.0) - math.log(delta)  # what is no number proves nothing

    high = math.log(start)
    while excess(high) > 0:
        high, stride = high + stride, 1.4 * stride
        if high > min(math.log(start) + reach, LARGEST_LOG):
            return None
    low = high - stride
    while excess(low) <= 0:
        high, low, stride = low, low - 1.4 * stride, 1.4 * stride
        if low < -300:
            return math.exp(high)
    root = float(brentq(excess, low, high, xtol=accuracy, rtol=1e-12))
    step = accuracy
    while excess(root) > 0:
        root, step = min(root + step, high), 4 * step
    return math.exp(root)


@lru_cache(maxsize=1024)
def gaussian_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the smallest standard deviation of Gaussian noise for a promise, rounded up.

    Examples
    --------
    >>> round(gaussian_sigma(1.0, 1e-6, 1.0), 3)
    4.225
    """
    found = smallest_scale(
        lambda sigma: float(gaussian_delta(epsilon, sensitivity / sigma)), delta, sensitivity, reach=math.inf
    )
    if found is None:
        raise NotPrivate(
            "no Gaussian noise that a floating-point number describes keeps the promise",
            f"epsilon = {epsilon:g}, delta = {delta:g}",
            "promise a larger epsilon or delta",
        )
    return found


# Integers with probability proportional to ``exp(-k^2/(2 s^2))`` are as private as normal noise of variance
# ``s^2 - GRID_VARIANCE``, but for this loss, which counts 1 + exp(epsilon) times (docs/theory.md, section 8, on the integers).
GRID_VARIANCE, GRID_LOSS = 9.0, 1e-60


def on_integers(sigma: float) -> float:
    """Return the scale of integer noise that is as private as normal noise of this deviation.

    >>> on_integers(4.0) >= 5.0
    True
    """
    return math.nextafter(math.hypot(sigma, math.sqrt(GRID_VARIANCE)) * (1 + 1e-15), math.inf)


def integer_level(sensitivity: float, scale: float) -> float:
    """Return the shift of the Gaussian mechanism that integer noise is as private as, if neighbours are so far apart."""
    variance = scale**2 * (1 - 1e-15) - GRID_VARIANCE
    return sensitivity / math.sqrt(variance) * (1 + 1e-15) if variance > 0 else math.inf


def grid_loss(epsilon: float) -> float:
    """Return the part of delta that noise on the integers takes."""
    return (1 + math.exp(min(epsilon, LARGEST_LOG))) * GRID_LOSS


def concentrated_delta(rho: float, epsilon: float) -> float:
    """Return the smallest delta for which rho-zero-concentrated privacy is known to imply (epsilon, delta).

    For every order a > 1, ``delta = exp((a - 1)(a rho - epsilon)) (1 - 1/a)^a / (a - 1)`` will do (C. Canonne, G. Kamath,
    T. Steinke, "The discrete Gaussian for differential privacy", 2020, section 2; docs/release.md).  Its logarithm's derivative,
    ``(2 a - 1) rho - epsilon + log(1 - 1/a)``, rises, so the best order is its root.
    """
    if rho <= 0:
        return 0.0 if epsilon > 0 else 1.0

    def falls(t: float) -> bool:
        return (2 * math.exp(t) + 1) * rho - epsilon - float(np.logaddexp(0.0, -t)) < 0

    t = bisect(falls, min(epsilon - 3 * rho, 0.0), math.log(max((epsilon + 1) / rho, 1.0)), 60)[0]
    above = math.exp(t)
    exponent = above * ((1 + above) * rho - epsilon) - (1 + above) * float(np.logaddexp(0.0, -t)) - t
    return min(math.exp(min(exponent, 0.0)) * (1 + 1e-9), 1.0)
