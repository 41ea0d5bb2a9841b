"""How steep the public regularizer is at most over K, term by term."""

import math
from collections.abc import Iterator

import numpy as np

from dpconvex.calculus.gradient_norms import gradient_bound
from dpconvex.calculus.gram import Gram
from dpconvex.calculus.interpreter import Walker
from dpconvex.calculus.loss_form import LossForm, affine_leaves
from dpconvex.core.abstract_values import Interval, intervals
from dpconvex.core.arrays import Array
from dpconvex.core.atoms.matrices import LOG_DET
from dpconvex.core.expression import Expression
from dpconvex.core.polynomial import Polynomial
from dpconvex.errors import NotPrivate
from dpconvex.geometry.quadratics import Quadratic, arguments_of, quadratic


def slope_of(expression: Expression, form: LossForm, ball: float = math.inf) -> float:
    """Bound the norm of the gradients of a convex public expression over the points of K of norm at most `ball`."""
    total = 0.0
    for factor, term in terms_of(expression):
        closed = quadratic(term, form.space)
        if closed is None:
            total += abs(factor) * walked(term, form, ball)
            continue
        total += abs(factor) * float(np.linalg.norm(closed.slope))
        if stiffness := stiffness_of(closed):  # what the Hessian can add over K
            total += abs(factor) * stiffness * min(form.feasible.norm_on(np.unique(closed.hessian.indices)), ball)
    return total


def terms_of(expression: Expression, factor: float = 1.0) -> Iterator[tuple[float, Expression]]:
    """Take sums and multiples of numbers apart: factors, and the terms that they multiply."""
    atom = expression.atom
    if not expression.variables or not factor:
        return
    linear = not expression.is_affine and atom is not None and atom.keeps_affine(expression.args)
    if not linear or any(a.variables and not a.is_scalar for a in expression.args):
        yield factor, expression
        return
    for argument, matrix in arguments_of(expression):
        yield from terms_of(argument, factor * float(matrix.toarray()[0, 0]))


def stiffness_of(closed: Quadratic) -> float:
    """Bound the largest eigenvalue of a quadratic by the sums of its rows."""
    return float(abs(closed.hessian).sum(axis=1).max()) if closed.hessian.nnz else 0.0


def walked(expression: Expression, form: LossForm, ball: float = math.inf) -> float:
    """Bound the gradients with the rules for losses, or the inverse of a matrix by its least eigenvalue."""
    least = form.feasible.least_eigenvalue(expression.args[0]) if expression.atom is LOG_DET else 0.0
    if least > 0:
        return math.sqrt(expression.args[0].shape[0]) / least * (1 + 1e-12)
    leaves = affine_leaves(expression)
    try:
        gram = Gram([form.expander.expand(leaf) for leaf in leaves], form.space, form.bases)

        def reach(polynomial: Polynomial, rows: Array) -> list[Interval]:
            constant = polynomial.part(with_theta=False)
            offset = np.bincount(constant.entry, weights=constant.coefficient, minlength=polynomial.size)
            touched = polynomial.touched
            radius = min(form.feasible.norm_on(touched), ball)
            size = np.sqrt(gram.squared_norms(rows)) * radius if len(touched) else np.zeros(len(offset))
            return intervals(offset - size, offset + size)

        entries, _ = Walker(form.expander, dict(zip(leaves, gram.rows, strict=True)), reach).walk(expression)
        return sum(gradient_bound(entry.terms, gram) for entry in entries)
    except NotPrivate:
        return math.inf
