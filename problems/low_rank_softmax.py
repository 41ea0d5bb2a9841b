"""Softmax regression of low rank: many classes that share a few directions of the features."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 4,
    regularization: float = 1e-6,
    bound: float = 3.0,
    radius: float = 1.0,
    labels: tuple | None = None,
    constant: float = 0.0,
) -> dp.Template:
    """Return the template (Amit, Fink, Srebro & Ullman 2007, "Uncovering shared structures in multiclass classification").

    The nuclear norm of W adds up its singular values, and a bound on it makes small ones zero: a low rank is learnt, not given.

    Parameters
    ----------
    features : int
        Number of features.
    classes : int
        Number of classes C.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||W||^2``, with one column of W for each class.
    bound : float
        Bound on the nuclear norm of W, part of the model.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    labels : tuple, optional
        Names of the classes; by default 0, ..., classes - 1.
    constant : float
        Factor of a parameter b: scores are ``x @ W + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.

    Examples
    --------
    >>> certificate = dp.verify(template(features=3), dp.Privacy(1.0), size=1000)
    >>> round(certificate.gradient_bound**2, 6), certificate.noise_dimension
    (2.0, 9)
    """
    names = tuple(range(classes)) if labels is None else tuple(labels)
    if len(names) != classes or classes < 2:
        raise dp.TemplateError(f"low_rank_softmax needs {classes} labels, at least two, not {names!r}.")
    W = cp.Variable((features, classes), name="W")
    b = cp.Variable(classes, name="b") if constant else np.zeros(classes)
    free = min(regularization, 1e-6)

    def loss(x, y):
        against = np.eye(classes)
        against[names.index(y)] -= 1  # W @ against has the columns w_c - w_y
        return cp.log_sum_exp(x @ (W @ against) + constant * (b @ against))

    def decision(parameters, x):
        return x @ parameters["W"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice(names)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(W) + (free / 2 * cp.sum_squares(b) if constant else 0.0),
        constraints=[cp.normNuc(W) <= bound],
        decision=decision,
        probabilities="softmax",
    )
