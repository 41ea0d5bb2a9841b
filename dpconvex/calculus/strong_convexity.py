"""Strong convexity of the public regularizer, block by block.

Quadratic terms contribute their constant Hessian, on known coordinates; negative entropies, logarithms and log-determinants the
least curvature that a bounded K leaves them; every other convex term contributes nothing (affine functions and norms have
modulus 0).  The modulus is the smallest eigenvalue of the sum over the whole space.  Each kind of term has a rule in
`MODULUS_RULES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.log_det import log_det
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
from cvxpy.atoms.quad_form import QuadForm
from cvxpy.atoms.quad_over_lin import quad_over_lin
from numpy.typing import NDArray

from dpconvex.core.derivation import Derivation
from dpconvex.core.expansion import Expander
from dpconvex.core.polynomial import Polynomial
from dpconvex.errors import NotPrivate
from dpconvex.geometry.feasible_set import FeasibleSet

__all__ = ["MODULUS_RULES", "ModulusRule", "curvature_of", "smallest_eigenvalue"]

Matrix: TypeAlias = sp.csr_array
UNIT = float(np.finfo(float).eps)
# The Jacobian A and half the weight, W/2, of a term whose Hessian is at least A'WA; None if a rule does not apply.
Found: TypeAlias = tuple[Matrix, Matrix] | None
Apply: TypeAlias = Callable[[Any, Expander, FeasibleSet], Found]


@dataclass(frozen=True)
class ModulusRule:
    """A rule for a kind of convex term.

    Attributes
    ----------
    name : str
    statement : str
        The Hessian that it claims, or a matrix below it.
    apply : callable
        ``apply(expression, expander, feasible)`` returns (A, W/2) with a Hessian of at least ``A'WA``, or None if the
        expression is of another kind.
    """

    name: str
    statement: str
    apply: Apply


MODULUS_RULES: list[ModulusRule] = []


def modulus_rule(name: str, statement: str) -> Callable[[Apply], Apply]:
    """Register the decorated function; rules are tried in the order of their registration."""

    def register(function: Apply) -> Apply:
        MODULUS_RULES.append(ModulusRule(name, statement, function))
        return function

    return register


def curvature_of(regularizer: cp.Expression, expander: Expander, feasible: FeasibleSet) -> tuple[Matrix, Derivation]:
    """Return M with ``regularizer - <theta, M theta>/2`` convex, and its derivation.

    Parameters
    ----------
    regularizer : cvxpy.Expression
        Scalar, convex, public.
    expander : Expander
    feasible : FeasibleSet
        K, whose bounds make entropies and log-determinants strongly convex.

    Returns
    -------
    M : sparse array, shape (dim, dim)
        In coordinates; positive semidefinite.
    derivation : Derivation

    Raises
    ------
    NotPrivate
        If the regularizer is not convex.
    """
    if not regularizer.is_convex():
        raise NotPrivate(
            "the regularizer is not convex by CVXPY's rules", offending(regularizer), "use a convex regularizer"
        )
    steps: list[Derivation] = []
    matrix = quadratic_part(regularizer, 1.0, expander, steps, feasible)
    modulus = smallest_eigenvalue(matrix)
    return matrix, Derivation(
        "strong convexity of the regularizer",
        str(regularizer),
        {"modulus": modulus},
        "moduli add; affine terms and norms add 0",
        tuple(steps),
    )


def offending(expression: cp.Expression) -> cp.Expression:
    """Return the smallest subexpression that spoils convexity: the one to show the user."""
    for argument in expression.args:
        if not (argument.is_convex() or argument.is_concave()):
            return offending(argument)
    return expression


def quadratic_part(
    expression: Any, scale: float, expander: Expander, steps: list[Derivation], feasible: FeasibleSet
) -> Matrix:
    """Return the Hessian of the quadratic terms of ``scale * expression``, scale >= 0, recording each."""
    dim = expander.space.dim
    zero = sp.csr_array((dim, dim))
    if expression.is_affine():
        return zero
    if isinstance(expression, AddExpression):
        total = zero
        for argument in expression.args:
            total = sp.csr_array(total + quadratic_part(argument, scale, expander, steps, feasible))
        return total
    if isinstance(expression, multiply | MulExpression | DivExpression) and expression.is_scalar():
        factor, inner = constant_factor(expression)
        if inner is not None and factor >= 0:
            return quadratic_part(inner, scale * factor, expander, steps, feasible)
        if inner is not None:
            return quadratic_part(-inner, -scale * factor, expander, steps, feasible)
    if isinstance(expression, Promote):
        return quadratic_part(expression.args[0], scale, expander, steps, feasible)
    if isinstance(expression, NegExpression):
        inner = negated(expression.args[0])
        if inner is not None:
            return quadratic_part(inner, scale, expander, steps, feasible)
    for rule in MODULUS_RULES:
        found = rule.apply(expression, expander, feasible)
        if found is not None:
            jacobian, weight = found
            matrix = sp.csr_array(2 * scale * (jacobian.T @ weight @ jacobian))
            touched = np.flatnonzero(np.asarray(abs(matrix).sum(axis=0)).ravel())
            modulus = smallest_eigenvalue(sp.csr_array(matrix[touched][:, touched])) if len(touched) else 0.0
            steps.append(Derivation(rule.name, str(expression), {"modulus": modulus}, rule.statement))
            return matrix
    steps.append(Derivation("convex term", str(expression), {"modulus": 0.0}, "claims nothing"))
    return zero


def negated(expression: Any) -> cp.Expression | None:
    """Move a minus sign inwards, past signs, sums and constant factors; None if the expression is none of these."""
    if isinstance(expression, NegExpression):
        return expression.args[0]
    if isinstance(expression, AddExpression):
        return sum(-argument for argument in expression.args)
    if isinstance(expression, multiply | MulExpression | DivExpression) and expression.is_scalar():
        factor, inner = constant_factor(expression)
        return None if inner is None else -factor * inner
    return None


def constant_factor(expression: Any) -> tuple[float, cp.Expression | None]:
    """Split a product or quotient into a constant and the rest (None if neither side is constant)."""
    left, right = expression.args
    if isinstance(expression, DivExpression):
        return (1.0 / float(np.max(right.value)), left) if right.is_constant() and right.size == 1 else (0.0, None)
    if left.is_constant() and left.size == 1:
        return float(np.max(left.value)), right
    if right.is_constant() and right.size == 1:
        return float(np.max(right.value)), left
    return 0.0, None


@modulus_rule("sum of squares", "||A theta + c||^2 / y with a constant y > 0: Hessian 2 A'A / y")
def sum_of_squares(expression: Any, expander: Expander, feasible: FeasibleSet) -> Found:
    """Recognise `sum_squares`, and `quad_over_lin` over a constant."""
    if not isinstance(expression, quad_over_lin) or expression.get_data() != [None, False]:
        return None
    inner, divisor = expression.args
    if not inner.is_affine() or not divisor.is_constant():
        return None
    jacobian = constant_jacobian(expander.expand(inner), expander.space.dim)
    return jacobian, sp.csr_array(sp.eye_array(jacobian.shape[0]) / float(np.max(divisor.value)))


@modulus_rule("quadratic form", "(A theta + c)' P (A theta + c) with a constant P: Hessian A'(P + P')A")
def quadratic_form(expression: Any, expander: Expander, feasible: FeasibleSet) -> Found:
    """Recognise `quad_form` with a constant matrix."""
    if not isinstance(expression, QuadForm) or not expression.args[0].is_affine():
        return None
    matrix = np.asarray(expression.args[1].value, dtype=float)
    jacobian = constant_jacobian(expander.expand(expression.args[0]), expander.space.dim)
    return jacobian, sp.csr_array((matrix + matrix.T) / 2)


@modulus_rule("square", "(a' theta + c)^2, or the square of the Euclidean norm of A theta + c: Hessian 2 A'A")
def square(expression: Any, expander: Expander, feasible: FeasibleSet) -> Found:
    """Recognise the square of a scalar affine expression, or of a Euclidean norm."""
    if not isinstance(expression, Power | PowerApprox) or exponent(expression) != 2 or not expression.is_scalar():
        return None
    inner = expression.args[0]
    if is_euclidean(inner):
        inner = inner.args[0]
    elif not inner.is_affine():
        return None
    jacobian = constant_jacobian(expander.expand(inner), expander.space.dim)
    return jacobian, sp.csr_array(sp.eye_array(jacobian.shape[0]))


@modulus_rule("weighted squares", "sum_k w_k (A theta + c)_k^2 with constant w >= 0: Hessian 2 A' diag(w) A")
def summed_squares(expression: Any, expander: Expander, feasible: FeasibleSet) -> Found:
    """Recognise a sum of squares, entry by entry, with or without weights."""
    return weighted_squares(expression.args[0], expander) if isinstance(expression, Sum) else None


@modulus_rule(
    "negative entropy", "sum_k m_k log m_k on a bounded K, m = A theta + c <= u: Hessian at least A' diag(1/u) A"
)
def negative_entropy(expression: Any, expander: Expander, feasible: FeasibleSet) -> Found:
    """On 0 < m <= u, ``m log m`` has second derivative ``1/m >= 1/u``."""
    return barrier(expression, cp.entr, expander, feasible, lambda upper: 1.0 / upper)


@modulus_rule(
    "logarithmic barrier", "-sum_k log m_k on a bounded K, m = A theta + c <= u: Hessian at least A' diag(1/u^2) A"
)
def logarithmic_barrier(expression: Any, expander: Expander, feasible: FeasibleSet) -> Found:
    """On 0 < m <= u, ``-log m`` has second derivative ``1/m^2 >= 1/u^2``."""
    return barrier(expression, cp.log, expander, feasible, lambda upper: 1.0 / upper**2)


@modulus_rule(
    "negative log-determinant",
    "-log det(A theta + C) on a bounded K, of norm at most u: Hessian at least A'A/u^2",
)
def negative_log_det(expression: Any, expander: Expander, feasible: FeasibleSet) -> Found:
    """The Hessian is ``X^-1 (x) X^-1``, at least ``1/u^2`` if no eigenvalue exceeds u; the Frobenius norm bounds them all."""

    def weight(argument: Polynomial, jacobian: Matrix) -> NDArray[np.float64]:
        # The largest row sum bounds the largest eigenvalue of A'A, and is exact if A is a multiple of an isometry.
        norm = float(np.sqrt(abs(jacobian.T @ jacobian).sum(axis=1).max())) if jacobian.nnz else 0.0
        constant = argument.part(with_theta=False)
        offset = np.bincount(constant.entry, weights=constant.coefficient, minlength=argument.size)
        largest = norm * feasible.norm_on(np.unique(jacobian.indices)) + float(np.linalg.norm(offset))
        return np.full(argument.size, 1.0 / largest**2 if largest > 0 else 0.0)

    found = negated_affine(expression, log_det, expander)
    return None if found is None else bounded_weight(found[1], weight(*found))


def barrier(
    expression: Any,
    atom: type[Any],
    expander: Expander,
    feasible: FeasibleSet,
    curvature: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> Found:
    """Bound the Hessian of minus a concave atom, entry by entry, by its curvature at the upper bounds of its argument."""
    found = negated_affine(expression, atom, expander)
    if found is None:
        return None
    upper = public_upper(*found, feasible)
    if not np.isfinite(upper).all() or (upper <= 0).any():
        return None
    return bounded_weight(found[1], curvature(upper))


def negated_affine(expression: Any, atom: type[Any], expander: Expander) -> tuple[Polynomial, Matrix] | None:
    """Return the argument of ``-atom(affine)`` or ``-sum(atom(affine))`` and its Jacobian, or None."""
    if not isinstance(expression, NegExpression):
        return None
    inner = expression.args[0]
    if isinstance(inner, Sum):
        inner = inner.args[0]
    elif inner.size != 1:
        return None
    if not isinstance(inner, atom) or not inner.args[0].is_affine():
        return None
    argument = expander.expand(inner.args[0])
    return argument, constant_jacobian(argument, expander.space.dim)


def bounded_weight(jacobian: Matrix, weight: NDArray[np.float64]) -> Found:
    """Return (A, W/2) for a diagonal W, or None if it claims nothing."""
    if not np.isfinite(weight).all() or (weight <= 0).any():
        return None
    return jacobian, sp.csr_array(sp.diags_array(weight / 2))


def public_upper(argument: Polynomial, jacobian: Matrix, feasible: FeasibleSet) -> NDArray[np.float64]:
    """Bound the entries of a public affine expression from above over K, shape (entries,)."""
    constant = argument.part(with_theta=False)
    offset = np.bincount(constant.entry, weights=constant.coefficient, minlength=argument.size)
    table = sp.coo_array(jacobian)
    row, column = table.coords
    with np.errstate(invalid="ignore"):
        ends = np.maximum(table.data * feasible.lower[column], table.data * feasible.upper[column])
    box = np.bincount(row, weights=ends, minlength=argument.size)
    lengths = np.sqrt(np.asarray(jacobian.multiply(jacobian).sum(axis=1)).ravel())
    with np.errstate(invalid="ignore"):
        ball = np.where(lengths > 0, lengths * feasible.norm_on(np.unique(column)), 0.0)
    return np.asarray(offset + np.minimum(box, ball))


def weighted_squares(expression: Any, expander: Expander) -> tuple[Matrix, Matrix] | None:
    """Recognise ``sum(w * square(m))`` with constant w >= 0."""
    weight = np.ones(expression.size)
    if isinstance(expression, multiply):
        left, right = expression.args
        constant, expression = (left, right) if left.is_constant() else (right, left)
        if not constant.is_constant():
            return None
        weight = np.broadcast_to(np.asarray(constant.value, dtype=float), expression.shape).reshape(-1, order="F")
    if isinstance(expression, Power | PowerApprox) and exponent(expression) == 2 and expression.args[0].is_affine():
        jacobian = constant_jacobian(expander.expand(expression.args[0]), expander.space.dim)
        return jacobian, sp.csr_array(sp.diags_array(np.maximum(weight, 0.0)))
    return None


def is_euclidean(expression: Any) -> bool:
    """Say whether an expression is the Euclidean norm of all entries of an affine expression."""
    if not isinstance(expression, Pnorm | PnormApprox) or expression.axis is not None:
        return False
    return float(expression.original_p) == 2 and bool(expression.args[0].is_affine())


def exponent(expression: Any) -> float:
    """Return the exponent of a power atom."""
    return float(expression.p.value if hasattr(expression.p, "value") else expression.p)


def constant_jacobian(polynomial: Polynomial, dim: int) -> Matrix:
    """Return the Jacobian of a public affine expression, shape (entries, dim)."""
    part = polynomial.part(with_theta=True)
    return sp.csr_array((part.coefficient, (part.entry, part.coordinate)), shape=(polynomial.size, dim))


def smallest_eigenvalue(matrix: Matrix, eigenvalues: Callable[[Any], Any] = np.linalg.eigvalsh) -> float:
    """Return the smallest eigenvalue of a symmetric sparse matrix, block by block; never negative."""
    matrix = sp.csr_array(matrix)
    if matrix.shape[0] == 0:
        return 0.0
    count, label = sp.csgraph.connected_components(matrix, directed=False)
    least = np.inf
    order = np.argsort(label, kind="stable")
    sizes = np.bincount(label, minlength=count)
    if (sizes == 1).any():
        least = float(matrix.diagonal()[sizes[label] == 1].min())
    starts = np.concatenate([[0], np.cumsum(sizes)])
    for k in np.flatnonzero(sizes > 1):
        index = order[starts[k] : starts[k + 1]]
        least = min(least, float(eigenvalues(matrix[index][:, index].toarray())[0]))
    # Rounding in an eigenvalue is relative to the matrix's norm and grows with its side; a modulus must err on the small side.
    largest = int(sizes.max())
    slack = UNIT * 8 * largest * float(abs(matrix).sum(axis=0).max()) if largest > 1 else 0.0
    return max(least - slack, 0.0)
