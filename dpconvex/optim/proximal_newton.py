"""Proximal Newton steps on eigenvalue and interval constraints (P. Patrinos, L. Stella, A. Bemporad, CDC 2014)."""

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from dpconvex.optim.hessian_models import Corrected, Dense, LinearMap, sampled_hessian, second_moments
from dpconvex.optim.problem import Iterate, Problem, at_point
from dpconvex.sets.projections import ConvexSet, IntervalSet, Spectral, smat, svec, upper_triangle
from dpconvex.util.arrays import Array, Indices

# Records of a sample for each monomial, and least records for second moments. After so many slow steps (remaining distance
# above SLOW) a sample grows; after one less, it replaces second moments. It is drawn anew after a step that leaves ANEW.
SAMPLE_EACH, LEAST_SAMPLE, SLOW_STEPS, SLOW, ANEW = 10, 4096, 3, 0.3, 0.1
# Steps without progress from which rounding is the cause, and most steps.
STALLED_STEPS, MAX_NEWTON_STEPS = 8, 60
# Shifts of a model's eigenvalues (K. Levenberg, D. Marquardt), as a share of the largest: the first; the first of the largest
# proved one, if the model is flat; the least after a failed step. A step below FAILED of the predicted decrease fails; below
# POOR it is too long. A model stays if its error is below RIGHT while the shift adds HELD of its curvature to a step.
SHIFT, STEEPEST, LEAST_SHIFT, FAILED, POOR, HELD, RIGHT = 1e-2, 1e-3, 1e-9, 1e-3, 0.3, 0.15, 0.1
ROUNDING_SHARE = 1e-11  # Rounding hides differences of values below this share of them
# The model is minimised to a fraction of the residual (rougher for a matrix, which solves a system in each step), in at most so
# many steps, each with at most so many products. They are stuck if more than this fraction remains.
MODEL_FRACTION, ROUGHER, STUCK, EXACT, INNER_STEPS, PRODUCTS = 0.1, 0.5, 0.8, 1e-14, 30, 200
# If less of a step than this helps, the projection's active set changes nearby; so many proximal-gradient steps are cheaper.
SHORT_STEP, FORWARD = 0.1, 4
FLAT = 1e-9  # Directions with a smaller derivative of the projection count as fixed


@dataclass(frozen=True, eq=False)
class Spectra:
    """Symmetric matrices of one size, with eigenvalues (after a shift) in intervals; `root` is R of new coordinates, if any."""

    place: Indices  # of each matrix's coordinates, shape (count, side (side + 1) / 2)
    shift: Array  # shape (count, side, side)
    lower: Array  # shape (count, side)
    upper: Array
    root: Array | None = None

    def moved(self, vector: Array, root: Array) -> Array:
        return svec(root @ smat(vector[..., self.place]) @ root.T)


@dataclass(frozen=True, eq=False)
class Derivative:
    """A derivative of the projection: diagonal in coordinates rotated by the matrices' eigenvectors."""

    vectors: list[tuple[Indices, Array]]
    weights: Array  # between 0 and 1, shape (dim,)

    def turned(self, vector: Array, back: bool = False) -> Array:
        result = vector.copy()
        for place, turn in self.vectors:
            other = turn.swapaxes(-1, -2)
            left, right = (turn, other) if back else (other, turn)
            result[place] = svec(left @ smat(vector[place]) @ right)
        return result


def congruence(turn: Array) -> Array:
    """Return the maps from matrices ``X`` to ``turn' X turn``, from rows to columns: (..., D, D) to (..., D(D+1)/2, D(D+1)/2)."""
    row, column, weight = upper_triangle(turn.shape[-1])
    first, second = turn[..., row, :], turn[..., column, :]
    both = first[..., row] * second[..., column] + first[..., column] * second[..., row]
    return np.asarray(both * (weight[:, None] * weight / 2))


def transform_form(matrix: Array, maps: list[tuple[Indices, Array]], chosen: NDArray[np.bool_] | None = None) -> Array:
    """Return a quadratic form in coordinates transformed by these maps; restricted to `chosen` coordinates, if given."""
    for _ in range(2):
        matrix = matrix.T.copy()
        for places, tables in maps:
            for place, table in zip(places, tables if tables.ndim > 2 else [tables] * len(places), strict=True):
                kept = slice(None) if chosen is None else chosen[place]
                matrix[place[kept]] = table[:, kept].T @ matrix[place]
        matrix = matrix if chosen is None else matrix[chosen]
    return matrix


