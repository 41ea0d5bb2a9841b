"""Interval rules for functions of the record: bounds that hold, and are sharp where a function is monotone."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from dpconvex.core.expansion import Expander
from dpconvex.core.from_cvxpy import read
from dpconvex.core.parameter_space import Space
from dpconvex.core.record_domains import Ball, Box
from dpconvex.core.record_scalars import Bases
from dpconvex.language.record import Record

RECORD = Record(
    x=Ball(3, 2.0),
    u=Ball(3, 1.5, norm=1),
    m=Ball(2, 0.5, norm=np.inf),
    s=Box(0.5, 2.0),
    t=Box([-2.0, -1.0], [-0.5, 3.0]),
)
x, u, m, s, t = (RECORD.parameters[name] for name in ("x", "u", "m", "s", "t"))

FUNCTIONS: dict[str, cp.Expression] = {
    "minimum": cp.minimum(t, cp.exp(-t)),
    "2-norm of a stack": cp.norm(cp.hstack([x, 2 * u, 1]), 2),
    "1-norm of its ball": cp.norm(u, 1),
    "1.5-norm": cp.norm(u, 1.5),
    "norms of lines": cp.norm(cp.reshape(cp.hstack([x, u]), (3, 2), order="F"), 2, axis=0),
    "norm of a function": cp.norm(cp.exp(m), 2),
    "fractional power": cp.power(s + cp.abs(x[0]), 2.5),
    "quotient": x / cp.sqrt(1 + cp.sum_squares(x)),
    "nested": cp.exp(-cp.maximum(cp.norm(x, 2) - 1, 0)) * s,
}


def seen(expression: cp.Expression, size: int, rng: np.random.Generator) -> np.ndarray:
    """Values of an expression of the record at sampled records, shape (size, entries)."""
    fields = RECORD.sample(size, rng).fields
    found = []
    for k in range(size):
        for name, parameter in RECORD.parameters.items():
            parameter.value = fields[name][k]
        found.append(np.asarray(expression.value, dtype=float).reshape(-1, order="F"))
    return np.stack(found)


def bounds(expression: cp.Expression) -> tuple[np.ndarray, np.ndarray]:
    return Expander(Space([]), Bases(RECORD)).bounds(read(expression, RECORD.parameters.values()))


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1))
def test_bounds_contain_every_record(name, seed):
    values = seen(FUNCTIONS[name], 60, np.random.default_rng(seed))
    low, high = bounds(FUNCTIONS[name])
    assert (low <= values.min(axis=0) + 1e-9).all()
    assert (values.max(axis=0) <= high + 1e-9).all()


@pytest.mark.parametrize(
    ("expression", "low", "high"),
    [
        (lambda: cp.exp(s), np.exp(0.5), np.exp(2.0)),
        (lambda: cp.abs(s - 1), 0.0, 1.0),
        (lambda: cp.maximum(s, 1), 1.0, 2.0),
        (lambda: cp.minimum(s, 1), 0.5, 1.0),
        (lambda: cp.inv_pos(s), 0.5, 2.0),
        (lambda: cp.norm(x, 2), 0.0, 2.0),
        (lambda: cp.norm(x, 1), 0.0, 2.0 * np.sqrt(3)),
        (lambda: cp.norm(m, 1), 0.0, 1.0),
        (lambda: cp.norm(u, 2), 0.0, 1.5),
        (lambda: cp.norm(t, 2), 0.5, np.sqrt(13)),
    ],
)
def test_sharp_where_the_function_allows(expression, low, high):
    below, above = bounds(expression())
    assert below == pytest.approx([low], abs=1e-12)
    assert above == pytest.approx([high])
