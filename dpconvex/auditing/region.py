"""Where the search may go: parameters in K, records in their domains."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.atoms.arrangement import vec
from dpconvex.core.atoms.norms import sum_squares
from dpconvex.core.atoms.sums import add
from dpconvex.core.expression import Field, constant
from dpconvex.core.record_domains import Ball, Box
from dpconvex.core.to_cvxpy import ConicProgram
from dpconvex.errors import NotConverged
from dpconvex.geometry.convex_sets import Spectral

Array = NDArray[np.float64]

# Directions in which a feasible set without a projection is explored, and how far its points are pulled inside, so that
# the accuracy of the solver that found them does not matter.
EXPLORED, INSIDE = 24, 1e-6


class Region:
    """The feasible set K, as the search moves in it; `points` are some of it where it has no projection."""

    def __init__(self, form: LossForm, rng: np.random.Generator) -> None:
        self.feasible = form.feasible
        self.points = None if form.feasible.has_projection else explore(form, rng)

    def enter(self, theta: Array, rng: np.random.Generator) -> Array:
        """Return points of K for points of the space, shape (B, dim): the nearest ones, or any."""
        if self.points is None:
            return self.project(theta)
        return np.asarray(rng.dirichlet(np.full(len(self.points), 0.2), size=len(theta)) @ self.points)

    def project(self, theta: Array) -> Array:
        """Project every row on K, shape (B, dim)."""
        theta = theta.copy()
        for piece in self.feasible.pieces:
            part = theta[:, piece.coordinates]
            if isinstance(piece, Spectral):
                part = Spectral.project_all([piece] * len(theta), part)
            else:
                part = np.stack([piece.project(row) for row in part])
            theta[:, piece.coordinates] = part
        return theta


def explore(form: LossForm, rng: np.random.Generator) -> Array:
    """Return points of a feasible set that has no projection, shape (m, dim)."""
    space = form.space
    goals = {name: Field.of((block.dim,), f"goal for {name}") for name, block in space.blocks.items()}
    distances = [
        sum_squares(constant(block.lift.T) @ vec(block.variable) - goals[name]) for name, block in space.blocks.items()
    ]
    program = ConicProgram(add(*distances), form.constraints)
    aims = unit(rng.normal(size=(EXPLORED, space.dim))) * 10.0 ** rng.uniform(-1, 3, size=(EXPLORED, 1))
    aims[0] = 0.0
    tried = [program.solve({goal: aim[space.blocks[name].slice] for name, goal in goals.items()}) for aim in aims]
    points = [space.pack(found) for found in tried if found is not None]
    if not points:
        raise NotConverged(f"falsify: no point of the feasible set was found: {form.feasible.describe()}")
    table = np.stack(points)
    return np.asarray(table + INSIDE * (table.mean(axis=0) - table))


def unit(vectors: Array) -> Array:
    """Divide each row by its norm; zero stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)


def project_field(domain: Ball | Box, values: Array) -> Array:
    """Project values of a field on its domain, in the Euclidean norm."""
    if isinstance(domain, Box) or domain.norm != 1:
        return domain.project(values)
    # Held, Wolfe & Crowder 1974: shrink all coordinates by the amount that makes the remaining sum the radius.
    sizes = -np.sort(-np.abs(values), axis=1)
    shrink = (np.cumsum(sizes, axis=1) - domain.radius) / np.arange(1, values.shape[1] + 1)
    last = (sizes > shrink).sum(axis=1, keepdims=True) - 1
    amount = np.maximum(np.take_along_axis(shrink, np.maximum(last, 0), axis=1), 0.0)
    return np.asarray(np.sign(values) * np.maximum(np.abs(values) - amount, 0.0))


def shaped(factors: Any, values: Any) -> Any:
    """Give numbers for each of a batch as many axes as its values have."""
    return factors.reshape(-1, *[1] * (np.ndim(values) - 1))
