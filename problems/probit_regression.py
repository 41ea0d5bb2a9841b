"""Probit regression with two classes: labels are signs of scores with normal errors."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    regularization: float = 1e-6,
    radius: float = 1.0,
    bound: float | None = None,
    labels: tuple = (-1, 1),
    offset: float = 0.0,
    weight: float = 0.0,
    constant: float = 0.0,
) -> dp.Template:
    """Return the template (Bliss 1934, "The method of probits").

    The positive label has the probability that a standard normal variate is below the score.  The loss is minus the log
    likelihood, by the exact atom `dp.log_normcdf`.

    Parameters
    ----------
    features : int
        Number of features.
    classes : int
        Two.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    bound : float or None
        Public bound on ``||w||``, part of the model, and times the radius on an intercept: slopes grow with scores of the wrong
        sign.  Adaptive steps need none.
    labels : tuple
        The negative and the positive label.
    offset : float
        Public bound on absolute values of offsets; 0 for none.  With a bound, each record has a field `offset` that is added to
        the score.
    weight : float
        Public bound on survey weights; 0 for none.  With a bound, each record has a field `weight` that multiplies its loss.
    constant : float
        Factor of a parameter b: the score is ``x @ w + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.
    """
    if classes != 2:
        raise dp.TemplateError(f"probit_regression has two classes, not {classes}; see the multi-class problems.")
    negative, positive = labels
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free, within = min(regularization, 1e-6), []
    if bound is not None:
        within = [cp.norm(w) <= bound, *([cp.abs(b) <= bound * radius / constant] if constant else [])]
    optional = {"offset": dp.Box(-offset, offset), "weight": dp.Box(0, weight)}

    def loss(x, y, offset=0.0, weight=1.0):
        sign = 1 if y == positive else -1
        return -weight * dp.log_normcdf(sign * (x @ w + constant * b + offset))

    def decision(parameters, x, offset=0.0):
        return x @ parameters["w"] + constant * parameters.get("b", 0.0) + offset

    def probabilities(parameters, x, offset=0.0):
        scores = decision(parameters, x, offset)
        return np.exp(dp.log_normcdf(np.stack([-scores, scores], axis=1)).value)

    return dp.Template(
        record=dp.Record(
            x=dp.Ball(features, radius=radius),
            y=dp.Choice([negative, positive]),
            **{name: field for name, field in optional.items() if field.upper > 0},
        ),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        constraints=within,
        decision=decision,
        probabilities=probabilities,
    )
