"""The set K as conditions in cones and convex functions that are not positive, and what multipliers of these prove.

Let F be mu-strongly convex and differentiable, x a point of K, and ``<s, . - x> <= gamma`` on K.  With
``g = grad F(x) + s + E'nu`` for the equations' rows E and any nu,

    ||x - minimiser|| <= (||g|| + sqrt(||g||^2 + 4 mu gamma)) / (2 mu)

(docs/theory.md, section 13), whatever a solver says.  A distance is certified up to the root of how exactly conditions hold with
equality, so points and values have extended precision here, where NumPy has any (80 bits on most machines).
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.arithmetic import add, total
from dpconvex.core.atoms.arrangement import reshape
from dpconvex.core.evaluate import bent, over_records, subgradient
from dpconvex.core.expression import Expression, Variable, postorder
from dpconvex.core.parameter_space import Space
from dpconvex.core.to_cvxpy import ConicForm, inner_point
from dpconvex.errors import NotConverged
from dpconvex.geometry.blocks import EXTENDED, NONNEGATIVE, ROOM, Block
from dpconvex.geometry.conditions import Conditions, has_kinks, stacked
from dpconvex.geometry.convex_sets import UNIT

# Of double or extended precision.
Array = NDArray[Any]

# A set without a point that is at least so deep inside has none, as far as floating-point numbers tell.
SHALLOW = 1e-9
# Rounding is looked at in so many directions.
DIRECTIONS = 12


class Region(Conditions):
    """A closed convex set, in the coordinates of a space."""

    @cached_property
    def system(self) -> tuple[Array, Array]:
        """All equations, those of fixed coordinates included."""
        unit = sp.csr_array(sp.eye_array(self.dim))[self.fixed]
        matrix, offset = stacked([*self.equations, (unit, -self.lower[self.fixed])])
        return matrix.toarray(), -offset

    @cached_property
    def hull(self) -> tuple[Array, Array, float]:
        """A pseudo-inverse of the equations, a basis of what they leave free, and the least singular value that is not 0."""
        left, singular, right = np.linalg.svd(self.system[0])
        rank = int((singular > singular.max(initial=0.0) * self.dim * UNIT).sum())
        inverse = (right[:rank].T / singular[:rank]) @ left[:, :rank].T
        return inverse, right[rank:].T, float(singular[:rank].min(initial=1.0))

    @property
    def free(self) -> Array:
        """Orthonormal basis of the directions that the equations leave free, shape (dim, k)."""
        return self.hull[1]

    def on_hull(self, x: Array) -> Array:
        """Return a point next to a point that satisfies all equations; fixed coordinates exactly."""
        matrix, value = self.system
        y = np.where(self.fixed, self.lower, np.asarray(x, dtype=np.longdouble))
        for _ in range(2 if len(matrix) else 0):
            y = y - self.hull[0] @ (matrix @ y - value)
        return y

    def off_hull(self, x: Array) -> float:
        """Bound the distance of a point from the solutions of all equations."""
        matrix, value = self.system
        if not len(matrix):
            return 0.0
        width = int(np.count_nonzero(matrix, axis=1).max())
        size = float(np.linalg.norm(matrix)) * float(np.linalg.norm(x.astype(float))) + float(np.linalg.norm(value))
        missed = float(np.linalg.norm((matrix @ x - value).astype(float)))
        return (missed + (ROOM + width) * EXTENDED * size) / self.hull[2] * (1 + 1e-9)

    @property
    def count(self) -> int:
        """The number of conditions."""
        return sum(len(block.offset) for block in self.blocks) + sum(root.size for root in self.curved)

    @cached_property
    def longest_row(self) -> float:
        """Bound the norm of what a condition with a multiplier of 1 adds to a gradient; that of cuts, at the point inside."""
        blocks = [*self.blocks, *self.cuts(self.inside)]
        return max(
            [1.0, *(float(b.norms.max() if b.kind == NONNEGATIVE else b.norms.sum()) for b in blocks if len(b.norms))]
        )

    @property
    def is_polyhedral(self) -> bool:
        return not self.curved and not self.cones

    def leaves(self, x: Array) -> dict[Variable, Array]:
        """Values of all variables at a point."""
        values = self.space.unpack(x)
        return {block.variable: values[name] for name, block in self.space.blocks.items()}

    def curved_at(self, root: Expression, x: Array) -> tuple[Array, Array]:
        """Values of a curved function's entries, in column order, and what rounding does to them."""
        leaves: dict[Expression, Array] = {leaf: value[..., None] for leaf, value in self.leaves(x).items()}
        try:
            found = over_records([root], leaves)
        except TypeError:  # decompositions of matrices have double precision
            found = over_records([root], {leaf: value.astype(float) for leaf, value in leaves.items()})
        value = found[root][..., 0]
        unit = EXTENDED if value.dtype == np.longdouble else UNIT
        nodes = postorder([root])
        size = max(float(np.abs(found[node]).max(initial=0.0)) for node in nodes)
        flat = np.broadcast_to(np.where(np.isnan(value), np.inf, value), root.shape).reshape(-1, order="F")
        return flat, np.full(len(flat), (ROOM + max(node.size for node in nodes)) * unit * size)

    def _margins(self, x: Array) -> tuple[Array, Array]:
        """By how much each condition holds, and what rounding does to that."""
        pairs = [(np.zeros(0), np.zeros(0)), *(block.margins(x) for block in self.blocks)]
        pairs.extend((-value, error) for value, error in (self.curved_at(root, x) for root in self.curved))
        margin, error = (np.concatenate([pair[k] for pair in pairs]) for k in range(2))
        return margin, error

    def excess(self, x: Array) -> Array:
        """Bounds on by how much conditions are missed: where none is positive, the point lies in K but for `off_hull`."""
        margin, error = self._margins(x)
        missed = (error - margin).astype(float)
        return np.where(np.isnan(missed), np.inf, missed)

    @cached_property
    def conic(self) -> ConicForm:
        return ConicForm.of(self.space, self.constraints)

    @cached_property
    def inside(self) -> Array:
        """A point of K at which no inequality is near equality."""
        point, depth = inner_point(self.space, self.constraints)
        if point is not None:
            point = self.on_hull(point)
            if self.excess(point).max(initial=-1.0) < -SHALLOW and self.off_hull(point) < 1e-9:
                return point
        if depth < -1e-6:
            raise self.contradiction()
        raise NotConverged(
            "no point was found at which all constraints hold strictly; write those that can only hold with equality as "
            "equations, and make sure that the others can be satisfied"
        )

    @cached_property
    def depth(self) -> Array:
        """How far the conditions are from equality at `inside`."""
        return -self.excess(self.inside)

    def relative_rounding(self, radius: float) -> float:
        """Bound what rounding does to conditions, in units of their margins at `inside`, at points of K up to a norm.

        Rounding is proportional to the numbers that occur, and is looked at in some directions.
        """
        rng = np.random.default_rng(0)
        points = [self.bring_in(radius * v / np.linalg.norm(v)) for v in rng.normal(size=(DIRECTIONS, self.dim))]
        errors = [self._margins(point)[1].astype(float) + self.off_hull(point) for point in [self.inside, *points]]
        return float((np.max(errors, axis=0) / self.depth).max(initial=EXTENDED))

    def bring_in(self, x: Array) -> Array:
        """Return a point of K near a point: pulled towards `inside` as far as it must be."""
        x = self.on_hull(np.clip(x, self.lower, self.upper))
        share = 0.0
        for _ in range(120):
            point = x if share == 0 else self.on_hull(x + share * (self.inside - x))
            excess = self.excess(point)
            if excess.max(initial=-1.0) <= 0:
                return point
            here = np.maximum(excess, 0.0)
            finite = np.isfinite(here)
            needed = float((here[finite] / (here[finite] + self.depth[finite])).max(initial=0.0))
            slow = not finite.all() or (share > 0 and needed < share / 4)
            share = min(share + max(needed * (1 - share) * 1.001, share if slow else 0.0, 1e-40), 1.0)
        return self.inside

    def cuts(self, x: Array) -> list[Block]:
        """Return the linearisations of the curved functions at a point, which hold on all of K: one block for each function."""
        return [cut for root in self.curved for cut in [self._cut(root, x)] if cut is not None]

    def _cut(self, root: Expression, x: Array) -> Block | None:
        value, error = self.curved_at(root, x)
        slopes = [
            slope_of(reshape(root, (root.size,))[entry], self.space, x.astype(float)) for entry in range(root.size)
        ]
        kept = np.isfinite(value) & np.isfinite(slopes).all(axis=1)
        if not kept.any():
            return None
        relative = max(float(error[kept].max()), (ROOM + self.dim) * UNIT)
        rows = sp.csr_array(-np.array(slopes)[kept])
        return Block(NONNEGATIVE, rows, -value[kept], np.asarray(x, dtype=np.longdouble), error[kept], relative)

    def curvature(self, x: Array, weights: Sequence[Array]) -> Array:
        """Estimate the second derivatives of weighted curved functions; steps depend on it, proofs do not."""
        terms = [
            total(reshape(root, (root.size,)) * weight)
            for root, weight in zip(self.curved, weights, strict=True)
            if len(weight) == root.size and weight.any() and not has_kinks(root)
        ]
        result = np.zeros((self.dim, self.dim))
        if not terms:
            return result
        moves = {
            block.variable: np.reshape(
                block.lift @ np.eye(self.dim)[block.slice], (*block.variable.shape, self.dim), order="F"
            )
            for block in self.space.blocks.values()
        }
        for variable, change in bent(add(*terms), self.leaves(x.astype(float)), moves).items():
            block = self.space.block_of(variable)
            flat = np.broadcast_to(change, (*variable.shape, self.dim)).reshape((-1, self.dim), order="F")
            result[block.slice] += block.lift.T @ flat
        return np.where(np.isfinite(result), (result + result.T) / 2, 0.0)

    def check(self) -> None:
        """Find out whether there is a point inside, whether the set has a conic form, and derivatives everywhere."""
        self.cuts(self.inside)
        if self.curved and self.conic.minimise(np.eye(self.dim), -self.inside.astype(float)) is None:
            raise NotConverged("the conic solver does not find points of the set")


def slope_of(expression: Expression, space: Space, x: Array) -> Array:
    """Return a subgradient of a public scalar at a point, shape (dim,)."""
    values, result = space.unpack(x), np.zeros(space.dim)
    leaves = {variable: values[variable.name] for variable in expression.variables}
    for variable, slope in subgradient(expression, leaves).items():
        block = space.block_of(variable)
        result[block.slice] += block.lift.T @ slope.reshape(-1, order="F")
    return result
