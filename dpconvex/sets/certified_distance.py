"""Proved bounds on the distance of a point of K from the minimiser, by multipliers (docs/theory.md, section 13)."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.numerics import EPSILON
from dpconvex.sets.blocks import EXTENDED, NONNEGATIVE, ConeBlock
from dpconvex.sets.region import Region

Array = NDArray[Any]  # of double or extended precision

DIRECTIONS = 12  # Random directions in `relative_rounding`
# Numbers in `exact_feasible_point` are multiples of 2^-FINE; all double-precision numbers are multiples of 2^-WHOLE.
FINE, WHOLE = 240, 1074
NEARS = 1e-6, 1e-10, 1e-14  # Rows this near to equality, relative to the size of a point, count as tight


class Smooth(Protocol):
    """A differentiable strongly convex function; its last coordinates may be heights of an epigraph, with linear costs."""

    @property
    def modulus(self) -> float: ...  # of strong convexity, in all coordinates but heights

    @property
    def costs(self) -> Array: ...  # of heights; empty if there are none

    def value_and_gradient(self, x: Array) -> tuple[float, Array]: ...

    def hessian(self, x: Array) -> Array: ...  # approximate; steps depend on it, proofs do not

    def gradient_error(self, x: Array, gradient: Array) -> float: ...

    def lowered(self, x: Array) -> Array: ...  # with heights lowered to the terms below


@dataclass(frozen=True, eq=False)
class Certified:
    """A point of K, up to rounding to double precision, and a bound on its distance from the minimiser."""

    point: Array
    distance: float


def certified_distance(
    function: Smooth, region: Region, x: Array, gradient: Array, blocks: Sequence[ConeBlock], multipliers: list[Array]
) -> float:
    """Return a bound on the distance of a point of K from the minimiser, from arbitrary multipliers, one vector per block."""
    mu, count = function.modulus, len(function.costs)
    duals = [block.dual(z) for block, z in zip(blocks, multipliers, strict=True)]
    if count:
        duals = scale_to_costs(blocks, duals, function.costs)
    spaces = [block.half_space(z, x) for block, z in zip(blocks, duals, strict=True)]
    slope = gradient + sum((space.row for space in spaces), np.zeros(len(gradient)))
    if count:
        if not (np.abs(slope[-count:]) <= 1e-9 * function.costs).all():
            return np.inf
        slope[-count:] = 0.0  # exact, up to the rounding of the multipliers, which is added
    sizes = sum(float(np.linalg.norm(space.row)) for space in spaces) + float(np.linalg.norm(gradient))
    residual = float(np.linalg.norm(region.hull[1].T @ slope)) + sum(space.error for space in spaces)
    residual += function.gradient_error(x.astype(float), gradient) + 2 * EPSILON * (len(spaces) + len(x)) * sizes
    residual += float(np.linalg.norm(region.tilt * slope))
    ends = [(sum(space.gap for space in spaces), region.off_hull(x))]
    if region.is_polyhedral and spaces:
        exact = (exact_feasible_point(region, x, blocks[0], spaces[0].z, near) for near in NEARS)
        units = 4 * EPSILON * float(np.linalg.norm(x.astype(float)))
        fine = (found for point, *found in exact if float(np.linalg.norm(point - x.astype(float))) <= units)
        ends.append(next(((left, off) for left, off in fine), ends[0]))
    gap, off = min((gap + 2 * off * sizes, off) for gap, off in ends)
    rounded = 5 * EPSILON * float(np.linalg.norm(x.astype(float)))
    share = 2.0 if count else 4.0  # all strong convexity may be in the terms below the heights
    root = float(np.hypot(residual, np.sqrt(share * mu * gap * (1 + 1e-9))))  # infinite where a square would overflow
    return (residual + root) / (mu if count else 2 * mu) + off + rounded


def scale_to_costs(blocks: Sequence[ConeBlock], multipliers: Sequence[Array], costs: Array) -> list[Array]:
    """Return multipliers scaled to add up to the cost of each height; where all are 0, they stay 0, and prove nothing."""
    count = len(costs)
    heights = [abs(sp.coo_array(block.matrix[:, -count:])) for block in blocks]
    given, paid = [np.array(z) for z in multipliers], np.zeros(count)
    for table, z in zip(heights, given, strict=True):
        paid += np.bincount(table.col, (table.data * z[table.row]).astype(float), count)
    scale = np.divide(costs, paid, out=np.zeros(count), where=paid > 0)
    for block, table, z in zip(blocks, heights, given, strict=True):
        if block.kind == NONNEGATIVE:
            z[table.row] *= scale[table.col]
        elif table.nnz:
            z *= scale[table.col[0]]
    return [block.dual(z) for block, z in zip(blocks, given, strict=True)]


def exact_feasible_point(
    region: Region, x: Array, block: ConeBlock, z: Array, near: float
) -> tuple[Array, float, float]:
    """Return a point of a polyhedron near x, by exact arithmetic, its gap and its distance from the equations, maybe infinite."""
    equations, values = region.system
    count, size, unit = len(values), float(np.linalg.norm(x.astype(float))), 2.0**-FINE
    rows = np.concatenate([equations, block.matrix.toarray()])
    slopes = as_multiples(rows, WHOLE)
    offsets = as_multiples(np.concatenate([-values, block.offset.astype(float)]), WHOLE + FINE)

    def left(at: Any) -> Array:
        """Return all left-hand sides, rounded down to a multiple of 2^-FINE."""
        return np.array([float(Fraction(v, 2**FINE)) for v in (slopes @ at + offsets) >> WHOLE])

    point, inner = (as_multiples(y.astype(float), FINE) for y in (x, region.inside))
    tight = np.concatenate([np.ones(count, dtype=bool), (z > 0) & (block.at(x) <= near * (region.scale + size))])
    inverse = np.linalg.pinv(rows[tight], rcond=1e-12)
    for _ in range(8):
        point += as_multiples(-inverse @ left(point)[tight], FINE)
    missed = np.maximum(-left(point)[count:], 0.0)
    if missed.any():  # move towards the point inside
        share = as_multiples(2 * np.max(missed / np.maximum(left(inner)[count:], EPSILON)), FINE) + 1
        point = point + ((share * (inner - point)) >> FINE)
    slack = left(point)[count:]
    rounded = np.array([float(Fraction(v, 2**FINE)) for v in point])
    if (slack < 0).any():
        return rounded, np.inf, np.inf
    off = float(np.linalg.norm(left(point)[:count])) + unit * (count + 1)
    return rounded, float(z @ slack + z.sum() * unit) * (1 + 1e-9), off / region.hull[2] * (1 + 1e-9)


def as_multiples(numbers: Array | float, bits: int) -> Any:
    """Return numbers as multiples of ``2^-bits``, rounded towards 0: an array of Python integers."""
    values, place = np.unique(np.ravel(numbers), return_inverse=True)  # most are 0
    found = np.array([int(Fraction(v) * 2**bits) for v in values.tolist()], dtype=object)
    return found[place].reshape(np.shape(numbers))


def longest_row(region: Region) -> float:
    """Return a bound on the gradient norm of a condition with multiplier 1, at least 1; cuts are taken at the point inside."""
    blocks = [*region.blocks, *region.cuts(region.inside)]
    return max([1.0, *(float((np.max if b.kind == NONNEGATIVE else np.sum)(b.norms)) for b in blocks)])


def relative_rounding(region: Region, radius: float) -> float:
    """Return the largest rounding error of conditions, relative to margins at `inside`, at random points of norm `radius`."""
    rng = np.random.default_rng(0)
    points = [region.bring_in(radius * v / np.linalg.norm(v)) for v in rng.normal(size=(DIRECTIONS, region.dim))]
    errors = [region.margins(point)[1].astype(float) + region.off_hull(point) for point in [region.inside, *points]]
    return float((np.max(errors, axis=0) / region.depth).max(initial=EXTENDED))
