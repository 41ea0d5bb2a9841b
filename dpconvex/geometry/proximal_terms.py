"""Norms of groups of coordinates, and nuclear norms, in a regularizer, with their proximal maps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.atoms.matrices import NORM_NUC
from dpconvex.core.atoms.norms import NORM
from dpconvex.core.expression import Expression
from dpconvex.core.parameter_space import Space
from dpconvex.geometry.convex_sets import UNIT
from dpconvex.geometry.linear_maps import affine_map, groups
from dpconvex.geometry.semidefinite import smat, svec
from dpconvex.geometry.stated_sets import rectangle, symmetric

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Groups:
    """The function ``sum_k weights_k ||theta[k-th group]||``, of groups that have nothing in common.

    Attributes
    ----------
    support : ndarray of int, shape (m,)
        Coordinates in a group.
    labels : ndarray of int, shape (m,)
        Which group each is in.
    weights : ndarray, shape (k,)
    """

    support: Indices
    labels: Indices
    weights: Array

    def _lengths(self, theta: Array) -> Array:
        return np.sqrt(np.bincount(self.labels, theta[self.support] ** 2, minlength=len(self.weights)))

    def value(self, theta: Array) -> float:
        """Evaluate at coordinates, shape (dim,)."""
        return float(self.weights @ self._lengths(theta))

    def proximal(self, theta: Array, step: float) -> Array:
        """Minimise ``value(x) + ||x - theta||^2 / (2 step)`` over x: shorten each group."""
        length = self._lengths(theta)
        share = np.maximum(length - step * self.weights, 0.0) / np.where(length > 0, length, 1.0)
        point = theta.copy()
        point[self.support] *= share[self.labels]
        return point

    def error(self, norm: float, step: float) -> float:
        """Bound how far a computed proximal point of coordinates of a norm can be from the exact one."""
        size = norm + step * float(np.linalg.norm(self.weights))
        return 8.0 * (int(np.bincount(self.labels).max()) + 24) * UNIT * size

    def rows(self) -> list[set[int]]:
        """The coordinates of each group."""
        return [set(self.support[self.labels == k].tolist()) for k in range(len(self.weights))]


@dataclass(frozen=True, eq=False)
class Nuclear:
    """A weight times the sum of the singular values of ``X - shift``, X of one coordinate an entry, or symmetric (its svec)."""

    support: Indices
    weight: float
    shift: Array
    is_symmetric: bool

    def _parts(self, theta: Array) -> tuple[Array, Array, Array]:
        here = theta[self.support]
        if self.is_symmetric:
            value, vector = np.linalg.eigh(smat(here) - self.shift)
            return vector, value, vector.T
        return np.linalg.svd(here.reshape(self.shift.shape, order="F") - self.shift, full_matrices=False)

    def value(self, theta: Array) -> float:
        """Evaluate at coordinates, shape (dim,)."""
        return self.weight * float(np.abs(self._parts(theta)[1]).sum())

    def proximal(self, theta: Array, step: float) -> Array:
        """Minimise ``value(x) + ||x - theta||^2 / (2 step)`` over x: shrink the spectrum."""
        left, value, right = self._parts(theta)
        matrix = self.shift + (left * (np.sign(value) * np.maximum(np.abs(value) - step * self.weight, 0.0))) @ right
        point = theta.copy()
        point[self.support] = svec(matrix) if self.is_symmetric else matrix.reshape(-1, order="F")
        return point

    def error(self, norm: float, step: float) -> float:
        """Bound how far a computed proximal point of coordinates of a norm can be from the exact one."""
        side = max(self.shift.shape)
        size = norm + 2 * float(np.linalg.norm(self.shift)) + step * self.weight * float(np.sqrt(side))
        return 8.0 * (side + 24) * UNIT * size


Term = Groups | Nuclear


def term_of(part: Expression, weights: Array, space: Space) -> Term | None:
    """Read weighted entries of an atom as a term; None if it has no proximal map here."""
    if part.atom not in (NORM, NORM_NUC) or (weights < 0).any():
        return None
    inner = part.args[0]
    if not inner.is_affine or inner.is_constant:
        return None
    matrix, offset = affine_map(inner, space)
    if part.atom is NORM_NUC:
        whole = symmetric(matrix, offset) if inner.shape[0] == inner.shape[1] else None
        found = whole or rectangle(matrix, offset, inner.shape)
        if found is None:
            return None
        coordinates, scale, shift = found
        return Nuclear(coordinates, float(weights[0]) * abs(scale), shift, whole is not None)
    if part.option("p") != 2 or offset.any():
        return None
    place, support, labels = groups(part), [], []
    sizes: list[float] = []
    for k in np.flatnonzero(weights):
        radial = isometric(sp.csr_array(matrix[place == k]))
        if radial is None:
            return None
        support.append(radial[0])
        labels.append(np.full(len(radial[0]), len(sizes)))
        sizes.append(float(weights[k]) * radial[1])
    joined = np.concatenate(support)
    return Groups(joined, np.concatenate(labels), np.array(sizes)) if len(set(joined.tolist())) == len(joined) else None


def isometric(matrix: sp.csr_array) -> tuple[Indices, float] | None:
    """Return columns c and s > 0 such that ``||matrix @ x|| = s ||x[c]||``, but for the rounding of s."""
    gram = sp.csr_array(matrix.T @ matrix)
    diagonal = gram.diagonal()
    columns = np.flatnonzero(diagonal)
    if not len(columns):
        return None
    square = float(diagonal[columns].mean())
    difference = abs(gram[columns][:, columns] - square * sp.eye_array(len(columns)))
    return (columns, float(np.sqrt(square))) if float(difference.max()) <= 16 * UNIT * square else None
