"""Robust linear regression with the Huber loss."""

import cvxpy as cp

import dpconvex as dp


def template(
    *,
    features: int,
    regularization: float = 1e-6,
    radius: float = 1.0,
    target: float = 1.0,
    threshold: float = 0.5,
    constant: float = 0.0,
) -> dp.Template:
    """Return the template.

    The loss is quadratic for residuals below the threshold and linear, with the slope it has there, above it: no bound on the
    coefficients is needed, and the bound on targets only says what a valid record is.

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
    threshold : float
        Residual at which the loss turns linear, in multiples of `target`.
    constant : float
        Factor of a parameter b: the prediction is ``x @ w + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.
    """
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free = min(regularization, 1e-6)

    def loss(x, y):
        return cp.huber(x @ w + constant * b - y, threshold * target) / 2

    def predict(parameters, x):
        return x @ parameters["w"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Box(-target, target)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        predict=predict,
    )
