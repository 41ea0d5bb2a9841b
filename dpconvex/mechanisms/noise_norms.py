"""How long the noise of a certificate is: its mean square, quantiles of its norm and of parts of it, from its exact law.

Proofs are in docs/theory.md, section 14.
"""

from __future__ import annotations

import math

from scipy.stats import beta, chi2

from dpconvex.mechanisms.certificate import Certificate
from dpconvex.mechanisms.noise_laws import LAWS
from dpconvex.noise.spherical import SPHERICAL


def mean_square(certificate: Certificate) -> float:
    p, scale = certificate.noise_dimension, certificate.noise_scale
    law = SPHERICAL.get(certificate.noise)
    return certificate.expected_noise**2 if law is None else law.square(p, scale)


def norm_quantile(certificate: Certificate, probability: float, symmetric: bool = False) -> float:
    """Bound the norm of the noise b but for a probability: the exact quantile for Gamma and Gaussian noise.

    Matrix-shaped noise is ``s S^(-1/2) Z``, or the symmetric part of its square blocks.  The square of its norm exceeds the
    mean by ``sqrt(1/probability - 1)`` deviations with at most this probability (Cantelli); the law's own bound is better far
    out.
    """
    bound = LAWS[certificate.noise].bound(certificate, probability)
    if certificate.noise in SPHERICAL:
        return bound
    names = ("rows", "columns", "degrees_of_freedom")
    rows, columns, freedom = (int(certificate.settings[name]) for name in names)
    mean, variance = square_moments(rows, columns, freedom, symmetric)
    spread = certificate.noise_scale * (freedom + columns) / 2
    return min(bound, spread * math.sqrt(mean + math.sqrt(variance * (1 / probability - 1))))


def square_moments(rows: int, columns: int, freedom: int, symmetric: bool = False) -> tuple[float, float]:
    """Return mean and variance of ``||S^(-1/2) Z||^2``, Z an r x c matrix of normal entries and S a Wishart matrix.

    Given S, the mean is ``c tr S^(-1)`` and the variance ``2 c tr S^(-2)``.  For the symmetric parts of k = c/r square blocks
    they are ``k (r + 1)/2 tr S^(-1)`` and ``k/2 ((r + 2) tr S^(-2) + (tr S^(-1))^2)`` (docs/theory.md, section 14).  For the
    moments of ``S^(-1)`` see D. von Rosen, "Moments for the inverted Wishart distribution", Scand. J. Statist. 15, 1988; the
    variance is infinite unless ``freedom > rows + 3``.

    Examples
    --------
    >>> square_moments(1, 2, 6)  # chi-square over chi-square: mean 2/4, mean square 8/(4 2)
    (0.5, 0.75)
    """
    m = freedom - rows - 1
    trace = rows / m
    blocks = columns / rows
    factor = blocks * (rows + 1) / 2 if symmetric else columns
    if m <= 2:
        return factor * trace, math.inf
    squares = rows * (freedom - 1) / ((m + 1) * m * (m - 2))
    spread = 2 * rows / (m**2 * (m - 2)) + 2 * rows * (rows - 1) / ((m + 1) * m**2 * (m - 2))
    inner = blocks / 2 * ((rows + 2) * squares + spread + trace**2) if symmetric else 2 * columns * squares
    return factor * trace, inner + factor**2 * spread


def cosine_quantile(dimension: int, probability: float) -> float:
    """Return what the cosine between a fixed and a uniformly random direction exceeds with a probability of at most a half.

    Examples
    --------
    >>> cosine_quantile(1, 0.1), round(cosine_quantile(3, 0.1), 6)  # in three dimensions a coordinate is uniform
    (1.0, 0.8)
    """
    if dimension <= 1:
        return 1.0
    return math.sqrt(float(beta.isf(min(2 * probability, 1.0), 0.5, (dimension - 1) / 2)))


def row_quantile(certificate: Certificate, rank: int, probability: float, length: float) -> float:
    """Bound the root mean square, over all records, of the part of b in a record's rows, but for a probability.

    The mean square is a mean of variables that each have the law X of the squared part in `rank` fixed dimensions.  So it is
    below X in the convex order, and exceeds the *mean of X beyond its quantile* with at most the given probability.
    """
    p = certificate.noise_dimension
    if rank >= p:
        return length
    if certificate.noise == "gaussian":
        quantile = float(chi2.isf(probability, rank))
        return certificate.noise_scale * math.sqrt(rank * float(chi2.sf(quantile, rank + 2)) / probability)
    a, b = rank / 2, (p - rank) / 2
    quantile = float(beta.isf(probability, a, b))
    return length * math.sqrt(rank / p * float(beta.sf(quantile, a + 1, b)) / probability)
