"""Gradients as they are computed, at points of K where pieces of a loss tie: steps go there (docs/theory.md, section 8)."""

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import dpconvex as dp
from dpconvex.fitting.engine import DataEngine
from dpconvex.fitting.verify import analyse
from dpconvex.sums.batch_loss import BatchedLoss
from dpconvex.sums.design import product_apart
from dpconvex.sums.engine import FEWEST, RecordSums
from dpconvex.sums.forms import form_of

SETS = {
    "box": lambda w, radius: [cp.abs(w) <= radius],
    "ball": lambda w, radius: [cp.norm(w) <= radius],
    "simplex": lambda w, radius: [w >= 0, cp.sum(w) == radius],
    "far away": lambda w, radius: [w >= 1e7 * radius, w <= 1e7 * radius + 1],
}
# Of an affine m, and what m is at least and at most: all tie where m is one of these.
PIECES = {
    "maximum": lambda m, low, high: cp.maximum(m, high),
    "three": lambda m, low, high: cp.maximum(low, m, high),
    "largest": lambda m, low, high: cp.max(cp.hstack([m, high, 2 * m - high])),
    "minimum": lambda m, low, high: -cp.minimum(m, low),
    "abs from below": lambda m, low, high: cp.abs(m - low),
    "abs from above": lambda m, low, high: cp.abs(m - high),
    "norm": lambda m, low, high: cp.norm(cp.hstack([m - low, m - high]), 1),
    "infinity": lambda m, low, high: cp.norm(cp.hstack([m - low, 0.5 * (high - m)]), "inf"),
    "Euclidean": lambda m, low, high: cp.norm(cp.hstack([m - low, 2 * (m - low)])),
    "choice": lambda m, low, high: cp.sum_largest(cp.hstack([m, high, low]), 2),
    "hinge": lambda m, low, high: cp.pos(m - high) + cp.pos(low - m),
    "nested": lambda m, low, high: cp.maximum(cp.abs(m - high) + high, m, high),
    "variation": lambda m, low, high: cp.tv(cp.hstack([m, high, m])),
    "piecewise constant": lambda m, low, high: cp.maximum(cp.maximum(m, high), cp.maximum(m, low) + 0 * m),
    "square": lambda m, low, high: cp.square(cp.pos(m - high)) + cp.maximum(m, high),
    "eigenvalue": lambda m, low, high: cp.lambda_max(cp.bmat([[m - high, 0], [0, 0]])),
}
SEEDS = st.integers(0, 2**32 - 1)


def each_gradient(engine, theta):
    """Return the gradients of all records, shape (records, dim); no bit of one record depends on others."""
    coefficients, found = engine._coefficients(theta), [np.zeros((0, len(theta)))]
    for start in range(0, engine.batch.size, FEWEST):
        some = np.arange(start, min(start + FEWEST, engine.batch.size))
        block = engine.read(some, fill=True)
        with np.errstate(all="ignore"):
            slopes = block.slopes(block.forms(coefficients, product_apart), product_apart)[1]
        rows = (slopes[:, None] * block.table().T[None]).reshape(engine.form.map.shape[0], -1)
        found.append((engine.form.map.T @ rows).T[: len(some)])
    return np.concatenate(found)


@settings(max_examples=8, deadline=None)
@given(SEEDS, st.sampled_from(sorted(SETS)), st.sampled_from(sorted(PIECES)), st.sampled_from([1, 2, 5]))
@example(2407019644, "box", "maximum", 1)
@example(1209717818, "box", "minimum", 2)
@example(592207380, "simplex", "three", 5)
@example(3717673525, "simplex", "square", 2)  # its projection from far away missed it
def test_no_computed_gradient_exceeds_its_bounds_at_ties(seed, where, name, dim):
    """Ends of ranges, their neighbours among the numbers, and other numbers nearby are where pieces tie."""
    rng = np.random.default_rng(seed)
    radius, slope = rng.choice([1.0, 0.1, 0.3, 7.0, 1e-3]), rng.choice([1.0, 10.0, 0.1, 1 / 3])
    w = cp.Variable(dim, name="w")
    corner = radius if where == "ball" or dim == 1 else radius * (1 if where == "simplex" else dim)
    if where == "far away":
        ends, shift = np.array([-1.0, 1.0]) * slope * dim, np.full(dim, 1e7 * radius)
    else:
        ends, shift = np.array([-1.0, 1.0]) * slope * corner, np.zeros(dim)
    low, high = ends * (1 + rng.choice([0.0, 0.0, 0.0, 2.0**-52, 1e-15, -1e-15, 1e-12], size=2))
    record = dp.Record(x=dp.Box(-np.ones(dim), np.ones(dim)) if where != "ball" else dp.Ball(dim))
    loss = lambda x: PIECES[name](slope * (x @ (w - shift)), low, high) + 0.01 * (x @ (w - shift))  # noqa: E731
    template = dp.Template(record, loss, 0.0, SETS[where](w, radius))
    analysis, signs = analyse(template), rng.choice([-1.0, 1.0], size=(4, dim))
    x = np.concatenate([signs, -signs, np.ones((1, dim)), -np.ones((1, dim)), np.zeros((1, dim)), np.eye(dim)])
    if where == "ball":
        x = x / np.maximum(np.linalg.norm(x, axis=1), 1)[:, None]
        x = np.concatenate([x, x * (1 - 2.0**-53)])
    batch, space = template.record.validate({"x": x}), analysis.form.space
    sums, engine = RecordSums(form_of(template, space), batch), DataEngine(analysis, batch, len(x), None)
    for start in (*(1e9 * signs), *(1e9 * np.eye(dim)), np.zeros(dim)):
        theta = engine.project(start)
        gradients = each_gradient(sums, theta)
        assert np.linalg.norm(gradients, axis=1).max() <= analysis.gradient_bound * (1 + 1e-12)
        apart = np.linalg.norm(gradients[:, None] - gradients[None], axis=2).max()
        assert apart <= analysis.replacement_bound * (1 + 1e-12)


