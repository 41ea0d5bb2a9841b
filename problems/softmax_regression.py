"""Softmax (multinomial logistic) regression with any number of classes."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    regularization: float = 1e-6,
    radius: float = 1.0,
    labels: tuple | None = None,
    constant: float = 0.0,
) -> dp.Template:
    """Return the template (Boehning 1992, "Multinomial logistic regression algorithm").

    The loss of class y is the logarithm of ``sum_c exp(<x, w_c - w_y>)``.  Differences of scores are all that the data can
    see, so noise is drawn in ``(classes - 1) * features`` dimensions.

    Parameters
    ----------
    features : int
        Number of features.
    classes : int
        Number of classes C.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||W||^2``, with one column of W for each class.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    labels : tuple, optional
        Names of the classes; by default 0, ..., classes - 1.
    constant : float
        Factor of a parameter b: scores are ``x @ W + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.
    """
    names = tuple(range(classes)) if labels is None else tuple(labels)
    if len(names) != classes or classes < 2:
        raise dp.TemplateError(f"softmax_regression needs {classes} labels, at least two, not {names!r}.")
    W = cp.Variable((features, classes), name="W")
    b = cp.Variable(classes, name="b") if constant else np.zeros(classes)
    free = min(regularization, 1e-6)

    def loss(x, y):
        return cp.log_sum_exp(x @ W + constant * b) - (x @ W[:, names.index(y)] + constant * b[names.index(y)])

    def decision(parameters, x):
        return x @ parameters["W"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice(names)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(W) + (free / 2 * cp.sum_squares(b) if constant else 0.0),
        decision=decision,
        probabilities="softmax",
        ratio="odds ratio",
    )
