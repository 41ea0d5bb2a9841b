"""Constraints and kinks: PANOC (L. Stella, A. Themelis, P. Sopasakis, P. Patrinos, CDC 2017, algorithm 1)."""

from dataclasses import dataclass

import numpy as np

from dpconvex.optim.distance_bound import Composite, Iterate, at_point, step
from dpconvex.optim.smooth import DECREASE, Memory
from dpconvex.util.arrays import Array

# Steps that directions are made of; how often a direction is damped, and by how much.
PAIRS, DAMPINGS, DAMPING = 40, 5, 0.25
# Where differences of values drown in rounding, the residual must shrink to a fraction; and steps without progress after which
# rounding is to blame.
SHRINKAGE, PATIENCE = 0.9, 40


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
    move, kinks = forward - theta, composite.problem.size * composite.problem.kinks.value(forward)
    envelope = value + float(gradient @ move) + 0.5 * lipschitz * float(move @ move)
    return State(theta, value, gradient, forward, -move, envelope + kinks)


def descend(composite: Composite, best: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Step until the certified distance reaches the tolerance, or no step helps any more."""
    mu, memory, lipschitz = composite.problem.strong_convexity, Memory(PAIRS), best.lipschitz
    now = state(composite, best.theta, best.value, best.gradient, lipschitz)
    allowed, threshold, least, stalled = composite.problem.distance_allowed, 1.0, np.inf, 0  # the threshold is a share
    for _ in range(max_steps):
        distance = lipschitz * float(np.linalg.norm(now.residual)) / mu  # but for a difference of gradients
        stalled = 0 if distance < 0.9 * least else stalled + 1
        least = least if stalled else distance
        if distance <= threshold * allowed(tolerance, now.forward) or stalled > PATIENCE:
            theta = composite.problem.feasible.project(now.forward)
            value, gradient = composite.smooth(theta)
            found = at_point(composite, theta, value, gradient, best.lipschitz)
            if not composite.reached(found, tolerance):
                found = step(composite, theta, value, gradient, best.lipschitz)
            best = min(found, best, key=lambda iterate: iterate.distance_bound)
            if composite.reached(best, tolerance) or stalled > PATIENCE:
                break
            # Where this certificate failed, one that is to succeed needs a residual smaller in proportion.
            threshold = min(threshold / 2, 0.8 * distance / found.distance_bound)
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
