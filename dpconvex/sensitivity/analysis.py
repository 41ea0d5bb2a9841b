"""`Analysis`: all proved bounds on a template's losses, for one record of the domain; no privacy parameter enters."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from dpconvex.certificates.derivation import Derivation
from dpconvex.errors import DPConvexError, MissingRule, NotPrivate
from dpconvex.expressions.abstract_values import AbstractValue, NonsmoothPoint
from dpconvex.expressions.expression import Expression
from dpconvex.model.privacy import ONE_ROW, Person
from dpconvex.numerics import SUM_SLACK, Ends, float_down, norm_up
from dpconvex.sensitivity.curvature import Curvature, Joint, MeanJoint, curvature_bound, joint_form
from dpconvex.sensitivity.gradient_norms import Gradients
from dpconvex.sensitivity.gram import GradientGram
from dpconvex.sensitivity.interpreter import AbstractInterpreter
from dpconvex.sensitivity.leaf_ranges import leaf_length, leaf_ranges
from dpconvex.sensitivity.loss_form import LossForm, check_magnitudes, check_steepness, nonsmooth_nodes
from dpconvex.sensitivity.regularizer import curvature_of, smallest_eigenvalue
from dpconvex.util.arrays import Array

SAME = 1e-12  # Gradients that differ by less than this fraction of their bound differ by rounding
NEAR = 1e-6  # Bounds that are smaller than the largest by this fraction need not be sharp
TIE = 1e-9  # Values that agree to this fraction tie


@dataclass(frozen=True, eq=False)
class LossBounds:
    """Proved bounds on the loss of one combination of discrete fields."""

    scalar: AbstractValue
    gradients: Gradients
    gradient_bound: float
    dimension: int  # Bounds the dimension of the span of one record's gradients
    curvature: Curvature  # Valid only without a kink
    joint: Joint | None  # Joint bound on gradient and curvature, if the loss has a suitable form
    name: str
    loss: Expression
    walker: AbstractInterpreter

    @cached_property
    def derivation(self) -> Derivation:
        """Return the derivation of the constants, in words; that takes longer than their proof."""
        claims = {"gradient bound": self.gradient_bound}
        if self.scalar.kink is None:
            claims |= {"largest Hessian eigenvalue": self.curvature.eigenvalue, "Hessian trace": self.curvature.trace}
        return Derivation(self.name, str(self.loss), claims, "", (self.walker.derivation(self.loss, set()),))


class Analysis:
    """All constants of a template; `losses` has the bounds for each combination of labels. It is empty if `unbounded` is set."""

    def __init__(self, form: LossForm, unbounded: DPConvexError | None = None) -> None:
        self.form, self.unbounded = form, unbounded
        check_magnitudes(form)
        self.expander, self.bases = form.standard, form.standard.bases
        self.losses: tuple[LossBounds, ...] = ()
        if unbounded is None:
            assert form.rounding  # raises for cancelling terms before bounds are computed
            walker = AbstractInterpreter(self.expander, self.rows, self.reach, self.length)
            self.losses = tuple(self._bounds(walker, k) for k in range(len(form.losses)))

    @property
    def gram(self) -> GradientGram:
        return self.form.gram

    @cached_property
    def rows(self) -> dict[Expression, Array]:
        return dict(zip(self.form.every_leaf, self.gram.rows, strict=True))

    @cached_property
    def rounding(self) -> dict[Expression, Array]:
        """Return bounds on the rounding errors of leaf entries with cancelling terms."""
        return {leaf: self.expander.rounding(leaf, self.form.reach)[0] for leaf in self.form.every_leaf}

    @cached_property
    def ranges(self) -> dict[Expression, tuple[Ends, Ends]]:
        """Return bounds on the offset c_z of each leaf over the record's domain, and on its entries over the domain and K."""
        form, polynomials = self.form, [self.expander.expand(leaf) for leaf in self.form.every_leaf]
        # At kinks no curvature bounds the effect of rounding on slopes, and steps may end where two pieces tie.
        blurred = bool(nonsmooth_nodes(form.losses))
        rounding = np.concatenate([np.zeros(0), *(self.rounding[leaf] for leaf in form.every_leaf)])
        found = leaf_ranges(polynomials, self.gram, form.feasible, self.bases, blurred, rounding)
        return dict(zip(form.every_leaf, found, strict=True))

    def _bounds(self, walker: AbstractInterpreter, k: int) -> LossBounds:
        loss = self.form.losses[k]
        values = ", ".join(f"{name} = {v!r}" for name, v in self.form.template.record.combinations[k].items())
        (scalar,) = walker.walk(loss)
        if scalar.sign < 0 and not scalar.is_affine:
            raise MissingRule("the loss is concave", loss, "minimise a convex loss")
        # Raise before squares of rows overflow.
        sizes = [float(np.abs(term.rows).max(initial=0.0)) for term in scalar.terms]
        check_steepness([*sizes, *(max(piece.outer, piece.spread) for piece in scalar.pieces)], loss)
        gradients = Gradients(scalar.terms, self.gram)
        bound = gradients.bound * (1 + SUM_SLACK)
        rows = [self.rows[leaf] for leaf in self.form.leaves[k]]
        dimension = min(self.gram.row_rank(np.concatenate(rows)) if rows else 0, self.form.noise_dimension)
        curvature = curvature_bound(scalar.pieces, self.gram, dimension)
        check_steepness([bound, curvature.eigenvalue, curvature.trace], loss)
        joint, name = joint_form(scalar, self.gram, dimension), f"loss for {values}" if values else "loss"
        return LossBounds(scalar, gradients, bound, dimension, curvature, joint, name, loss, walker)

    def reach(self, leaf: Expression) -> Ends:
        """Return bounds on the entries of an affine leaf over the record's domain and K."""
        return self.ranges[leaf][1]

    def length(self, leaf: Expression, places: list[int]) -> float:
        """Return a bound on the Euclidean norm of the given entries of an affine leaf over the record's domain and K."""
        part = self.expander.expand(leaf).gathered(np.array(places))
        near = norm_up(self.rounding[leaf][places])
        return leaf_length(part, self.rows[leaf][places], self.gram, self.form.feasible, self.bases) + near

    @cached_property
    def largest_drop(self) -> float:
        """Return a bound on the loss at 0 minus the loss at any point of K, for one record; infinite if none is known."""
        at_zero = AbstractInterpreter(self.expander, self.rows, lambda leaf: self.ranges[leaf][0])
        drop = 0.0
        for loss, bounds in zip(self.form.losses, self.losses, strict=True):
            try:
                (start,) = at_zero.walk(loss)
            except DPConvexError:  # 0 is outside the domain of an atom
                return math.inf
            drop = max(drop, start.value.high - bounds.scalar.value.low)
        return drop * (1 + SUM_SLACK) if self.losses else math.inf

    @cached_property
    def gradient_bound(self) -> float:
        """Return a bound G on the norm of one record's gradient. Raise if there is none, or if it is 0."""
        if self.unbounded is not None:
            raise self.unbounded
        bound = max(loss.gradient_bound for loss in self.losses)
        if bound == 0:
            why = "the loss has slope 0 everywhere, so nothing would be learnt from the data"
            raise NotPrivate(why, self.form.template.losses[0], "check the factors of its terms: one of them is 0")
        return bound

    @cached_property
    def steepest(self) -> LossBounds:
        """Return the first loss with the largest gradient bound, up to rounding."""
        return self.losses[first_largest(np.array([loss.gradient_bound for loss in self.losses]))]

    @cached_property
    def replacement_bound(self) -> float:
        """Return a bound on the distance between two records' gradients at one theta: G_adj for replace-one."""
        bound = 0.0
        longest = sorted((loss.gradients for loss in self.losses), key=lambda g: g.bound, reverse=True)
        for k, first in enumerate(longest):
            for second in longest[k:]:
                apart = first.bound + second.bound
                if apart * (1 + SUM_SLACK) <= bound:
                    break  # all further pairs are shorter
                found = first.difference_bound(second)
                found = found if found < apart * (1 - SAME) else apart
                bound = max(bound, found * (1 + SUM_SLACK))
        if bound <= SAME * self.gradient_bound:
            why = "every record has the same gradient, so nothing would be learnt from the data"
            remedy = "let the loss depend on a field of the record; move terms without a field into the regularizer"
            raise NotPrivate(why, self.form.template.losses[0], remedy)
        return min(bound, 2 * self.gradient_bound)

    def sensitivity(self, adjacency: str, person: Person = ONE_ROW) -> float:
        """Return G_adj, a bound on the change of the gradient of the sum of losses between neighbours, at any one theta."""
        one = self.replacement_bound if adjacency == "replace-one" else self.gradient_bound
        return person.moves(one, self.gradient_bound)

    @cached_property
    def kink(self) -> NonsmoothPoint | None:
        """Return the first nonsmooth point of the losses; None if all gradients are Lipschitz."""
        return next((loss.scalar.kink for loss in self.losses if loss.scalar.kink is not None), None)

    @cached_property
    def hessian_bound(self) -> float:
        """Return a bound on the largest eigenvalue of one record's Hessian."""
        return max(loss.curvature.eigenvalue for loss in self.losses)

    def log_det(self, mu: float, person: Person = ONE_ROW) -> tuple[float, LossBounds]:
        """Return a bound on J = sup log det(I + H/mu) for curvature mu of other terms, and the loss with the largest bound.

        The Hessians of a person's rows add up inside one determinant. It is at most the product of the rows' determinants.
        """
        values = self.log_dets(mu)
        one, where = float(values.max()), self.losses[first_largest(values)]
        if person.rows == 1 or one == 0:
            return one, where
        trace, rank = (max(getattr(loss.curvature, name) for loss in self.losses) for name in ("trace", "rank"))
        rank = min(person.rows * rank, max(self.form.noise_dimension, 1))
        whole = rank * math.log1p(person.weight * trace / (rank * mu)) * (1 + SUM_SLACK)
        return min(person.rows * one, whole), where

    def log_dets(self, mu: float) -> Array:
        """Return bounds on ``sup log det(I + H/mu)`` for each loss, shape (losses,)."""
        known = {curvature: curvature.log_det(mu) for curvature in {loss.curvature for loss in self.losses}}
        found = np.array([known[loss.curvature] for loss in self.losses])
        for k, loss in enumerate(self.losses):
            if isinstance(loss.joint, MeanJoint) and loss.joint.mean.piece.outer:
                found[k] = min(found[k], loss.joint.loss(0.0, mu) * (1 + SUM_SLACK))
        return found

    def strong_convexity(self, size: float, added: float) -> float:
        """Return the modulus mu of ``size * regularizer + (added/2) ||theta||^2``."""
        return float_down(Fraction(size) * Fraction(self.modulus) + Fraction(added))

    def perturbation_cost(self, beta: float, mu: float, adjacency: str, person: Person = ONE_ROW) -> tuple[float, str]:
        """Return a bound on ``sup [beta ||g - g'|| + log det(I + H/mu)]`` over neighbours and theta, and its method in words."""
        if person.rows > 1:  # norms add up, and Hessians inside one determinant
            apart = beta * self.sensitivity(adjacency, person) + self.log_det(mu, person)[0]
            each = person.rows * self.perturbation_cost(beta, mu, adjacency)[0]
            paired = self.sensitivity(adjacency) >= self.gradient_bound  # an unpaired row moves no more than a pair
            if person.weight < person.rows or not paired or apart <= each:
                return apart, "gradients of a person's rows add up, and their curvature inside of one determinant"
            return each, "gradient and curvature maximised jointly, for each of a person's rows"
        apart = beta * self.sensitivity(adjacency) + self.log_det(mu)[0]
        if all(loss.joint is None for loss in self.losses):
            return apart, "gradient and curvature maximised separately"
        other = beta * self.gradient_bound if adjacency == "replace-one" else 0.0
        joint, curved = 0.0, self.log_dets(mu)
        # Only the largest matters: a bound below an earlier one need not be sharp.
        for k in np.argsort([-loss.gradient_bound for loss in self.losses], kind="stable").tolist():
            loss = self.losses[k]
            together = beta * loss.gradient_bound + float(curved[k])
            if loss.joint is not None and together * (1 + SUM_SLACK) + other > joint:
                together = min(together, loss.joint.loss(beta, mu, (1 - NEAR) * (joint - other)))
            joint = max(joint, together * (1 + SUM_SLACK) + other)
        if joint >= apart:
            return apart, "gradient and curvature maximised separately"
        return joint, "gradient and curvature maximised jointly"

    @cached_property
    def regularizer(self) -> tuple[sp.csr_array, Derivation]:
        """Return a constant lower bound M on the Hessian of the regularizer (mean form), and its derivation."""
        return curvature_of(self.form.template.regularizer, self.form.expander, self.form.feasible)

    @cached_property
    def block_moduli(self) -> tuple[float, ...]:
        """Return the strong convexity of the regularizer along each variable, mean form."""
        matrix, blocks = self.regularizer[0], self.form.space.blocks.values()
        return tuple(smallest_eigenvalue(matrix[block.slice][:, block.slice]) for block in blocks)

    @cached_property
    def modulus(self) -> float:
        """Return the strong convexity of the regularizer over the whole space, mean form."""
        return smallest_eigenvalue(self.regularizer[0])


def first_largest(values: Array) -> int:
    """Return the index of the first value that equals the largest up to rounding, so that labels with equal bounds tie."""
    return int(np.argmax(values >= values.max() * (1 - TIE)))