class Coordinates:
    """K in original or scaled coordinates: theta is the original point, x the point after congruences of the cones."""

    def __init__(self, spectra: list[Spectra], intervals: list[IntervalSet]) -> None:
        self.spectra, self.intervals = spectra, intervals

    @classmethod
    def of(cls, pieces: tuple[ConvexSet, ...]) -> "Coordinates | None":
        """Return K in its own coordinates; None if it has pieces of another kind, or no matrices."""
        intervals = [piece for piece in pieces if isinstance(piece, IntervalSet)]
        matrices = [p for p in pieces if isinstance(p, Spectral) and p.symmetric and isinstance(p.inner, IntervalSet)]
        if not matrices or len(intervals) + len(matrices) < len(pieces):
            return None
        spectra = []
        for side in sorted({len(piece.shift) for piece in matrices}):
            own = [piece for piece in matrices if len(piece.shift) == side]
            bounds = [np.array([piece.inner.bounds()[k] for piece in own]) for k in (0, 1)]
            spectra.append(Spectra(np.array([p.coordinates for p in own]), np.array([p.shift for p in own]), *bounds))
        return cls(spectra, intervals)

    def evened(self, curvature: LinearMap, least: float, dim: int) -> "Coordinates":
        """Return coordinates that even out curvature within matrix cones, estimated along +I and -I for alternating matrices."""
        spectra = []
        for one in self.spectra:
            if not (one.shift.any() or one.lower.any() or np.isfinite(one.upper).any()):  # cones
                count, side = one.shift.shape[:2]
                sign, direction = np.resize([1.0, -1.0], count)[:, None], np.zeros(dim)
                direction[one.place] = sign * svec(np.eye(side))
                values, vectors = np.linalg.eigh(smat((sign * curvature(direction)[one.place]).mean(axis=0)))
                values = np.maximum(values - least, 0.0)
                # A product of features has about this curvature: the product of both curvatures over the root of their sum.
                even = np.maximum(values / np.sqrt(max(values.sum(), 1e-300)), np.sqrt(least))
                one = Spectra(one.place, one.shift, one.lower, one.upper, (vectors / np.sqrt(even)) @ vectors.T)
            spectra.append(one)
        return Coordinates(spectra, self.intervals)

    def original(self, x: Array) -> Array:
        """Return theta for one or many x. R is symmetric, so this also maps gradients by theta to gradients by x."""
        theta = x.copy()
        for one in self.spectra:
            if one.root is not None:
                theta[..., one.place] = one.moved(x, one.root)
        return theta

    def new(self, theta: Array) -> Array:
        x = theta.copy()
        for one in self.spectra:
            if one.root is not None:
                x[one.place] = one.moved(theta, np.asarray(np.linalg.inv(one.root), dtype=float))
        return x

    def model(self, plain: LinearMap) -> LinearMap:
        """Return a model of the Hessian by x from a model by theta."""
        if isinstance(plain, Dense):
            roots = [(one.place, congruence(one.root)) for one in self.spectra if one.root is not None]
            return Dense(transform_form(plain.matrix, roots))
        return lambda x: self.original(plain(self.original(x)))

    def project(self, x: Array) -> tuple[Array, Derivative]:
        """Return the projection onto K in these coordinates, and its derivative."""
        result, weights, turns = x.copy(), np.ones(len(x)), []
        for piece in self.intervals:
            here = piece.coordinates
            result[here] = np.clip(x[here], piece.lower, piece.upper)
            weights[here] = result[here] == x[here]
        for one in self.spectra:
            values, vectors = np.linalg.eigh(smat(x[one.place]) - one.shift)
            inside = np.clip(values, one.lower, one.upper)
            result[one.place] = svec((vectors * inside[:, None]) @ vectors.swapaxes(-1, -2) + one.shift)
            row, column, _ = upper_triangle(values.shape[1])
            apart, moved = values[:, row] - values[:, column], inside[:, row] - inside[:, column]
            equal = np.abs(apart) <= 1e-14 * np.abs(values).max(axis=1, keepdims=True)
            free = (inside == values)[:, row].astype(float)
            weights[one.place] = np.clip(np.where(equal, free, moved / np.where(equal, 1.0, apart)), 0.0, 1.0)
            turns.append((one.place, vectors))
        return result, Derivative(turns, np.where(weights > FLAT, weights, 0.0))


