"""Expected-shortfall regression: the mean of the worst outcomes, with the quantiles beyond a level."""

import cvxpy as cp
import numpy as np

import dpconvex as dp


def template(
    *,
    features: int,
    level: float = 0.9,
    levels: int = 3,
    regularization: float = 1e-6,
    radius: float = 1.0,
    target: float = 1.0,
    width: float = 0.1,
    weight: float = 0.0,
) -> dp.Template:
    """Return the template: CVaR regression by mixed quantiles (Golodnikov, Kuzmenko & Uryasev 2019).

    The expected shortfall beyond a level, also CVaR or superquantile, is the mean of the quantiles above it.  No loss of the
    shortfall alone has it as its minimiser.  Rockafellar & Uryasev's loss ``t + max(y - x'w - t, 0)/(1 - a)``, which is convex in
    w and the quantile t, serves each of several levels a between `level` and 1.  All have the slopes w and a threshold each:
    the minimiser is that of their mixed-quantile error, and the prediction is ``x'w`` plus the mean threshold.  Hinges are
    smoothed with the Huber hinge.

    Few records have the longest slopes, so adaptive steps, the default with a delta, end farther from the minimiser than
    ``dp.ObjectivePerturbation("gaussian")`` by name does.  If targets lie far from the middle of their bounds, steps end much
    too near to the middle.

    Parameters
    ----------
    features : int
        Number of features.
    level : float
        Between 0 and 1: what is predicted is the mean of the largest targets, a share of ``1 - level``.
    levels : int
        Number of quantiles, at the middles of as many equal parts of what is above the level.
    regularization : float
        Lambda: the regularizer is ``Lambda/2 (||w||^2 + ||t||^2)``.
    radius : float
        Public bound on the Euclidean norm of a record's features.
    target : float
        Public bound on the absolute value of a record's target.
    width : float
        Half-width of the smoothing, in multiples of `target`.
    weight : float
        Public bound on survey weights; 0 for none.  With a bound, each record has a field `weight` that multiplies its loss.
    """
    if not 0 < level < 1 or levels < 1:
        raise dp.TemplateError(
            f"expected_shortfall: level lies between 0 and 1, and levels is at least 1; not {level!r}, {levels!r}."
        )
    apart = (1 - level) / levels * (levels - np.arange(levels) - 0.5)  # 1 - a
    w = cp.Variable(features, name="w")
    t = cp.Variable(levels, name="t")

    def loss(x, y, weight=1.0):
        residual = y - (x @ w + t)
        excess = dp.huber_hinge(residual, width * target)
        # What is left of x'w + t + max(y - x'w - t, 0)/(1 - a), without y, times 1 - level
        return weight * (1 - level) / levels * cp.sum(cp.multiply(1 / apart, excess) - residual)

    def predict(parameters, x):
        """Return the expected shortfall of each row of x."""
        return x @ parameters["w"] + np.mean(parameters["t"])

    return dp.Template(
        record=dp.Record(
            x=dp.Ball(features, radius=radius),
            y=dp.Box(-target, target),
            **({"weight": dp.Box(0, weight)} if weight else {}),
        ),
        loss=loss,
        regularizer=regularization / 2 * (cp.sum_squares(w) + cp.sum_squares(t)),
        predict=predict,
    )
