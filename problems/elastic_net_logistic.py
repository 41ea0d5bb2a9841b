"""Logistic regression with an elastic-net penalty: sparse coefficients, two classes."""

import cvxpy as cp

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    regularization: float = 1e-6,
    sparsity: float = 0.01,
    radius: float = 1.0,
    labels: tuple = (-1, 1),
) -> dp.Template:
    """Return the template.

    The 1-norm is nonsmooth, which objective perturbation allows in the public part of the objective.

    Parameters
    ----------
    features : int
        Number of features.
    classes : int
        Two.
    regularization : float
        Lambda: the quadratic part of the regularizer is ``Lambda/2 ||w||^2``.
    sparsity : float
        Weight of ``||w||_1``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    labels : tuple
        The negative and the positive label.
    """
    if classes != 2:
        raise dp.TemplateError(f"elastic_net_logistic has two classes, not {classes}; see the multi-class problems.")
    negative, positive = labels
    w = cp.Variable(features, name="w")

    def loss(x, y):
        sign = 1 if y == positive else -1
        return cp.logistic(-sign * (x @ w))

    def decision(parameters, x):
        return x @ parameters["w"]

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice([negative, positive])),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + sparsity * cp.norm1(w),
        decision=decision,
        probabilities="softmax",
    )
