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
    constant: float = 0.0,
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
        Half-width of the smoothing, in multiples of `target`.  Pass 0.005 with a delta: the default, for few records without
        one, moves shares below a quantile by up to .06.
    constant : float
        Factor of a parameter b: the prediction is ``x @ w + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.
    """
    if not 0 < quantile < 1:
        raise dp.TemplateError(f"quantile_regression: quantile must lie between 0 and 1, not {quantile!r}.")
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free = min(regularization, 1e-6)

    def loss(x, y):
        residual = y - (x @ w + constant * b)
        return quantile * dp.huber_hinge(residual, width * target) + (1 - quantile) * dp.huber_hinge(
            -residual, width * target
        )

    def predict(parameters, x):
        return x @ parameters["w"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Box(-target, target)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        predict=predict,
    )
