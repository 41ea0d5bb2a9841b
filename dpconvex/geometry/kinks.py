"""The part of a regularizer that a gradient method must not differentiate, and its proximal map together with K.

A regularizer is a smooth part plus terms with kinks or logarithms at the ends of their domains.  Absolute values of coordinates
within bounds, norms of groups of free coordinates and nuclear norms of free matrices have a proximal map; everything else
becomes a part of K, below heights (`epigraph`).
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.matrices import NORM_NUC
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.powers import ABS
from dpconvex.core.atoms.sums import total
from dpconvex.core.discipline import is_convex, sign
from dpconvex.core.expression import Expression, constant
from dpconvex.core.parameter_space import Space
from dpconvex.core.runtime import once
from dpconvex.geometry.closed_forms import ball, plain_matrix
from dpconvex.geometry.convex_sets import UNIT, Interval, Spectral, as_matrices, svec
from dpconvex.geometry.epigraph import Epigraph, epigraph, is_rough
from dpconvex.geometry.feasible_set import FeasibleSet
from dpconvex.geometry.linear_maps import affine_map, groups, linear_parts, weighted_sum

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Groups:
    """The function ``sum_k weights_k ||(theta - centers)[k-th group]||``, of groups that have nothing in common.

    Absolute values are groups of one.
    """

    support: Indices  # shape (m,): coordinates in a group
    labels: Indices  # shape (m,): which group each is in
    weights: Array  # shape (k,)
    centers: Array  # shape (m,)

    @property
    def singles(self) -> bool:
        return len(self.weights) == len(self.support)

    def _lengths(self, away: Array) -> Array:
        if self.singles:
            return np.abs(away)
        return np.sqrt(np.bincount(self.labels, away**2, minlength=len(self.weights)))

    def value(self, theta: Array) -> float:
        return float(self.weights @ self._lengths(theta[self.support] - self.centers))

    def proximal(self, theta: Array, step: float) -> Array:
        """Minimise ``value(x) + ||x - theta||^2 / (2 step)`` over x: shorten each group."""
        point, away = theta.copy(), theta[self.support] - self.centers
        length = self._lengths(away)
        share = np.maximum(length - step * self.weights, 0.0) / np.where(length > 0, length, 1.0)
        point[self.support] = self.centers + away * share[self.labels]
        return point

    def error(self, norm: float, step: float) -> float:
        """Bound how far a computed proximal point of coordinates of a norm can be from the exact one."""
        size = norm + float(np.linalg.norm(self.centers)) + step * float(np.linalg.norm(self.weights))
        terms = 0 if self.singles else int(np.bincount(self.labels).max()) + 24
        return 8.0 * (terms + 1) * UNIT * size


@dataclass(frozen=True, eq=False)
class Nuclear:
    """A weight times the sum of the singular values of ``X - shift``, X of one coordinate an entry, or symmetric (its svec)."""

    support: Indices
    weight: float
    shift: Array
    is_symmetric: bool

    def _parts(self, theta: Array) -> tuple[Array, Array, Array]:
        matrix = as_matrices(theta[self.support][None], self.shift.shape, self.is_symmetric)[0] - self.shift
        if self.is_symmetric:
            value, vector = np.linalg.eigh(matrix)
            return vector, value, vector.T
        return np.linalg.svd(matrix, full_matrices=False)

    def value(self, theta: Array) -> float:
        return self.weight * float(np.abs(self._parts(theta)[1]).sum())

    def proximal(self, theta: Array, step: float) -> Array:
        """Shrink the spectrum."""
        left, value, right = self._parts(theta)
        matrix = self.shift + (left * (np.sign(value) * np.maximum(np.abs(value) - step * self.weight, 0.0))) @ right
        point = theta.copy()
        point[self.support] = svec(matrix) if self.is_symmetric else matrix.reshape(-1, order="F")
        return point

    def error(self, norm: float, step: float) -> float:
        side = max(self.shift.shape)
        size = norm + 2 * float(np.linalg.norm(self.shift)) + step * self.weight * float(np.sqrt(side))
        return 8.0 * (side + 24) * UNIT * size


Term = Groups | Nuclear


@dataclass(frozen=True, eq=False)
class Kinks:
    """Terms with a proximal map, together with that of K, on coordinates of their own; or else all kinks as an epigraph."""

    terms: tuple[Term, ...] = ()
    epigraph: Epigraph | None = None

    def value(self, theta: Array) -> float:
        """Evaluate at coordinates, shape (dim,)."""
        start = 0.0 if self.epigraph is None else self.epigraph.value(theta)
        return start + sum(term.value(theta) for term in self.terms)

    def proximal(self, theta: Array, step: float) -> Array:
        """Minimise ``value(x) + ||x - theta||^2 / (2 step)`` over x; to project on K afterwards makes it that with K."""
        for term in self.terms:
            theta = term.proximal(theta, step)
        return theta

    def error(self, norm: float, step: float) -> float:
        """Bound the rounding of `proximal`, from a point of a given norm."""
        return 4 * UNIT * norm + sum(term.error(norm, step) for term in self.terms)


@once
def split_kinks(feasible: FeasibleSet, regularizer: Expression) -> tuple[Expression, Kinks | None]:
    """Split a regularizer into the rest and terms that have a proximal map together with K; None if there are no such terms.

    What is smooth on K, such as a logarithm of what K bounds away from zero, stays in the rest.  If other kinks do, all become
    inequalities (`epigraph`).
    """
    if not is_convex(regularizer):
        return regularizer, None
    parts = unfolded(regularizer)
    terms, left = proximal_terms(parts, feasible)
    if any(is_rough(part, feasible) for part in left):
        rough = {part: row for part, row in parts.items() if is_rough(part, feasible)}
        heights = epigraph(rough, feasible)
        if heights is not None:
            others = {part: row for part, row in parts.items() if part not in rough}
            return weighted_sum(others), Kinks(epigraph=heights)
    return (weighted_sum(left), Kinks(tuple(terms))) if terms else (regularizer, None)


def unfolded(regularizer: Expression) -> dict[Expression, sp.csr_array]:
    """Take a sum apart as `linear_parts` does; also sums that are written as 1-norms of what is not negative."""
    found: dict[Expression, sp.csr_array] = {}
    for part, row in linear_parts(regularizer).items():
        parts = {part: row}
        if part.atom is NORM and part.option("p") == 1 and not part.args[0].is_affine and sign(part.args[0]) == 1:
            inner = part.args[0]
            weights = row.toarray()[0][groups(part)].reshape(inner.shape, order="F")
            parts = unfolded(total(constant(weights) * inner))
        for key, own in parts.items():
            found[key] = found[key] + own if key in found else own
    return found


def proximal_terms(
    parts: dict[Expression, sp.csr_array], feasible: FeasibleSet
) -> tuple[list[Term], dict[Expression, sp.csr_array]]:
    """Return terms with a proximal map together with K, and what is left.

    On one coordinate absolute values from one center add up.  Norms of groups come after absolute values with center 0 (Y.-L. Yu,
    "On decomposing the proximal map", NIPS 2013, theorem 4).
    """
    left: dict[Expression, sp.csr_array] = {}
    found: list[Term] = []
    weights, centers = np.zeros(feasible.space.dim), np.full(feasible.space.dim, np.nan)
    taken = np.zeros(feasible.space.dim, dtype=bool)
    for part, row in sorted(parts.items(), key=lambda pair: not is_absolute(pair[0])):
        term = term_of(part, row.toarray()[0], feasible.space) if feasible.has_projection else None
        if term is None or not fits(term, feasible):
            left[part] = row
        elif isinstance(term, Groups) and term.singles:
            old, together = centers[term.support], centers.copy()
            together[term.support] = term.centers
            if (together[term.support] == term.centers).all() and (np.isnan(old) | (old == term.centers)).all():
                np.add.at(weights, term.support, term.weights)
                centers = together
            else:
                left[part] = row
        else:
            here, moved = term.support, np.nan_to_num(centers[term.support]).any()
            if taken[here].any() or (weights[here].any() and (isinstance(term, Nuclear) or moved)):
                left[part] = row
            else:
                taken[here] = True
                found.append(term)
    used = np.flatnonzero(weights)
    absolute = [Groups(used, np.arange(len(used)), weights[used], centers[used])] if len(used) else []
    return [*absolute, *found], left


def is_absolute(part: Expression) -> bool:
    return part.atom is ABS or (part.atom is NORM and part.option("p") == 1)


def fits(term: Term, feasible: FeasibleSet) -> bool:
    """Whether to project on K after a term's proximal map is that of both: problems in one variable each, or K is free there."""
    inside = set(term.support.tolist())
    near = [piece for piece in feasible.pieces if inside & set(piece.coordinates.tolist())]
    if not near or isinstance(term, Groups):
        return all(isinstance(piece, Interval) and isinstance(term, Groups) and term.singles for piece in near)
    # Bounds on eigenvalues can be clipped to afterwards.
    (piece, *others) = near
    if others or not isinstance(piece, Spectral) or not isinstance(piece.inner, Interval) or not term.is_symmetric:
        return False
    level = piece.shift[0, 0] * np.eye(len(piece.shift))
    return set(piece.coordinates.tolist()) == inside and not (term.shift.any() or (piece.shift != level).any())


