"""Bounds on gradients and on Hessians, against vertices and mixtures at many records."""

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from derivatives import Jets, analyse
from hypothesis import given, strategies as st
from test_soundness import generator_rows

import dpconvex as dp
from dpconvex.data.domains import Ball, Box
from dpconvex.expressions.abstract_values import GradientSet, HessianTerm
from dpconvex.expressions.expansion import RecordVariables
from dpconvex.sensitivity import bilinear_forms, gradient_norms as gradients, gram as module
from dpconvex.sensitivity.bilinear_forms import form_range
from dpconvex.sensitivity.curvature import curvature_bound
from dpconvex.sensitivity.gradient_norms import Gradients, term_norm

SEEDS = st.integers(0, 2**32 - 1)
w, u, v = cp.Variable(2, name="w"), cp.Variable(2, name="u"), cp.Variable(name="v")
RADII = (1.0, 3.0)
GRAMS = [
    # Generators w'x, u'x, v; then rows that are neither parallel nor orthogonal for every record.
    analyse(lambda x: cp.logistic(w @ x) + cp.logistic(u @ x) + cp.logistic(v), x=Ball(2)).gram,
    analyse(lambda x, t: cp.logistic(w @ x) + cp.logistic(w[0] + t * w[1]), x=Ball(2, 3.0), t=Box(-0.5, 1.0)).gram,
]


def rows_at(which, rng):
    """Rows of the generators at a random record, shape (generators, dim)."""
    x = rng.normal(size=2)
    x *= RADII[which] / np.linalg.norm(x)
    return np.array([x, [1.0, rng.choice([-0.5, 1.0])]] if which else [[*x, 0, 0, 0], [0, 0, *x, 0], [0, 0, 0, 0, 1]])


def draw_terms(rng, which, balls):
    shapes = [(rng.integers(1, 4), len(GRAMS[which].upper)) for _ in range(rng.integers(1, 5))]
    return [GradientSet(np.round(rng.normal(size=s), 1), ball=bool(balls and rng.random() < 0.4)) for s in shapes]


def draw_point(terms, rng):
    """Draw an element of the sum of the terms, mostly at their boundary, in generator coordinates."""
    total = 0.0
    for term in terms:
        weight = rng.normal(size=len(term.rows)) if term.ball else rng.dirichlet(np.full(len(term.rows), 0.2))
        total = total + (weight / np.linalg.norm(weight) if term.ball else weight) @ term.rows
    return total


