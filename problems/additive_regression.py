"""Additive regression: least squares of a sum of curves, one for each column, perhaps of declared shapes."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    regularization: float = 0.0,
    radius: float = 1.0,
    target: float = 1.0,
    shapes: list | None = None,
    constant: float = 0.0,
    capped: bool = False,
    curves: dict | None = None,
) -> dp.Template:
    """Return the template.

    Features are those of a `dp.SplineEncoder`.  Nothing bounds the slopes of squares: what they ask of the data is released once,
    by `dp.SufficientStatistics`, and shapes are kept by the fit to that.

    Parameters
    ----------
    features : int
        Number of features, of all curves together.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    target : float
        Public bound on the absolute value of a record's target.
    shapes : list, optional
        Rows a of inequalities ``a @ w >= 0``, such as that a curve does not fall from one knot to the next.
    constant : float
        Factor of a parameter b: the prediction is ``x @ w + constant * b``.  By default there is none.
    capped : bool
        Let squares of residuals above ``2 target`` go on as lines: no useful prediction has such residuals.
    curves : dict, optional
        How an estimator made the features, for programs that read its file.  It changes nothing here.
    """
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free = min(regularization, 1e-6)

    def loss(x, y):
        residual = x @ w + constant * b - y
        return (cp.huber(residual, 2 * target) if capped else cp.square(residual)) / 2

    def predict(parameters, x):
        return x @ parameters["w"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Box(-target, target)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        constraints=[np.array(shapes) @ w >= 0] if shapes else [],
        predict=predict,
    )
