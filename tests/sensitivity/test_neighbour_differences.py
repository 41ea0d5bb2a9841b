"""Differences of gradients between neighbours: vertices, lengths and dimensions."""

import dataclasses
import math

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

import dpconvex as dp
from dpconvex.fitting.verify import analyse
from dpconvex.sensitivity.neighbour_differences import Slopes, differences, tally
from dpconvex.sums.batch_loss import BatchedLoss

ADJACENCIES = ("replace-one", "add-remove")


def vertices(item):
    assert item.vertices is not None
    return {round(float(length), 5): int(count) for length, count in zip(*item.vertices, strict=True)}


ROOT2 = round(math.sqrt(2), 5)
# Problem, options, dimension; vertices of one record, and (some) of a replacement; slopes, and what is behind.
EXPECTED = [
    ("huber_svm", {}, 1, {1.0: 1}, {1.0: 2, 2.0: 1}, Slopes(0.0, 1.0, 0.0), [0.0, 1.0]),
    ("logistic_regression", {"radius": 2.0}, 1, {2.0: 1}, {2.0: 2, 4.0: 1}, Slopes(0.0, 2.0, 4.0), [0.0, 2.0]),
    *(("softmax_regression", {"classes": c}, c - 1, {ROOT2: c - 1}, {ROOT2: 2 * c - 2}, None, []) for c in (3, 6)),
]
for c in (2, 3, 5):  # a zonotope
    zonotope = {round(math.sqrt(k * (k + 1)), 5): math.comb(c - 1, k) for k in range(1, c)}
    EXPECTED.append(("large_margin_gaussian", {"classes": c, "competitors": "summed"}, c - 1, zonotope, {}, None, []))


@pytest.mark.parametrize("case", EXPECTED, ids=str)
def test_vertices_are_those_of_the_theory(case):
    problem, options, dimension, appearing, replaced, slopes, behind = case
    analysis = analyse(dp.load(problem, features=4, **options))
    (alone,) = differences(analysis, "add-remove")
    assert (alone.dimension, vertices(alone)) == (dimension, appearing)
    pairs = differences(analysis, "replace-one")
    assert not replaced or all(replaced.items() <= vertices(pair).items() for pair in pairs)
    if slopes is not None:
        (pair,) = pairs
        assert pair.slopes == alone.slopes == Slopes(*map(pytest.approx, dataclasses.astuple(slopes)))
        assert pair.behind == pytest.approx(behind)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize(
    ("problem", "options"),
    [
        ("logistic_regression", {}),
        ("huber_svm", {}),
        ("softmax_regression", {"classes": 3}),
        ("large_margin_gaussian", {"classes": 3}),
        ("large_margin_gaussian_mixture", {"classes": 2}),
    ],
)
def test_no_difference_is_longer_or_leaves_its_subspace(problem, options, adjacency):
    template = dp.load(problem, features=2, **options)
    analysis = analyse(template)
    rng = np.random.default_rng(1)
    items = differences(analysis, adjacency)
    for _ in range(20):
        loss, seen = BatchedLoss(template, analysis.form.space, template.record.sample(2, rng)), []
        for _ in range(24):
            theta = rng.normal(size=analysis.form.space.dim) * rng.choice([0.3, 3.0, 30.0])
            gradients = [loss.clipped_gradient(theta, np.inf, one) for one in np.eye(2, dtype=bool)]
            seen.append(gradients[0] - gradients[1] if adjacency == "replace-one" else gradients[0])
        assert np.linalg.norm(seen, axis=1).max() <= max(item.length for item in items) * (1 + 1e-9)
        assert np.linalg.matrix_rank(np.array(seen), tol=1e-9) <= max(item.dimension for item in items)


def test_labels_with_different_losses_are_paired_in_both_orders():
    w = cp.Variable(2, name="w")
    record = dp.Record(x=dp.Ball(2), y=dp.Choice([0, 1]))
    template = dp.Template(record, lambda x, y: cp.logistic(w @ x) if y else 2 * dp.huber_hinge(1 - w @ x, 0.5))
    assert len(differences(analyse(template), "replace-one")) == 4


def test_a_tally_never_shortens():
    rng = np.random.default_rng(3)
    squares = np.concatenate([rng.random(1000) * 10.0 ** rng.integers(-8, 8, 1000), [0.0, 0.0]])
    lengths, counts = tally(squares)
    assert counts.sum() == 1000
    exact = np.sort(np.sqrt(squares[squares > 0]))
    rounded = np.repeat(lengths, counts.astype(int))
    assert (rounded >= exact).all()
    assert (rounded <= exact * (1 + 3e-7)).all()


# Losses of one parameter, and the slope of the record that pulls most.
UNIT, FAR = dp.Box(-1.0, 1.0), dp.Box(0.0, 5.0)
LINE = {
    "a margin and a numeric label": ({"t": FAR}, lambda w, t: cp.logistic(w) - t * w, lambda w: expit(w) - 5),
    "soft labels": (
        {"x": UNIT, "t": dp.Box(0.0, 1.0)},
        lambda w, x, t: cp.logistic(x * w) - t * x * w,
        lambda w: expit(w) - 1,
    ),
    "terms of different degrees": (
        {"t": FAR},
        lambda w, t: 1.25 * cp.log_sum_exp(cp.hstack([0.52 * t * w, 0.02 * w - 0.75])) - 1.25 * 0.52 * t * w,
        lambda w: -1.25 * 2.58 * expit(-2.58 * w - 0.75),
    ),
    "an offset beside a margin": ({"x": UNIT}, lambda w, x: cp.logistic(x * w) + 50 * w, lambda w: expit(w) + 50),
}


@pytest.mark.parametrize("name", LINE)
def test_one_parameter_may_be_seen_through_several_functions_of_a_record(name):
    """Their rows lie on one line, and are no multiples of one row: the exact law of the noisy minimiser keeps the guarantee."""
    fields, loss, slope = LINE[name]
    w = cp.Variable(name="w")
    template = dp.Template(dp.Record(**fields), lambda **z: loss(w, **z), 0.01 * cp.square(w))
    promise = dp.Privacy(1.0, 1e-6, "add-remove")
    certificate = dp.verify(template, promise, 1000, dp.ObjectivePerturbation("gaussian"))
    theta, sigma, mu = np.linspace(-40, 40, 400_001), certificate.noise_scale, certificate.strong_convexity
    one, none = (np.diff(norm.cdf((mu * theta + pull) / sigma)) for pull in (slope(theta), 0.0))
    epsilon = certificate.noise_epsilon + certificate.jacobian_epsilon
    for first, second in ((one, none), (none, one)):
        assert np.maximum(first - np.exp(epsilon) * second, 0).sum() <= certificate.noise_delta
