"""The search for the worst neighbours of objective perturbation: records, answers, and the rest of the data.

At an answer t the privacy loss is ``log nu(b) - log nu(b + D) + log det(M + H) - log det(M + H')``, with b the noise that leads
from the first data set to t, D the difference of the two records' gradients, and H, H' their Hessians.  The rest of the data may
be any convex function, so its gradient can be chosen to make b whatever one likes.  Many candidates are drawn, and the best of
them climb by random steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.auditing.feasible_region import project_field, unit
from dpconvex.auditing.learner import BATCH, Learner, Records, orthonormal
from dpconvex.auditing.noises import LogNoise
from dpconvex.auditing.record_programs import Kind

Array = NDArray[np.float64]

# Logarithm of what a candidate is worth that contributes nothing.
NOTHING = -1e6
# Deviations of Gaussian noise beyond the least that makes the loss exceed epsilon.
BEYOND = (0.05, 0.2, 0.5, 1.0)


@dataclass(frozen=True)
class Goal:
    """What is maximised.

    Attributes
    ----------
    noise : {"gamma", "gaussian", "matrix", "gradient", "distance"}
        For noise on the objective, by its law: the privacy loss if the promise is pure, else the density of answers whose loss
        exceeds epsilon.  "gradient" is the difference of the two gradients, and "distance" what that moves a minimiser by.
    scale : float
    epsilon : float
    """

    noise: str
    scale: float = 1.0
    epsilon: float = 0.0


@dataclass(frozen=True, eq=False)
class Candidates:
    """A batch of neighbours, with an answer and a rest of the data for each.

    Attributes
    ----------
    first, second : Records
        What the first data set has and the second has instead.
    frame : ndarray, shape (B, p, d)
        Orthonormal basis of the directions in which the two objectives differ.
    point : ndarray, shape (B, d)
        The answer.
    noise : ndarray, shape (B, d)
        The noise b that leads there from the first data set.
    curvature : ndarray, shape (B,)
        Of the rest of the data.
    worth : ndarray, shape (B,)
    """

    first: Records
    second: Records
    frame: Array
    point: Array
    noise: Array
    curvature: Array
    worth: Array

    def __len__(self) -> int:
        return len(self.worth)

    def take(self, index: Any) -> Candidates:
        """Return some of them."""
        return Candidates(
            self.first.take(index),
            self.second.take(index),
            self.frame[index],
            self.point[index],
            self.noise[index],
            self.curvature[index],
            self.worth[index],
        )


def joined(batches: list[Candidates]) -> Candidates:
    """Put batches of one pair of kinds into one."""

    def records(side: str) -> Records:
        parts = [getattr(batch, side) for batch in batches]
        fields = {name: np.concatenate([part.fields[name] for part in parts]) for name in parts[0].fields}
        return Records(parts[0].kind, np.concatenate([part.group for part in parts]), fields)

    arrays = [
        np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("frame", "point", "noise", "curvature", "worth")
    ]
    return Candidates(records("first"), records("second"), *arrays)


def kind_pairs(learner: Learner, adjacency: str) -> Iterator[tuple[Kind | None, Kind | None]]:
    """Yield what the first record and what the second may be, in both orders."""
    for kind in learner.kinds:
        if adjacency == "add-remove":
            yield kind, None
            yield None, kind
        else:
            for other in learner.kinds:
                yield kind, other


class Search:
    """Draws candidates of one pair of kinds, and improves them."""

    def __init__(
        self,
        learner: Learner,
        first: Kind | None,
        second: Kind | None,
        goal: Goal,
        law: Callable[[int], LogNoise],
        reduced: bool,
        rng: np.random.Generator,
    ) -> None:
        self.learner, self.goal = learner, goal
        self.reduced, self.rng = reduced, rng
        self.kinds = first, second
        self.domains = learner.form.template.record.continuous
        self.dimension = learner.dimension
        if reduced:
            self.dimension = max(self._frames(*self._records(32), learner.dimension)[1], 1)
        self.log_noise = law(self.dimension)

    def _records(self, count: int) -> tuple[Records, Records]:
        """Draw two records for each candidate: the same, nearly opposite, near, or anything."""
        rng, here, there = self.rng, {}, {}
        relation = rng.integers(0, 5, size=count)
        for name, domain in self.domains.items():
            one, other = domain.sample(count, rng), domain.sample(count, rng)
            opposite = project_field(domain, sum(domain.bounds) - one)
            near = project_field(domain, one + 0.1 * rng.random() * (other - one))
            extreme = project_field(domain, 10 * one)
            far = project_field(domain, sum(domain.bounds) - extreme)
            here[name] = np.where(self._as(relation == 4, one), extreme, one)
            there[name] = np.stack([one, opposite, near, other, far])[relation, np.arange(count)]
        sides = []
        for kind, fields in zip(self.kinds, (here, there), strict=True):
            groups = 1 if kind is None else len(kind.groups)
            sides.append(Records(kind, rng.integers(0, groups, size=count), fields))
        return sides[0], sides[1]

    @staticmethod
    def _as(mask: Array, values: Array) -> Array:
        return np.asarray(mask.reshape(-1, *[1] * (values.ndim - 1)))

    def _frames(self, first: Records, second: Records, dimension: int) -> tuple[Array, int]:
        """Return bases of the directions in which pairs differ, shape (B, p, dimension), and the largest rank."""
        p, count = self.learner.dimension, len(first)
        if not self.reduced or dimension == p == 1:
            return np.broadcast_to(np.eye(p), (count, p, p)), p
        rows = np.concatenate([self.learner.rows(side)[0] for side in (first, second)], axis=1)
        matrix = self.learner.matrix
        assert matrix is not None
        parts, image = [rows], rows
        for _ in range(distinct(matrix) - 1):
            image = image @ matrix / max(float(np.abs(matrix).max()), 1e-300)
            parts.append(image)
        found = np.zeros((count, p, dimension))
        rank = 1
        for k, table in enumerate(np.concatenate(parts, axis=1)):
            basis = orthonormal(table)
            rank = max(rank, basis.shape[1])
            if basis.shape[1] < dimension:  # any further directions will do
                full = np.linalg.qr(np.column_stack([basis, np.eye(p)]))[0]
                basis = full[:, :dimension]
            found[k] = basis[:, :dimension]
        return found, min(rank, p)

    def _points(self, first: Records, second: Records, frame: Array) -> Array:
        """Choose answers that give the affine leaves chosen values: near 0, where losses bend, or far out."""
        rng, count, d = self.rng, len(first), frame.shape[2]
        sides = [self.learner.rows(side) for side in (first, second)]
        rows = np.concatenate([side[0] for side in sides], axis=1) @ frame
        offsets = np.concatenate([side[1] for side in sides], axis=1)
        size = 10.0 ** rng.uniform(-1.5, 2, size=(count, 1))
        values = np.where(
            rng.random((count, 1)) < 0.5, rng.choice([-1.0, 1.0], size=offsets.shape), rng.normal(size=offsets.shape)
        )
        values = values * size
        alike = rng.random(count) < 0.4
        values[alike] = size[alike] * rng.choice([-1.0, 1.0], size=(int(alike.sum()), 1))
        points = np.einsum("bdk,bk->bd", np.linalg.pinv(rows, rcond=1e-9), values - offsets)
        anywhere = rng.random(count) < 0.1
        points[anywhere] = (size * rng.normal(size=(count, d)))[anywhere]
        return self._enter(points)

    def _enter(self, points: Array) -> Array:
        """Move answers into K, where they are coordinates of all of space."""
        if self.learner.free or not self.learner.everything:
            return points
        inner = self.learner.region.project(points)
        return np.asarray(np.where(self.learner.inside(inner)[:, None], inner, inner * (1 - 1e-6)))

    def draw(self) -> Candidates:
        first, second = self._records(BATCH)
        frame = self._frames(first, second, self.dimension)[0]
        curvature = np.where(self.rng.random(BATCH) < 0.8, 0.0, 10.0 ** self.rng.uniform(-3, 2, BATCH))
        curvature = curvature * self._modulus()
        wish = self.goal.scale * 10.0 ** self.rng.uniform(-1, 1.5, size=BATCH)
        return self.evaluate(first, second, frame, self._points(first, second, frame), curvature, wish[:, None])

    def _modulus(self) -> float:
        return float(self.learner.analysis.moduli(self.learner.size, self.learner.added).least)

    def evaluate(
        self, first: Records, second: Records, frame: Array, point: Array, curvature: Array, wish: Array
    ) -> Candidates:
        """Choose the best rest of the data for neighbours and an answer, and say what the candidates are worth.

        `wish` is the length of the noise, shape (B, 1), or the noise itself, (B, d), where its best value is not known.
        """
        lift = self.learner.frame @ frame
        (g1, h1), (g2, h2) = (
            tuple(part[:, 0] for part in side.slopes(point[:, None], lift)) for side in (first, second)
        )
        hessian = self._public_hessian(point, frame) + curvature[:, None, None] * np.eye(frame.shape[2])
        difference = g1 - g2
        if self.goal.noise in ("gradient", "distance"):
            moved = difference if self.goal.noise == "gradient" else solved(hessian, difference)
            worth = self._allowed(np.linalg.norm(moved, axis=1), frame, point)
            return Candidates(first, second, frame, point, np.zeros_like(point), curvature, worth)
        jump = log_det(hessian + h1) - log_det(hessian + h2)
        noise = self._wanted(difference, jump, wish)  # the rest of the data sees to that
        loss = self.log_noise(noise) - self.log_noise(noise + difference) + jump
        worth = loss
        if self.goal.noise == "gaussian":
            with np.errstate(divide="ignore", over="ignore"):
                worth = self.log_noise(noise) + np.log(np.maximum(-np.expm1(self.goal.epsilon - loss), 0.0))
        return Candidates(first, second, frame, point, noise, curvature, self._allowed(worth, frame, point))

    def _allowed(self, worth: Array, frame: Array, point: Array) -> Array:
        """Give no worth to answers on faces of K."""
        inside = self.learner.inside(lifted(frame, point))
        return np.where(np.isfinite(worth) & inside, worth, NOTHING)

    def _public_hessian(self, point: Array, frame: Array) -> Array:
        return np.asarray(np.swapaxes(frame, 1, 2) @ self.learner.public(lifted(frame, point))[1] @ frame)

    def _wanted(self, difference: Array, jump: Array, wish: Array) -> Array:
        """Return the noise that makes the loss large."""
        if self.goal.noise == "gamma":
            return np.zeros_like(difference)
        if self.goal.noise == "matrix":
            return wish if wish.shape == difference.shape and wish.shape[1] > 1 else wish * unit(difference)
        length = np.maximum(np.linalg.norm(difference, axis=1), 1e-300)
        sigma = self.goal.scale
        least = (self.goal.epsilon - jump) * sigma / length - length / (2 * sigma)
        beyond = self.rng.choice(BEYOND, size=len(length))
        return np.asarray(np.clip(least + beyond, -30, 30)[:, None] * sigma * unit(difference))

    def step(self, now: Candidates, size: float) -> Candidates:
        """Move every candidate at random, and keep what is better."""
        rng, count = self.rng, len(now)
        moved = []
        for side in (now.first, now.second):
            fields = {}
            for name, domain in self.domains.items():
                aim = domain.sample(count, rng)
                keep = rng.random(count) < 0.4
                step = np.where(keep, 0.0, size * rng.random(count)).reshape(-1, *[1] * (aim.ndim - 1))
                fields[name] = project_field(
                    domain, side.fields[name] + step * (aim - side.fields[name]) * rng.choice([1.0, -1.0, 3.0])
                )
            moved.append(replace(side, fields=fields))
        frame = self._frames(moved[0], moved[1], self.dimension)[0]
        here = np.einsum("bpd,bd->bp", now.frame, now.point)
        scale = np.maximum(np.linalg.norm(here, axis=1, keepdims=True), 0.1)
        here = here * np.exp(size * rng.normal(size=(count, 1))) + size * scale * rng.normal(
            size=here.shape
        ) * rng.integers(0, 2, size=(count, 1))
        point = self._enter(np.einsum("bpd,bp->bd", frame, here))
        curvature = np.where(rng.random(count) < 0.5, now.curvature, now.curvature * np.exp(rng.normal(size=count)))
        curvature = np.where(rng.random(count) < 0.2, 0.0, curvature)
        wish = now.noise * np.exp(size * rng.normal(size=(count, 1)))
        if wish.shape[1] > 1:
            wish = wish + size * self.goal.scale * rng.normal(size=wish.shape)
        there = self.evaluate(moved[0], moved[1], frame, point, curvature, wish)
        better = there.worth > now.worth
        both = joined([there, now])
        return both.take(np.where(better, np.arange(count), np.arange(count) + count))


def climb(search: Search, batches: int, rounds: int) -> Candidates:
    """Draw batches, keep the best candidates of all, and improve them; returned in falling order of worth."""
    found = joined([search.draw() for _ in range(batches)])
    found = found.take(np.argsort(-found.worth, kind="stable")[:BATCH])
    # The better half is cloned once in a while, so that effort goes where it pays.
    for k in range(rounds):
        found = search.step(found, 10.0 ** search.rng.uniform(-2.5, 0))
        if k % 8 == 7:
            order = np.argsort(-found.worth, kind="stable")
            found = found.take(np.tile(order[: BATCH // 4], 4))
    return found.take(np.argsort(-found.worth, kind="stable"))


def lifted(frame: Array, point: Array) -> Array:
    """Return points in coordinates u, shape (B, p)."""
    return np.asarray(np.einsum("bpd,bd->bp", frame, point))


def log_det(matrices: Array) -> Array:
    """Return log determinants of positive definite matrices."""
    return np.asarray(np.linalg.slogdet(matrices)[1])


def solved(matrices: Array, vectors: Array) -> Array:
    """Solve linear equations, shapes (B, d, d) and (B, d)."""
    return np.asarray(np.linalg.solve(matrices, vectors[..., None])[..., 0])


def distinct(matrix: Array) -> int:
    """Count the distinct eigenvalues of a symmetric matrix."""
    values = np.linalg.eigvalsh(matrix)
    return 1 + int((np.diff(values) > 1e-9 * max(abs(values[-1]), 1e-300)).sum())