@pytest.mark.parametrize(("order", "bound"), [(2, 1.0), (3, 1.0), (1.5, 100 ** (1 / 1.5 - 0.5))])
def test_gradients_of_norms_of_tiny_numbers_are_no_longer_than_others(order, bound):
    """A square of 1e-162 has lost its digits: divided by the root of such squares, a gradient had length 6."""
    w, record = cp.Variable(100, name="w"), dp.Record(x=dp.Box(-np.ones(100), np.ones(100)))
    template = dp.Template(record, lambda x: cp.norm(w - x, order), 0.0, [cp.norm(w) <= 1])
    scales = np.array([[1e-162], [1e-161], [3e-324], [1e-300], [1e-290], [1e-145]])
    batch = record.validate({"x": np.append(np.full(99, 1.5), 1.6) * scales})
    analysis = analyse(template)
    found = each_gradient(RecordSums(form_of(template, analysis.form.space), batch), np.zeros(100))
    assert np.linalg.norm(found, axis=1).max() <= analysis.gradient_bound
    assert analysis.gradient_bound == pytest.approx(bound)


@pytest.mark.parametrize("start", [1e3, 1e6, 2.0**52])
def test_rounding_of_a_leaf_is_within_the_ranges_of_losses_with_kinks(start):
    """At 2^52 + 1, three times the parameter is rounded up by 1, and exp is e times as steep."""
    w, record = cp.Variable(name="w"), dp.Record(x=dp.Box(0.0, 1.0))
    loss = lambda x: x * (cp.exp(3 * w - 3 * start) + cp.abs(w - start - 0.5))  # noqa: E731
    template = dp.Template(record, loss, 0.0, [w >= start, w <= start + 1])
    try:
        analysis = analyse(template)
    except dp.NotPrivate:
        assert start == 2.0**52
        return
    engine = RecordSums(form_of(template, analysis.form.space), record.validate({"x": np.ones(1)}))
    for theta in start + np.linspace(0, 1, 101):
        assert each_gradient(engine, np.array([theta]))[0, 0] <= analysis.gradient_bound <= (3 * np.exp(3) + 1) * 1.2


def garbage(x, u, size):
    return (x * size) * u - (x * u) * size


