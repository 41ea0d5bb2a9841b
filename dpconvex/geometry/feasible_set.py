"""The closed convex set K: variable attributes and template constraints, as one set with a Euclidean projection.

Constraints are read, not solved: the recognised ones become pieces (bounds, balls, spectra, linear equations and inequalities),
pieces on disjoint coordinates form a product, and pieces on shared ones are merged (see `merging`).  Where nothing projects on
them in closed form, all of K is a `Region`, whose points and certificates are found by an interior-point method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.constraint import Constraint
from dpconvex.core.parameter_space import Space
from dpconvex.errors import DPConvexError, NotConverged, TemplateError
from dpconvex.geometry.axis_hull import AxisHull
from dpconvex.geometry.certified_distance import SquaredDistance
from dpconvex.geometry.certified_minimum import minimum, reaches
from dpconvex.geometry.constraints import read_attributes, read_constraint
from dpconvex.geometry.convex_sets import UNIT, Interval, Piece, Unrecognised, overlap
from dpconvex.geometry.merging import coordinate_bounds, enclosures, merge, texts, with_simplices
from dpconvex.geometry.region import Region
from dpconvex.geometry.semidefinite import Spectrum, clip_spectra

Array = NDArray[np.float64]

# Without a closed form, points of K that are so near to the nearest one, relatively, serve.
NEAREST = 1e-6
# Bounds of single coordinates are looked for up to this many of them.
MOST_BOUNDED = 400


@dataclass(frozen=True, eq=False)
class FeasibleSet:
    """A closed convex set of parameters, in the coordinates of a space.

    Attributes
    ----------
    space : Space
    parts : tuple of Piece
        Factors on disjoint coordinates that have a projection in closed form (coordinates without a piece are free).
    declared : tuple of Piece
        The constraints as they were read, before merging.
    reason : str or None
        Why there is no projection in closed form, or None if there is one.
    constraints : tuple of Constraint
        What it was read from, besides the attributes of the variables.
    """

    space: Space
    parts: tuple[Piece, ...]
    declared: tuple[Piece, ...]
    reason: str | None
    constraints: tuple[Constraint, ...] = ()

    @property
    def is_space(self) -> bool:
        return not self.declared

    @property
    def has_projection(self) -> bool:
        """Whether the projection has a closed form; `reason` tells why not."""
        return self.reason is None

    @property
    def by_multipliers(self) -> bool:
        """Whether answers are certified by multipliers of conditions in cones: there is no projection in closed form."""
        return self.reason is not None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All factors, if all have a projection in closed form; none otherwise."""
        return self.parts if self.reason is None else ()

    @cached_property
    def region(self) -> Region:
        """The set as conditions in cones."""
        return Region(self.space, self.constraints)

    @cached_property
    def obstacle(self) -> str | None:
        """Why neither a projection nor certificates from multipliers are to be had; None if one of them is.

        Raises
        ------
        TemplateError
            If no point satisfies all constraints.
        """
        if self.reason is None:
            return None
        try:
            self.region.check()
        except TemplateError:
            raise
        except DPConvexError as error:
            return f"{self.reason}; and not by a conic program: {error}"
        return None

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
    def norm_bound(self) -> float:
        """Bound on ``||theta||`` over K, possibly infinite."""
        return self.norm_on(np.arange(self.space.dim))

    @cached_property
    def _known(self) -> tuple[Piece, ...]:
        """Everything that bounds K: together, declarations can bound what none does alone."""
        around = [one for piece in self.declared if isinstance(piece, Unrecognised) for one in piece.around]
        known = [*self.parts, *self.declared, *around]
        known += enclosures(known, self.space.dim)
        lower, upper = coordinate_bounds(known, self.space.dim)
        if self.reason is not None and not (np.isfinite(lower) & np.isfinite(upper)).all():
            known += self._reached(lower, upper)
        return tuple(known)

    def _reached(self, lower: Array, upper: Array) -> list[Piece]:
        """Bound the coordinates of a set without a projection by weak duality (docs/theory.md, section 17)."""
        used = np.unique(np.concatenate([piece.coordinates for piece in self.declared]))
        if len(used) > MOST_BOUNDED or self.obstacle is not None:
            return []
        return [Interval(used, "", *reaches(self.region, used, (lower[used], upper[used])))]

    @cached_property
    def radius(self) -> dict[str, float]:
        """Bound on the Frobenius norm of each variable over K, for the variables that have one."""
        found = {name: self.norm_on(np.arange(b.start, b.start + b.dim)) for name, b in self.space.blocks.items()}
        return {name: bound for name, bound in found.items() if np.isfinite(bound)}

    @cached_property
    def hulls(self) -> tuple[AxisHull, ...]:
        """Simplices and l1 balls that contain K, on some coordinates each."""
        return tuple(piece for piece in self._known if isinstance(piece, AxisHull))

    @property
    def bounded(self) -> bool:
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
        wanted = frozenset(coordinates.tolist())
        covering = [p.norm_bound() for p, here in self._supports if wanted <= here]
        # Disjoint pieces inside the coordinates bound their shares of the norm; the box bounds what they leave over.
        inside = [(p.norm_bound(), here) for p, here in self._supports if here <= wanted]
        square, left = 0.0, set(wanted)
        for bound, here in sorted(inside, key=lambda pair: pair[0] / max(len(pair[1]), 1)):
            if np.isfinite(bound) and here <= left:
                square += bound**2
                left -= here
        rest = np.array(sorted(left), dtype=np.int64)
        square += float(np.sum(np.maximum(np.abs(self.lower[rest]), np.abs(self.upper[rest])) ** 2))
        return float(min([box, np.sqrt(square), *covering]))

    @property
    def centers(self) -> tuple[Array, ...]:
        """Points other than 0 that K may be bounded about, shape (dim,) each."""
        return tuple(point for point in self.middles if point.any())

    @cached_property
    def middles(self) -> tuple[Array, ...]:
        """The middles of bounds, and those of balls, which move with K, shape (dim,) each."""
        finite = np.isfinite(self.lower), np.isfinite(self.upper)
        ends = [np.where(known, bound, 0.0) for known, bound in zip(finite, (self.lower, self.upper), strict=True)]
        middle = (ends[0] + ends[1]) / np.maximum(finite[0].astype(float) + finite[1], 1.0)
        pieces = middle.copy()
        for piece in self._known:
            center = piece.center_point()
            if center is not None:
                pieces[piece.coordinates] = center
        found = [middle] if np.array_equal(middle, pieces) else [middle, pieces]
        return tuple(point for point in found if np.isfinite(point).all())

    @cached_property
    def _supports(self) -> tuple[tuple[Piece, frozenset[int]], ...]:
        """Everything that bounds K, and the coordinates that it speaks of."""
        return tuple((piece, frozenset(piece.coordinates.tolist())) for piece in self._known)

    @cached_property
    def _from_centers(self) -> dict[bytes, list[tuple[float, frozenset[int]]]]:
        return {}

    def _reaches(self, center: Array) -> list[tuple[float, frozenset[int]]]:
        """How far everything that bounds K reaches from a point, and its coordinates; the nearest for their number first."""
        key = center.tobytes()
        if key not in self._from_centers:
            reaches = [(piece.distance_bound(center[piece.coordinates]), here) for piece, here in self._supports]
            self._from_centers[key] = sorted(reaches, key=lambda pair: pair[0] / max(len(pair[1]), 1))
        return self._from_centers[key]

    def reach_on(self, coordinates: NDArray[np.int64], center: Array) -> float:
        """Bound on the distance of some coordinates from those of a point, shape (dim,), over K; possibly infinite."""
        distance = np.maximum(np.abs(self.lower - center), np.abs(self.upper - center))
        wanted = frozenset(coordinates.tolist())
        square, left = 0.0, set(wanted)
        best = float(np.linalg.norm(distance[coordinates]))
        # Disjoint pieces inside the coordinates bound their shares of the distance; the box bounds what they leave over.
        for reach, here in self._reaches(center):
            if left and wanted <= here:
                best = min(best, reach)
            elif here and here <= left and np.isfinite(reach):
                square, left = square + reach**2, left - here
        rest = np.array(sorted(left), dtype=np.int64)
        square += float(np.sum(distance[rest] ** 2))
        # The distance is rounded, and so is the center.
        return min(best, float(np.sqrt(square))) * (1 + 1e-14) + 8 * UNIT * float(np.linalg.norm(center[coordinates]))

    def project(self, theta: Array) -> Array:
        """Euclidean projection of coordinates, shape (dim,) to (dim,); without a closed form, a point of K near it."""
        if self.obstacle is not None:
            raise NotConverged(self.obstacle)
        y = np.array(theta, dtype=float)
        if self.reason is not None:
            near = NEAREST * (1 + float(np.linalg.norm(y)))
            return minimum(SquaredDistance(y), self.region, y, near).point
        for coordinates, shift, lower, upper in self._spectra:
            y[coordinates] = clip_spectra(y[coordinates], shift, lower, upper)
        for piece in self._others:
            y[piece.coordinates] = piece.project(y[piece.coordinates])
        return y

    def some_point(self, theta: Array) -> Array:
        """Return a point of K near some coordinates, not the nearest one where that takes long."""
        if self.reason is not None and self.obstacle is None:
            return np.asarray(self.region.bring_in(theta), dtype=float)
        return self.project(theta)

    def error(self, theta: Array) -> float:
        """Bound on the distance between the computed and the exact projection of `theta`, from rounding."""
        return float(np.linalg.norm([piece.error(theta[piece.coordinates]) for piece in self.pieces]))

    def largest_error(self, norm: float) -> float:
        """Bound the same for every point of at most this norm, as planned before there are data.

        Every piece's bound is a multiple of the norm of its own coordinates plus a constant, or less.
        """
        constants = [piece.largest_error(0.0) for piece in self.pieces]
        multiples = [piece.largest_error(norm) - still for piece, still in zip(self.pieces, constants, strict=True)]
        return max([0.0, *multiples]) + float(np.linalg.norm(constants))

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

    @property
    def handled(self) -> str:
        """Say how answers are kept in K and certified.

        >>> from dpconvex.core.expression import Variable
        >>> feasible_set(Space([Variable.of((2,), "x", 1)])).handled
        'no constraints'
        """
        if self.obstacle is not None:
            return f"impossible: {self.obstacle}"
        if self.is_space:
            return "no constraints"
        if self.reason is not None:
            return "no projection in closed form: a conic solver, certified by multipliers"
        return f"projection on {', '.join(sorted({type(piece).__name__ for piece in self.pieces}))}, certified"

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
    bounds (also through ``abs``, ``max``, ``min`` and the infinity norm), Euclidean and l1 balls, simplices, balls of the nuclear
    and the spectral norm, linear equations and inequalities.  Strict attributes (``pos``, ``neg``) mean their closure.  Where a
    constraint is not recognised, or those on the same coordinates have no projection together, `has_projection` is False.
    """
    declared = [piece for block in space.blocks.values() for piece in read_attributes(block)]
    for constraint in constraints:
        declared.extend(read_constraint(constraint, space))
    declared = [piece for piece in declared if len(piece.coordinates)]
    parts: list[Piece] = []
    reasons: list[str] = []
    for group in overlap(with_simplices(declared, space.dim)):
        merged = merge(group)
        if merged is None:
            reasons.append(f"no projection in closed form on {texts(group)}")
        else:
            parts.append(merged)
    return FeasibleSet(space, tuple(parts), tuple(declared), "; ".join(reasons) or None, tuple(constraints))
