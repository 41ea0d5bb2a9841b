"""Functions of matrices: eigenvalues, singular values, determinants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpconvex.core.atom import Atom
from dpconvex.core.atoms.shared import concave, convex, nowhere_negative
from dpconvex.core.expression import Expression, Shape


def of_matrix(shape: Shape) -> Shape:
    """Shape of a function of one matrix."""
    if len(shape) != 2:
        raise ValueError(f"there is a rule for matrices, and the argument has shape {shape}")
    return ()


def of_square(shape: Shape) -> Shape:
    """Shape of a function of one square matrix."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"there is a rule for square matrices, and the argument has shape {shape}")
    return ()


def each(function: Callable[[Any, Any], Any]) -> Callable[[Any, Expression, Any], Any]:
    """Apply a function of a stack of matrices to matrices that have the records last."""
    return lambda xp, expression, a: function(xp, xp.moveaxis(a, -1, 0))


def symmetric(xp: Any, a: Any) -> Any:
    """Symmetric part of a stack of matrices."""
    return (a + xp.swapaxes(a, -1, -2)) / 2


def logarithm_of_determinant(xp: Any, a: Any) -> Any:
    """Minus infinity where a matrix is not positive definite."""
    values = xp.linalg.eigvalsh(symmetric(xp, a))
    safe = xp.where(values > 0, values, 1.0)
    return xp.where((values > 0).all(axis=-1), xp.sum(xp.log(safe), axis=-1), -np.inf)


LAMBDA_MAX = Atom(
    name="lambda_max",
    shape=of_square,
    value=each(lambda xp, a: xp.linalg.eigvalsh(symmetric(xp, a))[..., -1]),
    reads={"cvxpy.atoms.lambda_max.lambda_max": lambda node, args: lambda_max(args[0])},
    writes=lambda cp, expression, args: cp.lambda_max(args[0]),
    domain=lambda expression: ("symmetric",),
    curve=convex,
)


SIGMA_MAX = Atom(
    name="sigma_max",
    shape=of_matrix,
    value=each(lambda xp, a: xp.linalg.svd(a, compute_uv=False)[..., 0]),
    reads={"cvxpy.atoms.sigma_max.sigma_max": lambda node, args: sigma_max(args[0])},
    writes=lambda cp, expression, args: cp.sigma_max(args[0]),
    sign=nowhere_negative,
    curve=convex,
)


NORM_NUC = Atom(
    name="norm_nuc",
    shape=of_matrix,
    value=each(lambda xp, a: xp.sum(xp.linalg.svd(a, compute_uv=False), axis=-1)),
    reads={"cvxpy.atoms.norm_nuc.normNuc": lambda node, args: norm_nuc(args[0])},
    writes=lambda cp, expression, args: cp.normNuc(args[0]),
    sign=nowhere_negative,
    curve=convex,
)


LOG_DET = Atom(
    name="log_det",
    shape=of_square,
    value=each(logarithm_of_determinant),
    reads={"cvxpy.atoms.log_det.log_det": lambda node, args: log_det(args[0])},
    writes=lambda cp, expression, args: cp.log_det(args[0]),
    domain=lambda expression: ("semidefinite",),
    curve=concave,
)


def lambda_max(a: Any) -> Expression:
    """Largest eigenvalue of a symmetric matrix."""
    return LAMBDA_MAX(a)


def sigma_max(a: Any) -> Expression:
    """Largest singular value."""
    return SIGMA_MAX(a)


def norm_nuc(a: Any) -> Expression:
    """Sum of the singular values."""
    return NORM_NUC(a)


def log_det(a: Any) -> Expression:
    """Logarithm of the determinant of a positive definite matrix."""
    return LOG_DET(a)
