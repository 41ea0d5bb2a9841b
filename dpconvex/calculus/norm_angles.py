"""The norm of entries that move and of others that do not: how long its gradient is, and how curved it is there.

With the angle a between all entries and those that do not move, the gradient is as long as sin a, and curvature as large as cos a
across the gradient, and cos^3 a along it (docs/theory.md, section 6).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Stretches of the angle.
ANGLES = 400


@lru_cache(maxsize=1)
def angles() -> tuple[Array, Array]:
    """Return the largest sine and the largest cosine of each stretch of angles from 0 to a right angle."""
    ends = np.linspace(0.0, math.pi / 2, ANGLES + 1)
    sine = np.sin(ends[1:]) * (1 + 1e-15)
    sine[-1] = 1.0
    return sine, np.cos(ends[:-1]) * (1 + 1e-15)


def stretches(ratio: float, across: float, along: float) -> tuple[Array, Array]:
    """Return bounds of the gradient's length, at most 1, and of ``log det(I + H/mu)``, on each stretch of angles."""
    sine, cosine = angles()
    return sine, across * np.log1p(ratio * cosine) + along * np.log1p(ratio * cosine**3)