def term_of(part: Expression, weights: Array, space: Space) -> Term | None:
    """Read weighted entries of an atom as a term; None if it has no proximal map here."""
    if not (is_absolute(part) or part.atom in (NORM, NORM_NUC)) or (weights < 0).any():
        return None
    inner = part.args[0]
    if not inner.is_affine or inner.is_constant:
        return None
    matrix, offset = affine_map(inner, space)
    if part.atom is NORM_NUC:
        plain = plain_matrix((matrix, offset), inner.shape)
        if plain is None:
            return None
        coordinates, scale, shift, is_symmetric = plain
        return Nuclear(coordinates, float(weights[0]) * abs(scale), shift, is_symmetric)
    if is_absolute(part):
        weights = weights if part.atom is ABS else weights[groups(part)]
        asked = weights > 0
        matrix = sp.csr_array(matrix[asked])
        matrix.eliminate_zeros()
        if not (np.diff(matrix.indptr) == 1).all():
            return None
        slopes = weights[asked] * np.abs(matrix.data)
        return Groups(matrix.indices.astype(np.int64), np.arange(len(slopes)), slopes, -offset[asked] / matrix.data)
    if part.option("p") != 2 or offset.any():
        return None
    kept = np.flatnonzero(weights)
    balls = [ball(sp.csr_array(matrix[groups(part) == k]), 1.0, offset[groups(part) == k]) for k in kept]
    found = [one for one in balls if one is not None]
    support = np.concatenate([np.zeros(0, dtype=np.int64), *(one.coordinates for one in found)])
    if len(found) < len(balls) or len(set(support.tolist())) < len(support):
        return None
    labels = np.repeat(np.arange(len(found)), [len(one.coordinates) for one in found])
    return Groups(support, labels, weights[kept] / np.array([one.radius for one in found]), np.zeros(len(support)))
