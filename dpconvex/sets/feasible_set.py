"""The closed convex set K: pieces with a projection, on disjoint coordinates, or else a `Region` with certificates."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from dpconvex.errors import NotConverged, NotPrivate
from dpconvex.expressions.expansion import Expander, RecordVariables
from dpconvex.expressions.expression import Constraint, Expression
from dpconvex.expressions.parameter_space import Space
from dpconvex.expressions.polynomial import Polynomial
from dpconvex.numerics import EPSILON, NORM_SLACK, Ends, interval_product, interval_sums, norm_up, sum_ends
from dpconvex.sets.blocks import SEMIDEFINITE
from dpconvex.sets.certified_minimum import reaches
from dpconvex.sets.closed_forms import closed_forms, symmetric_map
from dpconvex.sets.projections import AxisHull, ConvexSet, IntervalSet
from dpconvex.sets.region import Region
from dpconvex.util.arrays import Array, Indices

USUAL = 100.0  # Points of other sizes are looked for in units of theirs, too
MOST_BOUNDED = 400  # Bounds of single coordinates are looked for up to this many of them


class FeasibleSet:
    """A closed convex set of parameters; `pieces` are factors on disjoint coordinates, if all have a closed projection."""

    def __init__(self, space: Space, constraints: Sequence[Constraint]) -> None:
        self.space, self.constraints = space, tuple(constraints)
        self.region = Region(space, self.constraints)
        parts, self._around, self._others = closed_forms(self.region)
        self.has_projection = not self._others
        self.pieces: tuple[ConvexSet, ...] = tuple(parts) if self.has_projection else ()

    @property
    def is_space(self) -> bool:
        return self.has_projection and not self.pieces

    @property
    def reason(self) -> str:
        """Why there is no projection in closed form, where there is none."""
        return f"no projection in closed form on {' and '.join(dict.fromkeys(self.region.told))}"

    @cached_property
    def obstacle(self) -> str | None:
        """Why neither a projection nor certificates from multipliers are to be had; None if one of them is."""
        try:
            if not self.has_projection:
                self.region.check()
        except (NotPrivate, NotConverged) as error:
            return f"{self.reason}; and not by a conic program: {error}"
        return None

    @cached_property
    def _known(self) -> tuple[ConvexSet, ...]:
        """Everything that bounds K; where that leaves coordinates unbounded, weak duality (docs/theory.md, section 17)."""
        lower, upper = bounds_of(self._around, self.space.dim)
        groups = [here for here in self._others if not np.isfinite([lower[here], upper[here]]).all()]
        if not groups or max(map(len, groups)) > MOST_BOUNDED or self.obstacle is not None:
            return tuple(self._around)
        reached = [IntervalSet(here, *reaches(self.region, here, (lower[here], upper[here]))) for here in groups]
        return *self._around, *reached

    @cached_property
    def lower(self) -> Array:
        """Bounds below for each coordinate, shape (dim,), possibly infinite."""
        return bounds_of(self._known, self.space.dim)[0]

    @cached_property
    def upper(self) -> Array:
        return bounds_of(self._known, self.space.dim)[1]

    @property
    def hulls(self) -> tuple[AxisHull, ...]:
        """Simplices and l1 balls that contain K, on some coordinates each."""
        return tuple(piece for piece in self._known if isinstance(piece, AxisHull))

    @cached_property
    def norm_bound(self) -> float:
        return self.norm_on(np.arange(self.space.dim))

    @cached_property
    def diameter(self) -> float | None:
        """Bound on the distance of two points of K; None if there is none."""
        found = min(2 * self.norm_bound, norm_up(sum_ends(self.upper, -self.lower)[1]))
        return found if np.isfinite(found) else None

    @property
    def bounded(self) -> bool:
        return bool(np.isfinite(self.norm_bound))

    def norm_on(self, coordinates: Indices) -> float:
        """Bound on the norm of some coordinates over K, possibly infinite."""
        sizes = np.maximum(np.abs(self.lower), np.abs(self.upper))
        left, lengths = set(coordinates.tolist()), list[float]()
        if not np.isfinite(sizes[coordinates]).all():
            return float(np.inf)
        best = min((size for size, here in self._sizes if left <= here), default=np.inf)
        # Pieces bound their shares of the norm; the box bounds what they leave over.
        for size, here in self._sizes:
            if size < norm_up(sizes[sorted(left & here)]):
                lengths, left = [*lengths, size], left - here
        return min(best, norm_up([*lengths, *sizes[sorted(left)]]))

    @cached_property
    def _sizes(self) -> list[tuple[float, frozenset[int]]]:
        """Norms of everything that bounds K, and its coordinates; the smallest for their number first."""
        pairs = [(piece.norm_bound, frozenset(piece.coordinates.tolist())) for piece in self._known]
        return sorted(pairs, key=lambda pair: pair[0] / max(len(pair[1]), 1))

    def least_entry(self, expression: Expression) -> float:
        """Bound the entries of an affine expression from below by the bounds on the coordinates; else minus infinity."""
        if not expression.is_affine:
            return -np.inf
        return float(self.range_of(Expander(self.space, RecordVariables({})).expand(expression))[0].min(initial=np.inf))

    def range_of(self, polynomial: Polynomial) -> Ends:
        """Bound the entries of a public affine expression by the bounds on the coordinates."""
        ends = tuple(np.append(end, 1.0)[polynomial.coordinate] for end in (self.lower, self.upper))
        return interval_sums(polynomial.entry, *interval_product(polynomial.ends, (ends[0], ends[1])), polynomial.size)

    def least_eigenvalue(self, matrix: Expression) -> float:
        """Bound the eigenvalues of a symmetric variable from below; minus infinity of anything else."""
        block = next((block for block in self.space.blocks.values() if block.variable is matrix), None)
        if block is None:
            return -np.inf
        found = float(self.lower[block.start]) if block.dim == 1 else -np.inf
        for cone in self.region.cones if block.symmetric else ():
            entries = symmetric_map((cone.matrix, cone.offset)) if cone.kind == SEMIDEFINITE else None
            if entries and entries[1] > 0 and set(entries[0]) == set(range(block.start, block.start + block.dim)):
                shift = np.linalg.eigvalsh(entries[2])
                found = max(found, float(shift[0]) - NORM_SLACK * float(np.abs(shift).max()))
        return found

    def project(self, theta: Array) -> Array:
        """Euclidean projection of coordinates, shape (dim,) to (dim,); without a closed form, a point of K near it."""
        if self.obstacle is not None:
            raise NotConverged(self.obstacle)
        y = np.array(theta, dtype=float)
        if not self.has_projection:
            size, near = float(np.linalg.norm(y)), self.region.bring_in(y).astype(float)
            units = {1.0, size} if 0 < size <= 1 / USUAL or USUAL <= size < np.inf else {1.0}
            for unit in units if (near != y).any() else ():
                found = self.region.conic.minimise(np.eye(len(y)), -y, unit)
                others = [] if found is None else [self.region.bring_in(found).astype(float)]
                near = min([near, *others], key=lambda one: float(np.linalg.norm(one - y)))
            return near
        for piece in self.pieces:
            y[piece.coordinates] = piece.project(y[piece.coordinates])
        return y

    def error(self, norm: float) -> float:
        """Bound on the distance between the computed and the exact projection of any point of at most this norm."""
        counts, sizes = np.array([(0.0, 0.0), *(piece.rounding for piece in self.pieces)]).T
        return EPSILON * float(counts.max() * norm + np.linalg.norm(counts * sizes))

    def describe(self) -> str:
        if self.is_space:
            return "all of space"
        lines = list(dict.fromkeys(self.region.told))
        return "\n".join(lines if self.has_projection else [*lines, f"(no projection: {self.reason})"])


def bounds_of(pieces: Sequence[ConvexSet], dim: int) -> tuple[Array, Array]:
    lower, upper = np.full(dim, -np.inf), np.full(dim, np.inf)
    for piece in pieces:
        below, above = piece.bounds()
        lower[piece.coordinates] = np.maximum(lower[piece.coordinates], below)
        upper[piece.coordinates] = np.minimum(upper[piece.coordinates], above)
    return lower, upper
