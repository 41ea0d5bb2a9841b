"""Constraints and kinks: PANOC (L. Stella, A. Themelis, P. Sopasakis, P. Patrinos, CDC 2017, algorithm 1).

Directions of limited-memory BFGS for the residual of a proximal-gradient step are damped towards that step until the
forward-backward envelope decreases.  Over many records, minima of quadratic models over K come first, each found by such steps,
which read no records.  A model is the Hessian at a point or, in many dimensions, one of the records' second moments, corrected by
the last steps and what they did to the gradient (compact BFGS; J. Nocedal, S. Wright, Numerical Optimization, section 7.2).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpconvex.core.arrays import Array
from dpconvex.solvers.distance import Composite, Iterate, at_point, step
from dpconvex.solvers.smooth import DECREASE, FEWEST, FOR_EACH, Memory

# Steps that directions, or models, are made of; how often a direction is damped, and by how much.
PAIRS, DAMPINGS, DAMPING = 40, 5, 0.25
# Where differences of values drown in rounding, the residual, or the certified distance, must shrink to a fraction; and steps
# without progress after which rounding is to blame.
SHRINKAGE, PATIENCE = 0.9, 40
MANY = 20_000  # Passes over fewer records cost less than the models that save some of them
RENEWED = (0, 3, 8)  # Steps before which second moments are weighted anew
# A model is minimised until the certified distance from its minimiser is this fraction of that from the one looked for, or of the
# tolerance; in so many steps at most.  How often a step towards it is halved, and what of a value is rounding.
FRACTION, ENOUGH, STEPS, HALVINGS, NOISE = 0.03, 0.3, 500, 10, 1e-11


@dataclass(frozen=True, eq=False)
class State:
    """A point, the gradient of f, the proximal-gradient step back to the point, its end, and the forward-backward envelope."""

    theta: Array
    value: float
    gradient: Array
    forward: Array
    residual: Array
    envelope: float


def state(composite: Composite, theta: Array, value: float, gradient: Array, lipschitz: float) -> State:
    forward = composite.proximal(theta - gradient / lipschitz, 1.0 / lipschitz)
    move = forward - theta
    envelope = value + float(gradient @ move) + 0.5 * lipschitz * float(move @ move)
    return State(theta, value, gradient, forward, -move, envelope + composite.separable(forward))


def descend(composite: Composite, best: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Step until the certified distance reaches the tolerance, or no step helps any more."""
    mu, memory, lipschitz = composite.problem.strong_convexity, Memory(PAIRS), best.lipschitz
    now = state(composite, best.theta, best.value, best.gradient, lipschitz)
    threshold, least, stalled = tolerance, np.inf, 0
    for _ in range(max_steps):
        distance = lipschitz * float(np.linalg.norm(now.residual)) / mu  # but for a difference of gradients
        stalled = 0 if distance < 0.9 * least else stalled + 1
        least = least if stalled else distance
        if distance <= threshold or stalled > PATIENCE:
            theta = composite.problem.feasible.project(now.forward)
            value, gradient = composite.smooth(theta)
            found = at_point(composite, theta, value, gradient, best.lipschitz)
            if found.distance_bound > tolerance:
                found = step(composite, theta, value, gradient, best.lipschitz)
            best = min(found, best, key=lambda iterate: iterate.distance_bound)
            if best.distance_bound <= tolerance or stalled > PATIENCE:
                break
            # Where this certificate failed, one that is to succeed needs a residual smaller in proportion.
            threshold = min(threshold / 2, 0.8 * distance * tolerance / found.distance_bound)
        following, steepest = search(composite, now, memory, lipschitz)
        if following is None:
            lipschitz = 1.2 * max(steepest, lipschitz) if np.isfinite(steepest) else 4.0 * lipschitz
            memory = Memory(PAIRS)
            now = state(composite, now.theta, now.value, now.gradient, lipschitz)
        else:
            memory.update(following.theta - now.theta, following.residual - now.residual)
            now = following
    return best


def search(composite: Composite, now: State, memory: Memory, lipschitz: float) -> tuple[State | None, float]:
    """Find a point between both steps that lowers the envelope; None if the gradient turns faster than L allows, and how fast."""
    residual, length = now.residual, float(np.linalg.norm(now.residual))
    ahead = residual - memory.apply(residual) if memory.pairs else np.zeros_like(residual)
    enough, found, steepest = now.envelope - DECREASE * lipschitz * length**2, None, 0.0
    for damping in (*(DAMPING**k for k in range(DAMPINGS)), 0.0):
        theta = now.forward + damping * ahead
        value, gradient = composite.smooth(theta)
        moved = max(float(np.linalg.norm(theta - now.theta)), 1e-300)
        steepest = float(np.linalg.norm(gradient - now.gradient)) / moved if np.isfinite(value) else np.inf
        if not np.isfinite(value) and ahead.any():
            continue
        if steepest > lipschitz * (1 + 1e-9):
            return None, steepest
        found = state(composite, theta, value, gradient, lipschitz)
        if found.envelope <= enough or float(np.linalg.norm(found.residual)) <= SHRINKAGE * length or not ahead.any():
            break
    return found, steepest


class Hessian:
    """A product with directions, corrected by the last steps unless it is exact."""

    def __init__(self, start: Callable[[Array], Array], exact: bool) -> None:
        self.start, self.exact = start, exact
        self.pairs: deque[tuple[Array, Array, Array]] = deque(maxlen=PAIRS)

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
    """Return the Hessian at a point, or a model of it, if one is to be had."""
    problem = composite.problem
    if problem.loss.has_hessian:
        matrix = composite.hessian(theta)
        return Hessian(lambda direction: matrix @ direction, exact=True) if np.isfinite(matrix).all() else None
    found = problem.loss.grid(problem.seen(theta), max(FEWEST, FOR_EACH * problem.loss.monomials))
    if found is None or not all(np.isfinite(part).all() for part in found):
        return None
    (places, bend, moments), public = found, problem.loss.regularizer_hessian(theta, problem.smooth_part)

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
        move = theta - self.now.theta
        bent = self.product(move)
        return self.now.value + float(self.now.gradient @ move) + 0.5 * float(move @ bent), self.now.gradient + bent


def by_models(composite: Composite, start: Iterate, tolerance: float, max_steps: int) -> Iterate:
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
        move = descend(model, start, within, STEPS).theta - now.theta
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
            closer = drowned and found.distance_bound <= SHRINKAGE * now.distance_bound
            if closer or value + composite.separable(theta) <= height + DECREASE * length * min(slope, 0.0):
                return found
    return None
