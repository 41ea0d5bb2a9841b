"""The set K as convex inequalities: their values with bounds on rounding, its affine hull, and a point strictly inside.

A distance is certified up to the root of how exactly inequalities hold with equality.  So points and values have extended
precision here, where NumPy has any (80 bits on most machines).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.constraint import Constraint
from dpconvex.core.evaluate import over_records, postorder
from dpconvex.core.expression import Expression, Variable
from dpconvex.core.parameter_space import Space
from dpconvex.core.to_cvxpy import ConicForm, inner_point
from dpconvex.errors import DPConvexError
from dpconvex.geometry.constraints import read_attributes
from dpconvex.geometry.convex_sets import UNIT, AffineSubspace, Interval, Slab
from dpconvex.geometry.inequalities import curved, simplified, stated, symmetric_map, with_domains
from dpconvex.geometry.semidefinite import Spectrum, side_of, smat, svec
from dpconvex.geometry.small_eigenvalues import least_eigenvalue

# Of double or extended precision.
Array = NDArray[Any]

EXTENDED = float(np.finfo(np.longdouble).eps)
# Units in the last place by which the value of an atom may err, for each number that it is made of and besides.
ROOM = 8
# A set without a point that is at least so deep inside has none, as far as floating-point numbers tell.
SHALLOW = 1e-9
# Rounding is looked at in so many directions.
DIRECTIONS = 12


class Region:
    """A closed convex set as inequalities, in the coordinates of a space."""

    def __init__(self, space: Space, constraints: Sequence[Constraint]) -> None:
        self.space, self.dim = space, space.dim
        self.constraints = with_domains([simple for constraint in constraints for simple in simplified(constraint)])
        self.curved: list[Expression] = []
        self.matrices: list[tuple[sp.csr_array, Array]] = []
        self._rows: list[tuple[NDArray[np.int64], Array, float, float]] = []
        equations: list[tuple[NDArray[np.int64], Array, Array]] = []
        lower, upper = np.full(self.dim, -np.inf), np.full(self.dim, np.inf)
        pieces = [piece for block in space.blocks.values() for piece in read_attributes(block)]
        for constraint in self.constraints:
            found = stated(constraint, space)
            if found is not None:
                pieces.extend(found)
            elif constraint.kind == "semidefinite":
                self.matrices.append(symmetric_map(constraint.args[0], space))
            else:
                self.curved.append(curved(constraint))
        for piece in pieces:
            here = piece.coordinates
            if isinstance(piece, Interval):
                lower[here], upper[here] = np.maximum(lower[here], piece.lower), np.minimum(upper[here], piece.upper)
            elif isinstance(piece, Slab):
                self._rows.append((here, piece.normal, piece.lower, piece.upper))
            elif isinstance(piece, AffineSubspace):
                equations.append((here, piece.matrix, piece.value))
            else:
                assert isinstance(piece, Spectrum)
                self._spectrum(piece)
        self.lower, self.upper = lower, upper
        self.fixed = lower == upper
        self._equations = equations

    def _spectrum(self, piece: Spectrum) -> None:
        """Add ``+-(X - bound I - shift) >= 0``, as a matrix in coordinates for the svec of it."""
        side = len(piece.shift)
        place = sp.csr_array(
            (np.ones(len(piece.coordinates)), (np.arange(len(piece.coordinates)), piece.coordinates)),
            shape=(len(piece.coordinates), self.dim),
        )
        for bound, sign in ((piece.lower, 1.0), (piece.upper, -1.0)):
            if np.isfinite(bound):
                self.matrices.append((sp.csr_array(sign * place), -sign * svec(piece.shift + bound * np.eye(side))))

    @cached_property
    def _system(self) -> tuple[Array, Array]:
        """The equations of coordinates that are not fixed."""
        rows, values = [np.zeros((0, self.dim))], [np.zeros(0)]
        for here, matrix, value in self._equations:
            wide = np.zeros((len(value), self.dim))
            wide[:, here] = matrix
            rows.append(wide)
            values.append(value)
        matrix, value = np.concatenate(rows), np.concatenate(values)
        value = value - matrix[:, self.fixed] @ self.lower[self.fixed]
        matrix[:, self.fixed] = 0.0
        return matrix, value

    @cached_property
    def _hull(self) -> tuple[Array, Array, float]:
        """A pseudo-inverse of the equations, a basis of what they leave free, and the least singular value that is not 0."""
        matrix, _ = self._system
        loose = np.eye(self.dim)[:, ~self.fixed]
        if not len(matrix):
            return np.zeros((self.dim, 0)), loose, 1.0
        left, singular, right = np.linalg.svd(matrix @ loose)
        rank = int((singular > singular.max(initial=0.0) * max(matrix.shape) * UNIT).sum())
        inverse = loose @ (right[:rank].T / singular[:rank]) @ left[:, :rank].T
        return inverse, loose @ right[rank:].T, float(singular[:rank].min(initial=1.0))

    @property
    def free(self) -> Array:
        """Orthonormal basis of the directions that the equations leave free, shape (dim, k)."""
        return self._hull[1]

    def on_hull(self, x: Array) -> Array:
        """Return a point next to a point that satisfies all equations; fixed coordinates exactly."""
        y = np.array(x, dtype=np.longdouble)
        y[self.fixed] = self.lower[self.fixed]
        matrix, value = self._system
        for _ in range(2 if len(matrix) else 0):
            y = y - self._hull[0] @ (matrix @ y - value)
        return y

    def off_hull(self, x: Array) -> float:
        """Bound the distance of a point from the solutions of all equations."""
        matrix, value = self._system
        if not len(matrix):
            return 0.0
        width = int(np.count_nonzero(matrix, axis=1).max())
        size = spread(matrix) * float(np.linalg.norm(x.astype(float))) + float(np.linalg.norm(value))
        rounding = (ROOM + width) * EXTENDED * size
        missed = float(np.linalg.norm((matrix @ x - value).astype(float)))
        return (missed + rounding) / self._hull[2] * (1 + 1e-9)

    @cached_property
    def linear(self) -> tuple[Array, Array, Array]:
        """Rows, levels and number of entries of what is linear, bounds first."""
        eye = np.eye(self.dim)
        low, high = np.isfinite(self.lower) & ~self.fixed, np.isfinite(self.upper) & ~self.fixed
        rows, levels = [-eye[low], eye[high]], [-self.lower[low], self.upper[high]]
        widths = [np.zeros(int(low.sum() + high.sum()))]
        for here, normal, below, above in self._rows:
            for sign, bound in ((-1.0, -below), (1.0, above)):
                if np.isfinite(bound):
                    row = np.zeros((1, self.dim))
                    row[0, here] = sign * normal
                    rows.append(row)
                    levels.append(np.array([bound]))
                    widths.append(np.array([float(len(here))]))
        return np.concatenate(rows), np.concatenate(levels), np.concatenate(widths)

    def linear_at(self, x: Array) -> tuple[Array, Array]:
        """Left-hand sides of what is linear, and what rounding does to them."""
        rows, levels, widths = self.linear
        size = float(np.linalg.norm(x.astype(float)))
        errors = np.where(widths > 0, (ROOM + widths) * EXTENDED * (size + np.abs(levels)), 0.0)
        return rows @ x - levels, errors

    def curved_at(self, x: Array) -> list[tuple[Array, Array]]:
        """Values of the curved inequalities' entries, in column order, and what rounding does to them."""
        if not self.curved:
            return []
        found: dict[Expression, Array] = {}
        for extended in (True, False):
            roots = [root for root in self.curved if self._extended[root] is extended]
            leaves = self.leaves(x if extended else x.astype(float))
            found |= over_records(roots, {leaf: value[..., None] for leaf, value in leaves.items()}) if roots else {}
        result = []
        for root in self.curved:
            nodes = postorder([root])
            value = found[root][..., 0]
            unit = EXTENDED if value.dtype == np.longdouble else UNIT
            size = max(float(np.abs(found[node]).max(initial=0.0)) for node in nodes)
            flat = np.broadcast_to(np.where(np.isnan(value), np.inf, value), root.shape).reshape(-1, order="F")
            width = max(node.size for node in nodes)
            result.append((flat, np.full(len(flat), (ROOM + width) * unit * size)))
        return result

    @cached_property
    def _extended(self) -> dict[Expression, bool]:
        """Which curved inequalities can be computed in extended precision: decompositions of matrices cannot."""
        leaves = self.leaves(np.zeros(self.dim, dtype=np.longdouble))
        found = {}
        for root in self.curved:
            try:
                over_records([root], {leaf: value[..., None] for leaf, value in leaves.items()})
                found[root] = True
            except TypeError:
                found[root] = False
        return found

    def leaves(self, x: Array) -> dict[Variable, Array]:
        """Values of all variables at a point."""
        found = {}
        for block in self.space.blocks.values():
            part = block.lift @ x[block.slice] if block.symmetric else x[block.slice]
            found[block.variable] = np.asarray(part).reshape(block.variable.shape, order="F")
        return found

    def spectra_at(self, x: Array) -> list[tuple[Array, Array, float]]:
        """Eigenvalues and vectors of the matrix inequalities, and a lower bound on the least eigenvalue."""
        found = []
        for matrix, offset in self.matrices:
            whole = smat(matrix @ x + offset)
            value, vector = np.linalg.eigh(whole.astype(float))
            scale = float(np.linalg.norm(x.astype(float)) * spread(matrix) + np.linalg.norm(offset))
            found.append((value, vector, least_eigenvalue(whole, vector) - (ROOM + 4 * len(whole)) * EXTENDED * scale))
        return found

    def excess(self, x: Array) -> Array:
        """Bounds on all inequalities' left-hand sides: where none is positive, the point lies in K but for `off_hull`."""
        value, error = self.linear_at(x)
        parts = [value + error]
        parts.extend(value + error for value, error in self.curved_at(x))
        parts.extend(np.array([-least]) for _, _, least in self.spectra_at(x))
        whole = np.concatenate(parts).astype(float)
        return np.where(np.isnan(whole), np.inf, whole)

    @cached_property
    def conic(self) -> ConicForm:
        return ConicForm.of(self.space, self.constraints)

    @cached_property
    def inside(self) -> Array:
        """A point of K at which no inequality is near equality."""
        point = inner_point(self.space, self.constraints)
        if point is not None:
            point = self.on_hull(point)
            if self.excess(point).max(initial=-1.0) < -SHALLOW and self.off_hull(point) < 1e-9:
                return point
        raise DPConvexError(
            "no point was found at which all constraints hold strictly; write those that can only hold with equality as "
            "equations, and make sure that the others can be satisfied"
        )

    @cached_property
    def depth(self) -> Array:
        """How far the inequalities are from equality at `inside`."""
        return -self.excess(self.inside)

    def relative_rounding(self, radius: float) -> float:
        """Bound what rounding does to inequalities, in units of their margins at `inside`, at points of K up to a norm.

        Rounding is proportional to the numbers that occur, and is looked at in some directions.
        """
        rng = np.random.default_rng(0)
        points = [self.bring_in(radius * v / np.linalg.norm(v)) for v in rng.normal(size=(DIRECTIONS, self.dim))]
        errors = [self.rounding(point) for point in [self.inside, *points]]
        return float((np.max(errors, axis=0) / self.depth).max(initial=EXTENDED))

    def rounding(self, x: Array) -> Array:
        """What rounding does to all inequalities' left-hand sides, in the order of `excess`."""
        parts = [self.linear_at(x)[1]]
        parts.extend(error for _, error in self.curved_at(x))
        size = float(np.linalg.norm(x.astype(float)))
        for matrix, offset in self.matrices:
            scale = size * spread(matrix) + float(np.linalg.norm(offset))
            parts.append(np.array([(ROOM + 4 * side_of(offset)) * EXTENDED * scale]))
        off = self.off_hull(x) * np.ones(1)
        return np.concatenate(parts) + off

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
            step = max(
                needed * (1 - share) * 1.001, share if not finite.all() or (share > 0 and needed < share / 4) else 0
            )
            share = min(share + max(step, EXTENDED / 64), 1.0)
        return self.inside


def spread(matrix: Any) -> float:
    """Bound the largest singular value of the absolute entries of a matrix: by its sums, and by its Frobenius norm."""
    size = abs(matrix)
    sums = [float(size.sum(axis=axis).max()) if min(size.shape) else 0.0 for axis in (0, 1)]
    return float(min(np.sqrt(sums[0] * sums[1]), np.sqrt((size * size).sum()))) * (1 + 1e-12)
