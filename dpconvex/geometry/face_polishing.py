"""Polishing on a face of matrix inequalities: points at which given eigenvalues vanish, and multipliers that belong to them.

Next to a minimiser many eigenvalues of a matrix inequality vanish at once.  Single cuts ``v' X v >= 0`` do not say that all
products ``u' X v`` vanish on the kernel, and with many vectors there are too many pairs.  Here the whole kernel block is an
equation, and its multiplier a semidefinite matrix.  Multipliers need not be unique: of all that balance the gradient one is
taken that is well inside the cone.  What is found is certified like any other point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.geometry.certified_distance import Certified, Smooth, certified_distance
from dpconvex.geometry.linearised import Cuts, Linearised
from dpconvex.geometry.semidefinite import smat, svec

# Of double or extended precision.
Array = NDArray[Any]

STEPS, PATIENCE = 12, 3
# Rounds of the search for multipliers, how far inside the cone they should be, for each unit of their mean, and when that halves.
ROUNDS, INSIDE, HALVED = 2000, 0.05, 100
# Directions of rows that are smaller than this, relatively, repeat others.
REPEATED = 1e-9


@dataclass(frozen=True, eq=False)
class Face:
    """What holds with equality at a point: cuts of linear and curved inequalities, and kernels of matrix inequalities.

    Attributes
    ----------
    single : Cuts
        Of linear and curved inequalities.
    kernels : list of ndarray, shape (side, k) each
        Orthonormal vectors, for each matrix inequality.
    rows : ndarray, shape (m, dim)
        Of the cuts, then of the svec of each kernel block.
    values : ndarray, shape (m,)
    """

    single: Cuts
    kernels: list[Array]
    rows: Array
    values: Array

    @classmethod
    def at(cls, region: Linearised, x: Array, single: Cuts, widths: Sequence[int]) -> Face:
        """Find the kernels of given widths at a point."""
        kernels, rows, values = [], [single.rows], [single.at(x)]
        for (matrix, offset), (_, vector, _), width in zip(region.matrices, region.spectra_at(x), widths, strict=True):
            kernel = vector[:, :width]
            kernels.append(kernel)
            place = np.triu_indices(width)
            outer = kernel[:, place[0]].T[:, :, None] * kernel[:, place[1]].T[:, None, :]
            outer = (
                svec((outer + np.swapaxes(outer, 1, 2)) / 2) * np.where(place[0] == place[1], 1.0, np.sqrt(2))[:, None]
            )
            rows.append(-np.asarray((matrix.T @ outer.T).T))
            values.append(np.asarray(-outer @ (matrix @ x + offset), dtype=float))
        return cls(single, kernels, np.concatenate(rows), np.concatenate(values))

    def clipped(self, y: Array, inside: float) -> Array:
        """Return multipliers in their cone near some; `inside` is how far inside, for each unit of their mean."""
        result, start = y.copy(), len(self.single)
        result[:start] = np.maximum(y[:start], 0.0)
        for block in self.blocks(start):
            value, vector = np.linalg.eigh(smat(y[block]))
            least = inside * float(np.maximum(value, 0.0).mean())
            result[block] = svec((vector * np.maximum(value, least)) @ vector.T)
        return result

    def blocks(self, start: int) -> list[slice]:
        """Where the multipliers of each kernel stand, after `start` others; kernels of nothing have none."""
        sizes = [kernel.shape[1] * (kernel.shape[1] + 1) // 2 for kernel in self.kernels]
        ends = start + np.cumsum([0, *sizes])
        return [slice(a, b) for a, b in pairwise(ends.tolist()) if b > a]

    def cuts(self, region: Linearised, x: Array, y: Array) -> tuple[Cuts, Array]:
        """Return cuts of the kernels' combinations that the multipliers speak of, and the multiplier of each."""
        start = len(self.single)
        parts, weights, blocks = [self.single], [y[:start]], iter(self.blocks(start))
        for number, kernel in enumerate(self.kernels):
            if kernel.shape[1]:
                value, vector = np.linalg.eigh(smat(y[next(blocks)]))
                parts.append(region.spectral_cuts(x, number, kernel @ vector))
                weights.append(value)
        return Cuts.joined(parts), np.maximum(np.concatenate(weights), 0.0)


def on_face(function: Smooth, region: Linearised, x: Array, reach: float, tolerance: float) -> Certified:
    """Step to the minimum over the face that holds with equality next to a point, until the proved distance stops shrinking."""
    free, near, waiting = region.free, region.on_hull(x), 0
    best, wide = Certified(x, np.inf), reach * (1 + float(np.linalg.norm(x)))
    widths = [int((value < wide).sum()) for value, _, _ in region.spectra_at(near)]
    for number in range(STEPS):
        single = region.single_cuts(near, wide)
        face = Face.at(region, near, single, widths)
        point = region.bring_in(near)
        x = point.astype(float)
        _, gradient = function.value_and_gradient(x)
        y = multipliers(free.T @ gradient, face.rows @ free, face)
        cuts, weights = face.cuts(region, near, y)
        distance = certified_distance(function, region, point, gradient, cuts, weights)
        waiting = 0 if distance < 0.7 * best.distance else waiting + 1
        if distance < best.distance:
            best = Certified(x, distance, float(weights.sum()))
        if best.distance <= tolerance or waiting > PATIENCE or number == STEPS - 1:
            break
        kept = np.ones(len(y), dtype=bool)
        kept[: len(single)] = y[: len(single)] > 0
        bent = free.T @ (function.hessian(x) + region.curvature(near, cuts, weights)) @ free
        _, gradient = function.value_and_gradient(near.astype(float))
        rows = face.rows[kept] @ free
        near = region.on_hull(
            near + free @ newton_step(bent, function.modulus, free.T @ gradient, rows, -face.values[kept])
        )
    return best


def multipliers(gradient: Array, rows: Array, face: Face) -> Array:
    """Return multipliers in their cone that balance a gradient, by projections on the cone and on what balances it."""
    inverse = np.linalg.pinv(rows.T, rcond=REPEATED)
    y = -inverse @ gradient
    for number in range(ROUNDS):
        inside = face.clipped(y, INSIDE / 2 ** (number // HALVED))
        y = inside - inverse @ (rows.T @ inside + gradient)
        if np.array_equal(face.clipped(y, 0.0)[: len(face.single)], y[: len(face.single)]) and all(
            np.linalg.eigvalsh(smat(y[block]))[0] >= 0 for block in face.blocks(len(face.single))
        ):
            return y
    return face.clipped(y, 0.0)


def newton_step(hessian: Array, modulus: float, gradient: Array, rows: Array, levels: Array) -> Array:
    """Minimise a quadratic model where rows have their levels, as nearly as they can have them together."""
    left, size, right = np.linalg.svd(rows, full_matrices=True)
    rank = int((size > REPEATED * size.max(initial=0.0)).sum())
    move = right[:rank].T @ (left[:, :rank].T @ levels / size[:rank])
    along = right[rank:].T
    value, vector = np.linalg.eigh(along.T @ hessian @ along)
    slope = along.T @ (gradient + hessian @ move)
    return np.asarray(move - along @ (vector @ ((vector.T @ slope) / np.maximum(value, modulus / 2))))
