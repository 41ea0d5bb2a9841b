"""Constraints and kinks: proximal quasi-Newton steps on models of the objective, and PANOC for the models.

The smooth part f is replaced by a quadratic model at the point reached, the model is minimised together with h, and the step is
shortened until F decreases (J. Lee, Y. Sun, M. Saunders, SIAM J. Optim. 24(3), 2014).  The Hessian of the model is that of f
where it is cheap, else one of second moments (`BatchedLoss.gram`), corrected by the last steps as in limited-memory BFGS
(R. Byrd, J. Nocedal, R. Schnabel, Math. Programming 63, 1994, theorem 2.3).  Models, and objectives of which there are none,
are minimised by PANOC (L. Stella, A. Themelis, P. Sopasakis, P. Patrinos, CDC 2017, algorithm 1): directions of limited-memory
BFGS for the residual of a proximal-gradient step, damped towards that step until the forward-backward envelope decreases.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpconvex.core.arrays import Array
from dpconvex.solvers.distance import Composite, Iterate, at_point, step
from dpconvex.solvers.smooth import FEWEST, FOR_EACH, Memory

Product = Callable[[Array], Array]

# Steps that directions, and corrections of a model, are made of; steps after which second moments are weighted anew.
PAIRS = 40
RENEWED = (0, 3, 8)
# A model is minimised until the certified distance from its minimiser is this fraction of that from the one looked for, or of the
# tolerance; in so many steps at most.
FRACTION, ENOUGH, STEPS = 0.03, 0.3, 500
# Fraction of the predicted decrease that a step must achieve; where differences of values drown in rounding, the certified
# distance, or the residual, must shrink to a fraction.
DECREASE, NOISE, SHRINKAGE = 1e-4, 1e-11, 0.9
# How often a step on a model is halved; how often a direction of PANOC is damped, and by how much.
HALVINGS, DAMPINGS, DAMPING = 10, 5, 0.25
# Steps without progress after which others go on, or rounding is to blame.
PATIENCE = 40


def descend(composite: Composite, start: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Step until the certified distance reaches the tolerance, or no step helps any more."""
    best = by_models(composite, start, tolerance, max_steps)
    return best if best.distance_bound <= tolerance else quasi_newton(composite, best, tolerance, max_steps)


class Hessian:
    """A model of the Hessian of f: a product with directions, corrected by the last steps and what they did to the gradient."""

    def __init__(self, start: Product, exact: bool) -> None:
        self.start, self.exact = start, exact
        self.pairs: deque[tuple[Array, Array, Array]] = deque(maxlen=PAIRS)
        self.rows: Array | None = None  # products of the start with steps, and changes
        self.middle: Array | None = None

    def update(self, move: Array, change: Array) -> None:
        """Learn the change of the gradient along a step, if its curvature is clearly positive."""
        length = float(np.linalg.norm(move))
        if self.exact or not float(move @ change) > 1e-12 * length * float(np.linalg.norm(change)):
            return
        move, change = move / length, change / length
        self.pairs.append((move, change, self.start(move)))
        moves, changes, products = (np.array(part) for part in zip(*self.pairs, strict=True))
        inner = moves @ changes.T
        lower = np.tril(inner, -1)
        middle = np.block([[moves @ products.T, lower], [lower.T, -np.diag(np.diag(inner))]])
        self.rows, self.middle = np.concatenate([products, changes]), np.linalg.pinv(middle, hermitian=True)

    def product(self, direction: Array) -> Array:
        result = self.start(direction)
        if self.rows is None or self.middle is None:
            return result
        return result - self.rows.T @ (self.middle @ (self.rows @ direction))


def modelled(composite: Composite, theta: Array) -> Hessian | None:
    """Return the Hessian at a point, or a model of it; None if neither is to be had."""
    problem = composite.problem
    if problem.loss.has_hessian:
        matrix = composite.hessian(theta)
        return Hessian(lambda direction: matrix @ direction, exact=True) if np.isfinite(matrix).all() else None
    found = problem.loss.gram(problem.seen(theta), max(FEWEST, FOR_EACH * problem.loss.monomials))
    if found is None or not all(np.isfinite(part).all() for part in found):
        return None
    (bend, moments), place = found, problem.loss.form.map
    public = problem.loss.regularizer_hessian(theta, problem.split[0])

    def product(direction: Array) -> Array:
        moves = (place @ problem.seen(direction)).reshape(len(bend), -1)
        losses = place.T @ (bend @ moves @ moments).ravel()
        return np.asarray(problem.seen(losses) + problem.size * (public @ direction) + problem.added * direction)

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
        move = quasi_newton(model, start, within, STEPS).theta - now.theta
    except np.linalg.LinAlgError:  # far from all that is of any use
        return None
    height = now.value + composite.separable(now.theta)
    slope = float(now.gradient @ move) + composite.separable(now.theta + move) - composite.separable(now.theta)
    length = 1.0
    for _ in range(HALVINGS):
        theta = now.theta + length * move
        value, gradient = composite.smooth(theta)
        if np.isfinite(value):
            found = at_point(composite, theta, value, gradient)
            drowned = -length * slope <= NOISE * max(abs(height), 1.0)
            if value + composite.separable(theta) <= height + DECREASE * length * min(slope, 0.0):
                return found
            if drowned and found.distance_bound <= SHRINKAGE * now.distance_bound:
                return found
        length /= 2
    return None


