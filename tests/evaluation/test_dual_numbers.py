"""Losses of one number for each record: values and slopes together, against values and then slopes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpconvex.calculus.loss_form import affine_leaves
from dpconvex.core.evaluate import evaluate
from dpconvex.core.expression import Expression
from dpconvex.core.from_cvxpy import Reader
from dpconvex.evaluation.outer_functions import OuterFunction
from dpconvex.evaluation.programs import slotted

W = cp.Variable(3, name="w")
X = cp.Parameter(3, name="x")
T = cp.Parameter(name="t", nonneg=True)
MARGIN = X @ W

# Functions of a margin that is a leaf, and of a field.
SCALARS: dict[str, Callable[[Any], Any]] = {
    "logistic": cp.logistic,
    "huber": lambda m: cp.huber(m, 0.7),
    "huber hinge": lambda m: cp.huber(cp.pos(1 + m), 1.0) / 2,
    "hinge": cp.pos,
    "absolute": lambda m: cp.abs(m),
    "square": cp.square,
    "cube": lambda m: cp.power(cp.pos(m), 3),
    "fourth": lambda m: cp.power(m, 4),
    "fractional": lambda m: cp.power(cp.abs(m), 1.5),
    "exponential": lambda m: cp.exp(m / 4),
    "quantile": lambda m: cp.maximum(0.3 * m, -0.7 * m),
    "three": lambda m: cp.maximum(m, 0.3, 2 * m),
    "minimum": lambda m: -cp.minimum(m, 0.3),
    "logarithm": lambda m: -cp.log(cp.exp(m) + 1),
    "logarithm of one more": lambda m: -cp.log1p(cp.abs(m)),
    "entropy": lambda m: -cp.entr(30 + m),
    "relative entropy": lambda m: cp.rel_entr(2, 30 + m) + cp.kl_div(30 + m, 20),
    "root": lambda m: -cp.sqrt(30 + m),
    "inverse": lambda m: cp.inv_pos(30 + m),
    "quadratic over linear": lambda m: cp.quad_over_lin(m, 30 + m),
    "ratio": lambda m: cp.exp(m) / (1 + cp.exp(m)),
    "product": lambda m: cp.exp(m) * cp.square(m),
    "field": lambda m: T * cp.logistic(m) + T / 3,
    "functions of a field": lambda m: (
        cp.exp(-T) * cp.square(m)
        + cp.sqrt(T) * cp.abs(m)
        + cp.logistic(T)
        + cp.log1p(T) * m**2
        - cp.log(T)
        - cp.huber(T, 0.5)
    ),
    "sum": lambda m: cp.sum(cp.logistic(m)) + cp.real(cp.square(m)),
    "difference": lambda m: 2 - cp.exp(m) - cp.square(m),
}


def outer_of(loss: Any) -> tuple[OuterFunction, list[Expression], list[str]]:
    """The outer function of a loss, its leaves in order of its slots, and the names of its fields."""
    read = Reader([X, T]).expression(loss, "the loss")
    leaves = {leaf: k for k, leaf in enumerate(affine_leaves(read))}
    program, entries, fields, numbers = slotted(read, leaves)
    return OuterFunction(program, tuple(number.dense for number in numbers)), entries, [field.name for field in fields]


def given_leaves(leaves: list[Expression], margins: np.ndarray) -> list[tuple[np.ndarray, float]]:
    """Leaves of a loss as functions of the margin: their values, and their slopes."""
    found = []
    for leaf in leaves:
        ends = [float(evaluate(leaf, {"x": [1.0, 0.0, 0.0], "w": [end, 0.0, 0.0], "t": 0.0})) for end in (0.0, 1.0)]
        found.append((ends[0] + (ends[1] - ends[0]) * margins, ends[1] - ends[0]))
    return found


def both(loss: Any, margins: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values and slopes by both ways, shape (2, records)."""
    outer, leaves, names = outer_of(loss)
    assert outer.is_scalar
    fields = [{"t": t}[name] for name in names]
    given = given_leaves(leaves, margins)
    ours = np.stack(outer.along_one(given, fields))
    entries = np.stack([value for value, _ in given])
    values, slopes = outer.gradient(entries, fields)
    return ours, np.stack([values, sum(factor * slope for (_, factor), slope in zip(given, slopes, strict=True))])


@pytest.mark.parametrize("name", SCALARS)
def test_values_and_slopes_agree(name: str) -> None:
    margins = np.concatenate([np.random.default_rng(0).normal(size=40) * 3, [0.0, 1.0, -1.0, 0.3, 0.7, -0.7]])
    ours, theirs = both(SCALARS[name](MARGIN), margins, np.linspace(0.1, 2.0, len(margins)))
    # At a kink of `clip` the two take different slopes, which `huber` does not let through.
    assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-14)


def test_far_out() -> None:
    margins = np.array([-1e300, -1000.0, 1000.0, 1e300])
    for name, expected in {
        "logistic": ([0.0, 0.0, 1000.0, 1e300], [0.0, 0.0, 1.0, 1.0]),
        "huber hinge": ([0.0, 0.0, 1000.5, 1e300], [0.0, 0.0, 1.0, 1.0]),
        "quantile": ([0.7e300, 700.0, 300.0, 0.3e300], [-0.7, -0.7, 0.3, 0.3]),
    }.items():
        outer, leaves, _ = outer_of(SCALARS[name](MARGIN))
        assert np.stack(outer.along_one(given_leaves(leaves, margins), [])) == pytest.approx(np.array(expected))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(SCALARS)), st.floats(0.1, 2.0)), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_random_sums(terms: list[tuple[str, float]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    loss = sum(weight * SCALARS[name](MARGIN) for name, weight in terms)
    ours, theirs = both(loss, rng.normal(size=16) * 4, rng.random(16))
    assert ours == pytest.approx(theirs, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize(
    "loss",
    [
        cp.log_sum_exp(cp.hstack([MARGIN, -MARGIN])),
        cp.sum(cp.logistic(cp.multiply(X, W))),
        cp.norm(cp.hstack([MARGIN, 1]), 2),
        cp.max(cp.hstack([MARGIN, 1])),
    ],
)
def test_other_losses_are_no_functions_of_numbers(loss: Any) -> None:
    assert not outer_of(loss)[0].is_scalar
