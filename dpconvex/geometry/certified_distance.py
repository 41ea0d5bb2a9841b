"""How far a point is from the minimiser of a strongly convex function over any closed convex set: a bound, from multipliers.

Let F be mu-strongly convex and differentiable, x a point of K, and ``v_i + <s_i, . - p_i> <= 0`` cuts of K with multipliers
y_i >= 0.  With ``g = grad F(x) + sum_i y_i s_i + E' nu`` for the equations' rows E and any nu, and the duality gap
``gamma = -sum_i y_i (v_i + <s_i, x - p_i>)``,

    ||x - minimiser|| <= (||g|| + sqrt(||g||^2 + 4 mu gamma)) / (2 mu)

(docs/theory.md, section 13).  Nothing that a solver says is used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpconvex.geometry.convex_sets import UNIT
from dpconvex.geometry.linearised import Cuts, Linearised

# Of double or extended precision.
Array = NDArray[Any]


class Smooth(Protocol):
    """A differentiable strongly convex function."""

    @property
    def modulus(self) -> float:
        """Of strong convexity, in all coordinates but the last `costs`."""
        ...

    @property
    def costs(self) -> Array:
        """What heights cost, which are the last coordinates; empty if there are none."""
        ...

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Both at a point."""
        ...

    def hessian(self, x: Array) -> Array:
        """An approximation of the matrix of second derivatives; steps depend on it, proofs do not."""
        ...

    def gradient_error(self, x: Array, gradient: Array) -> float: ...


@dataclass(frozen=True, eq=False)
class SquaredDistance:
    """Half the squared distance from a point, whose minimum over K is a projection."""

    center: Array
    modulus: float = 1.0
    costs: Array = field(default_factory=lambda: np.zeros(0))

    def value_and_gradient(self, x: Array) -> tuple[float, Array]:
        """Both at a point."""
        away = x - self.center
        return 0.5 * float(away @ away), away

    def hessian(self, x: Array) -> Array:
        """The identity."""
        return np.eye(len(x))

    def gradient_error(self, x: Array, gradient: Array) -> float:
        """One subtraction."""
        return UNIT * float(np.linalg.norm(gradient))


@dataclass(frozen=True, eq=False)
class Certified:
    """A point of K (but for rounding to double precision) and a bound on its distance from the minimiser."""

    point: Array
    distance: float
    multipliers: float = 0.0


def certified_distance(
    function: Smooth, region: Linearised, x: Array, gradient: Array, cuts: Cuts, multipliers: Array
) -> float:
    """Bound the distance of a point of K from the minimiser, from multipliers of any origin (negative ones count as 0)."""
    y, mu = np.maximum(multipliers, 0.0), function.modulus
    count = len(function.costs)
    if count:
        shares = shared_out(y, cuts.rows[:, -count:], function.costs)
        if shares is None:
            return np.inf
        y = shares
    whole = gradient + y @ cuts.rows
    if count:
        if (np.abs(whole[-count:]) > 1e-9 * function.costs).any():
            return np.inf
        whole[-count:] = 0.0  # exactly, but for the rounding of the multipliers, which is added
    sizes = float(y @ np.linalg.norm(cuts.rows, axis=1)) + float(np.linalg.norm(gradient))
    residual = float(np.linalg.norm(region.free.T @ whole)) + float(y @ cuts.slope_errors)
    residual += function.gradient_error(x, gradient) + 2 * UNIT * (len(y) + len(x)) * sizes
    gap = float(y @ (np.maximum(-cuts.at(x), 0.0) + cuts.error_at(x)))
    off = region.off_hull(x)
    gap += 2 * off * sizes
    rounded = UNIT * float(np.linalg.norm(x.astype(float)))
    if count:  # the terms below the heights may have all of the strong convexity
        return (residual + float(np.sqrt(residual**2 + 2 * mu * gap * (1 + 1e-9)))) / mu + off + rounded
    return (residual + float(np.sqrt(residual**2 + 4 * mu * gap))) / (2 * mu) + off + rounded


def shared_out(multipliers: Array, slopes: Array, costs: Array) -> Array | None:
    """Scale multipliers so that those of the cuts below each height add up to its cost; each cut is below one at most."""
    weight = multipliers[:, None] * -slopes
    sums = weight.sum(axis=0)
    if not (sums > 0).all():
        return None
    return np.where(slopes.any(axis=1), multipliers * ((slopes != 0) @ (costs / sums)), multipliers)
