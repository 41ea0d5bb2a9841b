"""Competitors for least squares at equal privacy (epsilon, delta, add-remove), in plain NumPy.

Features have norm at most 1 and targets lie in [-1, 1].  The public code of both has errors in its favour that are mended here:
BoostedAdaSSP's (amazon-science/boostedadassp) multiplies noise by its privacy level where it should divide, and shares no budget
between releases; TukeyEM's (google-research, `dp_regression`) draws the Laplace noise of its check of a scale that is inverted.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from benchmarks.utility.competitors import Predict
from benchmarks.utility.tables import Split
from dpconvex.noise.profiles import gaussian_sigma

__all__ = ["boosted_adassp", "tukey"]

Array = NDArray[np.float64]


def boosted_adassp(
    split: Split, epsilon: float, delta: float, rng: np.random.Generator, *, rounds: int, clip: float
) -> Predict:
    """Rounds of least squares on clipped residuals, with one noisy second moment: a third of the level for each release.

    S. Tang, S. Aydore, M. Kearns, S. Rho, A. Roth, Y. Wang, Y.-X. Wang and Z. S. Wu, "Improved differentially private regression
    via gradient boosting", 2023, arXiv:2303.03451.
    """
    x, y, d = split.x, split.y, split.x.shape[1]
    sigma = gaussian_sigma(epsilon, delta, math.sqrt(3))
    drawn = sigma * rng.normal(size=(d, d))
    moments = x.T @ x
    least = np.linalg.eigvalsh(moments)[0] + sigma * rng.normal()
    ridge = max(1.96 * math.sqrt(d) * sigma - max(least - 1.96 * sigma, 0.0), 0.0)
    noisy = moments + np.triu(drawn) + np.triu(drawn, 1).T + ridge * np.eye(d)
    slopes = np.zeros(d)
    for _ in range(rounds):
        correlation = x.T @ np.clip(y - x @ slopes, -clip, clip) + clip * sigma * math.sqrt(rounds) * rng.normal(size=d)
        slopes = slopes + np.linalg.solve(noisy, correlation)
    return lambda rows: rows @ slopes


def tukey(split: Split, epsilon: float, delta: float, rng: np.random.Generator, *, models: int) -> Predict:
    """Draw a point that is deep among models of disjoint parts, if a noisy check allows; else the zero model.

    K. Amin, M. Joseph, M. Ribero and S. Vassilvitskii, "Easy differentially private linear regression", ICLR 2023,
    arXiv:2208.07353.
    """
    half = epsilon / 2
    parts = np.array_split(rng.permutation(len(split.y)), models)
    found = np.array([np.linalg.lstsq(split.x[part], split.y[part])[0] for part in parts])
    slopes = np.zeros(split.x.shape[1])
    ordered = np.sort(found + 1e-10 * rng.random(found.shape), axis=0)
    deepest = models // 2
    lengths = np.log(
        ordered[::-1][:deepest] - ordered[:deepest]
    )  # of the points of depth k + 1 or more, in each column
    volumes = lengths.sum(axis=1)
    start = deepest // 2
    safe = -1
    for k in range(start - 1):
        deeper = volumes[start + k + 1 : -1]
        terms = volumes[start - k - 2] - deeper - half / 2 * np.arange(1, len(deeper) + 1)
        if not len(terms) or terms.min() > math.log(delta / 8) - half:
            break
        safe = k
    if safe + rng.laplace() / half > math.log(1 / (2 * delta)) / half:
        depths = np.arange(start, deepest)
        shells = volumes[start - 1 : -1] + np.log1p(-np.exp(volumes[start:] - volumes[start - 1 : -1]))
        depth = int(depths[np.argmax(shells + half * depths + rng.gumbel(size=len(depths)))])
        slopes = at_depth(ordered, depth, lengths, rng)
    return lambda rows: rows @ slopes


def at_depth(ordered: Array, depth: int, lengths: Array, rng: np.random.Generator) -> Array:
    """Draw a point of exactly this depth: the first column that is no deeper is drawn, then all columns."""
    inner, outer = lengths[depth], lengths[depth - 1]
    shell = outer + np.log1p(-np.exp(inner - outer))
    before = np.concatenate([[0.0], np.cumsum(inner)[:-1]])
    after = np.concatenate([np.cumsum(outer[::-1])[::-1][1:], [0.0]])
    first = int(np.argmax(shell + before + after + rng.gumbel(size=len(shell))))
    columns = np.arange(len(shell))
    place = np.where(columns < first, depth, depth - 1)
    point = rng.uniform(ordered[place, columns], ordered[::-1][place, columns])
    left = ordered[depth, first] - ordered[depth - 1, first]
    right = ordered[::-1][depth - 1, first] - ordered[::-1][depth, first]
    drawn = rng.uniform(0, left + right)
    point[first] = ordered[depth - 1, first] + drawn if drawn < left else ordered[::-1][depth, first] + drawn - left
    return np.asarray(point)
