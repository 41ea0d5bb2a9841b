"""Noise that only tightens: a discrete Laplace law cut off at both ends, so that bounds never rise above their true values.

Values are rounded down to a grid, and k - reach steps are added, where |k| <= reach and P(k) is proportional to exp(-|k|/scale).
Everything below is a statement about this law of integers, drawn exactly; docs/theory.md, section 19, has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import NotPrivate
from dpconvex.language.privacy import Privacy
from dpconvex.mechanisms.grid import LAPLACE, measurement, two_sided

Array = NDArray[np.float64]

# Grid steps in a sensitivity, for each entry: rounding costs less than a thousandth of it.
FINENESS = 1024
# Relative error of the computed delta.
SLACK = 1 + 1e-9
# OpenDP draws 64-bit integers.
LONGEST = 2**62


@dataclass(frozen=True)
class TruncatedLaplace:
    """Independent noise for the entries of one private bound, with its share of the promise.

    `step` is the grid step, a power of two, in the unit of the values, and `size` the number of entries.  In steps
    are `sensitivity`, the largest sum of absolute changes on the grid, `scale`, and `reach`: values fall by that on
    average, and by twice as much at most (with the rounding, less than one step more).
    """

    epsilon: float
    delta: float
    step: float
    size: int
    sensitivity: int
    scale: float
    reach: int

    @property
    def tightening(self) -> float:
        """By how much a value falls on average, in its unit."""
        return self.reach * self.step

    def draw(self, rng: np.random.Generator | None = None) -> list[int]:
        """Draw k for every entry: the exact discrete Laplace law, drawn again where it is beyond the reach."""
        exact = measurement(LAPLACE, self.scale)
        kept: list[int] = []
        while len(kept) < self.size:
            drawn = exact([0] * self.size) if rng is None else two_sided(self.scale, self.size, rng).tolist()
            kept += [k for k in drawn if abs(k) <= self.reach]
        return kept[: self.size]

    def tighten(self, values: Array, minimum: Array, rng: np.random.Generator | None = None) -> Array:
        """Return noisy values, none above its own; both arguments have one shape, and no value is below its minimum."""
        step = Fraction(self.step)
        steps = [math.floor(Fraction(v) / step) for v in values.ravel().tolist()]
        noisy = [down((s + k - self.reach) * step) for s, k in zip(steps, self.draw(rng), strict=True)]
        return np.maximum(np.reshape(np.array(noisy, dtype=float), values.shape), minimum)


def truncated_laplace(privacy: Privacy, sensitivity: float, size: int) -> TruncatedLaplace:
    """Calibrate the noise for values with an l1 sensitivity, in their unit."""
    if privacy.pure:
        raise NotPrivate(
            "noise that only lowers a bound keeps no promise with delta = 0: what is released may be impossible for neighbours",
            f"delta = {privacy.delta:g}",
            "promise a small delta",
        )
    step = 2.0 ** math.floor(math.log2(sensitivity / (FINENESS * size)))
    # |floor(a) - floor(b)| < |a - b| + 1 in every entry, and the sum of integers below an integer is at most that less one.
    moved = math.ceil(Fraction(sensitivity) / Fraction(step)) + size - 1
    scale = math.nextafter(moved / privacy.epsilon, math.inf)
    reach = least_reach(moved, scale, privacy.delta)
    if reach > LONGEST:
        raise NotPrivate("the noise would be longer than 64 bits hold", privacy, "promise a larger epsilon")
    return TruncatedLaplace(privacy.epsilon, privacy.delta, step, size, moved, scale, reach)


def excess(moved: int, scale: float, reach: int) -> float:
    """Return the exact delta: P(K < moved - reach) for moved <= reach, up to rounding.

    With r = exp(-1/scale) it is r^(reach + 1) (r^-moved - 1) / (1 + r - 2 r^(reach + 1)).
    """
    mass = math.exp((moved - reach - 1) / scale) * -math.expm1(-moved / scale)
    return mass / (-math.expm1(-(reach + 1) / scale) - math.exp(-1 / scale) * math.expm1(-reach / scale))


def least_reach(moved: int, scale: float, delta: float) -> int:
    """Return the least reach, but for rounding, whose delta is small enough."""

    def enough(reach: int) -> bool:
        return excess(moved, scale, reach) * SLACK <= delta

    high = moved
    while not enough(high):
        high *= 2
    low = high // 2 if high > moved else high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def down(value: Fraction) -> float:
    """Return the largest float that does not exceed a number."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, -math.inf)
