"""Minima of smooth strongly convex functions over any closed convex set, with a proved distance (`certified_distance`).

Newton steps have quadratic models that a conic solver minimises over K; then models over cuts, or on the face that holds with
equality, reach what rounding allows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import nnls

from dpconvex.geometry.certified_distance import Certified, Smooth, certified_distance
from dpconvex.geometry.convex_sets import UNIT
from dpconvex.geometry.face_polishing import on_face
from dpconvex.geometry.linearised import MOST_PAIRED, Cuts, Linearised

# Of double or extended precision.
Array = NDArray[Any]

NEWTON_STEPS, POLISHING_STEPS, PATIENCE = 60, 100, 10
# Models bend at least by this fraction of the modulus along heights, which cost what they cost.
FLAT = 1e-5
# A Newton step of this size, relative to the point, is followed by polishing.
NEAR = 1e-5
# Inequalities so near to equality, relative to the point, are in the models that polishing minimises.
REACHES = (1e-3, 1e-5, 1e-1)


def minimum(function: Smooth, region: Linearised, start: Array, tolerance: float) -> Certified:
    """Minimise a function over a set, to a tolerance or as exactly as rounding allows."""
    x, step = newton(function, region, region.bring_in(start).astype(float))
    best = Certified(x, np.inf)
    ways: list[Callable[..., Certified]] = [partial(polished, step=step)]
    if region.matrices and not len(function.costs):
        # Wide kernels of matrices have too many pairs for single cuts.
        wide = any((value < NEAR).sum() > MOST_PAIRED for value, _, _ in region.spectra_at(region.on_hull(x)))
        ways.insert(0 if wide else 1, on_face)
    for reach, way in product(REACHES, ways):
        with suppress(np.linalg.LinAlgError):  # what is proved so far stays
            found = way(function, region, x, reach=reach, tolerance=tolerance)
            best = found if found.distance < best.distance else best
        if best.distance <= tolerance:
            break
    return best


def newton(function: Smooth, region: Linearised, x: Array) -> tuple[Array, float]:
    """Step to minima of quadratic models over K, as far as they go downhill; returns a point and the last step's length."""
    value, gradient = function.value_and_gradient(x)
    length = np.inf
    for _ in range(NEWTON_STEPS):
        hessian = function.hessian(x)
        target = region.conic.minimise(hessian, gradient - hessian @ x)
        if target is None:
            break
        target = region.bring_in(target).astype(float)
        step = target - x
        length = float(np.linalg.norm(step))
        slope = float(gradient @ step)
        small = NEAR * (1 + float(np.linalg.norm(x)))
        if slope >= 0 or length == 0:
            break
        share = 1.0
        while share > 1e-12:
            there = function.value_and_gradient(x + share * step)
            if np.isfinite(there[0]) and there[0] <= value + 1e-4 * share * slope + 8 * UNIT * abs(value):
                break
            share /= 2
        else:
            break
        x, (value, gradient) = x + share * step, there
        if share == 1 and length <= small:
            break
    return x, min(length, 1 + float(np.linalg.norm(x)))


def polished(function: Smooth, region: Linearised, x: Array, step: float, reach: float, tolerance: float) -> Certified:
    """Minimise models over cuts, with the curvature of constraints in them, until the proved distance stops shrinking."""
    free = region.free
    least = FLAT if len(function.costs) else 0.5
    near = region.on_hull(x)
    best, waiting = Certified(x, np.inf), 0
    _, gradient = function.value_and_gradient(x)
    hessian = function.hessian(x)
    cuts = last = region.cuts(near, reach * (1 + float(np.linalg.norm(x))))
    y = fitted_multipliers(free.T @ gradient, cuts.rows @ free, -cuts.at(near))
    for number in range(POLISHING_STEPS):
        if number < 3 or number % 4 == 0:
            hessian = function.hessian(x) if number else hessian
            bent = free.T @ (hessian + region.curvature(near, last, y)) @ free
            value, vector = np.linalg.eigh(bent)
            curvature = (vector * np.maximum(value, function.modulus * least)) @ vector.T
        try:
            move, y = quadratic_program(curvature, free.T @ gradient, cuts.rows @ free, -cuts.at(near))
        except (np.linalg.LinAlgError, RuntimeError):  # too flat or too many turns: what is proved so far stays
            break
        near = region.on_hull(near + free @ move)
        step = float(np.linalg.norm(move))
        point = region.bring_in(near)
        x = point.astype(float)
        _, gradient = function.value_and_gradient(x)
        distance = certified_distance(function, region, point, gradient, cuts, y)
        if len(function.costs) and distance > tolerance:
            # Where slopes change faster than steps get short, such as those of entropies, cuts at several points balance.
            fitted = fitted_multipliers(free.T @ gradient, cuts.rows @ free, -cuts.at(point))
            distance = min(distance, certified_distance(function, region, point, gradient, cuts, fitted))
        waiting = 0 if distance < 0.7 * best.distance else waiting + 1
        if distance < best.distance:
            best = Certified(x, distance, float(y.sum()))
        if best.distance <= tolerance or waiting > PATIENCE:
            break
        last, wide = cuts, max(10 * step, reach * (1 + float(np.linalg.norm(x))))
        fresh, old = region.cuts(near, wide), region.active(point, cuts, y)
        cuts = Cuts.joined([fresh, old.some(~old.resembles(fresh))])
    return best


