"""Inner products of rows of A_z over the record's domain: bounds that hold, whatever the scale of the fields."""

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from derivatives import Jets, analyse
from hypothesis import example, given, reject, settings, strategies as st
from strategies import seeded_template
from test_soundness import generator_rows

import dpconvex as dp
from dpconvex.data.domains import Ball, Box
from dpconvex.expressions.expansion import RecordVariables
from dpconvex.sensitivity import bilinear_forms, gram as module
from dpconvex.sensitivity.bilinear_forms import form_range
from dpconvex.sensitivity.gram import GradientGram
from dpconvex.sensitivity.loss_form import LossForm

w = cp.Variable(3, name="w")
SEEDS = st.integers(0, 2**32 - 1)


@settings(max_examples=8)
@given(st.integers(0, 10**6))
@example(4)
@example(9)
@example(6141)  # a difference of equal terms: its generator is rounding
def test_bounds_hold_on_random_leaves(seed):
    """Products and squared norms of random combinations, of one record and of two, and the Loewner bound.

    A generator that is rounding cannot be recovered from rows: `errors` covers all of its row.
    """
    try:
        form = LossForm(seeded_template(seed))
    except dp.NotPrivate:  # a drawn loss in which the variables cancel
        reject()
    rng = np.random.default_rng(seed)
    leaves = [form.polynomial(leaf) for group in form.leaves for leaf in group]
    gram = GradientGram(leaves, form.space, form.bases)
    stand_in = type("Leaves", (), {"form": form, "gram": gram})()
    fields = form.template.record.sample(40, rng).fields
    rows = generator_rows(stand_in, Jets(form, fields, np.zeros((1, form.space.dim))))
    known = gram.errors < 1e-6 * np.sqrt(np.diag(gram.upper))
    left, right = rng.normal(size=(2, 5, rows.shape[1])) * known
    first, second = (np.einsum("kg,zgd->zkd", table, rows) for table in (left, right))
    scale = 1e-9 * (1e-300 + np.abs(first).max() * np.abs(second).max())
    same = np.einsum("zkd,zld->zkl", first, second)
    cross = np.einsum("zkd,yld->zykl", first, second)
    for sign in (1.0, -1.0):
        assert ((sign * same).max(axis=0) <= gram.products(left, right, cross=False, sign=sign) + scale).all()
        assert ((sign * cross).max(axis=(0, 1)) <= gram.products(left, right, cross=True, sign=sign) + scale).all()
    assert (np.sum(first**2, axis=2).max(axis=0) <= gram.squared_norms(left) * (1 + 1e-9)).all()
    for record in rows:
        difference = (gram.upper - record @ record.T)[np.ix_(known, known)]
        assert np.linalg.eigvalsh(difference).min(initial=0.0) >= -1e-9 * np.abs(gram.upper).max()


RECORDS = [
    dp.Record(x=Ball(3, 2.0)),
    dp.Record(x=Ball(2, 0.5, norm=1), t=Box([-1.0, 0.5], [2.0, 0.75])),
    dp.Record(x=Ball(2, 1.0), y=Ball(2, 3.0, norm=np.inf)),
    dp.Record(t=Box(-0.5, 2.0)),
    dp.Record(x=Ball(2, 1.0), s=Box(0.5, 2.0), t=Box(-3.0, -1.0)),
]
KINDS = ["full", "sparse", "definite", "large", "isotropic", "partial"]


def monomials(record, count, rng):
    """Draw the monomials up to degree 2 and their values at records, shape (count, monomials)."""
    scalars = RecordVariables(record.continuous).count
    pairs = [(-1, -1)] + [(-1, j) for j in range(scalars)] + [(i, j) for i in range(scalars) for j in range(i, scalars)]
    table = np.array(pairs)
    fields = record.sample(count, rng).fields
    columns = [fields[name].reshape(count, -1) for name in record.continuous]
    return table, np.column_stack([*columns, np.ones(count)])[:, table].prod(axis=2)


