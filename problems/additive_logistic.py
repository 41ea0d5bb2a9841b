"""Additive logistic regression: a sum of curves, one for each column, perhaps of declared shapes."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    regularization: float = 1e-6,
    radius: float = 1.0,
    labels: tuple = (-1, 1),
    shapes: list | None = None,
    curves: dict | None = None,
) -> dp.Template:
    """Return the template.

    Features are those of a `dp.SplineEncoder`, whose public prior makes a plain square of the weights a penalty on curves that
    bend; `dp.AdditiveClassifier` declares the shapes.

    Parameters
    ----------
    features : int
        Number of features, of all curves together.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    labels : tuple
        The negative and the positive label.
    shapes : list, optional
        Rows a of inequalities ``a @ w >= 0``, such as that a curve does not fall from one knot to the next.
    curves : dict, optional
        How an estimator made the features, for programs that read its file.  It changes nothing here.
    """
    negative, positive = labels
    w = cp.Variable(features, name="w")

    def loss(x, y):
        sign = 1 if y == positive else -1
        return cp.logistic(-sign * (x @ w))

    def decision(parameters, x):
        return x @ parameters["w"]

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice([negative, positive])),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w),
        constraints=[np.array(shapes) @ w >= 0] if shapes else [],
        decision=decision,
        probabilities="softmax",
    )
