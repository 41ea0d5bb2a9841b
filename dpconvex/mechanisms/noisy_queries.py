"""Gaussian queries: what is asked may depend on earlier answers, what all cost together does not (docs/theory.md, theorem 8.9).

Query t has a sensitivity and a level that are known before it is asked, given all earlier answers, and noise of their ratio.  As
``sum mu_t^2 <= mu^2`` in any case, all queries together are mu-GDP.  Sums are integers, and their noise is drawn exactly.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from dpconvex.certificates.integer_noise import GAUSSIAN, drawn
from dpconvex.errors import DPConvexError
from dpconvex.noise.profiles import GRID_VARIANCE, integer_level
from dpconvex.util.arrays import Indices

ROOM = 1 + 1e-12  # for the rounding of levels and of their sum
LARGEST = 2**61  # Sums beyond this are cut off, each by itself, which brings neighbours closer


@dataclass
class Queries:
    """What draws the noise of one release, and refuses a query that the release was not certified for.

    Parameters
    ----------
    most : float
        The level of all queries together, which was paid for.
    rng : numpy.random.Generator or None
        For tests; without one the noise is drawn by OpenDP, from the operating system's random numbers.
    """

    most: float
    rng: np.random.Generator | None
    spent: Fraction = field(default=Fraction(0), init=False)  # the sum of the squares of the levels so far

    def noisy(self, sums: Indices, sensitivity: float, level: float) -> Indices:
        """Add noise to whole numbers that neighbours move by at most `sensitivity`, in the Euclidean norm.

        Raises
        ------
        DPConvexError
            If the levels of all queries so far exceed what was certified; nothing is released.
        """
        return self.drawn(self._deviation(sensitivity, level), sums)

    def noisy_symmetric(self, sums: Indices, sensitivity: float, level: float) -> Indices:
        """Add noise to a symmetric matrix of whole numbers, which neighbours move by as much in the Frobenius norm."""
        scale, upper = self._deviation(sensitivity, level), np.triu_indices(len(sums), 1)
        # Entries off the diagonal count twice in the norm.
        less = math.sqrt(scale**2 / 2 + GRID_VARIANCE) * ROOM
        found = np.diag(self.drawn(scale, np.diag(sums)))
        found[upper] = self.drawn(less, sums[upper])
        return np.asarray(found + np.triu(found, 1).T)

    def drawn(self, scale: float, sums: Indices) -> Indices:
        return drawn(GAUSSIAN, scale, cut(sums), self.rng)

    def _deviation(self, sensitivity: float, level: float) -> float:
        self.spent += Fraction(level) ** 2 if math.isfinite(level) else 0
        granted = 0 < level <= self.most and self.spent <= Fraction(self.most) ** 2 * Fraction(ROOM)
        if not (granted and 0 <= sensitivity < math.inf):
            raise DPConvexError("adaptive steps: more queries than were certified; nothing is released.")
        return deviation(sensitivity, level)


def cut(sums: Indices) -> Indices:
    return np.clip(sums, -LARGEST, LARGEST).astype(np.int64)


def deviation(sensitivity: float, level: float) -> float:
    """Return the scale of integer noise at which neighbours so far apart are told apart at this level."""
    scale = math.sqrt((sensitivity / level) ** 2 + GRID_VARIANCE) * ROOM
    while not integer_level(sensitivity, scale) <= level:
        scale *= ROOM
    return scale
