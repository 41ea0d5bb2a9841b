"""Released curves of additive models, and the exact enforcement of their declared shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.features.splines import GRID, SplineBlock, knot_positions
from dpconvex.util.arrays import Array

# Required sign of the slopes of a curve, or of their differences.
MONOTONE = {"increasing": 1, "decreasing": -1}
CURVATURE = {"convex": 1, "concave": -1}
# Values of a curve are whole multiples of this fraction of the largest value, so that sums of slopes are exact.
FINE = 2.0**-50


@dataclass(frozen=True, eq=False)
class Shape:
    """A released curve of a column, or of a pair of columns: values at the nodes, with the deviations of their noise.

    Attributes
    ----------
    block : SplineBlock
        The columns and their nodes.
    values, deviations : ndarray, shape (nodes,)
        Values in units of the score, or of the target, linear between knots; and bounds on the standard deviations of their
        noise for privacy.  For a pair, the nodes of the second column vary fastest.
    """

    block: SplineBlock
    values: Array
    deviations: Array

    @property
    def nodes(self) -> list[NDArray[Any]]:
        """Names of the nodes of each column: levels, or knots in its units."""
        return [axis.names for axis in self.block.axes]

    def __call__(self, encoded: Mapping[str, Array]) -> Array:
        """Return the terms of the scores, shape (n,); rounding keeps the order of values along an increasing curve."""
        axis = self.block.axes[0]
        if len(self.block.axes) > 1 or not len(axis.knots):
            return np.asarray(self.block.hats(encoded) @ self.values)
        column, values = encoded[axis.name], self.values
        left, along = knot_positions(axis.knots, axis.places(column))
        first, last = values[left], values[left + 1]
        inside = np.clip(first + (last - first) * along, np.minimum(first, last), np.maximum(first, last))
        return np.where(axis.absent(column), values[-1], inside)


def round_to_shape(values: Array, knots: Array, monotone: int, curvature: int) -> Array:
    """Return values at knots with exactly a shape, for values that have the shape up to rounding."""
    gaps = np.diff(knots)
    slopes = np.diff(values) / gaps
    if monotone:
        slopes = monotone * np.maximum(monotone * slopes, 0.0)
    if curvature:
        slopes = curvature * np.maximum.accumulate(curvature * slopes)
    # Slopes rounded to multiples of a unit keep their order, and the unit leaves enough digits for exact sums of slopes.
    unit = 2.0 ** np.ceil(np.log2(max(abs(values[0]) + float(np.abs(slopes) @ gaps), 1e-200))) * FINE
    start, steps = np.rint(values[0] / unit), np.rint(slopes * (GRID / unit)) * np.rint(gaps / GRID)
    return np.asarray(unit * np.concatenate([[start], start + np.cumsum(steps)]))
