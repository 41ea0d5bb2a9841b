"""Least squares in an l1 ball: few of many features count."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    regularization: float = 1e-6,
    bound: float = 1.0,
    radius: float = 1.0,
    norm: float = np.inf,
    target: float = 1.0,
    weight: float = 0.0,
    constant: float = 0.0,
) -> dp.Template:
    """Return the template (Tibshirani 1996, "Regression shrinkage and selection via the lasso").

    Parameters
    ----------
    features : int
        Number of features.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    bound : float
        Public bound on ``||w||_1`` in multiples of `target`, part of the model: the smaller, the fewer coefficients are not 0.
    radius : float
        Public bound on a record's features.
    norm : float
        In which norm `radius` bounds them: infinity (each feature by itself), 2 or 1.
    target : float
        Public bound on the absolute value of a record's target.
    weight : float
        Public bound on survey weights; 0 for none.  With a bound, each record has a field `weight` that multiplies its loss.
    constant : float
        Factor of a parameter b: the intercept is ``constant * b``, within an interval that holds all the best ones.
        By default there is none.
    """
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free = min(regularization, 1e-6)
    largest = target * (1 + bound * radius)  # no prediction without b is larger than the second part

    def loss(x, y, weight=1.0):
        return weight * cp.square(x @ w + constant * b - y) / 2

    def predict(parameters, x):
        return x @ parameters["w"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(
            x=dp.Ball(features, radius=radius, norm=norm),
            y=dp.Box(-target, target),
            **({"weight": dp.Box(0, weight)} if weight else {}),
        ),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        constraints=[cp.norm1(w) <= bound * target, *([cp.abs(b) <= largest / constant] if constant else [])],
        predict=predict,
    )
