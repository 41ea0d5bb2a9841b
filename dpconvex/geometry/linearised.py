"""Linearisations of the inequalities of K that hold on all of K.

Sets that have no projection in closed form are handled by their linearisations.  A convex g satisfies ``g(p) + <s, x - p> <=
g(x)`` for every subgradient s at any p, so ``g(p) + <s, x - p> <= 0`` holds wherever ``g(x) <= 0`` does: a *cut*.  For a matrix
inequality ``X(x) >= 0`` every ``v' X(x) v >= 0`` is one.  Bounds on what rounding does to values are kept with them.
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
from dpconvex.core.dual_evaluation import bent
from dpconvex.core.evaluate import evaluate, subgradient
from dpconvex.core.expression import Expression
from dpconvex.errors import DPConvexError, MissingRule
from dpconvex.geometry.convex_sets import UNIT
from dpconvex.geometry.inequalities import has_kinks
from dpconvex.geometry.linear_maps import affine_map, linear_parts
from dpconvex.geometry.region import EXTENDED, ROOM, Region, spread
from dpconvex.geometry.semidefinite import side_of, smat, svec
from dpconvex.geometry.small_eigenvalues import spectral_curvature

# Of double or extended precision.
Array = NDArray[Any]

# Pairs of so many eigenvectors near the kernel of a matrix give cuts of their own.
MOST_PAIRED = 6
# Cuts of one inequality whose slopes differ by less, relatively, are alike.
ALIKE = 1e-3
# Arguments of entropies that are smaller, relative to the point, get cuts at these shares of theirs too.
NEAR_END, NEARER = 1e-2, (1e-1, 1e-3, 1e-9)
# Norms that are smaller, relative to the point, are next to their kink, and do not count as curved.
ROUND_KINK = 1e-7


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


class Linearised(Region):
    """A closed convex set with linearisations."""

    def check(self) -> None:
        """Find out whether there is a point inside, whether the set has a conic form, and derivatives everywhere."""
        inside = self.inside
        self.cuts(inside, np.inf)
        if self.conic.minimise(np.eye(self.dim), -inside.astype(float)) is None:
            raise DPConvexError("the conic solver does not find points of the set")

    def cuts(self, x: Array, reach: float) -> Cuts:
        """Return the linearisations at a point of all inequalities that a step of length `reach` may bring to equality."""
        parts = [self.single_cuts(x, reach)]
        for number, (value, vector, _) in enumerate(self.spectra_at(x)):
            near = vector[:, value < reach]
            pairs = [near]
            if near.shape[1] <= MOST_PAIRED:
                i, j = np.triu_indices(near.shape[1], 1)
                pairs += [near[:, i] + near[:, j], near[:, i] - near[:, j]]
            parts.append(self.spectral_cuts(x, number, np.hstack(pairs)))
        return Cuts.joined(parts)

    def single_cuts(self, x: Array, reach: float) -> Cuts:
        """Return those of linear and curved inequalities."""
        rows, _, _ = self.linear
        value, error = self.linear_at(x)
        near = value > -reach
        parts = [self._cuts_at(x, rows[near], value[near], error[near], 0.0)]
        owner = 0
        for root, (value, error) in zip(self.curved, self.curved_at(x), strict=True):
            for entry in np.flatnonzero(np.isfinite(value)):
                slope = self._slope(reshape(root, (root.size,))[int(entry)], x)
                if value[entry] > -reach * max(float(np.linalg.norm(slope)), 1e-12):
                    relative = max(float(error[entry]), (ROOM + self.dim) * UNIT)
                    here = slope[None], value[[entry]], error[[entry]]
                    parts.append(self._cuts_at(x, *here, relative, owner + int(entry)))
            owner += root.size
        return Cuts.joined([*parts, *self._steep_cuts(x)])

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
                value, error = self.curved_at(point)[number]
                slope = self._slope(reshape(self.curved[number], (self.curved[number].size,))[entry], point)
                if np.isfinite(value[entry]) and np.isfinite(slope).all():
                    relative = max(float(error[entry]), (ROOM + self.dim) * UNIT)
                    here = slope[None], value[[entry]], error[[entry]]
                    found.append(self._cuts_at(point, *here, relative, int(starts[number]) + entry))
        return found

    def spectral_cuts(self, x: Array, number: int, vectors: Array) -> Cuts:
        """Return the cuts of some vectors, one a column, of a matrix inequality."""
        matrix, offset = self.matrices[number]
        vectors = (vectors / np.linalg.norm(vectors, axis=0)).T
        outer = svec(vectors[:, :, None] * vectors[:, None, :])
        values = -(outer @ (matrix @ x + offset))
        scale = float(np.linalg.norm(x.astype(float)) * spread(matrix) + np.linalg.norm(offset))
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
        return max((side_of(offset) for _, offset in self.matrices), default=0)

    def active(self, x: Array, cuts: Cuts, multipliers: Array) -> Cuts:
        """Return cuts that the multipliers come from, fewer if they can be: those of a matrix belong to its eigenvectors."""
        start = sum(root.size for root in self.curved)
        parts = [cuts.some((multipliers > 0) & (cuts.owners >= 0) & (cuts.owners < start))]
        for number in range(len(self.matrices)):
            value, vector = np.linalg.eigh(self._multiplier(number, cuts, multipliers))
            parts.append(self.spectral_cuts(x, number, vector[:, value > 1e-12 * max(value.max(), 1e-300)]))
        return Cuts.joined(parts)

    def _multiplier(self, number: int, cuts: Cuts, multipliers: Array) -> Array:
        """The matrix that multiplies a matrix inequality."""
        side = side_of(self.matrices[number][1])
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
        for number, (matrix, offset) in enumerate(self.matrices):
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
        sizes = evaluate(part, self.leaves(x.astype(float))).reshape(-1, order="F")
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
        for variable, change in bent(whole, self.leaves(x.astype(float)), moves).items():
            block = self.space.block_of(variable)
            flat = np.broadcast_to(change, (*variable.shape, self.dim)).reshape((-1, self.dim), order="F")
            result[block.slice] += block.lift.T @ flat
        return result

    def _slope(self, entry: Expression, x: Array) -> Array:
        """A subgradient of one entry of a curved inequality, shape (dim,)."""
        slopes = subgradient(entry, self.leaves(x.astype(float)))
        if slopes is None:
            raise MissingRule(
                "an atom of a constraint has no derivative", entry, "write the constraint with other atoms"
            )
        result = np.zeros(self.dim)
        for variable, slope in slopes.items():
            block = self.space.block_of(variable)
            result[block.slice] += block.lift.T @ slope.reshape(-1, order="F")
        return result
