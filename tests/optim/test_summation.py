"""Sums over records: what they are, and how far rounding can take them, against exact arithmetic."""

import math
from contextlib import nullcontext
from fractions import Fraction
from itertools import product as pairs

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.expressions.atoms.arithmetic import contracted
from dpconvex.fitting.verify import analyse
from dpconvex.numerics import UNIT_ROUNDOFF
from dpconvex.optim.distance import Composite
from dpconvex.sums.batch_loss import BatchedLoss
from dpconvex.sums.design import product_apart
from dpconvex.sums.forms import form_of
from dpconvex.sums.programs import LANES
from dpconvex.util.summation import PIECE, SumLengths

LONG = np.longdouble


def test_apart_no_record_depends_on_others():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 100, 1)), rng.normal(size=(100, 7, 5 * LANES))
    whole = contracted(np, "ij", "jk", "ik", a, b)
    assert whole == pytest.approx(np.einsum("ij,jkz->ikz", a[..., 0], b))
    assert (contracted(np, "ij", "jk", "ik", a, b[..., LANES : 2 * LANES]) == whole[..., LANES : 2 * LANES]).all()
    rows = rng.normal(size=(5 * LANES, 100))
    for weights in (rng.normal(size=(1, 100)), rng.normal(size=(6, 100))):
        found = product_apart(weights, {"x": rows}, "x")
        assert (product_apart(weights, {"x": rows[LANES : 2 * LANES]}, "x") == found[:, LANES : 2 * LANES]).all()


def logistic(x, y, w):
    return -(y / (1 + np.exp(y * (x @ w))))[:, None] * x


def softmax(x, y, w):
    scores = x @ w.reshape(-1, x.shape[1]).T
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    weights[np.arange(len(x)), y] -= 1
    return (weights[:, :, None] * x[:, None]).reshape(len(x), -1)


