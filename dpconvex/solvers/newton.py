"""Newton steps that look at gradients alone: the last resort where K is all of space.

Differences of values drown in rounding long before gradients do, so nothing here compares values.  A step solves the Newton
equation by conjugate gradients, and ends where the slope along it changes its sign.  In exact arithmetic every step lowers f,
whatever the curvature does (f need only have a Lipschitz gradient); near the minimiser one step leaves little more than the
rounding of one gradient, of which the tolerance is a multiple.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpconvex.solvers.composite import Composite

Array = NDArray[np.float64]

# A step solves its equation to this relative accuracy, with so many products at most.
ACCURACY, PRODUCTS = 1e-3, 500
# A whole step that leaves this fraction of the gradient is taken as it is; else the slope along it must fall to its fraction.
SHRUNK, FLAT = 0.5, 0.1
# Trials of a search along a line; halving so often reaches the last bit of the length.
TRIALS = 100
# Steps without a smaller gradient after which rounding is to blame.
PATIENCE = 30


def descend_by_slopes(
    composite: Composite, theta: Array, value: float, gradient: Array, bound: float, max_steps: int
) -> tuple[Array, float, Array]:
    """Minimise a smooth f over all of space; arguments and results are those of `quasi_newton.descend`."""
    best, stalled = (theta, value, gradient), 0
    for _ in range(max_steps):
        norm = float(np.linalg.norm(gradient))
        if norm <= bound or stalled > PATIENCE:
            break
        direction = newton_direction(composite, theta, gradient)
        theta, value, gradient = along(composite, theta, value, gradient, direction)
        stalled += 1
        if float(np.linalg.norm(gradient)) < float(np.linalg.norm(best[2])):
            best, stalled = (theta, value, gradient), 0
    return best


def newton_direction(composite: Composite, theta: Array, gradient: Array) -> Array:
    """Solve ``H d = -gradient`` by conjugate gradients, each residual made orthogonal to all before it.

    Without rounding there would be nothing to do for that; with it, an ill-conditioned equation takes many more products.
    """
    norm = float(np.linalg.norm(gradient))
    residual = -gradient / norm
    direction, step = np.zeros_like(gradient), residual.copy()
    square, known = 1.0, [residual.copy()]
    for _ in range(min(len(gradient), PRODUCTS)):
        product = composite.hessian_product(theta, step)
        curvature = float(step @ product)
        if not (np.isfinite(curvature) and curvature > 0):
            break
        direction += square / curvature * step
        residual = residual - square / curvature * product
        basis = np.array(known)
        for _ in range(2):
            residual = residual - basis.T @ (basis @ residual)
        new_square = float(residual @ residual)
        if new_square <= ACCURACY**2:
            break
        known.append(residual / np.sqrt(new_square))
        step = residual + new_square / square * step
        square = new_square
    return norm * direction if direction.any() else -gradient / composite.problem.strong_convexity


def along(
    composite: Composite, theta: Array, value: float, gradient: Array, direction: Array
) -> tuple[Array, float, Array]:
    """Go along a direction until the gradient is much smaller, or the slope nearly zero."""
    slope = float(gradient @ direction)
    low, high, length = 0.0, np.inf, 1.0
    norm = float(np.linalg.norm(gradient))
    found = theta, value, gradient
    for trial in range(TRIALS):
        point = theta + length * direction
        new_value, new_gradient = composite.smooth(point)
        if np.isfinite(new_value):
            found = point, new_value, new_gradient
            new_slope = float(new_gradient @ direction)
            if abs(new_slope) <= FLAT * abs(slope) or (
                trial == 0 and float(np.linalg.norm(new_gradient)) <= SHRUNK * norm
            ):
                break
            low, high = (length, high) if new_slope < 0 else (low, length)
        else:
            high = length
        length = 2 * low if np.isinf(high) else (low + high) / 2
        if length in (low, high):
            break
    return found
