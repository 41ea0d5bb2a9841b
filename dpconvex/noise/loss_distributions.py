"""Privacy losses on a grid, and the law of the sum of many: of Poisson samples, and of non-adaptive composition.

By Fourier transforms of probabilities times ``exp(theta loss)``; all rounding is counted (docs/theory.md, section 8).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import mul

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import NotPrivate
from dpconvex.noise.gaussian import gaussian_delta, gaussian_sigma, smallest_scale
from dpconvex.noise.profiles import LARGEST_LOSS, LOST, Profile
from dpconvex.numerics import LOSS_ROUNDING, NORM_SLACK, TAIL_SLACK, UNIT_ROUNDOFF
from dpconvex.util.arrays import Array

# Logarithm of the smallest probability that is told from 0, and of numbers that do not overflow.
SMALLEST_LOG, LARGEST_LOG = -650.0, 700.0
REACH = 14.0  # Deviations of a sum about its mean that transforms hold
# Rounding of a transform of length n, in Euclidean norm, is at most this many units times log2(n) (Higham 2002, theorem 24.2: 7).
TRANSFORM = 16.0
# A guarantee of a smaller delta is refused: what is left out of the grid is a part of it.
SMALLEST_DELTA = 1e-20
ACCURACY = 1e-5  # Relative accuracy of a calibration, which rounds up
SMALLEST_MULTIPLIER = 0.02  # With less noise than this nothing is guaranteed: rounding is not counted for it
# Points of a profile, steps of the grid in one deviation of a step's loss, and the most points of a grid.
NODES, FINE, LARGEST_GRID = 600, 20, 2**16
CENTRED, LARGEST_TILT = 0.02, 1e6  # How near its goal a tilted mean is, in deviations; and the largest theta
NEGLIGIBLE = 1e-9  # What a tail may add to a bound, relative to it, before a better bound on the tail is looked for


@dataclass(frozen=True, eq=False)
class LossDistribution:
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

    def tilted(self, theta: float) -> tuple[Array, float, float, float, float]:
        """Return probabilities times ``exp(theta loss)``, scaled to 1, the scale's logarithm, mean, variance, and rounding."""
        logs = self.logs + theta * self.values
        top = float(logs.max())
        logs = np.maximum(logs - top, SMALLEST_LOG)  # rounded up: subnormal numbers are slow
        scale = math.log(float(np.exp(logs).sum()))
        tilted = np.exp(logs - scale)
        mean = float(tilted @ self.values)
        rounding = LOSS_ROUNDING * (theta * float(np.abs(self.values[[0, -1]]).max()) + abs(top + scale) + 10)
        return tilted, top + scale, mean, max(float(tilted @ (self.values - mean) ** 2), self.step**2), rounding


Counted = Sequence[tuple[LossDistribution, int]]


def on_grid(losses: Array, masses: Array, step: float, lost: float) -> LossDistribution:
    """Put masses at some losses on a grid: each goes to the two points about it such that both neighbours' masses stay."""
    losses = losses + LOSS_ROUNDING * (1 + np.abs(losses))
    place = np.floor(losses / step).astype(np.int64)
    first = int(place.min())
    up = np.clip(-np.expm1(step * place - losses) / -math.expm1(-step) * (1 + LOSS_ROUNDING) + LOSS_ROUNDING, 0.0, 1.0)
    size = int(place.max()) - first + 2
    below = np.bincount(place - first, masses * (1 - up), size)
    probabilities = below + np.bincount(place - first + 1, masses * up, size)
    return LossDistribution(step, first, np.asarray(probabilities * (1 + NORM_SLACK), dtype=float), lost)


