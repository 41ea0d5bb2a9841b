"""Privacy profiles of Gaussian noise: the smallest delta for each epsilon, and the noise that a promise needs.

A mechanism whose privacy loss is at most L(t) for a random t is (epsilon, delta)-private with
``delta = E[(1 - exp(epsilon - L(t)))_+]``.  Three laws of L occur, and each is bounded from above, quadrature and rounding
included:

- *Gaussian*, when the difference of two neighbours is one fixed vector v: the exact profile of the Gaussian mechanism
  (Balle & Wang 2018, "Improving the Gaussian mechanism for differential privacy", theorem 8);
- *chi*, when the difference depends on the noise but stays in a subspace of dimension s: L = a t + a^2/2 with t the norm of s
  normal variates (for s = 1 the profile of Redberg, Koskela & Wang 2023);
- *logistic*, when it moves along one line and the curvature of the loss moves with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import gammaincc, gammainccinv, gammaln, log_ndtr, ndtr, ndtri

from dpconvex.core.bisection import bisect
from dpconvex.errors import NotPrivate

Array = NDArray[np.float64]

# Cells of the quadratures; both are upper bounds for any number, and closer with more.
CELLS = 240
# Where the tail is cut, as a fraction of the mass that is left; all of the rest is counted.
TAIL = 1e-9
# Relative slack that covers rounding in the special functions and in sums.
SLACK = 1e-13
# The slope of a logistic loss runs over a grid; what lies between its points is covered by this much of privacy loss.
GRID_SLACK = 1e-7
LARGEST_GRID = 4000
# Where one record's curvature acts: cells of the noise along its row, how far they reach, and slices of its slopes.
MARGIN_CELLS, MARGIN_REACH, MARGIN_SLICES = 1500, 6.0, 20
# Where slopes move beside another record: slices of the slopes, halvings of the noise that counts most, and the least length.
SLICES, HALVINGS, SHORTEST = 60, 14, 1e-9
# Normal variates beyond this do not occur.
LIMIT = 40.0
# Logarithm of the largest multiple of a guessed scale that is tried, and of the largest scale.
REACH, LARGEST_LOG = 25.0, 700.0


def gaussian_delta(epsilon: float, shift: ArrayLike) -> Array:
    """Return the exact delta of a Gaussian mechanism, rounded up.

    Examples
    --------
    >>> float(gaussian_delta(0.0, 2.0).round(6))  # total variation of N(0, 1) and N(2, 1)
    0.682689
    """
    a = np.asarray(shift, dtype=float)
    safe = np.where(a > 0, a, 1.0)
    first, second = log_ndtr(safe / 2 - epsilon / safe), log_ndtr(-safe / 2 - epsilon / safe)
    pad = SLACK + 1e-15 * (np.abs(first) + np.abs(second) + abs(epsilon))
    with np.errstate(over="ignore"):
        delta = np.exp(first) * (1 + pad) - np.exp(epsilon + second) * (1 - pad)
    still = -math.expm1(min(epsilon, 0.0))  # without any shift
    return np.asarray(np.where(a > 0, np.clip(delta, 0.0, 1.0), still))


def delta_of_shift(epsilon: float, shift: float) -> float:
    """Return the same for one shift, ten times as fast."""
    if not 0 < shift < math.inf:
        return 1.0 if shift > 0 else -math.expm1(min(epsilon, 0.0))
    first = float(log_ndtr(shift / 2 - epsilon / shift))
    second = float(log_ndtr(-shift / 2 - epsilon / shift))
    pad = SLACK + 1e-15 * (abs(first) + abs(second) + abs(epsilon))
    delta = math.exp(first) * (1 + pad) - math.exp(min(epsilon + second, 1.0)) * (1 - pad)
    return min(max(delta, 0.0), 1.0)


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


@lru_cache(maxsize=64)
def logistic_delta(epsilon: float, shift: float, ratio: float, high: float = 1.0, behind: float = 0.0) -> float:
    """Bound delta when one logistic record appears: slope and curvature are not extreme at the same parameters.

    With `behind`, it takes the place of a record whose gradient is a vector no longer than that.
    """
    s, curve, bend = slopes(ratio, high)
    slope = s * shift + behind
    base = slope**2 / 2 + curve
    if (slope * -LIMIT + base).max() > epsilon:
        return 1.0
    if (slope * LIMIT + base).max() <= epsilon:
        return 1e-300
    moving = slope > 0
    start = max(float(((epsilon - base[moving]) / slope[moving]).min()), -LIMIT)
    mass = float(ndtr(-start))
    end = float(-ndtri(max(mass * TAIL, 1e-300)))
    points = np.linspace(start, max(end, start + 1e-3), CELLS + 1)
    values = np.maximum(highest(points, slope, base, bend < shift**2), epsilon)
    slope = np.diff(values) / np.diff(points)
    offset = values[:-1] - slope * points[:-1]
    survival = ndtr(-points)
    # The factor is large where the shifted masses are small: they are multiplied as logarithms.
    left, right = log_ndtr(-(points[:-1] + slope)), log_ndtr(-(points[1:] + slope))
    factor = epsilon - offset + slope**2 / 2
    kept = np.exp(factor + left) * -np.expm1(np.minimum(right - left, 0.0))
    cells = (survival[:-1] - survival[1:]) - kept
    rounding = 1e-14 + 1e-15 * float(np.abs(factor).max())
    total = float(np.maximum(cells, 0.0).sum()) + float(survival[-1]) + rounding * mass
    return min(total * (1 + 1e-9), 1.0)


def margin_delta(epsilon: float, steepest: float, room: float, curvature: float) -> float:
    """Bound delta when one record of one margin appears: it curves only where its slope moves, and slopes have little room.

    Slopes, in units of sigma, are at most `steepest` and not negative, and fall by at most `room` along the noise t on the
    record's row.  The privacy loss at slope s is at most ``max(s t + s^2/2, 0)``, and `curvature` more where s falls as fast
    as it can, by ``1 - exp(-curvature)`` for each unit of t (docs/theory.md, section 7, one margin).
    """
    plain = float(gaussian_delta(epsilon, steepest))
    rate = -math.expm1(-curvature)
    if rate <= 0 or steepest <= 0:
        return plain
    start = (epsilon - curvature) / steepest - steepest / 2
    start = min(start, 0.0) if curvature >= epsilon else start
    t = np.linspace(start, start + MARGIN_REACH, MARGIN_CELLS + 1)
    level = steepest - room * np.arange(MARGIN_SLICES)[:, None] / MARGIN_SLICES
    density = np.exp(-(np.where((t[:-1] < 0) & (t[1:] > 0), 0.0, np.minimum(np.abs(t[:-1]), np.abs(t[1:]))) ** 2) / 2)
    paid = -np.expm1(np.minimum(epsilon - np.maximum(steepest * t[:-1] + steepest**2 / 2, 0.0), 0.0))
    loss = np.maximum(level * t[1:] + level**2 / 2, 0.0)
    gained = (-np.expm1(np.minimum(epsilon - curvature - loss, 0.0)) - paid) * density
    most = np.maximum(gained.max(axis=1), math.exp(-(max(t[-1], 0.0) ** 2) / 2))
    total = plain + room / rate * float(most.mean()) / math.sqrt(2 * math.pi)
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


@lru_cache(maxsize=8)
def slopes(ratio: float, high: float) -> tuple[Array, Array, Array]:
    """Return a grid of slopes s, ``log(1 + q s (1 - s))`` there with room for what lies between, minus its bend."""
    bend = 2 * ratio + ratio**2  # the logarithm's second derivative in s is at least minus this
    count = int(min(max(math.ceil(math.sqrt(bend / (8 * GRID_SLACK))), 200), LARGEST_GRID))
    slack = bend * high**2 / (8 * count**2)
    s = np.linspace(0.0, high, count + 1)
    u = ratio * s * (1 - s)
    return s, np.log1p(u) + slack, (bend - 2 * ratio * u) / (1 + u) ** 2


def highest(t: Array, slope: Array, base: Array, convex: NDArray[np.bool_]) -> Array:
    """Return the largest of ``slope t + base`` over a grid on which `base` is concave, but for one run where it is convex.

    Within such a run the ends are the highest, and on either side of it each point is the highest from where it overtakes the
    one before to where the next overtakes it.
    """
    run = np.flatnonzero(convex)
    cuts = (len(base), len(base)) if len(run) == 0 else (run[0] + 1, run[-1])
    result = np.full(len(t), -np.inf)
    for part in (slice(0, cuts[0]), slice(cuts[1], len(base))):
        rise, level = slope[part], base[part]
        if len(rise):
            with np.errstate(divide="ignore", invalid="ignore"):
                overtaken = np.maximum.accumulate(np.diff(level) / -np.diff(rise))
            at = np.searchsorted(overtaken, t)
            result = np.maximum(result, rise[at] * t + level[at])
    return result


def smallest_scale(
    delta_of: Callable[[float], float], delta: float, start: float, accuracy: float = 1e-10, reach: float = REACH
) -> float | None:
    """Return a scale of noise, close to the smallest, whose delta is at most the one asked for."""

    def excess(log_scale: float) -> float:
        found = delta_of(math.exp(log_scale))
        return math.log(max(found, 1e-300) if found <= 1 else 1.0) - math.log(delta)  # what is no number proves nothing

    high = math.log(start)
    while excess(high) > 0:
        high += 0.7
        if high > min(math.log(start) + reach, LARGEST_LOG):
            return None
    low = high - 0.7
    while excess(low) <= 0:
        high, low = low, low - 0.7
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
        lambda sigma: delta_of_shift(epsilon, sensitivity / sigma), delta, sensitivity, reach=math.inf
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


def mean_norm(dimension: int, sigma: float) -> float:
    """Return the mean norm of Gaussian noise with independent coordinates.

    >>> round(mean_norm(2, 1.0), 6)  # the Rayleigh law
    1.253314
    """
    if dimension == 0:
        return 0.0
    return sigma * math.sqrt(2) * math.exp(float(gammaln((dimension + 1) / 2) - gammaln(dimension / 2)))
