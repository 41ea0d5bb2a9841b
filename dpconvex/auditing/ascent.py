"""Candidates and their ascent.

Many candidates are drawn, most of them with parameters that give the loss's affine leaves chosen values (near zero, where
hinges curve; far out, where slopes saturate), and the best of them climb by projected gradient ascent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.auditing.feasible_region import Region, project_field, unit
from dpconvex.auditing.record_programs import QUANTITIES, Kind, programs_of
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.double_precision import double_precision

Array = NDArray[np.float64]

# Batches of candidates drawn for each one that climbs.
POOL = 48
# Rounds of projection on K and on the wanted values of the leaves.
ROUNDS = 12
# Least squares: eigenvalues of the Gram matrix below this fraction of the largest are rounding.
TOLERANCE = 1e-13


@dataclass(frozen=True, eq=False)
class Points:
    """A batch of candidates, all arrays with the batch as first axis.

    Attributes
    ----------
    theta : ndarray, shape (B, dim)
    record, neighbour : dict of str to ndarray, shape (B, *shape)
        Continuous fields of the two records.
    group, other : ndarray of int, shape (B,)
        Their discrete fields: index among the combinations of their `Kind`.
    """

    theta: Array
    record: dict[str, Array]
    neighbour: dict[str, Array]
    group: NDArray[np.int64]
    other: NDArray[np.int64]

    def take(self, index: Any) -> Points:
        """Return some of the candidates."""
        return Points(
            self.theta[index],
            {name: values[index] for name, values in self.record.items()},
            {name: values[index] for name, values in self.neighbour.items()},
            self.group[index],
            self.other[index],
        )

    def where(self, keep: NDArray[np.bool_], other: Points) -> Points:
        """Take each candidate from here where `keep` is set, else from `other`."""

        def mixed(a: Array, b: Array) -> Array:
            return np.where(keep.reshape(-1, *[1] * (a.ndim - 1)), a, b)

        return Points(
            mixed(self.theta, other.theta),
            {name: mixed(values, other.record[name]) for name, values in self.record.items()},
            {name: mixed(values, other.neighbour[name]) for name, values in self.neighbour.items()},
            np.where(keep, self.group, other.group),
            np.where(keep, self.other, other.other),
        )


def joined(batches: Sequence[Points]) -> Points:
    """Put batches of candidates into one."""
    return Points(
        np.concatenate([b.theta for b in batches]),
        {name: np.concatenate([b.record[name] for b in batches]) for name in batches[0].record},
        {name: np.concatenate([b.neighbour[name] for b in batches]) for name in batches[0].neighbour},
        np.concatenate([b.group for b in batches]),
        np.concatenate([b.other for b in batches]),
    )


def worth(parts: Array, factors: Array) -> Array:
    """Return weighted sums of measured quantities, shape (B,); minus infinity where one that counts is undefined."""
    counts = factors != 0
    total = parts[:, counts] @ factors[counts]
    return np.where(np.isnan(total), -np.inf, total)


class Adversary:
    """Searches for the extremes of one record's gradient and curvature."""

    def __init__(self, form: LossForm, moduli: Array, starts: int, steps: int, rng: np.random.Generator) -> None:
        self.form, self.moduli = form, moduli
        self.starts, self.steps, self.rng = starts, steps, rng
        self.programs = programs_of(form)
        self.kinds = self.programs.kinds
        self.region = Region(form, rng)
        self.domains = form.template.record.continuous

    @cached_property
    def pairs(self) -> list[tuple[Kind, Kind]]:
        """Kinds of the record that changes and of what it becomes."""
        return [(a, b) for a in self.kinds for b in self.kinds]

    def rows(self, kind: Kind, group: NDArray[np.int64], record: Mapping[str, Array]) -> tuple[Array, Array]:
        """Return ``A_z`` and ``c_z`` of a batch of records, shapes (B, size, dim) and (B, size)."""
        with double_precision():
            matrix, offset = self.programs.rows(kind)(np.zeros(self.form.space.dim), group, dict(record))
            return np.asarray(matrix), np.asarray(offset)

    def draw(self, first: Kind, second: Kind) -> Points:
        """Draw a batch of candidates."""
        rng, count = self.rng, self.starts
        record, neighbour = {}, {}
        common, apart = rng.integers(0, 4, size=count), rng.random(count) < 0.3
        for name, domain in self.domains.items():
            # The neighbour's field is the same, nearly opposite, near, or anything; mostly all fields alike.
            here, there = domain.sample(count, rng), domain.sample(count, rng)
            noise = 10.0 ** rng.uniform(-3, 0, size=count).reshape(-1, *[1] * len(domain.shape)) * there
            opposite = project_field(domain, sum(domain.bounds) - here + noise)
            relation = np.where(apart, rng.integers(0, 4, size=count), common)
            record[name] = here
            choices = [here, opposite, project_field(domain, here + noise), there]
            neighbour[name] = np.stack(choices)[relation, np.arange(count)]
        group, other = (rng.integers(0, len(kind.groups), size=count) for kind in (first, second))
        points = Points(np.zeros((count, self.form.space.dim)), record, neighbour, group, other)
        return replace(points, theta=self._parameters(first, second, points))

    def _parameters(self, first: Kind, second: Kind, points: Points) -> Array:
        """Choose parameters: of any size, or such that the leaves of both records take chosen values."""
        rng, count, dim = self.rng, self.starts, self.form.space.dim
        matrix, offset = self.rows(first, points.group, points.record)
        other, shift = self.rows(second, points.other, points.neighbour)
        matrix, offset = np.concatenate([matrix, other], axis=1), np.concatenate([offset, shift], axis=1)
        wanted = np.concatenate([self._values(kind) for kind in (first, second)], axis=1) - offset
        values, vectors = np.linalg.eigh(matrix @ np.swapaxes(matrix, 1, 2))
        inverse = np.where(values > TOLERANCE * values[:, -1:], 1.0, 0.0) / np.maximum(values, 1e-300)

        def solve(gap: Array) -> Array:
            coordinates = np.einsum("bji,bj->bi", vectors, gap) * inverse
            return np.einsum("bkd,bk->bd", matrix, np.einsum("bij,bj->bi", vectors, coordinates))

        any_size = 10.0 ** rng.uniform(-1, 3, size=(count, 1)) * rng.normal(size=(count, dim)) / np.sqrt(dim)
        start = np.where(rng.random((count, 1)) < 0.25, any_size * rng.integers(0, 2, size=(count, 1)), 0.0)
        free = rng.random(count) < 0.15
        theta = np.where(free[:, None], any_size, start + solve(wanted - np.einsum("bkd,bd->bk", matrix, start)))
        theta = self.region.enter(theta, rng)
        if self.region.feasible.is_space or self.region.points is not None:
            return theta
        for _ in range(ROUNDS):
            moved = theta + solve(wanted - np.einsum("bkd,bd->bk", matrix, theta))
            theta = np.where(free[:, None], theta, self.region.project(moved))
        return theta

    def _values(self, kind: Kind) -> Array:
        """Draw values for the entries of all leaves, shape (starts, size): equal or not, near zero or far out."""
        rng, count, size = self.rng, self.starts, kind.size
        scale = 10.0 ** rng.uniform(-2, 1.5, size=(count, 2))
        pair = scale * rng.choice([-1.0, 1.0], size=(count, 2))
        equal = pair[:, :1] + np.zeros((count, size))
        # One of two values for each leaf: one's own score, say, and those of all competitors.
        which = rng.integers(0, 2, size=(count, kind.owner.max() + 1))[:, kind.owner]
        either = np.take_along_axis(pair, which, axis=1)
        spread = scale[:, :1] * rng.normal(size=(count, size))
        far = 10.0 ** rng.uniform(0.5, 3, size=(count, 1)) * rng.choice([-1.0, 0.0, 1.0], size=(count, size))
        styles = np.stack([equal, either, spread, far, equal + 0.1 * spread, equal + far])
        return np.asarray(styles[rng.integers(0, len(styles), size=count), np.arange(count)])

    def search(self, weights: Sequence[Mapping[str, float]]) -> list[tuple[float, dict[str, Any]]]:
        """Maximise weighted sums of `QUANTITIES`."""
        best: list[tuple[float, dict[str, Any]]] = [(-np.inf, {}) for _ in weights]
        goals = [np.array([one.get(name, 0.0) for name in QUANTITIES]) for one in weights]
        for first, second in self.pairs:
            # Two records matter to a difference only, and their order only where curvature comes on top of it.
            curved = [k for k, goal in enumerate(goals) if goal[2:].any() and (first is second or goal[1])]
            wanted = [k for k, goal in enumerate(goals) if k in curved or first is second or goal[1]]
            if not curved and self.kinds.index(first) > self.kinds.index(second):
                continue
            pool = [self.draw(first, second) for _ in range(POOL)]
            nothing = np.zeros(len(QUANTITIES))
            parts = np.concatenate([self.evaluate(first, second, p, nothing, bool(curved))[0] for p in pool])
            candidates = joined(pool)
            for k in wanted:
                factors = goals[k]
                chosen = self._promising(parts, factors)
                found, measured = self.climb(first, second, candidates.take(chosen), factors, bool(curved))
                values = worth(measured, factors)
                top = int(np.argmax(values))
                if values[top] > best[k][0]:
                    best[k] = (float(values[top]), self._place(first, second, found.take([top])))
        return best

    def _promising(self, parts: Array, factors: Array) -> NDArray[np.int64]:
        """Return the candidates to start from: the best in the sum, and in each of its terms.

        Where the sum is of unlike terms, its highest hill may rise from a place that is only high in the smaller one.
        """
        goals = [factors, *(np.diag(factors)[factors > 0] if (factors > 0).sum() > 1 else [])]
        ranks = [np.argsort(-worth(parts, goal), kind="stable") for goal in goals]
        mixed = np.stack(ranks, axis=1).ravel()
        _, first = np.unique(mixed, return_index=True)
        return np.asarray(mixed[np.sort(first)][: self.starts])

    def climb(self, first: Kind, second: Kind, points: Points, factors: Array, curved: bool) -> tuple[Points, Array]:
        """Projected gradient ascent: in turn everything, the records, the parameters; steps that do not rise are halved."""
        parts, slopes = self.evaluate(first, second, points, factors, curved)
        value = worth(parts, factors)
        step = np.full((3, len(value)), 0.3)
        for t in range(self.steps):
            turn = t % 3
            trial = self._moved(points, slopes, step[turn], turn)
            there, slopes_there = self.evaluate(first, second, trial, factors, curved)
            reached = worth(there, factors)
            better = reached > value
            points, slopes = trial.where(better, points), slopes_there.where(better, slopes)
            parts, value = np.where(better[:, None], there, parts), np.where(better, reached, value)
            step[turn] = np.where(better, 1.6 * step[turn], 0.4 * step[turn])
        return points, parts

    def _moved(self, points: Points, slopes: Points, step: Array, turn: int) -> Points:
        def fields(values: dict[str, Array], along: dict[str, Array]) -> dict[str, Array]:
            moved = {}
            for name, domain in self.domains.items():
                flat = along[name].reshape(len(step), -1)
                change = (step * domain.norm_bound)[:, None] * unit(flat)
                moved[name] = project_field(domain, values[name] + change.reshape(values[name].shape))
            return moved

        moved = points
        if turn != 2:
            moved = replace(
                moved,
                record=fields(points.record, slopes.record),
                neighbour=fields(points.neighbour, slopes.neighbour),
            )
        if turn != 1:
            moved = replace(moved, theta=self.region.climb(points.theta, slopes.theta, step))
        return moved

    def evaluate(self, first: Kind, second: Kind, points: Points, factors: Array, curved: bool) -> tuple[Array, Points]:
        """Measure all quantities, shape (B, 5), and the gradients of their weighted sum.

        Without `curved`, those of the Hessian are left zero.
        """
        arguments = (points.theta, points.record, points.neighbour, points.group, points.other)
        with double_precision():
            measure = self.programs.measure(first, second, curved)
            (_, parts), (theta, record, neighbour) = measure(*arguments, factors, self.moduli)
        fields = [
            {name: np.nan_to_num(np.asarray(values)) for name, values in slopes.items()}
            for slopes in (record, neighbour)
        ]
        slopes = Points(np.nan_to_num(np.asarray(theta)), fields[0], fields[1], points.group, points.other)
        return np.asarray(parts), slopes

    def _place(self, first: Kind, second: Kind, point: Points) -> dict[str, Any]:
        combinations = self.form.template.record.combinations

        def named(kind: Kind, group: NDArray[np.int64], values: dict[str, Array]) -> dict[str, Any]:
            return {**combinations[int(kind.groups[group[0]])], **{name: value[0] for name, value in values.items()}}

        return {
            "record": named(first, point.group, point.record),
            "neighbour": named(second, point.other, point.neighbour),
            "parameters": self.form.space.unpack(point.theta[0]),
        }
