"""Sums over records: what they are, and how far rounding can take them, against exact arithmetic."""

import math
from fractions import Fraction
from itertools import product as pairs

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from sample_problems import logistic as problem_of

import dpconvex as dp
from dpconvex.data.batch import Batch
from dpconvex.expressions.atoms.arithmetic import contracted
from dpconvex.expressions.parameter_space import Space
from dpconvex.fitting.verify import analyse
from dpconvex.numerics import UNIT_ROUNDOFF
from dpconvex.sums import clipping, engine
from dpconvex.sums.batch_loss import BatchedLoss
from dpconvex.sums.clipping import clip_gradients
from dpconvex.sums.design import product_apart
from dpconvex.sums.forms import form_of
from dpconvex.sums.programs import LANES
from dpconvex.util.summation import PIECE, SumLengths

LONG = np.longdouble


def test_apart_no_record_depends_on_others():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 100, 1)), rng.normal(size=(100, 7, 5 * LANES))
    whole = contracted("ij", "jk", "ik", a, b)
    assert whole == pytest.approx(np.einsum("ij,jkz->ikz", a[..., 0], b))
    assert (contracted("ij", "jk", "ik", a, b[..., LANES : 2 * LANES]) == whole[..., LANES : 2 * LANES]).all()
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


LEARNERS = {"logistic_regression": (logistic, {}, [-1, 1]), "softmax_regression": (softmax, {"classes": 6}, range(6))}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "form"), [*((n, "blocks") for n in LEARNERS), ("logistic_regression", "sparse")])
@pytest.mark.parametrize("data", ["flat", "equal", "random"])
def test_gradients_err_less_than_is_claimed(name, data, form):
    """With equal records all errors point the same way; long parameters whose inner products cancel make them large."""
    exact, more, labels = LEARNERS[name]
    template, d = dp.load(name, regularization=1e-3, **more, features=20), 20
    analysis, rng = analyse(template), np.random.default_rng(0)
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
    w, record = cp.Variable(d, name="w"), dp.Record(x=dp.Ball(d), s=dp.Box(0.0, 1.0))
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


@pytest.mark.sampled(2)
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
    for noise in (1e3, 1e9):
        problem = problem_of(noise=noise, lengths=SumLengths(4, 1, 1))
        problem = problem
        theta = -np.asarray(problem.linear) / problem.strong_convexity
        gradient = problem.smooth(theta)[1]
        data, level = problem.loss.gradient(theta), Fraction(problem.size * 0.1)
        rows = np.stack([gradient, data, problem.linear, theta]).T.tolist()
        errors = [float(Fraction(g) - Fraction(a) - Fraction(b) - level * Fraction(t)) for g, a, b, t in rows]
        error = math.hypot(*errors)
        assert 0 < error <= problem.gradient_error(theta, gradient)


# Clipped sums: norms from the core's forms against gradients that are written down, and what one record moves them by
def mixed():
    """Several monomials share a parameter, and parameters share a form."""
    w, c = cp.Variable(3, name="w"), cp.Variable(name="c")

    def loss(x):
        return cp.logistic((x[0] + x[1]) * w[0] + x[2] * w[1] - 2 * x[3] * w[1] + x[0] * w[2] + c)

    return dp.Template(dp.Record(x=dp.Ball(4)), loss, cp.sum_squares(w))


def cubic():
    """Leaves of a degree that has no shared forms."""
    w = cp.Variable(2, name="w")
    return dp.Template(dp.Record(x=dp.Ball(2)), lambda x: cp.logistic(x[0] * x[1] * x[0] * w[0] + x[1] * w[1]), 0.0)


TEMPLATES = {
    "softmax": lambda: dp.load("softmax_regression", features=4, classes=4),
    "hinge": lambda: dp.load("hinge_svm", features=3),
    "quadratic": lambda: dp.load("large_margin_gaussian", features=3, classes=3),
    "ordinal": lambda: dp.load("ordinal_regression", features=3),
    "matrix": lambda: dp.load("gaussian_precision", features=3),
    "mixed": mixed,
    "cubic": cubic,
}


