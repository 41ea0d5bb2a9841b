"""Matrix-shaped noise, for templates whose gradients are matrices of rank one.

All gradients of one record lie in the unit ball of the nuclear norm (times G), which is far smaller than that of the Frobenius
norm.  Let Z be an r x c matrix of independent standard normal entries, S an independent Wishart matrix with nu degrees of
freedom, and ``M = s S^(-1/2) Z``.  Its density is proportional to ``det(I + M M'/s^2)^(-a)``, a = (nu + c)/2 (a matrix-variate t
law; Gupta & Nagar 2000, "Matrix variate distributions", section 4.2).  The derivative of the log density in a singular value x is
``-(a/s) 2y/(1 + y^2)``, y = x/s, so in absolute value at most a/s: the log density is beta-Lipschitz in the nuclear norm for
s = a/beta.  Objective perturbation with this noise is epsilon-differentially private with

    epsilon = beta * G_* + J,

where G_* bounds the nuclear norm of the change of the gradient: G if a record appears, 2G if it is replaced.  A linear image of
the noise keeps the property, so the noise may be symmetrised and carried into the sensitive subspace.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.stats import chi2

from dpconvex.errors import NotPrivate
from dpconvex.rules.analysis import Analysis
from dpconvex.rules.rank_one import RankOne, rank_one_structures

__all__ = ["best_structure", "degrees_of_freedom", "matrix_noise", "noise_bound", "root_mean_square"]

Array = NDArray[np.float64]


def best_structure(analysis: Analysis) -> RankOne:
    """Return the layout in which the noise is smallest.

    Raises
    ------
    NotPrivate
        If gradients are not seen to be of rank one.
    """
    found = rank_one_structures(analysis)
    if not found:
        raise NotPrivate(
            "matrix-shaped noise needs every gradient to be a matrix of rank one, weights of the classes times features of the "
            "record, and that is not seen here",
            analysis.form.template.losses[0],
            "write all scores as one matrix times one vector of features, or use noise='gamma'",
        )
    return min(found, key=lambda structure: structure.square)


def degrees_of_freedom(rows: int, columns: int) -> int:
    """Return the nu that makes the mean square of the noise smallest: ``2 rows + columns + 2``."""
    return 2 * rows + columns + 2


def root_mean_square(structure: RankOne, scale: float) -> float:
    """Return the root mean square of the noise's norm, for an inverse scale ``beta = 1/scale``."""
    return scale * math.sqrt(structure.square)


def matrix_noise(rows: int, columns: int, scale: float, rng: np.random.Generator) -> Array:
    """Draw a matrix whose log density is Lipschitz in the nuclear norm, with constant ``1/scale``.

    Parameters
    ----------
    rows, columns : int
        Shape; positive.
    scale : float
        Positive and finite.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray, shape (rows, columns)

    Notes
    -----
    With the Bartlett decomposition S = A A', A lower triangular with independent entries, ``S^(-1/2) = A'^(-1) O`` for an
    orthogonal O that depends on S alone, and O Z has the law of Z.  So ``A'^(-1) Z`` will do.
    """
    freedom = degrees_of_freedom(rows, columns)
    factor = np.tril(rng.standard_normal((rows, rows)), -1)
    factor[np.diag_indices(rows)] = np.sqrt(2 * rng.standard_gamma((freedom - np.arange(rows)) / 2))
    normal = rng.standard_normal((rows, columns))
    spread = scale * (freedom + columns) / 2
    return np.asarray(spread * solve_triangular(factor.T, normal, lower=False))


def noise_bound(rows: int, columns: int, scale: float, probability: float) -> float:
    """Return a bound on the Frobenius norm of the noise that fails with at most the given probability.

    ``||M||^2 <= s^2 tr(S^(-1)) ||Z||^2``; each diagonal entry of the inverse is the reciprocal of a chi-square variable with
    nu - rows + 1 degrees of freedom, and ||Z||^2 is one with ``rows * columns``.
    """
    freedom = degrees_of_freedom(rows, columns)
    least = float(chi2.ppf(probability / (2 * rows), freedom - rows + 1))
    most = float(chi2.isf(probability / 2, rows * columns))
    return scale * (freedom + columns) / 2 * math.sqrt(rows / least * most) * (1 + 1e-9)
