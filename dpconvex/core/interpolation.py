"""A function of one variable whose slope is piecewise linear: convex, with known bounds of slope and curvature by construction.

It stands in for a function that is given as a program.  Of that, nothing can be proved by evaluating it; of the stand-in,
everything is in the table: between neighbouring nodes its slope is linear, so it lies between theirs, and its curvature is their
difference divided by their distance.  Beyond the table it is affine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Sampler = Callable[[Array], tuple[Array, Array]]

# Slopes between nodes are right to this fraction of the steepest one.
ACCURACY = 1e-9
# The stand-in may miss what it stands for by this fraction of the steepest slope; if it must by more, a claim is false.
MISSED = 1e-6
# Slopes beyond the declared ones by this fraction of the steepest are rounding.
ROUNDING = 1e-9
# The function must be finite as far out as this, and its slopes are compared with the declared ones as far as the other.
FINITE, FARTHEST = 1e9, 300
# The table ends here, within the range of single precision.
END = 1e30
MOST_NODES = 1 << 17
ROUNDS = 60
# Values are right to this fraction of the numbers in computing them.
ROUNDED = 64 * float(np.finfo(float).eps)
NOT_FINITE = (
    "is not finite, with a finite derivative, on the whole real line",
    "write it so that it neither overflows nor leaves its domain (numpy.logaddexp, numpy.where)",
)


class Broken(Exception):
    """A claim that does not hold: what is wrong, and what to do."""


@dataclass(frozen=True, eq=False)
class PiecewiseQuadratic:
    """The convex function with given slopes at given nodes, linear between them.

    Attributes
    ----------
    nodes : ndarray, shape (k,)
        Increasing.
    values, slopes : ndarray, shape (k,)
        At the nodes.
    bends : ndarray, shape (k - 1,)
        Curvature between neighbouring nodes.
    """

    nodes: Array
    values: Array
    slopes: Array
    bends: Array

    @cached_property
    def _pieces(self) -> tuple[Array, Array, Array, Array]:
        """Anchor, value, slope and curvature of each piece: the left tail, those between nodes, the right tail."""
        parts = (np.append(part[:1], part) for part in (self.nodes, self.values, self.slopes))
        anchor, value, slope = parts
        return anchor, value, slope, np.concatenate([[0.0], self.bends, [0.0]])

    def evaluate(self, m: Array, order: int = 0) -> Array:
        """Evaluate the function, or its first or second derivative."""
        anchor, value, slope, bend = (p[np.searchsorted(self.nodes, m, side="right")] for p in self._pieces)
        d = m - anchor
        return np.asarray((value + d * (slope + bend * d / 2), slope + bend * d, bend)[order])

    def apply(self, m: Any) -> Any:
        """Evaluate the function on a JAX array, so that it can be traced and differentiated."""
        import jax.numpy as jnp

        place = jnp.searchsorted(jnp.asarray(self.nodes), m, side="right")
        anchor, value, slope, bend = (jnp.asarray(part)[place] for part in self._pieces)
        d = m - anchor
        return value + d * (slope + bend * d / 2)


def built(
    sample: Sampler, slope: tuple[float, float], curvature: float, lower: float
) -> tuple[PiecewiseQuadratic, dict[str, float]]:
    """Return the stand-in for a function, with the declared constants, and how far these are reached."""
    steepest = max(abs(slope[0]), abs(slope[1]))
    unit = steepest / curvature if steepest and curvature else 1.0
    nodes, values, slopes = refined(sample, *sampled(sample, unit), steepest)
    seen = float(slopes.min()), float(slopes.max())
    room = ROUNDING * steepest
    if not (slope[0] - room <= seen[0] and seen[1] <= slope[1] + room):
        raise Broken(
            f"has slopes in [{seen[0]:.6g}, {seen[1]:.6g}], outside the declared {list(slope)}",
            "declare slopes that hold on the whole real line: at least those",
        )
    rising = np.maximum.accumulate(slopes)
    if not (rising - slopes).max() <= MISSED * steepest:
        raise Broken(
            "is not convex: its derivative decreases somewhere", "declare a convex function; no other is minimised here"
        )
    check_values(nodes, values, slopes, steepest, unit)
    if np.isfinite(lower) and not slope[0] <= 0 <= slope[1]:
        raise Broken("is not bounded below, as declared: its slopes have one sign", "declare no lower bound")
    if lower > -np.inf and not float(values.min()) >= lower - ROUNDING * (abs(lower) + steepest * unit):
        raise Broken(
            f"takes the value {values.min():.6g}, below the declared lower bound {lower:.6g}",
            "declare a lower bound that holds on the whole real line, or none",
        )
    inside = np.abs(nodes) <= END
    nodes, rising = thinned(*cropped(nodes[inside], np.clip(rising[inside], *slope), steepest), steepest)
    bound = bent(nodes, rising, curvature)
    bends = np.diff(rising) / np.diff(nodes)
    if not (rising - bound).max() <= MISSED * steepest:
        raise Broken(
            f"has curvature {bends.max(initial=0.0):.6g}, above the declared {curvature:.6g}, or a kink",
            "declare a curvature that holds on the whole real line, or smooth the kink",
        )
    ratios = {
        "slope, observed/declared": max(abs(seen[0]), abs(seen[1])) / steepest if steepest else 1.0,
        "curvature, observed/declared": float(bends.max(initial=0.0)) / curvature if curvature else 1.0,
    }
    return integrated(sample, nodes, bound, curvature, lower, steepest), ratios


def check_values(nodes: Array, values: Array, slopes: Array, steepest: float, unit: float) -> None:
    """Refuse a function that rises between neighbouring nodes by other than its slopes: it jumps."""
    with np.errstate(over="ignore", invalid="ignore"):  # far out; what is no number is refused
        width, rise = np.diff(nodes), np.diff(values)
        least, most = np.minimum(slopes[:-1], slopes[1:]) * width, np.maximum(slopes[:-1], slopes[1:]) * width
        size = np.abs(values) + steepest * (np.abs(nodes) + 1.0)
        room = ROUNDING * steepest * (width + unit) + ROUNDED * (size[1:] + size[:-1])
        outside = ~((least - room <= rise) & (rise <= most + room)) & (np.abs(nodes[1:]) <= END)
    if outside.any():
        k = int(np.argmax(outside))
        raise Broken(
            f"jumps: between {nodes[k]:.6g} and {nodes[k + 1]:.6g} it rises by {rise[k]:.6g}, and by its slopes by "
            f"{least[k]:.6g} to {most[k]:.6g}",
            "declare a continuous function, whose derivative is that of its values (no rounding, no detours by numpy.where)",
        )


def sampled(sample: Sampler, unit: float) -> tuple[Array, Array, Array]:
    """Return nodes on all scales and at random, dense where the function can bend, with values and slopes."""
    rng = np.random.default_rng(0)
    outer = np.concatenate([np.logspace(-6, FARTHEST, 16 * (FARTHEST + 6)), 10.0 ** rng.uniform(-6, 9, 4096)])
    inner = np.concatenate([unit * np.linspace(-64, 64, 4097), np.linspace(-1e3, 1e3, 8001)])
    nodes = np.unique(np.concatenate([-outer, inner, outer, unit * rng.uniform(-64, 64, 4096)]))
    values, slopes = sample(nodes)
    finite = np.isfinite(values) & np.isfinite(slopes)
    if not finite[np.abs(nodes) <= FINITE].all():
        raise Broken(*NOT_FINITE)
    # Programs overflow far out, where what runs is affine; what comes after an overflow is left out.
    last = int(np.argmin(np.append(finite[nodes > 0], False))) + int((nodes <= 0).sum())
    first = int((nodes < 0).sum()) - int(np.argmin(np.append(finite[nodes < 0][::-1], False)))
    return nodes[first:last], values[first:last], slopes[first:last]


def refined(sample: Sampler, nodes: Array, values: Array, slopes: Array, steepest: float) -> tuple[Array, Array, Array]:
    """Halve every interval on which the slope is not linear, again and again."""
    active = np.arange(len(nodes) - 1)
    for _ in range(ROUNDS):
        left, right = nodes[active], nodes[active + 1]
        middle = left + (right - left) / 2
        open_ = (middle > left) & (middle < right)
        active, middle = active[open_], middle[open_]
        if not len(active):
            break
        value, found = sample(middle)
        finite = np.isfinite(value) & np.isfinite(found)
        if not finite[np.abs(middle) <= FINITE].all():
            raise Broken(*NOT_FINITE)
        curved = finite & (np.abs(found - (slopes[active] + slopes[active + 1]) / 2) > ACCURACY * steepest)
        active, middle, value, found = active[curved], middle[curved], value[curved], found[curved]
        if not len(active) or len(nodes) + len(active) > MOST_NODES:
            break
        nodes = np.insert(nodes, active + 1, middle)
        values, slopes = np.insert(values, active + 1, value), np.insert(slopes, active + 1, found)
        here = active + np.arange(len(active))
        active = np.sort(np.concatenate([here, here + 1]))
    return nodes, values, slopes


def cropped(nodes: Array, slopes: Array, steepest: float) -> tuple[Array, Array]:
    """Leave out the tails, where the slope is constant but for rounding."""
    room = ACCURACY * steepest
    first = int(np.searchsorted(slopes, slopes[0] + room, side="right")) - 1
    last = int(np.searchsorted(slopes, slopes[-1] - room, side="left"))
    if first >= last:  # affine
        middle = int(np.argmin(np.abs(nodes[:-1])))
        return nodes[middle : middle + 2], np.full(2, slopes[middle])
    kept = slopes[first : last + 1].copy()
    kept[0], kept[-1] = slopes[0], slopes[-1]
    return nodes[first : last + 1], kept


def thinned(nodes: Array, slopes: Array, steepest: float) -> tuple[Array, Array]:
    """Leave out nodes that lie on the lines between their neighbours."""
    for _ in range(ROUNDS):
        inner = np.arange(1, len(nodes) - 1, 2)
        width = nodes[inner + 1] - nodes[inner - 1]
        weight = (nodes[inner] - nodes[inner - 1]) / width
        line = slopes[inner - 1] + weight * (slopes[inner + 1] - slopes[inner - 1])
        spare = inner[np.abs(line - slopes[inner]) <= ACCURACY / ROUNDS * steepest]
        if len(spare) == 0:
            break
        nodes, slopes = np.delete(nodes, spare), np.delete(slopes, spare)
    return nodes, slopes


def bent(nodes: Array, slopes: Array, curvature: float) -> Array:
    """Lower slopes until they rise no faster than the curvature allows."""
    result = slopes.copy()
    for k, width in enumerate(np.diff(nodes)):
        result[k + 1] = min(result[k + 1], result[k] + curvature * width)
    return result


def level_ends(nodes: Array, slopes: Array, curvature: float, steepest: float) -> tuple[Array, Array]:
    """Let the outermost slopes reach 0, so that the function is bounded below; nodes move out as the curvature asks."""
    if slopes[0] > MISSED * steepest or slopes[-1] < -MISSED * steepest:
        raise Broken("is not bounded below, as declared", "declare no lower bound")
    nodes, slopes = nodes.copy(), slopes.copy()
    if slopes[0] > 0:
        slopes[0] = 0.0
        nodes[0] = min(nodes[0], np.nextafter(nodes[1] - slopes[1] / curvature, -np.inf)) if slopes[1] else nodes[0]
    if slopes[-1] < 0:
        slopes[-1] = 0.0
        nodes[-1] = (
            max(nodes[-1], np.nextafter(nodes[-2] - slopes[-2] / curvature, np.inf)) if slopes[-2] else nodes[-1]
        )
    return nodes, slopes


def integrated(
    sample: Sampler, nodes: Array, slopes: Array, curvature: float, lower: float, steepest: float
) -> PiecewiseQuadratic:
    """Add values: the integral of the slopes, raised to the declared lower bound if it falls short by rounding."""
    if np.isfinite(lower):
        nodes, slopes = level_ends(nodes, slopes, curvature, steepest)
    bends = np.minimum(np.diff(slopes) / np.diff(nodes), curvature)
    steps = np.diff(nodes) * (slopes[:-1] + slopes[1:]) / 2
    origin = int(np.argmin(np.abs(nodes)))
    down, up = -np.cumsum(steps[:origin][::-1])[::-1], np.cumsum(steps[origin:])
    values = float(sample(nodes[origin : origin + 1])[0][0]) + np.concatenate([down, [0.0], up])
    if np.isfinite(lower):
        falling = (slopes[:-1] < 0) & (slopes[1:] > 0)
        depth = values[:-1][falling] - slopes[:-1][falling] ** 2 / (2 * bends[falling])
        values = values + max(0.0, lower - float(np.min(np.append(depth, values.min()))))
    return PiecewiseQuadratic(nodes, values, slopes, bends)
