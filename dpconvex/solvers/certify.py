"""Answers that are certified to lie within a tolerance of the minimiser."""

from weakref import ReferenceType, WeakKeyDictionary, ref

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import NotConverged, TemplateError
from dpconvex.solvers import proximal, smooth
from dpconvex.solvers.composite import Composite
from dpconvex.solvers.distance import Iterate, at_point, floor, step
from dpconvex.solvers.duals import certify_by_duals
from dpconvex.solvers.problem import Problem, Solution

Array = NDArray[np.float64]

# So often do interior points and steps take turns where neither reaches a tolerance.
ROUNDS, MANY = 4, 1000


def certify(problem: Problem, theta: Array, tolerance: float, max_steps: int = 20000) -> Solution:
    """Polish a point until it is certified to lie within a tolerance of the minimiser."""
    if not (np.isfinite(tolerance) and tolerance > 0):
        raise TemplateError(f"certify: tolerance must be positive and finite, not {tolerance!r}.")
    start = np.asarray(theta, dtype=float)
    if start.shape != (problem.space.dim,) or not np.isfinite(start).all():
        raise NotConverged("the solver returned no finite point to certify; nothing is released.")
    if problem.feasible.by_multipliers or problem.epigraph is not None:
        return remembered(by_duals(problem, start, tolerance), problem)
    return remembered(by_projections(problem, start, tolerance, max_steps), problem)


def by_projections(problem: Problem, start: Array, tolerance: float, max_steps: int) -> Solution:
    composite = Composite(problem)
    best = polish(composite, start, tolerance, max_steps)
    if best.distance_bound <= tolerance:
        return Solution(best.theta, best.distance_bound, composite.evaluations)
    # Far out, along the edge of K or of a piece of the loss, interior points find what steps do not, and the other way round.
    turns = max_steps >= MANY and problem.feasible.obstacle is None
    for _ in range(ROUNDS if turns else 0):
        found, _ = certify_by_duals(problem, best.theta, tolerance)
        if found.distance <= tolerance:
            return Solution(found.point, found.distance, composite.evaluations)
        closer = polish(composite, found.point, tolerance, max_steps)
        if closer.distance_bound <= tolerance:
            return Solution(closer.theta, closer.distance_bound, composite.evaluations)
        best = min(best, closer, key=lambda iterate: iterate.distance_bound)
    raise NotConverged(failure(composite, best, tolerance, max_steps))


def polish(composite: Composite, start: Array, tolerance: float, max_steps: int) -> Iterate:
    """Step until the certified distance reaches the tolerance, or no step helps any more."""
    mu, feasible = composite.problem.strong_convexity, composite.problem.feasible
    if not composite.is_smooth:
        start = feasible.project(start)
    value, gradient = composite.smooth(start)
    if not np.isfinite(value) and max_steps > 0:  # a start from which no method could go on
        start = feasible.project(np.zeros(composite.dim))
        value, gradient = composite.smooth(start)
    if not np.isfinite(value):
        return Iterate(start, np.inf, value, gradient, mu)
    best = at_point(composite, start, value, gradient)
    if best.distance_bound <= tolerance or (composite.is_smooth and max_steps == 0):
        return best
    if composite.is_smooth:
        return smooth.descend(composite, best, tolerance, max_steps)
    best = step(composite, start, value, gradient, composite.curvature_ahead(start, gradient))
    if best.distance_bound <= tolerance or max_steps == 0:
        return best
    return proximal.descend(composite, best, tolerance, max_steps)


def by_duals(problem: Problem, start: Array, tolerance: float) -> Solution:
    """Certify by multipliers of the constraints, where K has no projection in closed form."""
    if problem.feasible.obstacle is not None:
        raise NotConverged(f"the answer cannot be certified, because {problem.feasible.obstacle}. Nothing is released.")
    best, evaluations = certify_by_duals(problem, start, tolerance)
    if best.distance <= tolerance:
        return Solution(best.point, best.distance, evaluations)
    raise NotConverged(
        f"the answer is certified only to within {best.distance:.3g} of the minimiser, and {tolerance:.3g} was asked for; "
        "nothing is released. Ask for a larger tolerance, regularize more, or write constraints that have a projection."
    )


def remembered(solution: Solution, problem: Problem) -> Solution:
    """Keep in mind which problem and point were certified."""
    _CERTIFIED[solution] = ref(problem), solution.theta.tobytes()
    return solution


# What `certify` handed out: for which problem, and the point.
_CERTIFIED: WeakKeyDictionary[Solution, tuple[ReferenceType[Problem], bytes]] = WeakKeyDictionary()


def is_certified(solution: Solution, problem: Problem) -> bool:
    """Say whether a solution comes from `certify`, for this very problem, with its point unchanged."""
    known, point = _CERTIFIED.get(solution, (None, b""))
    return known is not None and known() is problem and solution.theta.tobytes() == point


def failure(composite: Composite, best: Iterate, tolerance: float, max_steps: int) -> str:
    """Say how far the answer is, and what to do about it."""
    lowest = floor(composite, best)
    text = (
        f"the answer is certified only to within {best.distance_bound:.3g} of the minimiser, and {tolerance:.3g} was asked "
        "for; nothing is released. "
    )
    if lowest > tolerance and not (composite.has_kinks and best.distance_bound > 100 * lowest):
        return text + (
            f"Double precision allows about {lowest:.2g} here: ask for a larger tolerance, or regularize more."
        )
    if composite.has_kinks:
        return text + (
            "The regularizer has absolute values on coordinates that are constrained otherwise than by bounds and balls; "
            "smooth them (cp.huber) or drop the constraint."
        )
    return text + (
        f"It took at most {max_steps} polishing steps: allow more of them, regularize more, or smooth what has kinks."
    )
