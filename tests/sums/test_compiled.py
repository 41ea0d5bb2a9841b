"""Lowered losses against CVXPY's own values, record by record, and their derivatives against differences."""

import tracemalloc
import warnings

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings, strategies as st

import dpconvex as dp
from dpconvex.expressions.parameter_space import Space, entries_matrix
from dpconvex.expressions.to_cvxpy import Writer
from dpconvex.fitting.adaptive import in_own_fields
from dpconvex.fitting.verify import analyse
from dpconvex.sums.batch_loss import BatchedLoss
from dpconvex.sums.forms import form_of, lowered_losses, public_part, row_basis
from dpconvex.sums.programs import Lowered


def by_cvxpy(expression, values):
    """Value of an expression by CVXPY's own evaluation, whether or not the variables' attributes allow the values."""
    writer = Writer()
    written = writer.expression(expression)
    for leaf, symbol in writer.leaves.items():
        symbol.save_value(np.asarray(values[leaf.name], dtype=float))
    return float(written.value)


def one_by_one(template, space, batch, theta):
    variables = space.unpack(theta)
    rows = [variables | {name: column[i] for name, column in batch.fields.items()} for i in range(len(batch.group))]
    return np.array([by_cvxpy(template.losses[k], row) for k, row in zip(batch.group, rows, strict=True)])


def check(template, seed=0, size=13, smooth=True):
    rng, space = np.random.default_rng(seed), Space(template.variables)
    batch = template.record.sample(size, rng)
    loss = BatchedLoss(template, space, batch)
    theta, direction = rng.normal(size=(2, space.dim))
    direction /= np.linalg.norm(direction)
    expected = one_by_one(template, space, batch, theta)
    alone = [BatchedLoss(template, space, batch.chosen(one)) for one in np.eye(size, dtype=bool)]
    assert np.allclose([one.value_and_gradient(theta)[0] for one in alone], expected, rtol=1e-12, atol=1e-12)
    value, gradient = loss.value_and_gradient(theta)
    assert value == pytest.approx(expected.sum(), rel=1e-12, abs=1e-12)
    assert np.allclose(sum(one.gradient(theta) for one in alone), gradient, rtol=1e-10, atol=1e-11)
    step = 1e-6
    ahead, behind = (loss.value_and_gradient(theta + s * step * direction)[0] for s in (1, -1))
    slope = (ahead - behind) / (2 * step)
    assert gradient @ direction == pytest.approx(slope, rel=1e-5, abs=1e-5 * (1 + abs(value)))
    if smooth:
        curvature = (loss.gradient(theta + step * direction) - loss.gradient(theta - step * direction)) / (2 * step)
        product = loss.hessian(theta) @ direction
        assert np.allclose(product, curvature, rtol=1e-5, atol=1e-5 * (1 + np.abs(curvature).max()))
    public = public_part(template, space)
    regular, regular_gradient = public.value_and_gradient(theta)
    assert regular == pytest.approx(by_cvxpy(template.regularizer, space.unpack(theta)), rel=1e-12, abs=1e-12)
    ahead, behind = (public.value_and_gradient(theta + s * step * direction)[0] for s in (1, -1))
    assert regular_gradient @ direction == pytest.approx((ahead - behind) / (2 * step), rel=1e-5, abs=1e-5)


X = cp.Variable(4, name="X")
M = cp.Variable((3, 3), symmetric=True, name="M")
N = cp.Variable((2, 3), name="N")
P = cp.Variable((2, 2), PSD=True, name="P")
MASK, ONES = np.array([True, False, True, True]), np.ones((2, 3))

# Affine in the variables, with the record's field a of shape (4,) and A of shape (2, 3).
AFFINE = {
    "inner product": lambda a, A: a @ X,
    "elementwise": lambda a, A: cp.multiply(a, X) - a / 3,
    "matrix-vector": lambda a, A: A @ M @ np.ones(3),
    "form": lambda a, A: A[0] @ M @ A[1],
    "quad_form": lambda a, A: cp.quad_form(a[:3], M),
    "trace": lambda a, A: cp.trace(A.T @ N),
    "diag of matrix": lambda a, A: cp.diag(M) * a[0],
    "reshape C": lambda a, A: cp.reshape(N, (3, 2), order="C") @ A,
    "index": lambda a, A: X[1:3] + a[::2],
    "negative step": lambda a, A: X[::-1] + a,
    "mask": lambda a, A: X[MASK],
    "fancy index": lambda a, A: X[[2, 0]] + N[np.array([True, False]), 1],
    "sparse": lambda a, A: cp.Constant(sp.csc_array(np.eye(2, 4))) @ X,
    "hstack": lambda a, A: cp.hstack([X, a, 1]),
    "bmat": lambda a, A: cp.bmat([[N, A], [A, N]]),
    "kron": lambda a, A: cp.kron(np.array([[1.0, 2.0]]), N),
    "cumsum": lambda a, A: cp.cumsum(N, axis=0),
    "broadcast": lambda a, A: N + A[:1],
    "differences": lambda a, A: cp.diff(X) - a[1:],
    "einsum": lambda a, A: cp.einsum("ij,kj->ik", N, A),
}

