"""Laws of noise b without a preferred direction, in p dimensions.

Of each law: the scale that makes a sum private whose neighbours are so far apart (`calibrate`), the sensitivity of several
adaptive releases together (`composed`), mean, mean square and quantile of the norm of b, and a draw.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi, gamma

from dpconvex.noise.gaussian_profiles import gaussian_sigma
from dpconvex.noise.samplers import gamma_direction, gaussian

Array = NDArray[np.float64]

# Quantiles are computed to many more digits than this.
SLACK = 1 + 1e-9


class Gamma:
    """Density proportional to ``exp(-||b||/scale)``; rounds add up plainly."""

    name, symbol = "Gamma", "1/beta"

    def calibrate(self, epsilon: float, delta: float, sensitivity: float) -> float:
        """The logarithm of the density is Lipschitz."""
        return sensitivity / epsilon

    def composed(self, sensitivity: float, rounds: int) -> float:
        return sensitivity * rounds

    def mean(self, p: int, scale: float) -> float:
        return p * scale

    def square(self, p: int, scale: float) -> float:
        return p * (p + 1) * scale**2

    def quantile(self, p: int, scale: float, probability: float) -> float:
        return float(gamma.isf(probability, p)) * scale * SLACK if p else 0.0

    def draw(self, p: int, scale: float, rng: np.random.Generator) -> Array:
        return gamma_direction(p, scale, rng)


class Gaussian:
    """Independent normal coordinates; rounds add up in squares."""

    name, symbol = "Gaussian", "sigma"

    def calibrate(self, epsilon: float, delta: float, sensitivity: float) -> float:
        return gaussian_sigma(epsilon, delta, sensitivity)

    def composed(self, sensitivity: float, rounds: int) -> float:
        """All rounds together are as private as one of this sensitivity (Dong, Roth & Su 2022, corollary 3.3)."""
        return sensitivity * math.sqrt(rounds)

    def mean(self, p: int, scale: float) -> float:
        return float(chi.mean(p)) * scale if p else 0.0

    def square(self, p: int, scale: float) -> float:
        return p * scale**2

    def quantile(self, p: int, scale: float, probability: float) -> float:
        return float(chi.isf(probability, p)) * scale * SLACK if p else 0.0

    def draw(self, p: int, scale: float, rng: np.random.Generator) -> Array:
        return gaussian(p, scale, rng)


Spherical = Gamma | Gaussian
SPHERICAL: dict[str, Spherical] = {"gamma": Gamma(), "gaussian": Gaussian()}
