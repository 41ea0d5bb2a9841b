"""Minima over a set along the central path of a logarithmic barrier (Boyd & Vandenberghe 2004, section 11.3), in any units."""

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.sets.blocks import ABSOLUTE, NONNEGATIVE, SEMIDEFINITE, ConeBlock
from dpconvex.sets.certified_distance import Certified, Smooth, certified_distance
from dpconvex.sets.projections import smat, svec
from dpconvex.sets.region import Region

Array = NDArray[Any]  # of double or extended precision

# Growth factor and number of the objective's weights; Newton steps per weight; weights without progress before the end.
GROWTH, WEIGHTS, STEPS, PATIENCE = 8.0, 80, 30, 8
MOST_SIGNS = 8  # Cones of up to this many absolute values are half-spaces, one per choice of signs
# First weight, relative to the weight with Newton decrement 1: larger weights start near an edge, with very short steps.
FIRST = 1e-6
CENTRED, SHORTEST = 1e-12, 1e-12  # Newton decrement of a centred point, and the shortest share of a step


def central_path(function: Smooth, region: Region, tolerance: float) -> Certified:
    """Return a certified minimiser over a set with a point inside, to a tolerance or as exactly as rounding allows."""
    x, waiting = np.asarray(region.inside, dtype=np.longdouble), 0
    best, pull = Certified(x.astype(float), np.inf), barrier(region, x)
    gradient = function.value_and_gradient(x.astype(float))[1]
    if pull is None or not np.isfinite(gradient).all():
        return best
    weight = FIRST / max(newton_step(region, pull[2], gradient)[1], 1e-300) ** 0.5
    for _ in range(WEIGHTS):
        x = centred(function, region, x, weight)
        found = barrier(region, x)
        assert found is not None
        blocks = [*region.blocks, *region.cuts(x)]
        point = region.bring_in(x)
        gradient = function.value_and_gradient(point.astype(float))[1]
        distance = certified_distance(function, region, point, gradient, blocks, [dual / weight for dual in found[3]])
        waiting = 0 if distance < 0.7 * best.distance else waiting + 1
        best = min(best, Certified(point.astype(float), distance), key=lambda one: one.distance)
        if best.distance <= tolerance or waiting > PATIENCE:
            break
        weight *= GROWTH
    return best


def centred(function: Smooth, region: Region, x: Array, weight: float) -> Array:
    """Return the minimiser of ``weight * function`` plus the barrier, a point inside, from the point x inside."""
    for _ in range(STEPS):
        now = barrier(region, x)
        assert now is not None
        value, gradient = function.value_and_gradient(x.astype(float))
        bend = weight * function.hessian(x.astype(float)) + now[2]
        move, decrement = newton_step(region, bend, weight * gradient + now[1])
        if not decrement > CENTRED:
            break
        merit = weight * value + now[0]
        room, share = 1e-13 * (abs(weight * value) + abs(now[0])), 1.0
        while share > SHORTEST:
            there = region.on_hull(x + share * move)
            ahead = height(region, there)
            if np.isfinite(ahead):
                reached = weight * function.value_and_gradient(there.astype(float))[0] + ahead
                if reached <= merit - 1e-3 * share * decrement + room:
                    break
            share /= 2
        else:
            break
        x = there
        if decrement <= room:  # further steps would oscillate
            break
    return x


def newton_step(region: Region, bend: Array, slope: Array) -> tuple[Array, float]:
    """Return Newton's step within the equations, and its squared decrement; both are 0 if the system is singular."""
    basis = region.hull[1]
    bend, slope = basis.T @ bend @ basis, basis.T @ slope
    unit = 1 / np.sqrt(np.maximum(np.diag(bend), 1e-300))
    try:
        step = -unit * np.linalg.solve(unit[:, None] * bend * unit, unit * slope)
    except np.linalg.LinAlgError:
        return np.zeros(region.dim), 0.0
    return basis @ step, -float(slope @ step)


def height(region: Region, x: Array) -> float:
    """Return the barrier at a point; infinite outside."""
    parts = [of_cone(block, block.at(x)) for block in region.blocks]
    left = [-region.curved_at(root, x)[0] for root in region.curved]
    if any(part is None for part in parts) or not all((one > 0).all() for one in left):
        return np.inf
    return sum(part[0] for part in parts if part) - sum(float(np.log(one).sum()) for one in left)


def barrier(region: Region, x: Array) -> tuple[float, Array, Array, list[Array]] | None:
    """Return the barrier, its gradient, its Hessian and multipliers by block at a point inside; None elsewhere."""
    level, slope, bend, duals = 0.0, np.zeros(region.dim), np.zeros((region.dim,) * 2), list[Array]()
    cuts = region.cuts(x)
    for block in [*region.blocks, *cuts]:
        parts, matrix = of_cone(block, block.at(x)), block.matrix.toarray()
        if parts is None or len(cuts) < len(region.curved):
            return None
        level, slope = level + parts[0], slope - matrix.T @ parts[1].astype(float)
        bend, duals = bend + matrix.T @ parts[2] @ matrix, [*duals, parts[1]]
    return level, slope, bend + region.curvature(x, duals[len(region.blocks) :]), duals


def of_cone(block: ConeBlock, value: Array) -> tuple[float, Array, Array] | None:
    """Return the barrier of a cone, minus its gradient, and its Hessian; None if the value is not inside."""
    if block.kind in (NONNEGATIVE, ABSOLUTE):
        rows = np.eye(len(value))
        if block.kind == ABSOLUTE:
            if len(value) > MOST_SIGNS + 1:
                return None
            rows = np.array([(1.0, *signs) for signs in product((-1.0, 1.0), repeat=len(value) - 1)])
        left = rows @ value
        if not (left > 0).all():
            return None
        pull = 1 / left
        return -float(np.log(left).sum()), rows.T @ pull, (rows.T * pull.astype(float) ** 2) @ rows
    if block.kind == SEMIDEFINITE:
        size, vector = np.linalg.eigh(smat(value.astype(float)))
        if not (size > 0).all():
            return None
        inverse = (vector / size) @ vector.T
        return -float(np.log(size).sum()), svec(inverse), svec(inverse @ smat(np.eye(len(value))) @ inverse)
    length = np.sqrt(np.sum(value[1:] ** 2))
    left = (value[0] - length) * (value[0] + length)
    if not (value[0] > 0 and left > 0):
        return None
    pull = 2 * np.concatenate([value[:1], -value[1:]]) / left
    bend = np.outer(pull.astype(float), pull.astype(float)) - 2 / float(left) * np.diag(
        [1.0] + [-1.0] * (len(value) - 1)
    )
    return -float(np.log(left)), pull, bend