# Convex and non-decreasing in every entry where it must be; takes any affine argument.
OUTER = {
    "logistic": (True, lambda e: cp.sum(cp.logistic(e))),
    "huber hinge": (True, lambda e: cp.sum(cp.huber(cp.pos(1 + e), 1.0)) / 2),
    "squares": (True, lambda e: cp.sum_squares(e)),
    "power": (True, lambda e: cp.sum(cp.power(e, 2)) + cp.sum(cp.power(cp.pos(e), 3)) + cp.sum(cp.power(e, 4))),
    "exp": (True, lambda e: cp.sum(cp.exp(e / 4))),
    "entropy": (True, lambda e: -cp.sum(cp.entr(30 + e))),
    "log_sum_exp": (True, lambda e: cp.log_sum_exp(e)),
    "abs": (False, lambda e: cp.sum(cp.abs(e))),
    "maximum": (False, lambda e: cp.sum(cp.maximum(e, 0.3, 2 * e))),
    "max": (False, lambda e: cp.max(e) - cp.min(e)),
    "norm 2": (True, lambda e: cp.norm(cp.vec(e, order="F") - 9, 2)),
    "quadratic over linear": (True, lambda e: cp.quad_over_lin(e, 30 + cp.sum(e))),
    "largest": (False, lambda e: cp.sum_largest(e, 1)),
    "quadratic form": (True, lambda e: cp.quad_form(cp.vec(e, order="F"), np.eye(e.size) + np.ones((e.size, e.size)))),
}
PUBLIC = cp.sum_squares(X) + cp.sum_squares(N) + cp.norm1(P) + cp.trace(P) + cp.sum_squares(M)


def template_of(loss):
    return dp.Template(dp.Record(a=dp.Ball(4), A=dp.Box(-ONES, ONES)), lambda a, A: loss(a, A), PUBLIC)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", AFFINE)