def fitted_multipliers(gradient: Array, rows: Array, slack: Array) -> Array:
    """Return multipliers, not negative, that leave little of a gradient, and are small where there is slack."""
    if not len(rows):
        return np.zeros(0)
    weight = np.maximum(slack, 0.0) * float(np.linalg.norm(gradient)) / max(float(np.abs(slack).max()), 1e-300)
    try:
        found, _ = nnls(np.vstack([rows.T, np.diag(weight)]), np.concatenate([-gradient, np.zeros(len(rows))]))
    except RuntimeError:  # too many turns
        return np.zeros(len(rows))
    return np.asarray(found)


def quadratic_program(hessian: Array, slope: Array, rows: Array, levels: Array) -> tuple[Array, Array]:
    """Minimise ``x' hessian x / 2 + slope' x`` where ``rows x <= levels``: as the point of least norm in a polyhedron.

    C. Lawson, R. Hanson, Solving Least Squares Problems, 1974, chapter 23.  Returns the point and the multipliers.
    """
    size = float(np.trace(hessian)) / max(len(slope), 1) or 1.0
    lower = cholesky(hessian + 1e-13 * size * np.eye(len(slope)), lower=True)
    shift = solve_triangular(lower, slope, lower=True)
    if not len(rows):
        return -solve_triangular(lower, shift, lower=True, trans=1), np.zeros(0)
    turned = solve_triangular(lower, rows.T, lower=True)
    # In v = lower' x + shift, the goal is the norm of v.
    bounds = levels + turned.T @ shift
    length = float(
        np.abs(np.minimum(bounds, 0.0) / np.maximum(np.linalg.norm(turned, axis=0), 1e-300)).max(initial=0.0)
    )
    if length == 0:
        return -solve_triangular(lower, shift, lower=True, trans=1), np.zeros(len(rows))
    system = np.vstack([-turned, -bounds[None] / length])
    target = np.zeros(len(slope) + 1)
    target[-1] = 1.0
    weights, _ = nnls(system, target, maxiter=50 * (len(rows) + len(slope)))
    rest = system @ weights - target
    y = -length * weights / rest[-1]
    v = -(turned @ y)
    move = solve_triangular(lower, v - shift, lower=True, trans=1)
    return refined(hessian, slope, rows, levels, move, y)


def refined(hessian: Array, slope: Array, rows: Array, levels: Array, move: Array, y: Array) -> tuple[Array, Array]:
    """Solve for the same active rows again, so that these hold to the last digit of their levels, however large the slope is."""
    active = y > 0
    count = int(active.sum())
    if not 0 < count <= len(slope):
        return move, y
    basis, triangle = np.linalg.qr(rows[active].T, mode="complete")
    triangle = triangle[:count]
    if not np.abs(np.diag(triangle)).min() > 1e-10 * np.abs(triangle).max():
        return move, y
    across, along = basis[:, :count], basis[:, count:]
    found = across @ solve_triangular(triangle, levels[active], trans=1)
    if count < len(slope):
        # Where a direction hardly bends, the shortest step will do: what is found here only has to be better than `move`.
        reduced = along.T @ hessian @ along, along.T @ (slope + hessian @ found)
        found = found - along @ np.linalg.lstsq(*reduced, rcond=None)[0]
    weights = -solve_triangular(triangle, across.T @ (slope + hessian @ found))
    room = 1e-9 * (float(np.linalg.norm(found)) + float(np.abs(levels[active]).max()))
    room = max(room, float(np.abs(rows[active] @ move - levels[active]).max()))  # what the first answer misses
    if weights.min() < 0 or (rows @ found > levels + room).any():
        return move, y
    better = np.zeros(len(y))
    better[active] = weights
    return np.asarray(found), better
