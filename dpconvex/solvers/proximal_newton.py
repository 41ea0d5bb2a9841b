"""Constraints on eigenvalues and intervals: proximal quasi-Newton steps.

Each step minimises a quadratic model of f over K.  That takes no pass over the records, however many steps of semismooth Newton
it takes: of the residual of a projected-gradient step (P. Patrinos, L. Stella, A. Bemporad, CDC 2014), by conjugate gradients.
Models are a multiple of the identity first, then second moments, then Hessians of samples where these do not suffice.
"""

from dataclasses import dataclass
from itertools import count

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from dpconvex.core.arrays import Array
from dpconvex.solvers.distance import Composite, Iterate, at_point
from dpconvex.solvers.hessian_models import Corrected, LinearMap, sampled, second_moments
from dpconvex.solvers.problem import Problem
from dpconvex.solvers.spectral_coordinates import Coordinates

# Records that a model is made of, for each monomial, and at least.  A step is slow that leaves more of the distance than SLOW;
# after so many of them a model is replaced.  A model's Hessian is made anew where a step leaves more than ANEW.
FOR_EACH, FEWEST, SLOW, ANEW = 30, 4096, 0.3, 0.25
FIRST, SLOW_STEPS, PATIENCE = 3, 3, 8  # steps without a model; slow ones in a row; steps without progress
PAIRS = 20
# What is added to a model (Levenberg, Marquardt), as a fraction of its largest eigenvalue: at first, and at least after a step that
# failed.  A step fails that achieves less than FAILED of the predicted decrease.
SHIFT, LEAST_SHIFT, FAILED = 1e-2, 1e-9, 1e-3
# The model is minimised to a fraction of the residual, in so many steps, each of so many products at most.
FRACTION, INNER_STEPS, PRODUCTS = 0.1, 30, 200
EXACT = 1e-14


@dataclass(eq=False)
class Modelled:
    """A model of f around an iterate, in coordinates in which it is nearly even."""

    coordinates: Coordinates
    curvature: Corrected
    largest: float  # about its largest eigenvalue

    @classmethod
    def of(cls, plain: Coordinates, model: LinearMap, problem: Problem) -> "Modelled":
        new = plain.evened(model, problem.strong_convexity, problem.space.dim)
        moved = Corrected(lambda x: new.original(model(new.original(x))), PAIRS)
        return cls(new, moved, largest_eigenvalue(moved, problem.space.dim))

    def minimised(self, now: Iterate, shift: float) -> Array:
        """Return about the minimiser over K of the model at an iterate, with a shift of its eigenvalues."""
        start, gradient = self.coordinates.new(now.theta), self.coordinates.original(now.gradient)
        largest = max(self.largest, largest_eigenvalue(self.curvature, len(start))) + shift
        model = LinearOperator((len(start),) * 2, matvec=lambda x: self.curvature(x) + shift * x, dtype=float)
        return self.coordinates.original(minimise(self.coordinates, model, gradient, start, largest))

    def decrease(self, now: Iterate, theta: Array) -> float:
        """Return by how much the model says that f is smaller at a point."""
        move = self.coordinates.new(theta - now.theta)
        return -float(now.gradient @ (theta - now.theta)) - 0.5 * float(move @ self.curvature(move))

    def learn(self, now: Iterate, theta: Array, gradient: Array) -> None:
        change = self.coordinates.original(gradient - now.gradient)
        self.curvature.update(self.coordinates.new(theta - now.theta), change)


def largest_eigenvalue(model: LinearMap, dim: int) -> float:
    """Estimate the largest eigenvalue by power iteration, a tenth too large."""
    x = np.random.default_rng(0).normal(size=dim)
    for _ in range(12):
        x = model(x / max(float(np.linalg.norm(x)), 1e-300))
    return 1.1 * float(np.linalg.norm(x))


def minimise(coordinates: Coordinates, model: LinearOperator, gradient: Array, start: Array, largest: float) -> Array:
    """Minimise a quadratic over K by semismooth Newton steps, damped until the forward-backward envelope decreases."""

    def state(x: Array) -> tuple[float, Array, Array, Array, object]:
        bent = model @ (x - start)
        forward, derivative = coordinates.project(x - (gradient + bent) / largest)
        residual = x - forward
        value = float((gradient + bent / 2) @ (x - start)) - float((gradient + bent) @ residual)
        return value + 0.5 * largest * float(residual @ residual), x, forward, residual, derivative

    now = state(start)
    first = largest * float(np.linalg.norm(now[3]))
    enough = max(FRACTION * first, EXACT * float(np.linalg.norm(gradient)))
    for _ in range(INNER_STEPS):
        envelope, x, forward, residual, derivative = now
        length = float(np.linalg.norm(residual))
        if largest * length <= enough:
            break
        ahead = newton(model, residual, derivative, largest)
        for damping in (1.0, 0.5, 0.2, 0.05, 0.0):
            now = state(forward + damping * (x + ahead - forward))
            if now[0] <= envelope - 1e-4 * largest * length**2 or float(np.linalg.norm(now[3])) <= 0.5 * length:
                break
    return now[2]


