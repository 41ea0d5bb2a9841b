"""How curved the public regularizer is at least over K, term by term."""

import numpy as np
import scipy.sparse as sp

from dpconvex.core.arrays import Array
from dpconvex.core.atom import Reach
from dpconvex.core.atoms.powers import POWER
from dpconvex.core.derivation import Derivation
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Expression
from dpconvex.geometry.feasible_set import FeasibleSet
from dpconvex.geometry.quadratics import linear_parts

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
        "moduli add; affine terms and norms add 0",
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
    # The largest row sum bounds the largest eigenvalue of A'A, and is exact if A is a multiple of an isometry.
    steepest = float(np.sqrt(abs(jacobian.T @ jacobian).sum(axis=1).max())) if jacobian.nnz else 0.0
    norm = (steepest * radius if steepest else 0.0) + float(np.linalg.norm(offset))
    return Reach(offset + np.maximum(low, -ball), offset + np.minimum(high, ball), norm)


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