def public_table():
    """Leaves of a degree that has no shared forms, behind a public matrix."""
    w, table = cp.Variable(2, name="w"), np.random.default_rng(5).normal(size=(3, 5))

    def loss(x):
        return cp.sum(cp.pos(table @ cp.hstack([x[0] ** 3 * w, x @ w, x * w[0]])))

    return dp.Template(dp.Record(x=dp.Ball(2)), loss, 0.0)


def long_rows():
    w = cp.Variable(150, name="w")
    return dp.Template(dp.Record(x=dp.Ball(150), u=dp.Box(-2.0, 2.0)), lambda x, u: cp.abs(x @ w - u), 0.0)


def each(template, space, batch, theta):
    some = (batch.chosen(one) for one in np.eye(batch.size, dtype=bool))
    return np.array([BatchedLoss(template, space, one).gradient(theta) for one in some])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", TEMPLATES)
def test_clipped_sums_are_those_of_single_gradients(name):
    template, rng = TEMPLATES[name](), np.random.default_rng(0)
    batch, space = template.record.sample(200, rng), Space(template.variables)
    loss = BatchedLoss(template, space, batch)
    for size in (0.1, 3.0):
        theta = size * rng.normal(size=space.dim)
        gradients = each(template, space, batch, theta)
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
        for clip in (0.5 * np.median(norms) + 1e-3, 10 * norms.max() + 1):
            short = gradients * np.minimum(1.0, clip / np.maximum(norms, 1e-300))
            chosen = rng.random(200) < 0.3
            for some in (None, chosen):
                expected = short.sum(axis=0) if some is None else short[some].sum(axis=0)
                assert loss.clipped_gradient(theta, clip, some) == pytest.approx(expected, rel=1e-7, abs=1e-7 * clip)


def test_many_blocks_and_sparse_records():
    template, rng = dp.load("softmax_regression", features=30, classes=5), np.random.default_rng(1)
    x = 0.2 * rng.normal(size=(30_000, 30)) * (rng.random((30_000, 30)) < 0.2)
    y, space, some = rng.integers(0, 5, size=30_000), Space(template.variables), rng.random(30_000) < 0.01
    theta = rng.normal(size=space.dim)
    batches = [template.record.validate({"x": table, "y": y}, clip=True) for table in (x, sp.csr_array(x))]
    losses = [BatchedLoss(template, space, batch) for batch in batches]
    for chosen in (None, some):
        found = [loss.clipped_gradient(theta, 0.3, chosen) for loss in losses]
        assert found[0] == pytest.approx(found[1], rel=1e-9, abs=1e-7)


UNITS = np.array([1e-8, 1e-3, 1.0, 1e7])


def two_units(w, x):
    return (x[0] / UNITS[0] + x[3] / UNITS[3]) * w[0] + (x[1] / UNITS[1] + x[2] / UNITS[2]) * w[1] + x[2] * w[2] + w[3]


def units_of_scores(w, x):
    return [x @ cp.multiply(1 / UNITS, w), 1e-6 * x @ cp.multiply(1 / UNITS, w[::-1]), 0.0]


@pytest.mark.parametrize("scores", [two_units, units_of_scores])
def test_units_of_features_do_not_shorten_gradients(scores):
    w, rng = cp.Variable(4, name="w"), np.random.default_rng(3)

    def loss(x):
        found = scores(w, x)
        return cp.log_sum_exp(cp.hstack(found)) if isinstance(found, list) else cp.logistic(found)

    template = dp.Template(dp.Record(x=dp.Box(-2 * UNITS, 2 * UNITS)), loss, 0.0)
    batch, space = template.record.sample(50, rng), Space(template.variables)
    whole = BatchedLoss(template, space, batch)
    assert whole.monomials > 1
    theta = rng.normal(size=space.dim) / 10
    gradients = each(template, space, batch, theta)
    norms = np.linalg.norm(gradients, axis=1)
    for k in range(50):
        alone = np.arange(50) == k
        for clip, factor in ((norms[k] * (1 + 1e-7), 1.0), (norms[k] / 3, 1 / 3)):
            found = whole.clipped_gradient(theta, clip, alone)
            assert found == pytest.approx(factor * gradients[k], rel=1e-7, abs=1e-7 * norms[k])
            assert np.linalg.norm(found) <= clip * (1 + 1e-12)


