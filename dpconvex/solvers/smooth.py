"""Minimisers where K is all of space and nothing has kinks: limited-memory BFGS, begun with a model of the Hessian.

The model is made of second moments of the records (`evaluation.gram`) once it pays; without it, limited-memory BFGS begins with
a multiple of the identity, and takes many passes over records whose second moments are far from round.  Where that ends before
the tolerance, Newton steps look at gradients alone: differences of values drown in rounding long before gradients do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dpconvex.evaluation.gram import Gram
from dpconvex.solvers.composite import Composite
from dpconvex.solvers.distance import Iterate, at_point, floor

Array = NDArray[np.float64]
Inverse = Callable[[Array], Array]

# Fraction of the predicted decrease that a step must achieve (Armijo), and of the slope that may remain.
DECREASE, SLOPE = 1e-4, 0.9
# Pairs that are remembered beside a model of the Hessian.
MODELLED = 40
# A matrix of so many coordinates is decomposed whole; with more of them, as a product of one for features and one for classes,
# if it is that, or up to the second number.
SMALL, LARGEST = 500, 2000
# A regularizer that is not quadratic is asked for all columns of its Hessian if it has so many coordinates.
COLUMNS = 200
# The speed of so many passes is looked at before a model is made.
TRIED = 5
# Steps without a smaller gradient after which rounding is to blame; Newton steps, and trials of their length, at most.
PATIENCE, NEWTON, TRIALS = 30, 50, 60


def descend(composite: Composite, best: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Step until the certified distance reaches the tolerance, or no step helps any more."""
    last = composite.evaluations + max_steps
    for method, least in ((quasi_newton, 0.1), (quasi_newton, 0.01), (newton, 0.001)):
        # What rounding takes from the tolerance depends on where the point is, so it is asked anew.
        allowance = max(tolerance - floor(composite, best), least * tolerance)
        left = max(last - composite.evaluations, 0)  # a step costs at least one pass over the records
        steps = left if method is newton else (left + 1) // 2
        found = method(composite, best, 0.9 * composite.problem.strong_convexity * allowance, steps)
        best = at_point(composite, *found)
        if best.distance_bound <= tolerance:
            break
    return best


class Memory:
    """The last steps and changes of gradient (J. Nocedal, S. Wright, Numerical Optimization, algorithm 7.4)."""

    def __init__(self, size: int = 20, start: Inverse | None = None) -> None:
        self.pairs: deque[tuple[Array, Array, float]] = deque(maxlen=size)
        self.start = start  # the model that the pairs correct; a multiple of the identity by default

    def update(self, step: Array, change: Array) -> None:
        """Remember a step and the change of the gradient along it, if its curvature is clearly positive."""
        inner = float(step @ change)
        if inner > 1e-12 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            self.pairs.append((step, change, inner))

    def clear(self) -> None:
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


def quasi_newton(composite: Composite, start: Iterate, bound: float, max_steps: int) -> tuple[Array, float, Array]:
    """Minimise f until its gradient norm is at most `bound`, or no step helps."""
    theta, value, gradient = best = start.theta, start.value, start.gradient
    memory, models = Memory(), Models(composite)
    scale = 1.0 / max(float(np.linalg.norm(gradient)), composite.problem.strong_convexity)
    stalled = 0
    for _ in range(max_steps):
        norm = float(np.linalg.norm(gradient))
        if norm <= bound or stalled > PATIENCE:
            break
        model = models.inverse(theta, norm, bound)
        if model is not None:
            memory = Memory(MODELLED, model)
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
        stalled += 1
        if float(np.linalg.norm(gradient)) < float(np.linalg.norm(best[2])):
            best, stalled = (theta, value, gradient), 0
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


def newton(composite: Composite, start: Iterate, bound: float, max_steps: int) -> tuple[Array, float, Array]:
    """Take Newton steps, each to where the slope along it has nearly vanished: nothing here compares values."""
    theta, value, gradient = best = start.theta, start.value, start.gradient
    for _ in range(min(max_steps, NEWTON)):
        norm = float(np.linalg.norm(gradient))
        if norm <= bound or not np.isfinite(norm):
            break
        matrix = composite.hessian(theta)
        floor_of_curvature = composite.problem.strong_convexity * np.eye(len(theta))
        try:
            direction = -scipy.linalg.solve(matrix, gradient, assume_a="pos")
        except (np.linalg.LinAlgError, ValueError):
            direction = -np.linalg.lstsq(np.nan_to_num(matrix) + floor_of_curvature, gradient, rcond=None)[0]
        slope = float(gradient @ direction)
        low, high, length = 0.0, np.inf, 1.0
        for trial in range(TRIALS):
            point = theta + length * direction
            found, following = composite.smooth(point)
            ahead = float(following @ direction)
            if np.isfinite(found) and (
                abs(ahead) <= 0.1 * abs(slope) or (not trial and float(np.linalg.norm(following)) <= norm / 2)
            ):
                break
            low, high = (length, high) if np.isfinite(found) and ahead < 0 else (low, length)
            length = 2 * low if np.isinf(high) else (low + high) / 2
        if not np.isfinite(found):
            break
        theta, value, gradient = point, found, following
        if float(np.linalg.norm(gradient)) < float(np.linalg.norm(best[2])):
            best = theta, value, gradient
    return best


