"""Conditional logit: choices among alternatives that have features of their own, and may be unavailable."""

import cvxpy as cp
import numpy as np

import dpconvex as dp

GONE = 30.0  # What an alternative that is not available loses of its score


def template(
    *,
    features: int,
    alternatives: int = 3,
    regularization: float = 1e-6,
    radius: float = 1.0,
    labels: tuple | None = None,
    availability: bool = False,
    constant: float = 0.0,
) -> dp.Template:
    """Return the template (McFadden 1974, "Conditional logit analysis of qualitative choice behavior").

    Alternative k has the features ``x[k * features : (k + 1) * features]`` and the score ``x_k'w``, plus a constant of its own
    if it is asked for.  It is chosen with a probability proportional to exp of the score.

    Parameters
    ----------
    features : int
        Number of features of an alternative, such as its price and its time.
    alternatives : int
        Number of alternatives A.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    radius : float
        Public bound on the Euclidean norm of a record: of the features of all alternatives together.
    labels : tuple, optional
        Names of the alternatives; by default 0, ..., alternatives - 1.
    availability : bool
        Whether records have a field `available`, with 1 for each alternative that could be chosen, and 0 for others.  The one
        that is chosen should be among them.
    constant : float
        Factor of parameters b, one for each alternative but the first, which are added to their scores; they have a penalty of
        1e-6 at most.  By default there are none.

    Examples
    --------
    >>> learner = template(features=2, labels=("train", "car", "bus"), availability=True)
    >>> sorted(learner.record.fields)
    ['available', 'x', 'y']
    """
    names = tuple(range(alternatives)) if labels is None else tuple(labels)
    if len(names) != alternatives or alternatives < 2:
        raise dp.TemplateError(f"conditional_logit needs {alternatives} labels, at least two, not {names!r}.")
    w = cp.Variable(features, name="w")
    b = cp.Variable(alternatives - 1, name="b") if constant else np.zeros(alternatives - 1)
    free = min(regularization, 1e-6)

    def loss(x, y, available=1.0):
        own = [x[k * features : (k + 1) * features] @ w for k in range(alternatives)]
        scores = cp.hstack([own[0], *(own[k] + constant * b[k - 1] for k in range(1, alternatives))])
        kept = scores - GONE * (1 - available) if availability else scores
        return cp.log_sum_exp(kept) - scores[names.index(y)]

    def decision(parameters, x, available=1.0):
        """Return the scores of the alternatives, shape (n, alternatives); by default all are available."""
        table = np.kron(np.eye(alternatives), parameters["w"][:, None])
        shift = np.append(0.0, constant * parameters["b"]) if constant else 0.0
        return x @ table + shift - GONE * (1 - available)

    box = {"available": dp.Box(np.zeros(alternatives), np.ones(alternatives))} if availability else {}
    return dp.Template(
        record=dp.Record(x=dp.Ball(alternatives * features, radius=radius), y=dp.Choice(names), **box),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.sum_squares(b) if constant else 0.0),
        decision=decision,
        probabilities="softmax",
        ratio="odds ratio",
    )
