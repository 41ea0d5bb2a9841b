"""A function of one variable whose slope is piecewise linear: convex, with known bounds of slope and curvature by construction.

It stands in for a function that is given as a program.  Of that, nothing can be proved by evaluating it; of the stand-in,
everything is in the table: between neighbouring nodes its slope is linear, so it lies between theirs, and its curvature is their
difference divided by their distance.  Beyond the table it is affine.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Sampler = Callable[[Array], Array]

# Slopes are means over stretches of this relative length: a mean keeps every bound of slope and curvature.
STRETCH = 2.0**-20
# Slopes between nodes are right to this fraction of the steepest one; differences of values are exact to a tenth of it.
ACCURACY = 1e-9
# The stand-in may miss what it stands for by this fraction of the steepest slope; if it must by more, a claim is false.
MISSED = 1e-6
# The function must be finite as far out as this; the table ends at the other, within the range of single precision.
FINITE, END = 1e9, 30
MOST_NODES = 1 << 17
ROUNDS = 60


class Broken(Exception):
    """A claim that does not hold: what is wrong, and what to do."""


@dataclass(frozen=True, eq=False)
class PiecewiseQuadratic:
    """The convex function with given slopes at given nodes, linear between them."""

    nodes: Array  # shape (k,): increasing
    values: Array  # shape (k,): at the nodes
    slopes: Array
    bends: Array  # shape (k - 1,): curvature between neighbouring nodes

    @cached_property
    def _pieces(self) -> tuple[Array, Array, Array, Array]:
        """Anchor, value, slope and curvature of each piece: the left tail, those between nodes, the right tail."""
        parts = (np.append(part[:1], part) for part in (self.nodes, self.values, self.slopes))
        anchor, value, slope = parts
        return anchor, value, slope, np.concatenate([[0.0], self.bends, [0.0]])

    def evaluate(self, m: Any, order: int = 0, xp: Any = np) -> Any:
        """Evaluate the function, or its first or second derivative, with NumPy or JAX."""
        place = xp.searchsorted(xp.asarray(self.nodes), m, side="right")
        anchor, value, slope, bend = (xp.asarray(part)[place] for part in self._pieces)
        d = m - anchor
        return (value + d * (slope + bend * d / 2), slope + bend * d, bend)[order]


def built(
    sample: Sampler, slope: tuple[float, float], curvature: float, lower: float
) -> tuple[PiecewiseQuadratic, dict[str, float]]:
    """Return the stand-in for a function, with the declared constants, and how far these are reached."""
    steepest = max(abs(slope[0]), abs(slope[1]))
    unit = steepest / curvature if steepest and curvature else 1.0
    room = MISSED * steepest
    nodes, values, slopes = sampled(sample, unit, steepest)
    seen = float(slopes.min()), float(slopes.max())
    if not (slope[0] - ACCURACY * steepest <= seen[0] and seen[1] <= slope[1] + ACCURACY * steepest):
        raise Broken(
            f"has slopes in [{seen[0]:.6g}, {seen[1]:.6g}], outside the declared {list(slope)}",
            "declare slopes that hold on the whole real line: at least those",
        )
    rising = np.clip(np.maximum.accumulate(slopes), *slope)
    if (rising - slopes).max() > room:
        raise Broken(
            "is not convex: its derivative decreases somewhere", "declare a convex function; no other is minimised here"
        )
    bends = np.diff(rising) / np.diff(nodes)
    bound = rising.copy()
    for k, width in enumerate(np.diff(nodes)):
        bound[k + 1] = min(bound[k + 1], bound[k] + curvature * width)
    if (rising - bound).max() > room:
        raise Broken(
            f"has curvature {bends.max():.6g}, above the declared {curvature:.6g}, or a kink",
            "declare a curvature that holds on the whole real line, or smooth the kink",
        )
    found = integrated(sample, nodes, bound, curvature)
    size = steepest * (np.abs(nodes) + unit) + np.abs(values)
    if (np.abs(found.evaluate(nodes) - values) > MISSED * size + room * unit).any():
        raise Broken(
            "jumps: its values are not those that its slopes add up to",
            "declare a continuous function, whose derivative is that of its values (no rounding, no detours by numpy.where)",
        )
    if np.isfinite(lower):
        first, last = curvature * np.diff(nodes)[[0, -1]]
        level = -room <= bound[-1] and bound[0] <= room and bound[1] <= first and -bound[-2] <= last
        if not (slope[0] <= 0 <= slope[1] and level):
            raise Broken("is not bounded below, as declared: its slopes have one sign", "declare no lower bound")
        if values.min() < lower - ACCURACY * (abs(lower) + steepest * unit):
            raise Broken(
                f"takes the value {values.min():.6g}, below the declared lower bound {lower:.6g}",
                "declare a lower bound that holds on the whole real line, or none",
            )
        # The outermost slopes reach 0, so that the function is bounded below.
        bound[0], bound[-1] = min(bound[0], 0.0), max(bound[-1], 0.0)
        found = raised(integrated(sample, nodes, bound, curvature), lower)
    return found, {
        "slope, observed/declared": min(max(abs(seen[0]), abs(seen[1])) / steepest, 1.0) if steepest else 1.0,
        "curvature, observed/declared": min(float(bends.max(initial=0.0)) / curvature, 1.0) if curvature else 1.0,
    }


def sampled(sample: Sampler, unit: float, steepest: float) -> tuple[Array, Array, Array]:
    """Return nodes with values and slopes: on all scales and at random, and halfway where the slope is not linear, repeatedly."""
    rng = np.random.default_rng(0)
    outer = np.concatenate([np.logspace(-6, END, 8 * END), 10.0 ** rng.uniform(-6, 9, 2048)])
    inner = np.concatenate([unit * np.linspace(0, 64, 1025), np.linspace(0, 1e3, 2001)])
    right = np.unique(np.concatenate([inner, outer]))
    right = right[np.diff(right, prepend=0.0) > ACCURACY * (unit + right)]  # apart, for what rounds
    nodes = np.concatenate([-right[::-1], [0.0], right])
    values, slopes = finite(sample, nodes, unit)
    # Programs overflow far out, where what runs is affine.
    kept = np.isfinite(values) & np.isfinite(slopes)
    nodes, values, slopes = nodes[kept], values[kept], slopes[kept]
    active = np.arange(len(nodes) - 1)
    for _ in range(ROUNDS):
        left, right = nodes[active], nodes[active + 1]
        middle = left + (right - left) / 2
        value, found = finite(sample, middle, unit)
        line = (slopes[active] + slopes[active + 1]) / 2
        curved = (middle > left) & (middle < right) & np.isfinite(value) & (np.abs(found - line) > ACCURACY * steepest)
        active, middle, value, found = active[curved], middle[curved], value[curved], found[curved]
        if not len(active) or len(nodes) + len(active) > MOST_NODES:
            break
        nodes = np.insert(nodes, active + 1, middle)
        values, slopes = np.insert(values, active + 1, value), np.insert(slopes, active + 1, found)
        here = active + np.arange(len(active))
        active = np.sort(np.concatenate([here, here + 1]))
    return nodes, values, slopes


def finite(sample: Sampler, nodes: Array, unit: float) -> tuple[Array, Array]:
    """Return values and slopes, finite ones wherever a user's data may be."""
    step = STRETCH * (unit + np.abs(nodes))
    values, below, above = np.split(sample(np.concatenate([nodes, nodes - step, nodes + step])), 3)
    with np.errstate(all="ignore"):
        slopes = (above - below) / ((nodes + step) - (nodes - step))
    if not (np.isfinite(values) & np.isfinite(slopes))[np.abs(nodes) <= FINITE].all():
        raise Broken(
            "is not finite, with a finite derivative, on the whole real line",
            "write it so that it neither overflows nor leaves its domain (numpy.logaddexp, numpy.where)",
        )
    return values, slopes


def integrated(sample: Sampler, nodes: Array, slopes: Array, curvature: float) -> PiecewiseQuadratic:
    """Add values: the integral of the slopes, from that nearest to 0."""
    bends = np.minimum(np.diff(slopes) / np.diff(nodes), curvature)
    steps = np.diff(nodes) * (slopes[:-1] + slopes[1:]) / 2
    origin = int(np.argmin(np.abs(nodes)))
    down, up = -np.cumsum(steps[:origin][::-1])[::-1], np.cumsum(steps[origin:])
    values = float(sample(nodes[origin : origin + 1])[0]) + np.concatenate([down, [0.0], up])
    return PiecewiseQuadratic(nodes, values, slopes, bends)


def raised(found: PiecewiseQuadratic, lower: float) -> PiecewiseQuadratic:
    """Raise a function to the declared lower bound, if it falls short by rounding."""
    left, right, values = found.slopes[:-1], found.slopes[1:], found.values
    falling = (left < 0) & (right > 0)
    depth = values[:-1][falling] - left[falling] ** 2 / (2 * found.bends[falling])
    short = max(0.0, lower - float(np.min(np.append(depth, values.min()))))
    return PiecewiseQuadratic(found.nodes, values + short, found.slopes, found.bends)
