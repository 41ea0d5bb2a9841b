"""Lower bounds on the Hessian and upper bounds on the gradient of the public regularizer over K, term by term."""

import math
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp

from dpconvex.certificates.derivation import Derivation
from dpconvex.errors import NotPrivate
from dpconvex.expressions.abstract_values import AbstractValue
from dpconvex.expressions.atom import ArgumentRange
from dpconvex.expressions.atoms.matrices import LOG_DET
from dpconvex.expressions.atoms.powers import POWER
from dpconvex.expressions.expansion import Expander
from dpconvex.expressions.expression import Expression, postorder
from dpconvex.expressions.polynomial import Polynomial
from dpconvex.expressions.rewriting import terms
from dpconvex.numerics import (
    BOUND_SLACK,
    EPSILON,
    NORM_SLACK,
    Ends,
    float_down,
    interval_product,
    norm_up,
    plus,
    root_up,
    sum_ends,
)
from dpconvex.sensitivity.bilinear_forms import is_diagonal
from dpconvex.sensitivity.gradient_norms import Gradients
from dpconvex.sensitivity.gram import GradientGram
from dpconvex.sensitivity.interpreter import AbstractInterpreter
from dpconvex.sensitivity.loss_form import LossForm, affine_leaves
from dpconvex.sets.feasible_set import FeasibleSet
from dpconvex.sets.quadratics import as_quadratic, linear_parts
from dpconvex.util.arrays import Array, Indices, components


def curvature_of(regularizer: Expression, expander: Expander, feasible: FeasibleSet) -> tuple[sp.csr_array, Derivation]:
    """Return a matrix M such that ``regularizer - <theta, M theta>/2`` is convex, and its derivation."""
    steps: list[Derivation] = []
    total = sp.csr_array((expander.space.dim, expander.space.dim))
    for node, weights in least_weights(regularizer).items():
        found = least_hessian(node, weights, expander, feasible)
        if found is None:
            steps.append(Derivation("convex term", str(node), {"modulus": 0.0}, "claims nothing"))
            continue
        matrix, rule, statement = found
        touched = np.flatnonzero(np.asarray(abs(matrix).sum(axis=0)).ravel())
        modulus = smallest_eigenvalue(sp.csr_array(matrix[touched][:, touched])) if len(touched) else 0.0
        steps.append(Derivation(rule, str(node), {"modulus": modulus}, statement))
        both = (total.diagonal() != 0) & (matrix.diagonal() != 0)
        total = sp.csr_array(total + matrix)
        total = sp.csr_array(total - sp.diags_array(EPSILON * np.abs(total.diagonal()) * both))
    return total, Derivation(
        "strong convexity of the regularizer",
        str(regularizer),
        {"modulus": smallest_eigenvalue(total)},
        "smallest eigenvalue of the sum of Hessians; affine terms and norms add 0",
        tuple(steps),
    )


def least_weights(regularizer: Expression) -> dict[Expression, Array]:
    """Return the curved atoms of a sum, with the weights of their entries, rounded towards 0."""
    found: dict[Expression, Ends] = {}
    for factor, term in terms(regularizer):
        number = np.array([float_down(factor)]), np.array([-float_down(-factor)])
        parts, sizes = linear_parts(term), linear_parts(term, absolute=True)
        roundings = sum(not node.is_affine and node not in parts for node in postorder([term])) - 1
        for node, row in parts.items():
            if not node.is_affine:
                entries = row.toarray()[0]
                error = max(roundings, 0) * EPSILON * sizes[node].toarray()[0]
                low, high = interval_product(number, (entries - error, entries + error))
                before = found.get(node, (np.zeros(len(low)), np.zeros(len(low))))
                found[node] = sum_ends(before[0], low)[0], sum_ends(before[1], high)[1]
    return {node: np.where(low > 0, low, np.where(high < 0, high, 0.0)) for node, (low, high) in found.items()}


