"""What is read is rewritten as the same function, and what is in normal form stays as it was written."""

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

D, C = 2, 3
w, v = cp.Variable(D, name="w"), cp.Variable(D, name="v")
W = cp.Variable((D, C), name="W")
RECORD = dp.Record(x=dp.Ball(D), s=dp.Box(0, 2), t=dp.Box(-1, 1))
x, s, t = (RECORD.parameters[name] for name in "xst")
m, k = x @ w, x @ v + t
lse, logistic = cp.log_sum_exp, cp.logistic
READER = Reader(RECORD.parameters.values())


def read(loss: cp.Expression) -> Expression:
    return READER.expression(loss, "the loss")


def same(written: cp.Expression, found: Expression) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        for leaf in (w, v, W, x, s, t):
            leaf.value = np.abs(rng.normal(size=leaf.shape)) if leaf is s else 3 * rng.normal(size=leaf.shape)
        leaves = {leaf.name(): leaf.value for leaf in (w, v, W, x, s, t)}
        assert evaluate(found, leaves) == pytest.approx(written.value, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (logistic(m) - m, logistic(-m)),
        (2 * logistic(m - t) - 2 * m, 2 * logistic(-(m - t)) + 2 * -t),
        (lse(x @ W) - x @ W[:, 1], lse(x @ W - x @ W[:, 1])),
        (s * (lse(x @ W) / 4 - x @ W[:, 1] + 1), s * (lse(x @ W + -(x @ W[:, 1]) / 0.25) * 0.25 + 1)),
        (cp.norm(w - x) ** 2 + cp.abs(m) ** 2, cp.sum_squares(w - x) + cp.square(m)),
        (cp.sum(cp.square(w - x)), cp.sum_squares(w - x)),
        (cp.norm1(cp.square(m)) + cp.abs(s) * cp.square(k), cp.square(m) + s * cp.square(k)),
        (dp.huber_hinge(1 + lse(x @ W) - m, 1), dp.huber_hinge(1 + lse(x @ W - m), 1)),
    ],
)
def test_what_is_rewritten_is_the_same_function(written: cp.Expression, expected: cp.Expression) -> None:
    found = read(written)
    assert is_convex(found)
    same(written, found)
    same(expected, found)
    assert curved(found) == curved(read(expected))


def curved(expression: Expression) -> list[str]:
    """Return the names of the atoms that are not affine with their arguments."""
    inner = [name for argument in expression.args for name in curved(argument)]
    own = [] if expression.is_affine or expression.atom is None else [expression.atom.name]
    return sorted([*(name for name in own if name in ("logistic", "log_sum_exp", "norm", "power", "abs")), *inner])


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (lse(x @ W - x @ W[:, 0]), "log_sum_exp(x @ W - x @ W[:, 0])"),
        (logistic(m) - (1 + 1e-15) * m, "logistic(x @ w) - 1 * (x @ w)"),
        (lse(cp.hstack([cp.log(m), 0])) - m, "log_sum_exp(hstack(log(x @ w), 0)) - x @ w"),
        (1e-200 * (1e-200 * lse(x @ W)) - m, "1e-200 * (1e-200 * log_sum_exp(x @ W)) - x @ w"),
    ],
)
def test_what_is_in_normal_form_or_cannot_be_rewritten_stays_as_it_is(written: cp.Expression, text: str) -> None:
    assert str(read(written)) == text


ATOMS: list[Any] = [
    logistic,
    cp.square,
    lambda z: lse(cp.hstack([z, 0.5])),
    lambda z: lse(x @ W + z),
    lambda z: dp.huber_hinge(lse(cp.hstack([z, 0])) + z, 0.5),
]
AFFINE = [m, k, -m, m - k, 2 * m + 1, x @ W[:, 0], w[0], cp.Constant(0.5), t]
terms = st.tuples(st.integers(0, len(ATOMS) - 1), st.sampled_from(AFFINE), st.sampled_from([0.25, 0.5, 1.0, 3.0]))


@given(
    parts=st.lists(terms, min_size=1, max_size=3),
    shift=st.lists(st.sampled_from(AFFINE), max_size=2),
    outer=st.booleans(),
)
@settings(max_examples=40)
def test_sums_of_anything_keep_their_values(parts: list[Any], shift: list[Any], outer: bool) -> None:
    total = sum(c * ATOMS[index](argument) for index, argument, c in parts) - sum(shift)
    written = cp.logistic(total) + total if outer else total
    found = read(written)
    same(written, found)
    assert is_convex(found)
