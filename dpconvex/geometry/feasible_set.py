"""The closed convex set K: variable attributes and template constraints, as one set with a Euclidean projection.

Constraints are read, not solved: the recognised ones become pieces of `sets` (bounds, balls, spectral bounds, linear
equations and inequalities), pieces on disjoint coordinates form a product, and pieces on shared ones are merged where
the projection on their intersection has a closed form.  Where it has none the set says so, and names the constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.constraint import Constraint
from dpconvex.core.parameter_space import Space
from dpconvex.errors import DPConvexError, NotConverged, TemplateError
from dpconvex.geometry.axis_hull import AxisHull
from dpconvex.geometry.certified_minimum import SquaredDistance, minimum
from dpconvex.geometry.constraints import read_attributes, read_constraint
from dpconvex.geometry.convex_sets import (
    UNIT,
    AffineSubspace,
    ConesInBall,
    Interval,
    NormBall,
    Piece,
    Slab,
    Spectrum,
    Unrecognised,
    clip_spectra,
    close,
    overlap,
)
from dpconvex.geometry.enclosures import coordinate_bounds, corner, enclosures, rows_of
from dpconvex.geometry.linearised import Linearised

__all__ = ["FeasibleSet", "feasible_set"]

Array = NDArray[np.float64]

# Where there is no projection in closed form, points of K that are so near to the nearest one, relatively, serve.
NEAREST = 1e-9


@dataclass(frozen=True, eq=False)
class FeasibleSet:
    """A product of closed convex sets in the coordinates of a `Space`.

    Attributes
    ----------
    space : Space
    pieces : tuple of Piece
        Factors on disjoint coordinates (coordinates without a piece are free), if there is a projection.
    declared : tuple of Piece
        The constraints as they were read, before merging.
    reason : str or None
        Why there is no projection in closed form, or None if there is one.
    constraints : tuple of Constraint
        What it was read from, besides the attributes of the variables.
    """

    space: Space
    pieces: tuple[Piece, ...]
    declared: tuple[Piece, ...]
    reason: str | None
    constraints: tuple[Constraint, ...] = ()

    @property
    def is_space(self) -> bool:
        """Whether K is the whole space."""
        return not self.declared

    @property
    def has_projection(self) -> bool:
        """Whether `project` is available; `reason` tells why not."""
        return self.reason is None

    @cached_property
    def linearised(self) -> Linearised:
        """The set as inequalities, for the certificates and answers of sets without a projection in closed form.

        Raises
        ------
        MissingRule
            If a constraint has no linearisations.
        """
        return Linearised(self.space, self.constraints)

    @cached_property
    def obstacle(self) -> str | None:
        """Why neither a projection nor certificates from duals are to be had; None if one of them is."""
        if self.reason is None:
            return None
        try:
            self.linearised.check()
        except DPConvexError as error:
            return f"{self.reason}. Nor can it be handled by its inequalities: {error}"
        return None

    def bounds_only(self, coordinates: NDArray[np.bool_]) -> bool:
        """Whether nothing but bounds holds for some coordinates, so that to shrink these and to project is a proximal map."""
        simple = all(isinstance(piece, Interval) or not coordinates[piece.coordinates].any() for piece in self.pieces)
        return simple and self.has_projection

    @cached_property
    def lower(self) -> Array:
        """Bound below for each coordinate, shape (dim,), possibly minus infinity."""
        return self._bounds[0]

    @cached_property
    def upper(self) -> Array:
        """Bound above for each coordinate, shape (dim,), possibly infinite."""
        return self._bounds[1]

    @cached_property
    def _bounds(self) -> tuple[Array, Array]:
        return coordinate_bounds(self._known, self.space.dim)

    @cached_property
    def radius(self) -> dict[str, float]:
        """Bound on the Frobenius norm of each variable over K, for the variables that have one."""
        found = {name: self.norm_on(np.arange(b.start, b.start + b.dim)) for name, b in self.space.blocks.items()}
        return {name: bound for name, bound in found.items() if np.isfinite(bound)}

    @cached_property
    def norm_bound(self) -> float:
        """Bound on ``||theta||`` over K, possibly infinite."""
        return self.norm_on(np.arange(self.space.dim))

    @cached_property
    def _known(self) -> tuple[Piece, ...]:
        """Everything that bounds K: together, declarations can bound what none does alone."""
        return (*self.pieces, *self.declared, *enclosures(self.declared, self.space.dim))

    @cached_property
    def hulls(self) -> tuple[AxisHull, ...]:
        """Simplices and l1 balls that contain K, on some coordinates each."""
        return tuple(piece for piece in self._known if isinstance(piece, AxisHull))

    @property
    def bounded(self) -> bool:
        """Whether K is known to be bounded."""
        return bool(np.isfinite(self.norm_bound))

    @cached_property
    def limited(self) -> NDArray[np.bool_]:
        """Which coordinates are bounded, by themselves or as a part of something, shape (dim,)."""
        result = np.isfinite(self.lower) & np.isfinite(self.upper)
        for piece in self._known:
            if np.isfinite(piece.norm_bound()):
                result[piece.coordinates] = True
        return result

    def norm_on(self, coordinates: NDArray[np.int64]) -> float:
        """Bound on the norm of some coordinates over K, possibly infinite."""
        if not self.limited[coordinates].all():
            return float(np.inf)
        box = float(np.linalg.norm(np.maximum(np.abs(self.lower[coordinates]), np.abs(self.upper[coordinates]))))
        wanted = set(coordinates.tolist())
        covering = [p.norm_bound() for p in self._known if wanted <= set(p.coordinates.tolist())]
        # Disjoint pieces inside the coordinates bound their shares of the norm; the box bounds what they leave over.
        inside = [p for p in self._known if set(p.coordinates.tolist()) <= wanted and np.isfinite(p.norm_bound())]
        square, left = 0.0, set(wanted)
        for piece in sorted(inside, key=lambda p: p.norm_bound() / max(len(p.coordinates), 1)):
            if set(piece.coordinates.tolist()) <= left:
                square += piece.norm_bound() ** 2
                left -= set(piece.coordinates.tolist())
        rest = np.array(sorted(left), dtype=np.int64)
        square += float(np.sum(np.maximum(np.abs(self.lower[rest]), np.abs(self.upper[rest])) ** 2))
        return float(min([box, np.sqrt(square), *covering]))

    @cached_property
    def centers(self) -> tuple[Array, ...]:
        """Points other than 0 that K may be bounded about, shape (dim,) each: the middles of bounds, and of balls."""
        finite = np.isfinite(self.lower), np.isfinite(self.upper)
        ends = [np.where(known, bound, 0.0) for known, bound in zip(finite, (self.lower, self.upper), strict=True)]
        middle = (ends[0] + ends[1]) / np.maximum(finite[0].astype(float) + finite[1], 1.0)
        pieces = middle.copy()
        for piece in self._known:
            center = piece.center_point()
            if center is not None:
                pieces[piece.coordinates] = center
        found = [middle] if np.array_equal(middle, pieces) else [middle, pieces]
        return tuple(point for point in found if point.any() and np.isfinite(point).all())

    def reach_on(self, coordinates: NDArray[np.int64], center: Array) -> float:
        """Bound on the distance of some coordinates from those of a point, shape (dim,), over K; possibly infinite.

        Parameters
        ----------
        coordinates : ndarray of int
        center : ndarray, shape (dim,)
        """
        distance = np.maximum(np.abs(self.lower - center), np.abs(self.upper - center))
        square, left = 0.0, set(coordinates.tolist())
        best = float(np.linalg.norm(distance[coordinates]))
        reaches = [(p.distance_bound(center[p.coordinates]), set(p.coordinates.tolist())) for p in self._known]
        # Disjoint pieces inside the coordinates bound their shares of the distance; the box bounds what they leave over.
        for reach, here in sorted(reaches, key=lambda pair: pair[0] / max(len(pair[1]), 1)):
            if left and set(coordinates.tolist()) <= here:
                best = min(best, reach)
            elif here and here <= left and np.isfinite(reach):
                square, left = square + reach**2, left - here
        rest = np.array(sorted(left), dtype=np.int64)
        square += float(np.sum(distance[rest] ** 2))
        # The distance is rounded, and so is the center.
        return min(best, float(np.sqrt(square))) * (1 + 1e-14) + 8 * UNIT * float(np.linalg.norm(center[coordinates]))

    def project(self, theta: Array) -> Array:
        """Euclidean projection of coordinates, shape (dim,) to (dim,); without a closed form, a point of K near it.

        Raises
        ------
        NotConverged
            If the set is not known well enough for either.
        """
        if self.obstacle is not None:
            raise NotConverged(self.obstacle)
        if self.reason is not None:
            point = np.array(theta, dtype=float)
            near = NEAREST * (1 + float(np.linalg.norm(point)))
            return minimum(SquaredDistance(point), self.linearised, point, near).point
        y = np.array(theta, dtype=float)
        for coordinates, shift, lower, upper in self._spectra:
            y[coordinates] = clip_spectra(y[coordinates], shift, lower, upper)
        for piece in self._others:
            y[piece.coordinates] = piece.project(y[piece.coordinates])
        return y

    def error(self, theta: Array) -> float:
        """Bound on the distance between the computed and the exact projection of `theta`, from rounding."""
        return float(np.linalg.norm([piece.error(theta[piece.coordinates]) for piece in self.pieces]))

    @cached_property
    def _spectra(self) -> list[tuple[NDArray[np.int64], Array, Array, Array]]:
        """Spectral pieces of equal side, stacked: one call of the eigensolver serves all."""
        sides: dict[int, list[Spectrum]] = {}
        for piece in self.pieces:
            if isinstance(piece, Spectrum):
                sides.setdefault(len(piece.shift), []).append(piece)
        return [
            (
                np.stack([p.coordinates for p in group]),
                np.stack([p.shift for p in group]),
                np.array([p.lower for p in group]),
                np.array([p.upper for p in group]),
            )
            for group in sides.values()
        ]

    @cached_property
    def _others(self) -> list[Piece]:
        return [piece for piece in self.pieces if not isinstance(piece, Spectrum)]

    def describe(self) -> str:
        """Say what K is, in a line for each declared constraint.

        >>> from dpconvex.core.expression import Variable, constant
        >>> x = Variable.of((2,), "x", 1, {"nonneg": True})
        >>> print(feasible_set(Space([x]), [Constraint("inequality", (x[0], constant(3.0)))]).describe())
        x >= 0
        x[0] <= 3
        """
        if self.is_space:
            return "all of space"
        lines = list(dict.fromkeys(piece.text for piece in self.declared))
        return "\n".join(lines if self.reason is None else [*lines, f"(no projection: {self.reason})"])


def feasible_set(space: Space, constraints: Sequence[Constraint] = ()) -> FeasibleSet:
    """Read the set K from the attributes of the variables and the constraints of a template.

    Recognised are ``X >> C`` and ``X << C`` for a symmetric variable or a principal submatrix of one, coordinatewise
    bounds (also through ``abs``, ``max``, ``min`` and the infinity norm), Euclidean and l1 balls, linear equations and
    inequalities.  Strict attributes (``pos``, ``neg``) mean their closure.  Where a constraint is not recognised, or those on the
    same coordinates have no closed-form projection together, `has_projection` is False.

    Raises
    ------
    TemplateError
        If a constraint is not convex, mentions a field or a foreign variable, or contradicts another one.
    """
    declared = [piece for block in space.blocks.values() for piece in read_attributes(block)]
    for constraint in constraints:
        declared.extend(read_constraint(constraint, space))
    declared = [piece for piece in declared if len(piece.coordinates)]
    pieces: list[Piece] = []
    reasons: list[str] = []
    for group in overlap(with_simplices(declared, space.dim)):
        merged = merge(group)
        if merged is None:
            reasons.append(clash(group))
        else:
            pieces.append(merged)
    reason = "; ".join(reasons) if reasons else None
    return FeasibleSet(space, tuple(pieces) if reason is None else (), tuple(declared), reason, tuple(constraints))


def with_simplices(declared: Sequence[Piece], dim: int) -> list[Piece]:
    """Join bounds with a linear constraint or an l1 ball to a simplex where nothing else holds for their coordinates."""
    bounds = [piece for piece in declared if isinstance(piece, Interval)]
    others = [piece for piece in declared if not isinstance(piece, Interval)]
    limits = coordinate_bounds(bounds, dim)
    used = np.bincount(np.concatenate([np.zeros(0, dtype=np.int64), *(p.coordinates for p in others)]), minlength=dim)
    taken = np.zeros(dim, dtype=bool)
    pieces: list[Piece] = []
    for piece in others:
        alone = not taken[piece.coordinates].any() and (used[piece.coordinates] == 1).all()
        hull = simplex(piece, *limits) if alone else None
        if hull is not None:
            taken[piece.coordinates] = True
        pieces.append(hull or piece)
    for piece in bounds:
        left = ~taken[piece.coordinates]
        pieces.append(Interval(piece.coordinates[left], piece.text, piece.lower[left], piece.upper[left]))
    return [piece for piece in pieces if len(piece.coordinates)]


def simplex(piece: Piece, lower: Array, upper: Array) -> AxisHull | None:
    """Return the intersection of a piece with the bounds of its coordinates if that is a simplex with a projection."""
    here = lower[piece.coordinates], upper[piece.coordinates]
    if isinstance(piece, AxisHull):
        ends = [
            np.where(close(bound, piece.anchor), 0.0, end)
            for bound, end in zip(here, (piece.low, piece.high), strict=True)
        ]
        hulls = [replace(piece, low=ends[0], high=ends[1])]
    else:
        rows = list(rows_of([piece])) if isinstance(piece, Slab | AffineSubspace) else []
        if len(rows) != (2 if isinstance(piece, AffineSubspace) else 1):
            return None
        cuts = [corner(row, lower, upper, rounded=False) for row in rows]
        hulls = [cut for cut in cuts if isinstance(cut, AxisHull) and len(cut.coordinates) == len(piece.coordinates)]
    for hull in hulls:
        low, high = hull.ends
        inside = (low >= here[0]) | close(low, here[0]), (high <= here[1]) | close(high, here[1])
        if hull.can_project and inside[0].all() and inside[1].all():
            return hull
    return None


def clash(group: Sequence[Piece]) -> str:
    """Say which constraints have no projection, and what to do."""
    unknown = [piece.text for piece in group if isinstance(piece, Unrecognised)]
    if unknown:
        return (
            f"the constraint {unknown[0]} is not of a form that can be projected on; write it as bounds, a Euclidean "
            "ball, a linear (in)equality or a semidefinite bound"
        )
    texts = " and ".join(dict.fromkeys(piece.text for piece in group))
    return (
        f"there is no closed-form projection on the intersection of {texts}; drop one of them, put them on different "
        "coordinates, or centre the ball at the apex of the cones"
    )


def merge(group: Sequence[Piece]) -> Piece | None:
    """Return the intersection of pieces that share coordinates as one piece, or None if it has no known projection."""
    if any(isinstance(piece, Unrecognised) for piece in group):
        return None
    pieces: list[Piece] = []
    for piece in group:
        for index, other in enumerate(pieces):
            both = intersect(other, piece)
            if both is not None:
                pieces[index] = both
                break
        else:
            pieces.append(piece)
    if len(pieces) == 1:
        return pieces[0]
    balls = [p for p in pieces if isinstance(p, NormBall)]
    cones = [p for p in pieces if not isinstance(p, NormBall)]
    if len(balls) != 1 or any(len(cluster) > 1 for cluster in overlap(cones)):
        return None
    ball = balls[0]
    center = dict(zip(ball.coordinates.tolist(), ball.center.tolist(), strict=True))
    for cone in cones:
        here = cone.coordinates.tolist()
        if not set(here) <= set(center) or not cone.is_cone_at(np.array([center[c] for c in here])):
            return None
    return ConesInBall(ball.coordinates, ball.text, ball, tuple(cones))


def intersect(a: Piece, b: Piece) -> Piece | None:
    """Return the intersection of two pieces of the same kind as one of that kind, or None if it is none."""
    if isinstance(a, Interval) and isinstance(b, Interval):
        return merge_intervals(a, b)
    if isinstance(a, AffineSubspace) and isinstance(b, AffineSubspace):
        return merge_subspaces(a, b)
    if not np.array_equal(a.coordinates, b.coordinates):
        return None
    if isinstance(a, NormBall) and isinstance(b, NormBall) and close(a.center, b.center).all():
        return a if a.radius <= b.radius else b
    parallel = (isinstance(a, Slab) and isinstance(b, Slab) and close(a.normal, b.normal).all()) or (
        isinstance(a, Spectrum) and isinstance(b, Spectrum) and close(a.shift, b.shift).all()
    )
    if not parallel:
        return None
    assert isinstance(a, Slab | Spectrum)
    assert isinstance(b, Slab | Spectrum)
    lower, upper, text = max(a.lower, b.lower), min(a.upper, b.upper), join_texts(a, b)
    if lower > upper:
        raise contradiction(text)
    return replace(a, lower=lower, upper=upper, text=text)


def merge_intervals(a: Interval, b: Interval) -> Interval:
    """Intersect coordinatewise bounds."""
    coordinates = np.union1d(a.coordinates, b.coordinates)
    lower, upper = np.full(len(coordinates), -np.inf), np.full(len(coordinates), np.inf)
    for piece in (a, b):
        place = np.searchsorted(coordinates, piece.coordinates)
        np.maximum.at(lower, place, piece.lower)
        np.minimum.at(upper, place, piece.upper)
    if (lower > upper).any():
        raise contradiction(join_texts(a, b))
    return Interval(coordinates, join_texts(a, b), lower, upper)


def merge_subspaces(a: AffineSubspace, b: AffineSubspace) -> AffineSubspace:
    """Stack linear equations."""
    coordinates = np.union1d(a.coordinates, b.coordinates)
    matrix = np.zeros((len(a.value) + len(b.value), len(coordinates)))
    matrix[: len(a.value), np.searchsorted(coordinates, a.coordinates)] = a.matrix
    matrix[len(a.value) :, np.searchsorted(coordinates, b.coordinates)] = b.matrix
    merged = AffineSubspace(coordinates, join_texts(a, b), matrix, np.concatenate([a.value, b.value]))
    if not merged.consistent:
        raise contradiction(merged.text)
    return merged


def join_texts(a: Piece, b: Piece) -> str:
    """Name two constraints at once, each only once."""
    return " and ".join(dict.fromkeys([*a.text.split(" and "), *b.text.split(" and ")]))


def contradiction(text: str) -> TemplateError:
    """Say that nothing satisfies the constraints."""
    return TemplateError(f"the constraints {text} contradict each other: nothing satisfies them.")
