"""Negative binomial regression: counts that vary more than Poisson's, with a log link."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    dispersion: float = 1.0,
    regularization: float = 1e-6,
    radius: float = 1.0,
    target: float = 10.0,
    offset: float = 0.0,
    weight: float = 0.0,
    constant: float = 0.0,
    scaled: bool = False,
) -> dp.Template:
    """Return the template (Hilbe 2011, "Negative Binomial Regression", NB2).

    The mean of a count y is exp of the score plus the offset, and its variance is ``mean + dispersion * mean ** 2``.  The loss is
    minus the log likelihood, up to what depends on y alone.  Its slopes are bounded, and no bound on the coefficients is needed.

    Parameters
    ----------
    features : int
        Number of features.
    dispersion : float
        How much counts vary beyond Poisson's: `alpha` of statsmodels.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 ||w||^2``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    target : float
        Public bound on a record's count.
    offset : float
        Public bound on absolute values of offsets; 0 for none.  With a bound, each record has a field `offset`, such as the
        logarithm of its exposure, that is added to the score.
    weight : float
        Public bound on survey weights; 0 for none.  With a bound, each record has a field `weight` that multiplies its loss.
    constant : float
        Factor of a parameter b: the score is ``x @ w + constant * b``, and b has a penalty of 1e-6 at most.
        By default there is none.
    scaled : bool
        Whether counts are given between -1 and 1, for 0 and `target`, as schemas encode them; predictions are then, too.
    """
    if not 0 < dispersion < np.inf:
        raise dp.TemplateError(
            f"negative_binomial_regression: dispersion must be positive and finite, not {dispersion!r}."
        )
    w = cp.Variable(features, name="w")
    b = cp.Variable(name="b") if constant else 0.0
    free, size = min(regularization, 1e-6), 1 / dispersion
    optional = {"offset": dp.Box(-offset, offset), "weight": dp.Box(0, weight)}

    def loss(x, y, offset=0.0, weight=1.0):
        score, total = x @ w + constant * b + offset, target / 2 * cp.pos(y + 1) if scaled else y
        return weight * ((total + size) * cp.logistic(score - np.log(size)) - total * score)

    def predict(parameters, x, offset=0.0):
        """Return the mean of each row of x: at most `target` with the lowest offset."""
        score = x @ parameters["w"] + constant * parameters.get("b", 0.0)
        mean = np.exp(np.minimum(score, np.log(target) + optional["offset"].upper) + offset)
        return 2 * mean / target - 1 if scaled else mean

    return dp.Template(
        record=dp.Record(
            x=dp.Ball(features, radius=radius),
            y=dp.Box(-1, 1) if scaled else dp.Box(0, target),
            **{name: field for name, field in optional.items() if field.upper > 0},
        ),
        loss=loss,
        regularizer=regularization / 2 * cp.sum_squares(w) + (free / 2 * cp.square(b) if constant else 0.0),
        predict=predict,
        ratio="rate ratio",
    )
