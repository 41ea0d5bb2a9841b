"""Several quantiles at once by linear regression, which never cross on the declared records."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    quantiles: tuple = (0.1, 0.5, 0.9),
    regularization: float = 0.01,
    radius: float = 1.0,
    target: float = 1.0,
    width: float = 0.1,
) -> dp.Template:
    """Return the template (Takeuchi, Le, Sears & Smola 2006, "Nonparametric quantile estimation", section 3).

    Quantile k of the target at x is ``<x, W_k> + b_k``.  The paper asks for order at chosen points.  Here two neighbours are in
    order at every x of the ball: ``radius ||W_{k+1} - W_k|| <= b_{k+1} - b_k``, a second-order cone.  The pinball losses are
    smoothed with the Huber hinge.

    Parameters
    ----------
    features : int
        Number of features.
    quantiles : tuple of float
        Between 0 and 1, increasing.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 (||W||^2 + ||b||^2)``, with one column of W for each quantile.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    target : float
        Public bound on the absolute value of a record's target.
    width : float
        Half-width of the smoothing, in units of the target.

    Examples
    --------
    >>> learner = template(features=3, quantiles=(0.25, 0.75))
    >>> print(learner.constraints[0])
    norm(W[:, 1] - W[:, 0]) <= b[1] - b[0]
    >>> round(dp.verify(learner, dp.Privacy(1.0), size=1000).gradient_bound, 6)  # of (x, 1) twice, with slopes up to 3/4
    1.5
    """
    levels = np.array(quantiles, dtype=float)
    if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all() or (np.diff(levels) <= 0).any():
        raise dp.TemplateError(f"quantile_fan: quantiles must lie between 0 and 1 and increase, not {quantiles!r}.")
    W = cp.Variable((features, len(levels)), name="W")
    b = cp.Variable(len(levels), name="b")

    def loss(x, y):
        residual = y - x @ W - b
        return cp.sum(levels @ dp.huber_hinge(residual, width) + (1 - levels) @ dp.huber_hinge(-residual, width))

    def predict(parameters, x):
        """Return all quantiles of each row of x, in order."""
        return x @ parameters["W"] + parameters["b"]

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Box(-target, target)),
        loss=loss,
        regularizer=regularization / 2 * (cp.sum_squares(W) + cp.sum_squares(b)),
        constraints=[radius * cp.norm(W[:, k + 1] - W[:, k]) <= b[k + 1] - b[k] for k in range(len(levels) - 1)],
        predict=predict,
    )
