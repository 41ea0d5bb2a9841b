"""Steps on a table of scores that know what is public: squares of parameters, and K.

All of this is post-processing of noisy gradients: nothing here reads data, and no accuracy need be certified.
"""

from typing import Any

import numpy as np

from dpconvex.optim.adaptive_descent import alike
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sums.linear_scores import LinearScores
from dpconvex.util.arrays import Array

SWEEPS = 6  # Of a projection, each of which begins where the last one ended
FAR = 1e3  # How far away K is looked at


class ImplicitSteps:
    """Steps in a metric: against a gradient, then implicit ones of squares, then to scores that K allows."""

    def __init__(self, form: LossForm, scores: LinearScores, matrix: Array, units: Array, ridge: Array) -> None:
        every = alike(scores.squares(ridge) * units**2)
        self.stiff: Any = [(at, *np.linalg.eigh((matrix * own) @ matrix.T)) for at, own in every if own.any()]
        self.pieces, self.project = form.feasible.pieces, form.feasible.project
        self.inside, self.off = np.zeros((2, form.space.dim))
        self.bound, self.ridge, self.step = is_bound(form, scores), ridge, 0.0
        if self.bound:
            self.table = np.kron(scores.onto_columns, np.linalg.inv(matrix.T) / units.T) @ scores.reading

    def direction(self, point: Array, gradient: Array, step: float) -> Array:
        """Return by how much a step moves a point, next to the length of the step."""
        moved = point - step * gradient
        if self.bound:
            return np.asarray((self.allowed(moved, step) - point) / step)
        for at, values, vectors in self.stiff:
            moved[:, at] = (vectors / (1 + step * values)) @ (vectors.T @ moved[:, at])
        return np.asarray((moved - point) / step)

    def allowed(self, point: Array, step: float) -> Array:
        """Return about the best point that parameters in K have: by the alternating direction method of multipliers."""
        if step != self.step:
            hessian = self.table.T @ self.table + np.diag(step * self.ridge)
            self.weight, self.step = np.diag(hessian).copy(), step
            for piece in self.pieces:
                self.weight[piece.coordinates] = self.weight[piece.coordinates].mean()
            self.inverse = np.linalg.inv(hessian + np.diag(self.weight))
        pull = self.table.T @ point.T.ravel()
        for _ in range(SWEEPS):
            theta = self.inverse @ (pull + self.weight * (self.inside - self.off))
            self.inside = self.project(theta + self.off)
            self.off += theta - self.inside
        return np.asarray((self.table @ self.inside).reshape(point.shape[::-1]).T)


def is_bound(form: LossForm, scores: LinearScores) -> bool:
    """Say whether K bounds scores of all parameters; a part that all matrices share, which no score sees, may free them of it."""
    K, (one, other) = form.feasible, np.random.default_rng(0).normal(size=(2, form.space.dim))
    if K.is_space or not K.has_projection or scores.places.size < scores.lift.shape[1]:
        return False
    deep = K.project(FAR * one) + K.project(-FAR * one)
    unseen = deep - scores.coordinates(scores.table(deep) @ scores.onto_columns)
    point = FAR / max(float(np.linalg.norm(unseen)), 1e-300) * unseen + other
    return not np.allclose(K.project(point), point)
