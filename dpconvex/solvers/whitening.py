"""Coordinates in which the objective curves alike in all directions, and projections are as easy as before.

A congruence ``X -> R (X - A) R'`` maps the cone of positive semidefinite matrices with apex A onto the cone itself, so a problem
over cones may be solved in the coordinates ``(R (X - A) R')``: the losses of data whose second moments are far from round then
look nearly round.  Everything else is scaled by one number, which every proximal map survives.  The path may depend on the
data in any way: only the answer counts, and it is certified in the original coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpconvex.geometry.semidefinite import Spectrum, smat, svec
from dpconvex.solvers.composite import Composite

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

# With more cones than this, their curvatures are told apart by random signs instead of one product each.
FEW = 4
PROBES = 3


@dataclass(frozen=True, eq=False)
class Congruence:
    """``X -> R (X - A) R'`` for k symmetric matrices of one size.

    Attributes
    ----------
    coordinates : ndarray of int, shape (k, D(D+1)/2)
    apex, root, inverse : ndarray, shape (k, D, D)
        A, R and the inverse of R.
    sign : ndarray, shape (k,)
        1 for matrices that are bounded from below, -1 from above.
    """

    coordinates: Indices
    apex: Array
    root: Array
    inverse: Array
    sign: Array


class Coordinates:
    """A problem in other coordinates y of theta."""

    def __init__(self, composite: Composite, congruences: tuple[Congruence, ...] = (), scale: float = 1.0) -> None:
        self.composite = composite
        self.congruences = congruences
        self.scale = scale

    def of(self, theta: Array) -> Array:
        y = self.scale * theta
        for c in self.congruences:
            y[c.coordinates] = svec(c.root @ (smat(theta[c.coordinates]) - c.apex) @ swapped(c.root))
        return y

    def point(self, y: Array) -> Array:
        theta = y / self.scale
        for c in self.congruences:
            theta[c.coordinates] = svec(c.inverse @ smat(y[c.coordinates]) @ swapped(c.inverse) + c.apex)
        return theta

    def along(self, y: Array) -> Array:
        theta = y / self.scale
        for c in self.congruences:
            theta[c.coordinates] = svec(c.inverse @ smat(y[c.coordinates]) @ swapped(c.inverse))
        return theta

    def pulled(self, gradient: Array) -> Array:
        """Return a gradient with respect to y from one with respect to theta."""
        result = gradient / self.scale
        for c in self.congruences:
            result[c.coordinates] = svec(swapped(c.inverse) @ smat(gradient[c.coordinates]) @ c.inverse)
        return result

    def pushed(self, gradient: Array) -> Array:
        """Undo `pulled`."""
        result = gradient * self.scale
        for c in self.congruences:
            result[c.coordinates] = svec(swapped(c.root) @ smat(gradient[c.coordinates]) @ c.root)
        return result

    def smooth(self, y: Array) -> tuple[float, Array]:
        """Value and gradient of the smooth part."""
        value, gradient = self.composite.smooth(self.point(y))
        return value, self.pulled(gradient)

    def hessian_product(self, theta: Array, y: Array) -> Array:
        return self.pulled(self.composite.hessian_product(theta, self.along(y)))

    def proximal(self, y: Array, step: float) -> Array:
        """Proximal map of the other part."""
        if not self.congruences:
            return self.scale * self.composite.proximal(y / self.scale, step / self.scale**2)
        result = y.copy()
        for c in self.congruences:
            value, vector = np.linalg.eigh(smat(y[c.coordinates]) * c.sign[:, None, None])
            kept = np.maximum(value, 0.0) * c.sign[:, None]
            result[c.coordinates] = svec((vector * kept[:, None, :]) @ swapped(vector))
        inside = np.concatenate([c.coordinates.ravel() for c in self.congruences])
        if len(inside) < len(y):
            rest = self.composite.proximal(y / self.scale, step / self.scale**2) * self.scale
            rest[inside] = result[inside]
            return rest
        return result


def swapped(matrices: Array) -> Array:
    """Transpose each of a stack of matrices."""
    return np.swapaxes(matrices, -1, -2)


def cones(composite: Composite) -> list[list[Spectrum]]:
    """Pieces of K that are cones of symmetric matrices, those of equal size together."""
    sizes: dict[int, list[Spectrum]] = {}
    for piece in composite.problem.feasible.pieces:
        free = composite.kinks is None or not np.isin(piece.coordinates, composite.kinks.touched).any()
        if free and isinstance(piece, Spectrum) and np.isfinite(piece.lower) != np.isfinite(piece.upper):
            sizes.setdefault(len(piece.shift), []).append(piece)
    return list(sizes.values())


def plain(composite: Composite) -> Coordinates:
    """Return theta's own coordinates."""
    return Coordinates(composite)