def composed_delta(parts: Counted, epsilon: float) -> float:
    """Bound ``E[(1 - exp(epsilon - L))_+]`` for L the sum of so many losses of each kind, all on one grid."""
    step = parts[0][0].step
    lost = sum(count * item.lost for item, count in parts) * (1 + LOSS_ROUNDING)
    epsilon -= LOSS_ROUNDING * abs(epsilon)
    first = sum(count * item.first for item, count in parts)
    if epsilon >= step * (first + sum(count * (len(item.probabilities) - 1) for item, count in parts)):
        return lost
    theta = tilt(parts, epsilon)
    found, (log_mass, mean, variance, relative) = tilted_sum(parts, theta)
    width = math.sqrt(variance) * (REACH + 1e-3 * math.sqrt(sum(count for _, count in parts)))
    size = 2 ** max(math.ceil(math.log2(2 * width / step + 16)), 4)
    # The window: `size` places about epsilon or, if it is higher, the mean of the sum.
    base = round(max(mean, epsilon) / step) - size // 2
    product = np.ones(size // 2 + 1, dtype=complex)
    # Rounding: of all transforms and of the powers, in Euclidean norm.
    unit, growth, norms, longest = (TRANSFORM * math.log2(size) + 3) * UNIT_ROUNDOFF, 0.0, 0.0, 0.0
    for tilted, (_, count) in zip(found, parts, strict=True):
        folded = np.bincount(np.arange(len(tilted)) % size, tilted, size)
        norm = float(np.linalg.norm(folded))
        growth += count * max(math.log(float(tilted.sum()) * (1 + LOSS_ROUNDING) + unit * math.sqrt(size) * norm), 0.0)
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
    relative += LOSS_ROUNDING * theta * abs(epsilon)
    within = lost + math.exp(min(log_mass - theta * epsilon + relative, LARGEST_LOG)) * inside
    above = chernoff(parts, (base + size) * step, theta, mean, variance, NEGLIGIBLE * within)
    return (within + above) * (1 + TAIL_SLACK)


def tilted_sum(parts: Counted, theta: float) -> tuple[tuple[Array, ...], list[float]]:
    """Return what `tilted` returns of all: the probabilities of each kind, and all else summed up."""
    tilted, *numbers = zip(*(item.tilted(theta) for item, _ in parts), strict=True)
    counts = [count for _, count in parts]
    return tilted, [math.fsum(map(mul, counts, values)) for values in numbers]


def tilt(parts: Counted, mean: float) -> float:
    """Return about the theta at which the mean of the sum is this high; 0 if it is higher without.  Any theta gives a bound."""
    theta, low, high = 0.0, 0.0, LARGEST_TILT
    for _ in range(100):
        _, reached, variance, _ = tilted_sum(parts, theta)[1]
        missed = mean - reached
        if abs(missed) <= CENTRED * math.sqrt(variance) or (missed < 0 and theta == 0):
            break
        low, high = (theta, high) if missed > 0 else (low, theta)
        theta += missed / variance  # the variance is the slope of the mean
        if not low < theta < high:
            theta = math.sqrt(low * high) if low else high / 2
    return theta


def raised(values: NDArray[np.complex128], power: int) -> NDArray[np.complex128]:
    """Raise to a power by repeated squares: rounding is at most that many times the one of a product."""
    result = np.ones_like(values)
    for bit in f"{power:b}":
        result = result * result * (values if bit == "1" else 1.0)
    return result


def chernoff(parts: Counted, level: float, theta: float, mean: float, variance: float, enough: float) -> float:
    """Bound the probability that the sum is `level` or more, with thetas near that of a normal law, until it is `enough`."""
    best = math.inf
    for part in (*(0.5**k for k in range(8)), 0.0):
        if math.exp(min(best, 0.0)) <= enough:
            break
        more = theta + part * max(level - mean, 0.0) / variance
        log_mass, _, _, rounding = tilted_sum(parts, more)[1]
        best = min(best, log_mass - more * level + rounding + LOSS_ROUNDING * more * abs(level))
    return math.exp(min(best, 0.0))


def sampled_delta(epsilon: float, multiplier: float, rate: float, steps: int) -> float:
    """Bound the delta of so many sums over Poisson samples, with noise of `multiplier` times the largest norm of a term."""
    if not multiplier >= SMALLEST_MULTIPLIER:
        return 1.0
    if rate >= 1:
        return float(gaussian_delta(epsilon, math.sqrt(steps) / multiplier * (1 + LOSS_ROUNDING)))
    return min(max(composed_delta([(losses, steps)], epsilon) for losses in both_orders(multiplier, rate)), 1.0)


def both_orders(multiplier: float, rate: float) -> list[LossDistribution]:
    """Return the losses of a record that is there in the first, or the second, of two neighbours."""
    reach = 1e-3
    while reach < LARGEST_LOSS and removed(np.array([reach]), multiplier, rate)[0] > LOST:
        reach *= 1.3
    losses = min(reach, LARGEST_LOSS) * np.linspace(0.0, 1.0, NODES) ** 1.5
    sides = [np.minimum.accumulate(side(losses, multiplier, rate)) for side in (removed, added)]
    found = []
    for own, other in (sides, sides[::-1]):
        profile = Profile(losses, own, other)
        values, masses = profile.masses
        spread = math.sqrt(float(masses @ values**2))
        found.append(on_grid(values, masses, max(spread / FINE, float(np.ptp(values)) / LARGEST_GRID), profile.lost))
    return found


def removed(losses: Array, multiplier: float, rate: float) -> Array:
    """Return the exact delta, rounded up, of a record in the first data set (Balle, Barthe & Gaboardi 2018)."""
    more = np.log1p(np.expm1(losses) / rate) * (1 - LOSS_ROUNDING)
    return np.minimum(rate * gaussian_delta(more, 1 / multiplier) * (1 + LOSS_ROUNDING), 1.0)


def added(losses: Array, multiplier: float, rate: float) -> Array:
    """Return the same of one that is there in the second: ``E[(1 - e^loss (1 - q + q r))_+]`` for r the likelihood ratio."""
    scale = np.maximum(1 - np.exp(losses) * (1 - rate), 0.0) + LOSS_ROUNDING  # delta grows with it
    more = losses + np.log(rate) - np.log(scale)
    more -= LOSS_ROUNDING * (1 + np.abs(more))
    return np.minimum(scale * gaussian_delta(more, 1 / multiplier) * (1 + LOSS_ROUNDING), 1.0)


@lru_cache(maxsize=64)
def sampled_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Return the smallest noise for a guarantee, in units of the largest norm of a term, rounded up."""
    if delta < SMALLEST_DELTA:
        why = f"the accounting of Poisson samples is not exact enough for delta = {delta:g}"
        remedy = f"ask for a delta of at least {SMALLEST_DELTA:g}, or use all records at every step"
        raise NotPrivate(why, f"sampling = {rate:g}", remedy)
    # Without sampling as much is enough, and amplification divides it by 1/rate at most; start in between.
    full = gaussian_sigma(epsilon, delta, 1.0) * math.sqrt(steps)
    if rate >= 1:
        return full
    found = smallest_scale(lambda z: sampled_delta(epsilon, z, rate, steps), delta, max(full * rate, 0.3), ACCURACY)
    return full if found is None or found > full else found
