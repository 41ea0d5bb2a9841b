"""An atom of CVXPY for the exact logarithm of the normal distribution function; CVXPY's own approximates it by pieces."""

from types import SimpleNamespace
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_ndtr

from dpconvex.expressions.declared_atoms import DeclaredAtom

CURVE: Any = SimpleNamespace(name="-log_normcdf", slope=(-np.inf, 0.0), lower=0.0, evaluate=lambda m: -log_ndtr(m))


class NegLogNormcdf(DeclaredAtom):
    """Minus the logarithm of the standard normal distribution function, entry by entry."""


def log_normcdf(expr: cp.Expression | ArrayLike) -> cp.Expression:
    """Return the exact logarithm of the standard normal distribution function, entry by entry, for probit models.

    `cvxpy.log_normcdf` is an approximation by quadratic pieces that is good between -4 and 4, and has no bounded error beyond.
    This one is concave and has no conic form.  Slopes grow without bound to the left: mechanisms that rest on a bound on the loss
    need constraints that bound the argument from below.

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
    return -NegLogNormcdf(cp.Expression.cast_to_const(expr), CURVE)
