"""Least-squares classifier of many classes: one linear score per class, squares for a loss, made for sufficient statistics."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    regularization: float = 1e-4,
    radius: float = 1.0,
    labels: tuple | None = None,
    constant: float = 0.0,
) -> dp.Template:
    """Return the template.

    Scores are regressed on the class of a record, 1 or 0 (Duda & Hart, "Pattern Classification and Scene Analysis", 1973,
    section 5.8).  All classes share the matrix of second moments, so statistics of d(d+1)/2 + Cd numbers hold all of it.
    Quadratic or random features (`RandomFourierFeatures`) make curved boundaries.  Nothing bounds the slopes of squares:
    `dp.SufficientStatistics` is the mechanism that needs no bound.

    Parameters
    ----------
    features : int
        Number of features.
    classes : int
        Number of classes.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||W||^2``.
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
        raise dp.TemplateError(f"least_squares_classifier needs {classes} labels, at least two, not {names!r}.")
    W = cp.Variable((features, classes), name="W")
    b = cp.Variable(classes, name="b") if constant else np.zeros(classes)
    free = min(regularization, 1e-6)

    def loss(x, y):
        scores = [x @ W[:, c] + constant * b[c] for c in range(classes)]
        return sum(map(cp.square, scores)) / 2 - scores[names.index(y)]

    def decision(parameters, x):
        return x @ parameters["W"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice(names)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(W) + (free / 2 * cp.sum_squares(b) if constant else 0.0),
        decision=decision,
    )
