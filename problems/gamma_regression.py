"""Gamma regression: amounts such as costs, whose deviation grows with their mean, with a log link."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    regularization: float = 1e-6,
    radius: float = 1.0,
    target: float = 10.0,
    bound: float | None = None,
    exposure: float = 0.0,
    weight: float = 0.0,
    constant: float = 0.0,
    scaled: bool = False,
) -> dp.Template:
    """Return the template (McCullagh & Nelder 1989, "Generalized Linear Models", chapter 8).

    The mean of an amount y is exp of the score, and its standard deviation is proportional to the mean.  The loss is half the
    deviance, up to what depends on y alone: with exposures, that of ``y / exposure`` weighted by the exposure.

    Parameters
    ----------
    features : int
        Number of features.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    target : float
        Public bound on a record's amount.
    bound : float or None
        Public bound on ``||w||``, part of the model, and times the radius on an intercept.  Targets should be in units of their
        typical size then.  Only pure guarantees need one; longer coefficients are cut to it.
    exposure : float
        Public bound on exposures; 0 for none.  With a bound, each record has a field `exposure`, such as its years, or number
        of claims, and y is the total over all of it: its mean is ``exposure * exp(score)``.
    weight : float
        Public bound on survey weights; 0 for none.  With a bound, each record has a field `weight` that multiplies its loss.
    constant : float
        Factor of a parameter b: the score is ``x @ w + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.
    scaled : bool
        Whether targets are given between -1 and 1, for 0 and `target`, as schemas encode them; predictions are then, too.
    """
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free, within = min(regularization, 1e-6), []
    if bound is not None:
        within = [cp.norm(w) <= bound, *([cp.abs(b) <= bound * radius / constant] if constant else [])]
    public = {"exposure": exposure, "weight": weight}

    def loss(x, y, exposure=1.0, weight=1.0):
        score, total = x @ w + constant * b, target / 2 * cp.pos(y + 1) if scaled else y
        return weight * (total * cp.exp(-score) + exposure * score)

    def predict(parameters, x, exposure=1.0):
        """Return the mean of each row of x; without exposures at most `target`."""
        score = x @ parameters["w"] + constant * parameters.get("b", 0.0)
        mean = exposure * np.exp(score if public["exposure"] else np.minimum(score, np.log(target)))
        return 2 * mean / target - 1 if scaled else mean

    return dp.Template(
        record=dp.Record(
            x=dp.Ball(features, radius=radius),
            y=dp.Box(-1, 1) if scaled else dp.Box(0, target),
            **{name: dp.Box(0, largest) for name, largest in public.items() if largest},
        ),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        constraints=within,
        predict=predict,
        ratio="rate ratio",
    )
