"""How much strong convexity to add, and what every mechanism that minimises asks of the regularizer.

If the user's mu is small, a quadratic of modulus Delta may be added; every Delta that is chosen without the data is private,
and the one with the smallest predicted excess risk is taken (docs/theory.md, excess risk).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar

from dpconvex.calculus.analysis import Analysis
from dpconvex.core.arguments import is_real
from dpconvex.core.expression import Expression
from dpconvex.errors import TemplateError

__all__ = ["best_added", "check_options", "not_strongly_convex", "reference_radius"]

Array = NDArray[np.float64]

# Without a public guess, minimisers are taken to move the margins of the steepest records by this much.
MARGIN = 10.0
# Steps of the logarithm of mu that are tried before the best of them is refined.
STEPS = np.concatenate([[0.0], np.geomspace(1e-4, 30.0, 60)])
ACCURACY = 1e-6
# Noise is predicted to fewer digits than this fraction of it.
UNSURE = 1e-3


def reference_radius(analysis: Analysis, given: float | None) -> float:
    """Return a guess of the norm of the minimiser from public numbers; it steers choices and proves nothing."""
    if given is not None:
        return given
    return MARGIN / max(analysis.gradient_bound, 1e-300)


def best_added(
    risk: Callable[[float], float],
    regular: float,
    radius: float,
    cost: Callable[[float], float] | None = None,
    epsilon: float = math.inf,
) -> float:
    """Choose the modulus to add, from public numbers."""

    def price(log_mu: float) -> float:
        return max(math.exp(log_mu) - regular, 0.0) * radius**2 / 2

    def noise(log_mu: float) -> float:
        return risk(math.exp(log_mu))

    def total(log_mu: float) -> float:
        return logarithm(price(log_mu) + noise(log_mu))

    start = math.log(regular)
    if cost is not None and cost(regular) >= epsilon:
        high = start
        while cost(math.exp(high)) >= epsilon:
            high += 1.0
        start = float(brentq(lambda t: cost(math.exp(t)) - epsilon, start, high))
    grid = start + STEPS
    values = lowest(price, noise, grid)
    best = int(np.argmin(values))
    if best == 0:
        return 0.0
    near = (grid[best - 1], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(total, bounds=near, method="bounded", options={"xatol": ACCURACY})
    chosen = found.x if found.fun <= values[best] else grid[best]
    return float(math.exp(chosen) - regular)


def lowest(price: Callable[[float], float], noise: Callable[[float], float], grid: Array) -> Array:
    """Return logarithms of price plus noise on a grid, infinite over stretches that cannot hold the lowest.

    Prices rise and noise falls, so a stretch costs at least the price at its start and the noise at its end.
    """
    values, last = np.full(len(grid), math.inf), len(grid) - 1
    noises = {k: noise(grid[k]) for k in (0, last)}
    stretches = [(0, last)]
    while True:
        for k in noises:
            values[k] = logarithm(price(grid[k]) + noises[k])
        least = values.min()
        stretches = [
            (a, b) for a, b in stretches if b - a > 1 and logarithm(price(grid[a]) + (1 - UNSURE) * noises[b]) <= least
        ]
        if not stretches:
            return values
        for a, b in stretches:
            noises[(a + b) // 2] = noise(grid[(a + b) // 2])
        stretches = [half for a, b in stretches for half in ((a, (a + b) // 2), ((a + b) // 2, b))]


def logarithm(value: float) -> float:
    """Return the logarithm of a risk, infinite where there is no proof."""
    return math.log(value) if math.isfinite(value) else math.inf


def not_strongly_convex(analysis: Analysis) -> tuple[str, Expression, str]:
    """Say in which variables the regularizer has modulus 0, and why (reason, place, remedy)."""
    regularizer = analysis.form.template.regularizer
    names = list(analysis.form.space.blocks)
    flat = [name for name, modulus in zip(names, analysis.block_moduli, strict=True) if modulus <= 0]
    terms = " + ".join(f"0.01 * cp.sum_squares({name})" for name in flat)
    if regularizer.is_constant:
        why = "there is none"
    elif regularizer.is_affine:
        why = "it is affine"
    elif len(flat) < len(names):
        why = "it has no quadratic term there"
    else:
        why = "its terms are affine, norms, or quadratic in some directions only"
    return (
        f"the regularizer is not strongly convex in {', '.join(flat)} (its modulus is 0: {why}), so the minimiser can move "
        "without limit",
        regularizer,
        f"add {terms}, or another quadratic; traces and norms do not count",
    )


# Options beyond this are not numbers to compute with.
LARGEST = 1e300


def check_options(owner: str, mechanism: object, nonnegative: Sequence[str], positive: Sequence[str]) -> None:
    """Refuse options that are neither None nor finite numbers of the right sign."""
    for names, least, kind in ((nonnegative, 0.0, "not negative"), (positive, math.ulp(0.0), "positive")):
        for name in names:
            value = getattr(mechanism, name)
            if value is None:
                continue
            if not (is_real(value) and least <= value <= LARGEST):
                raise TemplateError(f"{owner}: {name} must be finite and {kind}, not {value!r}.")
