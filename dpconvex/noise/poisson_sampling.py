"""Gaussian noise on sums over random subsets: each record takes part in each step or not, by a draw of its own.

Neighbours differ by one record that is added or taken away.  The privacy loss of one step is put on a grid such that
no set of losses becomes less likely ("connect the dots": Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022), and the
law of the sum of all steps' losses follows by Fourier transforms (Koskela, Jälkö & Honkela 2020).  Transforms err by
a part of the *largest* probability, and what is looked for is among the smallest.  So probabilities are first
multiplied by ``exp(theta loss)``, with the theta that makes the sum about epsilon on average, and divided by it
afterwards: then rounding is a small part of the answer, and all of it is counted (docs/theory.md, section 8).  A
shuffled batch is not such a sample, and has no proof here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

from dpconvex.errors import NotPrivate
from dpconvex.noise.gaussian_profiles import gaussian_delta, gaussian_sigma, smallest_scale

Array = NDArray[np.float64]

# A promise of a smaller delta is refused: what is left out of the grid is a part of it.
SMALLEST_DELTA = 1e-20
# Relative accuracy of a calibration, which rounds up.
ACCURACY = 1e-5
# With less noise than this nothing is promised: rounding is not counted for it.
SMALLEST_MULTIPLIER = 0.02
# Steps of the grid in one deviation of a step's loss, the most points of a grid, and normal variates beyond which all is lost.
FINE, LARGEST_GRID, LIMIT = 30, 2**18, 11.5
# Logarithm of the smallest probability that is told from 0, and of numbers that do not overflow.
SMALLEST_LOG, LARGEST_LOG = -650.0, 700.0
# Deviations of a sum about its mean that transforms hold.
REACH = 14.0
# Relative rounding of normal tails, as in `gaussian_profiles`; of other functions; of one addition.
TAILS, ROUNDING, UNIT = 1e-13, 4e-15, 2.0**-53
# Rounding of a transform of length n, in Euclidean norm, is at most this many units times log2(n) (Higham 2002, theorem 24.2: 7).
TRANSFORM = 16.0


@dataclass(frozen=True)
class Losses:
    """The privacy loss of a step, rounded up: ``probabilities[i]`` at ``step * (first + i)``, `lost` where it has no bound."""

    step: float
    first: int
    probabilities: Array
    lost: float

    @cached_property
    def values(self) -> Array:
        return np.asarray(self.step * (self.first + np.arange(len(self.probabilities))), dtype=float)

    @cached_property
    def logs(self) -> Array:
        """Logarithms of the probabilities."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.probabilities), dtype=float)

    @property
    def largest(self) -> float:
        """The largest size of a loss."""
        return float(np.abs(self.values[[0, -1]]).max())


def sampled_delta(epsilon: float, multiplier: float, rate: float, steps: int) -> float:
    """Bound the delta of so many sums over Poisson samples, with noise of `multiplier` times the largest norm of a term."""
    if not multiplier >= SMALLEST_MULTIPLIER:
        return 1.0
    if rate >= 1:
        return float(gaussian_delta(epsilon, math.sqrt(steps) / multiplier * (1 + ROUNDING)))
    return min(max(composed_delta(losses, epsilon - pad * steps, steps) for losses, pad in pair(multiplier, rate)), 1.0)


