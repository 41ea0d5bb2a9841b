"""Coordinates of the parameters: a linear isometry, there and back, for plain and symmetric variables."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpconvex.core.from_cvxpy import variable_of
from dpconvex.core.parameter_space import Space
from dpconvex.errors import TemplateError

w = cp.Variable(3, name="w")
v = cp.Variable(name="v")
W = cp.Variable((2, 3), name="W")
S = cp.Variable((3, 3), symmetric=True, name="S")
P = cp.Variable((2, 2), PSD=True, name="P")
N = cp.Variable((2, 2), NSD=True, name="N")
one = cp.Variable((1, 1), PSD=True, name="one")
SPACE = Space([variable_of(variable) for variable in (w, v, W, S, P, N, one)])
SEEDS = st.integers(0, 2**32 - 1)


@given(SEEDS)
def test_unpacking_is_an_isometry_and_packing_its_inverse(seed):
    theta = np.random.default_rng(seed).normal(size=SPACE.dim)
    values = SPACE.unpack(theta)
    for name, block in SPACE.blocks.items():
        assert values[name].shape == block.variable.shape
        if block.symmetric:
            assert np.array_equal(values[name], values[name].T)
    assert sum(np.sum(value**2) for value in values.values()) == pytest.approx(theta @ theta)
    assert SPACE.pack(values) == pytest.approx(theta)


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (lambda: cp.Variable(2, complex=True, name="c"), "'c' is declared complex"),
        (lambda: cp.Variable((2, 2), diag=True, name="d"), "'d' is declared diag"),
        (lambda: cp.Variable((2, 2, 2), name="t"), "'t' has 3 axes"),
    ],
)
def test_variables_without_coordinates_are_refused(variable, message):
    with pytest.raises(TemplateError, match=message):
        Space([variable_of(variable())])
