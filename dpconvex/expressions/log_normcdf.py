"""An atom of CVXPY for the exact logarithm of the normal distribution function; CVXPY's own approximates it by pieces."""

from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.elementwise.elementwise import Elementwise
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from dpconvex.util.arrays import Array


class LogNormcdf(Elementwise):
    """The logarithm of the standard normal distribution function, entry by entry.  It has no conic form."""

    def numeric(self, values: list[Any]) -> Array:
        return np.asarray(log_ndtr(np.asarray(values[0], dtype=float)))

    def sign_from_args(self) -> tuple[bool, bool]:
        return (False, True)

    def is_atom_convex(self) -> bool:
        return False

    def is_atom_concave(self) -> bool:
        return True

    def is_incr(self, idx: int) -> bool:
        return True

    def is_decr(self, idx: int) -> bool:
        return False

    def _grad(self, values: list[Any]) -> list[Any]:
        raise NotImplementedError


def log_normcdf(expr: cp.Expression | ArrayLike) -> cp.Expression:
    """Return the exact logarithm of the standard normal distribution function, entry by entry, for probit models.

    `cvxpy.log_normcdf` approximates it by quadratic pieces, which are good between -4 and 4 only, with an unbounded error
    beyond.  This function is concave and has no conic form.  Its slopes grow without bound to the left: mechanisms that need a
    bound on the loss need constraints that bound the argument from below.

    Parameters
    ----------
    expr : cvxpy.Expression or array_like

    Returns
    -------
    cvxpy.Expression
        Of the same shape.

    Examples
    --------
    >>> log_normcdf([0.0, -10.0]).value.round(4)
    array([ -0.6931, -53.2313])
    """
    return LogNormcdf(cp.Expression.cast_to_const(expr))