@pytest.mark.parametrize("name", ["large_margin_gaussian", "large_margin_gaussian_mixture"])
def test_gradients_of_many_classes_are_not_written_down(name, monkeypatch):
    """Of 26 classes they are 8,000 numbers.  Rounding in a basis of the forms hid that they need not be: fits took minutes."""
    monkeypatch.delattr(engine, "sum_one_by_one")
    template, rng = dp.load(name, features=16, classes=4), np.random.default_rng(0)
    space, batch = Space(template.variables), template.record.sample(4, rng)
    theta, loss = rng.normal(size=space.dim), BatchedLoss(template, space, batch)
    gradients = each(template, space, batch, theta)
    norms = np.linalg.norm(gradients, axis=1)
    expected = (gradients / norms[:, None]).sum(axis=0) * norms.min() / 2
    assert loss.clipped_gradient(theta, norms.min() / 2) == pytest.approx(expected, rel=1e-7, abs=1e-7 * norms.min())


def test_gradients_of_a_million_parameters_are_no_longer_than_the_clip():
    """Rounding in the sum of their squares, by which lengths are those of scores, was not allowed for."""
    w, clip = cp.Variable(10**6, name="w"), 1e-3
    template = dp.Template(dp.Record(x=dp.Box(-1.0, 1.0)), lambda x: cp.logistic(x * cp.sum(0.3 * w)), 0.0)
    loss = BatchedLoss(template, Space(template.variables), template.record.validate({"x": np.array([1.0])}))
    values, counts = np.unique(loss.clipped_gradient(np.zeros(10**6), clip), return_counts=True)
    squared = sum(int(count) * Fraction(value) ** 2 for value, count in zip(values, counts, strict=True))
    assert 1 - 1e-8 < squared / Fraction(clip) ** 2 <= 1


def test_a_loss_that_overflows_moves_the_sum_by_the_clip_at_most():
    w = cp.Variable(1, name="w")
    template = dp.Template(dp.Record(x=dp.Ball(1, radius=50.0)), lambda x: cp.exp(x @ w), 0.0)
    space = Space(template.variables)
    batch = template.record.validate({"x": [[50.0], [1.0], [0.0], [20.0]]})
    loss = BatchedLoss(template, space, batch)
    for size in (1.0, 20.0, 1e3, 1e300):
        found = loss.clipped_gradient(np.array([size]), 0.25)
        assert np.isfinite(found).all()
        assert np.linalg.norm(found) <= 1.0


@pytest.mark.parametrize("clip", [1e-75, 1.0])
def test_squares_that_underflow_leave_no_gradient_longer_than_the_clip(clip):
    w = cp.Variable(2, name="w")
    template = dp.Template(dp.Record(x=dp.Ball(2), y=dp.Box(-1e75, 1e75)), lambda x, y: cp.square(x @ w - y), 0.0)
    batch = template.record.validate({"x": [[1e-162, 0.0], [1e-140, 0.0]], "y": [1e75, 1e75]})
    found = BatchedLoss(template, Space(template.variables), batch).clipped_gradient(np.zeros(2), clip)
    assert np.linalg.norm(found) <= 2 * clip
    with pytest.raises(dp.TemplateError, match="from 1e-75"):
        dp.NoisyGradientDescent(clip=1e-99)


