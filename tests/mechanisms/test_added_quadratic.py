"""The added quadratic: it follows the units of what was declared, and leaves curvature its share of epsilon."""

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.errors import DPConvexError
from dpconvex.mechanisms.added_quadratic import SHARE

SIZE = 2000
DIFFERENCES = np.array([[-1.0, -1.0], [1.0, 0.0], [0.0, 1.0]])


def declared(kind: str, loss: float = 1.0, feature: float = 1.0, target: float = 1.0) -> dp.Template:
    """A learner whose loss, features and target are multiplied with constants, and its regularizer accordingly."""
    classes = 3 if kind == "softmax" else 1
    w = cp.Variable((2, classes), name="w")
    y: Any = dp.Box(-target, target) if kind in ("huber", "square") else dp.Choice([-1, 1])
    functions: dict[str, Callable[[Any, Any], Any]] = {
        "logistic": lambda x, y: cp.logistic(-y * (x @ w)[0]),
        "hinge": lambda x, y: dp.huber_hinge(1 - y * (x @ w)[0], width=0.5),
        "softmax": lambda x, y: cp.log_sum_exp(x @ (w @ DIFFERENCES)),
        "huber": lambda x, y: cp.huber((x @ w)[0] - y, 0.5 * target),
        "square": lambda x, y: cp.square((x @ w)[0] - y),
    }
    unit = feature / target if kind in ("huber", "square") else feature
    return dp.Template(
        dp.Record(x=dp.Ball(2, radius=feature), y=y),
        lambda x, y: loss * functions[kind](x, y),
        loss * 1e-6 * feature**2 * cp.sum_squares(w),
        [cp.norm(w) <= 2 / unit] if kind == "square" else [],
    )


KINDS = ["logistic", "hinge", "softmax", "huber", "square"]
MECHANISMS = [
    (dp.ObjectivePerturbation(), dp.Privacy(1.0)),
    (dp.ObjectivePerturbation("gaussian"), dp.Privacy(0.3, 1e-6, "add-remove")),
    (dp.OutputPerturbation(), dp.Privacy(1.0)),
]


@pytest.mark.parametrize(("mechanism", "privacy"), MECHANISMS)
@pytest.mark.parametrize("kind", KINDS)
def test_units_change_nothing(kind: str, mechanism: Any, privacy: dp.Privacy) -> None:
    plain = dp.verify(declared(kind), privacy, SIZE, mechanism)
    assert plain.added > 0
    # Losses times 7: gradients, noise and the quadratic times 7.
    louder = dp.verify(declared(kind, loss=7.0), privacy, SIZE, mechanism)
    assert louder.added == pytest.approx(7 * plain.added, rel=1e-3)
    # Features times 5: parameters are a fifth, so that a quadratic of theirs is worth the same at 25 times the modulus.
    longer = dp.verify(declared(kind, feature=5.0), privacy, SIZE, mechanism)
    assert longer.added == pytest.approx(25 * plain.added, rel=1e-3)
    # Targets times 3: parameters times 3, losses times 9.
    if kind in ("huber", "square"):
        farther = dp.verify(declared(kind, target=3.0), privacy, SIZE, mechanism)
        assert farther.added == pytest.approx(plain.added, rel=1e-3)


def test_summed_hinges_leave_most_of_epsilon_to_the_noise() -> None:
    template = dp.load("large_margin_gaussian", features=2, classes=8, competitors="summed")
    certificate = dp.verify(template, dp.Privacy(1.0), SIZE, dp.ObjectivePerturbation())
    assert certificate.jacobian_epsilon <= 2 * SHARE


def test_a_regularizer_near_the_largest_number_is_refused_in_words() -> None:
    with pytest.raises(DPConvexError, match="rescale the problem"):
        dp.verify(dp.load("logistic_regression", features=3, regularization=1e300), dp.Privacy(1.0), 100)


def test_an_offset_that_rounding_made_an_interval_is_no_target() -> None:
    w = cp.Variable(3, name="w")
    losses = (lambda x: cp.logistic(x @ w + 0.3), lambda x: cp.logistic(x @ w + 0.1 + 0.2))
    found = [
        dp.verify(dp.Template(dp.Record(x=dp.Ball(3)), loss, 0.001 * cp.sum_squares(w)), dp.Privacy(1.0, 1e-6), 1000)
        for loss in losses
    ]
    assert found[0].added == found[1].added == 0
