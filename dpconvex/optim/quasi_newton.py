"""Limited-memory BFGS steps; with constraints or kinks, PANOC steps (Stella and others, CDC 2017, algorithm 1)."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from dpconvex.numerics import EPSILON
from dpconvex.optim.hessian_models import LinearMap, inverse_hessian
from dpconvex.optim.problem import Iterate, Problem, at_point, proximal_step
from dpconvex.util.arrays import Array
from dpconvex.util.summation import RECORD

# Fraction of the predicted decrease that a step must achieve (Armijo), and of the slope that may remain.
DECREASE, SLOPE = 1e-4, 0.9
# A model is made if steps shrink the gradient by less than the last factor each, and again from more records where steps end.
# The other two: least records, and least records for each monomial.
ENOUGH, EACH, FASTER = 4096, 100, 0.3
FIRST_STEPS = 3  # Steps before a model: at the start losses may have no curvature
PATIENCE = 30  # Steps without a smaller gradient from which rounding is the cause
# Pairs of steps in a direction; dampings of a direction, and their factor.
PAIRS, DAMPINGS, DAMPING = 40, 5, 0.25
SHRINKAGE, STALLED = 0.9, 40  # Where rounding hides differences of values, the residual must shrink; and as PATIENCE


class Memory:
    """The last steps and their changes of the gradient (J. Nocedal, S. Wright, Numerical Optimization, algorithm 7.4)."""

    def __init__(self, size: int = 20, start: LinearMap | None = None) -> None:
        self.pairs: deque[tuple[Array, Array, float]] = deque(maxlen=size)
        self.start = start  # the model that the pairs correct; a multiple of the identity by default

    def update(self, step: Array, change: Array) -> None:
        """Store a step and the change of the gradient along it, if its curvature is clearly positive."""
        inner = float(step @ change)
        if inner > 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            self.pairs.append((step, change, inner))

    def apply(self, vector: Array) -> Array:
        result, weights = vector.copy(), []
        for move, change, inner in reversed(self.pairs):
            weight = float(move @ result) / inner
            weights.append(weight)
            result -= weight * change
        if self.start is not None:
            result = self.start(result)
        elif self.pairs:
            _, change, inner = self.pairs[-1]
            result *= inner / float(change @ change)
        for (move, change, inner), weight in zip(self.pairs, reversed(weights), strict=True):
            result += (weight - float(change @ result) / inner) * move
        return result


def descend(problem: Problem, best: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Take steps until the certified distance reaches the tolerance, or steps no longer help."""
    now, memory, stalled = best, Memory(), 0
    # State of models: whether they are made; the last one's records, steps since then, and the gradient's norm at that time.
    modelled, records, since, before = True, 0, 0, float(np.linalg.norm(best.gradient))
    scale = 1.0 / max(before, problem.strong_convexity)
    end = problem.loss.evaluations + max_steps
    while problem.loss.evaluations < end and not problem.reached(best, tolerance) and stalled <= PATIENCE:
        norm = float(np.linalg.norm(now.gradient))
        passes = 2 * problem.loss.form.forms * min(records / max(problem.batch.size, 1), 1.0)  # the cost of a model
        slow = since >= max(FIRST_STEPS, passes) and norm > before * FASTER**since
        if modelled and (slow or (stalled and since >= passes)):
            now = now if records else best  # steps without a model may have led far away
            dear = problem.loss.form.forms**0.5 if problem.loss.has_hessian else 1.0  # forms raise a model's cost
            records = max((4 if stalled else 1) * records, int(max(ENOUGH, EACH * problem.loss.monomials) / dear))
            model = inverse_hessian(problem, now.theta, records)
            modelled = model is not None and problem.loss.has_hessian
            since, before = 0, float(np.linalg.norm(now.gradient))
            memory = memory if model is None else Memory(start=model)
        direction = -memory.apply(now.gradient) if memory.pairs or memory.start else -scale * now.gradient
        if not float(now.gradient @ direction) < 0:
            memory, direction = Memory(), -scale * now.gradient
        following = search(problem, now, direction)
        since, stalled = since + 1, stalled + 1
        if following is None:
            if not memory.pairs:
                break
            memory = Memory(start=memory.start)
            continue
        memory.update(following.theta - now.theta, following.gradient - now.gradient)
        now = following
        if now.distance_bound < best.distance_bound:
            best, stalled = now, 0
    return best


