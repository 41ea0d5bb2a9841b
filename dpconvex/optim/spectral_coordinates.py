"""Coordinates of K in which f bends evenly, by congruences of its cones, and the derivative of the projection on K there."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpconvex.optim.hessian_models import Dense, LinearMap
from dpconvex.sets.projections import ConvexSet, IntervalSet, Spectral, smat, svec, triangle
from dpconvex.util.arrays import Array, Indices

FLAT = 1e-9  # Directions whose projection moves by less than this fraction are taken to be fixed


@dataclass(frozen=True, eq=False)
class Spectra:
    """Symmetric matrices of one side whose eigenvalues, but for a shift, lie in intervals; `root` is R, if there is one."""

    place: Indices  # of each matrix's coordinates, shape (count, side (side + 1) / 2)
    shift: Array  # shape (count, side, side)
    lower: Array  # shape (count, side)
    upper: Array
    root: Array | None = None

    def moved(self, vector: Array, root: Array) -> Array:
        return svec(root @ smat(vector[..., self.place]) @ root.T)


@dataclass(frozen=True, eq=False)
class Derivative:
    """A derivative of the projection: multiples of the axes of coordinates that are turned by the matrices' eigenvectors."""

    vectors: list[tuple[Indices, Array]]
    weights: Array  # between 0 and 1, shape (dim,)

    def turned(self, vector: Array, back: bool = False) -> Array:
        result = vector.copy()
        for place, turn in self.vectors:
            other = turn.swapaxes(-1, -2)
            left, right = (turn, other) if back else (other, turn)
            result[place] = svec(left @ smat(vector[place]) @ right)
        return result

    def written(self, matrix: Array, chosen: NDArray[np.bool_]) -> Array:
        """Return the matrix in the turned coordinates, those that are chosen."""
        return congruent(matrix, [(place, congruence(turn)) for place, turn in self.vectors], chosen)


def congruence(turn: Array) -> Array:
    """Return the maps from matrices ``X`` to ``turn' X turn``, from rows to columns: (..., D, D) to (..., D(D+1)/2, D(D+1)/2)."""
    row, column, weight = triangle(turn.shape[-1])
    first, second = turn[..., row, :], turn[..., column, :]
    both = first[..., row] * second[..., column] + first[..., column] * second[..., row]
    return np.asarray(both * (weight[:, None] * weight / 2))


def congruent(matrix: Array, maps: list[tuple[Indices, Array]], chosen: NDArray[np.bool_] | None = None) -> Array:
    """Return a quadratic form in other coordinates, of which these are turned by maps; those that are chosen alone."""
    for _ in range(2):
        matrix = matrix.T.copy()
        for places, tables in maps:
            for place, table in zip(places, tables if tables.ndim > 2 else [tables] * len(places), strict=True):
                kept = slice(None) if chosen is None else chosen[place]
                matrix[place[kept]] = table[:, kept].T @ matrix[place]
        matrix = matrix if chosen is None else matrix[chosen]
    return matrix


class Coordinates:
    """K, with or without congruences of its cones: theta is the original point, x the point in new coordinates."""

    def __init__(self, spectra: list[Spectra], intervals: list[IntervalSet]) -> None:
        self.spectra, self.intervals = spectra, intervals

    @classmethod
    def of(cls, pieces: tuple[ConvexSet, ...]) -> "Coordinates | None":
        """Return K in its own coordinates; None if it has pieces of another kind, or no matrices."""
        intervals = [piece for piece in pieces if isinstance(piece, IntervalSet)]
        matrices = [p for p in pieces if isinstance(p, Spectral) and p.symmetric and isinstance(p.inner, IntervalSet)]
        if not matrices or len(intervals) + len(matrices) < len(pieces):
            return None
        spectra = []
        for side in sorted({len(piece.shift) for piece in matrices}):
            own = [piece for piece in matrices if len(piece.shift) == side]
            bounds = [np.array([piece.inner.bounds()[k] for piece in own]) for k in (0, 1)]
            spectra.append(Spectra(np.array([p.coordinates for p in own]), np.array([p.shift for p in own]), *bounds))
        return cls(spectra, intervals)

    def evened(self, curvature: LinearMap, least: float, dim: int) -> "Coordinates":
        """Return congruences from the curvature along the identity, the signs of neighbouring matrices opposed."""
        spectra = []
        for one in self.spectra:
            if not (one.shift.any() or one.lower.any() or np.isfinite(one.upper).any()):  # cones
                count, side = one.shift.shape[:2]
                sign, direction = np.resize([1.0, -1.0], count)[:, None], np.zeros(dim)
                direction[one.place] = sign * svec(np.eye(side))
                values, vectors = np.linalg.eigh(smat((sign * curvature(direction)[one.place]).mean(axis=0)))
                values = np.maximum(values - least, 0.0)
                # A product of features has about this curvature: that of each, over the root of all.
                even = np.maximum(values / np.sqrt(max(values.sum(), 1e-300)), np.sqrt(least))
                one = Spectra(one.place, one.shift, one.lower, one.upper, (vectors / np.sqrt(even)) @ vectors.T)
            spectra.append(one)
        return Coordinates(spectra, self.intervals)

    def original(self, x: Array) -> Array:
        """Return theta, of many points at once; R is symmetric, so this also takes gradients by theta to gradients by x."""
        theta = x.copy()
        for one in self.spectra:
            if one.root is not None:
                theta[..., one.place] = one.moved(x, one.root)
        return theta

    def new(self, theta: Array) -> Array:
        x = theta.copy()
        for one in self.spectra:
            if one.root is not None:
                x[one.place] = one.moved(theta, np.asarray(np.linalg.inv(one.root), dtype=float))
        return x

    def model(self, plain: LinearMap) -> LinearMap:
        """Return a model of the Hessian by x from one by theta."""
        if isinstance(plain, Dense):
            roots = [(one.place, congruence(one.root)) for one in self.spectra if one.root is not None]
            return Dense(congruent(plain.matrix, roots))
        return lambda x: self.original(plain(self.original(x)))

    def project(self, x: Array) -> tuple[Array, Derivative]:
        """Project on K in these coordinates, with the derivative of that."""
        result, weights, turns = x.copy(), np.ones(len(x)), []
        for piece in self.intervals:
            here = piece.coordinates
            result[here] = np.clip(x[here], piece.lower, piece.upper)
            weights[here] = result[here] == x[here]
        for one in self.spectra:
            values, vectors = np.linalg.eigh(smat(x[one.place]) - one.shift)
            inside = np.clip(values, one.lower, one.upper)
            result[one.place] = svec((vectors * inside[:, None]) @ vectors.swapaxes(-1, -2) + one.shift)
            row, column, _ = triangle(values.shape[1])
            apart, moved = values[:, row] - values[:, column], inside[:, row] - inside[:, column]
            equal = np.abs(apart) <= 1e-14 * np.abs(values).max(axis=1, keepdims=True)
            free = (inside == values)[:, row].astype(float)
            weights[one.place] = np.clip(np.where(equal, free, moved / np.where(equal, 1.0, apart)), 0.0, 1.0)
            turns.append((one.place, vectors))
        return result, Derivative(turns, np.where(weights > FLAT, weights, 0.0))
