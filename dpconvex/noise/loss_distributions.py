"""Privacy losses on a grid, and the law of the sum of many: Poisson samples, and releases that were fixed beforehand.

The privacy loss of one step is put on a grid such that no set of losses becomes less likely ("connect the dots": Doroshenko,
Ghazi, Kamath, Kumar & Manurangsi 2022), and the law of the sum of all losses follows by Fourier transforms (Koskela, Jälkö &
Honkela 2020).  Transforms err by a part of the *largest* probability, and what is looked for is among the smallest.  So
probabilities are first multiplied by ``exp(theta loss)``, with the theta that makes the sum about epsilon on average, and divided
by it afterwards: then rounding is a small part of the answer, and all of it is counted (docs/theory.md, section 8).

In a Poisson sample each record takes part in each step or not, by a draw of its own; neighbours differ by one record that is
added or taken away.  A shuffled batch is not such a sample, and has no proof here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

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


@dataclass(frozen=True, eq=False)
class Losses:
    """A privacy loss, rounded up: ``probabilities[i]`` at ``step * (first + i)``, `lost` where it has no bound."""

    step: float
    first: int
    probabilities: Array
    lost: float

    @cached_property
    def values(self) -> Array:
        return np.asarray(self.step * (self.first + np.arange(len(self.probabilities))), dtype=float)

    @cached_property
    def logs(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.probabilities), dtype=float)

    @property
    def largest(self) -> float:
        """The largest size of a loss."""
        return float(np.abs(self.values[[0, -1]]).max())

    def tilted(self, theta: float) -> tuple[Array, float, float, float]:
        """Return probabilities times ``exp(theta loss)``, scaled to 1, the scale's logarithm, and their mean and variance."""
        logs = self.logs + theta * self.values
        top = float(logs.max())
        logs = np.maximum(logs - top, SMALLEST_LOG)  # rounded up: subnormal numbers are slow
        scale = math.log(float(np.exp(logs).sum()))
        tilted = np.exp(logs - scale)
        mean = float(tilted @ self.values)
        return tilted, top + scale, mean, max(float(tilted @ (self.values - mean) ** 2), self.step**2)


Counted = Sequence[tuple[Losses, int]]


def on_grid(losses: Array, masses: Array, step: float, lost: float) -> Losses:
    """Put masses at some losses on a grid: each goes to the two points about it such that both neighbours' masses stay."""
    losses = losses + ROUNDING * (1 + np.abs(losses))
    place = np.floor(losses / step).astype(np.int64)
    first = int(place.min())
    up = np.clip(-np.expm1(step * place - losses) / -math.expm1(-step) * (1 + ROUNDING) + ROUNDING, 0.0, 1.0)
    size = int(place.max()) - first + 2
    below = np.bincount(place - first, masses * (1 - up), size)
    probabilities = below + np.bincount(place - first + 1, masses * up, size)
    return Losses(step, first, np.asarray(probabilities * (1 + 1e-12), dtype=float), lost)


