"""Competitors at equal privacy (epsilon, delta, add-remove), in plain NumPy, and scikit-learn without privacy.

Features have norm at most 1.  Each returns a function from features to predictions.  Numbers of records are taken as public
in step sizes, which favours the competitors.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.utility.tables import Split
from dpconvex.noise.gaussian import gaussian_sigma
from dpconvex.util.arrays import Array

Predict = Callable[[Array], NDArray[Any]]


def residuals(x: Array, y: NDArray[Any], weights: Array, classes: int) -> Array:
    """Return the derivative of every record's loss by its scores: squares, logistic for two classes, softmax for more."""
    scores = x @ weights
    if not classes:
        return np.asarray(scores - y[:, None])
    if classes == 2:
        return np.asarray(0.5 * (1 + np.tanh(scores / 2)) - y[:, None])
    scores -= scores.max(axis=1, keepdims=True)
    share = np.exp(scores)
    share /= share.sum(axis=1, keepdims=True)
    share[np.arange(len(y)), y] -= 1
    return np.asarray(share)


def clipped_sum(x: Array, y: NDArray[Any], weights: Array, classes: int, clip: float) -> Array:
    """Return the sum of the records' gradients, each scaled down to a norm of at most `clip`."""
    slope = residuals(x, y, weights, classes)
    norms = np.linalg.norm(slope, axis=1) * np.linalg.norm(x, axis=1)
    return np.asarray(x.T @ (slope * np.minimum(1, clip / np.maximum(norms, 1e-300))[:, None]))


def classifier(weights: Array, classes: int) -> Predict:
    """Predict by the largest score, or by the sign of the only one; for regression, the score."""
    if not classes:
        return lambda x: x @ weights[:, 0]
    if classes == 2:
        return lambda x: (x @ weights[:, 0] > 0).astype(int)
    return lambda x: np.argmax(x @ weights, axis=1)


def clipped_weights(
    split: Split, epsilon: float, delta: float, rng: np.random.Generator, *, clip: float, steps: int, rate: float
) -> Array:
    """Full-batch gradient descent on clipped gradients; `rate` is the length of a step in mean gradients over the clip."""
    sigma = gaussian_sigma(epsilon, delta, clip * math.sqrt(steps))
    return descended(split, rng, sigma, clip, steps, rate / clip)


def descended(
    split: Split, rng: np.random.Generator, sigma: float, clip: float, steps: int, rate: float, sampling: float = 1.0
) -> Array:
    """Return weights after steps along noisy sums of clipped gradients; every record takes part in each with a probability."""
    x, y, classes = split.x, split.y, split.classes
    weights = np.zeros((x.shape[1], classes if classes > 2 else 1))
    for _ in range(steps):
        part = rng.random(len(y)) < sampling if sampling < 1 else slice(None)
        gradient = clipped_sum(x[part], y[part], weights, classes, clip) + sigma * rng.normal(size=weights.shape)
        weights -= rate / (sampling * len(y)) * gradient
    return weights


def clipped_descent(
    split: Split, epsilon: float, delta: float, rng: np.random.Generator, *, clip: float, steps: int, rate: float
) -> Predict:
    """Predict by `clipped_weights`."""
    return classifier(clipped_weights(split, epsilon, delta, rng, clip=clip, steps=steps, rate=rate), split.classes)


