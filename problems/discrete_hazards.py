"""Survival in intervals: the hazard of an event in each of them, with censoring."""

from collections.abc import Sequence

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    intervals: int | Sequence[float] = 6,
    regularization: float = 1e-6,
    radius: float = 1.0,
) -> dp.Template:
    """Return the template (Cox 1972, "Regression models and life-tables", section 6; Allison 1982, "Discrete-time methods").

    Whoever is at risk in interval k has the event in it with odds of ``exp(x'w + b_k)``, next to public ones at which half of all
    have it before the end.  Features multiply these odds alike in all intervals: where hazards are small, they are proportional.
    The loss is minus the logarithm of the likelihood.

    A record's y has one number for each interval: 1 where the event happens, -1 where the record lives through the interval, and
    0 where it is not seen any more.  Where it is censored within an interval, minus the part of it that was seen.

    Parameters
    ----------
    features : int
        Number of features.
    intervals : int or sequence of float
        Number of intervals K, or the times at which they end.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``; b has a penalty of 1e-6 at most.
    radius : float
        Public bound on the Euclidean norm of a record's features.

    Examples
    --------
    >>> learner = template(features=3, intervals=4)
    >>> dp.verify(learner, dp.Privacy(1.0, 1e-6), size=1000).mechanism
    'adaptive preconditioned steps'
    """
    count = len(intervals) if isinstance(intervals, Sequence) else intervals
    w, b = cp.Variable(features, name="w"), cp.Variable(count, name="b")
    free = min(regularization, 1e-6)
    # With w and b at 0, where steps begin, half of the records have the event.
    usual = np.log(2 ** (1 / count) - 1)

    def loss(x, y):
        odds = x @ w + b + usual
        return cp.pos(-y) @ cp.logistic(odds) + cp.pos(y) @ cp.logistic(-odds)

    def predict(parameters, x):
        """Return the probability to live through each interval and all before it, shape (n, intervals)."""
        odds = (x @ parameters["w"])[:, None] + parameters["b"] + usual
        return np.exp(-np.cumsum(np.logaddexp(0.0, odds), axis=1))

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Box(-np.ones(count), np.ones(count))),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + free / 2 * cp.sum_squares(b),
        predict=predict,
        probabilities=predict,
        ratio="odds ratio of the discrete hazard",
    )