@dataclass(eq=False)
class Modelled:
    """A model of f around an iterate, in coordinates in which its curvature is nearly even."""

    coordinates: Coordinates
    curvature: Corrected
    largest: float  # estimate of its largest eigenvalue
    along: Array  # and of its eigenvector
    plain: LinearMap  # the model in the original coordinates

    @classmethod
    def of(cls, plain: Coordinates, model: LinearMap, problem: Problem) -> "Modelled":
        new = plain.evened(model, problem.strong_convexity, problem.space.dim)
        moved = Corrected(new.model(model), problem.space.dim)
        return cls(new, moved, *largest_eigenvalue(moved, problem.space.dim), model)

    def minimised(self, now: Iterate, shift: float) -> tuple[Array, float]:
        """Return about the minimiser over K of the model at an iterate, and its shift, which grows until steps find it."""
        start, gradient = self.coordinates.new(now.theta), self.coordinates.original(now.gradient)
        corrected, self.along = largest_eigenvalue(self.curvature, len(start), self.along)
        while True:
            more = shift * self.largest
            largest = max(self.largest, corrected) + more
            found, settled = minimise(self.coordinates, self.curvature.shifted(more), gradient, start, largest)
            if settled or not shift < 1:
                return self.coordinates.original(found), shift
            shift = 10 * max(shift, LEAST_SHIFT)

    def decrease(self, now: Iterate, theta: Array, shift: float) -> tuple[float, bool]:
        """Return the decrease of f that the model predicts, and whether the shift limited the step."""
        move, slope = self.coordinates.new(theta - now.theta), float(now.gradient @ (theta - now.theta))
        bent = float(move @ self.curvature(move))
        return -slope - 0.5 * bent, shift * self.largest * float(move @ move) > HELD * bent

    def learn(self, now: Iterate, found: Iterate) -> None:
        if np.isfinite(found.value):
            change = self.coordinates.original(found.gradient - now.gradient)
            self.curvature.update(self.coordinates.new(found.theta - now.theta), change)


def largest_eigenvalue(model: LinearMap, dim: int, start: Array | None = None) -> tuple[float, Array]:
    """Estimate the largest eigenvalue, a tenth too large, and its vector, by power iteration; fewer products from `start`."""
    x = np.random.default_rng(0).normal(size=dim) if start is None else start
    for _ in range(12 if start is None else 4):
        x = model(x / max(float(np.linalg.norm(x)), 1e-300))
    return max(1.1 * float(np.linalg.norm(x)), 1e-300), x


def minimise(cones: Coordinates, model: LinearMap, gradient: Array, start: Array, largest: float) -> tuple[Array, bool]:
    """Take semismooth Newton steps to the minimiser over K, damped by the forward-backward envelope; say if they help."""

    def state(x: Array) -> tuple[float, Array, Array, Array, Derivative]:
        bent = model(x - start)
        forward, derivative = cones.project(x - (gradient + bent) / largest)
        residual = x - forward
        value = float((gradient + bent / 2) @ (x - start)) - float((gradient + bent) @ residual)
        return value + 0.5 * largest * float(residual @ residual), x, forward, residual, derivative

    now = state(start)
    first = largest * float(np.linalg.norm(now[3]))
    fraction = ROUGHER if isinstance(model, Dense) else MODEL_FRACTION
    enough = max(fraction * first, EXACT * float(np.linalg.norm(gradient)))
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
        for _ in range(FORWARD if damping < SHORT_STEP else 0):
            now = state(now[2])
    return now[2], largest * float(np.linalg.norm(now[3])) <= max(enough, STUCK * first)


def newton(model: LinearMap, residual: Array, derivative: Derivative, largest: float) -> Array:
    """Return the step ``d`` with ``(I - D (I - model/largest)) d = -residual``, D the derivative of the projection.

    With D = V w V' and d = V (sqrt(w) s - rest), where rest is the rotated residual at w = 0, this is ``(sqrt(w) V' model V
    sqrt(w) / largest + 1 - w) s = sqrt(w) V' model V rest / largest - V' residual / sqrt(w)``.
    """
    weights = derivative.weights
    root, free = np.sqrt(weights), weights > 0
    turned = derivative.turned(residual)
    rest = np.where(free, 0.0, turned)

    def bent(vector: Array) -> Array:
        return root * derivative.turned(model(derivative.turned(vector, back=True))) / largest

    target = bent(rest) - np.where(free, turned / np.where(free, root, 1.0), 0.0)
    found = np.zeros(len(target))
    if isinstance(model, Dense):
        maps = [(place, congruence(turn)) for place, turn in derivative.vectors]
        system, scale = transform_form(model.matrix, maps, free), root[free] / np.sqrt(largest)
        system *= np.outer(scale, scale)
        system.flat[:: len(system) + 1] += 1 - weights[free] + EXACT
        found[free] = solution(system, target[free])
        return derivative.turned(root * found - rest, back=True)
    # In free coordinates the system is about as large as the model's average: scale it by that.
    probe = np.random.default_rng(0).normal(size=len(target))
    average = float(probe @ model(probe)) / (largest * float(probe @ probe))
    scale = weights * max(average, EXACT) + (1 - weights)
    left, along = target, target / scale
    square, enough = float(left @ along), 0.001 * float(left @ left)
    for _ in range(PRODUCTS):  # conjugate gradients
        image = bent(root * along) + (1 - weights) * along
        curvature = float(along @ image)
        if float(left @ left) <= enough or not curvature > 0:
            break
        found, left = found + square / curvature * along, left - square / curvature * image
        scaled = left / scale
        square, last = float(left @ scaled), square
        along = scaled + square / last * along
    return derivative.turned(root * found - rest, back=True)


