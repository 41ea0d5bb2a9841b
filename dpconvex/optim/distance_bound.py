"""How far a computed answer is from the minimiser: recomputed from the problem, never taken from a solver.

Every method sees a problem as F = f + h: f the losses, the noise, the quadratic, and the smooth part of the regularizer; h the
indicator of K and the kinks of the regularizer that have a proximal map together with it.  For any y and L > 0, a step
``x = prox(y - grad f(y) / L)`` has the subgradient ``r = grad f(x) - grad f(y) + L (y - x)`` of F, so
``||x - minimiser|| <= ||r|| / mu``, and what rounding does is added.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from dpconvex.optim.problem import Problem
from dpconvex.util.arrays import Array
from dpconvex.util.summation import SumLengths, public_norms

T = TypeVar("T")


class Composite:
    """Values, gradients and proximal steps of a problem; `evaluations` counts passes, parts of one in proportion."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.dim, self.evaluations = problem, problem.space.dim, 0.0
        columns = () if problem.lengths else problem.batch.fields.values()  # partitions show none
        scalars = sum(math.prod(column.shape[1:]) for column in columns)
        self.lengths = problem.lengths or SumLengths(scalars * (scalars + 3) // 2, max(self.dim, 1), self.dim)

    @cached_property
    def is_smooth(self) -> bool:
        """Whether h is zero: K is all of space and nothing is split off."""
        return self.problem.feasible.is_space and not self.problem.kinks.terms

    @cached_property
    def curvature(self) -> float:
        """Proved Lipschitz constant of the gradient of f where the problem's `bend` holds; infinite if there is none."""
        problem = self.problem
        if not np.isfinite(problem.hessian_bound + problem.bend.rest):
            return np.inf
        whole = problem.batch.size * problem.hessian_bound + self.stiffness + problem.added
        return max(whole, problem.strong_convexity) * (1 + 1e-9)

    def curvature_at(self, theta: Array) -> float:
        """Return the same for the segment from a point of K to the minimiser."""
        return self.curvature if float(np.linalg.norm(theta)) <= self.problem.bend.radius else np.inf

    def balanced(self, theta: Array) -> float:
        """Return the root of L_f mu; infinite where L_f is not known."""
        return float(np.sqrt(self.curvature_at(theta) * self.problem.strong_convexity))

    def reached(self, iterate: "Iterate", tolerance: float) -> bool:
        return iterate.distance_bound <= self.problem.distance_allowed(tolerance, iterate.theta)

    def smooth(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient of f; infinity and NaN where it is too large to compute with."""
        self.evaluations += 1
        value, gradient = self.problem.value_and_gradient(theta, smooth=True)
        if not (np.isfinite(value) and np.abs(gradient).max(initial=0.0) < 1e150):
            return np.inf, np.full(self.dim, np.nan)
        return value, gradient

    def read(self, model: Callable[[Problem, Array, int], T], theta: Array, records: int) -> T:
        """Make a model at a point from about so many records."""
        self.evaluations += min(1.0, records / max(self.problem.batch.size, 1))
        return model(self.problem, theta, records)

    def hessian(self, theta: Array) -> Array:
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
        return self.problem.feasible.project(self.problem.kinks.proximal(theta, step * self.problem.size))

    def proximal_error(self, theta: Array, gradient: Array, lipschitz: float) -> float:
        start, step = theta - gradient / lipschitz, self.problem.size / lipschitz
        shrunk = float(np.linalg.norm(self.problem.kinks.proximal(start, step)))
        return self.problem.feasible.error(shrunk) + self.problem.kinks.error(float(np.linalg.norm(start)), step)

    def gradient_error(self, theta: Array, gradient: Array) -> float:
        """Bound how far a computed gradient of f can be from the exact one, from rounding (docs/release.md, section 5)."""
        problem = self.problem
        noise = 0.0 if problem.linear is None else float(np.linalg.norm(problem.linear))
        radius, whole = float(np.linalg.norm(theta)), float(np.linalg.norm(gradient))
        data = problem.batch.size * problem.gradient_bound
        public = public_norms(data, noise, problem.added * radius, whole, self.stiffness * radius)
        bend = problem.hessian_bound if np.isfinite(problem.hessian_bound) else 0.0
        return self.lengths.gradient_error(problem.batch.size, problem.gradient_bound, bend, radius, public)

    @cached_property
    def stiffness(self) -> float:
        """Bound on the absolute values that the regularizer's gradient adds up; its strong convexity where it is unknown."""
        known = self.problem.size * (self.problem.bend.quadratic + self.problem.bend.rest)
        return known if np.isfinite(known) else self.problem.strong_convexity


@dataclass(frozen=True, eq=False)
class Iterate:
    """A point of K (but for rounding), the bound tau on its distance from the minimiser, and f there."""

    theta: Array
    distance_bound: float
    value: float
    gradient: Array
    lipschitz: float  # the L of the proximal-gradient step that led there


def step(composite: Composite, point: Array, value: float, gradient: Array, lipschitz: float) -> Iterate:
    """Proximal-gradient step and its certificate; L is doubled until f lies below its quadratic model there (up to rounding)."""
    mu = composite.problem.strong_convexity
    while True:
        theta = composite.proximal(point - gradient / lipschitz, 1.0 / lipschitz)
        move = point - theta
        reached, slope = composite.smooth(theta)
        # Near the minimiser the difference of values drowns in rounding, and gradients tell more.
        model = value - float(gradient @ move) + 0.5 * lipschitz * float(move @ move)
        fine = reached <= model or float(np.linalg.norm(slope - gradient)) <= lipschitz * float(np.linalg.norm(move))
        if fine or lipschitz > 1e30 * mu:
            break
        lipschitz *= 2.0
    residual = slope - gradient + lipschitz * move
    bound = (float(np.linalg.norm(residual)) + 2 * composite.gradient_error(theta, slope)) / mu
    if not composite.is_smooth:
        bound += composite.proximal_error(point, gradient, lipschitz) * spread(composite, theta, lipschitz)
    plain = at_point(composite, theta, reached, slope, lipschitz)
    return replace(plain, distance_bound=float(np.fmin(plain.distance_bound, bound)))


def spread(composite: Composite, theta: Array, lipschitz: float) -> float:
    """The rate at which the distance of a step moves with its end; estimated by L where no L_f is proved, as for no release."""
    curvature = composite.curvature_at(theta) if np.isfinite(composite.curvature) else lipschitz
    return 1 + (lipschitz + curvature) / composite.problem.strong_convexity


def at_point(
    composite: Composite, theta: Array, value: float, gradient: Array, lipschitz: float | None = None
) -> Iterate:
    """Certificate of a point itself, from f and its gradient there, without another pass over the records.

    Of a step x with ``L = sqrt(L_f mu)``, where h is not 0: ``||theta - minimiser|| <= ||theta - x|| (1 + 2 sqrt(L_f/mu))``
    (docs/theory.md, section 13).  Infinite if L_f is not known.
    """
    mu = composite.problem.strong_convexity
    bound, root = float(np.linalg.norm(gradient)) / mu, composite.balanced(theta)
    if not composite.is_smooth:
        bound = np.inf
        if np.isfinite(root):
            move = theta - composite.proximal(theta - gradient / root, 1.0 / root)
            error = composite.proximal_error(theta, gradient, root)
            bound = (float(np.linalg.norm(move)) + error) * (1 + 2 * root / mu)
    bound += composite.gradient_error(theta, gradient) / mu
    return Iterate(theta, bound if np.isfinite(bound) else np.inf, value, gradient, lipschitz or mu)


def floor(composite: Composite, iterate: Iterate) -> float:
    """Return the smallest distance bound that rounding allows, near an iterate."""
    mu, theta, gradient = composite.problem.strong_convexity, iterate.theta, iterate.gradient
    errors = composite.gradient_error(theta, gradient) / mu
    if composite.is_smooth:
        return errors
    proximal = composite.proximal_error(theta, gradient, iterate.lipschitz)
    lowest, root = 2 * errors + proximal * spread(composite, theta, iterate.lipschitz), composite.balanced(theta)
    if not np.isfinite(root):
        return lowest
    return min(lowest, errors + composite.proximal_error(theta, gradient, root) * (1 + 2 * root / mu))
