"""Released curves of additive models, and values that have a declared shape exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.features.splines import GRID, SplineBlock, cells
from dpconvex.util.arrays import Array

# What a shape asks of the slopes of a curve: the sign of them, or of their differences.
MONOTONE = {"increasing": 1, "decreasing": -1}
CURVATURE = {"convex": 1, "concave": -1}
# Values of a shape are whole multiples of this part of the largest, so that sums of slopes are exact.
FINE = 2.0**-50


@dataclass(frozen=True, eq=False)
class Shape:
    """A released curve of a column, or of a pair of columns: its values at the nodes, and how far the noise moves them.

    Attributes
    ----------
    block : Block
        The columns, and where their nodes are.
    values, deviations : ndarray, shape (nodes,)
        Values in units of the score, or of the target, linear between knots; and the standard deviation of the noise for privacy
        in each, at most.  Of a pair, the nodes of the second column change first.
    """

    block: SplineBlock
    values: Array
    deviations: Array

    @property
    def nodes(self) -> list[NDArray[Any]]:
        """Names of the nodes of each column: levels, or knots in its units."""
        return [axis.names for axis in self.block.axes]

    def __call__(self, encoded: Mapping[str, Array]) -> Array:
        """Return what the curve adds to scores; where it rises, a later place has no smaller value, for rounding keeps order."""
        axis = self.block.axes[0]
        if len(self.block.axes) > 1 or not len(axis.knots):
            return np.asarray(self.block.hats(encoded) @ self.values)
        column, values = encoded[axis.name], self.values
        left, along = cells(axis.knots, axis.places(column))
        first, last = values[left], values[left + 1]
        inside = np.clip(first + (last - first) * along, np.minimum(first, last), np.maximum(first, last))
        return np.where(axis.absent(column), values[-1], inside)


def on_shape(values: Array, knots: Array, monotone: int, curvature: int) -> Array:
    """Return values at knots that have a shape exactly, from ones that have it but for rounding."""
    gaps = np.diff(knots)
    slopes = np.diff(values) / gaps
    if monotone:
        slopes = monotone * np.maximum(monotone * slopes, 0.0)
    if curvature:
        slopes = curvature * np.maximum.accumulate(curvature * slopes)
    # Rounded to multiples of a unit, slopes keep their order; so many digits are left that no sum of them is rounded again.
    unit = 2.0 ** np.ceil(np.log2(max(abs(values[0]) + float(np.abs(slopes) @ gaps), 1e-200))) * FINE
    start, steps = np.rint(values[0] / unit), np.rint(slopes * (GRID / unit)) * np.rint(gaps / GRID)
    return np.asarray(unit * np.concatenate([[start], start + np.cumsum(steps)]))