def pair(multiplier: float, rate: float) -> list[tuple[Losses, float]]:
    """Return the losses of a record that is there in the first, or the second, of two neighbours, and what to add to each.

    With x the noisy sum along the record's term, the loss of the first is ``log(1 - q + q exp((2x - 1)/(2 z^2)))``, that of the
    second its negative.  The mass of an interval goes to its two ends such that both neighbours' masses stay.
    """
    z, rest = multiplier, math.log1p(-rate)

    def loss(x: Array) -> Array:
        return np.logaddexp(rest, math.log(rate) + (2 * x - 1) / (2 * z * z))

    ends = loss(np.array([-LIMIT * z, 1 + LIMIT * z]))
    step = max(deviation(z, rate) / FINE, float(ends[1] - ends[0]) / LARGEST_GRID)
    first, last = math.floor(ends[0] / step), math.ceil(ends[1] / step)
    grid = step * np.arange(first, last + 1)
    reached = grid > rest  # no loss of the first is lower
    x = np.full(len(grid), -np.inf)
    x[reached] = z * z * (grid[reached] + np.log(-np.expm1(rest - grid[reached])) - math.log(rate)) + 0.5
    # Where the inverse is inexact, intervals are taken wider by so much.
    pad = float(np.abs(loss(x) - grid)[reached].max()) + ROUNDING * (1 + float(np.abs(grid).max()) - rest)
    low = np.concatenate([[-np.inf], x])
    high = np.concatenate([x, [np.inf]])
    off, off_error = masses(low / z, high / z)
    on, on_error = masses((low - 1) / z, (high - 1) / z)
    mixed, mixed_error = (1 - rate) * off + rate * on, (1 - rate) * off_error + rate * on_error
    removed = connected(step, first, mixed, mixed_error, off, off_error, pad)
    added = connected(step, -last, off[::-1], off_error[::-1], mixed[::-1], mixed_error[::-1], pad)
    return [(removed, pad), (added, pad)]


def deviation(multiplier: float, rate: float) -> float:
    """Return about the standard deviation of the loss of a step, which only sets how fine the grid is."""
    x = np.linspace(-8 * multiplier, 8 * multiplier, 2001)
    loss = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * multiplier**2))
    weights = np.exp(-((x / multiplier) ** 2) / 2)
    return max(math.sqrt(float((weights * loss**2).sum() / weights.sum())), 1e-12)


def masses(low: Array, high: Array) -> tuple[Array, Array]:
    """Return the normal masses of intervals, and bounds on their rounding, from whichever tail is the smaller."""
    right = low > 0
    near, far = np.where(right, -low, high), np.where(right, -high, low)
    return np.maximum(ndtr(near) - ndtr(far), 0.0), TAILS * (ndtr(near) + ndtr(far))


def connected(
    step: float, first: int, own: Array, own_error: Array, other: Array, other_error: Array, pad: float
) -> Losses:
    """Put the masses of intervals on their ends; the lowest, which has no lower end, on its upper, and the highest nowhere."""
    whole = (own + own_error)[1:-1] * (1 + ROUNDING)
    # Losses of an interval lie between low and high: own mass = other mass times exp(loss).
    low = step * (first + np.arange(len(whole))) - pad
    wide = -math.expm1(-(step + 2 * pad))
    # Of what is subtracted a lower bound is enough, and no exponential overflows.
    least = np.maximum(other - other_error, 0.0)[1:-1] * np.exp(np.minimum(low, LARGEST_LOG)) * (1 - ROUNDING)
    up = (whole - least) / wide * (1 + ROUNDING)
    up = np.clip(up + ROUNDING * whole / wide, 0.0, whole)
    probabilities = np.zeros(len(whole) + 1)
    probabilities[0] = own[0] + own_error[0]
    probabilities[:-1] += whole - up
    probabilities[1:] += up
    return Losses(step, first, probabilities * (1 + ROUNDING), float(own[-1] + own_error[-1]))


