"""Quadratic regularizers in closed form, so that nothing need be compiled for them."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.norms import QUAD_OVER_LIN
from dpconvex.core.atoms.powers import POWER
from dpconvex.core.expression import Expression
from dpconvex.core.parameter_space import Space
from dpconvex.geometry.linear_maps import affine_map, groups, linear_parts

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The function ``theta' H theta / 2 + <g, theta> + c``, with H sparse, shape (dim, dim), and g, shape (dim,)."""

    hessian: sp.csr_array
    slope: Array
    constant: float

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Evaluate at coordinates, shape (dim,)."""
        bent = np.asarray(self.hessian @ theta)
        return float(theta @ bent / 2 + self.slope @ theta) + self.constant, bent + self.slope

    def hessian_product(self, direction: Array) -> Array:
        return np.asarray(self.hessian @ direction)


@dataclass(frozen=True)
class Bend:
    """Bounds on the second derivatives of a regularizer's smooth part, as declared: per record, not times their number."""

    quadratic: float  # Of its squares: the largest sum of the absolute values of a row of their Hessian
    rest: float  # Of what is left, in the operator norm; infinite if there is no bound
    radius: float  # They hold at points of K of at most this norm
    reason: str = ""  # Why there is no bound


def quadratic(expression: Expression, space: Space) -> Quadratic | None:
    """Read a public scalar expression as a quadratic function; None if it is not written as squares and affine terms.

    >>> from dpconvex.core.atoms.norms import sum_squares
    >>> from dpconvex.core.expression import Variable
    >>> w = Variable.of((2,), "w", 1)
    >>> form = quadratic(3 * sum_squares(w - 1) + w[0], Space([w]))
    >>> form.value_and_gradient(np.array([1.0, 3.0]))
    (13.0, array([ 1., 12.]))
    """
    return quadratic_of(linear_parts(expression), space) if expression.is_scalar else None


def quadratic_of(parts: dict[Expression, sp.csr_array], space: Space) -> Quadratic | None:
    """Read a sum of weighted entries of expressions, as `linear_parts` returns it for a scalar."""
    hessian, slope, constant = sp.csr_array((space.dim, space.dim)), np.zeros(space.dim), 0.0
    for part, row in parts.items():
        weights = row.toarray()[0]
        if part.is_affine:
            matrix, offset = affine_map(part, space)
            slope += matrix.T @ weights
            constant += float(weights @ offset)
            continue
        squared = squares(part, weights)
        if squared is None:
            return None
        argument, weights = squared
        matrix, offset = affine_map(argument, space)
        scaled = matrix.T * weights[None, :]
        hessian = hessian + 2 * (scaled @ matrix)
        slope += 2 * (scaled @ offset)
        constant += float(weights @ offset**2)
    return Quadratic(sp.csr_array(hessian), slope, constant)


def squares(part: Expression, weights: Array) -> tuple[Expression, Array] | None:
    """Return an affine e and v such that weighted entries of an atom add up to the sum of ``v * e**2``; None if it has none."""
    inner = part.args[0]
    if part.atom is POWER and part.option("p") == 2 and inner.is_affine:
        return inner, weights
    if part.atom is QUAD_OVER_LIN and inner.is_affine and part.args[1].is_constant:
        return inner, (weights / float(part.args[1].number))[groups(part)]
    return None
