"""Minimises smooth strongly convex functions over closed convex sets, by Newton steps, with a proved distance."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import lstsq

from dpconvex.numerics import EPSILON
from dpconvex.sets.atom_domains import has_kinks
from dpconvex.sets.barrier import central_path
from dpconvex.sets.blocks import ABSOLUTE, NONNEGATIVE, SECOND_ORDER, SEMIDEFINITE, ConeBlock, size_of
from dpconvex.sets.certified_distance import NEARS, Certified, Smooth, certified_distance, exact_feasible_point
from dpconvex.sets.conic_programs import clarabel_answer
from dpconvex.sets.projections import smat, svec
from dpconvex.sets.region import Region

Array = NDArray[Any]  # of double or extended precision

NEWTON_STEPS, LAST_STEPS, PATIENCE, BUNDLE_STEPS = 60, 40, 4, 100
NEAR = 1e-7  # After a Newton step of this size, relative to the point, `last_steps` takes over
REACH = 1e4  # Conditions that are farther away, in units of a step, are left out
ROUND = 1e-4  # Relative size below which eigenvalues and norms count as near 0
# Number of guesses of tight inequalities, and the largest system of optimality conditions to solve directly.
ROUNDS, MOST_REFINED = 12, 500
FAR = 1e8  # A set with points this far away counts as unbounded


def minimum(function: Smooth, region: Region, start: Array, tolerance: float) -> Certified:
    """Return a certified minimiser over a set, to a tolerance or as exactly as rounding allows; at last by a central path."""
    start, best, unit = region.bring_in(start).astype(float), Certified(start, np.inf), region.scale
    for _ in range(2):
        x, step = newton(function, region, start, unit, tolerance)
        best = min(best, last_steps(function, region, x, step, tolerance), key=lambda one: one.distance)
        if best.distance <= tolerance or region.curved:
            break
        _, gradient = function.value_and_gradient(start)
        bend = max(float(np.linalg.norm(function.hessian(start) @ gradient)), 1e-300)
        unit += min(float(gradient @ gradient) / bend, FAR)  # a gradient step's length: sets may be flat, and wide
    if best.distance > tolerance and any(map(has_kinks, region.curved)):
        best = min(best, bundle_method(function, region, x, tolerance), key=lambda one: one.distance)
    if best.distance > tolerance:
        central = central_path(function, region, tolerance)
        best = min(best, central, key=lambda one: one.distance)
        if best.distance > tolerance:
            end = last_steps(function, region, central.point, central.distance, tolerance)
            best = min(best, end, key=lambda one: one.distance)
    return best


def newton(function: Smooth, region: Region, x: Array, unit: float, tolerance: float) -> tuple[Array, float]:
    """Take Newton steps over K with a line search; return the last point and the length of the last step."""
    value, gradient = function.value_and_gradient(x)
    length = np.inf
    for _ in range(NEWTON_STEPS):
        hessian = function.hessian(x)
        if region.curved:
            target = region.conic.minimise(hessian, gradient - hessian @ x)
        else:
            found = model(region, region.blocks, x, hessian, gradient, unit)
            target = None if found is None else x + found[0]
        if target is None:
            break
        step = region.bring_in(function.lowered(target)).astype(float) - x
        length, slope, share = float(np.linalg.norm(step)), float(gradient @ step), 1.0
        if slope >= 0:
            break
        while share > 1e-30:
            there = function.value_and_gradient(x + share * step)
            if np.isfinite(there[0]) and there[0] <= value + 1e-4 * share * slope + 8 * EPSILON * abs(value):
                break
            share /= 2
        else:
            break
        lower = value - there[0] > 8 * EPSILON * abs(value)
        x, (value, gradient) = x + share * step, there
        # End at short full steps without measurable descent or within the tolerance; losses may bend within 1e-6 of |x|.
        near = share == 1 and length <= NEAR * float(np.linalg.norm(x)) and not (lower and length > tolerance)
        if near or -slope <= EPSILON * abs(value):
            break
    return x, length


def last_steps(function: Smooth, region: Region, x: Array, step: float, tolerance: float) -> Certified:
    """Return the best certified point from minima of models near x; stop when the proved distance stops shrinking."""
    size, count = region.scale + float(np.linalg.norm(x)), len(region.blocks)
    best, waiting, near, last = Certified(x, np.inf), 0, region.on_hull(x), 0.0
    unit = min(max(step, 1e-6 * size), 1e-2 * size)
    known: list[Array] = []
    _, gradient = function.value_and_gradient(x)
    for number in range(LAST_STEPS):
        cuts = region.cuts(near)
        blocks = [*region.blocks, *cuts]
        duals = [known[k] if known and k < count else np.zeros(len(block.offset)) for k, block in enumerate(blocks)]
        parts = [linearised(block, near, REACH * unit, z, size) for block, z in zip(blocks, duals, strict=True)]
        if number < 3 or number % 4 == 0:
            hessian = function.hessian(near.astype(float))
        bent = hessian + sum(curvature for _, _, curvature in parts)
        if len(cuts) == len(region.curved) == len(known) - count:
            bent = bent + region.curvature(near, known[count:])
        found = model(region, [part for part, _, _ in parts], near, bent, gradient, unit)
        end = near if found is None else function.lowered(region.on_hull(near + found[0]))
        length = np.inf if found is None else float(np.linalg.norm((end - near).astype(float)))
        if found is None or (length > 1e3 * unit and unit < size):  # beyond the range of the model
            unit, waiting = min(length, 10 * unit, size), waiting + (found is None)
            if waiting > PATIENCE:
                break
            continue
        if known:  # before, the curvature of conditions was not known
            # After a step without progress, take half a step: near an axis, full steps of p-norms with p < 2 oscillate.
            near, unit = near + (end - near) / (2 if waiting else 1), min(max(length, 1e-13 * size), 4 * unit)
        known = [turn @ z for (_, turn, _), z in zip(parts, found[1], strict=True)]
        point = region.bring_in(near)
        x = point.astype(float)
        _, gradient = function.value_and_gradient(x)
        distance = certified_distance(function, region, point, gradient, blocks, known)
        # Near the end of a logarithm's domain, steps only scale the distance to it: progress since the last step counts too.
        waiting, last = 0 if distance < 0.7 * max(best.distance, last) else waiting + 1, distance
        best = min(best, Certified(x, distance), key=lambda one: one.distance)
        if best.distance <= tolerance or waiting > PATIENCE:
            break
    # At a sharp corner, `bring_in` moves points by many units in the last place.
    for corner in NEARS if best.distance > tolerance and region.is_polyhedral and known and count else ():
        end = region.on_hull(best.point)
        x, gap, _ = exact_feasible_point(region, end, blocks[0], np.maximum(known[0], 0.0), corner)
        if gap == np.inf:  # x is not in K
            continue
        _, gradient = function.value_and_gradient(x)
        distance = certified_distance(function, region, x, gradient, blocks, known)
        best = min(best, Certified(x, distance), key=lambda one: one.distance)
    return best


def bundle_method(function: Smooth, region: Region, x: Array, tolerance: float) -> Certified:
    """Return a point certified by collected linearisations of functions with kinks (bundle method, C. Lemarechal 1975)."""
    best, near, moved = Certified(x, np.inf), region.bring_in(x), True
    unit = size = region.scale + float(np.linalg.norm(x))
    count, bundle = len(region.blocks), region.cuts(near)
    for _ in range(BUNDLE_STEPS):
        if moved:
            hessian, slope = function.hessian(near.astype(float)), function.value_and_gradient(near.astype(float))[1]
        blocks = [*region.blocks, *bundle]
        found = model(region, blocks, near, hessian, slope, unit)
        if found is None:
            break
        move, multipliers = found
        end = region.on_hull(near + move)
        distance = certified_distance(function, region, near, slope, blocks, multipliers)
        best = min(best, Certified(near.astype(float), distance), key=lambda one: one.distance)
        point = region.bring_in(function.lowered(end))
        there = function.value_and_gradient(point.astype(float))[1]
        distance = certified_distance(function, region, point, there, blocks, multipliers)
        moved = distance < best.distance
        if moved:
            best, near = Certified(point.astype(float), distance), point
        if best.distance <= tolerance:
            break
        largest = max(float(z.max(initial=0.0)) for z in multipliers)
        pulling = [z.max(initial=0.0) > 1e-9 * largest for z in multipliers[count:]]
        bundle = [block for block, pulls in zip(bundle, pulling, strict=True) if pulls] + region.cuts(end)
        # In units below the tolerance, conic solvers lose digits of multipliers.
        unit = min(max(float(np.linalg.norm(move.astype(float))), tolerance, 1e-13 * size), size)
    return best


def linearised(block: ConeBlock, x: Array, reach: float, z: Array, size: float) -> tuple[ConeBlock, Any, Array | float]:
    """Return a condition to second order near x: a condition on short moves, a map back of multipliers, and curvature."""
    value, norms = block.at(x), block.norms
    kind, turn, curvature = (spectral if block.kind == SEMIDEFINITE else entrywise)(block, value.astype(float), z, size)
    if kind in (SECOND_ORDER, ABSOLUTE):  # drop a whole cone out of reach: the point may be near its axis
        across = np.linalg.norm if kind == SECOND_ORDER else np.sum
        if block.margins(x)[0][0] > reach * (norms[0] + float(across(norms[1:]))):
            kind, turn = NONNEGATIVE, np.zeros((len(value), 0))
    matrix, offset = sp.csr_array(turn.T @ block.matrix), turn.T @ value
    if block.kind == SECOND_ORDER and kind == NONNEGATIVE and len(offset):  # without the rounding of a direction
        offset = block.margins(x)[0]
    part = ConeBlock(kind, matrix, offset, x)
    if kind == NONNEGATIVE:  # drop rows out of reach
        near = np.flatnonzero(offset.astype(float) <= reach * part.norms)
        part, turn = ConeBlock(kind, sp.csr_array(matrix[near]), offset[near], x), turn[:, near]
    return part, turn, curvature


def entrywise(block: ConeBlock, value: Array, z: Array, size: float) -> tuple[str, Any, Array | float]:
    count = len(value)
    if block.kind == NONNEGATIVE:
        return NONNEGATIVE, sp.eye_array(count, format="csc"), 0.0
    if block.kind == ABSOLUTE:  # entries away from 0 keep their signs
        small = np.flatnonzero(np.abs(value[1:]) <= ROUND * (size * block.norms[1:] + abs(value[0])))
        turn = np.zeros((count, 1 + len(small)))
        turn[:, 0] = np.concatenate([[1.0], -np.sign(value[1:])])
        turn[1 + small, 0], turn[1 + small, 1 + np.arange(len(small))] = 0.0, 1.0
        return (ABSOLUTE if len(small) else NONNEGATIVE), turn, 0.0
    length = float(np.linalg.norm(value[1:]))
    if length <= ROUND * (size * float(block.norms.max()) + abs(value[0])):
        return SECOND_ORDER, np.eye(count), 0.0
    direction = value[1:] / length
    inner = block.matrix[1:].toarray()
    across = inner - np.outer(direction, direction @ inner)
    return NONNEGATIVE, np.concatenate([[1.0], -direction])[:, None], float(z[0]) / length * (across.T @ across)


def spectral(block: ConeBlock, value: Array, z: Array, size: float) -> tuple[str, Any, Array | float]:
    """Restrict a matrix inequality to the eigenvectors of small eigenvalues; the other eigenvalues give its curvature."""
    eigenvalue, vector = np.linalg.eigh(smat(value))
    largest = max(float(np.abs(eigenvalue).max()), size_of(block.offset), size * float(block.norms.max(initial=0.0)))
    small = eigenvalue <= ROUND * largest
    if not small.any():
        return NONNEGATIVE, np.zeros((len(value), 0)), 0.0
    kernel, basis = vector[:, small], smat(np.eye(len(value)))
    turn = svec(kernel.T @ basis @ kernel)
    if not z.any():
        return SEMIDEFINITE, turn, 0.0
    inverted = (vector * np.where(small, 0.0, 1 / np.where(small, 1.0, eigenvalue))) @ vector.T
    multiplier = smat(z.astype(float))
    bend = svec(inverted @ basis @ multiplier + multiplier @ basis @ inverted)
    found = np.asarray(block.matrix.T @ np.asarray((block.matrix.T @ bend).T))
    return SEMIDEFINITE, turn, (found + found.T) / 2


def model(
    region: Region, blocks: Sequence[ConeBlock], x: Array, hessian: Any, gradient: Array, unit: float
) -> tuple[Array, list[Array]] | None:
    """Return the minimiser m of ``<gradient, m> + m' hessian m / 2`` over allowed moves, and multipliers by block; or None."""
    dim, (equations, values) = region.dim, region.system
    # An l1 cone has an auxiliary variable above each entry, placed after the move.
    extra = sum(len(block.offset) - 1 for block in blocks if block.kind == ABSOLUTE)
    rows: list[Any] = [sp.csr_array(np.hstack([equations, np.zeros((len(values), extra))]))]
    offsets, cones, start = [values - equations @ x], [("zero", len(values))], dim
    for block in blocks:
        offset, kind = block.at(x), block.kind
        matrix = sp.csr_array(sp.hstack([-block.matrix, sp.csr_array((len(offset), extra))]))
        if kind == ABSOLUTE:
            count, kind = len(offset) - 1, NONNEGATIVE
            sizes = sp.csr_array(sp.eye_array(count, dim + extra, k=start))
            start += count
            matrix = sp.vstack([matrix[[0]] + sizes.sum(axis=0)[None], matrix[1:] - sizes, -matrix[1:] - sizes])
            offset = np.concatenate([offset, -offset[1:]])
        rows.append(matrix)
        offsets.append(offset)
        cones.append((kind, len(offset)))
    joined, offset = sp.csc_array(sp.vstack(rows)), np.concatenate([part.astype(float) for part in offsets]) / unit
    pull = np.concatenate([gradient / unit, np.zeros(extra)])
    bent = sp.csc_array(sp.block_diag([sp.csc_array(hessian), sp.csc_array((extra, extra))]))
    answer = clarabel_answer(bent, pull, joined, offset, cones)
    if answer is None:
        return None
    if all(kind == NONNEGATIVE for kind, _ in cones[1:]):
        answer = refine(bent.toarray(), pull, joined.toarray(), offset, answer, cones[0][1])
    multipliers = np.split(unit * answer[1], np.cumsum([size for _, size in cones])[:-1])[1:]
    for k, block in enumerate(blocks):
        if block.kind == ABSOLUTE:
            top, above, below = np.split(multipliers[k], [1, len(block.offset)])
            multipliers[k] = np.concatenate([top, above - below])
    return unit * answer[0][:dim], multipliers