def least_hessian(
    node: Expression, weights: Array, expander: Expander, feasible: FeasibleSet
) -> tuple[sp.csr_array, str, str] | None:
    """Return a lower bound on the Hessian of weighted entries of an atom, with name and statement; None if there is no bound.

    A row j with error e, |e| = t |j|, has ``(j + e)(j + e)' >= (1 - t) (jj' - |j| |e| I)`` on its nonzero coordinates.
    """
    atom, argument = node.operation, node.args[0]
    if atom.hessian_lower_bound is None or not argument.is_affine:
        return None
    polynomial = expander.expand(argument)
    linear = polynomial.part(with_theta=True)
    bend = atom.hessian_lower_bound.bend(node, weights, reach_of(polynomial, feasible))
    if bend is None:
        return None
    place, shape = (linear.entry, linear.coordinate), (polynomial.size, expander.space.dim)
    jacobian = sp.csr_array((linear.coefficient, place), shape=shape)
    length, missed = (entry_norms(linear.entry, part, linear.size) for part in (linear.coefficient, linear.error))
    share = missed / np.where(length > 0, length, 1.0)
    bend = bend * np.where(share > 0, np.maximum(1 - share - 3 * EPSILON, 0.0), 1.0)
    size, touched = abs(jacobian), sp.csr_array((jacobian != 0).astype(float))
    counts = sp.csr_array(touched.T @ touched)
    # Products with powers of two are exact, and so is a sum of one term.
    counts.data += 3.0 * bool((np.frexp(size.data)[0] != 0.5).any()) - 1
    rounded = counts.multiply(size.T @ sp.diags_array(np.abs(bend)) @ size) * EPSILON
    matrix = jacobian.T @ sp.diags_array(bend) @ jacobian
    missing = touched.T @ (bend * length * missed * (1 + 4 * EPSILON)) + np.asarray(rounded.sum(axis=1)).ravel()
    missing += EPSILON * np.abs(matrix.diagonal()) * (missing > 0)
    matrix = matrix - sp.diags_array(missing)
    name = "square" if node.atom is POWER and node.option("p") == 2 else atom.hessian_lower_bound.name
    return sp.csr_array(matrix), name, atom.hessian_lower_bound.statement


def ridge_of(form: LossForm, free: bool = True) -> Array | None:
    """Return the diagonal Hessian of a quadratic regularizer, shape (dim,), or None; `free` excludes slopes and constraints."""
    public, known = as_quadratic(form.template.regularizer, form.space), form.feasible.is_space or not free
    if public is None or (free and public.slope.any()) or not known or not is_diagonal(public.hessian):
        return None
    return np.asarray(public.hessian.diagonal())


def reach_of(polynomial: Polynomial, feasible: FeasibleSet, radius: float = math.inf) -> ArgumentRange:
    """Return bounds on a public affine expression, by entry and in norm, over the points of K of norm at most `radius`."""
    linear, offset = polynomial.part(with_theta=True), feasible.range_of(polynomial.part(with_theta=False))
    radius = min(radius, feasible.norm_on(linear.touched))
    (low, high), steep = feasible.range_of(polynomial), np.max(np.abs(linear.ends), axis=0)
    lengths = entry_norms(linear.entry, steep, linear.size)
    with np.errstate(invalid="ignore"):
        ball = np.where(lengths > 0, np.nextafter(lengths * radius, np.inf), 0.0)
    low, high = np.maximum(low, sum_ends(offset[0], -ball)[0]), np.minimum(high, sum_ends(offset[1], ball)[1])
    unit, place = float(steep.max(initial=0.0)) or 1.0, (linear.entry, linear.coordinate)
    plain, wrong = (
        sp.csr_array((part / unit, place), shape=(linear.size, feasible.space.dim))
        for part in (linear.coefficient, linear.error)
    )
    # Exact if A is a multiple of an isometry.
    size, rounded = abs(plain), abs(plain) * ((linear.size + 8) * EPSILON) + 3 * wrong
    square = largest_row_sum(abs(plain.T @ plain) + size.T @ rounded + rounded.T @ (size + rounded))
    steepest = unit * root_up(square * (1 + BOUND_SLACK)) * (1 + BOUND_SLACK) if square else 0.0
    norm = plus(steepest * radius * (1 + BOUND_SLACK) if steepest else 0.0, norm_up(np.max(np.abs(offset), axis=0)))[1]
    return ArgumentRange(low, high, norm)


