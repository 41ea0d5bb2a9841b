"""From a point to one that is certified: by quasi-Newton steps, and where these get stuck by others.

Where K is all of space these are Newton steps that look at gradients alone (`newton`), else accelerated proximal gradients:
Nesterov's method with the momentum of A. Beck and M. Teboulle (SIAM J. Imaging Sci. 2009), restarted
whenever the step points against the momentum (B. O'Donoghue, E. Candes, Found. Comput. Math. 2015, section 3.2), so that
it adapts to the strong convexity it meets.  All may use whatever they like of the data: what they find is certified.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpconvex.solvers.composite import Composite
from dpconvex.solvers.distance import Iterate, at_point, floor, step
from dpconvex.solvers.lbfgs import descend
from dpconvex.solvers.newton import descend_by_slopes
from dpconvex.solvers.panoc import quasi_newton
from dpconvex.solvers.proximal_newton import by_models, pays

Array = NDArray[np.float64]

# Quasi-Newton steps that got stuck begin anew, with what they know of the curvature forgotten, as long as that halves the bound.
RESTARTS = 10
# Certified steps without progress after which rounding is to blame: at least so many, and as many as accelerated steps need for
# progress, times this.
PATIENCE, PERIODS = 20, 2


def polish(composite: Composite, start: Array, tolerance: float, max_steps: int) -> Iterate:
    """Step until the certified distance reaches the tolerance, or no step helps any more."""
    mu = composite.problem.strong_convexity
    if not composite.is_smooth:
        start = composite.problem.feasible.project(start)
    value, gradient = composite.smooth(start)
    if not np.isfinite(value) and max_steps > 0:  # a start from which no method could go on
        start = composite.problem.feasible.project(np.zeros(composite.dim))
        value, gradient = composite.smooth(start)
    if not np.isfinite(value):
        return Iterate(start, np.inf, value, gradient, mu)
    best = at_point(composite, start, value, gradient)
    if best.distance_bound <= tolerance:
        return best
    if composite.is_smooth:
        if max_steps == 0:
            return best
        last = composite.evaluations + max_steps
        for method, least in ((descend, 0.1), (descend, 0.01), (descend_by_slopes, 0.001)):
            # What rounding takes from the tolerance depends on where the point is, so it is asked anew.
            allowance = max(tolerance - floor(composite, best), least * tolerance)
            left = max(last - composite.evaluations, 0)  # a step costs at least one pass over the records
            steps = left if method is descend_by_slopes else (left + 1) // 2
            found = method(composite, best.theta, best.value, best.gradient, 0.9 * mu * allowance, steps)
            best = at_point(composite, *found)
            if best.distance_bound <= tolerance:
                break
        return best
    best = step(composite, start, value, gradient, composite.curvature_ahead(start, gradient))
    if best.distance_bound <= tolerance or max_steps == 0:
        return best
    if pays(composite):
        best = by_models(composite, best, tolerance, max_steps)
        if best.distance_bound <= tolerance:
            return best
    for _ in range(RESTARTS):
        before = best.distance_bound
        best = quasi_newton(composite, best, tolerance, max_steps)
        if best.distance_bound <= tolerance or tolerance < floor(composite, best) > best.distance_bound / 4:
            return best
        if best.distance_bound > before / 2:
            break
    return accelerate(composite, best, tolerance, max_steps)


def accelerate(composite: Composite, best: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Take accelerated proximal-gradient steps until the tolerance is reached or no step helps any more."""
    mu = composite.problem.strong_convexity
    lipschitz, momentum, stalled = best.lipschitz, 1.0, 0
    theta, point = best.theta, best.theta
    value, gradient = best.value, best.gradient
    for _ in range(max_steps):
        # A step is certified only when it is short enough to have a chance; that saves one gradient in two.
        trial = composite.proximal(point - gradient / lipschitz, 1.0 / lipschitz)
        if lipschitz * float(np.linalg.norm(point - trial)) <= 2 * mu * tolerance:
            iterate = step(composite, point, value, gradient, lipschitz)
            lipschitz = iterate.lipschitz
            stalled = 0 if iterate.distance_bound < 0.9 * best.distance_bound else stalled + 1
            if iterate.distance_bound < best.distance_bound:
                best = iterate
            patience = max(PATIENCE, PERIODS * np.sqrt(lipschitz / mu))
            if best.distance_bound <= tolerance or (stalled > patience and floor(composite, best) > tolerance / 4):
                return best
            trial = iterate.theta
        following = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        if float((point - trial) @ (trial - theta)) > 0:
            following, extrapolated = 1.0, trial
        else:
            extrapolated = trial + (momentum - 1.0) / following * (trial - theta)
        new_value, new_gradient = composite.smooth(extrapolated)
        change, move = new_gradient - gradient, extrapolated - point
        observed = float(np.linalg.norm(change)) / max(float(np.linalg.norm(move)), 1e-300)
        if not np.isfinite(new_value) or observed > lipschitz * (1 + 1e-9):
            lipschitz = max(2.0 * lipschitz if not np.isfinite(observed) else 1.2 * observed, 1.2 * lipschitz)
            following = 1.0
            if not np.isfinite(new_value):
                momentum = following
                continue
        theta, point, value, gradient, momentum = trial, extrapolated, new_value, new_gradient, following
    return best
