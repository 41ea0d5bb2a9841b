"""A search for neighbours and parameters with large gradients, curvature, or privacy loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.data.domains import Ball, Box
from dpconvex.expressions.atoms.arithmetic import total
from dpconvex.expressions.atoms.arrangement import hstack, vec
from dpconvex.expressions.expression import Field
from dpconvex.expressions.parameter_space import entries_matrix
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sums.programs import entry_rows, lowered
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import once

Derivatives = tuple[Array, Array]
# Whether the first and the second data set have the record; under add-remove, one lacks it.
Pair = tuple[bool, bool]

BATCH, AT_ONCE = 64, 2**22  # Number of candidates in a batch, and of frames' entries processed at once
# Batches of candidates drawn for each pair, and steps of the climb: (usual, least) numbers.
POOL, STEPS = (16, 4), (40, 8)
ROUNDS, FEWER = 12, 3  # Alternating projections on K and on given leaf values, for drawn and for moved candidates
TOLERANCE = 1e-13  # Least squares: eigenvalues of the Gram matrix below this fraction of the largest are rounding
RISE = 1e-6  # A climb stops if `patience` steps gain less than this fraction
# Noise to try, in standard deviations beyond the least at which the privacy loss exceeds epsilon.
BEYOND = np.array([0.05, 0.2, 0.5, 1.0])
SEED = " seed"  # Name of the field with the weights of leaves
FLAT = ("gradient", "difference", "distance")  # Quantities of `Search.measure` without Hessians


class ExaminedLosses:
    """The losses of all examined labels, and weighted sums of their affine leaves, as programs."""

    def __init__(self, form: LossForm) -> None:
        self.count = len(form.losses)
        self.width = max(1, *(sum(leaf.size for leaf in leaves) for leaves in form.leaves))
        self.lift, rows = entries_matrix(form.space), entry_rows(form.space)
        self.lowered = [lowered(loss, rows) for loss in form.losses]
        seed = Field.of((self.width,), SEED, "seed")
        stacks = [hstack(*map(vec, leaves)) if leaves else None for leaves in form.leaves]
        self.leaves = [None if stack is None else lowered(total(seed[: stack.size] * stack), rows) for stack in stacks]


losses_of = once(ExaminedLosses)


@dataclass(frozen=True, eq=False)
class Records:
    """A batch of records.  If `losses` is None, the records are absent."""

    losses: ExaminedLosses | None
    group: NDArray[np.int64]
    fields: dict[str, Array]

    def __len__(self) -> int:
        return len(self.group)

    def mapped(self, change: Callable[..., Any], *others: Records) -> Records:
        """Return records with `change` applied to each array, together with the same array of each of `others`."""
        fields = {name: change(v, *(other.fields[name] for other in others)) for name, v in self.fields.items()}
        return Records(self.losses, change(self.group, *(other.group for other in others)), fields)

    def rows(self, dim: int) -> Derivatives:
        """Return the matrices of the affine leaves, shape (B, k, dim), and their offsets, shape (B, k)."""
        losses, width = self.losses, 0 if self.losses is None else self.losses.width
        matrix, offset = np.zeros((len(self), width, dim)), np.zeros((len(self), width))
        if losses is None:
            return matrix, offset
        for label in np.unique(self.group):
            own, here = losses.leaves[label], np.flatnonzero(self.group == label)
            if own is not None:
                every = {name: np.repeat(values[here], width, axis=0) for name, values in self.fields.items()}
                every[SEED] = np.tile(np.eye(width), (len(here), 1))
                entries, known = np.zeros((len(own.place), 1)), [every[name] for name in own.fields]
                value, slope = own.gradient(entries, known, len(every[SEED]))
                matrix[here] = (slope.T @ losses.lift[own.place]).reshape(len(here), width, dim)
                offset[here] = value.reshape(len(here), width)
        return matrix, offset

    def slopes(self, points: Array, frame: Array, curved: bool = True) -> Derivatives:
        """Return gradients (B, d) and Hessians (B, d, d) at ``frame @ t``, for t of shape (B, d), frames (B, dim, d)."""
        losses, (count, dim, d) = self.losses, frame.shape
        slopes, bends, step = np.zeros((count, d)), np.zeros((count, d, d)), max(AT_ONCE // (dim * d), 1)
        if losses is None:
            return slopes, bends
        for label in np.unique(self.group):
            own, mine = losses.lowered[label], np.flatnonzero(self.group == label)
            for here in (mine[start : start + step] for start in range(0, len(mine), step)):
                along = losses.lift[own.place] @ np.moveaxis(frame[here], 1, 0).reshape(dim, -1)
                along, known = along.reshape(-1, len(here), d), [self.fields[name][here] for name in own.fields]
                entries = np.einsum("ebd,bd->eb", along, points[here])
                slopes[here] = np.einsum("ebd,eb->bd", along, own.gradient(entries, known, len(here))[1])
                for k in range(d if curved else 0):
                    bent = own.hessian_product(entries, along[..., k], known, len(here))
                    bends[here, :, k] = np.einsum("ebd,eb->bd", along, bent)
        return slopes, bends

    def slopes_at(self, points: Array, frame: Array) -> Derivatives:
        """Return gradients and Hessians of a single record at many points, shape (m, d), in one frame, shape (dim, d)."""
        many = self.mapped(lambda values: values[np.zeros(len(points), dtype=np.int64)])
        return many.slopes(points, np.broadcast_to(frame, (len(points), *frame.shape)))


@dataclass(frozen=True, eq=False)
class Candidates:
    """A batch of differing records of neighbours, with parameters."""

    sides: tuple[Records, Records]  # the record in the first data set, and in the second
    theta: Array  # parameters, shape (B, dim)
    values: Array  # values of the affine leaves of both records at `theta`, shape (B, k)

    def __len__(self) -> int:
        return len(self.theta)

    def mapped(self, change: Callable[..., Any], *others: Candidates) -> Candidates:
        """Return candidates with `change` applied to each array, as in `Records.mapped`."""
        first, second = (self.sides[k].mapped(change, *(other.sides[k] for other in others)) for k in (0, 1))
        theta, values = change(self.theta, *(o.theta for o in others)), change(self.values, *(o.values for o in others))
        return Candidates((first, second), theta, values)

    def take(self, index: Any) -> Candidates:
        return self.mapped(lambda values: values[index])

    def one(self, place: int) -> Candidates:
        return self.take(slice(place, place + 1))


@dataclass(frozen=True)
class Goal:
    """Goal of a search: a weighted sum of quantities of `Search.measure`, or one answer's part of delta (Gaussian noise)."""

    weights: Mapping[str, float] = field(default_factory=dict)
    # Standard deviation of Gaussian noise, and epsilon
    gaussian: tuple[float, float] | None = None

    @property
    def curved(self) -> bool:
        return self.gaussian is not None or any(name not in FLAT for name in self.weights)

    def worth(self, parts: Mapping[str, Array]) -> Array:
        """Return the goal's values for candidates, shape (B,); minus infinity where undefined."""
        if self.gaussian is None:
            value = sum(weight * parts[name] for name, weight in self.weights.items())
        else:
            value = leak(parts["difference"] / self.gaussian[0], parts["jump"], self.gaussian[1])[0]
        return np.where(np.isnan(value), -np.inf, value)