@lru_cache
def sampled_sigma(epsilon: float, delta: float, sampling: float, steps: int) -> float:
    """Return the noise, in units of the clip, with which so many Poisson-sampled steps keep the guarantee."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    def spent(sigma: float) -> float:
        one = pld.from_gaussian_mechanism(sigma, value_discretization_interval=1e-3, sampling_prob=sampling)
        return float(one.self_compose(steps).get_epsilon_for_delta(delta))

    low, high = 0.3, 2.0
    while spent(high) > epsilon:
        low, high = high, 2 * high
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(middle) > epsilon else (low, middle)
    return high


def poisson_descent(
    split: Split,
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
    *,
    sampling: float,
    clip: float,
    steps: int,
    rate: float,
) -> Predict:
    """Gradient descent on Poisson samples, privacy-loss accounting."""
    sigma = clip * sampled_sigma(epsilon, delta, sampling, steps)
    return classifier(descended(split, rng, sigma, clip, steps, rate / clip, sampling), split.classes)


def symmetric(d: int, rng: np.random.Generator) -> Array:
    """Draw a symmetric matrix whose upper triangle is standard normal."""
    drawn = np.triu(rng.normal(size=(d, d)))
    return np.asarray(drawn + np.triu(drawn, 1).T)


def adassp(split: Split, epsilon: float, delta: float, rng: np.random.Generator) -> Predict:
    """Adaptive sufficient statistics (Wang 2018, algorithm 2): a third of the guarantee each for the ridge, X'X and X'y."""
    d = split.x.shape[1]
    sigma = gaussian_sigma(epsilon, delta, math.sqrt(3))  # three releases of sensitivity 1
    values = np.linalg.eigvalsh(split.x.T @ split.x)
    least = max(values[0] + sigma * rng.normal() - sigma * math.sqrt(2 * math.log(20)), 0.0)
    ridge = max(sigma * math.sqrt(d * math.log(2 * d * d / 0.05)) - least, 0.0)
    moments = split.x.T @ split.x + sigma * symmetric(d, rng) + ridge * np.eye(d)
    slopes = np.linalg.solve(moments, split.x.T @ split.y + sigma * rng.normal(size=d))
    return lambda x: x @ slopes


def boosted_adassp(
    split: Split, epsilon: float, delta: float, rng: np.random.Generator, *, rounds: int, clip: float
) -> Predict:
    """Rounds of least squares on clipped residuals, with one noisy second moment: a third of the level for each release.

    S. Tang, S. Aydore, M. Kearns, S. Rho, A. Roth, Y. Wang, Y.-X. Wang and Z. S. Wu, "Improved differentially private regression
    via gradient boosting", 2023, arXiv:2303.03451.  Its public code multiplies noise by its privacy level where it should divide,
    and shares no budget between releases; both are mended here.
    """
    x, y, d = split.x, split.y, split.x.shape[1]
    sigma = gaussian_sigma(epsilon, delta, math.sqrt(3))
    noise, moments = sigma * symmetric(d, rng), x.T @ x
    least = np.linalg.eigvalsh(moments)[0] + sigma * rng.normal()
    ridge = max(1.96 * math.sqrt(d) * sigma - max(least - 1.96 * sigma, 0.0), 0.0)
    noisy = moments + noise + ridge * np.eye(d)
    slopes = np.zeros(d)
    for _ in range(rounds):
        correlation = x.T @ np.clip(y - x @ slopes, -clip, clip) + clip * sigma * math.sqrt(rounds) * rng.normal(size=d)
        slopes = slopes + np.linalg.solve(noisy, correlation)
    return lambda rows: rows @ slopes


def least_squares(
    split: Split, epsilon: float, delta: float, rng: np.random.Generator, *, shared: float, ridge: float
) -> Array:
    """Return a column for each class: (X'X of its records + shared X'X + ridge)^-1 sum of its records.

    Mehta, Krichene, Thakurta, Kurakin and Cutkosky, "Differentially private image classification from features", TMLR 2023,
    algorithm 3, as in the package `dp-learning-ff` 0.0.8, whose `fit` gives its seed for the noise's multiplier: here the three
    releases are composed exactly.  `ridge` is in multiples of the noise's largest eigenvalue.
    """
    x, d = split.x, split.x.shape[1]
    sigma = gaussian_sigma(epsilon, delta, math.sqrt(3))
    edge = 2 * sigma * math.sqrt(d)

    def noisy(rows: Array) -> Array:
        return np.asarray(rows.T @ rows + sigma * symmetric(d, rng).astype(x.dtype))

    everyone, columns = noisy(x), []
    for label in range(split.classes):
        rows = x[split.y == label]
        moments = noisy(rows) + shared * everyone + ridge * (1 + shared) * edge * np.eye(d, dtype=x.dtype)
        columns.append(np.linalg.solve(moments, rows.sum(axis=0) + sigma * rng.normal(size=d)))
    return np.column_stack(columns)


def exact(split: Split) -> Predict:
    """Fit with scikit-learn, without privacy."""
    from sklearn.linear_model import LogisticRegression, Ridge

    model = LogisticRegression(C=100.0, max_iter=2000) if split.classes else Ridge(alpha=1e-3)
    return model.fit(split.x, split.y).predict  # type: ignore[no-any-return]
