"""How far a computed answer is from the minimiser: recomputed from the problem, never taken from a solver.

For any point y and any L > 0, the proximal-gradient step ``x = prox(y - grad f(y) / L)`` of F = f + h satisfies
``L (y - x) - grad f(y)`` in the subdifferential of h at x, so

    r = grad f(x) - grad f(y) + L (y - x)   is a subgradient of F at x,

and because F is mu-strongly convex, ``||x - minimiser|| <= ||r|| / mu``: whatever produced y, and however L was chosen.  What
rounding does to the gradients and to the projection is added.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpconvex.solvers.composite import Composite

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Iterate:
    """A point of K (but for rounding), the bound tau on its distance from the minimiser, and f there."""

    theta: Array
    distance_bound: float
    value: float
    gradient: Array
    lipschitz: float  # the L of the proximal-gradient step that led there


def step(
    composite: Composite, point: Array, value: float, gradient: Array, lipschitz: float, backtrack: bool = True
) -> Iterate:
    """Proximal-gradient step from a point where f is known, and its certificate.

    With `backtrack`, L is doubled until f lies below its quadratic model at the new point (up to rounding).
    """
    mu = composite.problem.strong_convexity
    while True:
        theta = composite.proximal(point - gradient / lipschitz, 1.0 / lipschitz)
        move = point - theta
        reached, slope = composite.smooth(theta)
        # Near the minimiser the difference of values drowns in rounding, and gradients tell more.
        model = value - float(gradient @ move) + 0.5 * lipschitz * float(move @ move)
        fine = reached <= model or float((slope - gradient) @ (slope - gradient)) <= lipschitz**2 * float(move @ move)
        if fine or not backtrack or lipschitz > 1e30 * mu:
            break
        lipschitz *= 2.0
    residual = slope - gradient + lipschitz * move
    bound = float(np.linalg.norm(residual)) / mu + 2 * composite.gradient_error(theta, slope) / mu
    if not composite.is_smooth:
        start = point - gradient / lipschitz
        bound += composite.proximal_error(start, 1.0 / lipschitz) * spread(composite, theta, lipschitz)
    plain = at_point(composite, theta, reached, slope, lipschitz)
    return replace(plain, distance_bound=min(plain.distance_bound, bound if np.isfinite(bound) else np.inf))


def spread(composite: Composite, theta: Array, lipschitz: float) -> float:
    """How far the certified distance of a step moves with its end: ``1 + (L + L_f)/mu``.

    Every release has a proved L_f (`dpconvex.mechanisms.residual_noise` refuses what has none).  For other problems, which
    promise nothing, it is estimated by L.
    """
    curvature = composite.curvature_at(theta) if np.isfinite(composite.curvature) else lipschitz
    return 1 + (lipschitz + curvature) / composite.problem.strong_convexity


def at_point(
    composite: Composite, theta: Array, value: float, gradient: Array, lipschitz: float | None = None
) -> Iterate:
    """Certificate of a point itself, from f and its gradient there.

    Where h = 0, the gradient is the only subgradient.  Else let ``x = prox(theta - grad f(theta) / L)`` with
    ``L = sqrt(L_f mu)``, L_f a proved Lipschitz constant of the gradient of f, which has all of the strong convexity; then

        ||theta - minimiser|| <= ||theta - x|| (1 + 2 sqrt(L_f/mu)),

    which costs a projection and no pass over the records (docs/theory.md, section 13).  Infinite where L_f is not known.
    """
    mu = composite.problem.strong_convexity
    error = composite.gradient_error(theta, gradient) / mu
    if composite.is_smooth:
        bound = float(np.linalg.norm(gradient)) / mu + error
    else:
        condition = condition_at(composite, theta)
        if np.isfinite(condition):
            point = theta - gradient / (condition * mu)
            step_length = 1.0 / (condition * mu)
            move = theta - composite.proximal(point, step_length)
            proximal = composite.proximal_error(point, step_length)
            bound = (float(np.linalg.norm(move)) + proximal) * (1 + 2 * condition) + error
        else:
            bound = np.inf
    return Iterate(theta, bound if np.isfinite(bound) else np.inf, value, gradient, lipschitz or mu)


def condition_at(composite: Composite, theta: Array) -> float:
    """Root of L_f/mu; infinite where L_f is not known."""
    return float(np.sqrt(composite.curvature_at(theta) / composite.problem.strong_convexity))


def floor(composite: Composite, iterate: Iterate) -> float:
    """Return the smallest distance bound that rounding allows, near an iterate."""
    mu = composite.problem.strong_convexity
    errors = composite.gradient_error(iterate.theta, iterate.gradient) / mu
    if composite.is_smooth:
        return errors
    point = iterate.theta - iterate.gradient / iterate.lipschitz
    proximal = composite.proximal_error(point, 1.0 / iterate.lipschitz)
    lowest = 2 * errors + proximal * spread(composite, iterate.theta, iterate.lipschitz)
    condition = condition_at(composite, iterate.theta)
    if np.isfinite(condition):
        point = iterate.theta - iterate.gradient / (condition * mu)
        lowest = min(lowest, errors + composite.proximal_error(point, 1.0 / (condition * mu)) * (1 + 2 * condition))
    return lowest