class Models:
    """Says when a model of the Hessian pays, and makes it.

    Steps go on without one while the speed so far foretells fewer passes than it costs.  A model that is the Hessian itself where
    it was made is made again by the same rule.
    """

    def __init__(self, composite: Composite) -> None:
        self.composite, self.problem = composite, composite.problem
        self.cost = self.problem.loss.gram_passes
        self.start: Array | None = None
        self.last = 0, np.inf

    def inverse(self, theta: Array, norm: float, bound: float) -> Inverse | None:
        """Return the inverse of a model at a point, if it pays for bringing the norm of the gradient there down to a bound."""
        now = self.composite.evaluations
        if not np.isfinite(self.cost):
            return None
        if self.start is None:
            self.start, self.last = theta, (now, norm)
            return None
        passes, gained = now - self.last[0], np.log(self.last[1] / norm)
        if passes < TRIED or passes * np.log(norm / bound) < self.cost * max(gained, 0.0):
            return None
        gram = self._gram(theta)
        found = None if gram is None else inverse(self.composite, theta, gram)
        if gram is None or found is None or not gram.exact:
            self.cost = np.inf  # it would be much the same again
        self.last = now, norm
        return found

    def _gram(self, theta: Array) -> Gram | None:
        """Return the Gram matrix at a point; one that is no Hessian with the mean of the bends there and where steps began.

        Where steps of no model end, losses may bend much less than they do around the minimiser.
        """
        loss, seen = self.problem.loss, self.problem.projector or np.asarray
        gram = loss.gram(seen(theta))
        if gram is None or gram.exact or self.start is None:
            return gram
        first = loss.gram(seen(self.start))
        return gram if first is None else replace(gram, bend=(gram.bend + first.bend) / 2)


def inverse(composite: Composite, theta: Array, gram: Gram) -> Inverse | None:
    """Return the inverse of the Hessian of f, with the Gram matrix for that of the losses."""
    problem = composite.problem
    quadratic = problem.loss.quadratic(problem.split[0])
    if composite.dim > SMALL and gram.forms > 1:
        found = gram.grid()
        if found is not None:
            diagonal = np.zeros(composite.dim) if quadratic is None else quadratic.hessian.diagonal()
            public = np.maximum(problem.size * diagonal + problem.added, problem.strong_convexity)
            return of_grid(*found, gram.mean()[1], public)
    if composite.dim > LARGEST:
        return None
    matrix = gram.matrix()
    if problem.projector is not None:
        matrix = problem.projector(problem.projector(matrix).T)
    if quadratic is not None or composite.dim <= COLUMNS:
        matrix += problem.public_hessian(theta)
    else:
        matrix += problem.strong_convexity * np.eye(composite.dim)
    try:
        factor = scipy.linalg.cho_factor(matrix, overwrite_a=True)
    except (np.linalg.LinAlgError, ValueError):
        return None
    return lambda vector: np.asarray(scipy.linalg.cho_solve(factor, vector, check_finite=False))


def of_grid(places: NDArray[np.int64], bend: Array, moments: Array, diagonal: Array) -> Inverse | None:
    """Return the inverse of a Kronecker product and a diagonal."""
    used = places[:, 0] >= 0
    places = places[used]
    root = np.sqrt(diagonal[places].mean(axis=1))
    scaled = moments[used][:, used] / root[:, None] / root
    if not (np.isfinite(scaled).all() and np.isfinite(bend).all()):
        return None
    rows, left = np.linalg.eigh(scaled)
    columns, right = np.linalg.eigh(bend)
    values = 1.0 + np.maximum(rows, 0.0)[:, None] * np.maximum(columns, 0.0)

    def apply(vector: Array) -> Array:
        inner = left.T @ (vector[places] / root[:, None]) @ right
        result = np.empty_like(vector)
        result[places] = left @ (inner / values) @ right.T / root[:, None]
        return result

    return apply