def composed_delta(parts: Counted, epsilon: float) -> float:
    """Bound ``E[(1 - exp(epsilon - L))_+]`` for L the sum of so many losses of each kind, all on one grid."""
    step = parts[0][0].step
    lost = sum(count * item.lost for item, count in parts) * (1 + ROUNDING)
    epsilon -= ROUNDING * abs(epsilon)
    first = sum(count * item.first for item, count in parts)
    if epsilon >= step * (first + sum(count * (len(item.probabilities) - 1) for item, count in parts)):
        return lost
    theta = tilt(parts, epsilon)
    found = [item.tilted(theta) for item, _ in parts]
    counts = [count for _, count in parts]
    log_mass, mean, variance = (math.fsum(c * f[k] for c, f in zip(counts, found, strict=True)) for k in (1, 2, 3))
    width = REACH * math.sqrt(variance) + 1e-3 * sum(c * math.sqrt(f[3]) for c, f in zip(counts, found, strict=True))
    size = 2 ** max(math.ceil(math.log2(2 * width / step + 16)), 4)
    # The window: `size` places about epsilon or, if it is higher, the mean of the sum.
    base = round(max(mean, epsilon) / step) - size // 2
    product = np.ones(size // 2 + 1, dtype=complex)
    # Rounding: of all transforms and of the powers, in Euclidean norm.
    unit, growth, norms, longest = (TRANSFORM * math.log2(size) + 3) * UNIT, 0.0, 0.0, 0.0
    for (tilted, *_), count in zip(found, counts, strict=True):
        folded = np.bincount(np.arange(len(tilted)) % size, tilted, size)
        norm = float(np.linalg.norm(folded))
        growth += count * max(math.log(float(tilted.sum()) * (1 + ROUNDING) + unit * math.sqrt(size) * norm), 0.0)
        norms, longest = norms + count * norm, max(longest, norm)
        product = product * raised(np.fft.rfft(folded), count)
    error = (norms + 2 * longest) * unit * math.exp(growth) * 1.01
    places = base + np.arange(size)
    summed = np.fft.irfft(product, size)[(places - first) % size]
    excess = places * step - epsilon
    kept = excess > 0
    weights = -np.expm1(-excess[kept]) * np.exp(np.maximum(-theta * excess[kept], SMALLEST_LOG))
    inside = float(weights @ np.maximum(summed[kept], 0.0)) + error * float(np.linalg.norm(weights))
    # Of what was put on the grid, tilted and tilted back.
    relative = rounding_of(parts, found, theta) + ROUNDING * theta * abs(epsilon)
    above = chernoff(parts, (base + size) * step, theta, mean, variance)
    return (lost + math.exp(min(log_mass - theta * epsilon + relative, LARGEST_LOG)) * inside + above) * (1 + 1e-9)


def rounding_of(parts: Counted, found: Sequence[tuple[Any, ...]], theta: float) -> float:
    """Bound the rounding of the logarithms of all scales together."""
    each = (
        count * (theta * item.largest + abs(log_mass) + 10)
        for (item, count), (_, log_mass, *_) in zip(parts, found, strict=True)
    )
    return ROUNDING * sum(each)


def tilt(parts: Counted, mean: float) -> float:
    """Return about the theta at which the mean of the sum is this high; 0 if it is higher without."""

    def gap(theta: float) -> float:
        return sum(count * item.tilted(theta)[2] for item, count in parts) - mean

    if gap(0.0) >= 0:
        return 0.0
    high = 1.0
    while gap(high) < 0 and high < 1e6:
        high *= 2
    return high if gap(high) < 0 else float(brentq(gap, 0.0, high, xtol=1e-9, rtol=1e-3))


def raised(values: NDArray[np.complex128], power: int) -> NDArray[np.complex128]:
    """Raise to a power by repeated squares: rounding is at most that many times the one of a product."""
    result = np.ones_like(values)
    while power:
        if power & 1:
            result = result * values
        values, power = values * values, power >> 1
    return result


def chernoff(parts: Counted, level: float, theta: float, mean: float, variance: float) -> float:
    """Bound the probability that the sum is `level` or more, with thetas about the one that is best if it is nearly normal."""
    best = math.inf
    for part in (0.0, *(0.5**k for k in range(8))):
        more = theta + part * max(level - mean, 0.0) / variance
        found = [item.tilted(more) for item, _ in parts]
        mass = sum(count * log_mass for (_, count), (_, log_mass, *_) in zip(parts, found, strict=True))
        best = min(best, mass - more * level + rounding_of(parts, found, more) + ROUNDING * more * abs(level))
    return math.exp(min(best, 0.0))


def sampled_delta(epsilon: float, multiplier: float, rate: float, steps: int) -> float:
    """Bound the delta of so many sums over Poisson samples, with noise of `multiplier` times the largest norm of a term."""
    if not multiplier >= SMALLEST_MULTIPLIER:
        return 1.0
    if rate >= 1:
        return float(gaussian_delta(epsilon, math.sqrt(steps) / multiplier * (1 + ROUNDING)))
    found = (composed_delta([(losses, steps)], epsilon - pad * steps) for losses, pad in pair(multiplier, rate))
    return min(max(found), 1.0)


def pair(multiplier: float, rate: float) -> list[tuple[Losses, float]]:
    """Return the losses of a record that is there in the first, or the second, of two neighbours, and what to add to each.

    With x the noisy sum along the record's term, the loss of the first is ``log(1 - q + q exp((2x - 1)/(2 z^2)))``, that of the
    second its negative.
    """
    z, rest = multiplier, math.log1p(-rate)

    def loss(x: Array) -> Array:
        return np.logaddexp(rest, math.log(rate) + (2 * x - 1) / (2 * z * z))

    ends = loss(np.array([-LIMIT * z, 1 + LIMIT * z]))
    step = max(deviation(loss, z) / FINE, float(ends[1] - ends[0]) / LARGEST_GRID)
    first, last = math.floor(ends[0] / step), math.ceil(ends[1] / step)
    grid = step * np.arange(first, last + 1)
    reached = grid > rest  # no loss of the first is lower
    x = np.full(len(grid), -np.inf)
    x[reached] = z * z * (grid[reached] + np.log(-np.expm1(rest - grid[reached])) - math.log(rate)) + 0.5
    # Where the inverse is inexact, intervals are taken wider by so much.
    pad = float(np.abs(loss(x) - grid)[reached].max()) + ROUNDING * (1 + float(np.abs(grid).max()) - rest)
    low, high = np.concatenate([[-np.inf], x]), np.concatenate([x, [np.inf]])
    off, on = masses(low / z, high / z), masses((low - 1) / z, (high - 1) / z)
    mixed = (1 - rate) * off + rate * on
    removed = connected(step, first, mixed, off, pad)
    added = connected(step, -last, off[:, ::-1], mixed[:, ::-1], pad)
    return [(removed, pad), (added, pad)]


def deviation(loss: object, multiplier: float) -> float:
    """Return about the standard deviation of the loss of a step, which only sets how fine the grid is."""
    x = np.linspace(-8 * multiplier, 8 * multiplier, 2001)
    weights = np.exp(-((x / multiplier) ** 2) / 2)
    squares = loss(x) ** 2  # type: ignore[operator]
    return max(math.sqrt(float((weights * squares).sum() / weights.sum())), 1e-12)


def masses(low: Array, high: Array) -> Array:
    """Return the normal masses of intervals, from whichever tail is the smaller, above bounds on their rounding."""
    right = low > 0
    near, far = ndtr(np.where(right, -low, high)), ndtr(np.where(right, -high, low))
    return np.stack([np.maximum(near - far, 0.0), TAILS * (near + far)])


def connected(step: float, first: int, own: Array, other: Array, pad: float) -> Losses:
    """Put the masses of intervals on their ends; the lowest, which has no lower end, on its upper, and the highest nowhere."""
    most = own.sum(axis=0)
    whole = most[1:-1] * (1 + ROUNDING)
    # Losses of an interval lie between low and high: own mass = other mass times exp(loss).
    low = step * (first + np.arange(len(whole))) - pad
    wide = -math.expm1(-(step + 2 * pad))
    # Of what is subtracted a lower bound is enough, and no exponential overflows.
    least = np.maximum(other[0] - other[1], 0.0)[1:-1] * np.exp(np.minimum(low, LARGEST_LOG)) * (1 - ROUNDING)
    up = (whole - least) / wide * (1 + ROUNDING)
    up = np.clip(up + ROUNDING * whole / wide, 0.0, whole)
    probabilities = np.append(whole - up, 0.0)
    probabilities[1:] += up
    probabilities[0] += most[0]
    return Losses(step, first, probabilities * (1 + ROUNDING), float(most[-1]))


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
    return full if found is None or found > full else found
