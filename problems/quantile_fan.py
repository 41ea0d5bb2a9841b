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

    The paper asks for order at chosen points; here quantiles are in order at every x of the ball.  Quantile k is
    ``<x, w_k> + b_k``.  Neighbours differ by at least 0 on the ball: ``radius ||w_(k+1) - w_k|| <= b_(k+1) - b_k``, a
    second-order cone.  The pinball losses are smoothed with the Huber hinge.

    Parameters
    ----------
    features : int
        Number of features.
    quantiles : tuple of float
        Between 0 and 1, increasing.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 (||w||^2 + ||b||^2)``.
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
    >>> round(certificate.gradient_bound**2, 6)  # twice 0.75^2, of two quantiles, times |(x, 1)|^2
    2.25
    """
    levels = np.array(quantiles, dtype=float)
    if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all() or (np.diff(levels) <= 0).any():
        raise dp.TemplateError(f"quantile_fan: quantiles must lie between 0 and 1 and increase, not {quantiles!r}.")
    w = cp.Variable((features, len(levels)), name="w")
    b = cp.Variable(len(levels), name="b")

    def loss(x, y):
        residual = y - x @ w - b
        return levels @ dp.huber_hinge(residual, width * target) + (1 - levels) @ dp.huber_hinge(
            -residual, width * target
        )

    def predict(parameters, x):
        """Return all quantiles of each row of x, in order."""
        return x @ parameters["w"] + parameters["b"]

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Box(-target, target)),
        loss=loss,
        regularizer=regularization / 2 * (cp.sum_squares(w) + cp.sum_squares(b)),
        constraints=[radius * cp.norm(w[:, k + 1] - w[:, k]) <= b[k + 1] - b[k] for k in range(len(levels) - 1)],
        predict=predict,
    )
