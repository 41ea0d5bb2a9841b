"""Exact distributions of an answer under two neighbours, and the epsilon and delta that they show (docs/audit.md)."""

from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy.special import ndtr

from dpconvex.certificates.certificate import Certificate
from dpconvex.mechanisms.matrix_noise import best_structure, shape_of
from dpconvex.noise.gaussian import bisect
from dpconvex.numerics import EIGENVALUE_ROUNDING
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.sensitivity.rank_one_gradients import degrees_of_freedom
from dpconvex.util.arguments import require
from dpconvex.util.arrays import Array

LEAST = 1e-12  # Relative rounding error of a gradient, and the smallest relative error of a mass
OFFSET = 1.2345e-7  # Moves cells' ends away from numbers that declarations contain, such as a kink at 0


@dataclass(frozen=True, eq=False)
class Masses:
    """Probabilities of the same cells under two distributions, and their relative error.  They bound delta from below."""

    first: Array
    second: Array
    error: Array | float = LEAST

    def delta(self, epsilon: float) -> float:
        """Return ``sum (P - e^epsilon Q)_+``, rounded down."""
        with np.errstate(over="ignore", invalid="ignore"):
            excess = self.first * (1 - self.error) - np.exp(epsilon) * self.second * (1 + self.error)
        return float(np.maximum(np.nan_to_num(excess, nan=0.0), 0.0).sum())

    def epsilon_at(self, delta: float) -> float:
        """Return the epsilon, rounded down, at which `self.delta` decreases to `delta` > 0; 0 if it starts below."""
        if self.delta(0.0) <= delta:
            return 0.0
        return bisect(lambda epsilon: self.delta(epsilon) > delta, 0.0, 700.0, 70)[0]


def grid_ends(center: float, reach: float, lower: float, upper: float, count: int, feature: float = 1.0) -> Array:
    """Return increasing ends of cells, shape (m,): half equally spaced about the center, others dense where losses bend."""
    even = center + reach * np.linspace(-1, 1, count // 2)
    wide = np.arcsinh(2 * (abs(center) + reach) / feature)
    bent = np.sinh(np.linspace(-wide, wide, count // 4)) * feature
    points = np.concatenate([even, bent, center + bent])
    if np.isfinite(lower) and np.isfinite(upper):
        points = np.concatenate([points, lower + (upper - lower) * np.linspace(0, 1, count // 2)[1:-1]])
    points = np.unique(points + OFFSET * min(feature, upper - lower))
    return np.asarray(points[(points > lower) & (points < upper)])


def normal_mass(low: Array, high: Array) -> Array:
    """Return the probability that a normal variate lies between two numbers, accurate in both tails."""
    return np.asarray(np.maximum(np.where(low < -high, ndtr(high) - ndtr(low), ndtr(-low) - ndtr(-high)), 0.0))


def line_masses(first: Array, second: Array, scale: float) -> Masses:
    """Return the masses of a scalar answer's cells, from the increasing derivatives of two objectives at the cells' ends."""
    found, error = [], np.full(len(first) + 1, LEAST)
    for slope in (first, second):
        slope = np.maximum.accumulate(slope)  # rounding must not reverse the ends of a cell
        ends = np.concatenate([[-np.inf], slope, [np.inf]])
        found.append(normal_mass(ends[:-1] / scale, ends[1:] / scale))
        inner = np.diff(slope)
        size = np.abs(slope[1:]) + np.abs(slope[:-1]) + scale
        with np.errstate(divide="ignore"):
            lost = np.where(inner > 0, 4 * EIGENVALUE_ROUNDING * size * np.maximum(size / scale, 1.0) / inner, 1.0)
        error[1:-1] = np.maximum(error[1:-1], np.minimum(lost, 1.0))
        error[[0, -1]] += EIGENVALUE_ROUNDING * (np.abs(slope[[0, -1]]) / scale + 1) ** 2
    return Masses(found[0], found[1], error)


def matrix_entries(analysis: Analysis, certificate: Certificate) -> tuple[Array | None, float, int]:
    """Return the map from matrix-shaped noise to entries (None if not one-to-one), their scale and their degrees of freedom."""
    rows, columns = shape_of(certificate)
    image, freedom = best_structure(analysis).map.toarray(), degrees_of_freedom(rows, columns)
    inverse = np.linalg.pinv(image) if np.linalg.matrix_rank(image) == rows * columns else None
    return inverse, (freedom + columns) / 2, freedom - rows + 1


def matrix_density(analysis: Analysis, certificate: Certificate, b: Array) -> Array:
    """Return the log density of matrix-shaped noise up to a constant, (..., dim) to (...); raise if it has no closed form."""
    (rows, columns), (inverse, order, _) = shape_of(certificate), matrix_entries(analysis, certificate)
    why = f"matrix-shaped noise of {rows} x {columns} entries in {analysis.form.noise_dimension} dimensions"
    remedy = "audit ObjectivePerturbation('gamma') or a problem with fewer features"
    require(inverse is not None, f"audit: {why} has no density in closed form; {remedy}.")
    matrix = (b @ cast(Array, inverse).T).reshape(*b.shape[:-1], rows, columns) / (certificate.noise_scale * order)
    return np.asarray(-order * np.linalg.slogdet(np.eye(rows) + matrix @ np.swapaxes(matrix, -1, -2))[1])
