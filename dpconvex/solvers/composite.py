"""A problem as smooth part plus a part with a proximal map, which is how every method here sees it.

F = f + h:   f  the losses, the noise, the quadratic, and the smooth part of the regularizer,
h  the indicator of K and the kinks of the regularizer that have a proximal map together with it.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.summation import Lengths, public_norms
from dpconvex.errors import NotConverged
from dpconvex.geometry.conditions import has_kinks
from dpconvex.geometry.convex_sets import UNIT
from dpconvex.geometry.kinks import Kinks
from dpconvex.geometry.quadratics import Bend
from dpconvex.solvers.problem import Problem

Array = NDArray[np.float64]


class Composite:
    """Values, gradients and proximal steps of a problem, counted.

    Attributes
    ----------
    evaluations : int
        Passes over the records: how often the smooth part and its gradient, or a product with its Hessian, were computed.
    """

    def __init__(self, problem: Problem, projected: bool = True) -> None:
        if projected and not problem.feasible.has_projection:
            raise NotConverged(
                f"the answer cannot be certified, because {problem.feasible.reason}. Nothing is released."
            )
        self.problem = problem
        self.dim = problem.space.dim
        self.evaluations = 0

    @cached_property
    def kinks(self) -> Kinks | None:
        """The part of the regularizer that has a proximal map together with K."""
        return self.problem.split[1]

    @cached_property
    def is_smooth(self) -> bool:
        """Whether h is zero: K is all of space and nothing is split off."""
        return self.problem.feasible.is_space and self.kinks is None

    @cached_property
    def bend(self) -> Bend:
        """Bounds on the curvature of the regularizer; a problem that brings none knows only that of squares."""
        if self.problem.bend is not None:
            return self.problem.bend
        regularizer = self.problem.loss.quadratic(self.problem.split[0])
        if regularizer is None:
            return Bend(0.0, np.inf, 0.0)
        return Bend(float(abs(regularizer.hessian).sum(axis=1).max(initial=0.0)), 0.0, np.inf)

    @cached_property
    def curvature(self) -> float:
        """Proved Lipschitz constant of the gradient of f where `bend` holds; infinite if there is none."""
        problem = self.problem
        if problem.hessian_bound is None or not np.isfinite(self.bend.rest):
            return np.inf
        public = self.stiffness + problem.added
        return max(problem.batch.size * problem.hessian_bound + public, problem.strong_convexity) * (1 + 1e-9)

    def curvature_at(self, theta: Array) -> float:
        """Return the same for the segment from a point of K to the minimiser."""
        return self.curvature if float(np.linalg.norm(theta)) <= self.bend.radius else np.inf

    @cached_property
    def has_kinks(self) -> bool:
        """Whether what is left of the regularizer has kinks."""
        return has_kinks(self.problem.split[0])

    def smooth(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient of f; infinity and NaN where it is too large to compute with."""
        self.evaluations += 1
        value, gradient = self.problem.value_and_gradient(theta, smooth=True)
        if not (np.isfinite(value) and np.abs(gradient).max(initial=0.0) < 1e150):
            return np.inf, np.full(self.dim, np.nan)
        return value, gradient

    def hessian(self, theta: Array) -> Array:
        """The Hessian of f; counted as a pass over the records."""
        self.evaluations += 1
        return self.problem.hessian(theta)

    def curvature_ahead(self, theta: Array, gradient: Array) -> float:
        """Estimate the Lipschitz constant of the gradient of f from a short step downhill; at least mu."""
        mu, norm = self.problem.strong_convexity, float(np.linalg.norm(gradient))
        if norm == 0.0 or not np.isfinite(norm):
            return mu
        length = 1e-3 * max(1.0, float(np.linalg.norm(theta)))
        change = float(np.linalg.norm(self.smooth(theta - length / norm * gradient)[1] - gradient)) / length
        return max(change, mu) if np.isfinite(change) else mu

    def proximal(self, theta: Array, step: float) -> Array:
        if self.kinks is not None:
            theta = self.kinks.proximal(theta, step * self.problem.size)
        return self.problem.feasible.project(theta)

    def separable(self, theta: Array) -> float:
        """The kinks in h (its indicator is left to the caller, who stays in K)."""
        return 0.0 if self.kinks is None else self.problem.size * self.kinks.value(theta)

    def proximal_error(self, theta: Array, step: float) -> float:
        """Bound on the distance between the computed and the exact proximal point."""
        norm = float(np.linalg.norm(theta))
        error = 4 * UNIT * norm if self.kinks is None else self.kinks.error(norm, step * self.problem.size)
        point = theta if self.kinks is None else self.kinks.proximal(theta, step * self.problem.size)
        return self.problem.feasible.error(float(np.linalg.norm(point))) + error

    def gradient_error(self, theta: Array, gradient: Array) -> float:
        """Bound how far a computed gradient of f can be from the exact one, from rounding (docs/release.md, section 5)."""
        problem = self.problem
        data = problem.batch.size * (problem.gradient_bound or 0.0)
        noise = 0.0 if problem.linear is None else float(np.linalg.norm(problem.linear))
        radius = float(np.linalg.norm(theta))
        whole = float(np.linalg.norm(gradient))
        public = public_norms(data, noise, problem.added * radius, whole, self.stiffness * radius)
        bend = (
            problem.hessian_bound if problem.hessian_bound is not None and np.isfinite(problem.hessian_bound) else 0.0
        )
        return self.lengths.gradient_error(problem.batch.size, problem.gradient_bound or 0.0, bend, radius, public)

    @cached_property
    def stiffness(self) -> float:
        """Bound on the absolute values that the regularizer's gradient adds up; its strong convexity where it is unknown."""
        bend = self.bend
        return (
            self.problem.size * (bend.quadratic + bend.rest)
            if np.isfinite(bend.rest)
            else self.problem.strong_convexity
        )

    @cached_property
    def lengths(self) -> Lengths:
        """How long the sums are that make a gradient."""
        if self.problem.lengths is not None:
            return self.problem.lengths
        fields = self.problem.batch.fields.values()
        scalars = sum(int(np.prod(column.shape[1:], dtype=np.int64)) for column in fields)
        return Lengths(scalars, max(self.dim, 1), self.dim)
