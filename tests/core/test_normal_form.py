"""Normal forms are the same functions, and what is in normal form stays the object that it is."""

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import dpconvex as dp
from dpconvex.core.discipline import is_convex
from dpconvex.core.evaluate import evaluate
from dpconvex.core.expression import Expression
from dpconvex.core.from_cvxpy import Reader
from dpconvex.core.normal_form import normal_form

D, C = 2, 3
w, v = cp.Variable(D, name="w"), cp.Variable(D, name="v")
W = cp.Variable((D, C), name="W")
RECORD = dp.Record(x=dp.Ball(D), s=dp.Box(0, 2), t=dp.Box(-1, 1))
x, s, t = (RECORD.parameters[name] for name in "xst")
m, k = x @ w, x @ v + t
VARIABLES = [w, v, W]
lse, logistic = cp.log_sum_exp, cp.logistic


READER = Reader(RECORD.parameters.values())


def read(loss: cp.Expression) -> Expression:
    return READER.expression(loss, "the loss")


def values(expression: Expression, seed: int) -> float:
    """Evaluate at a random record and random parameters."""
    rng = np.random.default_rng(seed)
    leaves = {
        leaf.name(): np.abs(rng.normal(size=leaf.shape)) if leaf is s else 3 * rng.normal(size=leaf.shape)
        for leaf in (*VARIABLES, x, s, t)
    }
    return float(evaluate(expression, leaves).item())


def same(first: Expression, second: Expression) -> None:
    for seed in range(5):
        assert values(first, seed) == pytest.approx(values(second, seed), rel=1e-11, abs=1e-11)


REWRITTEN: list[tuple[Any, Any]] = [
    (lambda: 0.5 * logistic(m) + logistic(m) / 2, lambda: logistic(m)),
    (lambda: logistic(m) - m, lambda: logistic(-m)),
    (lambda: 2 * logistic(m - t) - 2 * m, lambda: 2 * logistic(t - m) - 2 * t),
    (lambda: lse(x @ W) - x @ W[:, 1], lambda: lse(x @ W - x @ W[:, 1])),
    (lambda: s * (lse(x @ W) - x @ W[:, 1]), lambda: s * lse(x @ W - x @ W[:, 1])),
    (lambda: cp.norm(w - x) ** 2, lambda: cp.sum_squares(w - x)),
    (lambda: cp.sum(cp.square(w - x)), lambda: cp.sum_squares(w - x)),
    (lambda: dp.huber_hinge(1 + lse(x @ W) - m, 1), lambda: dp.huber_hinge(1 + lse(x @ W - m), 1)),
]


@pytest.mark.parametrize("number", range(len(REWRITTEN)))
def test_what_is_rewritten_is_the_same_function(number: int) -> None:
    written, expected = (read(make()) for make in REWRITTEN[number])
    found = normal_form(written)
    assert found is not written
    assert is_convex(found)
    same(written, found)
    same(expected, found)
    assert curved(found) == curved(expected)


def curved(expression: Expression) -> list[str]:
    """Return the names of the atoms that are not affine, as often as they are written."""
    atom, inner = expression.atom, [name for argument in expression.args for name in curved(argument)]
    own = [] if atom is None or expression.is_affine or atom.affine != "curved" else [atom.name]
    return sorted(own + inner)


@pytest.mark.parametrize(
    "written",
    [
        lse(x @ W - x @ W[:, 0]),
        0.5 * dp.huber_hinge(1 + lse(cp.hstack([m, k])), 0.5) + cp.sum(cp.huber(x @ W)),
        cp.abs(m) + cp.abs(m * (1 + 1e-15)),
        logistic(m) - (1 + 1e-15) * m,
        lse(cp.hstack([cp.log(m), 0])) - m,
        1e-200 * (1e-200 * logistic(m)) + logistic(k) + logistic(k),
    ],
    ids=str,
)
def test_what_is_in_normal_form_or_cannot_be_read_stays_as_it_is(written: cp.Expression) -> None:
    assert normal_form(read(written)) is read(written)


ATOMS: list[Callable[[Any], Any]] = [
    logistic,
    cp.huber,
    cp.square,
    lambda z: lse(cp.hstack([z, 0.5])),
    lambda z: lse(x @ W + z),
    lambda z: -cp.minimum(z, 1),
    lambda z: dp.huber_hinge(lse(cp.hstack([z, 0])) + z, 0.5),
]
AFFINE = [m, k, -m, m - k, 2 * m + 1, x @ W[:, 0], w[0], cp.Constant(0.5), t]
terms = st.tuples(st.integers(0, len(ATOMS) - 1), st.sampled_from(AFFINE), st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]))


@given(
    parts=st.lists(terms, min_size=1, max_size=4),
    shift=st.lists(st.sampled_from(AFFINE), max_size=2),
    outer=st.booleans(),
)
@settings(max_examples=40)
def test_sums_of_anything_keep_their_values(parts: list[Any], shift: list[Any], outer: bool) -> None:
    total = sum(c * ATOMS[index](argument) for index, argument, c in parts) - sum(shift)
    written = read(cp.logistic(total) + total if outer else total)
    found = normal_form(written)
    same(written, found)
    assert is_convex(found)
