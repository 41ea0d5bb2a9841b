"""Least-squares regression with a ball constraint and a ridge penalty."""

import cvxpy as cp

import dpconvex as dp


def template(
    *,
    features: int,
    regularization: float = 1e-6,
    radius: float = 1.0,
    target: float = 1.0,
    bound: float | None = None,
    constant: float = 0.0,
    capped: float = 0.0,
) -> dp.Template:
    """Return the template.

    With a `bound`, the coefficients are in a ball.  An intercept is in an interval that holds all the best ones: beyond it, the
    residuals would all have one sign.

    Parameters
    ----------
    features : int
        Number of features.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``; an intercept has 1e-6 at most.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    target : float
        Public bound on the absolute value of a record's target.
    bound : float or None
        Public bound on ``||w||`` in multiples of `target`, part of the model; longer coefficients are cut to it.
    constant : float
        Factor of a parameter b: the intercept is ``constant * b``.  By default there is none.
    capped : float
        Unless it is 0, let squares of residuals above ``capped * target`` go on as lines.  No prediction between the least and
        the largest target has residuals above ``2 target``, and smaller slopes ask for less noise.
    """
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free, within = min(regularization, 1e-6), []
    if bound is not None:
        largest = target * (1 + bound * radius) / (constant or 1.0)
        within = [cp.norm(w) <= bound * target, *([cp.abs(b) <= largest] if constant else [])]

    def loss(x, y):
        residual = x @ w + constant * b - y
        return (cp.huber(residual, capped * target) if capped else cp.square(residual)) / 2

    def predict(parameters, x):
        return x @ parameters["w"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Box(-target, target)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        constraints=within,
        predict=predict,
    )
