"""What a template becomes: its leaves, its labels, the subspace that records are seen in, and what is refused."""

import cvxpy as cp
import numpy as np
import pytest
from cvxpy.atoms.affine.wraps import nonneg_wrap
from derivatives import form_of
from hypothesis import given, strategies as st

import dpconvex as dp
from dpconvex.expressions.polynomial import Polynomial
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.sensitive_subspace import sensitive_basis

RECORD = dp.Record(x=dp.Ball(2), s=dp.Box(0.0, 1.0), y=dp.Choice([-1, 1]))
FIELDS = RECORD.parameters
w, v = cp.Variable(2, name="w"), cp.Variable(name="v")


def harmless(x, s, y):
    return s * cp.logistic(-y * (w @ x))


# What tests/test_refusals.py has no place for: loss, regularizer, constraint, what is said, and of what.
INDEFINITE = cp.psd_wrap(np.diag([1.0, -1.0]))
FLIPPED = "a factor that can change sign multiplies a curved term"
REFUSALS = [
    (harmless, FIELDS["s"] * cp.sum_squares(w), None, "the regularizer mentions a field of the record", "s * "),
    (lambda x, s, y: x[0] * cp.logistic(w @ x), 0, None, FLIPPED, "x[0] * logistic(w @ x)"),
    (lambda x, s, y: y * cp.logistic(w @ x), 0, None, "for {'y': -1} is not convex", "-1 * logistic(w @ x)"),
    (harmless, cp.square(nonneg_wrap(cp.norm(w) - 5)), None, "the regularizer is not convex", "square(norm(w) - 5)"),
    (harmless, 0, lambda: cp.quad_form(w, INDEFINITE) <= 1, "negative eigenvalue", "psd_wrap"),
    (lambda x, s, y: cp.square(w @ x - x @ w), 0, None, "the loss does not change with any variable", "w @ x"),
]


@pytest.mark.parametrize(("loss", "regularizer", "constraint", "reason", "where"), REFUSALS)
def test_refusals_say_what_where_and_what_to_do(loss, regularizer, constraint, reason, where):
    with pytest.raises(dp.NotPrivate) as caught:
        LossForm(dp.Template(RECORD, loss, regularizer, [constraint()] if constraint else []))
    assert reason in caught.value.reason
    assert where in caught.value.expression
    assert caught.value.remedy


def test_a_symbol_of_another_record_is_not_taken_for_a_field_of_the_same_name():
    other = dp.Record(x=dp.Ball(2, radius=100.0)).parameters["x"]
    with pytest.raises(dp.NotPrivate, match="'x', which is not a field of this record"):
        LossForm(dp.Template(RECORD, lambda x, s, y: cp.logistic(w @ other)))


# The sensitive subspace: orthonormal, large enough for every record, and no larger where the answer is known.


def jacobian(leaf, scalars, dim):
    """Rows of A_z at one record, shape (entries, dim)."""
    part = leaf.part(with_theta=True)
    matrix = np.zeros((leaf.size, dim))
    np.add.at(matrix, (part.entry, part.coordinate), part.coefficient * np.append(scalars, 1.0)[part.monomial].prod(1))
    return matrix


@given(st.integers(0, 2**32 - 1))
def test_the_subspace_of_random_leaves(seed):
    rng = np.random.default_rng(seed)
    dim, count, leaves = int(rng.integers(1, 12)), 4, []
    for _ in range(rng.integers(1, 4)):
        size, terms = int(rng.integers(1, 4)), int(rng.integers(0, 12))
        monomial = np.sort(rng.integers(-1, count, size=(terms, 2)), axis=1)
        coefficient = rng.integers(-2, 3, size=terms) * 10.0 ** rng.integers(-1, 2, size=terms)
        coordinate = rng.integers(-1, dim, size=terms)
        leaves.append(Polynomial((size,), rng.integers(0, size, terms), coordinate, monomial, coefficient).collected())
    basis = sensitive_basis(leaves, dim).toarray()
    found = basis.shape[1]
    assert basis.T @ basis == pytest.approx(np.eye(found), abs=1e-12)
    units = []
    for rows in (
        jacobian(leaf, rng.uniform(-2, 2, count), dim) for leaf in leaves for _ in range(max(10, 3 * dim + 3))
    ):
        assert np.abs(rows - rows @ basis @ basis.T).max() <= 1e-9 * (1e-300 + np.abs(rows).max())
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        units.append(rows / np.where(length > 0, length, 1.0))
    # Generic records span the subspace: it is no larger than what they see.
    assert np.linalg.matrix_rank(np.concatenate(units), tol=1e-8) <= found <= dim


@pytest.mark.parametrize("size", [1e-8, 1e-17, 1e-30, 1e-300])
def test_a_feature_is_never_dropped_because_it_is_small(size):
    """Beside one of size 1, whether by its coefficient or by its bounds, alone or mixed with it."""
    a, b, c = cp.Variable(3, name="a")
    unit, small = dp.Ball(2), dp.Box([-1.0, -size], [1.0, size])
    for domain, least, leaves in [
        (unit, 2, lambda x: (a * x[0] + size * b * x[0], a * x[0])),
        (unit, 2, lambda x: ((a + size * b) * x[0], (a - size * b) * x[0])),
        (unit, 3, lambda x: (a * x[0] + size * b * x[0], a * x[0] + size * c * x[1])),
        (unit, 2, lambda x: ((a + size * b + size * c) * x[0], (a + size * b) * x[1])),
        (unit, 2, lambda x: ((a + 0.1 * b) * x[0], (a + (0.1 + 1e-10) * b) * x[0])),
        (small, 3, lambda x: (a * x[0] + b * x[1], a * x[0] + size * c * x[1])),
    ]:
        assert form_of(lambda x: sum(map(cp.logistic, leaves(x))), x=domain).noise_dimension >= least  # noqa: B023


def test_a_small_feature_that_is_multiplied_later_is_covered():
    """Terms of size 1 cancel, and what is left of them is the feature of size 1e-17, times 1e17."""
    form = form_of(
        lambda x: cp.abs(1e17 * (w[0] * x[0] + 1e-17 * w[1] * x[0])) - 1e17 * w[0] * x[0], x=dp.Box([0], [1])
    )
    assert form.noise_dimension == 2
