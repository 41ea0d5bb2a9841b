"""The search for neighbours and parameters at which gradients, curvature, or what they leak together, are largest.

Many candidates are drawn, most of them with parameters that give the affine leaves of both records chosen values (near zero,
where hinges curve; far out, where slopes saturate).  The best climb by random steps in the records and in those values: all that
is measured depends on the parameters through them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.auditing.records import BATCH, Losses, Records, losses_of
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.record_domains import Ball, Box
from dpconvex.errors import NotConverged

Array = NDArray[np.float64]
Pair = tuple[Losses | None, Losses | None]

# Batches of candidates drawn for each pair of kinds, and projections on K and on the wanted values of the leaves.
POOL, ROUNDS, FEWER = 16, 12, 3
# Least squares: eigenvalues of the Gram matrix below this fraction of the largest are rounding.
TOLERANCE = 1e-13
# Deviations of Gaussian noise beyond the least that makes the loss of privacy exceed epsilon.
BEYOND = np.array([0.05, 0.2, 0.5, 1.0])
# Directions in which a feasible set without a projection is explored.
EXPLORED = 24

# What needs no Hessian.
FLAT = ("gradient", "difference", "distance")


@dataclass(frozen=True)
class Goal:
    """What is maximised: a weighted sum of what `Search.measure` returns, or what Gaussian noise leaks."""

    weights: Mapping[str, float] = field(default_factory=dict)
    # Its standard deviation and epsilon: then the logarithm of the density of noise whose loss exceeds epsilon counts
    gaussian: tuple[float, float] | None = None

    @property
    def curved(self) -> bool:
        """Whether it needs Hessians."""
        return self.gaussian is not None or any(name not in FLAT for name in self.weights)

    def worth(self, parts: Mapping[str, Array]) -> Array:
        """Return what candidates are worth, shape (B,); minus infinity where that is undefined."""
        if self.gaussian is None:
            value = sum(weight * parts[name] for name, weight in self.weights.items())
        else:
            value = leak(parts["difference"] / self.gaussian[0], parts["jump"], self.gaussian[1])[0]
        return np.where(np.isnan(value), -np.inf, value)


def leak(length: Array, jump: Array, epsilon: float) -> tuple[Array, Array]:
    """Return the logarithm of what one answer adds to delta, and the noise along the difference that leads there."""
    length = np.maximum(length, 1e-300)[..., None]
    least = np.clip((epsilon - jump[..., None]) / length - length / 2, 0.0, 1e9)
    noise = np.minimum(least + BEYOND, 40.0)
    loss = length * noise + length**2 / 2 + jump[..., None]
    with np.errstate(divide="ignore", over="ignore"):
        worth = -(noise**2) / 2 + np.log(np.maximum(-np.expm1(epsilon - loss), 0.0))
    best = np.argmax(worth, axis=-1)[..., None]
    return np.take_along_axis(worth, best, -1)[..., 0], np.take_along_axis(noise, best, -1)[..., 0]


@dataclass(frozen=True, eq=False)
class Candidates:
    """A batch of neighbours and parameters."""

    first: Records  # What the one data set has and the other has instead
    second: Records
    theta: Array  # shape (B, dim)
    values: Array  # shape (B, k): of the affine leaves of both records there
    curvature: Array  # shape (B,): of all other records

    def __len__(self) -> int:
        return len(self.theta)

    def take(self, index: Any) -> Candidates:
        """Return some of them."""
        arrays = (self.theta[index], self.values[index], self.curvature[index])
        return Candidates(self.first.take(index), self.second.take(index), *arrays)


def joined(batches: Sequence[Candidates]) -> Candidates:
    """Put batches of one pair of kinds into one."""

    def records(side: str) -> Records:
        parts: list[Records] = [getattr(batch, side) for batch in batches]
        fields = {name: np.concatenate([part.fields[name] for part in parts]) for name in parts[0].fields}
        return Records(parts[0].losses, np.concatenate([part.group for part in parts]), fields)

    arrays = [np.concatenate([getattr(batch, name) for batch in batches]) for name in ("theta", "values", "curvature")]
    return Candidates(records("first"), records("second"), *arrays)


class Search:
    """Draws neighbours and parameters, and improves them.

    `moduli`, shape (dim,), is the curvature of the public part of the objective; `rest` says to try other records' curvature too.
    """

    def __init__(self, form: LossForm, moduli: Array, rng: np.random.Generator, rest: bool = False) -> None:
        self.form, self.moduli, self.rng, self.rest = form, moduli, rng, rest
        self.losses = losses_of(form)
        self.region = Region(form, rng)
        self.domains = form.template.record.continuous

    def pairs(self, adjacency: str) -> list[Pair]:
        """Return whether there is a first record and a second, in both orders."""
        whole = self.losses
        return [(whole, None), (None, whole)] if adjacency == "add-remove" else [(whole, whole)]

    def found(self, goals: Sequence[Goal], pair: Pair, pool: int, steps: int, starts: int = BATCH) -> list[Candidates]:
        """Return the best candidates for each goal, best first; `starts` is rounded up to whole batches."""
        count = -(-starts // BATCH) * BATCH
        curved = any(goal.curved for goal in goals)
        drawn = joined([self.draw(pair) for _ in range(pool)])
        parts = self.measure(drawn, curved)
        return [self.climb(goal, drawn.take(promising(goal, parts)[:count]), steps) for goal in goals]

    def climb(self, goal: Goal, now: Candidates, steps: int) -> Candidates:
        """Take random steps that rise; the better quarter is cloned once in a while, so that effort goes where it pays."""
        count = len(now)
        value = goal.worth(self.measure(now, goal.curved))
        for k in range(steps):
            there = self.step(now, 10.0 ** self.rng.uniform(-3, 0))
            reached = goal.worth(self.measure(there, goal.curved))
            keep = np.where(reached > value, np.arange(count), np.arange(count) + count)
            if k % 8 == 7:
                order = np.argsort(-np.maximum(reached, value), kind="stable")
                keep = keep[np.resize(order[: max(count // 4, 1)], count)]
            now, value = joined([there, now]).take(keep), np.append(reached, value)[keep]
        return now.take(np.argsort(-value, kind="stable"))

    def draw(self, pair: Pair) -> Candidates:
        """Draw a batch: the neighbour's field is the same, opposite, near, anything, or far; mostly all fields alike."""
        rng, count, here, there = self.rng, BATCH, {}, {}
        common, apart, edge = rng.integers(0, 5, size=count), rng.random(count) < 0.3, rng.random(count) < 0.5
        for name, domain in self.domains.items():
            one, other = domain.sample(count, rng), domain.sample(count, rng)
            one = np.where(shaped(edge, one), domain.project(10 * one), one)
            opposite = domain.project(sum(domain.bounds) - one)
            near = domain.project(one + shaped(10.0 ** rng.uniform(-3, 0, size=count), one) * (other - one))
            relation = np.where(apart, rng.integers(0, 5, size=count), common)
            choices = [one, opposite, near, other, domain.project(10 * other)]
            here[name], there[name] = one, np.stack(choices)[relation, np.arange(count)]
        sides = [
            Records(losses, rng.integers(0, self.losses.count, size=count), fields)
            for losses, fields in zip(pair, (here, there), strict=True)
        ]
        if rng.random() < 0.5:  # of one label
            sides[1] = replace(sides[1], group=sides[0].group)
        values = np.concatenate([self._values(side) for side in sides], axis=1)
        curvature = np.zeros(count)
        if self.rest:
            some = rng.random(count) < 0.2
            curvature = np.where(some, self.moduli.min() * 10.0 ** rng.uniform(-3, 2, size=count), 0.0)
        start = 10.0 ** rng.uniform(-1, 2, size=(count, 1)) * rng.normal(size=(count, len(self.moduli)))
        start = self.region.enter(start, rng)
        free = rng.random(count) < 0.2
        if self.region.points is None:
            start[~free] = 0.0
        theta, values = self._parameters(sides[0], sides[1], values, start, ROUNDS, free)
        return Candidates(sides[0], sides[1], theta, values, curvature)

    def _values(self, records: Records) -> Array:
        """Draw values for the entries of all leaves, shape (B, size): equal or not, near zero or far out."""
        rng, count, size = self.rng, BATCH, self.losses.width
        if records.losses is None:
            return np.zeros((count, 0))
        owner = self.losses.owner[records.group]
        scale = 10.0 ** rng.uniform(-2, 1.5, size=(count, 2))
        pair = scale * rng.choice([-1.0, 1.0], size=(count, 2))
        equal = pair[:, :1] + np.zeros((count, size))
        # One of two values for each leaf: one's own score, say, and those of all competitors.
        which = np.take_along_axis(rng.integers(0, 2, size=(count, owner.max() + 1)), owner, axis=1)
        either = np.take_along_axis(pair, which, axis=1)
        spread = scale[:, :1] * rng.normal(size=(count, size))
        far = 10.0 ** rng.uniform(0.5, 3, size=(count, 1)) * rng.choice([-1.0, 0.0, 1.0], size=(count, size))
        styles = np.stack([equal, either, spread, far, equal + 0.1 * spread, equal + far])
        return np.asarray(styles[rng.integers(0, len(styles), size=count), np.arange(count)])

    def _parameters(
        self, first: Records, second: Records, values: Array, theta: Array, rounds: int, free: NDArray[np.bool_]
    ) -> tuple[Array, Array]:
        """Return parameters near `theta` at which all leaves take chosen values, as far as K allows, and those values."""
        (matrix, offset), (other, shift) = (side.rows(len(self.moduli)) for side in (first, second))
        matrix, offset = np.concatenate([matrix, other], axis=1), np.concatenate([offset, shift], axis=1)
        if self.region.points is None:
            eigenvalues, vectors = np.linalg.eigh(matrix @ np.swapaxes(matrix, 1, 2))
            inverse = np.where(eigenvalues > TOLERANCE * eigenvalues[:, -1:], 1.0, 0.0) / np.maximum(
                eigenvalues, 1e-300
            )
            for _ in range(1 if self.region.feasible.is_space else rounds):
                gap = values - offset - np.einsum("bkd,bd->bk", matrix, theta)
                gap = np.einsum("bij,bj->bi", vectors, np.einsum("bji,bj->bi", vectors, gap) * inverse)
                moved = theta + np.einsum("bkd,bk->bd", matrix, gap)
                theta = self.region.project(np.where(free[:, None], theta, moved))
        return theta, np.einsum("bkd,bd->bk", matrix, theta) + offset

    def step(self, now: Candidates, size: float) -> Candidates:
        """Move every candidate at random."""
        rng, count, sides = self.rng, len(now), []
        # A third moves along the difference of two others (differential evolution), which adapts to the shape of the hill.
        a, b, others = rng.integers(0, count, count), rng.integers(0, count, count), rng.random(count) < 0.33
        for side in (now.first, now.second):
            fields, still = {}, rng.random(count) < 0.3
            for name, domain in self.domains.items():
                old, aim = side.fields[name], domain.sample(count, rng)
                step = size * rng.random(count) * rng.choice([1.0, -1.0, 3.0], count)
                move = np.where(shaped(others, old), 0.7 * (old[a] - old[b]), shaped(step, old) * (aim - old))
                fields[name] = domain.project(old + np.where(shaped(still, old), 0.0, move))
            sides.append(replace(side, fields=fields))
        values, theta = now.values, now.theta
        some = rng.random(values.shape) < rng.random((count, 1))
        scale = np.abs(values).max(axis=1, keepdims=True, initial=0.1)
        move = values * np.expm1(size * rng.normal(size=(count, 1))) + size * scale * some * rng.normal(
            size=values.shape
        )
        values = values + np.where(others[:, None], 0.7 * (values[a] - values[b]), move)
        free = rng.random(count) < 0.2
        length = np.linalg.norm(theta, axis=1, keepdims=True) + 0.1
        if self.region.points is None:
            theta = np.where(free[:, None], theta + size * length * rng.normal(size=theta.shape), theta)
        else:
            corner = self.region.points[rng.integers(0, len(self.region.points), size=count)]
            theta = theta + size * rng.random((count, 1)) * (corner - theta)
        theta, values = self._parameters(sides[0], sides[1], values, theta, FEWER, free)
        curvature = np.where(rng.random(count) < 0.5, now.curvature, now.curvature * np.exp(rng.normal(size=count)))
        return Candidates(sides[0], sides[1], theta, values, np.where(rng.random(count) < 0.2, 0.0, curvature))

    def measure(self, some: Candidates, curved: bool) -> dict[str, Array]:
        """Return norms of gradients, of their differences, and of how far these move a minimiser, shape (B,) each.

        With `curved`, also the Hessian's largest eigenvalue, trace, ``log det(I + M^-1 H)``, and its excess over the other's.
        """
        dim = len(self.moduli)
        rows = np.nan_to_num(np.concatenate([side.rows(dim)[0] for side in (some.first, some.second)], axis=1))
        frame = (
            np.linalg.qr(np.swapaxes(rows, 1, 2))[0] if rows.shape[1] < dim else np.tile(np.eye(dim), (len(some), 1, 1))
        )
        points = np.einsum("bdi,bd->bi", frame, some.theta)
        (g, h), (other, bend) = (side.slopes(points, frame, curved) for side in (some.first, some.second))
        moved = np.einsum("bdi,bi->bd", frame, g - other) / self.moduli
        found = {"gradient": np.linalg.norm(g, axis=1), "difference": np.linalg.norm(g - other, axis=1)}
        found["distance"] = np.linalg.norm(moved, axis=1)
        if curved:
            bad = ~(np.isfinite(h).all(axis=(1, 2)) & np.isfinite(bend).all(axis=(1, 2)))
            h, bend = (np.where(shaped(bad, part), 0.0, part) for part in (h, bend))
            inverse = np.einsum("bdi,bd,bdj->bij", frame, 1 / (self.moduli + some.curvature[:, None]), frame)
            own, others = (np.linalg.slogdet(np.eye(h.shape[1]) + inverse @ part)[1] for part in (h, bend))
            found |= {"eigenvalue": np.linalg.eigvalsh(h)[:, -1], "trace": np.trace(h, axis1=1, axis2=2)}
            found |= {"log_det": own, "jump": own - others}
            found = {name: np.where(bad, np.nan, values) for name, values in found.items()}
        return found

    def named(self, records: Records, index: int = 0) -> dict[str, Any] | None:
        """Return one of the records by its fields' names."""
        if records.losses is None:
            return None
        chosen = self.form.template.record.combinations[self.form.labels[int(records.group[index])]]
        return {**chosen, **{name: value[index] for name, value in records.fields.items()}}


