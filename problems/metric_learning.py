"""A Mahalanobis metric from labelled pairs: a positive semidefinite matrix and a threshold."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    regularization: float = 1e-6,
    radius: float = 1.0,
    width: float = 0.5,
    labels=("different", "alike"),
) -> dp.Template:
    """Return the template.

    A record is the difference x of two objects and whether they are alike; alike pairs should be closer than the threshold
    b, others farther, by a margin of one.

    Parameters
    ----------
    features : int
        Number of features.
    regularization : float
        Weight of ``||M||_F^2 + b^2``.
    radius : float
        Public bound on the Euclidean norm of a difference.
    width : float
        Half-width of the quadratic piece of the Huber hinge.
    labels : pair
        Labels of different and of alike pairs.
    """
    different, alike = labels
    M = cp.Variable((features, features), PSD=True, name="M")
    b = cp.Variable(name="b")

    def loss(x, y):
        z = x / radius
        gap = z @ M @ z - b
        return dp.huber_hinge(1 + (gap if y == alike else -gap), width=width)

    def predict(parameters, x):
        z = x / radius
        distance = np.einsum("ni,ij,nj->n", z, parameters["M"], z)
        return np.where(distance < parameters["b"], alike, different)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice([alike, different])),
        loss=loss,
        regularizer=regularization * (cp.sum_squares(M) + cp.square(b)),
        predict=predict,
    )