def clipped_each(monkeypatch, template, batch, rows, theta):
    """Clipped gradients of some records as they are added up, in the order of the rows."""
    fields = {name: column[rows] for name, column in batch.fields.items()}
    loss = BatchedLoss(template, Space(template.variables), Batch(fields, batch.group[rows]))
    found = []

    def noted(function, into):
        return lambda *arguments: into.append(function(*arguments)) or into[-1]

    for module in (clipping, engine):
        monkeypatch.setattr(module, "clip_gradients", noted(clip_gradients, found))
    monkeypatch.setattr(engine, "LARGE", np.inf)  # threads end in any order
    loss.clipped_gradient(theta, 0.1)
    return np.concatenate(found, axis=1)[:, : len(rows)].T


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*TEMPLATES, "table", "long", "sparse"])
def test_a_clipped_gradient_has_the_same_bits_beside_any_records(name, monkeypatch):
    more = {"table": public_table, "long": long_rows, "sparse": TEMPLATES["softmax"]}
    template, rng = (more | TEMPLATES)[name](), np.random.default_rng(4)
    batch = template.record.sample(300, rng)
    if name == "sparse":
        batch = Batch({"x": sp.csr_array(batch.fields["x"] * (rng.random((300, 4)) < 0.5))}, batch.group)
    theta = 0.3 * rng.normal(size=Space(template.variables).dim)
    expected = clipped_each(monkeypatch, template, batch, np.arange(300), theta)
    assert len(np.unique(expected, axis=0)) > 20
    one_label = np.flatnonzero(batch.group == batch.group[0])[:3]
    for rows in ([7], one_label, np.arange(1, 300), rng.permutation(300)[:77], rng.integers(0, 300, size=9001)):
        found = clipped_each(monkeypatch, template, batch, np.asarray(rows), theta)
        assert (found == expected[rows]).all(), len(rows)


@pytest.mark.parametrize("many", [1, 300])
def test_sums_of_terms_that_cancel_err_less_than_is_claimed(many):
    """Slopes x - c are what is left of sums of x and of c: these are long, and rounded."""
    c, size = 1e9, 64 * PIECE
    w, v = cp.Variable(name="w"), cp.Variable(many, name="v")
    record = dp.Record(x=dp.Box(c - 1, c + 1), t=dp.Box(0.0, 1.0))
    template = dp.Template(record, lambda x, t: (x - c) * w + t * cp.sum(v), cp.sum_squares(w) + cp.sum_squares(v))
    analysis, x = analyse(template), np.random.default_rng(0).uniform(c - 1, c, 8)
    for each in x.tolist():
        batch = record.validate({"x": np.full(size, each), "t": np.zeros(size)})
        found = BatchedLoss(template, analysis.form.space, batch).gradient(np.zeros(many + 1))
        exact = size * (Fraction(each) - Fraction(c))
        error = abs(float(Fraction(float(found[0])) - exact))
        assert error <= analysis.form.lengths.gradient_error(size, analysis.gradient_bound, 0.0, 0.0, 0.0)
    # Each of both sums may be as long as this, and err by a unit for each addition.
    longest = 2 * PIECE * UNIT_ROUNDOFF * size * c
    assert longest <= analysis.form.lengths.gradient_error(size, analysis.gradient_bound, 0.0, 0.0, 0.0)


def test_forms_that_labels_share_keep_the_digits_of_large_fields():
    """Labels turn x and 1 into 2x - c and c: beside c, a small error in the 2 is lost, and x multiplies it."""
    size, c, w = 2 * PIECE, np.array([-1.2, -1e5 - 0.3]), cp.Variable(2, name="w")
    record = dp.Record(x=dp.Box([-1.0, -1e5], [-0.5, -1e5 + 1]), y=dp.Choice([-1, 1]))
    template = dp.Template(record, lambda x, y: (x + y * (x - c)) @ w, cp.sum_squares(w))
    analysis, x = analyse(template), np.array([-0.7, -1e5 + 1 / 3])
    for label in (-1, 1):
        batch = record.validate({"x": np.tile(x, (size, 1)), "y": np.full(size, label)})
        found = BatchedLoss(template, analysis.form.space, batch).gradient(np.zeros(2)).tolist()
        exact = [Fraction(a) + label * (Fraction(a) - Fraction(b)) for a, b in zip(x.tolist(), c.tolist(), strict=True)]
        error = max(abs(float(Fraction(a) - size * b)) for a, b in zip(found, exact, strict=True))
        assert error <= analysis.form.lengths.gradient_error(size, analysis.gradient_bound, 0.0, 0.0, 0.0)