def refine(
    bent: Array, pull: Array, rows: Array, offset: Array, answer: tuple[Array, Array], equations: int
) -> tuple[Array, Array]:
    """Return a solution with more digits, from the optimality conditions as linear equations; `answer` if no guess works."""
    v, z = answer
    slack, free = offset - rows @ v, np.arange(len(z)) >= equations
    squares = np.maximum((rows**2).sum(axis=1), 1e-300)
    tight = free & (z * squares > slack * float(np.abs(bent).max(initial=0.0) or 1.0))
    for _ in range(ROUNDS):
        chosen = np.flatnonzero(tight | ~free)
        if len(v) + len(chosen) > MOST_REFINED:
            return answer
        right = np.concatenate([-pull, offset[chosen]])
        matrix = np.block([[bent, rows[chosen].T], [rows[chosen], np.zeros((len(chosen),) * 2)]])
        solution, unit = np.zeros(len(right)), np.ones(len(right))
        for _ in range(4):  # Ruiz scaling: no row is large beside others
            largest = np.abs(unit[:, None] * matrix * unit).max(axis=1)
            unit /= np.sqrt(np.where(largest > 0, largest, 1.0))
        scaled, extended = unit[:, None] * matrix * unit, matrix.astype(np.longdouble)
        for _ in range(3):  # refinement: multipliers may be large beside moves
            left = (right - extended @ solution).astype(float)
            solution = solution + unit * lstsq(scaled, unit * left, lapack_driver="gelsy", cond=1e-15)[0]
        if not np.isfinite(solution).all():
            return answer
        new_v, new_z = solution[: len(v)], np.zeros(len(z))
        new_z[chosen] = solution[len(v) :]
        room = 1e-12 * (np.abs(offset) + np.abs(rows) @ np.abs(new_v))
        outside = free & ~tight & (offset - rows @ new_v < -room)
        pulling = tight & (new_z < -1e-12 * np.abs(new_z).max(initial=0.0))
        if not outside.any() and not pulling.any():
            return new_v, np.where(tight, np.maximum(new_z, 0.0), new_z)
        tight = (tight & ~pulling) | outside
    return answer


