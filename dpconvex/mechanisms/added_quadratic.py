"""How much strong convexity to add, and what every mechanism that minimises asks of the regularizer.

If the user's mu is small, a quadratic of modulus Delta may be added; every Delta that is chosen without the data is private,
and the one with the smallest predicted excess risk is taken (docs/theory.md, excess risk).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import cvxpy as cp
import numpy as np
from scipy.optimize import brentq, minimize_scalar

from dpconvex.calculus.analysis import Analysis
from dpconvex.core.arguments import is_real
from dpconvex.errors import TemplateError

__all__ = ["best_added", "check_options", "not_strongly_convex", "reference_radius"]

# Without a public guess, minimisers are taken to move the margins of the steepest records by this much.
MARGIN = 10.0
# Steps of the logarithm of mu that are tried before the best of them is refined.
STEPS = np.concatenate([[0.0], np.geomspace(1e-4, 30.0, 60)])
ACCURACY = 1e-6


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
    """Choose the modulus to add, from public numbers.

    Parameters
    ----------
    risk : callable
        Predicted excess risk of the noise for each modulus mu of the whole (sum form); infinite where there is no proof.
    regular : float
        Modulus of the regularizer alone, in sum form; positive.
    radius : float
        Guess of the norm r of the minimiser; adding Delta costs ``Delta r^2 / 2``.
    cost : callable, optional
        The part of epsilon that a modulus costs, falling; moduli that cost all of `epsilon` are not tried.
    epsilon : float

    Returns
    -------
    float
        Not negative.
    """

    def total(log_mu: float) -> float:
        mu = math.exp(log_mu)
        noise = risk(mu)
        return math.log(max(mu - regular, 0.0) * radius**2 / 2 + noise) if math.isfinite(noise) else math.inf

    start = math.log(regular)
    if cost is not None and cost(regular) >= epsilon:
        high = start
        while cost(math.exp(high)) >= epsilon:
            high += 1.0
        start = float(brentq(lambda t: cost(math.exp(t)) - epsilon, start, high))
    grid = start + STEPS
    values = np.array([total(t) for t in grid])
    best = int(np.argmin(values))
    if best == 0:
        return 0.0
    near = (grid[best - 1], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(total, bounds=near, method="bounded", options={"xatol": ACCURACY})
    chosen = found.x if found.fun <= values[best] else grid[best]
    return float(math.exp(chosen) - regular)


def not_strongly_convex(analysis: Analysis) -> tuple[str, cp.Expression, str]:
    """Say in which variables the regularizer has modulus 0, and why (reason, place, remedy)."""
    regularizer = analysis.form.template.regularizer
    names = list(analysis.form.space.blocks)
    flat = [name for name, modulus in zip(names, analysis.block_moduli, strict=True) if modulus <= 0]
    terms = " + ".join(f"0.01 * cp.sum_squares({name})" for name in flat)
    if regularizer.is_constant():
        why = "there is none"
    elif regularizer.is_affine():
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
    """Refuse options that are neither None nor finite numbers of the right sign.

    Raises
    ------
    TemplateError
        Naming the option.
    """
    for names, least, kind in ((nonnegative, 0.0, "not negative"), (positive, math.ulp(0.0), "positive")):
        for name in names:
            value = getattr(mechanism, name)
            if value is None:
                continue
            if not (is_real(value) and least <= value <= LARGEST):
                raise TemplateError(f"{owner}: {name} must be finite and {kind}, not {value!r}.")
