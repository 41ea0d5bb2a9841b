"""Certified answers: points with a proved distance from the minimiser, by proximal steps or by multipliers."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import NotConverged
from dpconvex.numerics import EPSILON
from dpconvex.optim import proximal_newton, quasi_newton
from dpconvex.optim.problem import Iterate, Problem, Solution, at_point, distance_floor, proximal_step
from dpconvex.optim.proximal_newton import Coordinates
from dpconvex.sets.certified_distance import Certified
from dpconvex.sets.certified_minimum import minimum
from dpconvex.util.arguments import COUNT, POSITIVE
from dpconvex.util.arrays import Array


def certify(problem: Problem, theta: Array, tolerance: float, max_steps: int = 20000) -> Solution:
    """Improve a point until it is certified to lie within a tolerance of the minimiser, or raise `NotConverged`."""
    found, remedy = closest_point(problem, theta, tolerance, max_steps)
    if problem.reached(found, tolerance):
        return found
    why = f"the answer could not be certified to within {tolerance:.3g} of the minimiser; nothing is released"
    raise NotConverged(f"{why}. {remedy}")  # does not say how far: that would tell about the data


def closest_point(problem: Problem, theta: Array, tolerance: float, max_steps: int = 20000) -> tuple[Solution, str]:
    """Return the best point found, with its certified distance, and advice for the case that the distance is too large."""
    POSITIVE.check("certify", tolerance=tolerance)
    start = np.asarray(theta, dtype=float)
    if start.shape != (problem.space.dim,) or not np.isfinite(start).all():
        raise NotConverged("the solver returned no finite point to certify; nothing is released.")
    if problem.feasible.has_projection and problem.kinks.epigraph is None:
        return by_projections(problem, start, tolerance, max_steps)
    if problem.feasible.obstacle is not None:
        raise NotConverged(f"the answer cannot be certified, because {problem.feasible.obstacle}. Nothing is released.")
    found = PerturbedObjective(problem).minimised(start, tolerance)
    remedy = "Ask for a larger tolerance, regularize more, or write constraints that have a projection."
    return Solution(found.point, found.distance, problem.loss.evaluations), remedy


def by_projections(problem: Problem, start: Array, tolerance: float, max_steps: int) -> tuple[Solution, str]:
    """Take proximal steps, and return with their end what may help if it is too far from the minimiser."""
    best = polish(problem, start, tolerance, max_steps)
    remedy = f"It took at most {max_steps} polishing steps: allow more, regularize more, or smooth nonsmooth terms."
    if distance_floor(problem, best) > problem.distance_allowed(tolerance, best.theta):
        remedy = "Double precision allows no less here: ask for a larger tolerance, or regularize more."
    return Solution(best.theta, best.distance_bound, problem.loss.evaluations), remedy


def polish(problem: Problem, start: Array, tolerance: float, max_steps: int) -> Iterate:
    """Take steps until the certified distance reaches the tolerance, or steps no longer help."""
    feasible = problem.feasible
    start = start if problem.is_smooth else feasible.project(start)
    value, gradient = problem.smooth(start)
    if not np.isfinite(value) and max_steps > 0:  # no method can start from an infinite value
        start = feasible.project(np.zeros(problem.space.dim))
        value, gradient = problem.smooth(start)
    if not np.isfinite(value):
        return Iterate(start, np.inf, value, gradient, problem.strong_convexity)
    best = at_point(problem, start, value, gradient)
    if problem.is_smooth:
        return quasi_newton.descend(problem, best, tolerance, max_steps)
    plain = not problem.kinks.terms and np.isfinite(problem.curvature)
    matrices = Coordinates.of(feasible.pieces) if plain else None
    if matrices is not None:
        best = proximal_newton.descend(problem, matrices, best, tolerance, max_steps)
    if not problem.reached(best, tolerance):
        ahead = problem.curvature_ahead(best.theta, best.gradient)
        stepped = proximal_step(problem, best.theta, best.value, best.gradient, ahead)
        best = min(stepped, replace(best, lipschitz=stepped.lipschitz), key=lambda iterate: iterate.distance_bound)
    reached = problem.reached(best, tolerance)
    return best if reached else quasi_newton.descend_with_kinks(problem, best, tolerance, max_steps)


class PerturbedObjective:
    """The objective of a problem in the form that `certified_minimum` needs; the epigraph variables of kinks come last."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.modulus, self.epigraph = problem.strong_convexity, problem.kinks.epigraph
        self.costs = np.zeros(0) if self.epigraph is None else problem.size * self.epigraph.weights

    def minimised(self, start: Array, tolerance: float) -> Certified:
        if self.epigraph is None:
            return minimum(self, self.problem.feasible.region, start, tolerance)
        lifted = np.concatenate([start, self.epigraph.heights(start)])
        lifted = lifted if np.isfinite(lifted).all() else self.epigraph.region.inside.astype(float)
        found = minimum(self, self.epigraph.region, lifted, tolerance)
        return replace(found, point=found.point[: len(start)])

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        theta, heights = np.split(x, [self.problem.space.dim])
        value, gradient = self.problem.smooth(theta)
        return value + float(self.costs @ heights), np.concatenate([gradient, self.costs])

    def hessian(self, x: Array) -> Array:
        dim = self.problem.space.dim
        found = self.problem.hessian(x[:dim])
        found = found if np.isfinite(found).all() else self.modulus * np.eye(dim)
        return np.pad(found, (0, len(self.costs)))

    def gradient_error(self, x: Array, gradient: Array) -> float:
        dim = self.problem.space.dim
        return self.problem.gradient_error(x[:dim].astype(float), gradient[:dim])

    def lowered(self, x: Array) -> Array:
        if self.epigraph is None:
            return x
        theta, heights = np.split(x, [self.problem.space.dim])
        terms = self.epigraph.heights(theta.astype(float))
        above = terms + 4 * EPSILON * np.abs(terms)
        return np.concatenate([theta, np.where(heights > above, above, heights)])


@dataclass(frozen=True)
class FirstOrder:
    """Solve from zero by quasi-Newton steps."""

    max_steps: int = 20000

    def __post_init__(self) -> None:
        COUNT.check("FirstOrder", max_steps=self.max_steps)

    def solve(self, problem: Problem, tolerance: float = 1e-6) -> Solution:
        return certify(problem, np.zeros(problem.space.dim), tolerance, self.max_steps)


class Warm:
    """Solve from the last answer, for many fits of one batch."""

    def __init__(self) -> None:
        self.last: NDArray[np.float64] | None = None

    def solve(self, problem: Problem, tolerance: float) -> Solution:
        start = self.last if self.last is not None else np.zeros(problem.space.dim)
        solution = certify(problem, start, tolerance)
        self.last = solution.theta
        return solution
