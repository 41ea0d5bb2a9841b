"""Limited-memory BFGS: a model of the inverse Hessian from the last steps, and the minimiser for K = E that uses it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpconvex.solvers.composite import Composite
from dpconvex.solvers.curvature import Models

Array = NDArray[np.float64]

# Fraction of the predicted decrease that a step must achieve (Armijo), and of the slope that may remain.
DECREASE, SLOPE = 1e-4, 0.9
# Pairs that are remembered beside a model of the Hessian.
MODELLED = 40


class Memory:
    """The last steps and changes of gradient (J. Nocedal, S. Wright, Numerical Optimization, algorithm 7.4)."""

    def __init__(self, size: int = 20, start: Callable[[Array], Array] | None = None) -> None:
        self.pairs: deque[tuple[Array, Array, float]] = deque(maxlen=size)
        self.start = start  # the model that the pairs correct; a multiple of the identity by default

    def update(self, step: Array, change: Array) -> None:
        """Remember a step and the change of the gradient along it, if its curvature is clearly positive."""
        inner = float(step @ change)
        if inner > 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            self.pairs.append((step, change, inner))

    def clear(self) -> None:
        """Forget everything."""
        self.pairs.clear()

    def apply(self, vector: Array) -> Array:
        """Multiply by the model of the inverse Hessian."""
        if not self.pairs:
            return vector if self.start is None else self.start(vector)
        result, weights = vector.copy(), []
        for step, change, inner in reversed(self.pairs):
            weight = float(step @ result) / inner
            weights.append(weight)
            result -= weight * change
        if self.start is not None:
            result = self.start(result)
        else:
            _, change, inner = self.pairs[-1]
            result *= inner / float(change @ change)
        for (step, change, inner), weight in zip(self.pairs, reversed(weights), strict=True):
            result += (weight - float(change @ result) / inner) * step
        return result


def descend(
    composite: Composite, theta: Array, value: float, gradient: Array, bound: float, max_steps: int
) -> tuple[Array, float, Array]:
    """Minimise a smooth f over all of space until its gradient norm is at most `bound`, or no step helps."""
    memory, models = Memory(), Models(composite)
    scale = 1.0 / max(float(np.linalg.norm(gradient)), composite.problem.strong_convexity)
    best = (theta, value, gradient)
    stalled = 0
    for _ in range(max_steps):
        norm = float(np.linalg.norm(gradient))
        if norm <= bound or stalled > 30:
            break
        start = models.inverse(theta, norm, bound)
        if start is not None:
            memory = Memory(MODELLED, start)
        direction = -memory.apply(gradient) if memory.pairs or memory.start else -scale * gradient
        slope = float(gradient @ direction)
        if not slope < 0:
            memory = Memory()
            direction, slope = -scale * gradient, -scale * float(gradient @ gradient)
        found = search(composite, theta, value, direction, slope)
        if found is None:
            if not memory.pairs and memory.start is None:
                break
            memory = Memory()
            stalled += 1
            continue
        length, new_value, new_gradient = found
        memory.update(length * direction, new_gradient - gradient)
        theta, value, gradient = theta + length * direction, new_value, new_gradient
        if float(np.linalg.norm(gradient)) < float(np.linalg.norm(best[2])):
            best, stalled = (theta, value, gradient), 0
        else:
            stalled += 1
    return best


def search(
    composite: Composite, theta: Array, value: float, direction: Array, slope: float
) -> tuple[float, float, Array] | None:
    """Find a step length that decreases f enough; returns it with the value and the gradient there, or None.

    Where differences of values drown in rounding, the decrease is judged by slopes instead: for a quadratic the two
    conditions agree (W. Hager, H. Zhang, SIAM J. Optim. 2005, section 3).
    """
    shortest, longest, length = 0.0, np.inf, 1.0
    noise = 1e-12 * max(abs(value), 1.0)
    for _ in range(40):
        new_value, new_gradient = composite.smooth(theta + length * direction)
        new_slope = float(new_gradient @ direction)
        enough = new_value <= value + DECREASE * length * slope
        nearly = new_value <= value + noise and new_slope <= (2 * DECREASE - 1) * slope
        if not (np.isfinite(new_value) and (enough or nearly)):
            longest = length
        elif new_slope < SLOPE * slope:
            shortest = length
        else:
            return length, new_value, new_gradient
        length = 2 * shortest if np.isinf(longest) else (shortest + longest) / 2
    return None
