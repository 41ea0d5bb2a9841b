"""Logistic regression whose scores have hardly any covariance with a protected attribute: two classes."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    covariance: tuple | None = None,
    tolerance: float = 0.05,
    regularization: float = 1e-6,
    radius: float = 1.0,
    labels: tuple = (-1, 1),
    constant: float = 0.0,
) -> dp.Template:
    """Return the template (Zafar, Valera, Gomez Rodriguez & Gummadi 2017, "Fairness constraints", equation 4).

    With c the covariances of a protected attribute with the features, ``c'w`` is the covariance of the attribute with the
    score: the constraint is ``|c'w| <= tolerance``.  The paper reads c off the data.  Here it must be public: from a census,
    say, or from a private release of its own.

    Parameters
    ----------
    features : int
        Number of features.
    classes : int
        Two.
    covariance : tuple of float, optional
        c, one public number for each feature.  By default the first feature is the attribute, and uncorrelated with the others.
    tolerance : float
        Largest absolute covariance of attribute and score; positive.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    labels : tuple
        The negative and the positive label.
    constant : float
        Factor of a parameter b: the score is ``x @ w + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.

    Examples
    --------
    >>> learner = template(features=3, covariance=(0.2, 0.0, -0.1))
    >>> print(learner.constraints[0])
    abs([0.2, 0, -0.1] @ w) <= 0.05
    >>> round(dp.verify(learner, dp.Privacy(1.0), size=1000).gradient_bound, 6)
    1.0
    """
    if classes != 2:
        raise dp.TemplateError(
            f"fair_logistic_regression has two classes, not {classes}; see the multi-class problems."
        )
    direction = np.eye(features)[0] if covariance is None else np.array(covariance, dtype=float)
    if direction.shape != (features,) or not tolerance > 0:
        raise dp.TemplateError(
            f"fair_logistic_regression needs {features} covariances and a positive tolerance, not {covariance!r} and "
            f"{tolerance!r}."
        )
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
        constraints=[cp.abs(direction @ w) <= tolerance],
        decision=decision,
        probabilities="softmax",
    )
