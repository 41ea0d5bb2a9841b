"""Losses of one number for each record: values and slopes together, against values and then slopes."""

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from dpconvex.calculus.loss_form import affine_leaves
from dpconvex.core.expression import Expression
from dpconvex.core.from_cvxpy import Reader
from dpconvex.evaluation.derivatives import OuterFunction, gradient
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


@pytest.mark.parametrize("name", SCALARS)
def test_values_and_slopes_agree(name: str) -> None:
    """Of numbers that carry derivatives, and of slopes that go back through all atoms."""
    outer, leaves, names = outer_of(SCALARS[name](MARGIN))
    rng = np.random.default_rng(0)
    entries = np.concatenate(
        [rng.normal(size=(len(leaves), 40)) * 3, rng.choice([0.0, 1.0, -1.0], (len(leaves), 6))], 1
    )
    fields = [np.linspace(0.1, 2.0, 46) for _ in names]
    slots = outer.program.leaves(outer.program.cut(entries), fields, outer.numbers)
    ours, theirs = outer.gradient(entries, fields, 46), gradient(outer.program, slots, 46)
    # At a kink of `clip` the two take different slopes, which `huber` does not let through.
    for one, other in zip(ours, theirs, strict=True):
        inside = np.isfinite(other)  # within the function's domain
        assert one[inside] == pytest.approx(other[inside], rel=1e-12, abs=1e-14)


def test_far_out() -> None:
    margins = np.array([[-1e300, -1000.0, 1000.0, 1e300]])
    outer = outer_of(cp.logistic(MARGIN))[0]
    assert outer.is_scalar
    values, slopes = outer.gradient(margins, [], 4)
    assert values == pytest.approx([0.0, 0.0, 1000.0, 1e300])
    assert slopes == pytest.approx(np.array([[0.0, 0.0, 1.0, 1.0]]))


@pytest.mark.parametrize("loss", [cp.sum(cp.logistic(cp.multiply(X, W))), cp.norm(cp.hstack([MARGIN, 1]), 2)])
def test_other_losses_are_no_functions_of_a_number(loss: Any) -> None:
    assert not outer_of(loss)[0].is_scalar