def solution(system: Array, target: Array) -> Array:
    """Solve a symmetric system that is positive definite but for rounding."""
    try:
        factor = scipy.linalg.cho_factor(system, lower=True, check_finite=False)
    except np.linalg.LinAlgError:
        return np.asarray(np.linalg.solve(system, target))
    return np.asarray(scipy.linalg.cho_solve(factor, target, check_finite=False))


@dataclass(eq=False)
class Models:
    """The sequence of models: second moments, if coordinates form a table, then samples, which grow if need be."""

    problem: Problem
    plain: Coordinates
    records: int
    sampling: bool = False
    slow: int = 0
    current: Modelled | None = None

    def at(self, theta: Array) -> Modelled | None:
        """Return the model in use; make one at `theta` if there is none. Return None if this is impossible."""
        if self.current is None:
            made: LinearMap | None = None
            if not self.sampling:
                made = second_moments(self.problem, theta, max(self.records, LEAST_SAMPLE))
            if made is None:
                made, self.sampling = sampled_hessian(self.problem, theta, self.records), True
            self.current = None if made is None else Modelled.of(self.plain, made, self.problem)
        return self.current

    def judge(self, gain: float, right: bool) -> None:
        """Replace the model if steps are slow; `gain` is the share of the distance that the last step left."""
        self.slow = self.slow + 1 if gain > SLOW else 0
        if self.sampling and gain > ANEW and not right:  # otherwise a smaller shift helps more
            self.current = None
        larger = not self.sampling or self.records < self.problem.batch.size
        if larger and self.slow >= SLOW_STEPS - (not self.sampling):
            self.records *= 4 if self.sampling else 1
            self.sampling, self.slow, self.current = True, 0, None


def descend(problem: Problem, plain: Coordinates, best: Iterate, tolerance: float, max_steps: int) -> Iterate:
    """Take steps until the certified distance reaches the tolerance, or steps no longer help."""
    now, stalled, failed, shift = best, 0, False, 0.0
    models = Models(problem, plain, SAMPLE_EACH * problem.loss.monomials)
    for _ in range(min(max_steps, MAX_NEWTON_STEPS)):
        if problem.reached(best, tolerance) or stalled > STALLED_STEPS:
            break
        model = models.at(now.theta)
        if model is None:
            break
        if not shift:  # where losses are flat, their model misses curvature farther on
            largest, least = largest_eigenvalue(model.plain, problem.space.dim)[0], STEEPEST * problem.curvature
            shift = least / largest if largest < least else SHIFT
        theta, shift = model.minimised(now, shift)
        theta = problem.feasible.project(theta)
        found = at_point(problem, theta, *problem.smooth(theta))
        predicted, held = model.decrease(now, theta, shift)
        model.learn(now, found)
        gain = found.distance_bound / now.distance_bound
        drowned = not predicted > ROUNDING_SHARE * abs(now.value)  # then distances must shrink
        ratio = (1.0 if gain < 0.9 else -1.0) if drowned else (now.value - found.value) / predicted
        stalled += 1
        if not ratio > FAILED:
            shift, failed = 8 * max(shift, LEAST_SHIFT), True
            continue
        now = found
        stalled = 0 if now.distance_bound < best.distance_bound or not drowned else stalled
        best = min(best, now, key=lambda iterate: iterate.distance_bound)
        shift *= (0.5 if failed else 0.1) if ratio > 0.7 else 3.0 if ratio < POOR else 1.0
        models.judge(1.0 if failed else gain, right=held and abs(ratio - 1) < RIGHT)
        failed = False
    return best
