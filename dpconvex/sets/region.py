"""The set K as conditions: bounds, equations, cone blocks, and convex functions that are at most 0."""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.errors import MissingRule, NotConverged, TemplateError
from dpconvex.expressions.atoms.arithmetic import add, total
from dpconvex.expressions.atoms.arrangement import hstack, reshape, transpose, vstack
from dpconvex.expressions.atoms.matrices import LAMBDA_MAX, SIGMA_MAX
from dpconvex.expressions.atoms.norms import norm
from dpconvex.expressions.atoms.powers import ABS
from dpconvex.expressions.evaluate import over_records
from dpconvex.expressions.expression import Constraint, Expression, postorder
from dpconvex.expressions.parameter_space import Space
from dpconvex.expressions.polynomial import Polynomial, stack_entries as joined
from dpconvex.expressions.to_cvxpy import attribute_constraints
from dpconvex.numerics import EPSILON, NORM_SLACK, quotient_ends, root_up, sum_ends
from dpconvex.sets.atom_domains import check_constraint, has_kinks, with_domains
from dpconvex.sets.blocks import ABSOLUTE, EXTENDED, NONNEGATIVE, ROOM, SECOND_ORDER, SEMIDEFINITE, ConeBlock
from dpconvex.sets.conic_programs import ConicForm, inner_points
from dpconvex.sets.equations import in_units, ranked_svd
from dpconvex.sets.projections import upper_triangle
from dpconvex.sets.quadratics import (
    Affine,
    Parts,
    Reading,
    SmoothExpression,
    affine_map,
    affine_polynomial,
    as_paraboloid,
    as_squares,
    expand_maxima,
    groups,
    is_euclidean,
    level_of,
    linear_parts,
    reading_of,
    select_rows,
    slope_of,
    stack_maps,
    stack_weighted,
    weighted_sum,
)

# Of double or extended precision.
Array = NDArray[Any]

SHALLOW = 1e-9  # Least depth of a point that counts as strictly inside


