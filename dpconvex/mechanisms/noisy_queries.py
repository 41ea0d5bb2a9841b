"""Gaussian queries with exact integer noise, at levels with squares that add up to the squared total level (theorem 8.9)."""

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import DPConvexError
from dpconvex.noise.choices import TOGETHER, choice_width
from dpconvex.noise.discrete import GAUSSIAN, add_integer_noise
from dpconvex.noise.gaussian import GRID_VARIANCE, integer_level
from dpconvex.noise.samplers import uniform_integer
from dpconvex.numerics import NORM_SLACK
from dpconvex.util.arrays import Indices

LARGEST = 2**61  # Each sum is clipped to this, which never moves neighbours apart
# Bits of a score's sensitivity; logarithm of the largest ratio of weights; bits of the smallest weight; slack for rounding.
SCORE_BITS, LEAST_LIKELY, WEIGHT_BITS, WIDER = 20, 40.0, 112, 1e-13


@dataclass
class QueryNoise:
    """Noise for the queries of one release; queries beyond its certified level raise."""

    most: float  # The certified level of all queries together
    rng: np.random.Generator | None  # For tests; by default OpenDP draws from the operating system's random numbers
    spent: Fraction = field(default=Fraction(0), init=False)  # the sum of the squares of the levels so far

    def noisy(self, sums: Indices, sensitivity: float, level: float) -> Indices:
        """Add noise to integers of this sensitivity; raise `DPConvexError` if levels exceed the certified total."""
        return self.drawn(self._deviation(sensitivity, level), sums)

    def noisy_symmetric(self, sums: Indices, sensitivity: float, level: float) -> Indices:
        """Add noise to a symmetric matrix of integers with this sensitivity in the Frobenius norm."""
        scale, upper = self._deviation(sensitivity, level), np.triu_indices(len(sums), 1)
        # Off-diagonal entries count twice in the norm.
        less = math.sqrt(scale**2 / 2 + GRID_VARIANCE) * (1 + NORM_SLACK)
        found = np.diag(self.drawn(scale, np.diag(sums)))
        found[upper] = self.drawn(less, sums[upper])
        return np.asarray(found + np.triu(found, 1).T)

    def choose(self, scores: NDArray[Any], owner: Indices, sensitivity: float, level: float, count: int) -> list[int]:
        """Choose `count` owners of integer scores one by one, each by the exponential mechanism on scores.

        Scores, shape (candidates,), have any size, and their sensitivity is an integer.  `owner` names each candidate's owner;
        the candidates of a chosen owner are removed.  `level` covers all choices together.
        """
        self._deviation(sensitivity, level)
        unit, found = max(int(sensitivity) >> SCORE_BITS, 1), list[int]()
        levels, left = (scores // unit).astype(np.int64), np.arange(len(scores))
        moved = math.ceil(Fraction(sensitivity) / unit) + 1  # of the rounded scores
        for start in range(0, count, TOGETHER):
            some = min(count - start, TOGETHER)
            rate = (choice_width(level * math.sqrt(some / count) / (1 + NORM_SLACK), some) - WIDER) / (2 * moved)
            for _ in range(some if rate > 0 else 0):
                if not len(left):
                    break
                chosen = owner[left[self.picked(levels[left], rate)]]
                found, left = [*found, int(chosen)], left[owner[left] != chosen]
        return found

    def picked(self, levels: Indices, rate: float) -> int:
        """Draw an index with probability exactly proportional to its weight."""
        sums = list(accumulate(choice_weights(levels, rate)))
        return bisect_right(sums, uniform_integer(sums[-1], self.rng))

    def drawn(self, scale: float, sums: Indices) -> Indices:
        return add_integer_noise(GAUSSIAN, scale, clip_sums(sums), self.rng)

    def _deviation(self, sensitivity: float, level: float) -> float:
        self.spent += Fraction(level) ** 2 if math.isfinite(level) else 0
        granted = 0 < level <= self.most and self.spent <= Fraction(self.most) ** 2 * Fraction(1 + NORM_SLACK)
        if not (granted and 0 <= sensitivity < math.inf):
            raise DPConvexError("adaptive steps: queries exceed the certified level (a bug); nothing is released.")
        return noise_scale(sensitivity, level)


def choice_weights(levels: Indices, rate: float) -> list[int]:
    """Return integers proportional to ``exp(rate * level)``, at least exp(-40) of the largest, from exact powers."""
    gaps = np.minimum(levels.max() - levels, min(int(LEAST_LIKELY / rate), LARGEST))
    found = np.ones(len(gaps))
    with localcontext(prec=60):
        for bit in range(int(gaps.max()).bit_length()):
            found *= np.where(gaps >> bit & 1, float((-Decimal(rate) * 2**bit).exp()), 1.0)
    return [int(weight) for weight in np.ldexp(found, WEIGHT_BITS).tolist()]


def clip_sums(sums: Indices) -> Indices:
    return np.clip(sums, -LARGEST, LARGEST).astype(np.int64)


def noise_scale(sensitivity: float, level: float) -> float:
    """Return the scale of integer noise with this GDP level for this sensitivity."""
    scale = math.sqrt((sensitivity / level) ** 2 + GRID_VARIANCE) * (1 + NORM_SLACK)
    while not integer_level(sensitivity, scale) <= level:
        scale *= 1 + NORM_SLACK
    return scale
