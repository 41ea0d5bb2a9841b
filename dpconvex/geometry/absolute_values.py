"""Absolute values of single coordinates in a regularizer: what a gradient method must not differentiate.

A regularizer such as ``a * norm1(w) + b * sum_squares(w)`` is a smooth part plus weighted absolute values of coordinates.
The latter have a proximal map in closed form, also together with bounds on the same coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.elementwise.abs import abs as absolute
from cvxpy.atoms.norm1 import norm1
from numpy.typing import NDArray

from dpconvex.core.parameter_space import Space
from dpconvex.geometry.constraints import affine_map, split

__all__ = ["AbsoluteValues", "split_absolute"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AbsoluteValues:
    """The function ``sum_i weights_i |theta_i - centers_i|``.

    Attributes
    ----------
    weights : ndarray, shape (dim,)
        Non-negative.
    centers : ndarray, shape (dim,)
    """

    weights: Array
    centers: Array

    def value(self, theta: Array) -> float:
        """Evaluate at coordinates, shape (dim,)."""
        return float(self.weights @ np.abs(theta - self.centers))

    def proximal(self, theta: Array, step: float) -> Array:
        """Minimise ``value(x) + ||x - theta||^2 / (2 step)`` over x: shrink towards the centers."""
        difference = theta - self.centers
        shrunk = self.centers + np.sign(difference) * np.maximum(np.abs(difference) - step * self.weights, 0.0)
        return np.where(self.weights > 0, shrunk, theta)


def split_absolute(regularizer: cp.Expression, space: Space) -> tuple[cp.Expression, AbsoluteValues | None]:
    """Split a regularizer into the rest and absolute values of single coordinates.

    Terms ``c * norm1(e)``, ``c * sum(abs(e))`` and ``c * abs(e)`` are taken if every entry of the affine expression e depends on
    one coordinate, and no coordinate is measured from two different centers.

    Returns
    -------
    rest : cvxpy.Expression
    absolute : AbsoluteValues or None
        None if there are no such terms.
    """
    if not regularizer.is_dcp() or not regularizer.is_convex():
        return regularizer, None
    terms, constant = split(regularizer)
    weights, centers = np.zeros(space.dim), np.full(space.dim, np.nan)
    rest: list[Any] = []
    for factor, atom in terms:
        found = coordinates_of(atom, space) if factor > 0 else None
        if found is None or not compatible(centers, *found[:2]):
            rest.append(factor * atom)
            continue
        index, center, slope = found
        np.add.at(weights, index, factor * slope)
        centers[index] = center
    if not weights.any():
        return regularizer, None
    total = sum(rest, start=cp.Constant(float(constant)))
    return cp.Expression.cast_to_const(total), AbsoluteValues(weights, np.where(np.isnan(centers), 0.0, centers))


def compatible(centers: Array, index: NDArray[np.int64], center: Array) -> bool:
    """Whether coordinates are measured from the centers that they already have, if any."""
    known = centers[index]
    together = np.full(len(centers), np.nan)
    together[index] = center
    return bool((np.isnan(known) | (known == center)).all() and (together[index] == center).all())


def coordinates_of(atom: cp.Expression, space: Space) -> tuple[NDArray[np.int64], Array, Array] | None:
    """Coordinates, centers and slopes of a sum of absolute values, or None if it is none of single coordinates."""
    inner: Any = None
    if isinstance(atom, norm1) and atom.axis is None:
        inner = atom.args[0]
    elif isinstance(atom, Sum) and atom.axis is None and isinstance(atom.args[0], absolute):
        inner = atom.args[0].args[0]
    elif isinstance(atom, absolute) and atom.is_scalar():
        inner = atom.args[0]
    if inner is None or not inner.is_affine() or inner.parameters():
        return None
    matrix, offset = affine_map(inner, space)
    matrix.eliminate_zeros()
    if not (np.diff(matrix.indptr) == 1).all():
        return None
    return matrix.indices.astype(np.int64), -offset / matrix.data, np.abs(matrix.data)
