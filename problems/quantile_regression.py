"""Quantile regression with a smoothed pinball loss."""

import cvxpy as cp

import dpconvex as dp


def template(
    *,
    features: int,
    quantile: float = 0.5,
    regularization: float = 1e-6,
    radius: float = 1.0,
    target: float = 1.0,
    width: float = 0.1,
) -> dp.Template:
    """Return the template.

    The pinball loss ``q max(r, 0) + (1 - q) max(-r, 0)`` of the residual r = y - x'w is smoothed by replacing each hinge with
    the Huber hinge of half-width `width`.

    Parameters
    ----------
    features : int
        Number of features.
    quantile : float
        q, between 0 and 1.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    target : float
        Public bound on the absolute value of a record's target.
    width : float
        Half-width of the smoothing, in units of the target.
    """
    if not 0 < quantile < 1:
        raise dp.TemplateError(f"quantile_regression: quantile must lie between 0 and 1, not {quantile!r}.")
    w = cp.Variable(features, name="w")

    def loss(x, y):
        residual = y - x @ w
        return quantile * dp.huber_hinge(residual, width) + (1 - quantile) * dp.huber_hinge(-residual, width)

    def predict(parameters, x):
        return x @ parameters["w"]

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Box(-target, target)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w),
        predict=predict,
    )