@dataclass(frozen=True, eq=False)
class State:
    """A point, f and its gradient there, the proximal-gradient step from it, and the forward-backward envelope."""

    theta: Array
    value: float
    gradient: Array
    forward: Array
    envelope: float

    @property
    def residual(self) -> Array:
        return self.theta - self.forward


def state(composite: Composite, theta: Array, value: float, gradient: Array, lipschitz: float) -> State:
    """Take the proximal-gradient step from a point."""
    forward = composite.proximal(theta - gradient / lipschitz, 1.0 / lipschitz)
    move = forward - theta
    envelope = value + float(gradient @ move) + 0.5 * lipschitz * float(move @ move)
    return State(theta, value, gradient, forward, envelope + composite.separable(forward))


def quasi_newton(composite: Composite, start: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Take steps of PANOC until the certified distance reaches the tolerance, or no step helps any more."""
    mu = composite.problem.strong_convexity
    best, memory, lipschitz = start, Memory(PAIRS), start.lipschitz
    now = state(composite, start.theta, start.value, start.gradient, lipschitz)
    threshold, least, stalled = tolerance, np.inf, 0
    for _ in range(max_steps):
        residual = now.residual
        length = float(np.linalg.norm(residual))
        distance = lipschitz * length / mu  # the size of a subgradient at the step, but for a difference of gradients
        stalled = 0 if distance < 0.9 * least else stalled + 1
        least = distance if not stalled else least
        if distance <= threshold or stalled > PATIENCE:
            theta = composite.problem.feasible.project(now.forward)
            value, gradient = composite.smooth(theta)
            iterate = at_point(composite, theta, value, gradient, best.lipschitz)
            if iterate.distance_bound > tolerance:
                iterate = step(composite, theta, value, gradient, best.lipschitz)
            best = iterate if iterate.distance_bound < best.distance_bound else best
            if best.distance_bound <= tolerance or stalled > PATIENCE:
                return best
            # Where this certificate failed, one that is to succeed needs a residual smaller in proportion.
            threshold = min(threshold / 2, 0.8 * distance * tolerance / iterate.distance_bound)
        found, observed = search(composite, now, memory, lipschitz, length)
        if found is None:  # the gradient turned faster than L allows
            lipschitz = 1.2 * max(observed, lipschitz) if np.isfinite(observed) else 4.0 * lipschitz
            memory = Memory(PAIRS)
            now = state(composite, now.theta, now.value, now.gradient, lipschitz)
            continue
        memory.update(found.theta - now.theta, found.residual - residual)
        now = found
    return best


def search(
    composite: Composite, now: State, memory: Memory, lipschitz: float, length: float
) -> tuple[State | None, float]:
    """Find a point between the quasi-Newton step and the proximal-gradient step that lowers the envelope.

    None if the gradient turns faster than L allows, and how fast.
    """
    residual = now.residual
    ahead = residual - memory.apply(residual) if memory.pairs else np.zeros_like(residual)
    enough = now.envelope - DECREASE * lipschitz * length**2
    damping, found, observed = 1.0, None, 0.0
    for trial in range(DAMPINGS + 1):
        theta = now.forward + damping * ahead if trial < DAMPINGS else now.forward
        damping *= DAMPING
        value, gradient = composite.smooth(theta)
        if not np.isfinite(value):
            observed = np.inf
            if not ahead.any():
                return None, observed
            continue
        observed = float(np.linalg.norm(gradient - now.gradient)) / max(
            float(np.linalg.norm(theta - now.theta)), 1e-300
        )
        if observed > lipschitz * (1 + 1e-9):
            return None, observed
        found = state(composite, theta, value, gradient, lipschitz)
        if found.envelope <= enough or float(np.linalg.norm(found.residual)) <= SHRINKAGE * length or not ahead.any():
            break
    return found, observed
