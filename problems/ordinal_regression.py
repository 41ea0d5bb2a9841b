"""Ordinal regression: one score and ordered thresholds between the grades."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 4,
    regularization: float = 1e-6,
    radius: float = 1.0,
    labels: tuple | None = None,
) -> dp.Template:
    """Return the template (Rennie & Srebro 2005, "Loss functions for preference levels", the all-threshold logistic loss).

    The score ``x'w`` should be above the thresholds below a record's grade and below the others; each of them counts.  The
    thresholds are constrained to be in order, so that every released model has grades in order too.  Each term is a logistic
    regression for grades above its threshold; probabilities of grades are differences of theirs.

    Parameters
    ----------
    features : int
        Number of features.
    classes : int
        Number of grades C; there are C - 1 thresholds.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 (||w||^2 + ||b||^2)``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    labels : tuple, optional
        Names of the grades, lowest first; by default 0, ..., classes - 1.

    Examples
    --------
    >>> learner = template(features=3, labels=("poor", "fair", "good", "fine"))
    >>> print(learner.constraints[0])
    b[:2] <= b[1:]
    >>> round(dp.verify(learner, dp.Privacy(1.0), size=1000).gradient_bound ** 2, 6)  # of (3x, -1, -1, -1)
    12.0
    """
    names = tuple(range(classes)) if labels is None else tuple(labels)
    if len(names) != classes or classes < 2:
        raise dp.TemplateError(f"ordinal_regression needs {classes} labels, at least two, not {names!r}.")
    w = cp.Variable(features, name="w")
    b = cp.Variable(classes - 1, name="b")

    def loss(x, y):
        below = np.where(
            np.arange(classes - 1) < names.index(y), 1.0, -1.0
        )  # of each threshold, where the score belongs
        return cp.sum(cp.logistic(cp.multiply(below, b - x @ w)))

    def predict(parameters, x):
        return np.array(names)[np.searchsorted(parameters["b"], x @ parameters["w"])]

    def probabilities(parameters, x):
        # The probabilities of grades above each threshold fall along the thresholds, which are in order.
        above = np.exp(-np.logaddexp(0.0, parameters["b"] - (x @ parameters["w"])[:, None]))
        return np.maximum(-np.diff(above, axis=1, prepend=1.0, append=0.0), 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice(names)),
        loss=loss,
        regularizer=regularization / 2 * (cp.sum_squares(w) + cp.sum_squares(b)),
        constraints=[b[:-1] <= b[1:]] if classes > 2 else [],
        predict=predict,
        probabilities=probabilities,
        ratio="odds ratio",
    )
