"""Differences of gradients of losses of one margin, where K is bounded: both records see the same theta.

Let each record's loss be ``phi(<a, theta>)`` with ``||a|| <= R``, and let theta be at most B from a point c.  A gradient is
``s a`` with s the slope at the margin ``t = <a, theta - c>``: steep gradients belong to rows that look the same way as theta, so
those of two records cannot be both steep and opposite.  For a given length of theta - c all gradients of one loss lie in a body
of revolution around it, and the largest difference is the largest width that two such bodies have together (docs/theory.md,
one margin).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.interpreter import Step, Walker
from dpconvex.calculus.leaf_ranges import split_at
from dpconvex.core.abstract_values import Scalar
from dpconvex.core.expression import Expression
from dpconvex.core.intervals import Interval
from dpconvex.core.polynomial import Polynomial, significant
from dpconvex.errors import DPConvexError

if TYPE_CHECKING:
    from dpconvex.calculus.analysis import Analysis

Array = NDArray[np.float64]
Ends = tuple[float, float] | None

# Stretches of margins, on each of which slopes are bounded; and of angles.
STRETCHES, ANGLES, DIRECTIONS = 240, 1000, 180
# Lengths of theta are divided until the bound is this close to the best that is possible, or so often.
CLOSE, MOST_PARTS = 1e-3, 200
# Losses with different slopes that are compared.
MOST_KINDS = 8
# Rows that are multiples of one row agree with it to this fraction.
ALIKE = 1e-12
# Slopes this close to each other, relatively, are one.
STRAIGHT = 1e-12
SLACK, ROUNDING = 1 + 1e-11, 1e-14


@dataclass(frozen=True, eq=False)
class Slopes:
    """Slopes of one loss along its margin, by stretches of margins ``[edges[k], edges[k + 1]]``.

    Attributes
    ----------
    radius : float
        Bound R on the norm of the row a.
    reach : float
        Bound B on the distance of theta from the centre.
    edges : ndarray, shape (stretches + 1,)
    low, high : ndarray, shape (stretches,)
        Bounds of the slope, which do not fall along the margin: the loss is convex.
    """

    radius: float
    reach: float
    edges: Array
    low: Array
    high: Array

    def between(self, start: Array, end: Array) -> tuple[Array, Array]:
        last = len(self.low) - 1
        first = np.clip(np.searchsorted(self.edges, start, side="right") - 1, 0, last)
        second = np.clip(np.searchsorted(self.edges, end, side="left") - 1, 0, last)
        return self.low[first], self.high[second]

    def support(self, shortest: float, longest: float) -> Array:
        """Bound the gradients along `DIRECTIONS` + 1 directions, for theta of lengths in an interval, over R."""
        cosine, most, least = angles()
        ends = self.radius * SLACK * np.outer([shortest, longest], cosine)
        low, high = self.between(ends[:, 1:].min(axis=0), ends[:, :-1].max(axis=0))
        with np.errstate(invalid="ignore"):
            found = [slope * factor for slope in (low, high) for factor in (most, least)]
        return self.radius * np.max(found, axis=(0, 2))


@lru_cache(maxsize=1)
def angles() -> tuple[Array, Array, Array]:
    """Return cosines of angles of rows with theta, and for each stretch of angles those with every direction, bounded."""
    angle, direction = np.linspace(0.0, np.pi, ANGLES + 1), np.linspace(0.0, np.pi, DIRECTIONS + 1)[:, None]
    near, far = np.cos(angle - direction), np.cos(angle + direction)
    most, least = np.maximum(near[:, :-1], near[:, 1:]), np.minimum(far[:, :-1], far[:, 1:])
    # A row at an angle with theta makes all angles with a direction between the difference and the sum of the two.
    most = np.where((angle[:-1] <= direction) & (direction <= angle[1:]), 1.0, most + ROUNDING)
    least = np.where((angle[:-1] <= np.pi - direction) & (np.pi - direction <= angle[1:]), -1.0, least - ROUNDING)
    return np.cos(angle), most, least


def margin_width(first: Slopes, second: Slopes) -> float:
    """Bound the difference of the gradients of two losses at one theta.

    A difference is the largest sum of its two parts along some direction; between the directions of a grid that sum is at most
    the larger one at its neighbours over the cosine of half of their angle, because support functions are sublinear.
    """
    reach = min(first.reach, second.reach)

    def bound(shortest: float, longest: float) -> float:
        there, back = first.support(shortest, longest), second.support(shortest, longest)[::-1]
        return float((there + back).max()) / float(np.cos(np.pi / DIRECTIONS / 2))

    goal = max(bound(length, length) for length in np.linspace(0.0, reach, 5)) * (1 + CLOSE)
    waiting, best, parts = [(0.0, reach)], 0.0, 0
    while waiting:
        shortest, longest = waiting.pop()
        found, parts = bound(shortest, longest), parts + 1
        if found <= max(goal, best) or parts > MOST_PARTS:
            best = max(best, found)
        else:
            middle = (shortest + longest) / 2
            waiting += [(shortest, middle), (middle, longest)]
    return best * SLACK


def largest_margin_difference(analysis: Analysis) -> float:
    """Bound the difference of any two records' gradients by what their margins say; infinite where that is nothing."""
    form = analysis.form
    visible = np.zeros(form.space.dim, dtype=bool)
    for leaf in (leaf for group in form.leaves for leaf in group):
        visible[form.polynomial(leaf).touched] = True
    touched = np.flatnonzero(visible)
    if not form.feasible.limited[touched].all():
        return float(np.inf)
    rows = [single_row(analysis, number) for number in range(len(form.leaves))]
    seen: dict[Hashable, list[Ends]] = {}
    found = float(np.inf)
    # Points that move with K, so that the bound does not depend on where K lies.
    for center in form.feasible.middles or (np.zeros(form.space.dim),):
        reach = form.feasible.reach_on(touched, center) if center.any() else form.feasible.norm_on(touched)
        kinds: list[Slopes] = []
        for number, row in enumerate(rows):
            slopes = None if row is None else slopes_of(analysis, number, row, center, reach, seen)
            if slopes is None:
                return float(np.inf)
            if len(kinds) <= MOST_KINDS:
                merge(kinds, slopes)
        if len(kinds) <= MOST_KINDS:
            found = min(found, max(margin_width(one, two) for one, two in combinations_with_replacement(kinds, 2)))
    return found