@given(SEEDS, st.sampled_from([0, 1]), st.booleans(), st.booleans())
def test_gradient_bounds_hold_for_every_element_and_every_record(seed, which, balls, pairwise):
    rng, gram = np.random.default_rng(seed), GRAMS[which]
    first, second = (draw_terms(rng, which, balls) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        if pairwise:
            patch.setattr(gradients, "LARGEST_ENUMERATION", 0)
        bound = Gradients(first, gram).bound
        apart = Gradients(first, gram).difference_bound(Gradients(second, gram))
        norms = [term_norm(term, gram) for term in first]
    assert bound <= sum(norms) * (1 + 1e-12) or not pairwise
    assert apart <= (bound + Gradients(second, gram).bound) * (1 + 1e-12) or pairwise
    for _ in range(50):
        g, other = draw_point(first, rng) @ rows_at(which, rng), draw_point(second, rng) @ rows_at(which, rng)
        assert np.linalg.norm(g) <= bound * (1 + 1e-9) + 1e-12
        assert np.linalg.norm(g - other) <= apart * (1 + 1e-9) + 1e-12


# Curvature
def draw_piece(rng, count):
    rows = np.round(rng.normal(size=(rng.integers(1, 5), count)), 1)
    outer, spread = rng.choice([0.0, 0.5, 2.0], size=2)
    if rng.random() < 0.3:
        return HessianTerm((GradientSet(rows, ball=bool(rng.random() < 0.5)), GradientSet(rows[:1])), max(outer, 0.5))
    return HessianTerm((GradientSet(rows),), outer, spread)


def draw_hessian(piece, rows, rng):
    """Draw a Hessian of a piece, with weights that favour few vertices."""
    if piece.spread == 0:
        total = draw_point(piece.terms, rng) @ rows
        return piece.outer * np.outer(total, total)
    points = piece.terms[0].rows @ rows
    weight = rng.dirichlet(np.full(len(points), rng.choice([0.2, 1.0, 20.0])))
    mean = weight @ points
    return piece.outer * np.outer(mean, mean) + piece.spread * ((points.T * weight) @ points - np.outer(mean, mean))


@given(SEEDS, st.sampled_from([0, 1]))
def test_no_hessian_exceeds_the_bounds(seed, which):
    rng, gram = np.random.default_rng(seed), GRAMS[which]
    pieces = [draw_piece(rng, len(gram.upper)) for _ in range(rng.integers(1, 4))]
    found = curvature_bound(pieces, gram, 2 if which else 5)
    for _ in range(60):
        rows = rows_at(which, rng)
        values = np.linalg.eigvalsh(sum(draw_hessian(piece, rows, rng) for piece in pieces))
        assert values[-1] <= found.eigenvalue * (1 + 1e-9) + 1e-12
        assert values.sum() <= found.trace * (1 + 1e-9) + 1e-12
        assert (values > 1e-9 * (1 + values[-1])).sum() <= found.rank
        for mu in (1e-6, 0.1, 1.0, 100.0):
            # Rounding makes eigenvalues of 1e-16 out of zeros.
            seen = np.log1p(np.where(values > 1e-12 * (1 + values[-1]), values, 0.0) / mu).sum()
            assert seen <= found.log_det(mu) * (1 + 1e-9) + 1e-12


APART = [(4e-13, 1.0, 1e-28), (4e-13, 1e14, 1.0), (2.0**-52, 1e17, 1.0), (1e-10, 1e11, 1.0), (3e-9, 1.0, 1e-18)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("apart", "largest", "modulus"), APART)
@pytest.mark.parametrize("count", [2, 3, 6])
def test_entries_that_differ_in_their_last_digits_curve(count, apart, largest, modulus):
    """At theta = 0 the Hessian is the covariance of the rows, whatever small part of them they differ in."""
    theta, steps = cp.Variable(count, name="theta"), np.arange(count)

    def curvature(entry):
        bounds = {"x": Box(0.0, largest), "t": Box(0.0, largest)}
        analysis = analyse(lambda x, t: cp.log_sum_exp(cp.hstack([entry(x, t, k) for k in steps])), **bounds)
        return analysis.losses[0].curvature

    along_one = curvature(lambda x, t, k: x * theta[0] + (1 + apart * k) * t * theta[1])
    spread = np.var((1 + apart * steps) - 1) * largest**2  # of the factors as they are in floating point
    assert along_one.log_det(modulus) >= np.log1p(spread / modulus)
    apart_in_all = curvature(lambda x, t, k: x * cp.sum(theta) + apart * t * theta[k])
    spread = (apart * largest) ** 2 / count  # count - 1 times
    assert apart_in_all.log_det(modulus) >= (count - 1) * np.log1p(spread / modulus)
    assert apart_in_all.rank == count - 1
    assert curvature(lambda x, t, k: x * theta[0]).trace <= 1e-20 * largest**2  # rounding


# Inner products of rows of A_z over the record's domain: bounds that hold, whatever the scale of the fields
three = cp.Variable(3, name="w")


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
    table, fields = np.array(pairs), record.sample(count, rng).fields
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


def test_an_inner_product_keeps_its_range_beside_other_terms():
    """``<x, x'>`` of two records is not negative in this box, whatever is added: here ``x_1^2 x_1'^2``, of at most 4."""
    bases = RecordVariables(dp.Record(x=Box([0.0, 0.0], [1.0, 1.0])).continuous)
    cross = form_range(sp.csr_array(np.eye(3)), np.array([[-1, 0], [-1, 1], [0, 0]]), bases, same=False)
    assert (cross.low, cross.high) == pytest.approx((-4.0, 6.0))


@pytest.mark.parametrize(("limit", "what"), [("FORMS", "different forms"), ("PRODUCTS", "products")])
def test_too_many_forms_are_refused(limit, what, monkeypatch):
    monkeypatch.setattr(module, f"LARGEST_NUMBER_OF_{limit}", 10)
    with pytest.raises(dp.MissingRule, match=f"more than 10 {what}"):
        analyse(
            lambda t: sum(cp.logistic(three[0] * t[i] + three[1] * t[j] ** 2) for i in range(4) for j in range(4)),
            t=Box(np.zeros(4), np.ones(4)),
        )


def test_a_term_without_entries_adds_nothing():
    """One feature has no differences of neighbouring coefficients."""
    one = cp.Variable(1, name="one")
    varied = analyse(lambda x: cp.logistic(x @ one) + cp.tv(one - x), x=Ball(1))
    assert varied.gradient_bound == analyse(lambda x: cp.logistic(x @ one), x=Ball(1)).gradient_bound


@pytest.mark.parametrize("boxed", [False, True])
def test_sums_of_the_same_parts_have_these_parts_as_generators(boxed):
    """A chain's rows add positions of one record in many ways; parts share its length, and the bounds hold at every record."""
    W = cp.Variable((2, 3), name="W")
    ways = np.random.default_rng(0).integers(-2, 3, size=(20, 9)).astype(float)
    domain = Box(-np.arange(1.0, 7.0), np.ones(6)) if boxed else Ball(6)
    scores = lambda x: ways @ cp.vec(cp.reshape(x, (3, 2), order="C") @ W, order="C")  # noqa: E731
    analysis = analyse(lambda x: cp.log_sum_exp(scores(x)), x=domain)
    form, gram = analysis.form, analysis.gram
    fields = form.template.record.sample(60, np.random.default_rng(0)).fields
    rows = generator_rows(analysis, Jets(form, fields, np.zeros((1, form.space.dim))))
    assert len(gram.generators) == 9  # one for each position and column
    assert np.linalg.eigvalsh(gram.upper - np.einsum("zgd,zhd->zgh", rows, rows)).min() > -1e-9
    assert boxed or gram.upper == pytest.approx(np.eye(9))
