"""Constraints and kinks over many records: minima of quadratic models over K, each found by steps that read no records.

A model is the Hessian at a point or, in many dimensions, one of the records' second moments, corrected by the last steps and what
they did to the gradient (compact BFGS; J. Nocedal, S. Wright, Numerical Optimization, section 7.2).
"""

from collections import deque
from collections.abc import Callable

import numpy as np

from dpconvex.core.arrays import Array
from dpconvex.solvers import proximal
from dpconvex.solvers.distance import Composite, Iterate, at_point, step
from dpconvex.solvers.smooth import FEWEST, FOR_EACH

# Passes over fewer records cost less than the models that save some of them.
MANY = 20_000
# Steps that correct a model, and steps before which second moments are weighted anew.
PAIRS, RENEWED = 40, (0, 3, 8)
# A model is minimised until the certified distance from its minimiser is this fraction of that from the one looked for, or of the
# tolerance; in so many steps at most.
FRACTION, ENOUGH, STEPS = 0.03, 0.3, 500
# Fraction of the predicted decrease that a step must achieve; where differences of values drown in rounding, the certified
# distance must shrink to a fraction.  How often a step is halved, and how many steps may fail.
DECREASE, NOISE, SHRINKAGE = 1e-4, 1e-11, 0.9
HALVINGS, PATIENCE = 10, 40


class Hessian:
    """A product with directions, corrected by the last steps unless it is exact."""

    def __init__(self, start: Callable[[Array], Array], exact: bool) -> None:
        self.start, self.exact = start, exact
        self.pairs: deque[tuple[Array, Array, Array]] = deque(maxlen=PAIRS)
        self.rows, self.middle = np.zeros((0, 0)), np.zeros((0, 0))

    def update(self, move: Array, change: Array) -> None:
        """Learn the change of the gradient along a step, if its curvature is clearly positive."""
        length = float(np.linalg.norm(move))
        if self.exact or not float(move @ change) > 1e-12 * length * float(np.linalg.norm(change)):
            return
        self.pairs.append((move / length, change / length, self.start(move / length)))
        moves, changes, products = (np.array(part) for part in zip(*self.pairs, strict=True))
        inner = moves @ changes.T
        lower = np.tril(inner, -1)
        middle = np.block([[moves @ products.T, lower], [lower.T, -np.diag(np.diag(inner))]])
        self.rows, self.middle = np.concatenate([products, changes]), np.linalg.pinv(middle, hermitian=True)

    def product(self, direction: Array) -> Array:
        result = self.start(direction)
        return result - self.rows.T @ (self.middle @ (self.rows @ direction)) if self.pairs else result


def modelled(composite: Composite, theta: Array) -> Hessian | None:
    """Return the Hessian at a point, or a model of it; None if neither is to be had."""
    problem = composite.problem
    if problem.loss.has_hessian:
        matrix = composite.hessian(theta)
        return Hessian(lambda direction: matrix @ direction, exact=True) if np.isfinite(matrix).all() else None
    found = problem.loss.grid(problem.seen(theta), max(FEWEST, FOR_EACH * problem.loss.monomials))
    if found is None or not all(np.isfinite(part).all() for part in found):
        return None
    places, bend, moments = found
    public = problem.loss.regularizer_hessian(theta, problem.smooth_part)

    def product(direction: Array) -> Array:
        result = problem.size * (public @ direction) + problem.added * direction
        result[places] += moments @ direction[places] @ bend
        return np.asarray(result)

    return Hessian(product, exact=False)


class Model(Composite):
    """F with the quadratic model of f at a point in its place."""

    def __init__(self, composite: Composite, now: Iterate, hessian: Hessian) -> None:
        super().__init__(composite.problem)
        self.now, self.product = now, hessian.product

    def smooth(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient of the model."""
        move = theta - self.now.theta
        bent = self.product(move)
        return self.now.value + float(self.now.gradient @ move) + 0.5 * float(move @ bent), self.now.gradient + bent


def descend(composite: Composite, start: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Step until the certified distance reaches the tolerance, or models are of no more help."""
    hessian: Hessian | None = None
    best, now, stalled = start, at_point(composite, start.theta, start.value, start.gradient), 0
    for count in range(max_steps):
        if best.distance_bound <= tolerance or not np.isfinite(now.distance_bound) or stalled > PATIENCE:
            break
        if hessian is None or hessian.exact or count in RENEWED:
            hessian = modelled(composite, now.theta)
        following = None if hessian is None else stepped(composite, now, hessian, tolerance)
        if hessian is None or following is None:
            break
        hessian.update(following.theta - now.theta, following.gradient - now.gradient)
        now, stalled = following, stalled + 1
        if now.distance_bound < best.distance_bound:
            best, stalled = now, 0
    return best


def stepped(composite: Composite, now: Iterate, hessian: Hessian, tolerance: float) -> Iterate | None:
    """Go towards the minimiser of a model as far as F decreases enough; None if it does not."""
    model = Model(composite, now, hessian)
    if not np.isfinite(hessian.product(now.gradient)).all():
        return None
    within = max(FRACTION * now.distance_bound, ENOUGH * tolerance)
    try:
        start = step(model, now.theta, now.value, now.gradient, model.curvature_ahead(now.theta, now.gradient))
        move = proximal.descend(model, start, within, STEPS).theta - now.theta
    except np.linalg.LinAlgError:  # far from all that is of any use
        return None
    kinks = composite.separable(now.theta)
    height, slope = now.value + kinks, float(now.gradient @ move) + composite.separable(now.theta + move) - kinks
    for length in 0.5 ** np.arange(HALVINGS):
        theta = now.theta + length * move
        value, gradient = composite.smooth(theta)
        if np.isfinite(value):
            found = at_point(composite, theta, value, gradient)
            drowned = -length * slope <= NOISE * max(abs(height), 1.0)
            if value + composite.separable(theta) <= height + DECREASE * length * min(slope, 0.0):
                return found
            if drowned and found.distance_bound <= SHRINKAGE * now.distance_bound:
                return found
    return None
