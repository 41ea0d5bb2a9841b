"""The calibrations of Chaudhuri, Monteleoni & Sarwate (2011), Algorithms 1 and 2, to the letter: for reproduction alone.

The paper minimises the *mean* loss plus ``Lambda N(f)`` for records in the unit ball, a loss with ``|l'| <= 1`` and
``l'' <= c``, and a 1-strongly convex N.  Algorithm 1 adds b to the minimiser, with density proportional to ``exp(-beta ||b||)``
and ``beta = n Lambda epsilon / 2``.  Algorithm 2 adds ``<b, f>/n + (Delta/2) ||f||^2`` to the objective, with
``beta = epsilon'/2`` and

    epsilon' = epsilon - log(1 + 2c/(n Lambda) + c^2/(n Lambda)^2),   Delta = 0,        if that is positive,
    epsilon' = epsilon/2,   Delta = c / (n (exp(epsilon/4) - 1)) - Lambda               otherwise.

Nothing here is certified: the mechanisms of this toolkit prove tighter constants for the template at hand, and pay for what a
solver and rounding leave.  `benchmarks.published.reproduce.repeat_chaudhuri` runs these, and marks what comes out as not
private.
"""

import math
from dataclasses import dataclass

from dpconvex.errors import NotPrivate, TemplateError
from dpconvex.sensitivity.analysis import Analysis

__all__ = ["PublishedCalibration", "objective_calibration", "output_calibration", "published_calibration"]

# Bounds are computed in floating point.
ROUNDING = 1e-9


@dataclass(frozen=True)
class PublishedCalibration:
    """What one of the two algorithms draws.

    The density of b is proportional to ``exp(-rate ||b||)``.  Algorithm 1 adds b to the minimiser, Algorithm 2 to the sum of
    the losses (n times the paper's mean).  `added` is Delta, on the mean loss; `left` is the epsilon that noise has.
    """

    algorithm: int
    rate: float
    added: float
    left: float


def output_calibration(epsilon: float, size: int, regularization: float) -> PublishedCalibration:
    """Return the calibration of Algorithm 1 for n records and a regularization Lambda.

    >>> output_calibration(0.1, 1000, 0.01).rate
    0.5
    """
    check(epsilon, size, regularization)
    return PublishedCalibration(1, size * regularization * epsilon / 2, 0.0, epsilon)


def objective_calibration(epsilon: float, size: int, regularization: float, curvature: float) -> PublishedCalibration:
    """Return the calibration of Algorithm 2; the curvature c is 1/4 for the logistic loss, 1/(2h) for the Huber loss.

    >>> found = objective_calibration(0.1, 1000, 1e-4, 0.25)  # curvature would take more than there is
    >>> found.left, round(found.added, 6)
    (0.05, 0.009776)
    """
    check(epsilon, size, regularization)
    if not (math.isfinite(curvature) and curvature > 0):
        raise TemplateError(f"chaudhuri: the curvature c must be positive and finite, not {curvature!r}.")
    ratio = curvature / (size * regularization)
    left = epsilon - math.log(1 + 2 * ratio + ratio**2)
    if left > 0:
        return PublishedCalibration(2, left / 2, 0.0, left)
    added = curvature / (size * (math.exp(epsilon / 4) - 1)) - regularization
    return PublishedCalibration(2, epsilon / 4, added, epsilon / 2)


def published_calibration(analysis: Analysis, epsilon: float, size: int, algorithm: int) -> PublishedCalibration:
    """Return the published calibration for a template that meets the paper's assumptions.

    Lambda is the modulus of its regularizer, c the largest eigenvalue of one record's Hessian.  Raises `NotPrivate` if a
    gradient can be longer than 1, the regularizer is not strongly convex, or (Algorithm 2) the loss has a kink.
    """
    template = analysis.form.template
    if analysis.gradient_bound > 1 + ROUNDING:
        raise NotPrivate(
            "the paper's algorithms are for gradients of norm at most 1, and here one record's can be "
            f"{analysis.gradient_bound:.4g}",
            template.losses[0],
            "scale the records into the unit ball",
        )
    if analysis.modulus <= 0:
        raise NotPrivate("the regularizer is not strongly convex", template.regularizer, "add Lambda/2 ||f||^2")
    if algorithm == 1:
        return output_calibration(epsilon, size, analysis.modulus)
    if algorithm != 2:
        raise TemplateError(f"chaudhuri: the paper's mechanisms are Algorithms 1 and 2, not {algorithm!r}.")
    if analysis.kink is not None:
        raise NotPrivate("Algorithm 2 needs a differentiable loss", template.losses[0], "use the Huber loss")
    return objective_calibration(epsilon, size, analysis.modulus, analysis.hessian_bound)


def check(epsilon: float, size: int, regularization: float) -> None:
    """Refuse numbers that are out of range."""
    if not (0 < epsilon < math.inf and size >= 1 and 0 < regularization < math.inf):
        raise TemplateError(
            f"chaudhuri: epsilon, n and Lambda must be positive and finite, not {epsilon!r}, {size!r}, {regularization!r}."
        )
