"""Quasi-Newton steps that project by a model of the objective: few passes over the records, and many steps beside them.

The method is a proximal quasi-Newton method (J. Lee, Y. Sun, M. Saunders, SIAM J. Optim. 24(3), 2014): the smooth part f is
replaced by a quadratic model at the point reached, the model is minimised together with h, and the step is shortened until F
decreases.  The Hessian of the model is that of second moments (`evaluation.gram`), corrected by the last steps as in
limited-memory BFGS (R. Byrd, J. Nocedal, R. Schnabel, Math. Programming 63, 1994, theorem 2.3).  Its minimiser is found by
`panoc`, which goes through no records for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpconvex.evaluation.gram import Gram
from dpconvex.solvers.composite import Composite
from dpconvex.solvers.distance import Iterate, at_point, step
from dpconvex.solvers.panoc import quasi_newton

Array = NDArray[np.float64]
Product = Callable[[Array], Array]

# A pass over the records multiplies the forms' coefficients of each with its monomials.  From so many products on, some tens of
# steps on a model take less time than a pass.
WORK = 2**25
# A model that takes as long as more evaluations is not made.
LONGEST = 20.0
# Pairs that correct a model, and steps after which second moments are weighted anew.
PAIRS = 40
RENEWED = (0, 3, 8)
# A model is minimised until the certified distance from its minimiser is this fraction of that from the one looked for, or of the
# tolerance; in so many steps at most.
FRACTION, ENOUGH, STEPS = 0.1, 0.3, 200
# Fraction of the predicted decrease that a step must achieve; where differences of values drown in rounding, the certified
# distance must shrink to a fraction.
DECREASE, NOISE, SHRINKAGE = 1e-4, 1e-11, 0.9
# How often a step is halved, and steps without a smaller distance after which others go on.
HALVINGS, PATIENCE = 10, 30


def pays(composite: Composite) -> bool:
    """Say whether passes take so much longer than steps on a model that fewer of them are worth many of these."""
    problem = composite.problem
    coefficients = problem.loss.coefficients
    return coefficients * problem.batch.size >= WORK and problem.loss.gram_passes <= LONGEST


class Hessian:
    """A model of the Hessian of f: a product with directions, corrected by the last steps and what they did to the gradient."""

    def __init__(self, start: Product) -> None:
        self.start = start
        self.pairs: deque[tuple[Array, Array, Array]] = deque(maxlen=PAIRS)
        self.rows: Array | None = None  # products of the start with steps, and changes
        self.middle: Array | None = None

    def update(self, move: Array, change: Array) -> None:
        """Learn the change of the gradient along a step, if its curvature is clearly positive."""
        length = float(np.linalg.norm(move))
        if not float(move @ change) > 1e-12 * length * float(np.linalg.norm(change)):
            return
        move, change = move / length, change / length
        self.pairs.append((move, change, self.start(move)))
        moves, changes, products = (np.array(part) for part in zip(*self.pairs, strict=True))
        inner = moves @ changes.T
        lower = np.tril(inner, -1)
        middle = np.block([[moves @ products.T, lower], [lower.T, -np.diag(np.diag(inner))]])
        self.rows, self.middle = np.concatenate([products, changes]), np.linalg.pinv(middle, hermitian=True)

    def product(self, direction: Array) -> Array:
        """Multiply by the model."""
        result = self.start(direction)
        if self.rows is None or self.middle is None:
            return result
        return result - self.rows.T @ (self.middle @ (self.rows @ direction))


class Model(Composite):
    """F with the quadratic model of f at a point in its place."""

    def __init__(self, composite: Composite, theta: Array, value: float, gradient: Array, hessian: Hessian) -> None:
        super().__init__(composite.problem)
        self.theta, self.value, self.gradient, self.product = theta, value, gradient, hessian.product

    def smooth(self, theta: Array) -> tuple[float, Array]:
        """Value and gradient of the model."""
        move = theta - self.theta
        bent = self.product(move)
        return self.value + float(self.gradient @ move) + 0.5 * float(move @ bent), self.gradient + bent

    def hessian_product(self, theta: Array, direction: Array) -> Array:
        return self.product(direction)


def modelled(composite: Composite, theta: Array) -> Hessian | None:
    problem = composite.problem
    projector = problem.projector or unprojected
    gram: Gram | None = problem.loss.gram(projector(theta), by_label=True)
    if gram is None or not (np.isfinite(gram.bend).all() and np.isfinite(gram.moments).all()):
        return None

    def product(direction: Array) -> Array:
        losses = projector(gram.product(projector(direction)))
        public = problem.loss.regularizer_hessian_product(theta, direction, problem.split[0])
        return np.asarray(losses + problem.size * public + problem.added * direction)

    return Hessian(product)


def unprojected(vector: Array) -> Array:
    return vector


def by_models(composite: Composite, best: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Step until the certified distance reaches the tolerance, or models are of no more help."""
    hessian: Hessian | None = None
    now = at_point(composite, best.theta, best.value, best.gradient)
    stalled = 0
    for count in range(max_steps):
        if count in RENEWED:
            hessian = modelled(composite, now.theta)
        if hessian is None or not np.isfinite(now.distance_bound) or stalled > PATIENCE:
            break
        following = stepped(composite, now, hessian, tolerance)
        if following is None:
            break
        hessian.update(following.theta - now.theta, following.gradient - now.gradient)
        now, stalled = following, stalled + 1
        if now.distance_bound < best.distance_bound:
            best, stalled = now, 0
        if best.distance_bound <= tolerance:
            break
    return best


def stepped(composite: Composite, now: Iterate, hessian: Hessian, tolerance: float) -> Iterate | None:
    """Go towards the minimiser of a model as far as F decreases enough; None if it does not."""
    model = Model(composite, now.theta, now.value, now.gradient, hessian)
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
