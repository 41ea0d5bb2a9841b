"""Integer noise on a grid, noise of a private clustering, and their privacy costs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dpconvex.accounting.events import Composition, Event, Gaussian, Pure, Tail
from dpconvex.errors import DPConvexError
from dpconvex.noise.discrete import GAUSSIAN, LAPLACE, add_integer_noise
from dpconvex.noise.gaussian import GRID_LOSS, failure_delta, gaussian_delta, integer_level
from dpconvex.noise.samplers import SPHERICAL, Spherical
from dpconvex.numerics import NORM_SLACK
from dpconvex.util.arrays import Array

# Answers are clipped to this many grid steps in each coordinate, which does not increase the distance of neighbours.
LARGEST_INTEGER = 2**62


@dataclass(frozen=True)
class IntegerNoise:
    """Integer noise k, with P(k) proportional to exp(-|k|/scale) or exp(-k^2/(2 scale^2)), and its share of the guarantee."""

    noise: str  # "discrete Laplace" or "discrete Gaussian"
    epsilon: float
    delta: float
    distance: float  # tau
    step: float  # Grid step, a power of two
    dimension: int
    sensitivity: float  # Of the answer on the grid, in steps: l1 norm for Laplace noise, l2 norm for Gaussian noise
    scale: float  # In steps
    noise_cap: float  # Cap on the norm of the mechanism's own noise, for which `distance` holds
    counting: float = 0.0  # Further epsilon for a noisy number of records, if that number is protected
    records: float = math.inf  # Largest number of records for which `distance` can be certified for all data

    @property
    def size(self) -> float:
        """Root mean square of the noise's Euclidean norm, in units of the parameters (an upper bound, tight on a fine grid)."""
        return self.scale * (1.0 if self.is_gaussian else math.sqrt(2.0)) * self.step * math.sqrt(self.dimension)

    @property
    def is_gaussian(self) -> bool:
        return self.noise == GAUSSIAN

    def rows(self) -> Iterator[tuple[str, str, str]]:
        said = f"root mean square norm; {self.noise} on a grid of step 2^{round(math.log2(self.step))}"
        yield "residual noise", f"{self.size:.6g}", said

    @property
    def event(self) -> Event:
        if not self.is_gaussian:
            return Pure(self.epsilon)
        level = integer_level(self.sensitivity, self.scale) * (1 + NORM_SLACK)  # of noise for more records, too
        return Composition((Gaussian(level), Tail(GRID_LOSS)))

    @property
    def holds(self) -> bool:
        if not self.is_gaussian:
            return self.sensitivity / self.scale <= self.epsilon
        level = integer_level(self.sensitivity, self.scale)
        return float(gaussian_delta(self.epsilon, level)) + failure_delta(GRID_LOSS, self.epsilon) <= self.delta

    def check(self) -> None:
        if not self.holds:
            raise DPConvexError("residual noise: it does not keep its share of the guarantee; nothing is released.")


def laplace_count(epsilon: float, sensitivity: int = 1) -> IntegerNoise:
    """Return integer noise that makes a sum of integers epsilon-private; one record changes the sum by at most `sensitivity`."""
    scale = math.nextafter(sensitivity / epsilon, math.inf)
    return IntegerNoise(LAPLACE, epsilon, 0.0, 0.5, 1.0, 1, float(sensitivity), scale, 0.0)


def perturb(theta: Array, noise: IntegerNoise, rng: np.random.Generator | None = None) -> Array:
    theta = np.asarray(theta, dtype=float)
    if theta.shape != (noise.dimension,) or not np.isfinite(theta).all():
        raise DPConvexError(f"residual noise: expected {noise.dimension} finite numbers; nothing is released.")
    noise.check()
    # Dividing by a power of two is exact, so the only rounding is the one to the grid.
    with np.errstate(over="ignore"):
        steps = np.clip(np.rint(theta / noise.step), -LARGEST_INTEGER, LARGEST_INTEGER).astype(np.int64)
    # Beyond 2^53 steps the nearest float is a coarser multiple of the step: still on the grid, and post-processing.
    return np.asarray(add_integer_noise(noise.noise, noise.scale, steps, rng).astype(float) * noise.step)


@dataclass(frozen=True)
class ClusteringNoise:
    """Noise on counts and sums of records, for a private clustering before a fit, with its share of the guarantee."""

    noise: str  # "gaussian" (independent entries), or "gamma" (density for each cell proportional to exp(-||b||/scale))
    epsilon: float
    delta: float
    rounds: int
    classes: int
    components: int  # Number of centres of each class
    features: int
    radius: float  # Upper bound on the norm of records
    weight: float  # Factor on a count, which is one more entry of its cell's sum
    sensitivity: float  # Of one round: the l2 norm for Gaussian noise, the sum of l2 norms over cells for Gamma
    scale: float  # Standard deviation of each entry, or 1/beta
    step: float  # Grid step of records and noise, a power of two, so that their sums are exact

    @property
    def law(self) -> Spherical:
        return SPHERICAL[self.noise]

    @property
    def composed(self) -> float:
        return self.law.composed(self.sensitivity, self.rounds)

    @property
    def event(self) -> Event:
        shift = self.composed / self.scale * (1 + NORM_SLACK)
        return Gaussian(shift) if self.noise == "gaussian" else Pure(self.epsilon)

    @property
    def deviation(self) -> float:
        p = self.features + 1
        return math.sqrt(self.law.square(p, self.scale) / p)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        many = f"{self.rounds} rounds of {self.classes} x {self.components} counts and sums"
        yield "clustering sensitivity", f"{self.sensitivity:.6g}", f"of one round; {self.composed:.6g} for all: {many}"
        said = f"{self.law.name}; {self.deviation / self.weight:.6g} records on a count"
        yield f"clustering noise {self.law.symbol}", f"{self.scale:.6g}", said
