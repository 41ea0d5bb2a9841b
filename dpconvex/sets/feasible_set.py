"""The closed convex set K: pieces with projections on disjoint coordinates, or a `Region` with certificates."""

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
from dpconvex.sets.certified_minimum import axis_bounds
from dpconvex.sets.closed_forms import closed_forms, symmetric_map
from dpconvex.sets.projections import AxisHull, ConvexSet, IntervalSet
from dpconvex.sets.region import Region
from dpconvex.util.arrays import Array, Indices

USUAL = 100.0  # Points larger or smaller by this factor are projected in units of their norm too
MOST_BOUNDED = 400  # Groups of more coordinates are not bounded by multipliers


class FeasibleSet:
    """A closed convex set of parameters; `pieces` are its factors on disjoint coordinates, if all have a projection."""

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
        """Return why there is no projection in closed form, if there is none."""
        return f"no projection in closed form on {' and '.join(dict.fromkeys(self.region.texts))}"

    @cached_property
    def obstacle(self) -> str | None:
        """Return why neither a projection nor certificates by multipliers are available; None if one is available."""
        try:
            if not self.has_projection:
                self.region.check()
        except (NotPrivate, NotConverged) as error:
            return f"{self.reason}; and a conic program fails: {error}"
        return None

    @cached_property
    def _known(self) -> tuple[ConvexSet, ...]:
        """Return sets that contain K; for unbounded coordinates also by weak duality (docs/theory.md, section 17)."""
        lower, upper = bounds_of(self._around, self.space.dim)
        groups = [here for here in self._others if not np.isfinite([lower[here], upper[here]]).all()]
        if not groups or max(map(len, groups)) > MOST_BOUNDED or self.obstacle is not None:
            return tuple(self._around)
        reached = [IntervalSet(here, *axis_bounds(self.region, here, (lower[here], upper[here]))) for here in groups]
        return *self._around, *reached

    @cached_property
    def lower(self) -> Array:
        """Return lower bounds on the coordinates, shape (dim,), possibly infinite."""
        return bounds_of(self._known, self.space.dim)[0]

    @cached_property
    def upper(self) -> Array:
        return bounds_of(self._known, self.space.dim)[1]

    @property
    def hulls(self) -> tuple[AxisHull, ...]:
        """Return simplices and l1 balls that contain K, each on some coordinates."""
        return tuple(piece for piece in self._known if isinstance(piece, AxisHull))

    @cached_property
    def norm_bound(self) -> float:
        return self.norm_on(np.arange(self.space.dim))

    @cached_property
    def diameter(self) -> float | None:
        """Return a bound on the distance of two points of K; None if there is none."""
        found = min(2 * self.norm_bound, norm_up(sum_ends(self.upper, -self.lower)[1]))
        return found if np.isfinite(found) else None

    @property
    def bounded(self) -> bool:
        return bool(np.isfinite(self.norm_bound))

    def norm_on(self, coordinates: Indices) -> float:
        """Return a bound on the norm of the given coordinates over K, possibly infinite."""
        sizes = np.maximum(np.abs(self.lower), np.abs(self.upper))
        left, lengths = set(coordinates.tolist()), list[float]()
        if not np.isfinite(sizes[coordinates]).all():
            return float(np.inf)
        best = min((size for size, here in self._sizes if left <= here), default=np.inf)
        # Pieces bound their shares of the norm; the box bounds the remaining coordinates.
        for size, here in self._sizes:
            if size < norm_up(sizes[sorted(left & here)]):
                lengths, left = [*lengths, size], left - here
        return min(best, norm_up([*lengths, *sizes[sorted(left)]]))

    @cached_property
    def _sizes(self) -> list[tuple[float, frozenset[int]]]:
        """Return norm bound and coordinates of each set that contains K, sorted by norm bound per coordinate."""
        pairs = [(piece.norm_bound, frozenset(piece.coordinates.tolist())) for piece in self._known]
        return sorted(pairs, key=lambda pair: pair[0] / max(len(pair[1]), 1))

    def least_entry(self, expression: Expression) -> float:
        """Return a lower bound on the entries of an affine expression over K; minus infinity for other expressions."""
        if not expression.is_affine:
            return -np.inf
        return float(self.range_of(Expander(self.space, RecordVariables({})).expand(expression))[0].min(initial=np.inf))

    def range_of(self, polynomial: Polynomial) -> Ends:
        """Return bounds on the entries of a public affine expression, from the bounds on the coordinates."""
        ends = tuple(np.append(end, 1.0)[polynomial.coordinate] for end in (self.lower, self.upper))
        return interval_sums(polynomial.entry, *interval_product(polynomial.ends, (ends[0], ends[1])), polynomial.size)

    def least_eigenvalue(self, matrix: Expression) -> float:
        """Return a lower bound on the eigenvalues of a symmetric variable over K; minus infinity for other expressions."""
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
        """Return the Euclidean projection of coordinates, shape (dim,); without a closed form, a point of K near it."""
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
        """Return a bound on the distance between the computed and the exact projection of any point of at most this norm."""
        counts, sizes = np.array([(0.0, 0.0), *(piece.rounding for piece in self.pieces)]).T
        return EPSILON * float(counts.max() * norm + np.linalg.norm(counts * sizes))

    def describe(self) -> str:
        if self.is_space:
            return "all of space"
        lines = list(dict.fromkeys(self.region.texts))
        return "\n".join(lines if self.has_projection else [*lines, f"(no projection: {self.reason})"])


def bounds_of(pieces: Sequence[ConvexSet], dim: int) -> tuple[Array, Array]:
    lower, upper = np.full(dim, -np.inf), np.full(dim, np.inf)
    for piece in pieces:
        below, above = piece.bounds()
        lower[piece.coordinates] = np.maximum(lower[piece.coordinates], below)
        upper[piece.coordinates] = np.minimum(upper[piece.coordinates], above)
    return lower, upper
