"""Portfolio weights from private returns: non-negative, with sum one."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(*, features: int, regularization: float = 0.01, aversion: float = 1.0, radius: float = 0.1) -> dp.Template:
    """Return the template (Markowitz 1952, "Portfolio selection", about the mean return 0).

    A record has the returns x of all assets, as one person saw them.  The loss is minus the return ``x'w`` plus the risk
    ``aversion/2 (x'w)^2``.

    Parameters
    ----------
    features : int
        Number of assets.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``, which spreads the weights.
    aversion : float
        Weight of the risk.
    radius : float
        Public bound on the absolute value of a return.

    Examples
    --------
    >>> learner = template(features=3)
    >>> [str(constraint) for constraint in learner.constraints], learner.variables[0].attributes
    (['sum(w) == 1'], {'nonneg': True})
    >>> round(dp.verify(learner, dp.Privacy(1.0), size=1000).gradient_bound, 6)  # sqrt(3) 0.1 (1 + 0.1)
    0.190526
    """
    w = cp.Variable(features, nonneg=True, name="w")

    def loss(x):
        return aversion / 2 * cp.square(x @ w) - x @ w

    def predict(parameters, x):
        """Return the return of the portfolio for each row of assets' returns."""
        return x @ parameters["w"]

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius, norm=np.inf)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w),
        constraints=[cp.sum(w) == 1],
        predict=predict,
    )