def composed_delta(losses: Losses, epsilon: float, steps: int) -> float:
    """Bound ``E[(1 - exp(epsilon - L))_+]`` for L the sum of so many losses."""
    lost = steps * losses.lost * (1 + ROUNDING)
    epsilon -= ROUNDING * abs(epsilon)
    if epsilon >= steps * losses.step * (losses.first + len(losses.probabilities) - 1):
        return lost
    theta = tilt(losses, epsilon / steps)
    tilted, log_mass, mean, spread = tilting(losses, theta)
    step, width = losses.step, REACH * math.sqrt(steps) * spread + steps * 1e-3 * spread
    size = 2 ** max(math.ceil(math.log2(2 * width / losses.step + 16)), 4)
    # The window: `size` places about epsilon or, if it is higher, the mean of the sum.
    base = round(max(steps * mean, epsilon) / step) - size // 2
    folded = np.bincount(np.arange(len(tilted)) % size, tilted, size)
    places = base + np.arange(size)
    summed = np.fft.irfft(raised(np.fft.rfft(folded), steps), size)[(places - steps * losses.first) % size]
    excess = places * step - epsilon
    kept = excess > 0
    weights = -np.expm1(-excess[kept]) * np.exp(np.maximum(-theta * excess[kept], SMALLEST_LOG))
    # Rounding: of both transforms and of the powers, in Euclidean norm.
    norm, unit = float(np.linalg.norm(folded)), (TRANSFORM * math.log2(size) + 3) * UNIT
    growth = steps * math.log(float(tilted.sum()) * (1 + ROUNDING) + unit * math.sqrt(size) * norm)
    error = (steps + 2) * unit * norm * math.exp(growth) * 1.01
    inside = float(weights @ np.maximum(summed[kept], 0.0)) + error * float(np.linalg.norm(weights))
    # Of what was put on the grid, tilted and tilted back.
    exponent = steps * log_mass - theta * epsilon
    relative = ROUNDING * ((theta * losses.largest + abs(log_mass) + 10) * steps + theta * abs(epsilon))
    above = chernoff(losses, (base + size) * step, steps, theta, mean, spread)
    return (lost + math.exp(min(exponent + relative, LARGEST_LOG)) * inside + above) * (1 + 1e-9)


def tilt(losses: Losses, mean: float) -> float:
    """Return about the theta at which the tilted mean is this high; 0 if it is higher without."""

    def gap(theta: float) -> float:
        return tilting(losses, theta)[2] - mean

    if gap(0.0) >= 0:
        return 0.0
    high = 1.0
    while gap(high) < 0 and high < 1e6:
        high *= 2
    return high if gap(high) < 0 else float(brentq(gap, 0.0, high, xtol=1e-9, rtol=1e-3))


def tilting(losses: Losses, theta: float) -> tuple[Array, float, float, float]:
    """Return probabilities times ``exp(theta loss)``, scaled to 1, the logarithm of the scale, and their mean and deviation."""
    values = losses.values
    logs = losses.logs + theta * values
    top = float(logs.max())
    logs = np.maximum(logs - top, SMALLEST_LOG)  # rounded up: subnormal numbers are slow
    scale = math.log(float(np.exp(logs).sum()))
    tilted, scale = np.exp(logs - scale), top + scale
    mean = float(tilted @ values)
    return tilted, scale, mean, math.sqrt(max(float(tilted @ (values - mean) ** 2), losses.step**2))


def raised(values: NDArray[np.complex128], power: int) -> NDArray[np.complex128]:
    """Raise to a power by repeated squares: rounding is at most that many times the one of a product."""
    result = np.ones_like(values)
    while power:
        if power & 1:
            result = result * values
        values, power = values * values, power >> 1
    return result


def chernoff(losses: Losses, level: float, steps: int, theta: float, mean: float, spread: float) -> float:
    """Bound the probability that the sum is `level` or more, with thetas about the one that is best if it is nearly normal."""
    best = math.inf
    for part in (0.0, *(0.5**k for k in range(8))):
        more = theta + part * max(level / steps - mean, 0.0) / spread**2
        slack = ROUNDING * ((10 + more * losses.largest) * steps + more * abs(level))
        best = min(best, steps * tilting(losses, more)[1] - more * level + slack)
    return math.exp(min(best, 0.0))


@lru_cache(maxsize=64)
def sampled_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Return the smallest noise for a promise, in units of the largest norm of a term, rounded up."""
    if delta < SMALLEST_DELTA:
        raise NotPrivate(
            f"the accounting of Poisson samples is not exact enough for delta = {delta:g}",
            f"sampling = {rate:g}",
            f"promise a delta of at least {SMALLEST_DELTA:g}, or use all records at every step",
        )
    # Without sampling as much is enough, and amplification divides it by 1/rate at most; start in between.
    full = gaussian_sigma(epsilon, delta, 1.0) * math.sqrt(steps)
    if rate >= 1:
        return full
    start = max(full * rate, 0.3)
    found = smallest_scale(lambda z: sampled_delta(epsilon, z, rate, steps), delta, start, ACCURACY)
    if found is None or found > full:
        return full
    return found
