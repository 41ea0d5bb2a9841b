"""A robust centre of vectors: the smoothed geometric median, inside a ball."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(*, features: int, regularization: float = 1e-6, radius: float = 1.0, scale: float = 0.2) -> dp.Template:
    """Return the template: not classification, but a summary of where people are.

    Each record pulls with ``sqrt(scale^2 + ||x - m||^2)``, so nobody pulls harder than a unit, however far away.

    Parameters
    ----------
    features : int
        Number of coordinates.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||m||^2``.
    radius : float
        Public bound on the Euclidean norm of a record; the centre is constrained to the same ball.
    scale : float
        Distance below which the pull fades.
    """
    m = cp.Variable(features, name="m")

    def loss(x):
        return cp.norm(cp.hstack([scale, x - m]))

    def predict(parameters, x):
        return np.linalg.norm(x - parameters["m"], axis=1)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(m),
        constraints=[cp.norm(m) <= radius],
        predict=predict,
    )
