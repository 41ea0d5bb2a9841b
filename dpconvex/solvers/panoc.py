"""Quasi-Newton steps on the fixed-point equation of proximal gradients, in coordinates chosen by the curvature.

The method is PANOC (L. Stella, A. Themelis, P. Sopasakis, P. Patrinos, "A simple and efficient algorithm for nonlinear model
predictive control", CDC 2017, algorithm 1): directions of limited-memory BFGS for the residual of a proximal-gradient step,
damped towards that step until the forward-backward envelope decreases.  Each trial costs one gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpconvex.solvers.composite import Composite
from dpconvex.solvers.distance import Iterate, at_point, floor, step
from dpconvex.solvers.lbfgs import Memory
from dpconvex.solvers.whitening import Coordinates, plain, whitened

Array = NDArray[np.float64]

# Pairs that are remembered, and steps after which the curvature is looked at again.
MEMORY = 40
REVIEWS = (10, 30, 90, 250)
# Fraction of the largest possible decrease of the envelope that a step must achieve; and a residual that has shrunk to this
# fraction will do where differences of values drown in rounding.
DECREASE, SHRINKAGE = 1e-4, 0.9
# How often a direction is damped, and by how much.
DAMPINGS, DAMPING = 5, 0.25
# Steps without progress after which rounding is to blame.
PATIENCE = 40


@dataclass(frozen=True, eq=False)
class State:
    """A point y, the step from it, and the envelope there.

    Attributes
    ----------
    y, gradient : ndarray, shape (dim,)
    value : float
        Of the smooth part.
    forward : ndarray, shape (dim,)
        The proximal-gradient step from y.
    envelope : float
    """

    y: Array
    value: float
    gradient: Array
    forward: Array
    envelope: float

    @property
    def residual(self) -> Array:
        """How far the step goes."""
        return self.y - self.forward


def state(coordinates: Coordinates, y: Array, value: float, gradient: Array, lipschitz: float) -> State:
    """Take the proximal-gradient step from y."""
    forward = coordinates.proximal(y - gradient / lipschitz, 1.0 / lipschitz)
    move = forward - y
    envelope = value + float(gradient @ move) + 0.5 * lipschitz * float(move @ move)
    return State(y, value, gradient, forward, envelope + coordinates.composite.separable(coordinates.point(forward)))


def quasi_newton(composite: Composite, start: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Step until the certified distance reaches the tolerance, or no step helps any more."""
    mu = composite.problem.strong_convexity
    best, memory = start, Memory(MEMORY)
    coordinates, lipschitz = plain(composite), start.lipschitz
    now = state(coordinates, coordinates.of(start.theta), start.value, start.gradient, lipschitz)
    threshold, least, stalled, review = tolerance, np.inf, 0, 0
    for count in range(max_steps):
        if review < len(REVIEWS) and count >= REVIEWS[review]:
            review += 1
            coordinates, lipschitz, now = reviewed(composite, coordinates, now, lipschitz)
            memory.clear()
            least = np.inf
        residual = now.residual
        length = float(np.linalg.norm(residual))
        # The size of a subgradient at the step, but for a difference of gradients.
        distance = float(np.linalg.norm(coordinates.pushed(lipschitz * residual))) / mu
        if distance < 0.9 * least:
            least, stalled = distance, 0
        else:
            stalled += 1
        if distance <= threshold or stalled > PATIENCE:
            theta = composite.problem.feasible.project(coordinates.point(now.forward))
            value, gradient = composite.smooth(theta)
            iterate = at_point(composite, theta, value, gradient, best.lipschitz)
            if iterate.distance_bound > tolerance:
                iterate = step(composite, theta, value, gradient, best.lipschitz)
            if iterate.distance_bound < best.distance_bound:
                best = iterate
            if best.distance_bound <= tolerance or stalled > PATIENCE:
                return best
            if tolerance < floor(composite, best) > best.distance_bound / 4:
                return best
            # Where this certificate failed, one that is to succeed needs a residual smaller in proportion.
            threshold = min(threshold / 2, 0.8 * distance * tolerance / iterate.distance_bound)
        found, observed = search(coordinates, now, memory, lipschitz, length)
        if found is None:
            # The gradient turned faster than L allows.
            lipschitz = 1.2 * max(observed, lipschitz) if np.isfinite(observed) else 4.0 * lipschitz
            memory.clear()
            now = state(coordinates, now.y, now.value, now.gradient, lipschitz)
            continue
        memory.update(found.y - now.y, found.residual - residual)
        now = found
    return best


def search(
    coordinates: Coordinates, now: State, memory: Memory, lipschitz: float, length: float
) -> tuple[State | None, float]:
    """Find a point between the quasi-Newton step and the proximal-gradient step that lowers the envelope."""
    residual = now.residual
    ahead = residual - memory.apply(residual) if memory.pairs else np.zeros_like(residual)
    enough = now.envelope - DECREASE * lipschitz * length**2
    damping, found, observed = 1.0, None, 0.0
    for trial in range(DAMPINGS + 1):
        y = now.forward + damping * ahead if trial < DAMPINGS else now.forward
        value, gradient = coordinates.smooth(y)
        if not np.isfinite(value):
            observed = np.inf
            if not ahead.any():
                return None, observed
            damping *= DAMPING
            continue
        observed = float(np.linalg.norm(gradient - now.gradient)) / max(float(np.linalg.norm(y - now.y)), 1e-300)
        if observed > lipschitz * (1 + 1e-9):
            return None, observed
        found = state(coordinates, y, value, gradient, lipschitz)
        if found.envelope <= enough or float(np.linalg.norm(found.residual)) <= SHRINKAGE * length or not ahead.any():
            break
        damping *= DAMPING
    return found, observed


def reviewed(
    composite: Composite, coordinates: Coordinates, now: State, lipschitz: float
) -> tuple[Coordinates, float, State]:
    """Choose coordinates anew, where the last step ended."""
    theta = coordinates.point(now.forward)
    fresh = whitened(composite, theta)
    value, gradient = composite.smooth(theta)
    if not fresh.congruences:
        return coordinates, lipschitz, state(coordinates, now.forward, value, coordinates.pulled(gradient), lipschitz)
    direction = np.random.default_rng(0).normal(size=composite.dim)
    for _ in range(2):
        direction = fresh.hessian_product(theta, direction / np.linalg.norm(direction))
    lipschitz = 1.05 * max(float(np.linalg.norm(direction)), np.finfo(float).tiny)
    return fresh, lipschitz, state(fresh, fresh.of(theta), value, fresh.pulled(gradient), lipschitz)
