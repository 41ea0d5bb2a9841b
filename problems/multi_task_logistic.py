"""Logistic regressions of several related tasks, drawn towards each other: two classes in each."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    classes: int = 2,
    tasks: tuple = ("first", "second", "third"),
    regularization: float = 1e-6,
    coupling: float = 0.1,
    radius: float = 1.0,
    labels: tuple = (-1, 1),
) -> dp.Template:
    """Return the template (Evgeniou & Pontil 2004, "Regularized multi-task learning", section 3).

    Each task has its own coefficients, a column of W, and the penalty draws the columns to their mean.  One person's record
    belongs to one task, whose name is a private field like the others.

    Parameters
    ----------
    features : int
        Number of features.
    classes : int
        Two.
    tasks : tuple
        Public names of the tasks.
    regularization : float
        Lambda: the quadratic part of the regularizer is ``Lambda/2 ||W||^2``.
    coupling : float
        Weight of half the squared distances of the columns of W from their mean.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    labels : tuple
        The negative and the positive label.

    Examples
    --------
    >>> certificate = dp.verify(template(features=3), dp.Privacy(1.0), size=1000)
    >>> round(certificate.gradient_bound, 6)  # a record moves one task's column
    1.0
    """
    if classes != 2:
        raise dp.TemplateError(f"multi_task_logistic has two classes, not {classes}; see the multi-class problems.")
    negative, positive = labels
    names = tuple(tasks)
    W = cp.Variable((features, len(names)), name="W")
    from_mean = np.eye(len(names)) - 1 / len(names)

    def loss(x, y, task):
        sign = 1 if y == positive else -1
        return cp.logistic(-sign * (x @ W[:, names.index(task)]))

    def predict(parameters, x, task=None):
        """Return one label for each row, by its task; without tasks one for each task, in the order of `tasks`."""
        scores = x @ parameters["W"]
        own = scores if task is None else scores[np.arange(len(scores)), [names.index(name) for name in task]]
        return np.where(own > 0, positive, negative)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice([negative, positive]), task=dp.Choice(names)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(W) + coupling / 2 * cp.sum_squares(W @ from_mean),
        predict=predict,
        ratio="odds ratio",
    )
