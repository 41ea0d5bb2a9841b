"""Strong convexity of the public regularizer, term by term.

A regularizer is affine terms plus weighted entries of curved atoms: the weights are carried down through sums, factors and
rearrangements.  Each atom says how curved it is at least over K (its slot `strong`); what says nothing contributes nothing.
The modulus is the smallest eigenvalue of the sum over the whole space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atom import LeastCurvature, Reach
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.powers import POWER, quad_over_lin
from dpconvex.core.derivation import Derivation
from dpconvex.core.discipline import is_concave, is_convex
from dpconvex.core.expansion import Expander
from dpconvex.core.expression import Expression
from dpconvex.errors import NotPrivate
from dpconvex.geometry.feasible_set import FeasibleSet

__all__ = ["Part", "curvature_of", "parts_of", "smallest_eigenvalue"]

Array: TypeAlias = NDArray[np.float64]
Matrix: TypeAlias = sp.csr_array
UNIT = float(np.finfo(float).eps)


@dataclass(frozen=True, eq=False)
class Part:
    """Weighted entries of a subexpression, whose sum is a term of a regularizer.

    Attributes
    ----------
    node : Expression
        Affine, or a curved atom.
    weights : ndarray, shape (node.size,)
        In column order.
    expander : Expander
    """

    node: Expression
    weights: Array
    expander: Expander

    @cached_property
    def argument(self) -> Expression:
        """What is curved: the node itself if it is affine, else its first argument."""
        return self.node if self.node.is_affine else self.atom_node.args[0]

    @cached_property
    def atom_node(self) -> Expression:
        """The node, the square of a Euclidean norm written as a sum of squares."""
        inner = self.node.args[0]
        if self.node.atom is POWER and self.node.option("p") == 2 and inner.atom is NORM and inner.option("p") == 2:
            return quad_over_lin(inner.args[0], 1.0, inner.option("axis"), inner.option("keepdims"))
        return self.node

    @property
    def strong(self) -> LeastCurvature | None:
        """What the atom says, if its argument is affine."""
        atom = self.atom_node.atom
        return atom.strong if atom is not None and self.argument.is_affine else None

    @cached_property
    def map(self) -> tuple[Matrix, Array]:
        """Matrix and constant of the affine argument, whose entries are in column order."""
        polynomial = self.expander.expand(self.argument)
        linear, constant = polynomial.part(with_theta=True), polynomial.part(with_theta=False)
        matrix = sp.csr_array(
            (linear.coefficient, (linear.entry, linear.coordinate)), shape=(polynomial.size, self.expander.space.dim)
        )
        return matrix, np.bincount(constant.entry, weights=constant.coefficient, minlength=polynomial.size)

    def reach(self, feasible: FeasibleSet) -> Reach:
        """Bound the argument over K."""
        jacobian, offset = self.map
        table = sp.coo_array(jacobian)
        row, column = table.coords
        with np.errstate(invalid="ignore"):
            ends = np.stack([table.data * bound[column] for bound in (feasible.lower, feasible.upper)])
            low, high = (np.bincount(row, pick(ends, axis=0), len(offset)) for pick in (np.min, np.max))
            lengths = np.sqrt(np.asarray(jacobian.multiply(jacobian).sum(axis=1)).ravel())
            radius = feasible.norm_on(np.unique(column))
            ball = np.where(lengths > 0, lengths * radius, 0.0)
        # The largest row sum bounds the largest eigenvalue of A'A, and is exact if A is a multiple of an isometry.
        steepest = float(np.sqrt(abs(jacobian.T @ jacobian).sum(axis=1).max())) if jacobian.nnz else 0.0
        norm = (steepest * radius if steepest else 0.0) + float(np.linalg.norm(offset))
        return Reach(offset + np.maximum(low, -ball), offset + np.minimum(high, ball), norm)

    def hessian(self, feasible: FeasibleSet) -> Matrix | None:
        """Return a matrix that is at most the Hessian over K; None if nothing is claimed."""
        if self.strong is None:
            return None
        bend = self.strong.bend(self.atom_node, self.weights, self.reach(feasible))
        return None if bend is None else self.bent(bend)

    def quadratic(self) -> tuple[Matrix, Array] | None:
        """Return Hessian and gradient at 0 of a part that is affine or quadratic, else None."""
        if self.node.is_affine:
            jacobian, _ = self.map
            return sp.csr_array((jacobian.shape[1],) * 2), jacobian.T @ self.weights
        if self.strong is None or not self.strong.exact(self.atom_node):
            return None
        everywhere = np.full(self.argument.size, np.inf)
        bend = self.strong.bend(self.atom_node, self.weights, Reach(-everywhere, everywhere, np.inf))
        jacobian, offset = self.map
        bend = np.zeros(len(offset)) if bend is None else bend
        return self.bent(bend), jacobian.T @ (bend * offset)

    def bent(self, bend: Array) -> Matrix:
        """Return the Hessian of a function of the argument that has the Hessian diag(bend)."""
        jacobian, _ = self.map
        return sp.csr_array(jacobian.T @ sp.diags_array(bend) @ jacobian)


def parts_of(expression: Expression, expander: Expander, weights: Array | None = None) -> Iterator[Part]:
    """Split the sum of weighted entries of a public expression into affine and curved parts."""
    weights = np.ones(expression.size) if weights is None else weights
    if expression.is_constant or not weights.any():
        return
    atom = expression.atom
    if expression.is_affine or atom is None or not atom.keeps_affine(expression.args):
        yield Part(expression, weights, expander)
        return
    assert atom.pull is not None
    values = [a.number[..., None] if a.is_constant else np.zeros((*a.shape, 1)) for a in expression.args]
    slope = weights.reshape((*expression.shape, 1), order="F")
    pulled = atom.pull(expression, np.zeros((*expression.shape, 1)), slope, *values)
    for argument, found in zip(expression.args, pulled, strict=True):
        if argument.variables:
            yield from parts_of(argument, expander, np.asarray(found).reshape(-1, order="F"))


def curvature_of(regularizer: Expression, expander: Expander, feasible: FeasibleSet) -> tuple[Matrix, Derivation]:
    """Return M with ``regularizer - <theta, M theta>/2`` convex, and its derivation.

    Raises
    ------
    NotPrivate
        If the regularizer is not convex.
    """
    if not is_convex(regularizer):
        raise NotPrivate(
            "the regularizer is not convex by the rules of composition",
            offending(regularizer),
            "use a convex regularizer",
        )
    steps: list[Derivation] = []
    total = sp.csr_array((expander.space.dim, expander.space.dim))
    for part in parts_of(regularizer, expander):
        if part.node.is_affine:
            continue
        hessian = part.hessian(feasible)
        if hessian is None:
            steps.append(Derivation("convex term", str(part.node), {"modulus": 0.0}, "claims nothing"))
            continue
        assert part.strong is not None
        touched = np.flatnonzero(np.asarray(abs(hessian).sum(axis=0)).ravel())
        modulus = smallest_eigenvalue(sp.csr_array(hessian[touched][:, touched])) if len(touched) else 0.0
        steps.append(Derivation(part.strong.name, str(part.node), {"modulus": modulus}, part.strong.statement))
        total = sp.csr_array(total + hessian)
    return total, Derivation(
        "strong convexity of the regularizer",
        str(regularizer),
        {"modulus": smallest_eigenvalue(total)},
        "moduli add; affine terms and norms add 0",
        tuple(steps),
    )


def offending(expression: Expression) -> Expression:
    """Return the smallest subexpression that spoils convexity: the one to show the user."""
    for argument in expression.args:
        if not (is_convex(argument) or is_concave(argument)):
            return offending(argument)
    return expression


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