def merge(kinds: list[Slopes], slopes: Slopes) -> None:
    """Widen the first kind that agrees with slopes but for rounding, so that it bounds these too, or add one more kind."""
    for place, kind in enumerate(kinds):
        if np.array_equal(kind.edges, slopes.edges):
            near = STRAIGHT * np.maximum(np.abs(kind.low), np.abs(kind.high))
            if (np.abs(kind.low - slopes.low) <= near).all() and (np.abs(kind.high - slopes.high) <= near).all():
                low, high = np.minimum(kind.low, slopes.low), np.maximum(kind.high, slopes.high)
                longest, reach = max(kind.radius, slopes.radius), max(kind.reach, slopes.reach)
                kinds[place] = Slopes(longest, reach, kind.edges, low, high)
                return
    kinds.append(slopes)


def single_row(analysis: Analysis, number: int) -> Array | None:
    """Return the row, in generator coordinates, that all leaves of a loss are multiples of."""
    leaves = analysis.form.leaves[number]
    table = np.concatenate([analysis.rows[leaf] for leaf in leaves]) if leaves else np.zeros((0, 0))
    if not table.size:
        return None  # a label whose records teach nothing
    place = np.argmax(np.abs(table).max(axis=1) > 0)
    row, column = table[place], np.argmax(np.abs(table[place]))
    alike = row[column] != 0 and np.allclose(table, np.outer(table[:, column] / row[column], row), rtol=ALIKE, atol=0.0)
    return row if alike else None


def slopes_of(
    analysis: Analysis, number: int, row: Array, center: Array, reach: float, seen: dict[Hashable, list[Ends]]
) -> Slopes | None:
    """Bound the slopes of a loss along its one margin; None if there are no bounds.  Losses alike are traced once."""
    gram, leaves = analysis.gram, analysis.form.leaves[number]
    radius = float(np.sqrt(gram.squared_norms(row[None, :])[0]) + gram.slack(np.abs(row)[None, :])[0])
    # Rows that are as long but for rounding get the same stretches, which are longer by far less than `SLACK`.
    radius = float(significant(np.array(radius * (1 + 2.0**-39))))
    if not 0 < reach * radius < np.inf:
        return None
    column = np.argmax(np.abs(row))
    factors = {leaf: analysis.rows[leaf][:, column] / row[column] for leaf in leaves}
    tracer = Tracer(analysis, number, factors, center)
    edges = np.linspace(-1.0, 1.0, STRETCHES + 1) * reach * radius * SLACK
    key = tracer.alike, edges.tobytes()
    if key not in seen:
        try:
            seen[key] = between_all(tracer, edges.tolist())
        except DPConvexError:
            seen[key] = []
    ends = seen[key]
    # Margins that do not occur are at the ends.
    known = [k for k, pair in enumerate(ends) if pair is not None]
    if not known:
        return None
    low, high = np.array([pair for pair in ends if pair is not None]).T
    # The loss is convex: its slope does not fall.
    low, high = np.maximum.accumulate(low), np.minimum.accumulate(high[::-1])[::-1]
    return Slopes(radius, reach, edges[known[0] : known[-1] + 2], low, high)