def search(problem: Problem, now: Iterate, direction: Array) -> Iterate | None:
    """Return an iterate that decreases f enough along a direction, or None (W. Hager, H. Zhang, SIAM J. Optim. 2005, sec. 3)."""
    shortest, longest, length = 0.0, np.inf, 1.0
    slope = float(now.gradient @ direction)
    noise = 1e-12 * max(abs(now.value), 1.0)
    noise += RECORD * EPSILON * problem.sum_lengths.still * problem.batch.size * problem.gradient_bound
    for _ in range(40):
        theta = now.theta + length * direction
        value, gradient = problem.smooth(theta)
        ahead = float(gradient @ direction)
        enough = value <= now.value + DECREASE * length * slope
        nearly = value <= now.value + noise and ahead <= (2 * DECREASE - 1) * slope
        if not (np.isfinite(value) and (enough or nearly)):
            longest = length
        elif ahead < SLOPE * slope:
            shortest = length
        else:
            return at_point(problem, theta, value, gradient)
        length = 2 * shortest if np.isinf(longest) else (shortest + longest) / 2
    return None


@dataclass(frozen=True, eq=False)
class State:
    """A point, value and gradient of f, the end of its proximal-gradient step, the residual, the forward-backward envelope."""

    theta: Array
    value: float
    gradient: Array
    forward: Array
    residual: Array
    envelope: float


def state(problem: Problem, theta: Array, value: float, gradient: Array, lipschitz: float) -> State:
    forward = problem.proximal(theta - gradient / lipschitz, 1.0 / lipschitz)
    move, kinks = forward - theta, problem.size * problem.kinks.value(forward)
    envelope = value + float(gradient @ move) + 0.5 * lipschitz * float(move @ move)
    return State(theta, value, gradient, forward, -move, envelope + kinks)


def descend_with_kinks(problem: Problem, best: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Take steps until the certified distance reaches the tolerance, or steps no longer help."""
    mu, memory, lipschitz = problem.strong_convexity, Memory(PAIRS), best.lipschitz
    now = state(problem, best.theta, best.value, best.gradient, lipschitz)
    allowed, threshold, least, stalled = problem.distance_allowed, 1.0, np.inf, 0  # the threshold is a share
    for _ in range(max_steps):
        distance = lipschitz * float(np.linalg.norm(now.residual)) / mu  # but for a difference of gradients
        stalled = 0 if distance < 0.9 * least else stalled + 1
        least = least if stalled else distance
        if distance <= threshold * allowed(tolerance, now.forward) or stalled > STALLED:
            theta = problem.feasible.project(now.forward)
            value, gradient = problem.smooth(theta)
            found = at_point(problem, theta, value, gradient, best.lipschitz)
            if not problem.reached(found, tolerance):
                found = proximal_step(problem, theta, value, gradient, best.lipschitz)
            best = min(found, best, key=lambda iterate: iterate.distance_bound)
            if problem.reached(best, tolerance) or stalled > STALLED:
                break
            # This certificate failed: try the next one when the residual is smaller in proportion.
            threshold = min(threshold / 2, 0.8 * distance / found.distance_bound)
        following, steepest = search_envelope(problem, now, memory, lipschitz)
        if following is None:
            lipschitz = 1.2 * max(steepest, lipschitz) if np.isfinite(steepest) else 4.0 * lipschitz
            memory = Memory(PAIRS)
            now = state(problem, now.theta, now.value, now.gradient, lipschitz)
        else:
            memory.update(following.theta - now.theta, following.residual - now.residual)
            now = following
    return best


def search_envelope(problem: Problem, now: State, memory: Memory, lipschitz: float) -> tuple[State | None, float]:
    """Return a point between both steps with a lower envelope, or None if L is too small, and the gradient's rate of change."""
    residual, length = now.residual, float(np.linalg.norm(now.residual))
    ahead = residual - memory.apply(residual) if memory.pairs else np.zeros_like(residual)
    enough, found, steepest = now.envelope - DECREASE * lipschitz * length**2, None, 0.0
    for damping in (*(DAMPING**k for k in range(DAMPINGS)), 0.0):
        theta = now.forward + damping * ahead
        value, gradient = problem.smooth(theta)
        moved = max(float(np.linalg.norm(theta - now.theta)), 1e-300)
        steepest = float(np.linalg.norm(gradient - now.gradient)) / moved if np.isfinite(value) else np.inf
        if not np.isfinite(value) and ahead.any():
            continue
        if steepest > lipschitz * (1 + 1e-9):
            return None, steepest
        found = state(problem, theta, value, gradient, lipschitz)
        if found.envelope <= enough or float(np.linalg.norm(found.residual)) <= SHRINKAGE * length or not ahead.any():
            break
    return found, steepest