def axis_bounds(region: Region, coordinates: NDArray[np.int64], known: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return bounds on single coordinates over a set by multipliers (docs/theory.md, section 17), or by `known` if tighter."""
    count, goals = len(coordinates), np.eye(region.dim)[coordinates]
    blocks = [block for block in region.blocks if block.matrix[:, coordinates].nnz]  # without unrelated blocks
    away = 1e3 * FAR * np.random.default_rng(0).normal(size=region.dim)
    seen = [region.conic.minimise(np.eye(region.dim), -side * away, 1e3 * FAR) for side in (-1, 1)]
    far = np.array([region.bring_in(point).astype(float) for point in seen if point is not None])
    far = far.reshape(-1, region.dim)[:, coordinates]
    # No multipliers bound a coordinate if a point of the set is far away.
    open_ends = np.concatenate([(side * far > FAR).any(axis=0) for side in (-1, 1)])
    found = [
        (np.inf, np.zeros(region.dim)) if is_open else linear_bound(region, blocks, goal)
        for is_open, goal in zip(open_ends, np.concatenate([-goals, goals]), strict=True)
    ]
    end, rest = np.array([level for level, _ in found]), np.array([missed for _, missed in found])
    # The residual of a goal is bounded if its coordinates are bounded on both sides by multipliers.
    bounded, fine = np.zeros(region.dim, dtype=bool), np.isfinite(end)
    for _ in range(count + 1):
        bounded[coordinates] = fine[:count] & fine[count:]
        fine = np.isfinite(end) & ~rest[:, ~bounded].any(axis=1)
    within = np.tile(bounded[coordinates], 2)
    largest = float(np.abs(end[within]).max(initial=0.0))
    share = float(rest[within].sum(axis=1).max(initial=0.0))
    if not share < 0.5:
        return known
    # The largest coordinate M among these has M <= largest + share M.
    room = rest.sum(axis=1) * largest / (1 - share) * (1 + 1e-9)
    end = np.where(fine, np.nextafter(end + room, np.inf), np.inf)
    return np.maximum(known[0], -end[:count]), np.minimum(known[1], end[count:])


def linear_bound(region: Region, blocks: list[ConeBlock], goal: Array) -> tuple[float, Array]:
    """Return b and r such that ``<goal, theta> <= b + <r, |theta|>`` where blocks hold; b is infinite if none is found."""
    dim, x = region.dim, region.inside
    if region.curved:
        target = region.conic.minimise(np.zeros((dim, dim)), -goal)
        if target is None or not float(np.abs(target).max(initial=0.0)) < FAR:
            return np.inf, np.zeros(dim)
        x = region.bring_in(target)
        blocks = [*blocks, *region.cuts(x)]
    found = model(region, blocks, x, sp.csc_array((dim, dim)), -goal, 1.0)
    if found is None or not float(np.abs(found[0]).max(initial=0.0)) < FAR:
        return np.inf, np.zeros(dim)
    point = region.bring_in((x + found[0]).astype(float))
    spaces = [block.half_space(block.dual(z), point) for block, z in zip(blocks, found[1], strict=True)]
    rest = goal - sum((space.row for space in spaces), np.zeros(dim))
    tied = region.system[0].any(axis=0)
    # The part of the rest along equations and fixed coordinates is constant on the set.
    loose = np.where(tied, region.hull[1] @ (region.hull[1].T @ np.where(tied, rest, 0.0)), rest)
    loose[region.fixed] = 0.0
    used = tied | (goal != 0)
    for block, space in zip(blocks, spaces, strict=True):
        used |= (abs(block.matrix).T @ (space.z != 0)) > 0
    steep = 1 + sum(float(np.linalg.norm(space.row)) for space in spaces)
    error = sum(space.error for space in spaces) + (4 * EPSILON * (dim + len(spaces)) + region.tilt) * steep
    bound = float((goal - loose) @ point) + sum(space.gap for space in spaces)
    room = error * size_of(point) + region.off_hull(point) * (1 + float(np.linalg.norm(rest)))
    return bound + room, np.abs(loose) + np.where(used & ~region.fixed, error, 0.0)
