"""Models of the Hessian of f from a sample of records, as linear maps: a matrix, second moments, or the records themselves."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from dpconvex.optim.problem import Problem
from dpconvex.sets.quadratics import Quadratic
from dpconvex.util.arrays import Array, Indices

LinearMap = Callable[[Array], Array]


@dataclass(frozen=True, eq=False)
class Kronecker:
    """``diagonal + scale (moments x bend) scale``, for coordinates in a table: rows are monomials, columns kinds of scores."""

    places: Indices  # of coordinates, shape (rows, columns)
    scale: Array  # of each coordinate, shape (dim,)
    bend: Array  # shape (columns, columns)
    moments: Array  # shape (rows, rows)
    diagonal: Array  # shape (dim,)

    def __call__(self, vector: Array) -> Array:
        result, scale = self.diagonal * vector, self.scale[self.places]
        result[self.places] += scale * (self.moments @ (scale * vector[self.places]) @ self.bend)
        return np.asarray(result)

    def inverse(self) -> LinearMap | None:
        """Return an approximate inverse, with one diagonal entry for each row of the table; None if numbers overflow."""
        scale = self.scale[self.places]
        root = np.sqrt((self.diagonal[self.places] / scale**2).mean(axis=1))
        scaled = self.moments / root[:, None] / root
        if not (np.isfinite(scaled).all() and np.isfinite(self.bend).all()):
            return None
        rows, left = np.linalg.eigh(scaled)
        columns, right = np.linalg.eigh(self.bend)
        values = 1.0 + np.maximum(rows, 0.0)[:, None] * np.maximum(columns, 0.0)

        def apply(vector: Array) -> Array:
            inner = left.T @ (vector[self.places] / (scale * root[:, None])) @ right
            result = np.empty_like(vector)
            result[self.places] = left @ (inner / values) @ right.T / (scale * root[:, None])
            return result

        return apply


@dataclass(frozen=True, eq=False)
class Dense:
    """A Hessian as a matrix."""

    matrix: Array

    def __call__(self, vector: Array) -> Array:
        return self.matrix @ vector


@dataclass(frozen=True, eq=False)
class Sampled:
    """The Hessian of a sample in factors: ``public + map' (sum over records of bend x monomials monomials') map``."""

    public: Any  # sparse, shape (dim, dim)
    map: sp.csr_array  # from coordinates to coefficients of the forms
    table: Array  # the monomials of the curved records, shape (records, monomials)
    bends: Array  # their Hessians by the forms, shape (records, forms, forms)
    seen: LinearMap

    def __call__(self, vector: Array) -> Array:
        coefficients = (self.map @ self.seen(vector)).astype(np.float32).reshape(-1, self.table.shape[1])
        slopes = np.matmul(self.bends, (self.table @ coefficients.T)[:, :, None])[:, :, 0]
        return np.asarray(self.public @ vector + self.seen(self.map.T @ (slopes.T @ self.table).ravel()))


def second_moments(problem: Problem, theta: Array, records: int) -> Kronecker | None:
    """Return a model by second moments; None if coordinates form no table."""
    found, public = problem.loss.grid(problem.seen(theta), records), problem.public(problem.smooth_part)
    if found is None:
        return None
    diagonal = public.hessian.diagonal() if isinstance(public, Quadratic) else np.zeros(problem.space.dim)
    return Kronecker(*found, np.maximum(problem.size * diagonal + problem.added, problem.strong_convexity))


def sampled_hessian(problem: Problem, theta: Array, records: int) -> LinearMap | None:
    """Return the Hessian of f, estimated from about `records` records; None if it is not finite or too large."""
    if problem.loss.has_hessian:
        matrix = problem.hessian(theta, records)
        return Dense(matrix) if np.isfinite(matrix).all() else None
    factors = problem.loss.factors(problem.seen(theta), records)
    if factors is None:
        return None
    public = problem.size * problem.public(problem.smooth_part).hessian_at(theta)
    public = sp.csr_array(public + problem.added * sp.eye_array(problem.space.dim))
    return Sampled(public, problem.loss.form.map, *factors, problem.seen)


def inverse_hessian(problem: Problem, theta: Array, records: int) -> LinearMap | None:
    """Return the inverse of a model from about `records` records; None if the model has none."""
    try:
        if not problem.loss.has_hessian:
            model = second_moments(problem, theta, records)
            return None if model is None else model.inverse()
        factor = scipy.linalg.cho_factor(problem.hessian(theta, records))
    except ValueError:  # LAPACK may also fail to find eigenvalues of finite matrices
        return None
    return lambda vector: np.asarray(scipy.linalg.cho_solve(factor, vector, check_finite=False))


class Corrected:
    """A model with BFGS updates from each step."""

    def __init__(self, model: LinearMap, dim: int) -> None:
        self.model, self.rows, self.weights = model, np.zeros((0, dim)), np.zeros(0)

    def __call__(self, vector: Array) -> Array:
        return self.model(vector) + (self.weights * (self.rows @ vector)) @ self.rows

    def shifted(self, more: float) -> LinearMap:
        """Return the model plus `more` times the identity; a matrix stays a matrix."""
        if not isinstance(self.model, Dense):
            return lambda vector: self(vector) + more * vector
        matrix = self.model.matrix + more * np.eye(len(self.model.matrix))
        return Dense(matrix + (self.rows.T * self.weights) @ self.rows)

    def update(self, step: Array, change: Array) -> None:
        """Update the model with the change of the gradient along a step, if its curvature is clearly positive."""
        if float(step @ change) > 1e-10 * float(np.linalg.norm(step) * np.linalg.norm(change)):
            image = self(step)
            self.rows = np.vstack([self.rows, image, change])
            self.weights = np.append(self.weights, [-1 / (step @ image), 1 / (step @ change)])
