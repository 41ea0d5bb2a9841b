"""Implicit steps of classes, in a metric, for the public part of a problem: squares, other penalties, and constraints."""

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.errors import NotConverged
from dpconvex.expressions.evaluate import evaluate
from dpconvex.optim.noisy_quadratic import least_point, minimise_by_cone
from dpconvex.optim.row_metrics import Metric
from dpconvex.optim.slope_histograms import Fit
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.regularizer import ridge_of
from dpconvex.sets.kinks import Groups, Kinks, split_kinks
from dpconvex.sets.projections import IntervalSet
from dpconvex.sets.quadratics import as_quadratic
from dpconvex.sums.linear_scores import LinearScores
from dpconvex.util.arrays import Array, Indices

SWEEPS = 6  # Of ADMM; each sweep starts at the end of the last one
# Parameters for which a conic solver takes hundredths of a second. And records for each direction and unit of the level from
# which each step solves a cone: with few records, cones make noise of steps permanent.
MOST_IN_CONES, CONE_RECORDS = 150, 30.0
NEAR_K = 1e-5  # Largest projection distance of scores that count as inside K, relative to their length
FAR_AWAY = 1e3  # Largest distance at which K is tested
UNREAD_WEIGHT = 1e-9  # Weight of parameters that no score reads, next to the largest
RELATIVE_STEP = 1e-3  # Relative step of differences of the regularizer


def slopes_of(form: LossForm, theta: Array, size: float, part: float = 1.0) -> tuple[float, float]:
    """Return the regularizer's slope (in sum form) along the parameters, at `part` times the parameters, and its curvature."""
    theta, near = part * theta, (1 - RELATIVE_STEP, 1.0, 1 + RELATIVE_STEP)
    low, here, high = (float(evaluate(form.template.regularizer, form.space.leaves(step * theta))) for step in near)
    if not np.isfinite([low, high]).all():
        return 0.0, 0.0
    return size * (high - low) / (2 * RELATIVE_STEP), size * (low - 2 * here + high) / RELATIVE_STEP**2


def mean_stiffness(fit: Fit, form: LossForm, metric: Metric, matrix: Array) -> float:
    """Return the regularizer's mean slope at scores of root mean square 1; for squares, this is their curvature."""
    queries, size = fit.queries, fit.size
    points = np.random.default_rng(0).normal(size=(8, *queries.scores.shape)) * np.sqrt(metric.signal)[:, None]
    points *= np.sqrt(size / np.einsum("k,skc->s", metric.signal, points**2))[:, None, None]
    slopes = [slopes_of(form, queries.parameters(matrix.T @ point), size)[0] for point in points]
    return float(np.mean(slopes)) / size