def leak(length: Array, jump: Array, epsilon: float) -> tuple[Array, Array]:
    """Return the largest log contribution of one answer to delta, and its noise along the difference, in deviations."""
    length = np.maximum(length, 1e-300)[..., None]
    noise = np.minimum(np.clip((epsilon - jump[..., None]) / length - length / 2, 0.0, 1e9) + BEYOND, 40.0)
    loss = length * noise + length**2 / 2 + jump[..., None]
    with np.errstate(divide="ignore", over="ignore"):
        worth = -(noise**2) / 2 + np.log(np.maximum(-np.expm1(epsilon - loss), 0.0))
    best = np.argmax(worth, axis=-1)[..., None]
    return np.take_along_axis(worth, best, -1)[..., 0], np.take_along_axis(noise, best, -1)[..., 0]


def record_orders(adjacency: str) -> list[Pair]:
    """Return, for each order of the adjacency, whether the first and the second data set have the record."""
    return [(True, False), (False, True)] if adjacency == "add-remove" else [(True, True)]


class Search:
    """A random search over neighbours and parameters; `moduli`, shape (dim,), is the curvature of all other terms."""

    def __init__(self, form: LossForm, moduli: Array, rng: np.random.Generator) -> None:
        self.form, self.moduli, self.rng, self.feasible = form, moduli, rng, form.feasible
        self.losses, self.domains = losses_of(form), form.template.record.continuous

    def best(self, goal: Goal, adjacency: str, effort: float) -> list[Candidates]:
        """Return candidates for each order of neighbours, best first; `effort` multiplies the usual length of the search."""
        pool, steps = scaled_effort(effort, *POOL), scaled_effort(effort, *STEPS)
        return [self.found([goal], pair, pool, steps)[0] for pair in record_orders(adjacency)]

    def found(
        self, goals: Sequence[Goal], pair: Pair, pool: int, steps: int, starts: int = BATCH, patience: int | None = None
    ) -> list[Candidates]:
        """Return the best candidates for each goal, best first; `starts` is rounded up to whole batches."""
        count = -(-starts // BATCH) * BATCH
        drawn = self.draw(pair, pool * BATCH)
        parts = self.measure(drawn, any(goal.curved for goal in goals))
        orders = (np.argsort(-goal.worth(parts), kind="stable")[:count] for goal in goals)
        return [self.climb(goal, drawn.take(order), steps, patience) for goal, order in zip(goals, orders, strict=True)]

    def climb(self, goal: Goal, now: Candidates, steps: int, patience: int | None = None) -> Candidates:
        """Take random steps uphill; every 8 steps clone the best quarter; stop if `patience` steps gain less than `RISE`."""
        value, best = goal.worth(self.measure(now, goal.curved)), list[float]()
        for k in range(steps):
            best.append(value.max())
            if patience is not None and k > patience and best[k] - best[k - patience] <= RISE * abs(best[k]):
                break
            there = self.step(now, 10.0 ** self.rng.uniform(-3, 0))
            reached = goal.worth(self.measure(there, goal.curved))
            better = reached > value
            now = there.mapped(lambda new, old, better=better: np.where(shaped(better, new), new, old), now)
            value = np.maximum(reached, value)
            if k % 8 == 7:
                keep = np.resize(np.argsort(-value, kind="stable")[: max(len(now) // 4, 1)], len(now))
                now, value = now.take(keep), value[keep]
        return now.take(np.argsort(-value, kind="stable"))

    def draw(self, pair: Pair, count: int) -> Candidates:
        """Draw candidates.  A neighbour's field is equal, mirrored, near, independent or far, mostly alike in all fields."""
        rng, here, there = self.rng, {}, {}
        common, apart, edge = rng.integers(0, 5, size=count), rng.random(count) < 0.3, rng.random(count) < 0.5
        for name, domain in self.domains.items():
            one, other = domain.sample(count, rng), domain.sample(count, rng)
            one = np.where(shaped(edge, one), domain.project(10 * one), one)
            turned = domain.project(sum(domain.bounds) - one)
            near = domain.project(one + shaped(10.0 ** rng.uniform(-3, 0, size=count), one) * (other - one))
            relation = np.where(apart, rng.integers(0, 5, size=count), common)
            choices = [one, turned, near, other, domain.project(10 * other)]
            here[name], there[name] = one, np.stack(choices)[relation, np.arange(count)]
        group, another = rng.integers(0, self.losses.count, size=(2, count))
        another = np.where(rng.random(count) < 0.5, group, another)
        first, second = (self.losses if present else None for present in pair)
        sides = Records(first, group, here), Records(second, another, there)
        values = np.concatenate([self._values(side) for side in sides], axis=1)
        start = 10.0 ** rng.uniform(-1, 2, size=(count, 1)) * rng.normal(size=(count, len(self.moduli)))
        free = rng.random(count) < 0.2 if self.feasible.has_projection else np.ones(count, dtype=bool)
        theta = np.zeros_like(start)
        theta[free] = self.enter(start[free])
        return self.toward(sides, values, theta, ROUNDS, free)

    def _values(self, records: Records) -> Array:
        """Draw values for the entries of all leaves, shape (B, size): equal or different, near zero or large."""
        rng, count, size = self.rng, len(records), self.losses.width
        if records.losses is None:
            return np.zeros((count, 0))
        scale = 10.0 ** rng.uniform(-2, 1.5, size=(count, 2))
        pair = scale * rng.choice([-1.0, 1.0], size=(count, 2))
        equal = pair[:, :1] + np.zeros((count, size))
        mixed = np.take_along_axis(pair, rng.integers(0, 2, size=(count, size)), axis=1)
        spread = scale[:, :1] * rng.normal(size=(count, size))
        far = 10.0 ** rng.uniform(0.5, 3, size=(count, 1)) * rng.choice([-1.0, 0.0, 1.0], size=(count, size))
        styles = np.stack([equal, mixed, spread, far, equal + 0.1 * spread, equal + far])
        return np.asarray(styles[rng.integers(0, len(styles), size=count), np.arange(count)])

    def enter(self, theta: Array) -> Array:
        """Return the projections of points on K, shape (B, dim)."""
        return theta if self.feasible.is_space else np.array([self.feasible.project(row) for row in theta])

    def toward(self, sides: tuple[Records, Records], values: Array, theta: Array, rounds: int, free: Any) -> Candidates:
        """Return candidates with `theta` moved within K towards the given values of leaves, except where `free`."""
        rows = [side.rows(len(self.moduli)) for side in sides]
        matrix, offset = (np.concatenate(part, axis=1) for part in zip(*rows, strict=True))
        if self.feasible.has_projection:
            eigenvalues, vectors = np.linalg.eigh(matrix @ np.swapaxes(matrix, 1, 2))
            kept = eigenvalues > TOLERANCE * eigenvalues[:, -1:]
            inverse = np.where(kept, 1.0, 0.0) / np.maximum(eigenvalues, 1e-300)
            for _ in range(1 if self.feasible.is_space else rounds):
                gap = values - offset - np.einsum("bkd,bd->bk", matrix, theta)
                gap = np.einsum("bij,bj->bi", vectors, np.einsum("bji,bj->bi", vectors, gap) * inverse)
                theta = self.enter(np.where(free[:, None], theta, theta + np.einsum("bkd,bk->bd", matrix, gap)))
        return Candidates(sides, theta, np.einsum("bkd,bd->bk", matrix, theta) + offset)

    def step(self, now: Candidates, size: float) -> Candidates:
        rng, count, moved = self.rng, len(now), []
        # A third moves along the difference of two other candidates (differential evolution).
        a, b, others = rng.integers(0, count, count), rng.integers(0, count, count), rng.random(count) < 0.33
        for side in now.sides:
            fields, still = {}, rng.random(count) < 0.3
            for name, domain in self.domains.items():
                old, aim = side.fields[name], domain.sample(count, rng)
                step = size * rng.random(count) * rng.choice([1.0, -1.0, 3.0], count)
                move = np.where(shaped(others, old), 0.7 * (old[a] - old[b]), shaped(step, old) * (aim - old))
                fields[name] = domain.project(old + np.where(shaped(still, old), 0.0, move))
            moved.append(replace(side, fields=fields))
        values, theta = now.values, now.theta.copy()
        some = rng.random(values.shape) < rng.random((count, 1))
        scale = np.abs(values).max(axis=1, keepdims=True, initial=0.1)
        along, aside = rng.normal(size=(count, 1)), rng.normal(size=values.shape)
        move = values * np.expm1(size * along) + size * scale * some * aside
        values = values + np.where(others[:, None], 0.7 * (values[a] - values[b]), move)
        free = rng.random(count) < 0.2
        length = np.linalg.norm(theta, axis=1, keepdims=True) + 0.1
        theta[free] = self.enter((theta + size * length * rng.normal(size=theta.shape))[free])
        return self.toward((moved[0], moved[1]), values, theta, FEWER, free)

    def measure(self, some: Candidates, curved: bool) -> dict[str, Array]:
        """Return norms of gradients, of their differences, and of the shifts of a minimiser, shape (B,) each.

        With `curved`, also the Hessian's largest eigenvalue, trace and ``log det(I + M^-1 H)``, and the `jump` of the last
        between the records.
        """
        dim = len(self.moduli)
        rows = np.nan_to_num(np.concatenate([side.rows(dim)[0] for side in some.sides], axis=1))
        everything = np.broadcast_to(np.eye(dim), (len(some), dim, dim))
        frame = np.linalg.qr(np.swapaxes(rows, 1, 2))[0] if rows.shape[1] < dim else everything
        points = np.einsum("bdi,bd->bi", frame, some.theta)
        (g, h), (other, bend) = (side.slopes(points, frame, curved) for side in some.sides)
        moved = np.einsum("bdi,bi->bd", frame, g - other) / self.moduli
        found = {"gradient": np.linalg.norm(g, axis=1), "difference": np.linalg.norm(g - other, axis=1)}
        found["distance"] = np.linalg.norm(moved, axis=1)
        if curved:
            bad = ~(np.isfinite(h).all(axis=(1, 2)) & np.isfinite(bend).all(axis=(1, 2)))
            h, bend = (np.where(shaped(bad, part), 0.0, part) for part in (h, bend))
            inverse = np.einsum("bdi,d,bdj->bij", frame, 1 / self.moduli, frame)
            own, others = (np.linalg.slogdet(np.eye(h.shape[1]) + inverse @ part)[1] for part in (h, bend))
            found |= {"eigenvalue": np.linalg.eigvalsh(h)[:, -1], "trace": np.trace(h, axis1=1, axis2=2)}
            found |= {"log_det": own, "jump": own - others}
            found = {name: np.where(bad, np.nan, values) for name, values in found.items()}
        return found

    def places(self, one: Candidates) -> dict[str, Any]:
        """Return the first candidate by name: `record` and `neighbour`, None if absent, and the parameters, `answer`."""
        combinations, found = self.form.template.record.combinations, dict[str, Any]()
        for name, side in zip(("record", "neighbour"), one.sides, strict=True):
            fields = {field: values[0] for field, values in side.fields.items()}
            found[name] = None if side.losses is None else {**combinations[int(side.group[0])], **fields}
        return {**found, "answer": self.form.space.unpack(one.theta[0])}


def scaled_effort(effort: float, usual: int, least: int) -> int:
    return max(round(effort * usual), least)


def moduli_of(analysis: Analysis, size: int, added: float) -> Array:
    widths = [block.dim for block in analysis.form.space.blocks.values()]
    return np.repeat(size * np.array(analysis.block_moduli) + added, widths)


def unit(vectors: Array) -> Array:
    """Divide each row by its norm; zero stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)


def opposite_records(records: Records, domains: Mapping[str, Ball | Box]) -> tuple[Records, Records]:
    """Return the records, and records with the same labels and fields mirrored in their domains."""
    fields = {name: domain.project(sum(domain.bounds) - records.fields[name]) for name, domain in domains.items()}
    return records, replace(records, fields=fields)


def shaped(factors: Any, values: Any) -> Any:
    """Return factors, shape (B,), with axes of length 1 appended, to broadcast with values, shape (B, ...)."""
    return factors.reshape(-1, *[1] * (np.ndim(values) - 1))
