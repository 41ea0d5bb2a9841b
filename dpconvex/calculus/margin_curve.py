"""Slope and curvature of a loss of one margin, stretch by stretch: where it is steep it may be flat, and the other way round.

If a record's loss is ``phi(<a, theta> + c)`` with ``||a|| <= R``, its gradient is ``phi' a`` and its Hessian ``phi'' a a'``, both at one
margin.  The rules bound both on stretches of margins, and stretches are halved until little is left to gain.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.joint_supremum import Joint
from dpconvex.calculus.margin_width import Tracer, single_row, slope_range
from dpconvex.calculus.symmetry import Symmetry
from dpconvex.core.abstract_values import Scalar
from dpconvex.core.intervals import Interval
from dpconvex.errors import DPConvexError

if TYPE_CHECKING:
    from dpconvex.calculus.analysis import Analysis

__all__ = ["SLICES", "MarginCurve", "margin_curve"]

Array = NDArray[np.float64]

# Stretches are halved until slope and curvature vary by less than this fraction of their largest values, or are so many.
FINE, MOST = 0.01, 1000
# A stretch that is both so steep and so curved, as fractions, and whose slopes are this close: nothing is to be had.
STEEP_AND_CURVED, CLOSE, FIRST = 1.95, 0.02, 10.0
# Slices of slopes, each with a bound on the curvature there.
SLICES = 32
SLACK, ROUNDING = 1 + 1e-11, 1e-14
NAME = "joint supremum of slope and curvature (one margin)"
ENDS = (-math.inf, -1.0, 1.0, math.inf)


@dataclass(frozen=True, eq=False)
class MarginCurve(Joint):
    """Bounds of the slope and the second derivative by the margin, on stretches that cover all margins.

    Attributes
    ----------
    radius : float
        Bound R on the norm of the row a.
    low, high, bend : ndarray, shape (stretches,)
    alike : hashable
        What losses with the same stretches share.
    """

    radius: float
    low: Array
    high: Array
    bend: Array
    alike: Hashable

    def loss(self, beta: float, mu: float, enough: float = -np.inf) -> float:
        """Take the largest over the stretches."""
        steepest = np.maximum(np.abs(self.low), np.abs(self.high))
        return float((beta * self.radius * steepest + np.log1p(self.bend * self.radius / mu * self.radius)).max())

    def signature(self, symmetry: Symmetry) -> Hashable:
        """All digits of the radius but for rounding."""
        return self.alike, f"{self.radius:.12e}"

    def bends(self, steepest: float) -> tuple[float, ...]:
        """Bound ``phi'' ||a||^2`` where the gradient is as long as in each of `SLICES` equal parts of [0, steepest].

        A shorter row, by a factor k, has gradients shorter by k and curvature by k^2.
        """
        ends = np.linspace(0.0, steepest / self.radius, SLICES + 1)
        first, last = ends[:-1, None], ends[1:, None] * SLACK
        with np.errstate(divide="ignore"):
            shorter = np.minimum(1.0, last / np.maximum(self.low, 0.0))
        reached = np.where(self.high * SLACK >= first, self.bend * shorter**2, 0.0)
        return tuple((reached.max(axis=1) * self.radius**2).tolist())

    def mirrored(self) -> MarginCurve:
        """Return the same for slopes of the other sign."""
        return MarginCurve(NAME, self.radius, -self.high, -self.low, self.bend, self.alike)


def margin_curve(analysis: Analysis, number: int, seen: dict[Hashable, Array | None]) -> MarginCurve | None:
    """Return the curve of a loss of one margin, if it has one and says more than its largest slope and curvature do."""
    row = single_row(analysis, number)
    if row is None or analysis.losses[number].scalar.kink is not None or not analysis.losses[number].scalar.pieces:
        return None
    gram, leaves, column = analysis.gram, analysis.form.leaves[number], int(np.argmax(np.abs(row)))
    radius = float(np.sqrt(gram.squared_norms(row[None, :])[0]) + gram.slack(np.abs(row)[None, :])[0]) * SLACK
    factors = {leaf: analysis.rows[leaf][:, column] / row[column] for leaf in leaves}
    tracer = Tracer(analysis, number, factors, np.zeros(analysis.form.space.dim))
    (first, *others) = tracer.offsets
    if not others and len(tracer.offsets[first]) == 1:
        # Of one leaf the value itself is the margin, whatever a field of the record adds to it.
        tracer.offsets[first] = [Interval(0.0, 0.0)]
    if tracer.alike not in seen:
        try:
            seen[tracer.alike] = stretches(tracer)
        except DPConvexError:
            seen[tracer.alike] = None
    table = seen[tracer.alike]
    return None if table is None else MarginCurve(NAME, radius, *table, tracer.alike)


def stretches(tracer: Tracer) -> Array | None:
    """Return low, high and bend on stretches of margins; None if the steepest slope meets the largest curvature."""
    whole = tracer.scalar(-math.inf, math.inf)
    if whole is None:
        return None
    scale = np.array([max(map(abs, slope_range(whole))), bend_of(whole)])
    if not (np.isfinite(scale).all() and scale.min() > 0):
        return None
    heap: list[tuple[float, float, float, tuple[float, float, float]]] = []

    def push(start: float, end: float, before: float) -> None:
        scalar = tracer.scalar(start, end)
        if scalar is None:
            return
        low, high = slope_range(scalar)
        bend = bend_of(scalar)
        both = max(abs(low), abs(high)) / scale[0] + bend / scale[1]
        # What is steep and curved comes first, so that it is found out early; then what varies most.
        left = (high - low) / scale[0] + (before - bend) / scale[1]
        heapq.heappush(heap, (-FIRST - both if both >= STEEP_AND_CURVED else -left, start, end, (low, high, bend)))

    for start, end in zip(ENDS[:-1], ENDS[1:], strict=True):
        push(start, end, 2 * scale[1])
    while heap and -heap[0][0] > FINE and len(heap) < MOST:
        urgency, start, end, (low, high, bend) = heapq.heappop(heap)
        if urgency < -FIRST and high - low <= CLOSE * scale[0]:
            return None
        middle = 4 * start if end == math.inf else 4 * end if start == -math.inf else (start + end) / 2
        if not (start < middle < end and math.isfinite(middle)):
            return None
        push(start, middle, bend)
        push(middle, end, bend)
    return np.array([item[3] for item in sorted(heap, key=lambda item: item[1])]).T if heap else None


def bend_of(scalar: Scalar) -> float:
    """Bound the second derivative of a traced loss by its margin."""
    total = 0.0
    for piece in scalar.pieces:
        low = high = 0.0
        for term in piece.terms:
            size = float(np.linalg.norm(term.rows))
            ends = (-size, size) if term.ball else (float(term.rows.min()), float(term.rows.max()))
            low, high = low + ends[0], high + ends[1]
        total += piece.outer * max(abs(low), abs(high)) ** 2 + piece.spread * (high - low) ** 2 / 4
    return total * (SLACK + ROUNDING * len(scalar.pieces))
