"""Logistic regression in an l1 ball: few of many features count, two classes."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    regularization: float = 1e-6,
    bound: float = 5.0,
    radius: float = 1.0,
    norm: float = np.inf,
    labels: tuple = (-1, 1),
    weight: float = 0.0,
    constant: float = 0.0,
) -> dp.Template:
    """Return the template (Tibshirani 1996, "Regression shrinkage and selection via the lasso"; Ng 2004, for l1 and logistic).

    Parameters
    ----------
    features : int
        Number of features.
    classes : int
        Two.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    bound : float
        Public bound on ``||w||_1``, part of the model: the smaller, the fewer coefficients differ from 0.
    radius : float
        Public bound on a record's features.
    norm : float
        In which norm `radius` bounds them: infinity (each feature by itself), 2 or 1.
    labels : tuple
        The negative and the positive label.
    weight : float
        Public bound on survey weights; 0 for none.  With a bound, each record has a field `weight` that multiplies its loss.
    constant : float
        Factor of a parameter b: the score is ``x @ w + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.
    """
    if classes != 2:
        raise dp.TemplateError(f"sparse_logistic has two classes, not {classes}; see the multi-class problems.")
    negative, positive = labels
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free = min(regularization, 1e-6)

    def loss(x, y, weight=1.0):
        sign = 1 if y == positive else -1
        return weight * cp.logistic(-sign * (x @ w + constant * b))

    def decision(parameters, x):
        return x @ parameters["w"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(
            x=dp.Ball(features, radius=radius, norm=norm),
            y=dp.Choice([negative, positive]),
            **({"weight": dp.Box(0, weight)} if weight else {}),
        ),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        constraints=[cp.norm1(w) <= bound],
        decision=decision,
        probabilities="softmax",
    )
