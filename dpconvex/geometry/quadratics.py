"""Quadratic regularizers in closed form, so that nothing need be compiled for them."""

from __future__ import annotations

from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.elementwise.power import Power
from cvxpy.atoms.quad_over_lin import quad_over_lin
from numpy.typing import NDArray

from dpconvex.core.parameter_space import Space
from dpconvex.geometry.constraints import affine_map, split

__all__ = ["Bend", "Quadratic", "quadratic"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The function ``theta' H theta / 2 + <g, theta> + c``.

    Attributes
    ----------
    hessian : csr_array, shape (dim, dim)
    slope : ndarray, shape (dim,)
    constant : float
    """

    hessian: sp.csr_array
    slope: Array
    constant: float

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Evaluate at coordinates, shape (dim,)."""
        bent = np.asarray(self.hessian @ theta)
        return float(theta @ bent / 2 + self.slope @ theta) + self.constant, bent + self.slope

    def hessian_product(self, direction: Array) -> Array:
        """Multiply a direction with the Hessian."""
        return np.asarray(self.hessian @ direction)


@dataclass(frozen=True)
class Bend:
    """Bounds on the second derivatives of a regularizer's smooth part, as declared: per record, not times their number.

    Attributes
    ----------
    quadratic : float
        Of its squares: the largest sum of the absolute values of a row of their Hessian.
    rest : float
        Of what is left, in the operator norm; infinite if there is no bound.
    radius : float
        They hold at points of K of at most this norm.
    reason : str
        Why there is no bound.
    """

    quadratic: float
    rest: float
    radius: float
    reason: str = ""


def quadratic(expression: cp.Expression, space: Space) -> Quadratic | None:
    """Read a scalar expression as a quadratic function; None if it is not written as squares and affine terms.

    Parameters
    ----------
    expression : cvxpy.Expression
        Without parameters.
    space : Space

    Examples
    --------
    >>> w = cp.Variable(2, name="w")
    >>> form = quadratic(3 * cp.sum_squares(w - 1) + w[0], Space([w]))
    >>> form.value_and_gradient(np.array([1.0, 3.0]))
    (13.0, array([ 1., 12.]))
    """
    if not expression.is_scalar():
        return None
    terms, constant = split(expression)
    hessian, slope = sp.csr_array((space.dim, space.dim)), np.zeros(space.dim)
    total = float(constant)
    for factor, atom in terms:
        if atom.is_affine():
            matrix, offset = affine_map(atom, space)
            slope += factor * np.asarray(matrix.sum(axis=0)).ravel()
            total += factor * float(offset.sum())
            continue
        squared = squares(atom)
        if squared is None:
            return None
        argument, weight = squared
        matrix, offset = affine_map(argument, space)
        weight *= factor
        hessian = hessian + 2 * weight * (matrix.T @ matrix)
        slope += 2 * weight * np.asarray(matrix.T @ offset).ravel()
        total += weight * float(offset @ offset)
    return Quadratic(sp.csr_array(hessian), slope, total)


def squares(atom: cp.Expression) -> tuple[cp.Expression, float] | None:
    """Return (e, weight) if an atom is the weight times the sum of the squares of an affine e."""
    if isinstance(atom, Sum) and atom.axis is None:
        inner = atom.args[0]
        return squares(inner) if isinstance(inner, Power) else None
    if isinstance(atom, Power) and float(atom.p.value) == 2 and atom.args[0].is_affine():
        return atom.args[0], 1.0
    if (
        isinstance(atom, quad_over_lin)
        and atom.axis is None
        and atom.args[0].is_affine()
        and atom.args[1].is_constant()
    ):
        return atom.args[0], 1.0 / float(atom.args[1].value)
    return None
