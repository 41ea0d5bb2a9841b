"""Logistic regression with two classes."""

import cvxpy as cp

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    regularization: float = 1e-6,
    radius: float = 1.0,
    labels: tuple = (-1, 1),
    constant: float = 0.0,
) -> dp.Template:
    """Return the template.

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
    labels : tuple
        The negative and the positive label.
    constant : float
        Factor of a parameter b: the score is ``x @ w + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.
    """
    if classes != 2:
        raise dp.TemplateError(f"logistic_regression has two classes, not {classes}; see the multi-class problems.")
    negative, positive = labels
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free = min(regularization, 1e-6)

    def loss(x, y):
        sign = 1 if y == positive else -1
        return cp.logistic(-sign * (x @ w + constant * b))

    def decision(parameters, x):
        return x @ parameters["w"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice([negative, positive])),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        decision=decision,
        probabilities="softmax",
        ratio="odds ratio",
    )
