"""Minimisers where K is all of space and nothing has kinks: limited-memory BFGS, begun with a model of the Hessian."""

from collections import deque

import numpy as np

from dpconvex.numerics import EPSILON
from dpconvex.optim.distance_bound import Composite, Iterate, at_point
from dpconvex.optim.hessian_models import LinearMap, inverse_hessian
from dpconvex.util.arrays import Array
from dpconvex.util.summation import RECORD

# Fraction of the predicted decrease that a step must achieve (Armijo), and of the slope that may remain.
DECREASE, SLOPE = 1e-4, 0.9
# A model is made where steps do not make the gradient smaller by the last factor, each, and anew of more records where they
# end; of so many records, and of so many for each monomial, at least.
FEWEST, FOR_EACH, FASTER = 4096, 100, 0.3
FIRST = 3  # Steps before a model: where they begin losses may not bend at all
PATIENCE = 30  # Steps without a smaller gradient after which rounding is to blame


class Memory:
    """The last steps and changes of gradient (J. Nocedal, S. Wright, Numerical Optimization, algorithm 7.4)."""

    def __init__(self, size: int = 20, start: LinearMap | None = None) -> None:
        self.pairs: deque[tuple[Array, Array, float]] = deque(maxlen=size)
        self.start = start  # the model that the pairs correct; a multiple of the identity by default

    def update(self, step: Array, change: Array) -> None:
        """Remember a step and the change of the gradient along it, if its curvature is clearly positive."""
        inner = float(step @ change)
        if inner > 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            self.pairs.append((step, change, inner))

    def apply(self, vector: Array) -> Array:
        result, weights = vector.copy(), []
        for step, change, inner in reversed(self.pairs):
            weight = float(step @ result) / inner
            weights.append(weight)
            result -= weight * change
        if self.start is not None:
            result = self.start(result)
        elif self.pairs:
            _, change, inner = self.pairs[-1]
            result *= inner / float(change @ change)
        for (step, change, inner), weight in zip(self.pairs, reversed(weights), strict=True):
            result += (weight - float(change @ result) / inner) * step
        return result


def descend(composite: Composite, best: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Step until the certified distance reaches the tolerance, or no step helps any more."""
    now, memory, stalled, problem = best, Memory(), 0, composite.problem
    # Whether models are made; of the last one (or of the start): of how many records, how many steps ago, and the gradient then.
    modelled, records, since, before = True, 0, 0, float(np.linalg.norm(best.gradient))
    scale = 1.0 / max(before, problem.strong_convexity)
    end = composite.evaluations + max_steps
    while composite.evaluations < end and not composite.reached(best, tolerance) and stalled <= PATIENCE:
        norm = float(np.linalg.norm(now.gradient))
        passes = 2 * problem.loss.form.forms * min(records / max(problem.batch.size, 1), 1.0)  # that a model costs
        slow = since >= max(FIRST, passes) and norm > before * FASTER**since
        if modelled and (slow or (stalled and since >= passes)):
            now = now if records else best  # steps without a model may have led far away
            dear = problem.loss.form.forms**0.5 if problem.loss.has_hessian else 1.0  # each form makes a model dearer
            records = max((4 if stalled else 1) * records, int(max(FEWEST, FOR_EACH * problem.loss.monomials) / dear))
            model = composite.read(inverse_hessian, now.theta, records)
            modelled = model is not None and problem.loss.has_hessian
            since, before = 0, float(np.linalg.norm(now.gradient))
            memory = memory if model is None else Memory(start=model)
        direction = -memory.apply(now.gradient) if memory.pairs or memory.start else -scale * now.gradient
        if not float(now.gradient @ direction) < 0:
            memory, direction = Memory(), -scale * now.gradient
        following = search(composite, now, direction)
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


def search(composite: Composite, now: Iterate, direction: Array) -> Iterate | None:
    """Find a step length that decreases f enough, or None (W. Hager, H. Zhang, SIAM J. Optim. 2005, section 3)."""
    shortest, longest, length = 0.0, np.inf, 1.0
    slope, problem = float(now.gradient @ direction), composite.problem
    noise = 1e-12 * max(abs(now.value), 1.0)
    noise += RECORD * EPSILON * composite.lengths.still * problem.batch.size * problem.gradient_bound
    for _ in range(40):
        theta = now.theta + length * direction
        value, gradient = composite.smooth(theta)
        ahead = float(gradient @ direction)
        enough = value <= now.value + DECREASE * length * slope
        nearly = value <= now.value + noise and ahead <= (2 * DECREASE - 1) * slope
        if not (np.isfinite(value) and (enough or nearly)):
            longest = length
        elif ahead < SLOPE * slope:
            shortest = length
        else:
            return at_point(composite, theta, value, gradient)
        length = 2 * shortest if np.isinf(longest) else (shortest + longest) / 2
    return None
