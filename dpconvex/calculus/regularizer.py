"""How curved the public regularizer is at least over K, and how steep at most, term by term."""

import math
from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp

from dpconvex.calculus.gradient_norms import Gradients
from dpconvex.calculus.gram import Gram
from dpconvex.calculus.interpreter import Walker
from dpconvex.calculus.loss_form import LossForm, affine_leaves
from dpconvex.core.arrays import Array
from dpconvex.core.atom import Reach
from dpconvex.core.atoms.matrices import LOG_DET
from dpconvex.core.atoms.powers import POWER
from dpconvex.core.derivation import Derivation
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Expression
from dpconvex.core.polynomial import Polynomial
from dpconvex.errors import NotPrivate
from dpconvex.geometry.feasible_set import FeasibleSet
from dpconvex.geometry.quadratics import arguments_of, linear_parts, quadratic
from dpconvex.numerics import Interval, intervals

UNIT = float(np.finfo(float).eps)


def curvature_of(regularizer: Expression, expander: Expander, feasible: FeasibleSet) -> tuple[sp.csr_array, Derivation]:
    """Return M with ``regularizer - <theta, M theta>/2`` convex, and its derivation."""
    steps: list[Derivation] = []
    total = sp.csr_array((expander.space.dim, expander.space.dim))
    for node, row in linear_parts(regularizer).items():
        if node.is_affine:
            continue
        found = least_hessian(node, row.toarray()[0], expander, feasible)
        if found is None:
            steps.append(Derivation("convex term", str(node), {"modulus": 0.0}, "claims nothing"))
            continue
        matrix, rule, statement = found
        touched = np.flatnonzero(np.asarray(abs(matrix).sum(axis=0)).ravel())
        modulus = smallest_eigenvalue(sp.csr_array(matrix[touched][:, touched])) if len(touched) else 0.0
        steps.append(Derivation(rule, str(node), {"modulus": modulus}, statement))
        total = sp.csr_array(total + matrix)
    return total, Derivation(
        "strong convexity of the regularizer",
        str(regularizer),
        {"modulus": smallest_eigenvalue(total)},
        "smallest eigenvalue of the sum of Hessians; affine terms and norms add 0",
        tuple(steps),
    )


def least_hessian(
    node: Expression, weights: Array, expander: Expander, feasible: FeasibleSet
) -> tuple[sp.csr_array, str, str] | None:
    """Return a matrix that weighted entries of an atom have as a Hessian at least, and the rule; None if nothing is claimed."""
    atom, argument = node.operation, node.args[0]
    if atom.strong is None or not argument.is_affine:
        return None
    polynomial = expander.expand(argument)
    linear, constant = polynomial.part(with_theta=True), polynomial.part(with_theta=False)
    shape = (polynomial.size, expander.space.dim)
    jacobian = sp.csr_array((linear.coefficient, (linear.entry, linear.coordinate)), shape=shape)
    offset = np.asarray(np.bincount(constant.entry, constant.coefficient, polynomial.size), dtype=float)
    bend = atom.strong.bend(node, weights, reach_of(jacobian, offset, feasible))
    if bend is None:
        return None
    name = "square" if node.atom is POWER and node.option("p") == 2 else atom.strong.name
    return sp.csr_array(jacobian.T @ sp.diags_array(bend) @ jacobian), name, atom.strong.statement


def reach_of(jacobian: sp.csr_array, offset: Array, feasible: FeasibleSet) -> Reach:
    """Bound the entries of a public affine expression, and their Euclidean norm, over K."""
    table = sp.coo_array(jacobian)
    row, column = table.coords
    radius = feasible.norm_on(np.flatnonzero(np.bincount(column)))
    lengths = np.sqrt(np.asarray(jacobian.multiply(jacobian).sum(axis=1)).ravel())
    with np.errstate(invalid="ignore"):
        ends = np.stack([table.data * feasible.lower[column], table.data * feasible.upper[column]])
        ball = np.where(lengths > 0, lengths * radius, 0.0)
    low, high = (np.bincount(row, weights=end, minlength=len(offset)) for end in (ends.min(axis=0), ends.max(axis=0)))
    steepest = math.sqrt(largest_row_sum(jacobian.T @ jacobian))  # exact if A is a multiple of an isometry
    norm = (steepest * radius if steepest else 0.0) + float(np.linalg.norm(offset))
    return Reach(offset + np.maximum(low, -ball), offset + np.minimum(high, ball), norm)


def largest_row_sum(matrix: sp.csr_array) -> float:
    """Return the largest sum of absolute values of a row of a symmetric matrix, which bounds its largest eigenvalue."""
    return float(abs(matrix).sum(axis=1).max()) if matrix.nnz else 0.0


def smallest_eigenvalue(matrix: sp.csr_array) -> float:
    """Return the smallest eigenvalue of a symmetric sparse matrix, block by block; never negative."""
    matrix = sp.csr_array(matrix)
    if matrix.shape[0] == 0:
        return 0.0
    count, label = sp.csgraph.connected_components(matrix, directed=False)
    found = []
    order = np.argsort(label, kind="stable")
    sizes = np.bincount(label, minlength=count)
    if (sizes == 1).any():
        found.append(float(matrix.diagonal()[sizes[label] == 1].min()))
    starts = np.concatenate([[0], np.cumsum(sizes)])
    for k in np.flatnonzero(sizes > 1):
        index = order[starts[k] : starts[k + 1]]
        found.append(float(np.linalg.eigvalsh(matrix[index][:, index].toarray())[0]))
    # Rounding in an eigenvalue is relative to the matrix's norm and grows with its side; a modulus must err on the small side.
    largest = int(sizes.max())
    slack = UNIT * 8 * largest * float(abs(matrix).sum(axis=0).max()) if largest > 1 else 0.0
    least = float(np.min(found)) - slack
    return least if 0 < least < np.inf else 0.0  # what is no number claims nothing


def slope_of(expression: Expression, form: LossForm, ball: float = math.inf) -> float:
    """Bound the norm of the gradients of a convex public expression over the points of K of norm at most `ball`."""
    total = 0.0
    for factor, term in terms_of(expression):
        closed = quadratic(term, form.space)
        if closed is None:
            total += abs(factor) * walked(term, form, ball)
            continue
        total += abs(factor) * float(np.linalg.norm(closed.slope))
        if stiffness := largest_row_sum(closed.hessian):  # what the Hessian can add over K
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
        return sum(Gradients(entry.terms, gram).bound for entry in entries)
    except NotPrivate:
        return math.inf
