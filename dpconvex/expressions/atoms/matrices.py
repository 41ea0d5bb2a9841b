"""Functions of matrices: eigenvalues, singular values, determinants."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpconvex.errors import NotPrivate
from dpconvex.expressions.abstract_values import AbstractValue, GradientSet, HessianTerm, NonsmoothPoint
from dpconvex.expressions.atom import ArgumentRange, AtomDefinition, LeastCurvature, always
from dpconvex.expressions.atoms import rules
from dpconvex.expressions.expression import Expression, Shape
from dpconvex.numerics import EPSILON, Interval, abs_ends, norm_up

SPECTRAL_REMEDY = f"use cp.sum_squares of the matrix on bounded parameters, or a trace; {rules.NO_SMOOTHNESS}"


def of_matrix(shape: Shape) -> Shape:
    return () if len(shape) == 2 else rules.no_rule("functions of a matrix for", shape)


def of_square(shape: Shape) -> Shape:
    return of_matrix(shape) if len(set(shape)) == 1 else rules.no_rule("functions of a square matrix for", shape)


def each(function: Callable[[Any], Any]) -> Callable[[Expression, Any], Any]:
    """Return an atom's `value`: move records from the last axis to the first, and apply a function of a stack of matrices."""
    return lambda expression, a: function(np.moveaxis(a, -1, 0))


def apart(function: Callable[[Any], Any], stack: Any) -> Any:
    """Apply a decomposition to a stack of matrices; NaN for matrices with entries that are not finite or where LAPACK raises."""
    good = np.isfinite(stack).all(axis=(-2, -1))
    parts = decomposed(function, np.where(good[..., None, None], stack, 0.0))
    if not good.all():
        parts = [np.where(good.reshape(*good.shape, *(1,) * (part.ndim - 1)), part, np.nan) for part in parts]
    return parts if len(parts) > 1 else parts[0]


def decomposed(function: Callable[[Any], Any], stack: Any) -> list[Any]:
    """Return the parts of a decomposition. If LAPACK raises, decompose each matrix by itself, with NaN for failures."""
    try:
        found = function(stack)
    except np.linalg.LinAlgError:
        if len(stack) == 1:
            return [np.full_like(part, np.nan) for part in decomposed(function, np.zeros_like(stack))]
        each = [decomposed(function, matrix[None]) for matrix in stack]
        return [np.concatenate(part) for part in zip(*each, strict=True)]
    return list(found) if isinstance(found, tuple) else [found]


def eigenvalues(a: Any) -> Any:
    """Return the eigenvalues of the symmetric parts of a stack of matrices, in increasing order."""
    return apart(np.linalg.eigvalsh, symmetric(np.real(a)))


def singular_values(a: Any) -> Any:
    """Return the singular values of a stack of matrices, in decreasing order."""
    return apart(partial(np.linalg.svd, compute_uv=False), np.real(a))


def symmetric(a: Any) -> Any:
    return (a + np.swapaxes(a, -1, -2)) / 2


def logarithm_of_determinant(a: Any) -> Any:
    """Return the log-determinants of a stack of matrices; minus infinity for matrices that are not positive definite."""
    values = eigenvalues(a)
    result = np.where((values > 0).all(axis=-1), np.sum(np.log(np.where(values > 0, values, 1.0)), axis=-1), -np.inf)
    if np.isrealobj(a):
        return result
    return result + 1j * np.einsum("ijz,zij->z", inverse(np.moveaxis(a.real, 0, -1)), a.imag)


def frobenius(low: Any, high: Any) -> float:
    return norm_up(abs_ends(low, high)[1])