def entry_norms(entry: Indices, values: Array, size: int) -> Array:
    """Return bounds on the Euclidean norm of the terms of each entry, shape (size,)."""
    top = np.zeros(size)
    np.maximum.at(top, entry, np.abs(values))
    squares = np.bincount(entry, weights=(values / np.where(top > 0, top, 1.0)[entry]) ** 2, minlength=size)
    count = np.bincount(entry, minlength=size)
    return np.where(top > 0, np.nextafter(top * np.sqrt(squares) * (1 + (count + 4) * EPSILON), np.inf), 0.0)


def largest_row_sum(matrix: sp.csr_array) -> float:
    """Return the largest absolute row sum of a symmetric matrix, a bound on its largest eigenvalue."""
    return float(abs(matrix).sum(axis=1).max()) if matrix.nnz else 0.0


def smallest_eigenvalue(matrix: sp.csr_array) -> float:
    """Return a lower bound on the smallest eigenvalue of a symmetric sparse matrix, block by block; 0 if that is negative."""
    matrix = sp.csr_array(matrix)
    if matrix.shape[0] == 0:
        return 0.0
    blocks, diagonal = components(matrix), matrix.diagonal()
    found = [
        diagonal[mine[0]] if len(mine) == 1 else np.linalg.eigvalsh(matrix[mine][:, mine].toarray())[0]
        for mine in blocks
    ]
    # Rounding in an eigenvalue is relative to the matrix's norm and grows with its side; a modulus is rounded down.
    largest = max(map(len, blocks))
    slack = EPSILON * 8 * largest * float(abs(matrix).sum(axis=0).max()) if largest > 1 else 0.0
    least = float(np.min(found)) - slack
    return least if 0 < least < np.inf else 0.0  # also if it is NaN


def slope_of(expression: Expression, form: LossForm, ball: float = math.inf) -> float:
    """Return a bound on the gradient norm of a convex public expression over the points of K of norm at most `ball`."""
    total = 0.0
    for factor, term in terms(expression):
        closed, weight = as_quadratic(term, form.space), abs(float(factor))
        if not term.variables or not weight:
            continue
        if closed is None:
            total += weight * steepness(term, form, ball)
            continue
        total += weight * norm_up(closed.slope)
        if stiffness := largest_row_sum(closed.hessian):  # the change of the gradient over K
            total += weight * stiffness * min(form.feasible.norm_on(np.unique(closed.hessian.indices)), ball)
    return total


def steepness(expression: Expression, form: LossForm, ball: float) -> float:
    """Return a bound on the gradient norm: by the rules for losses or, for log_det, by a least eigenvalue; maybe infinite."""
    least = form.feasible.least_eigenvalue(expression.args[0]) if expression.atom is LOG_DET else 0.0
    if least > 0:
        return math.sqrt(expression.args[0].shape[0]) / least * (1 + NORM_SLACK)
    try:
        entries, gram = bound_entries(expression, form, ball)
        return sum(Gradients(entry.terms, gram).bound for entry in entries)
    except NotPrivate:
        return math.inf


def bound_entries(expression: Expression, form: LossForm, ball: float) -> tuple[Sequence[AbstractValue], GradientGram]:
    """Return bounds on the entries of a public expression over the points of K of norm at most `ball`, and the Gram bounds."""
    leaves = affine_leaves(expression)
    gram = GradientGram([form.expander.expand(leaf) for leaf in leaves], form.space, form.bases)
    known = dict(zip(leaves, gram.rows, strict=True))
    reach = {leaf: reach_of(form.expander.expand(leaf), form.feasible, ball)[:2] for leaf in leaves}
    walker = AbstractInterpreter(form.expander, known, reach.__getitem__)
    return walker.walk(expression), gram
