"""Learners of the gallery in their smallest sizes: the exact law of the answer keeps the promise."""

from typing import Any

import pytest

import dpconvex as dp

SMALL: dict[str, dict[str, Any]] = {
    "fair_logistic_regression": {"features": 1},
    "gaussian_precision": {"features": 1},
    "isotonic_regression": {"features": 1},
    "linear_chain_crf": {"features": 1, "length": 1},
    "low_rank_softmax": {"features": 1, "classes": 2},
    "multi_task_logistic": {"features": 1, "tasks": ("one", "two")},
    "one_class_svm": {"features": 1},
    "ordinal_regression": {"features": 1, "classes": 3},
    "quantile_fan": {"features": 1, "quantiles": (0.25, 0.75)},
}
LONG: dict[str, dict[str, Any]] = {"isotonic_regression": {"features": 2}, "portfolio": {"features": 2}}
QUICK = ("fair_logistic_regression", "gaussian_precision", "ordinal_regression")
CASES = [pytest.param(*case, marks=[] if case[0] in QUICK else pytest.mark.slow) for case in (SMALL | LONG).items()]


@pytest.mark.parametrize(("problem", "options"), CASES)
def test_the_promise_holds(problem: str, options: dict[str, Any]) -> None:
    found = dp.audit(dp.load(problem, **options), dp.Privacy(1.0), size=20, effort=0.02, seed=1)
    assert found.holds, str(found)
