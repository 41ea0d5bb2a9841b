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


def records_first(a: Any) -> Any:
    """Return matrices as a stack."""
    return np.moveaxis(a, -1, 0)


def outer(vectors: Any, others: Any) -> Any:
    """Sum of the outer products of columns, for each of a stack, with the records last again."""
    return np.moveaxis(np.matmul(vectors, np.swapaxes(others, -1, -2)), 0, -1)


def largest_eigenvector(expression: Expression, value: Any, slope: Any, a: Any) -> list[Any]:
    """The projection on an eigenvector of the largest eigenvalue."""
    vectors = np.linalg.eigh(symmetric(np, records_first(a)))[1][..., -1:]
    return [slope * outer(vectors, vectors)]


def singular_pairs(a: Any, largest: bool = False) -> Any:
    """Sum of the products of left and right singular vectors: of all nonzero singular values, or of the largest.

    They are eigenvectors of a symmetric matrix with the matrix and its transpose as blocks.
    """
    stack = records_first(a)
    rows, columns = stack.shape[1:]
    above = np.concatenate([np.zeros((len(stack), rows, rows)), stack], axis=2)
    below = np.concatenate([np.swapaxes(stack, -1, -2), np.zeros((len(stack), columns, columns))], axis=2)
    values, vectors = np.linalg.eigh(np.concatenate([above, below], axis=1))
    kept = 2.0 * (values > 1e-12 * values[..., -1:])[:, None, :]
    if largest:
        vectors, kept = vectors[..., -1:], kept[..., -1:]
    return outer(vectors[:, :rows] * kept, vectors[:, rows:])


def inverse(a: Any) -> Any:
    """Inverses of symmetric matrices; NaN where a matrix has none."""
    values, vectors = np.linalg.eigh(symmetric(np, records_first(a)))
    return outer(vectors / values[:, None, :], vectors)


LAMBDA_MAX = Atom(
    name="lambda_max",
    shape=of_square,
    value=each(lambda xp, a: xp.linalg.eigvalsh(symmetric(xp, a))[..., -1]),
    pull=largest_eigenvector,
    reads={"cvxpy.atoms.lambda_max.lambda_max": lambda node, args: lambda_max(args[0])},
    writes=lambda cp, expression, args: cp.lambda_max(args[0]),
    domain=lambda expression: ("symmetric",),
    curve=convex,
)


SIGMA_MAX = Atom(
    name="sigma_max",
    shape=of_matrix,
    value=each(lambda xp, a: xp.linalg.svd(a, compute_uv=False)[..., 0]),
    pull=lambda e, value, slope, a: [slope * singular_pairs(a, largest=True)],
    reads={"cvxpy.atoms.sigma_max.sigma_max": lambda node, args: sigma_max(args[0])},
    writes=lambda cp, expression, args: cp.sigma_max(args[0]),
    sign=nowhere_negative,
    curve=convex,
)


NORM_NUC = Atom(
    name="norm_nuc",
    shape=of_matrix,
    value=each(lambda xp, a: xp.sum(xp.linalg.svd(a, compute_uv=False), axis=-1)),
    pull=lambda e, value, slope, a: [slope * singular_pairs(a)],
    reads={"cvxpy.atoms.norm_nuc.normNuc": lambda node, args: norm_nuc(args[0])},
    writes=lambda cp, expression, args: cp.normNuc(args[0]),
    sign=nowhere_negative,
    curve=convex,
)


LOG_DET = Atom(
    name="log_det",
    shape=of_square,
    value=each(logarithm_of_determinant),
    pull=lambda e, value, slope, a: [slope * inverse(a)],
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
