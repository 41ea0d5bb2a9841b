"""What Gaussian noise on Poisson samples gives away at least: the loss of all steps, added up on a grid and rounded down."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtr

Array = NDArray[np.float64]

# Outcomes beyond so many deviations are left out, which only lowers what is found; so is what rounding takes off the loss of all
# steps together.
REACH, ROUNDED = 9.0, 0.004
LARGEST = 2**24
# Transforms err by about so much.
NOISE = 1e-14


class SampledProfile:
    """Lower bounds on delta for each epsilon, where one record takes part in each step with a probability.

    Its part of a sum is `shift` deviations of the noise long, and points the same way in all steps.
    """

    def __init__(self, shift: float, rate: float, steps: int) -> None:
        self.shift, self.rate, self.steps = shift, rate, steps
        ends = np.array([-REACH, REACH + shift])
        low, high = self._loss(ends)
        self.width = max(ROUNDED / steps, steps * (high - low) / LARGEST)
        edges = self.width * np.arange(np.floor(low / self.width), np.ceil(high / self.width) + 1)
        points = self._outcome(edges)
        without, there = ndtr(points), ndtr(points - shift)
        mixed = (1 - rate) * np.diff(without) + rate * np.diff(there)
        # With the record against without it, and the other way round, where losses change their signs.
        self.laws = self._composed(mixed, edges[0]), self._composed(np.diff(without)[::-1], -edges[-1])

    def _loss(self, x: Array) -> Array:
        return np.asarray(np.log1p(self.rate * np.expm1(self.shift * x - self.shift**2 / 2)))

    def _outcome(self, loss: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.log1p(np.expm1(loss) / self.rate)
        return np.where(np.isnan(inside), -np.inf, (inside + self.shift**2 / 2) / self.shift)

    def _composed(self, masses: Array, start: float) -> tuple[Array, Array]:
        """Return the losses of all steps and their masses; each mass lies at the lower edge of its cell."""
        count = self.steps * (len(masses) - 1) + 1
        size = next_fast_len(count, real=True)
        total = irfft(rfft(masses, size) ** self.steps, size)[:count]
        return self.steps * start + self.width * np.arange(count), np.where(total > NOISE, total, 0.0)

    def delta(self, epsilon: float) -> float:
        """Return the larger delta of the two orders."""
        found = 0.0
        for losses, masses in self.laws:
            above = losses > epsilon
            found = max(found, float((masses[above] * -np.expm1(epsilon - losses[above])).sum()))
        return found

    def epsilon(self, delta: float) -> float:
        low, high = 0.0, 1.0
        if self.delta(0.0) <= delta:
            return 0.0
        while self.delta(high) > delta:
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return low
