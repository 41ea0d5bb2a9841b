"""Matrix-shaped noise, for templates whose gradients are matrices of rank one.

All gradients of one record lie in the unit ball of the nuclear norm (times G), which is far smaller than that of the Frobenius
norm.  Take an r x c matrix M with density proportional to ``det(I + M M'/s^2)^(-a)``, a = (nu + c)/2 (a matrix-variate t
law; Gupta & Nagar 2000, "Matrix variate distributions", section 4.2).  The derivative of the log density in a singular value x is
``-(a/s) 2y/(1 + y^2)``, y = x/s, so in absolute value at most a/s: the log density is beta-Lipschitz in the nuclear norm for
s = a/beta.  Objective perturbation with this noise is epsilon-differentially private with

    epsilon = beta * G_* + J,

where G_* bounds the nuclear norm of the change of the gradient: G if a record appears, 2G if it is replaced.  A linear image of
the noise keeps the property, so the noise may be symmetrised and carried into the sensitive subspace.

The tail is heavy: a row of M is ``s z / chi``, with z standard normal and chi the root of a chi-square variable with
nu - r + 1 degrees of freedom.  How long M can be, and how much rounding can change it, decides how exact an answer must be before
it may be released, so both are bounded here.  Proofs are in docs/theory.md and docs/release.md.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln
from scipy.stats import beta

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.rank_one_gradients import RankOne, degrees_of_freedom, rank_one_structures
from dpconvex.errors import NotPrivate
from dpconvex.geometry.convex_sets import UNIT

Array = NDArray[np.float64]

# Moments that a bound by Markov's inequality is tried with.
ORDERS = 64
# Bounds that are computed in floating point are raised by this.
SLACK = 1 + 1e-6


def best_structure(analysis: Analysis) -> RankOne:
    """Return the layout in which the noise is smallest."""
    found = rank_one_structures(analysis)
    if not found:
        raise NotPrivate(
            "matrix-shaped noise needs every gradient to be a matrix of rank one, weights of the classes times features of the "
            "record, and that is not seen here",
            analysis.form.template.losses[0],
            "write all scores as one matrix times one vector of features, or use noise='gamma'",
        )
    return min(found, key=lambda structure: structure.square)


def matrix_noise(rows: int, columns: int, scale: float, rng: np.random.Generator) -> Array:
    """Draw a matrix whose log density is Lipschitz in the nuclear norm, with constant ``1/scale``."""
    freedom = degrees_of_freedom(rows, columns)
    drawn = np.empty((rows, columns))
    for k in reversed(range(rows)):
        length = math.sqrt(2 * rng.standard_gamma((freedom - rows + 1 + k) / 2))
        row = rng.standard_normal(columns) / length
        below = drawn[k + 1 :]
        below += np.outer(below @ row / (1 + math.sqrt(1 + float(row @ row))), row)
        drawn[k] = row
    return drawn * (scale * (freedom + columns) / 2)


def noise_bound(rows: int, columns: int, scale: float, probability: float) -> float:
    """Return a bound on the Frobenius norm of the noise that fails with at most the given probability.

    Every row, over s, has the law of ``z / chi``, so that ``y = 1/(1 + |row|^2)`` has a beta law, and no row is longer than its
    quantile of order ``probability / rows``, but for the given probability.
    """
    freedom = degrees_of_freedom(rows, columns)
    least = float(beta.ppf(probability / rows, (freedom - rows + 1) / 2, columns / 2))
    return scale * (freedom + columns) / 2 * math.sqrt(rows * (1 - least) / least) * SLACK


def rounding_bound(rows: int, columns: int, scale: float, probability: float) -> float:
    """Bound the distance of a drawn matrix from an ideal one, but for a given probability.

    Assumed is what docs/release.md says about the samplers of normal and gamma variables.  Each of the steps of `matrix_noise`
    adds an error, and the steps after it enlarge that by factors that are independent of it; all factors have known moments, and
    Markov's inequality bounds their product with the best of these.
    """
    freedom = degrees_of_freedom(rows, columns)
    own = freedom - rows + np.arange(1.0, rows + 1)  # degrees of freedom of the k-th row
    following = rows - np.arange(1.0, rows + 1)  # how many rows lie below it
    best = np.full(rows, np.inf)
    for order in np.linspace(1.0, own[0] / 2, ORDERS, endpoint=False):
        # An error in a row below grows by a product of 1/beta(d/2, 1/2) over the rows above; the product telescopes.
        growth = log_ratio(own[0], order) - log_ratio(own, order)
        # 1 + |row|^2 + c/chi^2, the first two terms and the last
        length = np.exp((log_ratio(own, order) - log_ratio(own + columns, order)) / order)
        length += columns / 2 * np.exp(log_ratio(own, order) / order)
        # 1 + the squared norm of the rows below
        square = log_ratio(own + 1, order) + gammaln(columns / 2 + order) - gammaln(columns / 2)
        below = 1 + following * np.exp(square / order)
        logs = growth + order * np.log(length * below) + math.log(rows / probability)
        best = np.minimum(best, logs / (2 * order))
    spread = scale * (freedom + columns) / 2
    return float((1.5 * columns + 35) * UNIT / 2 * spread * np.exp(best).sum() * SLACK)


def log_ratio(freedom: Array | float, order: float) -> Array:
    """Return the logarithm of ``Gamma(d/2 - q) / Gamma(d/2)``, the q-th moment of two over a chi-square variable."""
    return np.asarray(gammaln(np.asarray(freedom) / 2 - order) - gammaln(np.asarray(freedom) / 2))