def promising(goal: Goal, parts: Mapping[str, Array]) -> NDArray[np.int64]:
    """Return candidates in falling order: the best in the sum, and in each of its terms, in turn.

    Where the sum is of unlike terms, its highest hill may rise from a place that is only high in the smaller one.
    """
    worths = [goal.worth(parts), *(parts[name] for name in goal.weights if len(goal.weights) > 1)]
    mixed = np.stack([np.argsort(-worth, kind="stable") for worth in worths], axis=1).ravel()
    return np.asarray(mixed[np.sort(np.unique(mixed, return_index=True)[1])])


def diagonal(analysis: Analysis, size: int, added: float) -> Array:
    """Return the certified curvature of the rest of the objective, coordinate by coordinate, shape (dim,)."""
    moduli = analysis.moduli(size, added)
    result = np.zeros(analysis.form.space.dim)
    for block, ratio in zip(analysis.form.space.blocks.values(), moduli.ratios, strict=True):
        result[block.slice] = moduli.least / ratio
    return result


class Region:
    """The feasible set K, as the search moves in it; `points` are some of it where it has no projection."""

    def __init__(self, form: LossForm, rng: np.random.Generator) -> None:
        self.feasible = form.feasible
        self.points = None if form.feasible.has_projection else explore(form, rng)

    def enter(self, theta: Array, rng: np.random.Generator) -> Array:
        """Return points of K for points of the space, shape (B, dim): the nearest ones, or any."""
        if self.points is None:
            return self.project(theta)
        return np.asarray(rng.dirichlet(np.full(len(self.points), 0.2), size=len(theta)) @ self.points)

    def project(self, theta: Array) -> Array:
        """Project every row on K, shape (B, dim)."""
        return theta if self.feasible.is_space else np.stack([self.feasible.project(row) for row in theta])


def explore(form: LossForm, rng: np.random.Generator) -> Array:
    """Return points of a feasible set that has no projection, shape (m, dim)."""
    if form.feasible.obstacle is not None:
        raise NotConverged(f"falsify: no point of the feasible set was found: {form.feasible.describe()}")
    aims = unit(rng.normal(size=(EXPLORED, form.space.dim))) * 10.0 ** rng.uniform(-1, 3, size=(EXPLORED, 1))
    return np.stack([form.feasible.project(aim) for aim in np.append(0 * aims[:1], aims[1:], axis=0)])


def unit(vectors: Array) -> Array:
    """Divide each row by its norm; zero stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)


def opposite(records: Records, domains: Mapping[str, Ball | Box]) -> Records:
    """Return records of the same labels whose fields lie on the other side of their domains."""
    fields = {name: domain.project(sum(domain.bounds) - records.fields[name]) for name, domain in domains.items()}
    return replace(records, fields=fields)


def shaped(factors: Any, values: Any) -> Any:
    """Give numbers for each of a batch as many axes as its values have."""
    return factors.reshape(-1, *[1] * (np.ndim(values) - 1))
