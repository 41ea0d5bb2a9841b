"""Losses whose trees share parts, or whose parts are constant on K: proofs stay small, and end in a certificate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import pytest

import dpconvex as dp

CONSTANT: dict[str, Callable[[Any, Any, Any], Any]] = {
    "largest": lambda x, y, w: cp.max(cp.square(cp.pos(y * w))),
    "sum of the largest": lambda x, y, w: cp.sum_largest(cp.huber(cp.pos(y * w), 0.7), 2),
    "log-sum-exp": lambda x, y, w: cp.log_sum_exp(cp.huber(cp.pos(y * cp.multiply(x, w)))),
    "for every record": lambda x, y, w: cp.sum_largest(cp.huber(cp.pos(-w), 0.7), 2) + x @ w,
}


@pytest.mark.parametrize("name", CONSTANT)
def test_terms_that_are_constant_on_k_are_no_obstacle(name: str) -> None:
    w = cp.Variable(3, name="w", nonneg=True)
    template = dp.Template(
        dp.Record(x=dp.Box([0, 0, 0], [1, 1, 1.0]), y=dp.Choice([-1, 1])),
        lambda x, y: CONSTANT[name](x, y, w),
        0.05 * cp.sum_squares(w),
        [cp.sum(w) <= 1],
    )
    assert 0 < dp.verify(template, dp.Privacy(1.0), size=20).gradient_bound <= 4


def test_a_shared_tree_is_proved_and_printed_as_what_it_is() -> None:
    w = cp.Variable(3, name="w")

    def loss(x: Any) -> Any:
        term = x @ w
        for _ in range(14):  # 2^14 paths through 14 maxima
            term = cp.maximum(term, term - 1)
        return cp.logistic(term)

    template = dp.Template(dp.Record(x=dp.Ball(3)), loss, 0.1 * cp.sum_squares(w))
    certificate = dp.verify(template, dp.Privacy(1.0), size=100)
    assert certificate.gradient_bound == pytest.approx(1.0)
    assert len(str(certificate)) < 100_000


def test_a_refusal_needs_no_text_of_cvxpy() -> None:
    w = cp.Variable(3, name="w")
    with pytest.raises(dp.MissingRule, match="largest"):
        dp.Template(dp.Record(x=dp.Ball(3)), lambda x: cp.sum_largest(w[None], 9) + x @ w)
