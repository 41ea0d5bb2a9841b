"""What is read has the values that CVXPY gives it, for functions that are read as several atoms, and for forms of indices."""

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from dpconvex.core.evaluate import evaluate
from dpconvex.core.from_cvxpy import Reader

Build = Callable[[Any, Any, Any, Any], Any]  # of a scalar, a vector of three, a matrix of 2 x 3, a square one of 3 x 3

A, B = np.arange(6.0).reshape(2, 3) - 2, np.array([[2.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 1.0]])
CASES: dict[str, Build] = {
    "sparse": lambda s, v, M, S: cp.Constant(__import__("scipy.sparse", fromlist=["sparse"]).csc_array(A)) @ v,
    "index": lambda s, v, M, S: cp.hstack([M[0, 1], M[1, ::-1], v[1:], v[-1], S[:, 0]]),
    "fancy index": lambda s, v, M, S: cp.hstack([v[[2, 0]], M[np.array([True, False]), 1]]),
    "log": lambda s, v, M, S: cp.log(cp.square(v) + 1) + cp.log1p(cp.square(v)),
    "power": lambda s, v, M, S: cp.power(v, 2) + cp.power(cp.abs(v), 1.5) + cp.power(v, 4) + cp.power(cp.abs(v), 3),
    "roots": lambda s, v, M, S: cp.sqrt(cp.abs(v)) + cp.inv_pos(cp.abs(v) + 1) + cp.power(v, 1) + cp.power(v, 0),
    "kl_div": lambda s, v, M, S: cp.kl_div(cp.abs(v), 2.0) + cp.rel_entr(cp.abs(s), cp.abs(v)),
    "max": lambda s, v, M, S: cp.max(M) + cp.min(M, axis=0) + cp.max(v),
    "sum_squares": lambda s, v, M, S: cp.sum_squares(M) + cp.quad_over_lin(v, cp.abs(s) + 1),
    "quad_form": lambda s, v, M, S: cp.quad_form(v, B) - cp.quad_form(v, np.eye(3)),
    "constants": lambda s, v, M, S: v * (cp.sum_squares(np.ones(3)) + cp.exp(0.0)) + cp.max(np.arange(3.0)),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_cvxpy(name: str) -> None:
    rng = np.random.default_rng(0)
    leaves = [
        cp.Variable(name="s"),
        cp.Variable(3, name="v"),
        cp.Variable((2, 3), name="M"),
        cp.Variable((3, 3), name="S"),
    ]
    root = CASES[name](*leaves)
    for leaf in leaves:
        value = rng.normal(size=leaf.shape)
        leaf.value = value + value.T if leaf.name() == "S" else value
    read = Reader([]).expression(root, "the expression")
    found = evaluate(read, {leaf.name(): leaf.value for leaf in leaves})
    assert found.shape == root.shape
    np.testing.assert_allclose(found, np.reshape(root.value, root.shape), rtol=1e-9, atol=1e-12)
