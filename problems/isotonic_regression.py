"""Isotonic regression: a function of ordered cells that never falls."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(*, features: int, regularization: float = 1e-6, target: float = 1.0) -> dp.Template:
    """Return the template (Barlow, Bartholomew, Bremner & Brunk 1972, chapter 1, with a ridge).

    A record's x is the number of its cell, such as a dose or an age group, and its target is fitted by the value of the function
    there.

    Parameters
    ----------
    features : int
        Number of cells, which are 0, ..., features - 1.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||f||^2``.
    target : float
        Public bound on the absolute value of a record's target, and of the function.

    Examples
    --------
    >>> learner = template(features=4)
    >>> print(learner.constraints[0])
    f[:3] <= f[1:]
    >>> round(dp.verify(learner, dp.Privacy(1.0), size=1000).gradient_bound, 6)  # residuals are at most 2
    2.0
    """
    f = cp.Variable(features, name="f")

    def loss(x, y):
        return cp.square(f[x] - y) / 2

    def predict(parameters, x):
        return parameters["f"][np.asarray(x, dtype=int)]

    return dp.Template(
        record=dp.Record(x=dp.Choice(range(features)), y=dp.Box(-target, target)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(f),
        constraints=[f[:-1] <= f[1:], cp.abs(f) <= target] if features > 1 else [cp.abs(f) <= target],
        predict=predict,
    )