def eigenvalue_range(shape: Shape, low: Any, high: Any) -> Interval:
    """Bound the eigenvalues of a symmetric part: by the eigenvalues of the midpoints, plus or minus the norm of half widths."""
    size = frobenius(low, high)
    if not np.isfinite(size):
        return Interval(-np.inf, np.inf)
    centre, radius = (m.reshape(shape, order="F") for m in ((low + high) / 2, (high - low) / 2))
    rounding = 16 * max(shape, default=0) * EPSILON * size
    values = np.linalg.eigvalsh(centre + centre.T) / 2
    reach = float(np.linalg.norm(radius + radius.T, 2)) / 2 + rounding
    return Interval(max(float(values[0]) - reach, -size), min(float(values[-1]) + reach, size))


never_smooth = always(None)


def log_det_rule(expression: Expression, arguments: list[rules.Entries]) -> rules.Entries:
    """Bound log det: with eigenvalues >= l, the gradient X^-1 has norm at most sqrt(side)/l, the Hessian is at most 1/l^2.

    The value is at least the side times log l, and at most the sum of the logarithms of the diagonal (Hadamard).
    """
    shape, entries = expression.args[0].shape, arguments[0]
    low, high = rules.entry_ends(entries)
    values = eigenvalue_range(shape, low, high)
    if not values.low > 0:
        why = "log_det is Lipschitz only where its argument keeps away from singular matrices, and the ranges of its entries"
        remedy = "bound entries so that diagonals exceed the absolute sums beside them; constraints like S >> 0.1 * I do not help"
        raise NotPrivate(f"{why} allow an eigenvalue of {values.low:.4g}", None, remedy)
    diagonal = np.log(np.minimum(high.reshape(shape, order="F").diagonal(), values.high))
    value = Interval(shape[0] * float(np.log(values.low)), float(diagonal.sum()))
    rows = rules.affine_rows(entries, "a log-determinant")
    term = rules.ball_of(entries, "a log-determinant", float(np.sqrt(shape[0])) / values.low)
    pieces = tuple(HessianTerm((GradientSet(row[None, :]),), 1 / values.low**2) for row in rows if row.any())
    return [AbstractValue(value.rounded(float(np.abs(diagonal).sum()), 12 + len(entries)), (term,), pieces, -1)]


def log_det_bend(expression: Expression, weights: Any, reach: ArgumentRange) -> Any:
    """Return a lower bound on the curvature of -log det: no eigenvalue exceeds the Frobenius norm, ``reach.norm``."""
    known = np.isfinite(reach.norm) and reach.norm > 0
    least = -weights[0] / reach.norm / reach.norm * (1 - 4 * EPSILON)
    return np.full(expression.args[0].size, least) if known else None


def eigenpairs(a: Any) -> Any:
    """Return eigenvalues and eigenvectors of symmetric parts, records first.  Imaginary parts (derivatives) are ignored."""
    return apart(np.linalg.eigh, symmetric(np.moveaxis(a.real, -1, 0)))


def outer(vectors: Any, others: Any) -> Any:
    """Return the sum of outer products of columns for each pair of matrices; records move to the last axis."""
    return np.moveaxis(np.matmul(vectors, np.swapaxes(others, -1, -2)), 0, -1)


def largest_eigenvector(expression: Expression, value: Any, slope: Any, a: Any) -> list[Any]:
    vectors = eigenpairs(a)[1][..., -1:]
    return [slope * outer(vectors, vectors)]


def singular_pairs(a: Any, largest: bool = False) -> Any:
    """Return the sum of u v' over the singular vectors of all nonzero singular values, or of the largest only."""
    left, values, right = apart(partial(np.linalg.svd, full_matrices=False), np.moveaxis(a.real, -1, 0))
    kept = values > 1e-12 * values[..., :1]
    kept[..., 1 if largest else kept.shape[-1] :] = False
    return outer(left * kept[:, None, :], np.swapaxes(right, -1, -2))


def inverse(a: Any) -> Any:
    values, vectors = eigenpairs(a)
    found = outer(vectors / values[:, None, :], vectors)
    return found - 1j * np.einsum("ijz,jkz,klz->ilz", found, a.imag, found) if np.iscomplexobj(a) else found


