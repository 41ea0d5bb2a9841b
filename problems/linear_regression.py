"""Linear regression with an offset and no penalty, for statistics that tell coefficients and their standard errors."""

import cvxpy as cp

import dpconvex as dp


def template(
    *, features: int, regularization: float = 0.0, radius: float = 1.0, target: float = 1.0, offset: bool = True
) -> dp.Template:
    """Return the template.

    The model is y = x'w + b + e.  Statistics of it, with `residuals`, hold all that least squares ask of the data:
    `dp.coefficients` turns them into estimates, standard errors and confidence intervals that count the noise.  Nothing bounds
    the slopes of squares: `dp.SufficientStatistics` is the mechanism that needs no bound.

    Parameters
    ----------
    features : int
        Number of features.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``, for `fit` alone.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    target : float
        Public bound on the absolute value of a record's target.
    offset : bool
        Whether there is a b.
    """
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if offset else 0.0

    def loss(x, y):
        return cp.square(x @ w + b - y) / 2

    def predict(parameters, x):
        return x @ parameters["w"] + parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(x=dp.Ball(features, radius=radius), y=dp.Box(-target, target)),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w),
        predict=predict,
    )
