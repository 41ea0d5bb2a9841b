"""One-class support vector machine: a half-space that holds most records, and calls the rest unusual."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    unusual: float = 0.1,
    regularization: float = 0.05,
    radius: float = 1.0,
    width: float = 0.1,
) -> dp.Template:
    """Return the template (Schoelkopf, Platt, Shawe-Taylor, Smola & Williamson 2001, equation 3.4).

    A record is usual if ``x'w >= b``.  The paper's objective is multiplied by nu, the share of unusual records: each record
    that falls short pulls with its shortfall, and the threshold b is pushed up with nu.  The hinge is the Huber hinge.

    Parameters
    ----------
    features : int
        Number of features; records of few features should be mapped first, see `dpconvex.RandomFourierFeatures`.
    unusual : float
        nu, between 0 and 1: about this share of the records is called unusual.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 (||w||^2 + b^2)``.
    radius : float
        Public bound on the Euclidean norm of a record.
    width : float
        Half-width of the quadratic piece of the Huber hinge.

    Examples
    --------
    >>> certificate = dp.verify(template(features=3), dp.Privacy(1.0), size=1000)
    >>> round(certificate.gradient_bound, 6)  # of (x, -1), times a slope of at most 1
    1.414214
    """
    if not 0 < unusual < 1:
        raise dp.TemplateError(f"one_class_svm: unusual must lie between 0 and 1, not {unusual!r}.")
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b")

    def loss(x):
        return dp.huber_hinge(b - x @ w, width=width)

    def predict(parameters, x):
        return np.where(x @ parameters["w"] >= parameters["b"], "usual", "unusual")

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius)),
        loss=loss,
        regularizer=regularization / 2 * (cp.sum_squares(w) + cp.square(b)) - unusual * b,
        predict=predict,
    )
