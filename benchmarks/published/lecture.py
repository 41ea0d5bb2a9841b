"""The calibration of noisy gradient descent as it is commonly taught, for comparison.

Lecture notes on noisy gradient descent take T releases of the *mean* gradient, each of sensitivity C/n, as one Gaussian
release of sensitivity ``sqrt(T) C/n``, and calibrate that with the classical bound ``sigma = sqrt(2 log(1.25/delta))/epsilon``
(Dwork & Roth 2014, theorem A.1, proved for epsilon below 1).  Two things are to be known about it.  The sensitivity C/n is
that of a record which appears or disappears while n stays public; when a record is *replaced*, it is 2C/n, and the noise is
half of what is needed.  And the exact profile of the Gaussian mechanism needs less noise.  Nothing here is used by a
mechanism.
"""

from __future__ import annotations

import math

from dpconvex.errors import TemplateError
from dpconvex.noise.profiles import gaussian_delta

__all__ = ["lecture_delta", "lecture_sigma"]


def lecture_sigma(epsilon: float, delta: float, gradient_bound: float, steps: int) -> float:
    """Return the deviation of each step's noise as taught, in sum form (n times that of the mean).

    Parameters
    ----------
    epsilon : float
        Below 1, for the classical bound to be proved.
    delta : float
        In (0, 1).
    gradient_bound : float
        C: bound on the gradient of one record.
    steps : int

    Raises
    ------
    TemplateError
        If a number is out of range.

    Examples
    --------
    >>> round(lecture_sigma(0.5, 1e-6, 1.0, 100), 2)
    105.98
    """
    if not (0 < epsilon < 1 and 0 < delta < 1 and gradient_bound > 0 and steps >= 1):
        raise TemplateError("lecture_sigma: epsilon and delta must lie in (0, 1), the bound and the steps be positive.")
    return gradient_bound * math.sqrt(steps) * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def lecture_delta(epsilon: float, sigma: float, gradient_bound: float, steps: int, adjacency: str) -> float:
    """Return the delta that a deviation really gives, under either adjacency.

    Under replace-one the change of the gradient is bounded by ``2 gradient_bound``, and attained by opposite records.
    """
    records = 2 if adjacency == "replace-one" else 1
    return float(gaussian_delta(epsilon, records * gradient_bound * math.sqrt(steps) / sigma))
