"""The part of a regularizer that a gradient method must not differentiate, and its proximal map together with K.

A regularizer is a smooth part plus terms with kinks or logarithms at the ends of their domains.  Absolute values of coordinates
(`absolute_values`), norms of groups and nuclear norms on coordinates that have nothing in common (`proximal_terms`) have a
proximal map; everything else becomes a part of K, below heights (`epigraph`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.sums import total
from dpconvex.core.discipline import is_convex, sign
from dpconvex.core.expression import Expression, constant
from dpconvex.core.parameter_space import Space
from dpconvex.geometry.absolute_values import AbsoluteValues, split_absolute, weighted_sum
from dpconvex.geometry.convex_sets import UNIT, ConesInBall, Interval, NormBall, Piece
from dpconvex.geometry.epigraph import Epigraph, epigraph, is_rough
from dpconvex.geometry.feasible_set import FeasibleSet
from dpconvex.geometry.linear_maps import groups, linear_parts
from dpconvex.geometry.proximal_terms import Groups, Term, term_of
from dpconvex.geometry.semidefinite import Spectrum

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Kinks:
    """Terms with a proximal map, together with that of K.

    Attributes
    ----------
    absolute : AbsoluteValues or None
        They come first: with Euclidean norms the proximal map is that of the norms after that of the absolute values, and
        after the projection on cones (Y.-L. Yu, On decomposing the proximal map, NIPS 2013, theorem 4).
    terms : tuple of Term
    cones : tuple of Piece
        Cones at 0 that contain what Euclidean norms are of.
    epigraph : Epigraph or None
        Terms that have no proximal map with K and the others; then it has all kinks, and there is nothing else.
    """

    absolute: AbsoluteValues | None
    terms: tuple[Term, ...] = ()
    cones: tuple[Piece, ...] = ()
    epigraph: Epigraph | None = None

    def value(self, theta: Array) -> float:
        """Evaluate at coordinates, shape (dim,)."""
        start = 0.0 if self.absolute is None else self.absolute.value(theta)
        start += 0.0 if self.epigraph is None else self.epigraph.value(theta)
        return start + sum(term.value(theta) for term in self.terms)

    def proximal(self, theta: Array, step: float) -> Array:
        """Minimise ``value(x) + ||x - theta||^2 / (2 step)`` over x; to project on K afterwards makes it that with K."""
        point = theta.copy() if self.absolute is None else self.absolute.proximal(theta, step)
        for piece in self.cones:
            point[piece.coordinates] = piece.project(point[piece.coordinates])
        for term in self.terms:
            point = term.proximal(point, step)
        return point

    def error(self, norm: float, step: float) -> float:
        """Bound the rounding of `proximal`, from a point of a given norm."""
        cones = sum(piece.largest_error(norm) for piece in self.cones)
        return 4 * UNIT * norm + cones + sum(term.error(norm, step) for term in self.terms)


_SPLITS: WeakKeyDictionary[Space, dict[tuple[Any, ...], tuple[Expression, Kinks | None]]] = WeakKeyDictionary()


def split_kinks(feasible: FeasibleSet, regularizer: Expression) -> tuple[Expression, Kinks | None]:
    """Split a regularizer into the rest and terms that have a proximal map together with K; None if there are no such terms.

    What is smooth on K, such as a logarithm of what K bounds away from zero, stays in the rest.  If other kinks do, all become
    inequalities (`epigraph`).  Done once for each K, also where there are several copies of it.
    """
    known, key = _SPLITS.setdefault(feasible.space, {}), (regularizer, feasible.reason, feasible.declared)
    if key not in known:
        known[key] = split(feasible, regularizer)
    return known[key]


def split(feasible: FeasibleSet, regularizer: Expression) -> tuple[Expression, Kinks | None]:
    rest, kinks = split_proximal(feasible, regularizer)
    if not is_convex(regularizer) or not any(is_rough(part, feasible) for part in unfolded(rest)):
        return rest, kinks
    parts = unfolded(regularizer)
    rough = {part: row for part, row in parts.items() if is_rough(part, feasible)}
    heights = epigraph(rough, feasible)
    if heights is None:
        return rest, kinks
    others = {part: row for part, row in parts.items() if part not in rough}
    return weighted_sum(others), Kinks(None, epigraph=heights)


def split_proximal(feasible: FeasibleSet, regularizer: Expression) -> tuple[Expression, Kinks | None]:
    """Split off terms with a proximal map."""
    if not (is_convex(regularizer) and feasible.has_projection):
        return regularizer, None
    space = feasible.space
    rest, absolute = split_absolute(regularizer, space)
    if absolute is not None and not fits_with(absolute, feasible):
        rest, absolute = regularizer, None
    left: dict[Expression, sp.csr_array] = {}
    terms: list[Term] = []
    cones: list[Piece] = []
    taken = np.zeros(space.dim, dtype=bool)
    for part, row in unfolded(rest).items():
        term = term_of(part, row.toarray()[0], space)
        around = None if term is None or taken[term.support].any() else pieces_for(term, feasible, absolute)
        if term is None or around is None:
            left[part] = row
            continue
        taken[term.support] = True
        terms.append(term)
        cones.extend(around)
    if not terms:
        return (rest, Kinks(absolute)) if absolute is not None else (regularizer, None)
    return weighted_sum(left), Kinks(absolute, tuple(terms), tuple(cones))


def fits_with(absolute: AbsoluteValues, feasible: FeasibleSet) -> bool:
    """Whether to shrink and then to project is a proximal map: there are bounds alone, or balls around a common centre 0."""
    for piece in feasible.pieces:
        shrunk = absolute.weights[piece.coordinates] > 0
        if isinstance(piece, Interval) or not shrunk.any():
            continue
        ball = piece.ball if isinstance(piece, ConesInBall) else piece
        cones = piece.cones if isinstance(piece, ConesInBall) else ()
        if not isinstance(ball, NormBall) or ball.center.any() or absolute.centers[piece.coordinates][shrunk].any():
            return False
        if not all(isinstance(cone, Interval) for cone in cones):
            return False
    return True


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


def pieces_for(term: Term, feasible: FeasibleSet, absolute: AbsoluteValues | None) -> list[Piece] | None:
    """Return the cones to project on first, if the term has a proximal map with K; else None."""
    support = term.support
    inside = set(support.tolist())
    near = [piece for piece in feasible.pieces if inside & set(piece.coordinates.tolist())]
    shrunk = absolute is not None and bool((absolute.weights[support] > 0).any())
    if isinstance(term, Groups):
        centred = absolute is None or not (shrunk and absolute.centers[support].any())
        return cones_at_zero(term, near) if centred else None
    if shrunk or not near:
        return None if shrunk else []
    # Bounds on eigenvalues can be clipped to afterwards.
    (piece, *others) = near
    clips = isinstance(piece, Spectrum) and not others and set(piece.coordinates.tolist()) == inside
    if not clips or not term.is_symmetric or term.shift.any():
        return None
    assert isinstance(piece, Spectrum)
    return [] if (piece.shift == piece.shift[0, 0] * np.eye(len(piece.shift))).all() else None


def cones_at_zero(term: Groups, near: Sequence[Piece]) -> list[Piece] | None:
    """Return cones to project on before vectors are shortened; None if K is no product of cones at 0 and balls around it.

    Where a ball holds, the feasible set projects on it after that.
    """
    found: list[Piece] = []
    rows = term.rows()
    for piece in near:
        here = set(piece.coordinates.tolist())
        if isinstance(piece, Interval):
            kept = np.isin(piece.coordinates, term.support)
            parts: list[Piece] = [Interval(piece.coordinates[kept], piece.text, piece.lower[kept], piece.upper[kept])]
        elif isinstance(piece, NormBall | ConesInBall):
            ball = piece.ball if isinstance(piece, ConesInBall) else piece
            if ball.center.any() or here not in rows:
                return None
            parts = list(piece.cones) if isinstance(piece, ConesInBall) else []
        elif any(here <= row for row in rows):
            parts = [piece]
        else:
            return None
        if not all(part.is_cone_at(np.zeros(len(part.coordinates))) for part in parts):
            return None
        found.extend(parts)
    return found