def between_all(tracer: Tracer, edges: list[float]) -> list[Ends]:
    """Bound the slopes on all stretches; where both ends have one slope, so has all between, as slopes do not fall."""
    found: list[Ends] = [None] * (len(edges) - 1)
    waiting = [(0, len(found) - 1)]
    for k in {0, len(found) - 1}:
        found[k] = tracer.between(edges[k], edges[k + 1])
    while waiting:
        first, last = waiting.pop()
        if last - first < 2:
            continue
        one, two = found[first], found[last]
        if one is not None and two is not None and two[1] - one[0] <= STRAIGHT * max(abs(two[1]), abs(one[0])):
            found[first + 1 : last] = [(one[0], two[1])] * (last - first - 1)
            continue
        middle = (first + last) // 2
        found[middle] = tracer.between(edges[middle], edges[middle + 1])
        waiting += [(first, middle), (middle, last)]
    return found


class Tracer:
    """Applies the rules to a loss on stretches of its margin ``<a, theta - center>``."""

    def __init__(self, analysis: Analysis, number: int, factors: dict[Expression, Array], center: Array) -> None:
        self.analysis, self.loss = analysis, analysis.form.losses[number]
        self.rows = {leaf: factor[:, None] for leaf, factor in factors.items()}
        self.offsets: dict[int, list[Interval]] = {}
        self.constants: dict[Expression, tuple[list[Scalar], Step]] = {}
        known: dict[Expression, Hashable] = {}
        for leaf, factor in factors.items():
            polynomial = analysis.form.polynomial(leaf)
            low, high = split_at(center, polynomial, analysis.form.bases)
            self.offsets[id(polynomial)] = [Interval(*pair) for pair in zip(low.tolist(), high.tolist(), strict=True)]
            ranges = tuple(analysis.ranges.values[id(polynomial)])
            known[leaf] = leaf.shape, factor.tobytes(), low.tobytes(), high.tobytes(), ranges
        self.alike = outline(self.loss, known)

    def between(self, start: float, end: float) -> tuple[float, float] | None:
        """Bound the derivative by the margin from one margin to another; None if none of them occurs."""
        stretch, empty = Interval(start, end), False

        def reach(polynomial: Polynomial, rows: Array) -> list[Interval]:
            nonlocal empty
            found = []
            known = self.analysis.ranges.values[id(polynomial)], self.offsets[id(polynomial)]
            for factor, whole, offset in zip(rows[:, 0].tolist(), *known, strict=True):
                moved = (stretch * Interval(factor, factor) + offset).rounded(4.0)
                low, high = max(moved.low, whole.low), min(moved.high, whole.high)
                empty = empty or low > high
                found.append(Interval(low, high) if low <= high else whole)
            return found

        (scalar,), _ = Walker(self.analysis.form.expander, self.rows, reach, constants=self.constants).walk(self.loss)
        if empty:
            return None
        low = high = room = 0.0
        for term in scalar.terms:
            size = float(np.linalg.norm(term.rows))
            ends = (-size, size) if term.ball else (float(term.rows.min()), float(term.rows.max()))
            low, high, room = low + ends[0], high + ends[1], room + ROUNDING * max(map(abs, ends))
        return low - room, high + room


def outline(node: Expression, known: dict[Expression, Hashable]) -> Hashable:
    """Return what the rules see of an expression, whose leaves are known: equal for losses that are traced alike."""
    if node not in known:
        parts = tuple(outline(argument, known) for argument in node.args)
        known[node] = (node.atom, node.options, node.shape, parts) if node.variables else node
    return known[node]
