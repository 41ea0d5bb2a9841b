"""Least-squares regression with a ball constraint and a ridge penalty."""

import cvxpy as cp

import dpconvex as dp


def template(
    *, features: int, regularization: float = 1e-6, radius: float = 1.0, target: float = 1.0, bound: float = 1.0
) -> dp.Template:
    """Return the template.

    Squares have bounded slopes only on bounded sets, so the coefficients live in a ball.

    Parameters
    ----------
    features : int
        Number of features.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    target : float
        Public bound on the absolute value of a record's target.
    bound : float
        Public bound on ``||w||``, part of the model.
    """
    w = cp.Variable(features, name="w")

    def loss(x, y):
        return cp.square(x @ w - y) / 2

    def predict(parameters, x):
        return x @ parameters["w"]

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Box(-target, target)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w),
        constraints=[cp.norm(w) <= bound],
        predict=predict,
    )
