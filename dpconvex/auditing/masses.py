"""Two laws of an answer, as masses on cells: what can be told from them about epsilon and delta.

Whatever the cells are, ``sum (P - e^epsilon Q)_+`` is at most the delta of the two laws, and for fine cells it is near it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Masses below this have lost digits to underflow.
SMALLEST = 1e-280
# Cells whose masses are known less accurately than this say nothing about a largest ratio.
ACCURATE = 1e-6
STEPS = 60


@dataclass(frozen=True, eq=False)
class Masses:
    """Masses of the same cells under two laws.

    Attributes
    ----------
    first, second : ndarray, shape (m,)
        Not negative.
    error : ndarray, shape (m,), or float
        Relative error of both.
    slack : float
        What is subtracted from every delta, for the error of a quadrature.
    """

    first: Array
    second: Array
    error: Array | float = 1e-12
    slack: float = 0.0

    def delta(self, epsilon: float) -> float:
        """Return ``sum (P - e^epsilon Q)_+``, rounded down."""
        with np.errstate(over="ignore", invalid="ignore"):
            excess = self.first * (1 - self.error) - np.exp(epsilon) * self.second * (1 + self.error)
        return max(float(np.maximum(np.nan_to_num(excess, nan=0.0), 0.0).sum()) - self.slack, 0.0)

    @property
    def epsilon(self) -> float:
        """The largest logarithm of a ratio of masses, rounded down; minus infinity if no cell is accurate."""
        error = np.broadcast_to(self.error, self.first.shape)
        seen = (self.first > SMALLEST) & (error < ACCURATE)
        if not seen.any():
            return -math.inf
        with np.errstate(divide="ignore"):
            ratio = np.log(self.first[seen]) - np.log(np.maximum(self.second[seen], SMALLEST)) - 2 * error[seen]
        return float(ratio.max())

    def epsilon_at(self, delta: float) -> float:
        if delta <= 0:
            return max(self.epsilon, 0.0)
        low, high = 0.0, 1.0
        if self.delta(0.0) <= delta:
            return 0.0
        while self.delta(high) > delta and high < 700:
            low, high = high, 2 * high
        for _ in range(STEPS):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return low


def mean_error(values: Array, confidence: float) -> float:
    """Return how far a mean of independent values lies from its expectation, at most, with about the given confidence."""
    from scipy.special import ndtri

    return float(ndtri(confidence) * values.std(ddof=1) / math.sqrt(len(values)))