class ImplicitSteps:
    """Steps in a metric against a gradient, followed by implicit steps of the regularizer and of K."""

    def __init__(self, fit: Fit, form: LossForm, matrix: Array, many: float) -> None:
        scores, units, size = fit.queries.scores, fit.queries.units, fit.size
        ridge, K, regularizer = ridge_of(form, free=False), form.feasible, form.template.regularizer
        self.form, self.scores, self.size, self.step = form, scores, size, 0.0
        self.from_metric = np.linalg.inv(matrix.T) / units.T
        self.kinks: Kinks | None = None
        self.takes_cones = False
        # The gradients by which the regularizer and K moved parameters in the last step.
        self.feasible, self.dual, self.pull = np.zeros((3, form.space.dim))
        self.ridges: list[Any] = []
        if ridge is not None and not bounds_all_scores(form, scores, many):
            every = equal_columns(size * scores.squares(ridge) * units**2)
            self.ridges = [(at, *np.linalg.eigh((matrix * own) @ matrix.T)) for at, own in every if own.any()]
            return
        rest, kinks = split_kinks(K, regularizer)
        public = as_quadratic(rest, form.space)
        if public is not None and K.has_projection and kinks.epigraph is None:
            self.squares, self.slope = size * public.hessian.toarray(), size * public.slope
            self.project, self.kinks = K.project, kinks
            self.tied = [piece.coordinates for piece in K.pieces if not isinstance(piece, IntervalSet)]
            for term in kinks.terms:
                labels = term.labels if isinstance(term, Groups) else np.zeros(len(term.support))
                self.tied += [term.support[labels == label] for label in np.unique(labels)]
        elif many >= CONE_RECORDS and form.space.dim <= MOST_IN_CONES:
            self.takes_cones = True
        if not self.is_plain:
            self.table = np.kron(scores.table_projection, self.from_metric) @ scores.to_table

    @property
    def is_plain(self) -> bool:
        """Whether the public part is only squares of the table's entries."""
        return self.kinks is None and not self.takes_cones

    def lengths(self, theta: Array) -> tuple[float, float]:
        """Return the least and the largest factor of the projected parameters within K, between 1 / `FAR_AWAY` and `FAR_AWAY`."""
        K = self.form.feasible
        known = K.has_projection or (K.obstacle is None and len(theta) <= MOST_IN_CONES)
        if K.is_space or not known:
            return 1 / FAR_AWAY, FAR_AWAY
        theta = K.project(theta)

        def is_inside(part: float) -> bool:
            points = K.project(part * theta) - part * theta, part * theta
            moved, whole = (float(np.linalg.norm(self.from_metric @ self.scores.table(point))) for point in points)
            return moved <= NEAR_K * whole

        def last_inside(end: float) -> float:
            inside, outside = (end, end) if is_inside(end) else (1.0, end)
            for _ in range(20 * (inside != outside)):
                part = math.sqrt(inside * outside)
                inside, outside = (part, outside) if is_inside(part) else (inside, part)
            return inside

        return last_inside(1 / FAR_AWAY), last_inside(FAR_AWAY)

    def direction(self, point: Array, gradient: Array, step: float) -> Array:
        """Return the movement of a point in one step, divided by the step size."""
        moved = point - step * gradient
        for at, values, vectors in self.ridges:
            moved[:, at] = (vectors / (1 + step * values)) @ (vectors.T @ moved[:, at])
        if not self.is_plain:
            goal = self.table.T @ moved.T.ravel()
            theta = self.prox_by_cones(goal, step) if self.takes_cones else self.prox_by_admm(goal, step)
            moved = moved if theta is None else (self.table @ theta).reshape(point.shape[::-1]).T
        return np.asarray((moved - point) / step)

    def prox_by_cones(self, goal: Array, step: float) -> Array | None:
        with suppress(NotConverged):
            hessian = self.table.T @ self.table / step
            theta = minimise_by_cone(self.form, hessian, goal / step, self.size)
            self.feasible, self.pull = theta, goal / step - hessian @ theta
            return theta
        return None

    def prox_by_admm(self, goal: Array, step: float) -> Array:
        """Return parameters in K near the proximal point, by the alternating direction method of multipliers (ADMM)."""
        assert self.kinks is not None
        if step != self.step:
            hessian = self.table.T @ self.table + step * self.squares
            weight = np.diag(hessian).copy()
            weight[weight <= 0] = UNREAD_WEIGHT * weight.max()
            for support in self.tied:  # proximal maps of these need equal weights
                weight[support] = weight[support].mean()
            self.weight, self.step, units = weight, step, 1 / np.sqrt(np.diag(hessian) + weight)
            self.inverse = np.outer(units, units) * np.linalg.inv(np.outer(units, units) * (hessian + np.diag(weight)))
        for _ in range(SWEEPS):
            theta = self.inverse @ (goal - step * self.slope + self.weight * (self.feasible - self.dual))
            self.feasible = self.project(self.kinks.proximal(theta + self.dual, step * self.size / self.weight))
            self.dual = self.dual + theta - self.feasible
        self.pull = self.squares @ self.feasible + self.slope + self.weight * self.dual / step
        return self.feasible


def bounds_all_scores(form: LossForm, scores: LinearScores, many: float) -> bool:
    """Return whether K bounds the scores of all parameters. A common part of all matrices, unseen by scores, may lift it."""
    K, (one, other) = form.feasible, np.random.default_rng(0).normal(size=(2, form.space.dim))
    if K.is_space or scores.indices.size < scores.lift.shape[1]:
        return False
    if not K.has_projection:
        return many >= CONE_RECORDS and form.space.dim <= MOST_IN_CONES
    deep = K.project(FAR_AWAY * one) + K.project(-FAR_AWAY * one)
    unseen = deep - scores.coordinates(scores.table(deep) @ scores.table_projection)
    if np.linalg.norm(unseen) < 1e-6 * FAR_AWAY:  # Scores see all parts
        return True
    point = FAR_AWAY / float(np.linalg.norm(unseen)) * unseen + other
    return not np.allclose(K.project(point), point)


def equal_columns(table: Array) -> Iterator[tuple[Indices, Array]]:
    """Yield the indices of equal columns, and their entries."""
    kinds, owner = np.unique(table, axis=1, return_inverse=True)
    for k, entries in enumerate(kinds.T):
        yield np.flatnonzero(owner.ravel() == k), entries


def regularize(fit: Fit, form: LossForm, table: Array, hessian: Array, pull: Array | None = None) -> Array:
    """Return the minimiser of a quadratic model of the loss plus the regularizer; the model is centred at the end of the steps.

    With a `pull`, the gradient of the regularizer and K at that end, the model's gradient there is its opposite.
    """
    scores, units, ridge, size = fit.queries.scores, fit.queries.units, ridge_of(form), fit.size
    theta = fit.queries.parameters(table)
    if ridge is not None and not ridge.any():
        return theta
    block = hessian / np.outer(units, units)
    if ridge is not None and not scores.is_implied:
        found = table * units
        pulled = block @ found + (0.0 if pull is None else scores.table(pull))
        for own, more in equal_columns(size * scores.squares(ridge)):
            found[:, own] = np.linalg.solve(block + np.diag(more), pulled[:, own])
        return scores.coordinates(found)
    spread = sp.kron(sp.csr_array(scores.table_projection), block, format="csr")
    whole = sp.csr_array(scores.to_table.T @ spread @ scores.to_table)
    return least_point(form, whole, whole @ theta + (0.0 if pull is None else pull), size)
