"""Absolute values of single coordinates in a regularizer: what a gradient method must not differentiate.

A regularizer such as ``a * norm1(w) + b * sum_squares(w)`` is a smooth part plus weighted absolute values of coordinates.
The latter have a proximal map in closed form, also together with bounds on the same coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.arrangement import reshape
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.powers import ABS
from dpconvex.core.atoms.sums import add, total
from dpconvex.core.discipline import is_convex
from dpconvex.core.expression import Expression, constant
from dpconvex.core.parameter_space import Space
from dpconvex.geometry.linear_maps import affine_map, groups, linear_parts

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class AbsoluteValues:
    """The function ``sum_i weights_i |theta_i - centers_i|``; neither weight is negative."""

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


def split_absolute(regularizer: Expression, space: Space) -> tuple[Expression, AbsoluteValues | None]:
    """Split a regularizer into the rest and weighted absolute values of single coordinates; None if there are no such terms.

    They are written as ``abs`` or ``norm1`` of affine expressions; no coordinate is measured from two different centers.
    """
    if not is_convex(regularizer):
        return regularizer, None
    weights, centers = np.zeros(space.dim), np.full(space.dim, np.nan)
    rest: dict[Expression, sp.csr_array] = {}
    for part, row in linear_parts(regularizer).items():
        found = coordinates_of(part, row.toarray()[0], space)
        if found is None or not compatible(centers, *found[:2]):
            rest[part] = row
            continue
        index, center, slope = found
        np.add.at(weights, index, slope)
        centers[index] = center
    if not weights.any():
        return regularizer, None
    return weighted_sum(rest), AbsoluteValues(weights, np.where(np.isnan(centers), 0.0, centers))


def weighted_sum(parts: dict[Expression, sp.csr_array]) -> Expression:
    """Return the expression that `linear_parts` took apart, for a scalar."""
    terms = []
    for part, row in parts.items():
        weights = row.toarray()[0]
        if (weights == weights[0]).all():
            whole = reshape(total(part), ())
            terms.append(whole if weights[0] == 1 else float(weights[0]) * whole)
        else:
            terms.append(total(reshape(weights, part.shape) * part))
    return add(*terms) if terms else constant(0.0)


def compatible(centers: Array, index: NDArray[np.int64], center: Array) -> bool:
    """Whether coordinates are measured from the centers that they already have, if any."""
    known = centers[index]
    together = np.full(len(centers), np.nan)
    together[index] = center
    return bool((np.isnan(known) | (known == center)).all() and (together[index] == center).all())


def coordinates_of(part: Expression, weights: Array, space: Space) -> tuple[NDArray[np.int64], Array, Array] | None:
    """Coordinates, centers and slopes of weighted absolute values; None if they are not of single coordinates."""
    if part.atom is NORM and part.option("p") == 1:
        weights = weights[groups(part)]
    elif part.atom is not ABS:
        return None
    inner = part.args[0]
    if not inner.is_affine or (weights < 0).any():
        return None
    matrix, offset = affine_map(inner, space)
    asked = weights > 0
    matrix, offset = sp.csr_array(matrix[asked]), offset[asked]
    matrix.eliminate_zeros()
    if not (np.diff(matrix.indptr) == 1).all():
        return None
    return matrix.indices.astype(np.int64), -offset / matrix.data, weights[asked] * np.abs(matrix.data)
