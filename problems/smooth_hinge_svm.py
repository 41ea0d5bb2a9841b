"""Support vector machine with the twice differentiable hinge, declared as a user's own atom."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def smooth_hinge(width: float) -> dp.Atom:
    """Return the twice continuously differentiable approximation of max(0, m) (Chaudhuri et al. 2011, section 3.4.2).

    Between -width and width the function is the quartic whose value, slope and curvature meet those of 0 and m at the ends;
    its curvature is largest in the middle, 3/(4 width).

    Parameters
    ----------
    width : float
        Half-width of the quartic piece.
    """

    def function(m):
        t = np.clip(m / width, -1.0, 1.0)
        quartic = width * (3 + 8 * t + 6 * t**2 - t**4) / 16
        return np.where(m > width, m, np.where(m < -width, 0.0, quartic))

    return dp.Atom("smooth_hinge", function, slope=(0.0, 1.0), curvature=3 / (4 * width), lower=0.0)


def template(
    *,
    features: int,
    classes: int = 2,
    regularization: float = 1e-6,
    radius: float = 1.0,
    width: float = 0.5,
    labels: tuple = (-1, 1),
    constant: float = 0.0,
) -> dp.Template:
    """Return the template.

    The hinge's constants are declared, not derived: `verify` attacks them first, and the certificate says so.

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
    width : float
        Half-width of the piece that replaces the hinge's nonsmooth point.
    labels : tuple
        The negative and the positive label.
    constant : float
        Factor of a parameter b: the score is ``x @ w + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.
    """
    if classes != 2:
        raise dp.TemplateError(f"smooth_hinge_svm has two classes, not {classes}; see the multi-class problems.")
    negative, positive = labels
    hinge = smooth_hinge(width)
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free = min(regularization, 1e-6)

    def loss(x, y):
        sign = 1 if y == positive else -1
        return hinge(1 - sign * (x @ w + constant * b))

    def decision(parameters, x):
        return x @ parameters["w"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice([negative, positive])),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        decision=decision,
    )
