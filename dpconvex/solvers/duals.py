"""Certificates from multipliers, for feasible sets without a projection in closed form.

The perturbed objective is minimised over the inequalities of K, and the distance of the answer from the exact minimiser is
bounded by multipliers of these (`geometry.certified_minimum`).
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dpconvex.geometry.certified_distance import Certified
from dpconvex.geometry.certified_minimum import minimum
from dpconvex.solvers.composite import Composite
from dpconvex.solvers.problem import Problem

Array = NDArray[np.float64]


class PerturbedObjective:
    """The objective of a problem as `certified_minimum` wants it; heights above kinks come last."""

    def __init__(self, problem: Problem) -> None:
        self.composite = Composite(problem, projected=False)
        self.modulus = problem.strong_convexity
        heights = problem.epigraph
        self.costs = np.zeros(0) if heights is None else problem.size * heights.weights

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Both at a point."""
        theta, heights = np.split(x, [self.composite.dim])
        value, gradient = self.composite.smooth(theta)
        return value + float(self.costs @ heights), np.concatenate([gradient, self.costs])

    def hessian(self, x: Array) -> Array:
        """Return the Hessian, 0 along heights."""
        dim = self.composite.dim
        found = self.composite.hessian(x[:dim])
        matrix = np.zeros((len(x), len(x)))
        matrix[:dim, :dim] = found if np.isfinite(found).all() else self.modulus * np.eye(dim)
        return matrix

    def gradient_error(self, x: Array, gradient: Array) -> float:
        """Bound what rounding does to a gradient."""
        dim = self.composite.dim
        return self.composite.gradient_error(x[:dim].astype(float), gradient[:dim])


def certify_by_duals(problem: Problem, start: Array, tolerance: float) -> tuple[Certified, int]:
    """Minimise a problem over the inequalities of K; returns the answer and the passes over the records that it took."""
    objective, heights = PerturbedObjective(problem), problem.epigraph
    if heights is None:
        found = minimum(objective, problem.feasible.region, start, tolerance)
    else:
        lifted = np.concatenate([start, heights.heights(start)])
        lifted = lifted if np.isfinite(lifted).all() else heights.region.inside.astype(float)
        found = minimum(objective, heights.region, lifted, tolerance)
        found = replace(found, point=found.point[: len(start)])
    return found, objective.composite.evaluations
