"""Several quantiles at once by linear regression, which never cross on the declared records."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    quantiles: tuple = (0.1, 0.5, 0.9),
    regularization: float = 1e-6,
    radius: float = 1.0,
    target: float = 1.0,
    width: float = 0.1,
) -> dp.Template:
    """Return the template (Takeuchi, Le, Sears & Smola 2006, "Nonparametric quantile estimation", section 3).

    The paper asks for order at chosen points; here quantiles are in order at every x of the ball.  The middle one is
    ``<x, W_m> + b_m``.  From there outwards, each of the others is its neighbour plus (above the middle) or minus (below it)
    ``<x, W_k> + b_k``, which is not negative on the ball: ``radius ||W_k|| <= b_k``, a second-order cone.  The pinball losses
    are smoothed with the Huber hinge.

    Parameters
    ----------
    features : int
        Number of features.
    quantiles : tuple of float
        Between 0 and 1, increasing.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 (||W||^2 + ||b||^2)``, so that quantiles tend to be parallel.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    target : float
        Public bound on the absolute value of a record's target.
    width : float
        Half-width of the smoothing, in multiples of `target`.

    Examples
    --------
    >>> learner = template(features=3, quantiles=(0.25, 0.75))
    >>> certificate = dp.verify(learner, dp.Privacy(1.0), size=1000)
    >>> round(certificate.gradient_bound**2, 6)  # (x, 1) times the sum of the slopes, and (x, 1) times the slope of the upper one
    3.125
    """
    levels = np.array(quantiles, dtype=float)
    if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all() or (np.diff(levels) <= 0).any():
        raise dp.TemplateError(f"quantile_fan: quantiles must lie between 0 and 1 and increase, not {quantiles!r}.")
    count, middle = len(levels), (len(levels) - 1) // 2
    steps = np.zeros((count, count))  # W @ steps has the coefficients of the quantiles as columns
    for k in range(count):
        steps[middle, k] = 1
        steps[middle + 1 : k + 1, k] = 1
        steps[k:middle, k] = -1
    W = cp.Variable((features, count), name="W")
    b = cp.Variable(count, name="b")

    def loss(x, y):
        residual = y - x @ (W @ steps) - b @ steps
        return levels @ dp.huber_hinge(residual, width * target) + (1 - levels) @ dp.huber_hinge(
            -residual, width * target
        )

    def predict(parameters, x):
        """Return all quantiles of each row of x, in order."""
        return x @ (parameters["W"] @ steps) + parameters["b"] @ steps

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Box(-target, target)),
        loss=loss,
        regularizer=regularization / 2 * (cp.sum_squares(W) + cp.sum_squares(b)),
        constraints=[cp.norm(radius * W[:, k]) <= b[k] for k in range(count) if k != middle],
        predict=predict,
    )
