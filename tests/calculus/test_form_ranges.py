"""Ranges of bilinear forms contain what records attain, also where a field keeps away from zero."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, strategies as st

import dpconvex as dp
from dpconvex.calculus.bilinear_forms import form_range
from dpconvex.core.record_scalars import Bases
from dpconvex.release.verify import analyse

RECORD = dp.Record(x=dp.Box([0.0, 2.0], [0.1, 3.0]), v=dp.Ball(2, radius=1.5), u=dp.Box(-1.0, 4.0))
MONOMIALS = np.array(
    [
        [-1, -1],
        [-1, 0],
        [-1, 1],
        [-1, 2],
        [-1, 3],
        [-1, 4],
        [0, 0],
        [0, 1],
        [1, 1],
        [1, 2],
        [2, 2],
        [2, 3],
        [3, 3],
        [4, 4],
    ]
)


def values(count: int, rng: np.random.Generator) -> np.ndarray:
    """Monomials of random records, shape (count, monomials)."""
    fields = RECORD.sample(count, rng).fields
    scalars = np.column_stack([fields["x"], fields["v"], fields["u"], np.ones(count)])
    return scalars[:, MONOMIALS].prod(axis=2)


@given(
    chosen=st.lists(st.integers(0, len(MONOMIALS) - 1), min_size=1, max_size=5, unique=True),
    seed=st.integers(0, 2**32 - 1),
    diagonal=st.booleans(),
)
def test_a_range_contains_what_records_attain(chosen: list[int], seed: int, diagonal: bool) -> None:
    rng = np.random.default_rng(seed)
    matrix = np.zeros((len(MONOMIALS), len(MONOMIALS)))
    entries = np.diag(rng.integers(-2, 3, size=len(chosen))) if diagonal else rng.normal(size=(len(chosen),) * 2)
    matrix[np.ix_(chosen, chosen)] = entries
    bases = Bases(RECORD)
    for same in (True, False):
        found = form_range(sp.csr_array(matrix), MONOMIALS, bases, same)
        left = values(400, rng)
        right = left if same else values(400, rng)
        seen = np.einsum("ni,ij,nj->n", left, matrix, right)
        room = 1e-9 * (1 + np.abs(seen).max())
        assert found.low <= seen.min() + room
        assert seen.max() <= found.high + room


def test_a_part_of_a_field_can_vanish_although_the_field_cannot() -> None:
    # The second coordinate of x keeps its norm above 5, and the loss never looks at it.
    w = cp.Variable(3, name="w")
    template = dp.Template(
        dp.Record(x=dp.Box([0.0, 5.0], [0.01, 6.0]), u=dp.Box(-3.0, 3.0), v=dp.Box(-4.0, 4.0)),
        lambda x, u, v: cp.logistic(u * w[0] + x[0] * w[1] + v * w[2]) + cp.logistic(u * w[0] - x[0] * w[1] - v * w[2]),
        0.01 * cp.sum_squares(w),
    )
    # At u = 3, x[0] = v = 0 and a large w[0], both slopes are 1 and the gradient is (6, 0, 0).
    assert analyse(template).gradient_bound == pytest.approx(6.0, rel=1e-9)
