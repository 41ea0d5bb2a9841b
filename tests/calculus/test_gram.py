"""Inner products of rows of A_z over the record's domain: bounds that hold, whatever the scale of the fields."""

import cvxpy as cp
import numpy as np
import pytest
from derivatives import Jets, analyse
from hypothesis import example, given, reject, settings, strategies as st
from strategies import seeded_template
from test_soundness import generator_rows

from dpconvex.calculus import gram as module
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
