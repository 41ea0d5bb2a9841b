"""How steep the public regularizer is on K: step sizes of gradient methods need a bound on its gradient.

Terms that are affine or quadratic have gradients in closed form; all others go through the calculus of the losses, whose ranges
know K.
"""

from __future__ import annotations

import math
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.promote import Promote
from numpy.typing import NDArray

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.bilinear_forms import Interval
from dpconvex.calculus.gradient_norms import gradient_bound
from dpconvex.calculus.gram import Gram
from dpconvex.calculus.interpreter import Walker
from dpconvex.calculus.loss_form import LossForm, affine_leaves
from dpconvex.calculus.strong_convexity import (
    constant_factor,
    constant_jacobian,
    quadratic_form,
    square,
    sum_of_squares,
    summed_squares,
)
from dpconvex.core.polynomial import Polynomial
from dpconvex.errors import NotPrivate

__all__ = ["bregman_bounds", "regularizer_slope", "slope_of"]

Array = NDArray[np.float64]

QUADRATIC = (sum_of_squares, quadratic_form, square, summed_squares)


def regularizer_slope(analysis: Analysis) -> float:
    """Bound the norm of the regularizer's gradients over K (mean form); infinite if no bound is found."""
    return slope_of(analysis.form.template.regularizer, analysis.form)


def slope_of(expression: Any, form: LossForm, ball: float = math.inf) -> float:
    """Bound the norm of the gradients of a convex public expression over the points of K of norm at most `ball`."""
    if not expression.variables():
        return 0.0
    if isinstance(expression, AddExpression):
        return sum(slope_of(argument, form, ball) for argument in expression.args)
    if isinstance(expression, Promote):
        return slope_of(expression.args[0], form, ball)
    if isinstance(expression, multiply | MulExpression | DivExpression) and expression.is_scalar():
        factor, inner = constant_factor(expression)
        if inner is not None:
            return abs(factor) * slope_of(inner, form, ball) if factor else 0.0
    if expression.is_affine():
        jacobian = constant_jacobian(form.expander.expand(expression), form.space.dim)
        return float(sp.linalg.norm(jacobian))
    for rule in QUADRATIC:
        found = rule(expression, form.expander, form.feasible)
        if found is not None:
            jacobian, weight = found
            hessian = sp.csr_array(2 * (jacobian.T @ weight @ jacobian))
            touched = np.unique(jacobian.indices)
            stiffness = float(abs(hessian).sum(axis=1).max()) if hessian.nnz else 0.0
            return gradient_norm(expression, form) + stiffness * min(form.feasible.norm_on(touched), ball)
    return walked(expression, form, ball)


def bregman_bounds(expression: Any, form: LossForm) -> tuple[float, float]:
    """Bound how far a convex public expression rises above its tangents: by ``stiffness v^2/2 + 2 slope v`` at a distance v.

    Returns
    -------
    stiffness : float
        Largest eigenvalue of what is quadratic.
    slope : float
        Largest norm of the gradients over K of what is neither quadratic nor affine; infinite if no bound is found.
    """
    if not expression.variables() or expression.is_affine():
        return 0.0, 0.0
    if isinstance(expression, AddExpression):
        parts = [bregman_bounds(argument, form) for argument in expression.args]
        return sum(a for a, _ in parts), sum(b for _, b in parts)
    if isinstance(expression, Promote):
        return bregman_bounds(expression.args[0], form)
    if isinstance(expression, multiply | MulExpression | DivExpression) and expression.is_scalar():
        factor, inner = constant_factor(expression)
        if inner is not None:
            stiffness, slope = bregman_bounds(inner, form) if factor else (0.0, 0.0)
            return abs(factor) * stiffness, abs(factor) * slope
    for rule in QUADRATIC:
        found = rule(expression, form.expander, form.feasible)
        if found is not None:
            jacobian, weight = found
            hessian = sp.csr_array(2 * (jacobian.T @ weight @ jacobian))
            return float(abs(hessian).sum(axis=1).max()) if hessian.nnz else 0.0, 0.0
    return 0.0, slope_of(expression, form)


def gradient_norm(expression: Any, form: LossForm) -> float:
    """Return the norm of the gradient at 0; the user's own variables keep the values that they have."""
    fresh = {name: cp.Variable(block.variable.shape, name=name) for name, block in form.space.blocks.items()}
    for variable in fresh.values():
        variable.value = np.zeros(variable.shape)
    copies = {id(block.variable): fresh[name] for name, block in form.space.blocks.items()}
    slopes = expression.tree_copy(copies).grad
    total = 0.0
    for name, block in form.space.blocks.items():
        slope = slopes.get(fresh[name], 0.0)
        if slope is None:
            return math.inf
        entries = np.asarray(slope.toarray() if sp.issparse(slope) else slope, dtype=float).ravel()
        part = block.lift.T @ np.broadcast_to(entries, (block.lift.shape[0],))
        total += float(part @ part)
    return math.sqrt(total)


def walked(expression: Any, form: LossForm, ball: float = math.inf) -> float:
    """Bound the gradients with the rules for losses."""
    leaves = affine_leaves(expression)
    try:
        polynomials = [form.expander.expand(leaf) for leaf in leaves]
        gram = Gram(polynomials, form.space, form.bases)
        rows = {id(leaf): row for leaf, row in zip(leaves, gram.rows, strict=True)}

        def reach(polynomial: Polynomial, rows: Array) -> list[Interval]:
            constant = polynomial.part(with_theta=False)
            offset = np.bincount(constant.entry, weights=constant.coefficient, minlength=polynomial.size)
            touched = np.unique(polynomial.part(with_theta=True).coordinate)
            radius = min(form.feasible.norm_on(touched), ball)
            size = np.sqrt(gram.squared_norms(rows)) * radius if len(touched) else np.zeros(len(offset))
            return [Interval(float(a - s), float(a + s)) for a, s in zip(offset, size, strict=True)]

        entries, _ = Walker(form.expander, rows, reach).walk(expression)
        return sum(gradient_bound(entry.terms, gram) for entry in entries)
    except NotPrivate:
        return math.inf
