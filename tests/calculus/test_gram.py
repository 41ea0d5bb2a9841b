"""Inner products of rows of A_z over the record's domain: bounds that hold, whatever the scale of the fields."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from derivatives import Jets, analyse
from hypothesis import example, given, reject, settings, strategies as st
from strategies import seeded_template
from test_soundness import generator_rows

from dpconvex.calculus import generators, gram as module
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.gram import Gram
from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.record_domains import Ball, Box, Choice
from dpconvex.errors import MissingRule, NotPrivate
from dpconvex.language.record import Record
from dpconvex.language.template import Template

w = cp.Variable(3, name="w")
u = cp.Variable(3, name="u")
v = cp.Variable(name="v")


def gram_of(loss, **fields) -> tuple[Gram, Jets, np.ndarray]:
    """Return the Gram bounds of a loss, and the rows of its generators at sampled records."""
    analysis = analyse(loss, **fields)
    return with_generators(analysis, 60)


def with_generators(analysis: Analysis, count: int) -> tuple[Gram, Jets, np.ndarray]:
    form = analysis.form
    fields = form.template.record.sample(count, np.random.default_rng(0)).fields
    jets = Jets(form, fields, np.zeros((1, form.space.dim)))
    return analysis.gram, jets, generator_rows(analysis, jets)


@settings(max_examples=8)
@given(st.integers(0, 10**6))
@example(4)
@example(9)
def test_bounds_hold_on_random_leaves(seed):
    """Products and squared norms of random combinations, of one record and of two, and the Loewner bound."""
    try:
        form = LossForm(seeded_template(seed))
    except NotPrivate:  # a drawn loss in which the variables cancel
        reject()
    rng = np.random.default_rng(seed)
    leaves = [form.polynomial(leaf) for group in form.leaves for leaf in group]
    gram = Gram(leaves, form.space, form.bases)
    stand_in = type("Leaves", (), {"form": form, "gram": gram})()
    fields = form.template.record.sample(40, rng).fields
    rows = generator_rows(stand_in, Jets(form, fields, np.zeros((1, form.space.dim))))
    left, right = rng.normal(size=(2, 5, rows.shape[1]))
    first, second = (np.einsum("kg,zgd->zkd", table, rows) for table in (left, right))
    scale = 1e-9 * (1e-300 + np.abs(first).max() * np.abs(second).max())
    same = np.einsum("zkd,zld->zkl", first, second)
    cross = np.einsum("zkd,yld->zykl", first, second)
    for sign in (1.0, -1.0):
        assert ((sign * same).max(axis=0) <= gram.products(left, right, cross=False, sign=sign) + scale).all()
        assert ((sign * cross).max(axis=(0, 1)) <= gram.products(left, right, cross=True, sign=sign) + scale).all()
    assert (np.sum(first**2, axis=2).max(axis=0) <= gram.squared_norms(left) * (1 + 1e-9)).all()
    for record in rows:
        difference = gram.upper - record @ record.T
        assert np.linalg.eigvalsh(difference)[0] >= -1e-9 * np.abs(gram.upper).max()


def test_a_small_coefficient_of_a_large_field_counts():
    """Income in units of ten million, beside features in the unit ball."""

    def loss(x, income):
        return cp.logistic(w @ cp.hstack([x, income / 1e7]))

    for top in (1e3, 1e5, 1e7):

        def scaled(x, income, top=top):
            return cp.logistic(w @ cp.hstack([x, income / top]))

        assert analyse(scaled, x=Ball(2), income=Box(0.0, top)).gradient_bound == pytest.approx(np.sqrt(2))
    assert analyse(loss, x=Ball(2), income=Box(0.0, 1e7)).replacement_bound == pytest.approx(np.sqrt(6))


def test_patterns_that_differ_in_small_coefficients_of_large_fields_are_not_merged():
    def loss(x, t, factor):
        return cp.logistic(w[0] * x + 1e-13 * w[1] * t) + cp.logistic(w[0] * x + factor * 1e-13 * w[1] * t)

    fields = {"x": Box(-1e-10, 1e-10), "t": Box(-1e6, 1e6)}
    bounds = [analyse(lambda x, t, f=f: loss(x, t, f), **fields).gradient_bound for f in (1.0, 4.0)]
    assert bounds == pytest.approx([2e-7, 5e-7], rel=1e-5)


def test_generators_are_shared_by_leaves_that_differ_in_a_factor():
    gram, _, rows = gram_of(
        lambda x: cp.logistic(w @ x) + cp.logistic(1 - 3 * (x @ w)) + cp.huber(0.1 * (w @ x)), x=Ball(3)
    )
    assert rows.shape[1] == 1
    assert np.concatenate(gram.rows).ravel().tolist() == pytest.approx([1.0, -3.0, 0.1])
    assert gram.upper == pytest.approx(np.array([[1.0]]))
    two, _, _ = gram_of(lambda x: cp.logistic(w @ x) + cp.logistic(u @ x) + cp.logistic((w - u) @ x), x=Ball(3))
    assert np.concatenate(two.rows).tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]]
    assert two.blocks.tolist() == [0, 1]
    assert two.upper == pytest.approx(np.eye(2))


def softmax(classes: int, features: int, by_rows: bool = False, offset: bool = False) -> Template:
    """Margins of each class against all others, as differences of columns (or rows) of one matrix."""
    W = cp.Variable((classes, features) if by_rows else (features, classes), name="W")
    b = cp.Variable(classes, name="b")

    def loss(x, y):
        against = np.eye(classes)
        against[y] -= 1
        scores = (against.T @ W) @ x if by_rows else x @ (W @ against)
        return cp.log_sum_exp(scores + b @ against if offset else scores)

    return Template(Record(x=Ball(features, 2.0), y=Choice(range(classes))), loss)


@pytest.mark.parametrize("offset", [False, True])
@pytest.mark.parametrize("by_rows", [False, True])
def test_differences_of_classes_are_written_in_the_classes(by_rows, offset, monkeypatch):
    """As many generators as classes, not as many as pairs of them, and no inner product changes."""
    form = LossForm(softmax(7, 3, by_rows, offset))
    leaves = [form.polynomial(leaf) for group in form.leaves for leaf in group]
    found = Gram(leaves, form.space, form.bases)
    assert len(found.blocks) == 7 * (1 + offset)
    assert len(found.forms) == 1 + offset
    monkeypatch.setattr(generators, "layouts", lambda shape: [])
    monkeypatch.setattr(generators, "FEW", 10**9)
    whole = Gram(leaves, form.space, form.bases)
    assert len(whole.blocks) == 7 * 6 // 2 * (1 + offset)
    rng = np.random.default_rng(0)
    first, second = (np.concatenate(gram.rows) for gram in (found, whole))
    mixed = rng.normal(size=(20, len(first)))
    for cross in (False, True):
        for sign in (1.0, -1.0):
            one, other = (
                gram.products(mixed @ rows, rows, cross, sign) for gram, rows in ((found, first), (whole, second))
            )
            assert one == pytest.approx(other, rel=1e-12, abs=1e-12)
    assert found.squared_norms(mixed @ first) == pytest.approx(whole.squared_norms(mixed @ second), rel=1e-12)
    assert first @ found.upper @ first.T == pytest.approx(second @ whole.upper @ second.T, rel=1e-12, abs=1e-12)


def test_the_number_of_forms_and_of_their_ranges_does_not_grow_with_the_classes(monkeypatch):
    """Ranges of forms are what takes long: one form suffices for a softmax of any size."""
    calls = []
    original = module.form_range
    monkeypatch.setattr(
        module, "form_range", lambda *arguments, **more: calls.append(1) or original(*arguments, **more)
    )
    counts = []
    for classes in (4, 26):
        calls.clear()
        analysis = Analysis(LossForm(softmax(classes, 2)))
        counts.append((len(analysis.gram.forms), len(calls)))
    # Of one record, and of two.
    assert counts == [(1, 2), (1, 2)]


def test_a_variable_is_divided_only_if_all_its_columns_are_used_alike():
    """Else bounds of the parts would add up: x1^2 + x2^2 is at most 1 in the unit ball, not 2."""
    U = cp.Variable((2, 2), name="U")
    gram, _, _ = gram_of(lambda x: cp.logistic(u[:2] @ x) + cp.logistic(u[0] * x[0]), x=Ball(2))
    assert [place.tolist() for place in gram.places] == [[0, 1, 2], [0, 1, 2]]
    gram, _, _ = gram_of(
        lambda x: cp.logistic(x @ U[:, 0]) + cp.logistic(x[::-1] @ U[:, 1] - x @ U[:, 0]) + cp.logistic(x @ U[:, 1]),
        x=Ball(2),
    )
    assert [place.tolist() for place in gram.places] == [[0, 1, 2, 3]] * 3


def test_a_long_and_a_short_generator_are_charged_in_proportion():
    gram, _, _ = gram_of(lambda x: cp.logistic(w @ x) + cp.logistic(w[0]), x=Ball(3, 100.0))
    assert gram.upper == pytest.approx(np.diag([2e4, 2.0]))


def test_squared_norms_know_what_cancels():
    """(x1 w1 + x2 w2) and (x1 w1 - x2 w2) are each of length 1, and so are mixtures of them."""

    def loss(x):
        return cp.log_sum_exp(cp.hstack([x[0] * w[0] + x[1] * w[1], x[0] * w[0] - x[1] * w[1]]))

    gram, _, _ = gram_of(loss, x=Ball(2))
    assert gram.squared_norms(np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])) == pytest.approx([1.0, 1.0, 1.0])
    assert gram.squared_norms(np.array([[1.0, 1.0]])) == pytest.approx([4.0])


def test_reweighting_scales_the_rows_of_each_variable():
    gram, _, _ = gram_of(lambda x: cp.logistic(w @ x + v) + cp.logistic(w @ x), x=Ball(3, 2.0))
    assert gram.squared_norms(np.array([[1.0, 1.0]])) == pytest.approx([5.0])
    lighter = gram.reweighted(np.array([1.0, 0.5]))
    assert lighter.squared_norms(np.array([[1.0, 1.0]])) == pytest.approx([4.25])
    assert lighter.upper == pytest.approx(np.diag([4.0, 0.25]))
    assert gram.squared_norms(np.array([[1.0, 1.0]])) == pytest.approx([5.0])


def test_records_without_continuous_fields():
    analysis = analyse(lambda y: cp.logistic(w[y] + v), y=Choice([0, 1, 2]))
    assert analysis.gradient_bound == pytest.approx(np.sqrt(2))
    assert analysis.replacement_bound == pytest.approx(np.sqrt(2))


def test_too_many_forms_are_refused():
    record = Record(t=Box(np.zeros(4), np.ones(4)))
    template = Template(
        record, lambda t: sum(cp.logistic(w[0] * t[i] + w[1] * t[j] ** 2) for i in range(4) for j in range(4))
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LARGEST_NUMBER_OF_FORMS", 10)
        with pytest.raises(MissingRule, match="more than 10 different forms"):
            Analysis(LossForm(template))
        patch.undo()
        patch.setattr(module, "LARGEST_NUMBER_OF_PRODUCTS", 10)
        with pytest.raises(MissingRule, match="more than 10 products"):
            Analysis(LossForm(template))


@pytest.mark.parametrize("boxed", [False, True])
def test_sums_of_the_same_parts_have_these_parts_as_generators(boxed):
    """A chain's rows add positions of one record in many ways; parts share its length, and the bounds hold at every record."""
    W = cp.Variable((2, 3), name="W")
    ways = np.random.default_rng(0).integers(-2, 3, size=(20, 9)).astype(float)

    def loss(x):
        return cp.log_sum_exp(ways @ cp.vec(cp.reshape(x, (3, 2), order="C") @ W, order="C"))

    gram, _, rows = gram_of(loss, x=Box(-np.arange(1.0, 7.0), np.ones(6)) if boxed else Ball(6))
    assert len(gram.generators) == 9  # one for each position and column
    products = np.einsum("zgd,zhd->zgh", rows, rows)
    assert np.linalg.eigvalsh(gram.upper - products).min() > -1e-9
    if not boxed:
        assert gram.upper == pytest.approx(np.eye(9))
    table = gram.rows[0]
    observed = np.einsum("kg,zgh,kh->zk", table, products, table)
    assert (observed <= gram.squared_norms(table) * (1 + 1e-9)).all()
