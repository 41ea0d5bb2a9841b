"""What occurs in an expression, against CVXPY's own answers, asked only once at every node."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import pytest

import dpconvex as dp
from dpconvex.core.mentions import Mentions

w = cp.Variable(3, name="w")
x = cp.Parameter(3, name="x")
s = cp.Parameter(nonneg=True, name="s")
EXPRESSIONS = [
    cp.Constant(1.0) + 0,
    w,
    x @ w,
    cp.sum(x) + 1,
    cp.huber(w, s),
    cp.huber(w, 2.0),
    cp.huber(x, 2.0),
    dp.huber_hinge(1 - x @ w, width=0.5),
    cp.log_sum_exp(cp.hstack([w, x])) + cp.power(s, 2),
]


def nodes(expression: Any) -> list[Any]:
    return [expression, *(node for argument in expression.args for node in nodes(argument))]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_answers_are_those_of_cvxpy(expression):
    mentions = Mentions()
    for node in [*reversed(nodes(expression)), *nodes(expression)]:
        assert mentions.variables(node) == bool(node.variables())
        assert mentions.parameters(node) == bool(node.parameters())


def test_nodes_are_visited_once(monkeypatch):
    """Asked at every node of a deep expression, the leaves are looked at once."""
    deep = w
    for _ in range(30):
        deep = cp.exp(deep + 1)
    calls = []
    original = cp.Variable.variables
    monkeypatch.setattr(cp.Variable, "variables", lambda self: calls.append(1) or original(self))
    mentions = Mentions()
    assert all(mentions.variables(node) for node in nodes(deep) if isinstance(node, cp.Variable | cp.exp))
    assert len(calls) == 1
