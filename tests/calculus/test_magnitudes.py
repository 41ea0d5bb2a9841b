"""Numbers whose squares vanish or overflow are refused, wherever they come from: bounds would be wrong, and quietly."""

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import pytest

import dpconvex as dp
from dpconvex.release.verify import analyse

w = cp.Variable(name="w")
MECHANISMS = [dp.ObjectivePerturbation("gamma"), dp.OutputPerturbation("gamma"), dp.NoisyGradientDescent(steps=3)]


def learner(loss: Callable[..., Any], bound: float = 1.0, limit: float = 3.0) -> dp.Template:
    record = dp.Record(x=dp.Box(-bound, bound), y=dp.Choice([0, 1]))
    return dp.Template(record, loss, 0.5 * cp.square(w), [w >= -limit, w <= limit])


def steep(x: Any, y: int) -> Any:
    return cp.huber(cp.pos(1e155 * x * w), 1.0) if y else cp.logistic(x * w)


def small(x: Any, y: int) -> Any:
    return 1e15 * cp.huber(cp.pos(1e-165 * x * w), 100.0) if y else 0.01 * 1e-150 * x * w


def summed(x: Any, y: int) -> Any:
    return cp.huber(cp.pos(1e155 * x * w), 1.0) + cp.logistic(x * w)


CASES: dict[str, dp.Template] = {
    "a steep hinge of one label": learner(steep),
    "a steep hinge beside another loss": learner(summed),
    "small coefficients of huge records": learner(small, 1e150, 1e16),
    "huge records": learner(lambda x, y: cp.logistic(1e-70 * x * w), 1e150),
    "tiny records": learner(lambda x, y: 1e70 * cp.logistic(x * w), 1e-160),
    "a huge set": learner(lambda x, y: cp.logistic(x * w), 1.0, 1e160),
    "a huge factor": learner(lambda x, y: 1e160 * cp.logistic(x * w)),
    "a huge curvature": learner(lambda x, y: 1e120 * cp.huber(1e-60 * cp.pos(x * w), 1.0)),
    "products of fields": learner(lambda x, y: cp.logistic(x * x * x * w), 1e60),
}


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("case", CASES)
def test_they_are_refused_with_every_mechanism(case: str, mechanism: Any) -> None:
    with pytest.raises(dp.NotPrivate) as caught:
        dp.verify(CASES[case], dp.Privacy(1.0, 1e-6), 50, mechanism)
    assert caught.value.remedy


@pytest.mark.parametrize("unit", [1e-60, 1e-9, 1e9, 1e60])
def test_units_that_somebody_might_use_change_nothing(unit: float) -> None:
    plain = analyse(learner(lambda x, y: cp.logistic(x * w))).gradient_bound
    scaled = analyse(learner(lambda x, y: cp.logistic(x * w / unit), unit)).gradient_bound
    assert scaled == pytest.approx(plain, rel=1e-9)
    v, fields = cp.Variable(3, name="v"), {"x": dp.Ball(2), "income": dp.Box(0.0, unit)}
    both = dp.Template(dp.Record(**fields), lambda x, income: cp.logistic(v @ cp.hstack([x, income / unit])))
    assert analyse(both).gradient_bound == pytest.approx(2**0.5)
