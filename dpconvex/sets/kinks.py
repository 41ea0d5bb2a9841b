"""Nonsmooth terms of a regularizer: proximal maps that combine with K, or an epigraph with heights as further variables."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.errors import DPConvexError
from dpconvex.expressions.atoms.arrangement import reshape
from dpconvex.expressions.atoms.matrices import LOG_DET, NORM_NUC
from dpconvex.expressions.atoms.norms import NORM
from dpconvex.expressions.atoms.powers import ABS
from dpconvex.expressions.discipline import is_concave, is_convex
from dpconvex.expressions.evaluate import evaluations
from dpconvex.expressions.expression import Constraint, Expression, Variable, postorder
from dpconvex.expressions.parameter_space import Space
from dpconvex.numerics import EPSILON
from dpconvex.sets.atom_domains import has_kinks
from dpconvex.sets.closed_forms import euclidean_ball, plain_matrix
from dpconvex.sets.feasible_set import FeasibleSet
from dpconvex.sets.projections import IntervalSet, Spectral, as_matrix
from dpconvex.sets.quadratics import Parts, affine_map, groups, is_euclidean, linear_parts, weighted_sum
from dpconvex.sets.region import Region
from dpconvex.util.arrays import Array, Indices
from dpconvex.util.runtime import once


@dataclass(frozen=True, eq=False)
class Groups:
    """The function ``sum_k weights_k ||theta[k-th group]||``; `labels` has the group of each coordinate in `support`."""

    support: Indices
    labels: Indices
    weights: Array

    @property
    def singles(self) -> bool:
        return len(self.weights) == len(self.support)

    def _lengths(self, theta: Array) -> Array:
        return np.sqrt(np.bincount(self.labels, theta[self.support] ** 2, minlength=len(self.weights)))

    def value(self, theta: Array) -> float:
        return float(self.weights @ self._lengths(theta))

    def proximal(self, theta: Array, step: Any) -> Array:
        point, length, steps = theta.copy(), self._lengths(theta), np.empty(len(self.weights))
        steps[self.labels] = np.broadcast_to(step, theta.shape)[self.support]
        share = np.maximum(length - steps * self.weights, 0.0) / np.where(length > 0, length, 1.0)
        point[self.support] *= share[self.labels]
        return point

    def error(self, norm: float, step: float) -> float:
        terms = int(np.bincount(self.labels).max()) + 25
        return 8.0 * terms * EPSILON * (norm + step * float(np.linalg.norm(self.weights)))


@dataclass(frozen=True, eq=False)
class Nuclear:
    """A weight times the nuclear norm of ``X - shift``; X has one coordinate per entry, or is symmetric (its svec)."""

    support: Indices
    weight: float
    shift: Array
    is_symmetric: bool

    def value(self, theta: Array) -> float:
        matrix = as_matrix(theta[self.support], self.shift.shape, self.is_symmetric) - self.shift
        return self.weight * float(np.linalg.norm(matrix, "nuc"))

    def _ball(self, step: float) -> Spectral:
        ends = np.full(min(self.shift.shape), step * self.weight)
        return Spectral(self.support, self.shift, IntervalSet(np.arange(len(ends)), -ends, ends), self.is_symmetric)

    def proximal(self, theta: Array, step: Any) -> Array:
        # J.-J. Moreau, Bull. Soc. Math. France 1965
        point, ball = theta.copy(), self._ball(np.broadcast_to(step, theta.shape)[self.support[0]])
        point[self.support] += ball.center - ball.project(theta[self.support])
        return point

    def error(self, norm: float, step: float) -> float:
        count, size = self._ball(step).rounding
        return (count + 8) * EPSILON * (norm + size + float(np.linalg.norm(self.shift)))


Term = Groups | Nuclear


@dataclass(frozen=True, eq=False)
class Epigraph:
    """Heights above the entries of some terms, with linear costs in place of the terms."""

    entries: tuple[Expression, ...]  # The terms, with convex entries
    weights: Array  # shape (J,): costs of the heights
    region: Region  # K with terms <= heights; the heights are its last J coordinates

    @cached_property
    def inside(self) -> Array:
        """Return a point strictly inside K at which all terms have gradients."""
        return np.asarray(self.region.inside[: -len(self.weights)], dtype=float)

    @cached_property
    def room(self) -> float:
        """Return the cost of the heights minus the value of the terms at the point inside."""
        return float(self.weights @ self.region.inside[-len(self.weights) :].astype(float)) - self.value(self.inside)

    def heights(self, theta: Array) -> Array:
        leaves = self.region.space.leaves(np.concatenate([theta, np.zeros(len(self.weights))]))
        found = evaluations(self.entries, leaves)
        return np.concatenate([found[entry][0].reshape(-1, order="F") for entry in self.entries])

    def value(self, theta: Array) -> float:
        return float(self.weights @ self.heights(theta))


@dataclass(frozen=True, eq=False)
class Kinks:
    """Nonsmooth terms: with proximal maps that combine with K, on disjoint coordinates, or all in one epigraph."""

    terms: tuple[Term, ...] = ()
    epigraph: Epigraph | None = None

    def __bool__(self) -> bool:
        return bool(self.terms) or self.epigraph is not None

    def value(self, theta: Array) -> float:
        start = 0.0 if self.epigraph is None else self.epigraph.value(theta)
        return start + sum(term.value(theta) for term in self.terms)

    def proximal(self, theta: Array, step: Any) -> Array:
        """Return the minimiser x of ``value(x) + ||x - theta||^2 / (2 step)``; its projection on K is the minimiser over K.

        `step` may have an entry for each coordinate, equal within a group or a matrix.
        """
        for term in self.terms:
            theta = term.proximal(theta, step)
        return theta

    def error(self, norm: float, step: float) -> float:
        """Return a bound on the rounding error of `proximal` at a point of the given norm."""
        return 4 * EPSILON * norm + sum(term.error(norm, step) for term in self.terms)


@once
def split_kinks(feasible: FeasibleSet, regularizer: Expression) -> tuple[Expression, Kinks]:
    """Return the smooth part of a regularizer and its nonsmooth terms, with proximal maps or as an epigraph."""
    if not is_convex(regularizer):
        return regularizer, Kinks()
    parts = linear_parts(regularizer)
    terms, left = proximal_terms(parts, feasible)
    if any(is_rough(part, feasible) for part in left):
        rough = {part: row for part, row in parts.items() if is_rough(part, feasible)}
        heights = epigraph(rough, feasible)
        if heights is not None:
            rest = {part: row for part, row in parts.items() if part not in rough}
            return weighted_sum(rest), Kinks(epigraph=heights)
    return (weighted_sum(left) if terms else regularizer), Kinks(tuple(terms))


def proximal_terms(parts: Parts, feasible: FeasibleSet) -> tuple[list[Term], Parts]:
    """Return terms with proximal maps that combine with K (Y.-L. Yu, NIPS 2013, theorem 4), and the remaining parts."""
    left: Parts = {}
    found: list[Term] = []
    weights, taken = np.zeros(feasible.space.dim), np.zeros(feasible.space.dim, dtype=bool)
    for part, row in sorted(parts.items(), key=lambda pair: pair[0].atom is not ABS):
        term = term_of(part, row.toarray()[0], feasible.space) if feasible.has_projection else None
        if term is None or not combines(term, feasible) or taken[term.support].any():
            left[part] = row
        elif isinstance(term, Groups) and term.singles:
            np.add.at(weights, term.support, term.weights)
        elif isinstance(term, Nuclear) and weights[term.support].any():
            left[part] = row
        else:
            taken[term.support] = True
            found.append(term)
    used = np.flatnonzero(weights)
    singles = [Groups(used, np.arange(len(used)), weights[used])] if len(used) else []
    return [*singles, *found], left


def combines(term: Term, feasible: FeasibleSet) -> bool:
    """Return whether projection on K after the proximal map solves the joint problem: K is free or separable there."""
    near = [piece for piece in feasible.pieces if np.isin(piece.coordinates, term.support).any()]
    singles = isinstance(term, Groups) and term.singles
    return not near or (singles and all(isinstance(piece, IntervalSet) for piece in near))


def term_of(part: Expression, weights: Array, space: Space) -> Term | None:
    """Return weighted entries of an atom as a term with a proximal map; None if there is none."""
    if not (part.atom in (ABS, NORM_NUC) or is_euclidean(part)) or (weights < 0).any():
        return None
    inner = part.args[0]
    if not inner.is_affine or inner.is_constant:
        return None
    matrix, offset = affine_map(inner, space)
    if part.atom is NORM_NUC:
        plain = plain_matrix((matrix, offset), inner.shape)
        return None if plain is None else Nuclear(plain[0], float(weights[0]) * abs(plain[1]), *plain[2:])
    if offset.any():
        return None
    if part.atom is ABS:
        matrix = sp.csr_array(matrix[weights > 0])
        if not (np.diff(matrix.indptr) == 1).all():
            return None
        slopes = weights[weights > 0] * np.abs(matrix.data)
        return Groups(matrix.indices.astype(np.int64), np.arange(len(slopes)), slopes)
    kept = np.flatnonzero(weights)
    balls = [euclidean_ball(sp.csr_array(matrix[groups(part) == k]), 1.0, offset[groups(part) == k]) for k in kept]
    found = [one for one in balls if one is not None]
    support = np.concatenate([np.zeros(0, dtype=np.int64), *(one.coordinates for one in found)])
    if not found or len(found) < len(balls) or len(set(support.tolist())) < len(support):
        return None
    labels = np.repeat(np.arange(len(found)), [len(one.coordinates) for one in found])
    return Groups(support, labels, weights[kept] / np.array([one.radius for one in found]))


def is_rough(part: Expression, feasible: FeasibleSet) -> bool:
    """Return whether a term has kinks, or unbounded curvature at an end of its domain that K may reach."""
    if part.is_affine:
        return False
    if part.atom is NORM or has_kinks(part):
        return True
    if part.atom is LOG_DET:
        return not feasible.least_eigenvalue(part.args[0]) > 0
    steep = part.atom is not None and part.atom.steep(part)
    return steep and not all(feasible.least_entry(argument) > 0 for argument in part.args)


def is_reached(part: Expression) -> bool:
    """Return whether linearisations reach full accuracy: a term is piecewise linear, or only its outermost atom has kinks."""
    # A p-norm with p below 2 bends without bound on every axis.
    if part.atom is NORM_NUC or (part.atom is NORM and part.option("p") < 2):
        return False
    inner = [node for node in postorder(part.args) if not node.is_affine]
    kinked = any(node.atom is NORM or has_kinks(node) for node in inner)
    atoms = [node.atom for node in (*inner, part) if node.atom is not None]
    return not kinked or all(atom.affine == "linear" or atom.kinks == "polyhedral" for atom in atoms)


def epigraph(parts: Parts, feasible: FeasibleSet) -> Epigraph | None:
    """Return an epigraph of weighted entries of terms; None if a term is not convex, or the resulting set fails its check."""
    terms, costs = [], []
    for part, row in parts.items():
        weights = row.toarray()[0]
        if is_concave(part) and not is_convex(part):
            part, weights = -part, -weights
        if not is_convex(part) or (weights < 0).any() or not is_reached(part):
            return None
        kept = np.flatnonzero(weights)
        terms.append(part if len(kept) == part.size else reshape(part, (part.size,))[kept])
        costs.append(weights[kept])
    ends = np.cumsum([0, *map(len, costs)])
    heights = Variable.of((int(ends[-1]),), "heights of the regularizer", -1)
    below = [
        Constraint("inequality", (term, reshape(heights[start:stop], term.shape)))
        for term, start, stop in zip(terms, ends, ends[1:], strict=False)
    ]
    variables = [block.variable for block in feasible.space.blocks.values()]
    region = Region(Space([*variables, heights]), (*feasible.constraints, *below))
    try:
        region.check()
    except DPConvexError:
        return None
    return Epigraph(tuple(terms), np.concatenate(costs), region)
