"""The closed convex set K: variable attributes and template constraints, as one set with a Euclidean projection.

Constraints are read, not solved: the recognised ones become pieces (bounds, balls, cones, spectra, linear equations and
inequalities), pieces on disjoint coordinates form a product, and pieces on shared ones are merged (see `merging`).  Where
nothing projects on them the set says so, and names the constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.constraint import Constraint
from dpconvex.core.parameter_space import Space
from dpconvex.errors import DPConvexError, NotConverged
from dpconvex.geometry.axis_hull import AxisHull
from dpconvex.geometry.certified_distance import SquaredDistance
from dpconvex.geometry.certified_minimum import minimum
from dpconvex.geometry.constraints import read_attributes, read_constraint
from dpconvex.geometry.convex_sets import UNIT, Piece, Slack, overlap
from dpconvex.geometry.dykstra import Intersection
from dpconvex.geometry.enclosures import coordinate_bounds, enclosures
from dpconvex.geometry.merging import clash, merge, with_simplices
from dpconvex.geometry.region import Region
from dpconvex.geometry.semidefinite import Spectrum, clip_spectra

Array = NDArray[np.float64]

# Where there is no projection in closed form, points of K that are so near to the nearest one, relatively, serve.
NEAREST = 1e-6
# Where none is found at all, points on the way to 0 are projected.
HALVINGS = 64


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
        return not self.declared

    @property
    def has_projection(self) -> bool:
        """Whether `project` is available; `reason` tells why not."""
        return self.reason is None

    @cached_property
    def region(self) -> Region:
        """The set as inequalities, for the certificates and answers of sets without a projection in closed form."""
        return Region(self.space, self.constraints)

    @cached_property
    def obstacle(self) -> str | None:
        """Why neither a projection nor certificates from duals are to be had; None if one of them is."""
        if self.reason is None:
            return None
        try:
            self.region.check()
        except DPConvexError as error:
            return f"{self.reason}. Nor can it be handled by its inequalities: {error}"
        return None

    @cached_property
    def by_inequalities(self) -> FeasibleSet | None:
        """The same set without its projections, where they are solvers' own and can fail; None if it cannot do without."""
        if self.reason is not None or not any(piece.iterates for piece in self.pieces):
            return None
        bare = replace(self, pieces=(), reason="a projection on it was not found")
        return bare if bare.obstacle is None else None

    @cached_property
    def by_multipliers(self) -> bool:
        """Whether answers are certified by multipliers: without a projection, or with one that alternates and is less exact."""
        if self.reason is not None:
            return True
        if not any(isinstance(piece, Intersection) for piece in self.pieces):
            return False
        try:
            self.region.check()
        except DPConvexError:
            return False
        return True

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
        if self.reason is not None:
            point = np.array(theta, dtype=float)
            near = NEAREST * (1 + float(np.linalg.norm(point)))
            return minimum(SquaredDistance(point), self.region, point, near).point
        try:
            return self._by_pieces(theta)
        except NotConverged as error:
            return self._instead(theta, error)

    def _instead(self, theta: Array, error: NotConverged) -> Array:
        """Return a point of K where no projection was found, which happens far away from K; no certificate is for this one."""
        if self.by_inequalities is not None:
            with suppress(DPConvexError):
                return self.by_inequalities.project(theta)
        for halvings in range(1, HALVINGS):
            with suppress(NotConverged):
                return self._by_pieces(theta / 2.0**halvings)
        raise error

    def _by_pieces(self, theta: Array) -> Array:
        y = np.array(theta, dtype=float)
        for coordinates, shift, lower, upper in self._spectra:
            y[coordinates] = clip_spectra(y[coordinates], shift, lower, upper)
        for piece in self._others:
            y[piece.coordinates] = piece.project(y[piece.coordinates])
        return y

    def some_point(self, theta: Array) -> Array:
        """Return a point of K near some coordinates, not the nearest one where that takes long."""
        if self.reason is None and self.by_multipliers:
            return np.asarray(self.region.bring_in(theta), dtype=float)
        return self.project(theta)

    def error(self, theta: Array) -> float:
        """Bound on the distance between the computed and the exact projection of `theta`, from rounding."""
        return float(np.linalg.norm([piece.error(theta[piece.coordinates]) for piece in self.pieces]))

    def inequality(self, theta: Array) -> Slack:
        """Bound what the variational inequality misses at the computed projection of `theta`."""
        return Slack.total([piece.inequality(theta[piece.coordinates]) for piece in self.pieces])

    def largest_inequality(self, norm: float, move: float) -> Slack:
        """Bound the same for every point of at most this norm and at most so far outside, as planned before there are data."""
        return Slack.total([piece.largest_inequality(norm, move) for piece in self.pieces])

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

    def apart(self) -> FeasibleSet:
        """Return the same set for one data set: its projections begin where the last ones ended, and nobody else sees these."""
        other = replace(self, pieces=tuple(piece.apart() for piece in self.pieces))
        if self.by_multipliers and self.obstacle is None:  # public, and without a memory of points
            other.__dict__.update(region=self.region, obstacle=None, by_multipliers=True)
        return other

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
            return "no projection: linearised constraints and a conic solver, certified by multipliers"
        if self.by_multipliers:
            return "alternating projections; answers are certified by multipliers of linearised constraints"
        kinds = sorted({type(piece).__name__ for piece in self.pieces})
        return f"projection on {', '.join(kinds)}, certified"

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
    bounds (also through ``abs``, ``max``, ``min`` and the infinity norm), Euclidean and l1 balls, ellipsoids, second-order cones,
    balls of the nuclear and the spectral norm, linear equations and inequalities.  Strict attributes (``pos``, ``neg``) mean
    their closure.  Where a constraint is not recognised, or those on the same coordinates have no common interior,
    `has_projection` is False.
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
