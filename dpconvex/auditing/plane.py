"""Laws of an answer in the plane: the density inside K, and what noise piles up on the faces of a box or a disc.

At an interior theta the answer has the density ``nu(-grad F) det hess F``.  On a face, all noise ``-grad F - n``, n in the normal
cone, leads to the same answer, so the density along an edge is an integral over n, and a corner has a mass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpconvex.auditing.masses import Masses

Array = NDArray[np.float64]
LogNoise = Callable[[Array], Array]
# Gradient, shape (m, 2) to (m, 2), and Hessian, (m, 2) to (m, 2, 2), of an objective without noise.
Slopes = Callable[[Array], tuple[Array, Array]]

# Nodes of the quadrature over a normal direction.
NODES = 80


@dataclass(frozen=True, eq=False)
class Rectangle:
    """Bounds of both coordinates, shape (2,) each, possibly infinite."""

    lower: Array
    upper: Array

    def cells(self, center: Array, reach: Array, count: int) -> tuple[Array, Array]:
        """Return midpoints of cells around the center, shape (m, 2), and their areas, shape (m,)."""
        low, high = np.maximum(center - reach, self.lower), np.minimum(center + reach, self.upper)
        side = (np.arange(count) + 0.5) / count
        x, y = (low[k] + (high[k] - low[k]) * side for k in range(2))
        points = np.stack([a.ravel() for a in np.meshgrid(x, y, indexing="ij")], axis=1)
        inside = np.all(high > low)
        return points, np.full(len(points), float(np.prod((high - low) / count)) if inside else 0.0)

    def faces(self, center: Array, reach: Array, count: int, far: float) -> list[tuple[Array, Array, Array, Array]]:
        """Return for each face (points (m, 2), lengths (m,), normals (m, q, 2) with weights (m, q))."""
        node, weight = np.polynomial.legendre.leggauss(NODES)
        node, weight = far * (node + 1) / 2, far * weight / 2
        side = (np.arange(count) + 0.5) / count
        found = []
        for k in range(2):
            other = 1 - k
            low = max(center[other] - reach[other], self.lower[other])
            high = min(center[other] + reach[other], self.upper[other])
            for bound, sign in ((self.lower[k], -1.0), (self.upper[k], 1.0)):
                if not np.isfinite(bound) or low >= high:
                    continue
                points = np.empty((count, 2))
                points[:, k], points[:, other] = bound, low + (high - low) * side
                normal = np.zeros((count, NODES, 2))
                normal[:, :, k] = sign * node
                found.append((points, np.full(count, (high - low) / count), normal, np.tile(weight, (count, 1))))
        return found

    def corners(self, far: float) -> list[tuple[Array, Array, Array]]:
        """Return for each corner (point (2,), normals (q, 2), weights (q,))."""
        node, weight = np.polynomial.legendre.leggauss(NODES)
        node, weight = far * (node + 1) / 2, far * weight / 2
        both = np.stack([a.ravel() for a in np.meshgrid(node, node, indexing="ij")], axis=1)
        weights = np.outer(weight, weight).ravel()
        found = []
        for a, left in ((self.lower[0], -1.0), (self.upper[0], 1.0)):
            for b, down in ((self.lower[1], -1.0), (self.upper[1], 1.0)):
                if np.isfinite([a, b]).all():
                    found.append((np.array([a, b]), both * np.array([left, down]), weights))
        return found


@dataclass(frozen=True, eq=False)
class Patch(Rectangle):
    """A set inside a rectangle whose faces are left out, which makes what is found smaller."""

    inside: Callable[[Array], NDArray[np.bool_]]

    def cells(self, center: Array, reach: Array, count: int) -> tuple[Array, Array]:
        """Return midpoints of cells, and their areas: 0 outside of the set."""
        points, area = super().cells(center, reach, count)
        return points, area * self.inside(points)

    def faces(self, center: Array, reach: Array, count: int, far: float) -> list[tuple[Array, Array, Array, Array]]:
        """Return none."""
        return []

    def corners(self, far: float) -> list[tuple[Array, Array, Array]]:
        """Return none."""
        return []


@dataclass(frozen=True, eq=False)
class Disc:
    """A disc ``||theta - middle|| <= radius``."""

    middle: Array
    radius: float

    def cells(self, center: Array, reach: Array, count: int) -> tuple[Array, Array]:
        """Return midpoints of cells, shape (m, 2), and their areas, shape (m,).

        Cells are polar, or squares that lie inside the disc where answers fill a small part of it only.
        """
        side = (np.arange(count) + 0.5) / count
        if reach.max() < self.radius / 2:
            points, area = Rectangle(self.middle - self.radius, self.middle + self.radius).cells(center, reach, count)
            half = np.minimum(reach, self.radius) / count
            furthest = np.linalg.norm(np.abs(points - self.middle) + half, axis=1)
            return points, area * (furthest <= self.radius)
        r, a = (grid.ravel() for grid in np.meshgrid(self.radius * side, 2 * np.pi * side, indexing="ij"))
        points = self.middle + np.stack([r * np.cos(a), r * np.sin(a)], axis=1)
        return points, r * (self.radius / count) * (2 * np.pi / count)

    def rim(self, center: Array, reach: Array, count: int) -> tuple[Array, float]:
        """Return angles on the rim at which answers may lie, shape (count,), and the angle between them."""
        toward = center - self.middle
        half = min(np.pi, 2 * float(reach.max()) / self.radius)
        middle = float(np.arctan2(toward[1], toward[0]))
        return middle + half * (2 * (np.arange(count) + 0.5) / count - 1), 2 * half / count


def plane_masses(
    region: Rectangle | Disc,
    first: Slopes,
    second: Slopes,
    log_noise: LogNoise,
    center: Array,
    reach: Array,
    far: float,
    count: int,
) -> Masses:
    """Return masses of cells, faces and corners for two objectives."""
    points, area = region.cells(center, reach, count)
    masses: list[list[Array]] = []
    for objective in (first, second):
        gradient, hessian = objective(points)
        found = [np.exp(log_noise(-gradient)) * np.maximum(determinant(hessian), 0.0) * area]
        if isinstance(region, Disc):
            found.append(circle(region, objective, log_noise, center, reach, far, 4 * count))
        else:
            found.extend(edges(region, objective, log_noise, center, reach, far, 4 * count))
        masses.append(found)
    return Masses(np.concatenate(masses[0]), np.concatenate(masses[1]))


def determinant(matrix: Array) -> Array:
    return np.asarray(matrix[:, 0, 0] * matrix[:, 1, 1] - matrix[:, 0, 1] * matrix[:, 1, 0])


def edges(
    region: Rectangle, objective: Slopes, log_noise: LogNoise, center: Array, reach: Array, far: float, count: int
) -> list[Array]:
    """Return masses along the edges and in the corners of a rectangle."""
    found = []
    for points, length, normal, weight in region.faces(center, reach, count, far):
        gradient, hessian = objective(points)
        along = 0 if np.ptp(points[:, 1]) == 0 else 1
        density = (np.exp(log_noise(-gradient[:, None, :] - normal)) * weight).sum(axis=1)
        found.append(density * np.maximum(hessian[:, along, along], 0.0) * length)
    for point, normal, weight in region.corners(far):
        gradient, _ = objective(point[None])
        found.append(np.array([(np.exp(log_noise(-gradient - normal)) * weight).sum()]))
    return found


def circle(
    region: Disc, objective: Slopes, log_noise: LogNoise, center: Array, reach: Array, far: float, count: int
) -> Array:
    """Return masses along the rim of a disc: noise ``-grad F - n r`` at an angle has the Jacobian ``n + radius t'Ht``."""
    node, weight = np.polynomial.legendre.leggauss(NODES)
    node, weight = far * (node + 1) / 2, far * weight / 2
    angle, between = region.rim(center, reach, count)
    normal = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    tangent = np.stack([-np.sin(angle), np.cos(angle)], axis=1)
    gradient, hessian = objective(region.middle + region.radius * normal)
    bend = region.radius * np.einsum("mi,mij,mj->m", tangent, hessian, tangent)
    noise = -gradient[:, None, :] - node[None, :, None] * normal[:, None, :]
    density = np.exp(log_noise(noise)) * np.maximum(bend[:, None] + node, 0.0) * weight
    return np.asarray(density.sum(axis=1) * between)