@given(SEEDS, st.sampled_from(RECORDS), st.sampled_from(KINDS))
def test_ranges_of_bilinear_forms_contain_every_record(seed, record, kind):
    rng, bases = np.random.default_rng(seed), RecordVariables(record.continuous)
    table, values = monomials(record, 150, rng)
    form, degree = rng.normal(size=(len(table), len(table))), (table >= 0).sum(axis=1)
    if kind == "sparse":
        form *= rng.random(form.shape) < 0.2
    elif kind == "definite":
        form = form @ form.T
    elif kind in ("isotropic", "partial"):
        form = np.diag(rng.normal(size=3)[degree] * bases.multiplicity(table))
        form *= rng.random(len(table)) < (0.7 if kind == "partial" else 1.0)
    elif kind == "large":
        form *= np.outer(degree == 1, degree == 1)
    with pytest.MonkeyPatch.context() as patch:
        if kind == "large":  # without eigenvalues of large blocks the ranges are wider, never narrower
            patch.setattr(bilinear_forms, "LARGEST_DENSE", 1)
        found = [form_range(sp.csr_array(form), table, bases, same) for same in (True, False)]
    alone = np.einsum("ni,ij,nj->n", values, form, values)
    for interval, seen in zip(found, (alone, values @ form @ values.T), strict=True):
        slack = 1e-9 * (1 + float(np.abs(seen).max()))
        assert interval.low - slack <= seen.min()
        assert seen.max() <= interval.high + slack


@pytest.mark.parametrize(
    ("ends", "low", "high"), [((0.0, 4.0), 0.0, 4.0), ((-4.0, -1.0), -4.0, 0.0), ((-1.0, 2.0), -1.0, 2.0)]
)
def test_products_with_a_number_keep_its_sign(ends, low, high):
    """``<x, y x> = y ||x||^2`` of one record has the sign of y; of two records it has none."""
    bases = RecordVariables(dp.Record(x=Ball(2, 1.0), y=Box(*ends)).continuous)
    form = sp.csr_array(([1.0, 1.0], ([0, 1], [2, 3])), shape=(4, 4))  # rows and columns are x_1, x_2, x_1 y, x_2 y
    same, cross = (form_range(form, np.array([[-1, 0], [-1, 1], [0, 2], [1, 2]]), bases, one) for one in (True, False))
    assert (same.low, same.high) == pytest.approx((low, high), abs=1e-12)
    assert cross.high == -cross.low == pytest.approx(max(map(abs, ends)))


@pytest.mark.parametrize(("limit", "what"), [("FORMS", "different forms"), ("PRODUCTS", "products")])
def test_too_many_forms_are_refused(limit, what, monkeypatch):
    monkeypatch.setattr(module, f"LARGEST_NUMBER_OF_{limit}", 10)
    with pytest.raises(dp.MissingRule, match=f"more than 10 {what}"):
        analyse(
            lambda t: sum(cp.logistic(w[0] * t[i] + w[1] * t[j] ** 2) for i in range(4) for j in range(4)),
            t=Box(np.zeros(4), np.ones(4)),
        )


@pytest.mark.parametrize("boxed", [False, True])
def test_sums_of_the_same_parts_have_these_parts_as_generators(boxed):
    """A chain's rows add positions of one record in many ways; parts share its length, and the bounds hold at every record."""
    W = cp.Variable((2, 3), name="W")
    ways = np.random.default_rng(0).integers(-2, 3, size=(20, 9)).astype(float)
    analysis = analyse(
        lambda x: cp.log_sum_exp(ways @ cp.vec(cp.reshape(x, (3, 2), order="C") @ W, order="C")),
        x=Box(-np.arange(1.0, 7.0), np.ones(6)) if boxed else Ball(6),
    )
    form, gram = analysis.form, analysis.gram
    fields = form.template.record.sample(60, np.random.default_rng(0)).fields
    rows = generator_rows(analysis, Jets(form, fields, np.zeros((1, form.space.dim))))
    assert len(gram.generators) == 9  # one for each position and column
    products = np.einsum("zgd,zhd->zgh", rows, rows)
    assert np.linalg.eigvalsh(gram.upper - products).min() > -1e-9
    assert boxed or gram.upper == pytest.approx(np.eye(9))


@pytest.mark.parametrize("build", [cp.exp, cp.logistic])
@pytest.mark.parametrize("ends", [(0.0, 4.0), (1.0, 4.0), (-4.0, -1.0), (-1.0, 2.0)])
def test_numbers_that_multiply_a_score_are_taken_at_their_ends(build, ends):
    """Of f(m) - y m the gradient is (f'(m) - y) x: its parts are multiples of one vector, whose factors cancel."""
    record = dp.Record(x=Ball(3, 1.0), y=Box(*ends))
    template = dp.Template(record, lambda x, y: build(x @ w) - y * (x @ w), 0.01 * cp.sum_squares(w), [cp.norm(w) <= 1])
    slopes = np.exp([-1.0, 1.0]) if build is cp.exp else 1 / (1 + np.exp([1.0, -1.0]))
    right = max(abs(slope - y) for slope in slopes for y in ends)
    certificate = dp.verify(template, dp.Privacy(1.0), 1000, dp.OutputPerturbation())
    assert right <= certificate.gradient_bound <= right * (1 + 1e-9)
    unreplayed = certificate.check().unreplayed
    assert not unreplayed or build is cp.exp