M, UNIT = 2.0**54, np.spacing(1e9)
CANCELLED = {
    "record": lambda x, u, w, W: 0.5 * cp.square(x**3 * w + garbage(x, u, 1e20)),
    "theta": lambda x, u, w, W: 0.5 * cp.square(x**3 * w + (w * 1e18) * u - (w * u) * 1e18),
    "constants": lambda x, u, w, W: cp.maximum(x * w * UNIT + 1e9 - 1e9, 0.8 * UNIT) / UNIT + x**3 * w,
    "apart": lambda x, u, w, W: cp.logistic(x**3 * w + 2 * garbage(x, u, 1e18)),
    "weight": lambda x, u, w, W: cp.exp(garbage(x, u, 1e18) + x) * cp.logistic(w),
    "sum": lambda x, u, w, W: x * cp.maximum(cp.sum(cp.abs(W) + np.array([[M, 0], [-M, 0]])), 2.0),
    "small sum": lambda x, u, w, W: cp.exp(cp.sum(cp.logistic(x * W) + np.array([[2.0**30, 0], [-(2.0**30), 0]]))),
    "product": lambda x, u, w, W: cp.exp(np.ones(2) @ (cp.logistic(x * W) + np.array([[M, 0], [-M, 0]])) @ np.ones(2)),
    "curved": lambda x, u, w, W: cp.exp(2 / UNIT * (UNIT / 2 * cp.logistic(x * w) + 1e9 - 1e9)),
    "largest": lambda x, u, w, W: cp.exp(cp.sum_largest(cp.hstack([cp.logistic(x * w), 1e9, -1e9, -2e9]), 3)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CANCELLED)
def test_losses_whose_terms_cancel_to_less_than_rounding_are_refused(name):
    """Bounds are those of what is left, and programs compute all terms: gradients were 10^4 times as long."""
    w, W = cp.Variable(name="w"), cp.Variable((2, 2), name="W")
    record = dp.Record(x=dp.Box(0.0, 1.0), u=dp.Box(0.0, 1.0))
    loss, inside = lambda x, u: CANCELLED[name](x, u, w, W) + 0 * cp.sum(W), [w >= 0.2, w <= 0.9, W >= 0.1, W <= 0.9]
    with pytest.raises(dp.NotPrivate, match="numbers cancel"):
        analyse(dp.Template(record, loss, 0.05 * cp.square(w), inside))


@pytest.mark.parametrize("scale", [lambda x: 1.0, lambda x: cp.exp(-cp.norm(x))])
def test_differences_of_scores_are_not_refused(scale):
    """A score less itself is 0, however it is computed."""
    W, record = cp.Variable((3, 2), name="W"), dp.Record(x=dp.Ball(3))

    def loss(x):
        scores = (scale(x) * x) @ W
        return cp.max(scores - scores[0] + np.array([0.0, 1.0])) + cp.norm(x - x[1]) * cp.logistic(W[0, 0])

    assert analyse(dp.Template(record, loss, 0.0, [cp.norm(W, "fro") <= 1])).gradient_bound < 4


ZERO = {
    "parameters": lambda u, w: (0.1 * w) * u - (w * u) * 0.1,
    "constant": lambda u, w: 1 + (0.1 * w) * u - (w * u) * 0.1,
    "record": lambda u, w: (0.1 * u) * u - (u * u) * 0.1,
    "weight": lambda u, w: cp.exp(1e20 * ((0.1 * u) * u - (u * u) * 0.1)) * w,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ZERO)
@pytest.mark.parametrize("degree", [1, 3])
def test_what_cancels_in_a_loss_leaves_no_rounding_to_what_enlarges_it(name, degree):
    """Of these scores nothing is left, or nothing that moves: of degree 3, gradients were 10^3 times as long."""
    w, record = cp.Variable(name="w"), dp.Record(x=dp.Box(0.0, 1.0), u=dp.Box(0.0, 1.0))
    loss = lambda x, u: cp.sum(cp.multiply([1e20, 1], cp.logistic(cp.hstack([ZERO[name](u, w), x**degree * w]))))  # noqa: E731
    template = dp.Template(record, loss, 0.05 * cp.square(w), [w >= 0.2, w <= 0.9])
    analysis = analyse(template)
    batch = record.validate({"x": np.full(50, 0.5), "u": np.linspace(0, 1, 50)})
    found = BatchedLoss(template, analysis.form.space, batch).gradient(np.array([0.3]))
    assert np.abs(found).max() <= 50 * analysis.gradient_bound
    assert name == "weight" or analysis.gradient_bound <= 1


@pytest.mark.parametrize("start", [1e9, 1e10, 1e15])
def test_rounding_beside_large_terms_without_parameters_is_foreseen(start):
    """A margin that is added to 1e10 v moves in steps: half of the fits of one data set failed, and none of a neighbour's."""
    w, record = cp.Variable(name="w"), dp.Record(x=dp.Box(0.0, 1.0), v=dp.Box(0.0, 1.0))
    template = dp.Template(record, lambda x, v: cp.logistic(x**3 * w + start * v - start / 2), 0.5 * cp.square(w))
    for seed in range(25):
        data = {"x": np.ones(4), "v": np.array([0.5, 0.0, 0.0, 0.0])}
        assert np.isfinite(dp.solve(template, data, dp.Privacy(1.0), seed=seed)["w"])


AMPLIFIED = {
    "weight": lambda x, u, v, w: cp.exp(garbage(x, u, 4e15) + 1e9 * (v - 1)) * cp.logistic(w),
    "much": lambda x, u, v, w: cp.exp(garbage(x, u, 4e17) + 1e11 * (v - 1)) * cp.logistic(w),
    "leaf": lambda x, u, v, w: 1e-9 * cp.exp(1e9 * v**3 * w - 1e9 + garbage(x, u, 4e15)),
    "sum": lambda x, u, v, w: cp.exp(1e16 * (0.1 * x + 0.2 * u + 0.7 * v) - 1e16) * cp.logistic(w),
}


@pytest.mark.parametrize("name", AMPLIFIED)
def test_rounding_that_passes_is_in_the_ranges_of_what_enlarges_it(name):
    """Small beside the terms that are left, it is large where these are 0: exp was computed as 10^27, and bounded by 1."""
    w, record = cp.Variable(name="w"), dp.Record(x=dp.Box(0.0, 1.0), u=dp.Box(0.0, 1.0), v=dp.Box(0.0, 1.0))
    template = dp.Template(record, lambda x, u, v: AMPLIFIED[name](x, u, v, w), 0.05 * cp.square(w), [w >= 0, w <= 1])
    try:
        analysis = analyse(template)
    except dp.NotPrivate:
        return
    rng, spread = np.random.default_rng(0), 1e-15 if name == "sum" else 1.0
    data = {name: 1 - spread * rng.uniform(0, 1, 3000) for name in "xu"} | {"v": np.ones(3000)}
    engine = RecordSums(form_of(template, analysis.form.space), record.validate(data))
    assert np.abs(each_gradient(engine, np.ones(1))).max() <= analysis.gradient_bound
