"""The sensitive subspace: orthonormal, large enough for every record, and no larger where the answer is known."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, strategies as st

from dpconvex.calculus.loss_form import LossForm
from dpconvex.calculus.sensitive_subspace import joined, sensitive_parts
from dpconvex.core.polynomial import Polynomial
from dpconvex.core.record_domains import Ball, Box
from dpconvex.language.record import Record
from dpconvex.language.template import Template

SEEDS = st.integers(0, 2**32 - 1)


def jacobian(leaf: Polynomial, scalars: np.ndarray, dim: int) -> np.ndarray:
    """Rows of A_z at one record, shape (entries, dim)."""
    part = leaf.part(with_theta=True)
    values = part.coefficient * np.append(scalars, 1.0)[part.monomial].prod(axis=1)
    matrix = np.zeros((leaf.size, dim))
    np.add.at(matrix, (part.entry, part.coordinate), values)
    return matrix


def check(leaves: list[Polynomial], dim: int, count: int, rng: np.random.Generator) -> int:
    """Check a basis of the subspace on random records, and return its dimension."""
    basis = joined(sensitive_parts(leaves, dim), dim).toarray()
    assert basis.T @ basis == pytest.approx(np.eye(basis.shape[1]), abs=1e-12)
    for _ in range(10):
        for leaf in leaves:
            rows = jacobian(leaf, rng.uniform(-2, 2, size=count), dim)
            left_over = rows - rows @ basis @ basis.T
            assert np.abs(left_over).max(initial=0.0) <= 1e-9 * (1e-300 + np.abs(rows).max(initial=0.0))
    return int(basis.shape[1])


@given(SEEDS)
def test_random_leaves(seed):
    rng = np.random.default_rng(seed)
    dim, count, leaves = int(rng.integers(1, 12)), 4, []
    for _ in range(rng.integers(1, 4)):
        size, terms = int(rng.integers(1, 4)), int(rng.integers(0, 12))
        monomial = np.sort(rng.integers(-1, count, size=(terms, 2)), axis=1)
        coefficient = rng.integers(-2, 3, size=terms) * 10.0 ** rng.integers(-1, 2, size=terms)
        coordinate = rng.integers(-1, dim, size=terms)
        leaves.append(Polynomial((size,), rng.integers(0, size, terms), coordinate, monomial, coefficient).collected())
    found = check(leaves, dim, count, rng)
    # Generic records span the subspace: it is no larger than what they see.
    seen = [jacobian(leaf, rng.uniform(-2, 2, size=count), dim) for leaf in leaves for _ in range(3 * dim + 3)]
    lengths = [np.linalg.norm(rows, axis=1, keepdims=True) for rows in seen]
    units = [rows / np.where(length > 0, length, 1.0) for rows, length in zip(seen, lengths, strict=True)]
    assert np.linalg.matrix_rank(np.concatenate(units), tol=1e-8) <= found <= dim


@pytest.mark.parametrize("size", [1e-8, 1e-17, 1e-30, 1e-300])
def test_a_feature_is_never_dropped_because_it_is_small(size):
    """Beside one of size 1, whether by its coefficient or by its bounds, alone or mixed with it."""
    w = cp.Variable(3, name="w")
    unit, small = Record(x=Ball(2)), Record(x=Box([-1.0, -size], [1.0, size]))
    losses = [
        (unit, lambda x: cp.logistic(w[0] * x[0] + size * w[1] * x[0]) + cp.logistic(w[0] * x[0]), 2),
        (unit, lambda x: cp.logistic((w[0] + size * w[1]) * x[0]) + cp.logistic((w[0] - size * w[1]) * x[0]), 2),
        (
            unit,
            lambda x: cp.logistic(w[0] * x[0] + size * w[1] * x[0]) + cp.logistic(w[0] * x[0] + size * w[2] * x[1]),
            3,
        ),
        (
            unit,
            lambda x: cp.logistic((w[0] + size * w[1] + size * w[2]) * x[0]) + cp.logistic((w[0] + size * w[1]) * x[1]),
            2,
        ),
        (
            unit,
            lambda x: cp.logistic((w[0] + 0.1 * w[1]) * x[0]) + cp.logistic((w[0] + (0.1 + 1e-10) * w[1]) * x[0]),
            2,
        ),
        (small, lambda x: cp.logistic(w[0] * x[0] + w[1] * x[1]) + cp.logistic(w[0] * x[0] + size * w[2] * x[1]), 3),
    ]
    for record, loss, least in losses:
        assert LossForm(Template(record, loss)).noise_dimension >= least


def test_a_small_feature_that_is_multiplied_later_is_covered():
    """Terms of size 1 cancel, and what is left of them is the feature of size 1e-17, times 1e17."""
    w = cp.Variable(2, name="w")

    def loss(x):
        return cp.abs(1e17 * (w[0] * x[0] + 1e-17 * w[1] * x[0])) - 1e17 * w[0] * x[0]

    form = LossForm(Template(Record(x=Box([0.0], [1.0])), loss))
    assert form.noise_dimension == 2
