"""Privacy loss distributions (PLDs) on a grid, and their convolution: for Poisson samples and non-adaptive composition.

Convolutions are Fourier transforms of tilted probabilities; bounds include all rounding (docs/theory.md, section 8).
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

# Logarithms of the smallest probability that is not rounded to 0, and of the largest number that does not overflow.
SMALLEST_LOG, LARGEST_LOG = -650.0, 700.0
REACH = 14.0  # Half-width of a transform's window, in standard deviations of the sum
# Rounding of a transform of length n, in Euclidean norm, is at most this many units times log2(n) (Higham 2002, theorem 24.2: 7).
TRANSFORM = 16.0
SMALLEST_DELTA = 1e-20  # Smallest delta of a guarantee: the mass beyond the grid counts towards it
ACCURACY = 1e-5  # Relative accuracy of a calibration, which rounds up
SMALLEST_MULTIPLIER = 0.02  # Smallest noise multiplier with a bound: rounding is not bounded below it
# Points of a profile, grid steps in one standard deviation of a step's loss, and the largest number of grid points.
NODES, FINE, LARGEST_GRID = 600, 20, 2**16
CENTRED, LARGEST_TILT = 0.02, 1e6  # Tolerance of a tilted mean, in standard deviations; and the largest theta
NEGLIGIBLE = 1e-9  # Bounds on a tail are improved until one is below this share of delta


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """A PLD, rounded up: ``probabilities[i]`` at the loss ``step * (first + i)``, and `lost` at an infinite loss."""

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
        """Return the PLD tilted by ``exp(theta loss)``: probabilities, log normaliser, mean, variance and relative rounding."""
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
    """Return the PLD of masses at losses: each mass is split between two grid points, keeping its total under both neighbours."""
    losses = losses + LOSS_ROUNDING * (1 + np.abs(losses))
    place = np.floor(losses / step).astype(np.int64)
    first = int(place.min())
    up = np.clip(-np.expm1(step * place - losses) / -math.expm1(-step) * (1 + LOSS_ROUNDING) + LOSS_ROUNDING, 0.0, 1.0)
    size = int(place.max()) - first + 2
    below = np.bincount(place - first, masses * (1 - up), size)
    probabilities = below + np.bincount(place - first + 1, masses * up, size)
    return LossDistribution(step, first, np.asarray(probabilities * (1 + NORM_SLACK), dtype=float), lost)


def composed_delta(parts: Counted, epsilon: float) -> float:
    """Return an upper bound on delta, ``E[(1 - exp(epsilon - L))_+]``.  L is the sum of `count` losses of each PLD."""
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
    # The window: `size` grid points about epsilon, or about the mean of the sum if that is larger.
    base = round(max(mean, epsilon) / step) - size // 2
    product = np.ones(size // 2 + 1, dtype=complex)
    # A bound on the rounding of all transforms and powers, in Euclidean norm.
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
    # Rounding of the probabilities on the grid, of tilting and of its inverse.
    relative += LOSS_ROUNDING * theta * abs(epsilon)
    within = lost + math.exp(min(log_mass - theta * epsilon + relative, LARGEST_LOG)) * inside
    above = chernoff(parts, (base + size) * step, theta, mean, variance, NEGLIGIBLE * within)
    return (within + above) * (1 + TAIL_SLACK)


def tilted_sum(parts: Counted, theta: float) -> tuple[tuple[Array, ...], list[float]]:
    """Return each PLD's tilted probabilities, and log normaliser, mean, variance and relative rounding of the sum."""
    tilted, *numbers = zip(*(item.tilted(theta) for item, _ in parts), strict=True)
    counts = [count for _, count in parts]
    return tilted, [math.fsum(map(mul, counts, values)) for values in numbers]


def tilt(parts: Counted, mean: float) -> float:
    """Return about the theta at which the tilted sum has this mean; 0 if the mean is larger without.  All thetas give bounds."""
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
    """Return a power by repeated squaring; its relative rounding is at most `power` times that of one product."""
    result = np.ones_like(values)
    for bit in f"{power:b}":
        result = result * result * (values if bit == "1" else 1.0)
    return result


def chernoff(parts: Counted, level: float, theta: float, mean: float, variance: float, enough: float) -> float:
    """Return a Chernoff bound on P(sum >= level).  Try thetas near the best for a normal sum until it is at most `enough`."""
    best = math.inf
    for part in (*(0.5**k for k in range(8)), 0.0):
        if math.exp(min(best, 0.0)) <= enough:
            break
        more = theta + part * max(level - mean, 0.0) / variance
        log_mass, _, _, rounding = tilted_sum(parts, more)[1]
        best = min(best, log_mass - more * level + rounding + LOSS_ROUNDING * more * abs(level))
    return math.exp(min(best, 0.0))


def sampled_delta(epsilon: float, multiplier: float, rate: float, steps: int) -> float:
    """Return a bound on delta for `steps` noisy sums over Poisson samples; `multiplier` is sigma over the largest norm."""
    if not multiplier >= SMALLEST_MULTIPLIER:
        return 1.0
    if rate >= 1:
        return float(gaussian_delta(epsilon, math.sqrt(steps) / multiplier * (1 + LOSS_ROUNDING)))
    return min(max(composed_delta([(losses, steps)], epsilon) for losses in both_orders(multiplier, rate)), 1.0)


def both_orders(multiplier: float, rate: float) -> list[LossDistribution]:
    """Return the PLDs of one noisy sum over a Poisson sample: for a removed record, and for an added one."""
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
    """Return the exact delta at each loss, rounded up, for a removed record (Balle, Barthe & Gaboardi 2018)."""
    more = np.log1p(np.expm1(losses) / rate) * (1 - LOSS_ROUNDING)
    return np.minimum(rate * gaussian_delta(more, 1 / multiplier) * (1 + LOSS_ROUNDING), 1.0)


def added(losses: Array, multiplier: float, rate: float) -> Array:
    """Return delta for an added record: ``E[(1 - e^loss (1 - q + q r))_+]`` for r the likelihood ratio, q the rate."""
    scale = np.maximum(1 - np.exp(losses) * (1 - rate), 0.0) + LOSS_ROUNDING  # delta grows with it
    more = losses + np.log(rate) - np.log(scale)
    more -= LOSS_ROUNDING * (1 + np.abs(more))
    return np.minimum(scale * gaussian_delta(more, 1 / multiplier) * (1 + LOSS_ROUNDING), 1.0)


@lru_cache(maxsize=64)
def sampled_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Return the smallest noise multiplier for a guarantee, rounded up: sigma over the largest norm of a term."""
    if delta < SMALLEST_DELTA:
        why = f"the accounting of Poisson samples is not exact enough for delta = {delta:g}"
        remedy = f"ask for a delta of at least {SMALLEST_DELTA:g}, or use all records at every step"
        raise NotPrivate(why, f"sampling = {rate:g}", remedy)
    # `full` is enough without sampling; amplification reduces it by a factor of at least `rate`.  Start in between.
    full = gaussian_sigma(epsilon, delta, 1.0) * math.sqrt(steps)
    if rate >= 1:
        return full
    found = smallest_scale(lambda z: sampled_delta(epsilon, z, rate, steps), delta, max(full * rate, 0.3), ACCURACY)
    return full if found is None or found > full else found