def test_affine_atoms(name):
    check(template_of(lambda a, A: cp.sum(cp.square(AFFINE[name](a, A)))))


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(AFFINE)), st.sampled_from(sorted(OUTER))), min_size=1, max_size=3),
    st.lists(st.sampled_from(sorted(AFFINE)), min_size=3, max_size=3),
    st.integers(0, 2**32 - 1),
)
def test_random_templates(terms, per_label, seed):
    def loss(a, A, y):
        total = cp.sum(cp.logistic(AFFINE[per_label[y]](a, A)))
        for affine, outer in terms:
            total = total + OUTER[outer][1](AFFINE[affine](a, A) * (y + 1) / 3)
        return total

    record = dp.Record(a=dp.Ball(4), A=dp.Box(-ONES, ONES), y=dp.Choice(range(3)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(dp.Template(record, loss, PUBLIC), seed=seed, smooth=False)


@pytest.mark.parametrize(
    ("loss", "theta", "value", "slope"),
    [
        (lambda m: cp.huber(cp.pos(m), 1.0), 0.0, 0.0, 0.0),
        (lambda m: cp.huber(cp.pos(m), 1.0), 1.0, 1.0, 2.0),
        (lambda m: cp.huber(cp.pos(m), 1.0), 1e300, 2e300, 2.0),
        (lambda m: cp.huber(cp.norm(cp.hstack([m, m]), 2), 1.0), 0.0, 0.0, 0.0),
        (lambda m: cp.power(cp.abs(m), 1.5), 0.0, 0.0, 0.0),
        *((cp.logistic, far, max(far, 0.0), float(far > 0)) for far in (-1e300, -1000.0, 1000.0, 1e300)),
        (lambda m: cp.log_sum_exp(cp.hstack([m, -m])), 1000.0, 1000.0, 1.0),
        (lambda m: cp.abs(m), 0.0, 0.0, 0.0),
        (lambda m: -cp.entr(m + 1), 0.0, 0.0, 1.0),
    ],
)
def test_values_and_slopes_at_kinks_and_far(loss, theta, value, slope):
    w = cp.Variable(name="w")
    template = dp.Template(dp.Record(x=dp.Box(-2.0, 2.0)), lambda x: loss(x * w))
    batch = template.record.validate({"x": [1.0]})
    found, gradient = BatchedLoss(template, Space(template.variables), batch).value_and_gradient(np.array([theta]))
    assert (found, gradient[0]) == (pytest.approx(value, rel=1e-15), pytest.approx(slope, rel=1e-15))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("apart", [1.0, 1e-2, 1e-5, 1e-8])
def test_leaves_that_are_almost_the_same_make_no_bad_basis(apart):
    w, u = cp.Variable(4, name="w"), cp.Variable(4, name="u")
    leaves = (w, w + apart * u), (w, u), (apart * u - w,)
    record, squares = dp.Record(x=dp.Ball(4), y=dp.Choice(range(3))), cp.sum_squares(w) + cp.sum_squares(u)
    template = dp.Template(record, lambda x, y: sum(cp.logistic(x @ leaf) for leaf in leaves[y]), squares)
    space, rng = Space(template.variables), np.random.default_rng(0)
    batch, theta = template.record.sample(200, rng), rng.normal(size=space.dim)
    lift = entries_matrix(space)
    entries, expected = (lift @ theta)[:, None], np.zeros(space.dim)
    for group, loss in enumerate(lowered_losses(template, space)):
        rows = batch.rows(group)
        fields, every = [batch.fields[name][rows] for name in loss.fields], np.repeat(entries[loss.place], len(rows), 1)
        expected += lift[loss.place].T @ loss.gradient(every, fields, len(rows))[1].sum(axis=1)
    found = BatchedLoss(template, space, batch).gradient(theta)
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)
    form = form_of(template, space)
    rows = form.map.toarray()
    rows = rows[np.linalg.norm(rows, axis=1) > 0]
    assert np.linalg.cond(rows / np.linalg.norm(rows, axis=1)[:, None]) < 3


def test_functions_that_add_up_entries_are_no_fields():
    a, b = cp.Variable(4, name="a"), cp.Variable(name="b")
    record = dp.Record(x=dp.Box([-1, -1], [1, 1]), g=dp.Choice(range(4)), y=dp.Box(-5, 5))
    template = dp.Template(record, lambda x, g, y: cp.square(cp.norm(x) * a[g] + b - y))
    batch = record.validate({"x": np.array([[0.3, 0.1], [-0.7, 0.2], [0.9, -0.4]]), "g": [0, 3, 2], "y": np.zeros(3)})
    form, _ = in_own_fields(analyse(template, dp.AdaptiveSteps()).form, batch)
    assert not any("picked" in name for name in form.template.record.fields)
    plain = dp.Template(record, lambda x, g, y: cp.square(cp.exp(x[0]) * a[g] + b - y))
    form, made = in_own_fields(analyse(plain, dp.AdaptiveSteps()).form, batch)
    _, alone = in_own_fields(analyse(plain, dp.AdaptiveSteps()).form, batch.chosen(np.arange(3) == 2))
    (name,) = (name for name in form.template.record.fields if "picked" in name)
    assert np.array_equal(alone.fields[name][0], made.fields[name][2])


def test_vectors_of_one_parameter_stay_vectors():
    """A vector of length 1 has one entry, but is no score that a label picks."""
    w, v = cp.Variable(1, name="w"), cp.Variable(name="v")
    record = dp.Record(x=dp.Ball(1), y=dp.Choice([-1, 1]))
    template = dp.Template(record, lambda x, y: cp.logistic(v + w @ (np.eye(1) @ x) if y < 0 else 2 * v))
    batch = record.validate({"x": [[1.0], [-0.5]], "y": [-1, 1]})
    assert in_own_fields(analyse(template, dp.AdaptiveSteps()).form, batch)[1].size == 2


def test_differences_of_classes_take_little_memory():
    """Rows of C classes are (C^2, C) combinations of a basis, of which each row has two that are not 0."""
    classes = 120
    less, more = np.triu_indices(classes, 1)
    count, own = len(less), 3.0 * np.array([1.0, -1.0])
    rows = sp.csr_array((np.tile(own, count), np.stack([less, more], axis=1).ravel(), 2 * np.arange(count + 1)))
    tracemalloc.start()
    basis, combine = row_basis(rows, np.array([0, classes - 1, count]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert basis.shape[0] == classes - 1
    assert combine.nnz == 2 * count - (classes - 1)
    assert (combine @ basis - rows).nnz == 0
    assert set(combine.data) == {-1.0, 1.0}
    assert peak < 4 * count * classes  # bytes: half of one table of numbers


def test_labels_that_differ_in_few_numbers_share_evaluations(monkeypatch):
    """Each of 40 classes of a softmax had an evaluation of its own, for its zero at its own score."""
    asked, gradient = list[int](), Lowered.gradient
    monkeypatch.setattr(Lowered, "gradient", lambda *given: asked.append(given[3]) or gradient(*given))
    template = dp.load("softmax_regression", features=2, classes=40)
    space, batch = Space(template.variables), template.record.sample(200, np.random.default_rng(0))
    theta = np.random.default_rng(1).normal(size=space.dim)
    found = BatchedLoss(template, space, batch).value_and_gradient(theta)[0]
    assert asked == [256]
    assert found == pytest.approx(one_by_one(template, space, batch, theta).sum())


def test_labels_may_have_constant_losses():
    """A constant function has no leaves by which records could be dealt."""
    w, record = cp.Variable(3, name="w"), dp.Record(x=dp.Ball(3), y=dp.Choice(range(3)))
    template = dp.Template(record, lambda x, y: cp.logistic(x @ w) if y else cp.Constant(0.5), cp.sum_squares(w))
    space, batch = Space(template.variables), template.record.sample(60, np.random.default_rng(0))
    theta = np.ones(space.dim)
    found = BatchedLoss(template, space, batch).value_and_gradient(theta)[0]
    assert found == pytest.approx(one_by_one(template, space, batch, theta).sum())