def spectral(
    name: str,
    value: Callable[[Any], Any],
    reason: str = "the largest eigenvalue or singular value is not differentiable where two of them tie",
    steepest: Callable[[Shape], float] = lambda shape: 1.0,
    ends: Callable[[Shape, Any, Any], Interval] | None = None,
    **slots: Any,
) -> AtomDefinition:
    """Return an atom of a matrix with gradients of norm at most `steepest`; without `ends` it is nonnegative, and 0 at 0."""

    def rule(expression: Expression, arguments: list[rules.Entries]) -> rules.Entries:
        shape, entries = expression.args[0].shape, arguments[0]
        low, high = rules.entry_ends(entries)
        term = rules.ball_of(entries, "a spectral function", steepest(shape))
        found = ends(shape, low, high) if ends else Interval(0.0, frobenius(low, high) * steepest(shape)).rounded()
        kink = NonsmoothPoint(reason, expression, SPECTRAL_REMEDY)
        return [AbstractValue(found.rounded(count=4 + len(entries)), (term,), (), 1, kink)]

    usual: dict[str, Any] = {
        "kinks": "spectral",
        "shape": of_matrix,
        "sign": always(0 if ends else 1),
        "statement": "gradient in the unit Frobenius ball of the argument's entries; not differentiable",
        "source": "Lewis & Overton, Eigenvalue optimization, 1996",
    }
    return AtomDefinition(name=name, value=each(value), bounds=rule, smoothed=never_smooth, **{**usual, **slots})


LAMBDA_MAX = spectral(
    "lambda_max",
    lambda a: eigenvalues(a)[..., -1],
    ends=eigenvalue_range,
    shape=of_square,
    vjp=largest_eigenvector,
    from_cvxpy="lambda_max.lambda_max",
    domain=always(("symmetric",)),
    example=("lambda_max(diag(w))", lambda cp, w: cp.lambda_max(cp.diag(w))),
)

SIGMA_MAX = spectral(
    "sigma_max",
    lambda a: singular_values(a)[..., 0],
    vjp=lambda e, value, slope, a: [slope * singular_pairs(a, largest=True)],
    from_cvxpy="sigma_max.sigma_max",
    example=("sigma_max([w, 1])", lambda cp, w: cp.sigma_max(cp.vstack([w, [1.0, 1.0, 1.0]]))),
)

NORM_NUC = spectral(
    "norm_nuc",
    lambda a: np.sum(singular_values(a), axis=-1),
    "the nuclear norm is not differentiable where a singular value is 0",
    lambda shape: float(np.sqrt(min(shape))),
    vjp=lambda e, value, slope, a: [slope * singular_pairs(a)],
    from_cvxpy="norm_nuc.normNuc",
    to_cvxpy=lambda cp, expression, args: cp.normNuc(args[0]),
    statement="gradient U V' of Frobenius norm at most sqrt(rank); not differentiable",
    source="Watson, Characterization of the subdifferential of some matrix norms, 1992",
    example=("norm_nuc([w, 1])", lambda cp, w: cp.norm(cp.vstack([w, [1.0, 1.0, 1.0]]), "nuc")),
)

LOG_DET = AtomDefinition(
    name="log_det",
    shape=of_square,
    value=each(logarithm_of_determinant),
    vjp=lambda e, value, slope, a: [slope * inverse(a)],
    from_cvxpy="log_det.log_det",
    domain=always(("semidefinite",)),
    curvature=always(-1),
    statement="log det(M) with eigenvalues of at least l > 0: concave, gradient M^-1 of Frobenius norm at most sqrt(side)/l, "
    "Hessian at most sum g_j g_j' / l^2",
    source="Boyd & Vandenberghe, Convex Optimization, sections 3.1.5 and A.4",
    bounds=log_det_rule,
    hessian_lower_bound=LeastCurvature(
        "negative log-determinant",
        "-log det(A theta + C) on a bounded K, of norm at most u: Hessian at least A'A/u^2",
        log_det_bend,
    ),
    example=("-log_det(diag(w))", lambda cp, w: -cp.log_det(cp.diag(w))),
)
