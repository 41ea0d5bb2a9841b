"""Certificates from multipliers, for feasible sets without a projection in closed form.

The perturbed objective is minimised over the inequalities of K, and the distance of the answer from the exact minimiser is
bounded by multipliers of these (`geometry.certified_minimum`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpconvex.geometry.certified_minimum import Certified, minimum
from dpconvex.solvers.composite import Composite
from dpconvex.solvers.problem import Problem

__all__ = ["PerturbedObjective", "certify_by_duals"]

Array = NDArray[np.float64]


class PerturbedObjective:
    """The objective of a problem as `certified_minimum` wants it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.composite = Composite(problem, projected=False)
        self.modulus = problem.strong_convexity

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Both at a point."""
        return self.composite.smooth(x)

    def hessian(self, x: Array) -> Array:
        """Return products with all coordinate directions, symmetrised."""
        columns = np.array([self.composite.hessian_product(x, e) for e in np.eye(self.composite.dim)])
        matrix = (columns + columns.T) / 2
        least = self.modulus * np.eye(len(matrix))
        return matrix if np.isfinite(matrix).all() else least

    def gradient_error(self, x: Array, gradient: Array) -> float:
        """Bound what rounding does to a gradient."""
        return self.composite.gradient_error(x, gradient)


def certify_by_duals(problem: Problem, start: Array, tolerance: float) -> tuple[Certified, int]:
    """Minimise a problem over the inequalities of K; returns the answer and the passes over the records that it took."""
    objective = PerturbedObjective(problem)
    found = minimum(objective, problem.feasible.linearised, start, tolerance)
    return found, objective.composite.evaluations