class Region:
    """A closed convex set, in the coordinates of a space."""

    def __init__(self, space: Space, constraints: Sequence[Constraint]) -> None:
        self.space, self.dim = space, space.dim
        for constraint in constraints:
            check_constraint(constraint)
        attributes = [pair for block in space.blocks.values() for pair in attribute_constraints(block.variable)]
        self.texts = [*(text for text, _ in attributes), *map(str, constraints)]
        self.lower, self.upper = np.full(self.dim, -np.inf), np.full(self.dim, np.inf)
        # The exact bounds, before rounding, lie between these.
        self.least, self.most = self.lower.copy(), self.upper.copy()
        self.equations: list[Reading] = []  # matrix @ x + offset = 0
        self.readings: list[Reading] = []  # matrix @ x + offset >= 0, of several coordinates each
        self.curved: list[Expression] = []  # convex functions with entries of at most 0 on K
        self.cones: list[ConeBlock] = []
        self.paraboloids: dict[Expression, ConeBlock] = {}  # curved function ||e||^2 - t -> block (t, e)
        for found in (pair for pair in map(partial(as_paraboloid, space), constraints) if pair is not None):
            below, above = (affine_polynomial(argument, space) for argument in (found.args[1], found.args[0].args[0]))
            block = ConeBlock(SECOND_ORDER, *reading_of(joined([below, above]), self.dim)[:2])
            self.paraboloids[found.args[0] - found.args[1]] = block
            self._not_negative(below)
        self.readings.clear()
        implied = self.lower.copy(), self.upper.copy()  # by paraboloids
        self.constraints = with_domains([as_paraboloid(space, constraint) or constraint for constraint in constraints])
        for constraint in (*(constraint for _, constraint in attributes), *self.constraints):
            self._read(constraint)
        if (self.lower > self.upper).any():
            raise self.contradiction()
        self.fixed = self.lower == self.upper
        low = np.isfinite(self.lower) & ~self.fixed & (self.lower != implied[0])
        high = np.isfinite(self.upper) & ~self.fixed & (self.upper != implied[1])
        one = sp.csr_array(sp.eye_array(self.dim))
        rows = [part[:2] for part in self.readings]
        linear = stack_maps([(one[low], -self.lower[low]), (-one[high], self.upper[high]), *rows])
        # Bounds and rows as one block, before the cones.
        self.blocks = [*([ConeBlock(NONNEGATIVE, *linear)] if len(linear[1]) else []), *self.cones]
        self.is_polyhedral = not self.curved and not self.cones

    def contradiction(self) -> TemplateError:
        texts = " and ".join(dict.fromkeys(self.texts))
        why = "no point satisfies all constraints together, the attributes of the variables included"
        return TemplateError(f"{why}: {texts}.")

    def _read(self, constraint: Constraint) -> None:
        first, *others = constraint.args
        if constraint.kind == "semidefinite":
            self._semidefinite(first)
        elif constraint.kind == "equality":
            self._not_negative(affine_polynomial(first - others[0], self.space), equal=True)
        elif constraint.kind == "second-order cone":
            along = None if others[0].ndim < 2 else (int(constraint.options[0]),)
            self._inequality(reshape(norm(others[0], 2, along), first.shape) - first)
        else:
            self._inequality(first - others[0])

    def _not_negative(self, entries: Polynomial, equal: bool = False) -> None:
        """Add the condition that entries are at least 0, or 0 if `equal`; rows of a single coordinate become bounds."""
        matrix, offset, wrong, missed = reading_of(entries, self.dim)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        count = np.diff(matrix.indptr)
        fixed = offset[count == 0]
        if (fixed < -NORM_SLACK).any() or (equal and (fixed > NORM_SLACK).any()):
            raise self.contradiction()
        single = np.flatnonzero(count == 1)
        place, slope = matrix.indices[matrix.indptr[single]], matrix.data[matrix.indptr[single]]
        ends = -offset[single] / slope
        below, above = (slope > 0) | equal, (slope < 0) | equal
        np.maximum.at(self.lower, place[below], ends[below])
        np.minimum.at(self.upper, place[above], ends[above])
        room = missed[single], np.asarray(wrong[single].sum(axis=1)).ravel()
        pairs = zip((-offset[single], slope), room, strict=True)
        levels, slopes = ((sum_ends(x, -e)[0], sum_ends(x, e)[1]) for x, e in pairs)
        corners = [quotient_ends(a, b) for a in levels for b in slopes]
        unknown = np.where(room[1] < np.abs(slope), 0.0, np.inf)
        np.maximum.at(self.least, place[below], (np.min([low for low, _ in corners], axis=0) - unknown)[below])
        np.minimum.at(self.most, place[above], (np.max([high for _, high in corners], axis=0) + unknown)[above])
        if (several := count > 1).any():
            found = (part[several] for part in (matrix, offset, wrong, missed))
            (self.equations if equal else self.readings).append(Reading(*found))

    def _semidefinite(self, matrix: Expression) -> None:
        """Add the condition that an affine symmetric matrix is positive semidefinite."""
        entries, offset = affine_map(matrix, self.space)
        side = matrix.shape[0] if matrix.ndim else 1
        row, column, weight = upper_triangle(side)
        upper, lower = column * side + row, row * side + column
        skew = abs(entries[upper] - entries[lower]).max(), np.abs(offset[upper] - offset[lower]).max(initial=0.0)
        if max(skew) > 4 * EPSILON * max(abs(entries).max(), np.abs(offset).max(initial=0.0)):
            why = "the matrix of a matrix inequality is not symmetric"
            raise MissingRule(why, matrix, "symmetrise it: (X + X.T) / 2")
        found = sp.csr_array(sp.diags_array(weight) @ entries[upper]), weight * offset[upper]
        if side == 1:
            self._not_negative(affine_polynomial(matrix, self.space))
        else:
            self.cones.append(ConeBlock(SEMIDEFINITE, *found))

    def _norm(self, kind: str, level: Affine, inner: Polynomial) -> None:
        bound = Polynomial.coordinates((1,), 0, level[0]) + Polynomial.constant(level[1])
        if not level[0].nnz and level[1][0] < 0:
            raise self.contradiction()
        if inner.size == 1:
            for side in (1.0, -1.0):
                self._not_negative(bound + inner.scaled(side))
        else:
            found = reading_of(joined([bound, inner]), self.dim)
            self.cones.append(ConeBlock(kind, *found[:2], misread=found[2:]))

    def _inequality(self, difference: Expression) -> None:
        """Add the condition that entries are at most 0, as rows and cones, or as a curved function if that is impossible."""
        waiting, whole = [linear_parts(difference)], True
        while waiting:
            parts = waiting.pop()
            more = expand_maxima(parts)
            if more is not None:
                waiting.extend(more)
                whole = False
                continue
            bent = np.zeros(next(iter(parts.values())).shape[0] if parts else 0, dtype=bool)
            for part, factors in parts.items():
                bent |= (np.diff(factors.indptr) > 0) & (not part.is_affine)
            found = [self._cone(select_rows(parts, [row])) for row in np.flatnonzero(bent)]
            if whole and any(cone is None for cone in found):
                self.curved.append(difference)
                return
            self._not_negative(level_of(self.space, select_rows(parts, np.flatnonzero(~bent))))
            for row, cone in zip(np.flatnonzero(bent), found, strict=True):
                if cone is None:
                    self.curved.append(weighted_sum(select_rows(parts, [row])))
                elif isinstance(cone, Expression):
                    self._semidefinite(cone)
                else:
                    self._norm(*cone)

    def _cone(self, sums: Parts) -> tuple[str, Affine, Polynomial] | Expression | None:
        """Return ``sums <= 0`` as the kind, bound and argument of a norm, or as a semidefinite matrix; None if it is neither."""
        matrix, offset, _, missed = reading_of(level_of(self.space, sums), self.dim)
        level = matrix, sum_ends(offset, missed)[1]
        parts = [(part, factors.toarray()[0]) for part, factors in sums.items() if not part.is_affine]
        if any((weights < 0).any() for _, weights in parts):
            return None
        squared = [found for part, weights in parts if (found := as_squares(part, weights)) is not None]
        if len(squared) == len(parts):
            if matrix.nnz:
                return None
            if offset[0] < 0:
                raise self.contradiction()
            terms, rows = [affine_polynomial(e, self.space) for e, _ in squared], [weights for _, weights in squared]
            largest = max(float(weights.max()) for weights in rows)  # equal weights need no scaling
            radius = root_up(float(quotient_ends(level[1], largest)[1][0]))
            scales = [np.sqrt(weights / largest) for weights in rows]
            return SECOND_ORDER, (matrix, np.array([radius])), stack_weighted(terms, scales)
        if not all(part.args[0].is_affine for part, _ in parts):
            return None
        inner = [affine_polynomial(part.args[0], self.space) for part, _ in parts]
        if all(part.atom is ABS for part, _ in parts):
            return ABSOLUTE, level, stack_weighted(inner, [weights for _, weights in parts])
        (part, weights), *others = parts
        if others or np.count_nonzero(weights) != 1:
            return None
        entry = int(np.flatnonzero(weights)[0])
        if is_euclidean(part):
            return SECOND_ORDER, level, stack_weighted(inner, [np.where(groups(part) == entry, weights[entry], 0.0)])
        if part.atom not in (LAMBDA_MAX, SIGMA_MAX):
            return None
        matrix = part.args[0]
        if part.atom is SIGMA_MAX:
            zeros = [np.zeros((side, side)) for side in matrix.shape]
            matrix = vstack(hstack(zeros[0], matrix), hstack(transpose(matrix), zeros[1]))
        bound = weighted_sum({part: factors for part, factors in sums.items() if part.is_affine})
        return -bound * np.eye(matrix.shape[0]) - float(weights[entry]) * matrix

    # The affine hull.

    @cached_property
    def system(self) -> tuple[Array, Array]:
        unit = sp.csr_array(sp.eye_array(self.dim))[self.fixed]
        matrix, offset = stack_maps([*(part[:2] for part in self.equations), (unit, -self.lower[self.fixed])])
        return in_units(matrix.toarray(), -offset)

    @cached_property
    def hull(self) -> tuple[Array, Array, float]:
        """Return a pseudo-inverse of the equations, a null space basis, and a lower bound on the least nonzero singular value."""
        matrix, value = self.system
        left, singular, right, rank = ranked_svd(matrix, full=True)
        inverse = (right[:rank].T / singular[:rank]) @ left[:, :rank].T
        nearest = inverse @ value
        nearest = nearest - inverse @ (matrix @ nearest - value)
        size = np.linalg.norm(matrix) * np.linalg.norm(nearest) + np.linalg.norm(value)
        if np.linalg.norm(matrix @ nearest - value) > NORM_SLACK * self.dim * size:
            raise self.contradiction()
        rounded = 4 * max(len(left), self.dim) * EPSILON * float(singular.max(initial=0.0))
        return inverse, right[rank:].T, float(singular[:rank].min(initial=1.0)) - rounded

    @cached_property
    def tilt(self) -> float:
        """Return a bound on the rotation of the equations' null space basis by rounding."""
        matrix, _ = self.system
        return 4 * max(matrix.shape) * EPSILON * float(np.linalg.norm(matrix)) / self.hull[2]

    def on_hull(self, x: Array) -> Array:
        """Return a point near x that satisfies the equations up to rounding; fixed coordinates are exact."""
        matrix, value = self.system
        y = np.where(self.fixed, self.lower, np.asarray(x, dtype=np.longdouble))
        for _ in range(2 if len(matrix) else 0):
            y = y - self.hull[0] @ (matrix @ y - value)
        return y

    def off_hull(self, x: Array) -> float:
        """Return a bound on the distance of a point from the solutions of all equations."""
        matrix, value = self.system
        if not len(matrix):
            return 0.0
        width = int(np.count_nonzero(matrix, axis=1).max())
        size = float(np.linalg.norm(matrix)) * float(np.linalg.norm(x.astype(float))) + float(np.linalg.norm(value))
        missed = float(np.linalg.norm((matrix @ x - value).astype(float)))
        return (missed + (ROOM + width) * EXTENDED * size) / self.hull[2] * (1 + 1e-9)

    # Points.

    def curved_at(self, root: Expression, x: Array) -> tuple[Array, Array]:
        """Return the values of a curved function's entries, in column order, and bounds on their rounding errors."""
        if root in self.paraboloids:
            return self.paraboloids[root].height(x)
        leaves = {leaf: value[..., None] for leaf, value in self.space.leaves(x).items()}
        try:
            found = over_records([root], leaves)
        except TypeError:  # decompositions of matrices have double precision
            found = over_records([root], {leaf: value.astype(float) for leaf, value in leaves.items()})
        value, nodes = found[root][..., 0], postorder([root])
        unit = EXTENDED if value.dtype == np.longdouble else EPSILON
        size = max(float(np.abs(found[node]).max(initial=0.0)) for node in nodes)
        flat = np.broadcast_to(np.where(np.isnan(value), np.inf, value), root.shape).reshape(-1, order="F")
        return flat, np.full(len(flat), (ROOM + max(node.size for node in nodes)) * unit * size)

    def margins(self, x: Array) -> tuple[Array, Array]:
        """Return the margin of each condition, negative if it is violated, and a bound on its rounding error."""
        pairs = [(np.zeros(0), np.zeros(0)), *(block.margins(x) for block in self.blocks)]
        pairs.extend((-value, error) for value, error in (self.curved_at(root, x) for root in self.curved))
        margin, error = (np.concatenate([pair[k] for pair in pairs]) for k in range(2))
        return margin, error

    def excess(self, x: Array) -> Array:
        """Return bounds on the violation of each condition; if none is positive, the point lies in K up to `off_hull`."""
        margin, error = self.margins(x)
        missed = (error - margin).astype(float)
        return np.where(np.isnan(missed), np.inf, missed)

    @cached_property
    def conic(self) -> ConicForm:
        return ConicForm.of(self.space, self.constraints)

    @cached_property
    def inside(self) -> Array:
        """Return a point of K at which all inequalities hold strictly. Raise if none is found."""
        deepest = -np.inf
        for found, depth in inner_points(self.space, self.constraints):
            deepest = max(deepest, depth)
            if found is not None:
                point = self.on_hull(found)
                if self.excess(point).max(initial=-1.0) < -SHALLOW and self.off_hull(point) < 1e-9:
                    return point
        if deepest < -1e-6:
            raise self.contradiction()
        remedy = "write inequalities that only hold with equality as equations, and check that others can be satisfied"
        raise NotConverged(f"no point was found at which all constraints hold strictly; {remedy}")

    @cached_property
    def depth(self) -> Array:
        """Return lower bounds on the margins of the conditions at `inside`."""
        return -self.excess(self.inside)

    @cached_property
    def scale(self) -> float:
        """Return the radius of a ball around `inside` in which the linearised conditions hold; at most 1."""
        blocks, radius = [*self.blocks, *self.cuts(self.inside)], 1.0
        for block in blocks:
            margin = block.margins(self.inside)[0].astype(float)
            norms = block.norms if block.kind == NONNEGATIVE else np.linalg.norm(block.norms)
            radius = min(radius, float((margin / np.maximum(norms, 1e-300)).min(initial=1.0)))
        return radius

    def bring_in(self, x: Array) -> Array:
        """Return a point of K near x, moved towards `inside` as far as convexity or, failing that, rounding requires."""
        x, share = self.on_hull(np.clip(x, self.lower, self.upper)), 0.0
        for _ in range(120):
            point = x if share == 0 else self.on_hull(x + share * (self.inside - x))
            excess = np.maximum(self.excess(point), 0.0)
            if not excess.any():
                return point
            known = np.isfinite(excess)
            needed = float((excess[known] / (excess[known] + self.depth[known])).max(initial=0.0))
            share = min(share + max(1.001 * needed * (1 - share), share, 1e-40), 1.0)
        return self.inside

    def check(self) -> None:
        """Raise if no point inside is found, or if the conic solver or a derivative of a curved function fails."""
        self.cuts(self.inside)
        if self.curved and self.conic.minimise(np.eye(self.dim), -self.inside.astype(float)) is None:
            raise NotConverged("the conic solver finds no point of the set")

    # Curved functions.

    def cuts(self, x: Array) -> list[ConeBlock]:
        """Return the linearisations of the curved functions at a point, valid on all of K: one block for each function."""
        found = []
        for root in self.curved:
            value, error = self.curved_at(root, x)
            entries = reshape(root, (root.size,))
            slopes = np.array([slope_of(entries[k], self.space, x.astype(float)) for k in range(root.size)])
            kept = np.isfinite(value) & np.isfinite(slopes).all(axis=1)
            if kept.any():
                relative = max(float(error[kept].max()), (ROOM + self.dim) * EPSILON)
                about = np.asarray(x, dtype=np.longdouble)
                slope = sp.csr_array(-slopes[kept])
                found.append(ConeBlock(NONNEGATIVE, slope, -value[kept], about, error[kept], relative))
        return found

    def curvature(self, x: Array, weights: Sequence[Array]) -> Array:
        """Return an estimate of the Hessian of weighted curved functions; steps depend on it, proofs do not."""
        terms = [
            total(reshape(root, (root.size,)) * weight)
            for root, weight in zip(self.curved, weights, strict=True)
            if len(weight) == root.size and weight.any() and not has_kinks(root)
        ]
        if not terms:
            return np.zeros((self.dim, self.dim))
        found = SmoothExpression(add(*terms), self.space).hessian_at(x.astype(float)).toarray()
        return np.where(np.isfinite(found), (found + found.T) / 2, 0.0)
