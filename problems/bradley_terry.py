"""Bradley-Terry ranking: strengths of items from who wins their comparisons."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    regularization: float = 1e-6,
    radius: float = 2**0.5,
    ties: bool = False,
    constant: float = 0.0,
) -> dp.Template:
    """Return the template (Bradley & Terry 1952, "Rank analysis of incomplete block designs"; Davidson & Beaver 1977 for b).

    The first of two items wins with the odds ``exp(w_i - w_j)``.  A record's x has 1 for the first item, -1 for the second one,
    and 0 for others; or it is the difference of features of the two.  The loss is minus the logarithm of the likelihood.

    Parameters
    ----------
    features : int
        Number of items, or of features of an item.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.  Only differences of strengths of items mean anything.
    radius : float
        Public bound on the Euclidean norm of a record's differences; by default that of two items.
    ties : bool
        Whether y may be 0.5 for a tie, which counts as half a win of each; else it is 1 if the first item wins, and 0 if not.
    constant : float
        Factor of a parameter b, the advantage of the item that is named first, such as the team that plays at home; it has a
        penalty of 1e-6 at most.  By default there is none.

    Examples
    --------
    >>> learner = template(features=20, ties=True)
    >>> learner.record.fields["y"].values
    (0.0, 1.0, 0.5)
    >>> round(dp.verify(learner, dp.Privacy(1.0), size=1000).gradient_bound, 6)
    1.414214
    """
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free = min(regularization, 1e-6)

    def loss(x, y):
        score = x @ w + constant * b
        return cp.logistic(score) - y * score

    def decision(parameters, x):
        """Return the logarithm of the odds that the first item wins."""
        return x @ parameters["w"] + constant * parameters.get("b", 0.0)

    def predict(parameters, x):
        return np.where(decision(parameters, x) > 0, 1.0, 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Choice((0.0, 1.0, 0.5) if ties else (0.0, 1.0))),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        predict=predict,
        decision=decision,
        ratio="odds ratio",
    )
