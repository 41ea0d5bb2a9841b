"""Published competitors that need no tuning, as their authors' programs run them, in plain NumPy.

Features have norm at most 1.  Each returns a function from features to predictions.
"""

import math

import numpy as np
from scipy.optimize import brentq, minimize
from scipy.special import expit

from benchmarks.utility.competitors import Predict, classifier
from benchmarks.utility.tables import Split
from dpconvex.noise.gaussian import gaussian_delta, gaussian_sigma
from dpconvex.util.arrays import Array

__all__ = ["minima_perturbation", "tight_perturbation", "tukey_weights"]

SMOOTH = 0.25  # The largest second derivative of the logistic loss


def perturbed(split: Split, ridge: float, linear: Array) -> Array:
    """Minimise the sum of logistic losses, ``ridge/2 ||w||^2`` and a linear term."""
    x = split.x * np.where(split.y > 0, 1.0, -1.0)[:, None]

    def value(w: Array) -> tuple[float, Array]:
        margin = x @ w
        slope = ridge * w + linear - x.T @ expit(-margin)
        return float(np.logaddexp(0, -margin).sum() + ridge / 2 * w @ w + linear @ w), slope

    options = {"maxiter": 10_000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-7}
    return np.asarray(minimize(value, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B", options=options).x)


def minima_perturbation(split: Split, epsilon: float, delta: float, rng: np.random.Generator) -> Predict:
    """Perturb the objective, and its approximate minimiser, without hyperparameters; for records that are replaced.

    R. Iyengar, J. P. Near, D. Song, O. Thakkar, A. Thakurta and L. Wang, "Towards practical differentially private convex
    optimization", IEEE S&P 2019; shares of epsilon and constants are those of its program, `sunblaze-ucb/dpml-benchmark`.
    """
    n, d = split.x.shape
    within, out = 0.99 * epsilon, 0.01 * epsilon
    share = max(min(0.88671 + 0.0186607 / epsilon**0.372906, 0.99), 1 - 1 / epsilon + 0.001)
    ridge = 2 / (within * (1 - share))
    noise = 2 * (1 + math.sqrt(2 * math.log(1 / (0.99 * delta)))) / (share * within)
    last = (1 + math.sqrt(2 * math.log(1 / (0.01 * delta)))) / (n * ridge * out)  # the gradient is at most 1/n^2 long
    return classifier((perturbed(split, ridge, noise * rng.normal(size=d)) + last * rng.normal(size=d))[:, None], 2)


def perturbation_delta(epsilon: float, sigma: float, ridge: float) -> float:
    """Return the delta of logistic objective perturbation, for a record that appears or disappears.

    R. Redberg, A. Koskela and Y.-X. Wang, "Improving the privacy and practicality of objective perturbation for differentially
    private linear learners", NeurIPS 2023, as its program `rredberg/better-objpert` computes the privacy profile.
    """
    left, half = epsilon + math.log1p(-SMOOTH / ridge), 1 / (2 * sigma**2)
    if left > half:
        return 2 * float(gaussian_delta(left, 1 / sigma))
    rest = math.exp(left - half)
    return 1 - rest + 2 * rest * float(gaussian_delta(half, 1 / sigma))


def tight_perturbation(split: Split, epsilon: float, delta: float, rng: np.random.Generator) -> Predict:
    """Perturb the objective with the noise of `perturbation_delta`; for a record that appears or disappears.

    As in the authors' program, the regularization grows until the noise is at most 1.3 times that of one Gaussian release.  The
    minimiser is exact, and has no further noise: with theirs, the cost of an approximate one is negligible.
    """
    most, ridge = 1.3 * gaussian_sigma(epsilon, delta, 1.0), max(2 * SMOOTH / epsilon, 1.05 * SMOOTH)
    while perturbation_delta(epsilon, most, ridge) > delta:
        ridge *= 1.05
    sigma = brentq(lambda value: perturbation_delta(epsilon, value, ridge) - delta, most / 10, most)
    return classifier(perturbed(split, ridge, sigma * rng.normal(size=split.x.shape[1]))[:, None], 2)


def tukey_weights(x: Array, y: Array, epsilon: float, delta: float, rng: np.random.Generator) -> Array | None:
    """Choose a regression of high approximate Tukey depth among one for each d records; None if the test for it fails.

    K. Amin, M. Joseph, M. Ribero and S. Vassilvitskii, "Easy differentially private linear regression", ICLR 2023 (TukeyEM).
    The program of `google-research/dp_regression` draws Laplace noise of scale epsilon/2 where its theorem has 2/epsilon; this
    is mended here.
    """
    n, d = x.shape
    count = n // d
    parts = rng.permutation(n)[: count * d].reshape(count, d)
    models = np.array([np.linalg.lstsq(x[own], y[own], rcond=None)[0] for own in parts])
    sides = np.sort(models.T + 1e-10 * rng.random((d, count)), axis=1)
    deepest, half = count // 2, epsilon / 2
    widths = sides[:, ::-1][:, :deepest] - sides[:, :deepest]  # of the regions of depth at least 1, 2, ...
    volumes, start = np.log(widths).sum(axis=0), deepest // 2
    safe = -1
    for k in range(start - 1):
        beyond = volumes[start + k + 1 : -1]
        gaps = volumes[start - k - 2] - beyond - half / 2 * np.arange(1, len(beyond) + 1)
        if not len(beyond) or gaps.min() > math.log(delta / 8) - half:
            break
        safe = k
    if safe + rng.laplace(scale=1 / half) <= math.log(1 / (2 * delta)) / half:
        return None
    exact = volumes[start:] + np.log1p(-np.exp(np.append(np.diff(volumes[start:]), -np.inf)))
    depth = start + int(np.argmax(exact + half * np.arange(len(exact)) + rng.gumbel(size=len(exact))))
    inner = widths[:, min(depth + 1, deepest - 1)]
    # A point of exactly this depth is so in one coordinate first; those before it are deeper.
    first = np.log(np.maximum(widths[:, depth] - inner, 1e-300)) + np.append(0.0, np.cumsum(np.log(inner))[:-1])
    first += np.append(np.cumsum(np.log(widths[::-1, depth]))[::-1][1:], 0.0)
    own = int(np.argmax(first + rng.gumbel(size=d)))
    found = np.empty(d)
    for j in range(d):
        at = depth + (j < own)
        low, high = sides[j, at], sides[j, -1 - at]
        found[j] = rng.uniform(low, high)
        if j == own:
            left, right = sides[j, depth + 1] - low, high - sides[j, -2 - depth]
            below = rng.random() * (left + right) < left
            found[j] = low + rng.random() * left if below else high - rng.random() * right
    return found
