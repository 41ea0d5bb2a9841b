"""Integer noise on a grid: what it costs, and how it is drawn."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from dpconvex.core.bisection import bisect
from dpconvex.errors import DPConvexError
from dpconvex.mechanisms.certificate import CoverNoise

__all__ = ["GAUSSIAN", "LAPLACE", "largest_rho", "measurement", "perturb", "smallest_delta"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

LAPLACE, GAUSSIAN = "discrete Laplace", "discrete Gaussian"
# Answers beyond this many grid steps are cut off, each coordinate by itself, which brings neighbours closer.
LARGEST_INTEGER = 2**62


def smallest_delta(rho: float, epsilon: float) -> float:
    """Return a delta for which rho-zero-concentrated privacy implies (epsilon, delta).

    For every alpha > 1, ``delta = exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha / (alpha - 1)`` will do (C. Canonne,
    G. Kamath, T. Steinke, "The discrete Gaussian for differential privacy", 2020, section 2; proof in docs/release.md).  The
    best alpha is searched for, and any other would be valid too.

    Parameters
    ----------
    rho : float
        Half the squared ratio of sensitivity and standard deviation, for Gaussian noise, discrete or not.
    epsilon : float

    Returns
    -------
    float
    """

    def log_delta(log_order: float) -> float:
        order = 1 + math.exp(log_order)
        return (order - 1) * (order * rho - epsilon) + order * math.log1p(-1 / order) - log_order

    middle = math.log(max(epsilon, 1e-300) / rho) if rho > 0 else 0.0
    best = minimize_scalar(log_delta, bounds=(min(middle, 0.0) - 20, max(middle, 0.0) + 5), method="bounded")
    return float(min(math.exp(min(best.fun, 0.0)) * (1 + 1e-9), 1.0))


@lru_cache(maxsize=256)
def largest_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho, rounded down, whose zero-concentrated privacy implies (epsilon, delta)."""
    low, high = math.log(epsilon) - 60.0, math.log(epsilon) + 1.0
    low -= math.log(max(-math.log(delta), 1.0))
    return math.exp(bisect(lambda rho: smallest_delta(math.exp(rho), epsilon) <= delta, low, high, 100)[0])


def perturb(theta: Array, noise: CoverNoise, rng: np.random.Generator | None = None) -> Array:
    """Round an answer to the grid and add the cover.

    Parameters
    ----------
    theta : ndarray, shape (dim,)
        Within ``noise.distance`` of the exact answer.
    noise : CoverNoise
    rng : numpy.random.Generator, optional
        For tests: draws from it instead of OpenDP.  The result is then not private.

    Returns
    -------
    ndarray, shape (dim,)
        Multiples of ``noise.step``.

    Raises
    ------
    DPConvexError
        If the answer is not finite, or OpenDP does not confirm the privacy of its own noise.
    """
    theta = np.asarray(theta, dtype=float)
    if theta.shape != (noise.dimension,) or not np.isfinite(theta).all():
        raise DPConvexError(f"cover: expected {noise.dimension} finite numbers; nothing is released.")
    # Dividing by a power of two is exact, so the only rounding is the one to the grid.
    with np.errstate(over="ignore"):
        steps = np.clip(np.rint(theta / noise.step), -LARGEST_INTEGER, LARGEST_INTEGER).astype(np.int64)
    drawn = (
        steps + seeded(noise, rng) if rng is not None else np.array(measurement(noise)(steps.tolist()), dtype=np.int64)
    )
    # Beyond 2^53 steps the nearest float is a coarser multiple of the step: still on the grid, and post-processing.
    return np.asarray(drawn.astype(float) * noise.step)


def measurement(noise: CoverNoise) -> Any:
    """Return OpenDP's mechanism on vectors of integers, after asking it what it costs."""
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian, make_laplace
    from opendp.metrics import l1_distance, l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    domain = vector_domain(atom_domain(T="i64"))
    if noise.noise == LAPLACE:
        found = make_laplace(domain, l1_distance(T="i64"), scale=noise.scale)
        within = found.map(int(noise.sensitivity)) <= noise.epsilon
    else:
        found = make_gaussian(domain, l2_distance(T="f64"), scale=noise.scale)
        within = smallest_delta(found.map(noise.sensitivity), noise.epsilon) <= noise.delta
    if not within:
        raise DPConvexError("cover: OpenDP does not confirm the privacy of the calibrated noise; nothing is released.")
    return found


def seeded(noise: CoverNoise, rng: np.random.Generator) -> Integers:
    """Draw the same law from a generator, for releases that are not private.

    The difference of two geometric variables has the discrete Laplace law; the discrete Gaussian is drawn from it by rejection
    (Canonne, Kamath & Steinke 2020, section 5).
    """
    if noise.noise == LAPLACE:
        return two_sided(noise.scale, noise.dimension, rng)
    width = math.floor(noise.scale) + 1
    result = np.zeros(noise.dimension, dtype=np.int64)
    missing = np.arange(noise.dimension)
    while len(missing):
        draw = two_sided(width, len(missing), rng)
        excess = np.abs(draw) - noise.scale**2 / width
        accepted = rng.random(len(missing)) < np.exp(-((excess / noise.scale) ** 2) / 2)
        result[missing[accepted]] = draw[accepted]
        missing = missing[~accepted]
    return result


def two_sided(scale: float, count: int, rng: np.random.Generator) -> Integers:
    """Draw integers k with probability proportional to exp(-|k|/scale), shape (count,)."""
    stop = -math.expm1(-1 / scale)
    return np.asarray(rng.geometric(stop, count) - rng.geometric(stop, count))
