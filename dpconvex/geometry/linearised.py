"""The set K as convex inequalities: values, linearisations that hold on all of K, and a point strictly inside.

Sets that have no projection in closed form are handled by their linearisations.  A convex g satisfies ``g(p) + <s, x - p> <=
g(x)`` for every subgradient s at any p, so ``g(p) + <s, x - p> <= 0`` holds wherever ``g(x) <= 0`` does: a *cut*.  For a matrix
inequality ``X(x) >= 0`` every ``v' X(x) v >= 0`` is one.  Bounds on what rounding does to values are kept with them.

A distance is certified up to the root of how exactly inequalities hold with equality.  So points and values have extended
precision here, where NumPy has any (80 bits on most machines); slopes have not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.arrangement import reshape
from dpconvex.core.atoms.divergences import KL_DIV, REL_ENTR
from dpconvex.core.atoms.exponentials import ENTR
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.atoms.sums import add, total
from dpconvex.core.constraint import Constraint
from dpconvex.core.dual_evaluation import bent
from dpconvex.core.evaluate import evaluate, over_records, postorder, subgradient
from dpconvex.core.expression import Expression, Variable
from dpconvex.core.parameter_space import Space
from dpconvex.core.to_cvxpy import ConicForm, inner_point
from dpconvex.errors import DPConvexError, MissingRule
from dpconvex.geometry.constraints import read_attributes
from dpconvex.geometry.convex_sets import UNIT, AffineSubspace, Interval, Slab
from dpconvex.geometry.inequalities import curved, has_kinks, simplified, stated, symmetric_map, with_domains
from dpconvex.geometry.linear_maps import affine_map, linear_parts
from dpconvex.geometry.semidefinite import Spectrum, side_of, smat, svec
from dpconvex.geometry.small_eigenvalues import least_eigenvalue, spectral_curvature

__all__ = ["Cuts", "Linearised"]

# Of double or extended precision.
Array = NDArray[Any]

EXTENDED = float(np.finfo(np.longdouble).eps)
# Units in the last place by which the value of an atom may err, for each number that it is made of and besides.
ROOM = 8
# A set without a point that is at least so deep inside has none, as far as floating-point numbers tell.
SHALLOW = 1e-9
# Pairs of so many eigenvectors near the kernel of a matrix give cuts of their own.
MOST_PAIRED = 6
# Cuts of one inequality whose slopes differ by less, relatively, are alike.
ALIKE = 1e-3
# Arguments of entropies that are smaller, relative to the point, get cuts at these shares of theirs too.
NEAR_END, NEARER = 1e-2, (1e-1, 1e-3, 1e-9)
# Norms that are smaller, relative to the point, are next to their kink, and do not count as curved.
ROUND_KINK = 1e-7
# Rounding is looked at in so many directions.
DIRECTIONS = 12


@dataclass(frozen=True, eq=False)
class Cuts:
    """Inequalities ``values + <rows, x - points> <= 0`` for all x in K, one a row.

    Attributes
    ----------
    rows, points : ndarray, shape (m, dim)
    values : ndarray, shape (m,)
    errors, slope_errors : ndarray, shape (m,)
        Bounds on what rounding did to the values, and to the rows in norm.
    owners : ndarray of int, shape (m,)
        Which inequality it is of: linear ones are -1.
    vectors : ndarray, shape (m, side)
        For matrix inequalities, the v of ``v' X v >= 0``, filled up with zeros.
    """

    rows: Array
    points: Array
    values: Array
    errors: Array
    slope_errors: Array
    owners: NDArray[np.int64]
    vectors: Array

    def __len__(self) -> int:
        return len(self.values)

    def at(self, x: Array) -> Array:
        """Left-hand sides at a point, shape (m,)."""
        return np.asarray(self.values + np.sum(self.rows * (x - self.points), axis=1), dtype=float)

    def error_at(self, x: Array) -> Array:
        """Bound what rounding does to them there."""
        away = np.linalg.norm((x - self.points).astype(float), axis=1)
        sizes = np.linalg.norm(self.rows, axis=1)
        return np.asarray(self.errors + (self.slope_errors + (ROOM + len(x)) * UNIT * sizes) * away)

    def some(self, kept: NDArray[np.bool_]) -> Cuts:
        """Return some of them."""
        return Cuts(*(part[kept] for part in vars(self).values()))

    def resembles(self, others: Cuts) -> NDArray[np.bool_]:
        """Which are nearly those of the same inequalities at other points: models with curvature need them once."""
        apart = np.linalg.norm(self.rows[:, None] - others.rows[None], axis=2)
        alike = apart <= ALIKE * np.linalg.norm(self.rows, axis=1)[:, None]
        return np.asarray(
            (alike & (self.owners[:, None] == others.owners[None])).any(axis=1) & ~self.vectors.any(axis=1)
        )

    @staticmethod
    def joined(parts: Sequence[Cuts]) -> Cuts:
        """Return all of several."""
        return Cuts(*(np.concatenate(column) for column in zip(*(vars(part).values() for part in parts), strict=True)))


class Linearised:
    """A closed convex set with linearisations, in the coordinates of a space."""

    def __init__(self, space: Space, constraints: Sequence[Constraint]) -> None:
        self.space, self.dim = space, space.dim
        self.constraints = with_domains([simple for constraint in constraints for simple in simplified(constraint)])
        self.curved: list[Expression] = []
        self._matrices: list[tuple[sp.csr_array, Array]] = []
        self._rows: list[tuple[NDArray[np.int64], Array, float, float]] = []
        equations: list[tuple[NDArray[np.int64], Array, Array]] = []
        lower, upper = np.full(self.dim, -np.inf), np.full(self.dim, np.inf)
        pieces = [piece for block in space.blocks.values() for piece in read_attributes(block)]
        for constraint in self.constraints:
            found = stated(constraint, space)
            if found is not None:
                pieces.extend(found)
            elif constraint.kind == "semidefinite":
                self._matrices.append(symmetric_map(constraint.args[0], space))
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
                self._matrices.append((sp.csr_array(sign * place), -sign * svec(piece.shift + bound * np.eye(side))))

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
        sizes = np.linalg.norm(matrix, axis=1) * float(np.linalg.norm(x.astype(float))) + np.abs(value)
        rounding = (ROOM + self.dim) * EXTENDED * float(np.linalg.norm(sizes))
        missed = float(np.linalg.norm((matrix @ x - value).astype(float)))
        return (missed + rounding) / self._hull[2] * (1 + 1e-9)

    @cached_property
    def _linear(self) -> tuple[Array, Array, Array]:
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

    def _linear_at(self, x: Array) -> tuple[Array, Array]:
        rows, levels, widths = self._linear
        size = float(np.linalg.norm(x.astype(float)))
        errors = np.where(widths > 0, (ROOM + widths) * EXTENDED * (size + np.abs(levels)), 0.0)
        return rows @ x - levels, errors

    def _curved_at(self, x: Array) -> list[tuple[Array, Array]]:
        """Values of the curved inequalities' entries, in column order, and what rounding does to them."""
        if not self.curved:
            return []
        found: dict[Expression, Array] = {}
        for extended in (True, False):
            roots = [root for root in self.curved if self._extended[root] is extended]
            leaves = self._leaves(x if extended else x.astype(float))
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
        leaves = self._leaves(np.zeros(self.dim, dtype=np.longdouble))
        found = {}
        for root in self.curved:
            try:
                over_records([root], {leaf: value[..., None] for leaf, value in leaves.items()})
                found[root] = True
            except TypeError:
                found[root] = False
        return found

    def _leaves(self, x: Array) -> dict[Variable, Array]:
        found = {}
        for block in self.space.blocks.values():
            part = block.lift @ x[block.slice] if block.symmetric else x[block.slice]
            found[block.variable] = np.asarray(part).reshape(block.variable.shape, order="F")
        return found

    def _spectra_at(self, x: Array) -> list[tuple[Array, Array, float]]:
        """Eigenvalues and vectors of the matrix inequalities, and a lower bound on the least eigenvalue."""
        found = []
        for matrix, offset in self._matrices:
            whole = smat(matrix @ x + offset)
            value, vector = np.linalg.eigh(whole.astype(float))
            scale = float(np.linalg.norm(x.astype(float)) * self._norm(matrix) + np.linalg.norm(offset))
            found.append((value, vector, least_eigenvalue(whole, vector) - (ROOM + 4 * len(whole)) * EXTENDED * scale))
        return found

    @staticmethod
    def _norm(matrix: sp.csr_array) -> float:
        return float(np.sqrt((matrix.data**2).sum()))

    def excess(self, x: Array) -> Array:
        """Bounds on all inequalities' left-hand sides: where none is positive, the point lies in K but for `off_hull`."""
        value, error = self._linear_at(x)
        parts = [value + error]
        parts.extend(value + error for value, error in self._curved_at(x))
        parts.extend(np.array([-least]) for _, _, least in self._spectra_at(x))
        whole = np.concatenate(parts).astype(float)
        return np.where(np.isnan(whole), np.inf, whole)

    @cached_property
    def conic(self) -> ConicForm:
        """The set in the form of conic solvers."""
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

    def check(self) -> None:
        """Find out whether there is a point inside, whether the set has a conic form, and derivatives everywhere."""
        inside = self.inside
        self.cuts(inside, np.inf)
        if self.conic.minimise(np.eye(self.dim), -inside.astype(float)) is None:
            raise DPConvexError("the conic solver does not find points of the set")

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
        parts = [self._linear_at(x)[1]]
        parts.extend(error for _, error in self._curved_at(x))
        size = float(np.linalg.norm(x.astype(float)))
        for matrix, offset in self._matrices:
            scale = size * self._norm(matrix) + float(np.linalg.norm(offset))
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

    def cuts(self, x: Array, reach: float) -> Cuts:
        """Return the linearisations at a point of all inequalities that a step of length `reach` may bring to equality."""
        rows, _, _ = self._linear
        value, error = self._linear_at(x)
        near = value > -reach
        parts = [self._cuts_at(x, rows[near], value[near], error[near], 0.0)]
        owner = 0
        for root, (value, error) in zip(self.curved, self._curved_at(x), strict=True):
            for entry in np.flatnonzero(np.isfinite(value)):
                slope = self._slope(reshape(root, (root.size,))[int(entry)], x)
                if value[entry] > -reach * max(float(np.linalg.norm(slope)), 1e-12):
                    relative = max(float(error[entry]), (ROOM + self.dim) * UNIT)
                    here = slope[None], value[[entry]], error[[entry]]
                    parts.append(self._cuts_at(x, *here, relative, owner + int(entry)))
            owner += root.size
        parts.extend(self._steep_cuts(x))
        for number, (value, vector, _) in enumerate(self._spectra_at(x)):
            near = vector[:, value < reach]
            pairs = [near]
            if near.shape[1] <= MOST_PAIRED:
                i, j = np.triu_indices(near.shape[1], 1)
                pairs += [near[:, i] + near[:, j], near[:, i] - near[:, j]]
            parts.append(self._spectral_cuts(x, number, np.hstack(pairs)))
        return Cuts.joined(parts)

    @cached_property
    def _steep(self) -> list[tuple[int, int, Array, float]]:
        """Entries of curved inequalities with entropies of affine arguments: which, and the arguments' rows and constants."""
        found, start = [], 0
        for number, root in enumerate(self.curved):
            for part, weights in linear_parts(root).items():
                if part.atom in (ENTR, REL_ENTR, KL_DIV) and part.args[0].is_affine and part.args[0].variables:
                    matrix, offset = affine_map(part.args[0], self.space)
                    table = sp.coo_array(weights)
                    wide = len(offset) > 1
                    found += [
                        (number, int(i), matrix[[j if wide else 0]].toarray()[0], float(offset[j if wide else 0]))
                        for i, j in zip(table.row, table.col, strict=True)
                    ]
            start += root.size
        return found

    def _steep_cuts(self, x: Array) -> list[Cuts]:
        """Return linearisations nearer to the ends of domains, where slopes grow without end and one step changes them a lot."""
        found = []
        starts = np.cumsum([0, *(root.size for root in self.curved)])
        for number, entry, row, offset in self._steep:
            size = float(row @ x) + offset
            if not 0 < size < NEAR_END * (1 + float(np.linalg.norm(x.astype(float)))):
                continue
            for share in NEARER:
                point = x + (share - 1) * size / float(row @ row) * row
                value, error = self._curved_at(point)[number]
                slope = self._slope(reshape(self.curved[number], (self.curved[number].size,))[entry], point)
                if np.isfinite(value[entry]) and np.isfinite(slope).all():
                    relative = max(float(error[entry]), (ROOM + self.dim) * UNIT)
                    here = slope[None], value[[entry]], error[[entry]]
                    found.append(self._cuts_at(point, *here, relative, int(starts[number]) + entry))
        return found

    def _spectral_cuts(self, x: Array, number: int, vectors: Array) -> Cuts:
        """Return the cuts of some vectors, one a column, of a matrix inequality."""
        matrix, offset = self._matrices[number]
        vectors = (vectors / np.linalg.norm(vectors, axis=0)).T
        outer = svec(vectors[:, :, None] * vectors[:, None, :])
        values = -(outer @ (matrix @ x + offset))
        scale = float(np.linalg.norm(x.astype(float)) * self._norm(matrix) + np.linalg.norm(offset))
        errors = np.full(len(values), (ROOM + 4 * vectors.shape[1]) * EXTENDED * scale)
        rows = -np.asarray((matrix.T @ outer.T).T)
        owner = sum(root.size for root in self.curved) + number
        return self._cuts_at(x, rows, values, errors, (ROOM + vectors.shape[1]) * UNIT, owner, vectors)

    def _cuts_at(
        self,
        x: Array,
        rows: Array,
        values: Array,
        errors: Array,
        relative: float,
        owner: int = -1,
        vectors: Array | None = None,
    ) -> Cuts:
        shown = np.zeros((len(values), self._side))
        if vectors is not None:
            shown[:, : vectors.shape[1]] = vectors
        sizes = relative * np.linalg.norm(rows, axis=1)
        points = np.broadcast_to(np.asarray(x, dtype=np.longdouble), rows.shape)
        return Cuts(rows, points, values, errors, sizes, np.full(len(values), owner), shown)

    @cached_property
    def _side(self) -> int:
        return max((side_of(offset) for _, offset in self._matrices), default=0)

    def active(self, x: Array, cuts: Cuts, multipliers: Array) -> Cuts:
        """Return cuts that the multipliers come from, fewer if they can be: those of a matrix belong to its eigenvectors."""
        start = sum(root.size for root in self.curved)
        parts = [cuts.some((multipliers > 0) & (cuts.owners >= 0) & (cuts.owners < start))]
        for number in range(len(self._matrices)):
            value, vector = np.linalg.eigh(self._multiplier(number, cuts, multipliers))
            parts.append(self._spectral_cuts(x, number, vector[:, value > 1e-12 * max(value.max(), 1e-300)]))
        return Cuts.joined(parts)

    def _multiplier(self, number: int, cuts: Cuts, multipliers: Array) -> Array:
        """The matrix that multiplies a matrix inequality."""
        side = side_of(self._matrices[number][1])
        own = cuts.owners == sum(root.size for root in self.curved) + number
        vectors = cuts.vectors[own][:, :side]
        return np.asarray((vectors.T * np.maximum(multipliers[own], 0.0)) @ vectors)

    @cached_property
    def _smooth(self) -> list[dict[Expression, sp.csr_array]]:
        """The terms of each curved inequality that bend, and have no kinks."""
        return [
            {part: matrix for part, matrix in linear_parts(root).items() if not part.is_affine and not has_kinks(part)}
            for root in self.curved
        ]

    def curvature(self, x: Array, cuts: Cuts, multipliers: Array) -> Array:
        """Estimate the second derivatives of the inequalities with their multipliers; steps depend on it, proofs do not."""
        result = np.zeros((self.dim, self.dim))
        for number, (matrix, offset) in enumerate(self._matrices):
            bent = spectral_curvature(
                smat(np.asarray(matrix @ x + offset, dtype=float)), self._multiplier(number, cuts, multipliers)
            )
            result += matrix.T @ np.asarray((matrix.T @ bent).T)
        owner = 0
        least = ROUND_KINK * (1 + float(np.linalg.norm(x.astype(float))))
        for root, smooth in zip(self.curved, self._smooth, strict=True):
            own = (cuts.owners >= owner) & (cuts.owners < owner + root.size)
            weights = np.bincount(cuts.owners[own] - owner, weights=multipliers[own], minlength=root.size)
            owner += root.size
            terms = [
                total(reshape(part, (part.size,)) * self._away(part, weights @ matrix, x, least))
                for part, matrix in smooth.items()
                if weights.any()
            ]
            if terms:
                columns = self._bent(add(*terms), x)
                result += np.where(np.isfinite(columns), columns + columns.T, 0.0) / 2
        return result

    def _away(self, part: Expression, weights: Array, x: Array, least: float) -> Array:
        """Leave out norms that are nearly 0, next to which they have kinks."""
        if part.atom is not NORM or not weights.any():
            return weights
        sizes = evaluate(part, self._leaves(x.astype(float))).reshape(-1, order="F")
        return np.where(sizes > least, weights, 0.0)

    def _bent(self, whole: Expression, x: Array) -> Array:
        """The Hessian of a scalar expression."""
        moves = {
            block.variable: np.reshape(
                block.lift @ np.eye(self.dim)[block.slice], (*block.variable.shape, self.dim), order="F"
            )
            for block in self.space.blocks.values()
        }
        result = np.zeros((self.dim, self.dim))
        for variable, change in bent(whole, self._leaves(x.astype(float)), moves).items():
            block = self.space.block_of(variable)
            flat = np.broadcast_to(change, (*variable.shape, self.dim)).reshape((-1, self.dim), order="F")
            result[block.slice] += block.lift.T @ flat
        return result

    def _slope(self, entry: Expression, x: Array) -> Array:
        """A subgradient of one entry of a curved inequality, shape (dim,)."""
        slopes = subgradient(entry, self._leaves(x.astype(float)))
        if slopes is None:
            raise MissingRule(
                "an atom of a constraint has no derivative", entry, "write the constraint with other atoms"
            )
        result = np.zeros(self.dim)
        for variable, slope in slopes.items():
            block = self.space.block_of(variable)
            result[block.slice] += block.lift.T @ slope.reshape(-1, order="F")
        return result