LEARNERS = {
    "logistic_regression": (logistic, {}, [-1, 1]),
    "softmax_regression": (softmax, {"classes": 6}, list(range(6))),
}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("logistic_regression", "blocks"),
        ("logistic_regression", "sparse"),
        ("softmax_regression", "blocks"),
        pytest.param("softmax_regression", "device", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("data", ["flat", "equal", "random"])
def test_gradients_err_less_than_is_claimed(name, data, form):
    """With equal records all errors point the same way; long parameters whose inner products cancel make them large."""
    exact, more, labels = LEARNERS[name]
    template, d = dp.load(name, regularization=1e-3, **more, features=20), 20
    analysis = analyse(template)
    rng = np.random.default_rng(0)
    for length, size in pairs((1.0, 100.0), (8, 10_000)):
        x = rng.uniform(0.5, 1.0, size=(1 if data == "equal" else size, 1 if data == "flat" else d)) + np.zeros(d)
        if data == "random":
            x *= rng.choice([-1, 1], size=x.shape)
        x = np.broadcast_to(x / np.linalg.norm(x, axis=1)[:, None] * (1 - 1e-9), (size, d)).copy()
        y = np.full(size, labels[0]) if data != "random" else rng.choice(labels, size)
        w = rng.normal(size=analysis.form.space.dim).reshape(-1, d)
        if data == "flat":  # partial sums grow, and shrink again
            w = np.sort(np.sign(w)) * rng.uniform(0.5, 1.0)
        w -= np.outer(w @ x[0], x[0]) / (x[0] @ x[0])  # the first record, or all of them, lie on the border
        w = (w / np.linalg.norm(w) * length).ravel()
        batch = template.record.validate({"x": sp.csr_array(x) if form == "sparse" else x, "y": y})
        with dp.devices() if form == "device" else nullcontext():
            found = BatchedLoss(template, analysis.form.space, batch).gradient(w)
        expected = exact(x.astype(LONG), y.astype(LONG) if name != "softmax_regression" else y, w.astype(LONG))
        error = float(np.linalg.norm((found - expected.sum(axis=0)).astype(float)))
        gradient, hessian = analysis.gradient_bound, analysis.hessian_bound
        assert error <= analysis.form.lengths.gradient_error(size, gradient, hessian, length, 0.0)
        if size < 10:  # no long sums: what is assumed of one record
            assert error <= 20 * UNIT_ROUNDOFF * size * (gradient + hessian * length)


def test_gradients_of_long_records_err_less_than_is_claimed():
    """An inner product whose first terms cancel, and whose others are lost beside these."""
    d, large, length = 1024, 8, 100.0
    w = cp.Variable(d, name="w")
    record = dp.Record(x=dp.Ball(d), s=dp.Box(0.0, 1.0))
    template = dp.Template(record, lambda x, s: cp.logistic(cp.exp(-s) * (x @ w)), 0.05 * cp.sum_squares(w))
    x, theta = np.zeros(d), np.full(d, 1e-3)
    x[:large] = 0.99 / np.sqrt(large)
    theta[:large] = length / np.sqrt(large) * np.where(np.arange(large) % 2, -1, 1)
    x[large:] = abs(x[0] * theta[0]) * UNIT_ROUNDOFF * 900
    form = analyse(template).form
    found = BatchedLoss(template, form.space, record.validate({"x": x[None], "s": [0.0]})).gradient(theta)
    margin = float(sum(Fraction(a) * Fraction(b) for a, b in zip(x.tolist(), theta.tolist(), strict=True)))
    error = np.linalg.norm(found - x / (1 + np.exp(-margin)))
    assert error <= form.lengths.gradient_error(1, 1.0, 0.25, float(np.linalg.norm(theta)), 0.0)


def test_lengths_are_those_of_the_template():
    found = analyse(dp.load("logistic_regression", features=7)).form.lengths
    assert found == SumLengths(scalars=7, entries=1, row=1, terms=2)
    several = analyse(dp.load("large_margin_gaussian", features=4, classes=5)).form.lengths
    # The projection takes the mean over the classes from each: rows of five numbers, 4/5 and four times -1/5, or more.
    assert several.entries == 4
    assert several.projected >= 5 * 8 / 5 * (1 - 1e-9)


FORMS = [
    ("softmax_regression", {"features": 3, "classes": 3}),
    ("large_margin_gaussian", {"features": 3, "classes": 2}),
    ("large_margin_gaussian", {"features": 3, "classes": 7, "competitors": "summed"}),
    ("large_margin_gaussian_mixture", {"features": 2, "classes": 3, "components": 2}),
    ("metric_learning", {"features": 3}),
]


@pytest.mark.parametrize(("name", "options"), FORMS)
def test_sums_of_forms_are_not_much_larger_than_gradients(name, options):
    """The factor by which errors of the forms' sums can exceed those of the gradients' sums is the one that is counted."""
    analysis = analyse(dp.load(name, **options))
    form = form_of(analysis.form.template, analysis.form.space)
    rows = form.map.toarray()
    norms = np.linalg.norm(rows, axis=1)
    scaled = rows[norms > 0] / norms[norms > 0, None]
    largest = np.linalg.norm(np.abs(scaled), 2) / np.linalg.svd(scaled, compute_uv=False).min()
    data = {"records": 1e6, "gradient_bound": 1.0, "hessian_bound": 0.0, "radius": 0.0, "public": 0.0}
    own, single = (lengths.gradient_error(**data) for lengths in (analysis.form.lengths, SumLengths(1, 1, 1)))
    assert own - single >= (largest - 1 - 1e-9) * (PIECE + 2 * math.log2(1e6)) * 1e6 * UNIT_ROUNDOFF


def test_every_part_of_a_gradient_counts():
    lengths = SumLengths(scalars=5, entries=1, row=1)
    given = {"records": 1000, "gradient_bound": 1.0, "hessian_bound": 0.25, "radius": 3.0, "public": 50.0}
    base = lengths.gradient_error(**given)
    assert all(lengths.gradient_error(**{**given, name: 2 * value}) > base for name, value in given.items())
    for more in (SumLengths(5, 4, 1), SumLengths(5, 1, 9), SumLengths(5, 1, 1, 2.0), SumLengths(50_000, 1, 1)):
        assert more.gradient_error(**given) > base


def test_a_long_noise_vector_counts_with_its_rounding():
    """The sum of the data's gradient, the noise and the quadratic's is rounded at the size of the largest part."""
    from sample_problems import logistic as problem_of

    for noise in (1e3, 1e9):
        problem = problem_of(noise=noise, lengths=SumLengths(4, 1, 1))
        composite = Composite(problem)
        theta = -np.asarray(problem.linear) / problem.strong_convexity
        gradient = composite.smooth(theta)[1]
        data, level = problem.loss.gradient(theta), Fraction(problem.size * 0.1)
        rows = np.stack([gradient, data, problem.linear, theta]).T.tolist()
        errors = [float(Fraction(g) - Fraction(a) - Fraction(b) - level * Fraction(t)) for g, a, b, t in rows]
        error = math.hypot(*errors)
        assert 0 < error <= composite.gradient_error(theta, gradient)
