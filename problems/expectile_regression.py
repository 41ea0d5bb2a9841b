"""Expectile regression: what least squares are to the mean, asymmetric squares are to the tails."""

import cvxpy as cp

import dpconvex as dp


def template(
    *,
    features: int,
    expectile: float = 0.5,
    regularization: float = 1e-6,
    radius: float = 1.0,
    target: float = 1.0,
    bound: float | None = None,
    weight: float = 0.0,
    constant: float = 0.0,
) -> dp.Template:
    """Return the template (Newey & Powell 1987, "Asymmetric least squares estimation and testing").

    The squared residual ``(y - prediction)^2`` counts `expectile` times if y is above the prediction, and ``1 - expectile`` times
    if it is below.  An expectile of 0.5 is the mean.

    Parameters
    ----------
    features : int
        Number of features.
    expectile : float
        Between 0 and 1.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    target : float
        Public bound on the absolute value of a record's target.
    bound : float or None
        Public bound on ``||w||`` in multiples of `target`, part of the model; an intercept has an interval that holds all the
        best ones then.  Longer coefficients are cut to it.
    weight : float
        Public bound on survey weights; 0 for none.  With a bound, each record has a field `weight` that multiplies its loss.
    constant : float
        Factor of a parameter b: the prediction is ``x @ w + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.
    """
    if not 0 < expectile < 1:
        raise dp.TemplateError(f"expectile_regression: expectile must lie between 0 and 1, not {expectile!r}.")
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free, within = min(regularization, 1e-6), []
    if bound is not None:
        largest = target * (1 + bound * radius)
        within = [cp.norm(w) <= bound * target, *([cp.abs(b) <= largest / constant] if constant else [])]

    def loss(x, y, weight=1.0):
        residual = y - (x @ w + constant * b)
        above, below = cp.square(cp.pos(residual)), cp.square(cp.pos(-residual))
        return weight * (expectile * above + (1 - expectile) * below)

    def predict(parameters, x):
        return x @ parameters["w"] + constant * parameters.get("b", 0.0)

    return dp.Template(
        record=dp.Record(
            x=dp.Ball(features, radius=radius),
            y=dp.Box(-target, target),
            **({"weight": dp.Box(0, weight)} if weight else {}),
        ),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        constraints=within,
        predict=predict,
    )