def newton(model: LinearOperator, residual: Array, derivative, largest: float) -> Array:
    """Return the step ``d`` with ``(I - D (I - model/largest)) d = -residual``, D the derivative of the projection.

    With D = V w V' and d = V (sqrt(w) s - rest), rest the turned residual where w is 0, this is ``(sqrt(w) V' model V sqrt(w) /
    largest + 1 - w) s = sqrt(w) V' model V rest / largest - V' residual / sqrt(w)``.
    """
    weights = derivative.weights
    root, free = np.sqrt(weights), weights > 0
    turned = derivative.turned(residual)
    rest = np.where(free, 0.0, turned)

    def bent(vector: Array) -> Array:
        return root * derivative.turned(model @ derivative.turned(vector, back=True)) / largest

    target = bent(rest) - np.where(free, turned / np.where(free, root, 1.0), 0.0)
    operator = LinearOperator(model.shape, matvec=lambda s: bent(root * s) + (1 - weights) * s, dtype=float)
    found, _ = cg(operator, target, rtol=0.1, maxiter=PRODUCTS)
    return derivative.turned(root * found - rest, back=True)


def descend(composite: Composite, plain: Coordinates, best: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Step until the certified distance reaches the tolerance, or no step helps any more."""
    problem, now, size = composite.problem, best, composite.problem.batch.size
    records, stage, slow, stalled, shift = FOR_EACH * problem.loss.monomials, START, 0, 0, SHIFT
    model: Modelled | None = None
    for step in range(max_steps):
        if best.distance_bound <= tolerance or stalled > PATIENCE:
            break
        if stage == 0 and step >= FIRST:
            stage, model = 1, None
        if model is None:
            if stage == 0:
                bend = composite.curvature_ahead(now.theta, now.gradient)
                made = lambda x: bend * x
            if stage == 1:
                found = second_moments(problem, problem.seen(now.theta), max(records, FEWEST))
                composite.evaluations += min(1.0, max(records, FEWEST) / max(size, 1))
                made, stage = (None, 2) if found is None else (found.product, 1)
            if stage == 2:
                made = sampled(problem, now.theta, records)
                composite.evaluations += min(1.0, records / max(size, 1))
            if made is None:
                break
            model = Modelled.of(plain, made, problem)
        theta = problem.feasible.project(model.minimised(now, shift * model.largest))
        value, gradient = composite.smooth(theta)
        found = at_point(composite, theta, value, gradient)
        predicted, gain = model.decrease(now, theta), found.distance_bound / now.distance_bound
        # Where differences of values drown in rounding, distances must shrink.
        drowned = not predicted > 1e-11 * abs(now.value)
        ratio = (1.0 if gain < 0.9 else -1.0) if drowned else (now.value - value) / predicted
        if np.isfinite(value):
            model.learn(now, theta, gradient)
        if DEBUG: print(f"{step:3d} pass {composite.evaluations:.1f} dist {found.distance_bound:.2e} shift {shift:.1e} ratio {ratio:.2f} gain {gain:.2f} f {value:.8g} stage {stage} {records}")
        stalled += 1
        if not ratio > FAILED:
            if stage == 2 and records < size and ratio < 0 and predicted < 1e-7 * abs(now.value):
                records, model = 4 * records, None
            shift = 8 * max(shift, LEAST_SHIFT)
            continue
        now = found
        if now.distance_bound < best.distance_bound:
            best, stalled = now, 0
        shift *= 0.1 if ratio > 0.7 else 3.0 if ratio < 0.3 else 1.0
        slow = slow + 1 if gain > SLOW else 0
        if stage == 2 and gain > ANEW:
            model = None
        if slow >= SLOW_STEPS and stage:
            records, stage, slow, model = (records if stage == 1 else 4 * records), 2, 0, None
    return best
START=1
import os
DEBUG=os.environ.get("DEBUG")