def whitened(composite: Composite, theta: Array) -> Coordinates:
    """Choose coordinates by the curvature at a point.

    With weights w_i and matrices z_i z_i', the Hessian is ``sum_i w_i svec(z_i z_i') svec(z_i z_i')'``; its product with the
    identity is ``G = sum_i w_i ||z_i||^2 z_i z_i'``, and the Kronecker square of ``G / sqrt(tr G)`` models it.  Eigenvalues are
    kept above the square root of the strong convexity, which the regularizer adds in all directions alike.
    """
    groups = cones(composite)
    if not groups:
        return plain(composite)
    mu, rng = composite.problem.strong_convexity, np.random.default_rng(0)
    found = [moments(composite, theta, group, rng) for group in groups]
    congruences = []
    for group, matrices in zip(groups, found, strict=True):
        value, vector = np.linalg.eigh(matrices - mu * np.eye(matrices.shape[-1]))
        value = np.maximum(value, 0.0)
        total = np.maximum(value.sum(axis=1, keepdims=True), np.finfo(float).tiny)
        root = np.sqrt(np.maximum(value / np.sqrt(total), np.sqrt(mu)))
        bounds = np.array([p.lower if np.isfinite(p.lower) else p.upper for p in group])
        congruences.append(
            Congruence(
                np.stack([p.coordinates for p in group]),
                np.stack([p.shift for p in group]) + bounds[:, None, None] * np.eye(len(group[0].shift)),
                root[:, :, None] * swapped(vector),
                vector / root[:, None, :],
                np.array([1.0 if np.isfinite(p.lower) else -1.0 for p in group]),
            )
        )
    return Coordinates(composite, tuple(congruences), rest_scale(composite, theta, groups, rng))


def moments(composite: Composite, theta: Array, group: list[Spectrum], rng: np.random.Generator) -> Array:
    """Products of each cone's block of the Hessian with the identity, or estimates of them, shape (k, D, D)."""
    coordinates = np.stack([p.coordinates for p in group])
    unit = svec(np.eye(len(group[0].shift)))
    total = np.zeros((len(group), len(unit)))
    if len(group) <= FEW:
        for k, place in enumerate(coordinates):
            direction = np.zeros(composite.dim)
            direction[place] = unit
            total[k] = composite.hessian_product(theta, direction)[place]
        return smat(total)
    for _ in range(PROBES):
        signs = rng.choice([-1.0, 1.0], size=len(group))
        direction = np.zeros(composite.dim)
        direction[coordinates] = signs[:, None] * unit
        total += signs[:, None] * composite.hessian_product(theta, direction)[coordinates]
    # What other cones add to an estimate has no sign; their mean is a safe guess of each.
    mean = total.mean(axis=0) / PROBES
    return np.broadcast_to(smat(mean), (len(group), *smat(mean).shape)).copy()


def rest_scale(composite: Composite, theta: Array, groups: list[list[Spectrum]], rng: np.random.Generator) -> float:
    """Square root of the curvature in the coordinates outside all cones; 1 if there are none."""
    inside = np.concatenate([p.coordinates for group in groups for p in group])
    outside = np.ones(composite.dim, dtype=bool)
    outside[inside] = False
    if not outside.any():
        return 1.0
    direction = np.where(outside, rng.normal(size=composite.dim), 0.0)
    return float(np.sqrt(composite.curvature_along(theta, direction)))
