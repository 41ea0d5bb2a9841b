"""The added strong convexity, chosen without the data, and the conditions of minimisers on the regularizer."""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from dpconvex.errors import NotPrivate
from dpconvex.expressions.atoms.exponentials import EXP, LOG_SUM_EXP, LOGISTIC
from dpconvex.expressions.atoms.normal import NEG_LOG_NORMCDF
from dpconvex.expressions.expression import postorder
from dpconvex.sensitivity.analysis import Analysis
from dpconvex.util.arguments import number
from dpconvex.util.runtime import once

# Movement of leaves by minimisers at a signal of `SIGNAL` (all gradients together, times the noise's dimension, over the
# noise): of a margin, of a hinge in units of its constant, of a leaf that follows a target in units of its range. It grows with
# the signal by the power `GROWTH`.
MARGIN, HINGE, FOLLOWED, SIGNAL, GROWTH = 8.0, 3.0, 0.45, 30.0, 0.3
# Leaves of these atoms have their own scale, whatever their constants are.
EXPONENTIAL = {EXP, LOGISTIC, LOG_SUM_EXP, NEG_LOG_NORMCDF}
LARGEST_LOG = 500.0  # The exponential of this does not overflow
NEGLIGIBLE = 1e-9  # Slope of the added quadratic on K, next to the slope of all losses
SMALLEST_RADIUS = 1e-100  # A set with a single point gets this radius, so that divisions succeed
ZERO_ROW = 1e-9  # A row below this fraction of the longest is rounding error of terms that cancel
# Steps of log(mu) that are tried before the best one is refined.
STEPS = np.concatenate([[0.0], np.geomspace(1e-2, 30.0, 15)])
# Larger than all logarithms of numbers, and finite, so that a search can continue.
HOPELESS = 1e3
LARGEST = 1e300  # Larger options are rejected
ADDED = number("finite and not negative", lambda value: 0 <= value <= LARGEST).or_none
GUESS = number("finite and positive", lambda value: 0 < value <= LARGEST).or_none


@once
def reference_radius(analysis: Analysis) -> float:
    """Return a guess of the norm of a good answer, from public numbers, the same for every mechanism.

    Lengths of leaves become lengths of parameters by the longest row of `A_z`, regardless of factors of the loss.
    """
    form, norm = analysis.form, np.concatenate(analysis.gram.row_lengths)
    offsets = [analysis.ranges[leaf][0] for leaf in form.every_leaf]
    low, high = (np.concatenate(ends) for ends in zip(*offsets, strict=True))
    moves = norm > ZERO_ROW * norm.max(initial=0.0)
    low, high, norm = low[moves], high[moves], norm[moves]
    spread = high - low > ZERO_ROW * (abs(low) + abs(high))  # otherwise it is rounding error
    scaled = any(node.variables and node.atom in EXPONENTIAL for node in postorder(form.losses))
    alone = MARGIN if scaled else np.where(abs(low) > ZERO_ROW, HINGE * abs(low), MARGIN)
    length = np.where(spread, FOLLOWED * (high - low), alone) / norm
    return max(min(float(length.max(initial=0.0)), form.feasible.norm_bound), SMALLEST_RADIUS)


def minimiser_radius(analysis: Analysis, size: int, noise: float, dimension: int) -> float:
    """Return a guess of the minimiser's norm, for noise of this size and dimension on the sum of gradients."""
    signal = size * analysis.gradient_bound * dimension / max(noise, SMALLEST_RADIUS)
    growth = (signal / SIGNAL) ** GROWTH
    return max(min(reference_radius(analysis) * growth, analysis.form.feasible.norm_bound), SMALLEST_RADIUS)


def best_added(
    risk: Callable[[float], float],
    regular: float,
    radius: float,
    cost: Callable[[float], float] | None = None,
    epsilon: float = math.inf,
) -> float:

    def total(log_mu: float) -> float:
        mu = math.exp(log_mu)
        value = max(mu - regular, 0.0) * radius**2 / 2 + risk(mu)
        return math.log(max(value, math.ulp(0.0))) if math.isfinite(value) else HOPELESS

    start = math.log(regular)
    if cost is not None and cost(regular) >= epsilon:
        high = start
        while cost(math.exp(high)) >= epsilon:
            high += 1.0
        start = float(brentq(lambda t: cost(math.exp(t)) - epsilon, start, high))
    grid = start + STEPS[start + STEPS <= max(start, LARGEST_LOG)]
    values = [total(t) for t in grid]
    best = int(np.argmin(values))
    if best == 0:
        return 0.0
    near = (grid[best - 1], grid[min(best + 1, len(grid) - 1)])
    found = minimize_scalar(total, bounds=near, method="bounded", options={"xatol": 1e-5})
    return float(math.exp(found.x if found.fun <= values[best] else grid[best]) - regular)


def least_added(analysis: Analysis, size: int) -> float:
    """Return a modulus that hardly moves an answer, if the regularizer has modulus 0 and K is bounded; otherwise 0."""
    bound = analysis.form.feasible.norm_bound
    if analysis.modulus > 0 or not math.isfinite(bound):
        return 0.0
    return max(NEGLIGIBLE * size * analysis.gradient_bound / max(bound, SMALLEST_RADIUS), SMALLEST_RADIUS)


def check_strong_convexity(analysis: Analysis, added: float | None) -> None:
    """Raise `NotPrivate` for a regularizer of modulus 0, unless a quadratic is added or K is bounded."""
    if analysis.modulus > 0 or added or (added is None and analysis.form.feasible.bounded):
        return
    regularizer = analysis.form.template.regularizer
    moduli = zip(analysis.form.space.blocks, analysis.block_moduli, strict=True)
    flat = [name for name, modulus in moduli if modulus <= 0] or list(analysis.form.space.blocks)
    terms = " + ".join(f"1e-6 * cp.sum_squares({name})" for name in flat)
    kinds = "its terms are affine, norms, or quadratic in some directions only"
    modulus = f"its modulus is 0: {'there is none' if regularizer.is_constant else kinds}"
    why = f"the regularizer is not strongly convex in {', '.join(flat)} ({modulus}), so the minimiser's sensitivity is unbounded"
    option = "pass regularization=1e-6, or " * bool(analysis.form.template.source)
    raise NotPrivate(why, regularizer, f"{option}add {terms}, or another quadratic; traces and norms do not count")
