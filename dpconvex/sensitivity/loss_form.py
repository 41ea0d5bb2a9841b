"""`LossForm`: a template as affine leaves `A_z theta + c_z`, a loss for each label, a public regularizer and a set K."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from dpconvex.errors import NotPrivate
from dpconvex.expressions.atoms.arithmetic import ADD, MATMUL
from dpconvex.expressions.atoms.arrangement import BROADCAST, CONCATENATE, INDEX, RESHAPE, SELECT, TRANSPOSE
from dpconvex.expressions.atoms.extremes import MAX
from dpconvex.expressions.discipline import is_concave, is_convex, nonconvex_part
from dpconvex.expressions.expansion import Expander, RecordVariables
from dpconvex.expressions.expression import Constraint, Expression, postorder, topmost
from dpconvex.expressions.parameter_space import Space
from dpconvex.expressions.polynomial import Polynomial
from dpconvex.model.template import Template
from dpconvex.numerics import abs_ends
from dpconvex.sensitivity.gram import GradientGram
from dpconvex.sensitivity.record_units import in_best_units
from dpconvex.sensitivity.sensitive_subspace import Projection, basis_of, coefficient_vectors
from dpconvex.sets.atom_domains import implicit_constraints
from dpconvex.sets.feasible_set import FeasibleSet
from dpconvex.sets.quadratics import as_quadratic
from dpconvex.util.arrays import Array
from dpconvex.util.runtime import once
from dpconvex.util.summation import SumLengths

# Limits of coefficients and of records' bounds: squares of products of two do not overflow or underflow.
LEAST, MOST = 1e-75, 1e75
# Limits of parameters' bounds, gradient bounds and curvatures: small multiples of their squares do not overflow.
WIDEST = STEEPEST = 1e100
LARGEST_DEGREE = 2  # Leaves with monomials of a higher degree are evaluated as written
UNSEEN = 1e-9  # Coefficients of a unit equation below this, in directions that no loss depends on, count as 0
ESTIMATED = "write the loss in the CVXPY variables that the learner estimates"
REMEDY = "measure it in other units: multiply the field, the parameter or the loss by a constant"


class LossForm:
    """A template, split into its parts.

    `feasible` is the set K: the template's `constraints` hold there, and its regularizer is defined.  `losses` has a loss for
    each combination of discrete fields, and `leaves` has the affine leaves of each loss.  `made` describes fields that depend on
    levels of the record (`picked_parameters`).
    """

    def __init__(self, template: Template, convex: bool = True, made: Any = None) -> None:
        self.template, self.made = template, made
        check_public(template)
        check_loss(template, convex)
        self.space = Space(template.variables)
        self.feasible: FeasibleSet = FeasibleSet(self.space, template.constraints)
        self.expander = expander_of(template, self.space)
        self.bases = self.expander.bases
        domains = implicit_constraints(template.regularizer, self.expander, self.feasible.least_entry)
        self.constraints: tuple[Constraint, ...] = (*template.constraints, *domains)
        if domains:
            self.feasible = FeasibleSet(self.space, self.constraints)
        self.losses: tuple[Expression, ...] = template.losses
        self.leaves: tuple[list[Expression], ...] = tuple(affine_leaves(loss) for loss in self.losses)
        self.every_leaf = [leaf for group in self.leaves for leaf in group]
        polynomials = list(map(self.polynomial, self.every_leaf))  # raises for leaves without a rule
        if all((polynomial.coordinate < 0).all() for polynomial in polynomials):
            why = "the loss does not change with any variable: all factors of variables are zero"
            raise NotPrivate(why, template.losses[0], ESTIMATED)

    def polynomial(self, leaf: Expression) -> Polynomial:
        return self.expander.expand(leaf)

    @cached_property
    def standard(self) -> Expander:
        """Return the expander for proofs, in units of the record with short rows."""
        return in_best_units(self.expander, self.template, list(dict.fromkeys(self.every_leaf)), self.reach)

    @cached_property
    def reach(self) -> Array:
        """Return bounds on the absolute value of each coordinate on K."""
        return abs_ends(self.feasible.lower, self.feasible.upper)[1]

    @cached_property
    def basis(self) -> sp.csc_array:
        """Return an orthonormal basis of the sensitive subspace U, shape (dim, p); noise is needed only in U."""
        return basis_of(coefficient_vectors(list(map(self.polynomial, self.every_leaf)), self.space.dim))

    @cached_property
    def identified(self) -> tuple[Array, Array]:
        """Return matrix and offset of a map along directions orthogonal to U, to the shortest solution of the equations on K."""
        (matrix, value), seen = self.feasible.region.system, self.basis.toarray()
        unseen, size = scipy.linalg.null_space(seen.T), np.linalg.norm(matrix, axis=1)[:, None]
        fixed = matrix @ unseen / size
        back = unseen @ np.linalg.pinv(np.where(abs(fixed) > UNSEEN, fixed, 0.0), UNSEEN) / size.T
        lift = (np.eye(len(seen)) - back @ matrix) @ seen @ seen.T
        return np.where(np.linalg.norm(lift, axis=1, keepdims=True) > UNSEEN, lift, 0.0), back @ value

    @property
    def noise_dimension(self) -> int:
        """Return the dimension p of the sensitive subspace."""
        return int(self.basis.shape[1])

    @cached_property
    def projection(self) -> Projection | None:
        """Return the orthogonal projection on the sensitive subspace; None if that is the whole space."""
        return None if self.noise_dimension == self.space.dim else Projection(self.basis)

    @cached_property
    def lengths(self) -> SumLengths:
        """Return the numbers of terms in the sums that compute a gradient of the objective."""
        products, sums = longest_sums(self.template.losses)
        projected = 0.0 if self.projection is None else self.projection.reach
        entries = max(sum(self.polynomial(leaf).size for leaf in group) for group in self.leaves)
        regularizer = as_quadratic(self.template.regularizer, self.space)
        row = self.space.dim if regularizer is None else int(np.diff(regularizer.hessian.indptr).max(initial=0))
        degree = max(self.polynomial(leaf).monomial.shape[1] for leaf in self.every_leaf)
        scalars = max(math.comb(self.bases.count + degree, degree) - 1, products)
        return SumLengths(scalars, entries, row, projected, sums, *self.rounding)

    @cached_property
    def gram(self) -> GradientGram:
        """Return bounds on inner products of the rows of all leaves, label by label."""
        return GradientGram(list(map(self.standard.expand, self.every_leaf)), self.space, self.standard.bases)

    @cached_property
    def sizes(self) -> Array:
        """Return the size of the terms without theta and the mean slope of each leaf entry. Raise if terms of a leaf cancel."""
        return np.concatenate([self.standard.check_rounding(leaf, self.reach) for leaf in self.every_leaf], axis=1)

    @cached_property
    def rounding(self) -> tuple[float, float]:
        """Return the largest ratios of slopes as written, and of terms without theta, to the slopes of leaves (for rounding)."""
        still, slope = self.sizes
        mixed = np.concatenate([self.standard.mixed_slopes(leaf) for leaf in self.every_leaf])
        length = np.concatenate(self.gram.row_lengths)
        moves = length > 0
        cancelled = math.hypot(1.0, (mixed[moves] / length[moves]).max(initial=0.0))
        return cancelled, float((still / np.minimum(slope, np.where(moves, length, np.inf))).max(initial=0.0))


@once
def expander_of(template: Template, space: Space) -> Expander:
    return Expander(space, RecordVariables(template.record.continuous))


def affine_leaves(expression: Expression) -> list[Expression]:
    """Return the maximal affine subexpressions that contain variables; of a broadcast, the argument."""
    return list(topmost(expression, lambda node: node.is_affine and node.atom is not BROADCAST))


def nonsmooth_nodes(losses: Sequence[Expression]) -> list[Expression]:
    """Return the subexpressions with atoms that have nonsmooth points."""
    return [node for node in postorder(losses) if node.atom and (node.atom.smoothed or node.atom.kinks)]


def check_public(template: Template) -> None:
    """Raise if the regularizer contains a field of the record, or is not provably convex."""
    regularizer = template.regularizer
    if regularizer.fields:
        why = "the regularizer mentions a field of the record; it must be public"
        raise NotPrivate(why, regularizer, "move the term into the loss, or use a constant")
    if not is_convex(regularizer):
        why = "the regularizer is not convex by CVXPY's rules"
        raise NotPrivate(why, nonconvex_part(regularizer), "use a convex regularizer")


def check_loss(template: Template, convex: bool = True) -> None:
    """Raise if a loss is not provably convex (unless `convex` is False), or if no loss contains a variable."""
    for values, loss in zip(template.record.combinations, template.losses, strict=True):
        if convex and not is_convex(loss):
            where = f" for {values}" if values else ""
            place = nonconvex_part(loss)
            why, remedy = why_not_convex(place)
            remedy = f"{remedy}; or pass mechanism=dp.AdaptiveSteps() and a delta, which need no convexity"
            raise NotPrivate(f"the loss{where} is not convex: {why}", place, remedy)
    if not any(loss.variables for loss in template.losses):
        why = "the loss mentions no variable, so nothing would be learnt from the data"
        raise NotPrivate(why, template.losses[0], ESTIMATED)


def why_not_convex(place: Expression) -> tuple[str, str]:
    """Return why a subexpression is not provably convex, and a remedy."""
    if is_concave(place):
        remedy = "drop the term, change its sign, or replace it by its tangent; a loss must be convex"
        return "it has a concave term", remedy
    if place.atom is not None and place.atom.affine in ("bilinear", "quotient"):
        if all(argument.variables for argument in place.args):
            remedy = "write one of the factors as a constant or a field, or use a convex function of both"
            return "it multiplies variables with each other", remedy
        box = "declare the factor's field non-negative (a Box with lower bounds of 0)"
        remedy = f"{box}, or write a non-negative factor such as 1 - g as cp.pos(1 - g): the product is then convex"
        return "a factor whose sign no rule shows multiplies a curved term", remedy
    convex = "a convex non-decreasing function of a convex one, or a convex function of an affine one"
    return "CVXPY's rules do not prove it", f"compose as the rules ask: {convex}"


def check_magnitudes(form: LossForm) -> None:
    """Raise if squares of coefficients, of records' bounds or of parameters' bounds overflow or underflow."""
    extent = abs_ends(form.bases.lower, form.bases.upper)[1]
    for k, base in enumerate(form.bases.bases):
        bounds = np.append(extent[form.bases.owner == k], base.norm)
        check_sizes(bounds, LEAST, MOST, f"the field {base.name} has bounds", base.name)
    for leaf, polynomial in {leaf: form.polynomial(leaf) for leaf in form.every_leaf}.items():
        coefficients = np.abs(polynomial.coefficient)
        monomials = np.append(extent, 1.0)[polynomial.monomial].prod(axis=1)
        for products in (monomials, coefficients * monomials):
            check_sizes(products, LEAST**2, MOST**2, "an expression has products of fields", leaf)
        check_sizes(coefficients, LEAST, MOST, "an expression has coefficients", leaf)
    assert form.sizes.size
    bounds = np.abs(np.concatenate([form.feasible.lower, form.feasible.upper]))
    check_sizes(bounds[np.isfinite(bounds)], 0.0, WIDEST, "the parameters have bounds", form.feasible.describe())


def check_sizes(sizes: np.ndarray, least: float, most: float, what: str, where: Expression | str) -> None:
    """Raise if a nonzero size is not between `least` and `most`, or is NaN."""
    sizes = sizes[sizes != 0]
    outside = sizes[~((sizes >= least) & (sizes <= most))]
    if len(outside):
        raise NotPrivate(f"{what} of size {outside[0]:.3g}, too far from 1 for double precision", where, REMEDY)


def check_steepness(sizes: Sequence[float], loss: Expression) -> None:
    """Raise if a slope or a curvature exceeds STEEPEST, or is NaN."""
    if not all(size <= STEEPEST for size in sizes):
        raise NotPrivate("the loss is so steep that its constants overflow", loss, "scale the loss or the fields down")


REARRANGEMENTS = {RESHAPE, TRANSPOSE, INDEX, CONCATENATE, MAX}  # Atoms that change shapes without sums


def longest_sums(losses: Iterable[Expression]) -> tuple[int, int]:
    """Return the largest number of terms in an entry of a matrix product, and in any other sum of values or of slopes."""
    nodes = postorder(list(losses))
    products = max((node.args[0].shape[-1] for node in nodes if node.atom is MATMUL), default=0)
    # The slope of a node is a sum over all places that use the node.
    uses = Counter(argument for node in nodes for argument in node.args if argument.variables)
    return products, max([*map(terms, nodes), *uses.values()], default=0)


def terms(node: Expression) -> int:
    """Return the number of terms that an expression adds up; all entries of an argument if nothing is known."""
    if node.atom is None or node.atom in REARRANGEMENTS:
        return 0
    if node.atom is ADD:
        return len(node.args)
    if node.atom is BROADCAST:  # of its slopes
        return node.size // max(node.args[0].size, 1) if node.variables else 0
    if node.atom is MATMUL:  # of its slopes
        return max(node.shape, default=0)
    if node.atom is SELECT:
        return max(Counter(node.option("places")).values(), default=0) if node.variables else 0
    entrywise = all(argument.shape == node.shape for argument in node.args)
    return 0 if entrywise else max(argument.size for argument in node.args)
