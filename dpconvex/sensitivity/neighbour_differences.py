"""Differences between the gradients of two records: lengths of vertices, and bounds on lengths and dimensions."""

import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dpconvex.model.privacy import Person
from dpconvex.numerics import SUM_SLACK
from dpconvex.sensitivity.analysis import Analysis, LossBounds
from dpconvex.sensitivity.curvature import MeanJoint
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import once

# Lengths of vertices are rounded up to this relative grid, so that equal ones are counted together.
GRID = 1e-7
MOST_BEHIND = 64  # Largest number of vertices of a second record's gradients to enumerate


@dataclass(frozen=True)
class Slopes:
    """The range of slopes of a record with gradients along one row, times the length of the row.

    For a logistic loss with unbounded margins, the curvature at the slope ``s * high`` is ``logistic * s * (1 - s)``.
    """

    low: float
    high: float
    logistic: float = 0.0


@dataclass(frozen=True, eq=False)
class Difference:
    """Bounds on ``g_z - g_z'`` for two records in this order, or on ``g_z`` if one record is added, and on the curvature of z."""

    dimension: int  # Bounds the dimension of the span of the differences of two given records
    length: float
    # Nonzero lengths and their counts; None if too many, or no polytope
    vertices: tuple[Array, Array] | None
    slopes: Slopes | None
    behind: Array | None  # With slopes: lengths of the vertices of the second record's gradients, or [0]
    firsts: tuple[int, ...]  # Numbers of the possible losses of the first record

    @property
    def signature(self) -> Hashable:
        """Return a hashable key that is equal for differences with bounds equal up to rounding."""
        vertices = None if self.vertices is None else tuple(part.tobytes() for part in self.vertices)
        behind = None if self.behind is None else self.behind.tobytes()
        return self.dimension, f"{self.length:.9e}", vertices, self.slopes, behind


@once
def all_differences(analysis: Analysis, adjacency: str) -> tuple[Difference, ...]:
    """Return the distinct differences between neighbours; for replace-one, in both orders."""
    # A record that disappears has the same lengths as one that appears, and its curvature helps.
    items = map(partial(alone, analysis), range(len(analysis.losses))) if adjacency == "add-remove" else pairs(analysis)
    found: dict[Hashable, Difference] = {}
    for item in items:
        old = found.setdefault(item.signature, item)
        firsts = tuple(sorted({*old.firsts, *item.firsts}))
        found[item.signature] = replace(old, length=max(old.length, item.length), firsts=firsts)
    # The result does not depend on the order of the labels.
    return tuple(found[key] for key in sorted(found, key=repr))


@once
def person_differences(analysis: Analysis, adjacency: str, person: Person) -> tuple[Difference, ...]:
    """Return the differences between neighbours if several rows of one person change (docs/theory.md, section 7)."""
    firsts = tuple(range(len(analysis.losses)))
    items = [*map(partial(alone, analysis), firsts), *(pairs(analysis) if adjacency == "replace-one" else ())]
    dimension = min(person.rows * max(item.dimension for item in items), analysis.form.noise_dimension)
    length, weight = person.weight * max(item.length for item in items), person.weight
    # Rows of total weight one are matched as in optimal transport: fewer than twice as many pairs as rows.
    terms = 2 * person.rows - 1 if weight < person.rows and adjacency == "replace-one" else person.rows
    known = (item.vertices for item in items)
    tables = [None if pair is None else (weight * pair[0], terms * pair[1]) for pair in known]
    if analysis.form.noise_dimension == 1:  # an interval, with two ends
        tables = [(np.array([length]), np.array([2.0]))]
    return tuple(Difference(dimension, length, table, None, None, firsts) for table in tables)


def alone(analysis: Analysis, number: int) -> Difference:
    """Return the difference if one record appears; for slopes along one row, the vertices are the steepest of each sign."""
    loss, slopes = analysis.losses[number], slopes_of(analysis, number)
    squares = loss.gradients.squares if slopes is None else np.array([slopes.high, min(slopes.low, 0.0)]) ** 2
    vertices = None if squares is None else count_lengths(squares)
    return Difference(loss.dimension, loss.gradients.bound * (1 + SUM_SLACK), vertices, slopes, np.zeros(1), (number,))


def pairs(analysis: Analysis) -> Iterator[Difference]:
    """Yield the differences if one record replaces another, for all pairs of losses; both orders have the same lengths."""
    for one, other in itertools.combinations_with_replacement(range(len(analysis.losses)), 2):
        first, second = analysis.losses[one], analysis.losses[other]
        dimension = min(first.dimension + second.dimension, analysis.form.noise_dimension)
        squares = first.gradients.squared_distances(second.gradients)
        vertices = None if squares is None else count_lengths(squares.ravel())
        length = first.gradients.difference_bound(second.gradients) * (1 + SUM_SLACK)
        for front, back in sorted({(one, other), (other, one)}):
            behind = lengths_of(analysis.losses[back])
            slopes = None if behind is None or vertices is None else slopes_of(analysis, front)
            yield Difference(dimension, length, vertices, slopes, behind if slopes else None, (front,))


@once
def slopes_of(analysis: Analysis, number: int) -> Slopes | None:
    """Return the slopes of a loss of one margin, or None; sign and digits do not depend on the label or the spelling."""
    loss, low, high = analysis.losses[number], 0.0, 0.0
    if loss.dimension != 1:
        return None
    mean = loss.scalar.mean
    if isinstance(loss.joint, MeanJoint) and mean is not None and mean.slopes is not None and mean.slopes.high == 1.0:
        size = loss.joint.longest * (1 + SUM_SLACK)
        return Slopes(0.0, mean.lead * size, mean.lead * size * size) if mean.lead * size > 0 else None
    rows = np.concatenate([analysis.rows[leaf] for leaf in analysis.form.leaves[number]])
    row = rows[rows.any(axis=1)][:1]
    column = int(np.argmax(np.abs(row)))
    for term in loss.scalar.terms:
        factors = term.rows[:, column] / row[0, column]
        along = factors[:, None] * row
        if not (np.abs(term.rows - along) <= 1e-14 * np.abs(along)).all():
            return None  # different functions of the record times one vector
        size = float(np.linalg.norm(factors))
        ends = (-size, size) if term.ball else (float(factors.min()), float(factors.max()))
        low, high = low + ends[0], high + ends[1]
    low, high = (-high, -low) if high < -low else (low, high)
    radius = float(np.sqrt(analysis.gram.squared_norms(row)[0]) + analysis.gram.slack(np.abs(row))[0])
    return Slopes(float(f"{radius * low:.12g}"), float(f"{radius * high:.12g}"))


def lengths_of(loss: LossBounds) -> Array | None:
    """Return the lengths of the vertices of one record's gradients, rounded up; None if there are too many."""
    squares = loss.gradients.squares
    if squares is None or len(squares) > MOST_BEHIND:
        return None
    lengths, counts = count_lengths(squares)
    return np.concatenate([np.zeros(int((squares <= 0).sum())), np.repeat(lengths, counts.astype(int))])


def count_lengths(squares: Array) -> tuple[Array, Array]:
    """Return the distinct nonzero lengths, rounded up, and their counts."""
    steps, counts = np.unique(np.ceil(np.log(np.sqrt(squares[~(squares <= 0)])) / GRID - 1e-3), return_counts=True)
    # Lengths that agree up to rounding fall on one step: the slack covers lengths just above it.
    return np.exp(steps * GRID) * (1 + 2e-3 * GRID) * (1 + SUM_SLACK), counts.astype(float)
