"""Differences of gradients between neighbours: vertices, lengths and dimensions."""

import dataclasses
import math
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import norm

import dpconvex as dp
from dpconvex.calculus.neighbour_differences import Difference, Slopes, differences, tally
from dpconvex.evaluation.batch_loss import BatchedLoss
from dpconvex.release.verify import analyse

ADJACENCIES = ("replace-one", "add-remove")


def vertices(item: Difference) -> dict[float, int]:
    assert item.vertices is not None
    return {round(float(length), 5): int(count) for length, count in zip(*item.vertices, strict=True)}


ROOT2 = round(math.sqrt(2), 5)
# Problem, options, dimension; vertices of one record, and (some) of a replacement; slopes, and what is behind.
EXPECTED: list[tuple[str, dict[str, Any], int, dict[float, int], dict[float, int], Slopes | None, list[float]]] = [
    ("huber_svm", {}, 1, {1.0: 1}, {1.0: 2, 2.0: 1}, Slopes(0.0, 1.0, 0.0), [0.0, 1.0]),
    ("logistic_regression", {"radius": 2.0}, 1, {2.0: 1}, {2.0: 2, 4.0: 1}, Slopes(0.0, 2.0, 4.0), [0.0, 2.0]),
    ("softmax_regression", {"classes": 3}, 2, {ROOT2: 2}, {ROOT2: 4}, None, []),
    ("softmax_regression", {"classes": 6}, 5, {ROOT2: 5}, {ROOT2: 10}, None, []),
    *(
        (
            "large_margin_gaussian",
            {"classes": classes, "competitors": "summed"},
            classes - 1,
            {round(math.sqrt(k * (k + 1)), 5): math.comb(classes - 1, k) for k in range(1, classes)},  # a zonotope
            {},
            None,
            [],
        )
        for classes in (2, 3, 5)
    ),
]


@pytest.mark.parametrize("case", EXPECTED, ids=str)
def test_vertices_are_those_of_the_theory(case: Any) -> None:
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
def test_no_difference_is_longer_or_leaves_its_subspace(problem: str, options: dict[str, int], adjacency: str) -> None:
    template = dp.load(problem, features=2, **options)
    analysis = analyse(template)
    rng = np.random.default_rng(1)
    items = differences(analysis, adjacency)
    longest = max(item.length for item in items)
    for _ in range(20):
        batch = template.record.sample(2, rng)
        loss = BatchedLoss(template, analysis.form.space, batch)
        seen = []
        for _ in range(24):
            theta = rng.normal(size=analysis.form.space.dim) * rng.choice([0.3, 3.0, 30.0])
            gradients = [loss.clipped_gradient(theta, np.inf, one) for one in np.eye(2, dtype=bool)]
            seen.append(gradients[0] - gradients[1] if adjacency == "replace-one" else gradients[0])
        table = np.array(seen)
        assert np.linalg.norm(table, axis=1).max() <= longest * (1 + 1e-9)
        rank = np.linalg.matrix_rank(table, tol=1e-9)
        assert rank <= max(item.dimension for item in items)


def test_labels_with_different_losses_are_paired_in_both_orders() -> None:
    w = cp.Variable(2, name="w")
    record = dp.Record(x=dp.Ball(2), y=dp.Choice([0, 1]))
    template = dp.Template(record, lambda x, y: cp.logistic(w @ x) if y else 2 * dp.huber_hinge(1 - w @ x, 0.5))
    assert len(differences(analyse(template), "replace-one")) == 4


def test_a_tally_never_shortens() -> None:
    rng = np.random.default_rng(3)
    squares = np.concatenate([rng.random(1000) * 10.0 ** rng.integers(-8, 8, 1000), [0.0, 0.0]])
    lengths, counts = tally(squares)
    assert counts.sum() == 1000
    exact = np.sort(np.sqrt(squares[squares > 0]))
    rounded = np.repeat(lengths, counts.astype(int))
    assert (rounded >= exact).all()
    assert (rounded <= exact * (1 + 3e-7)).all()


# Losses of one parameter, and the slope of the record that pulls most.
LINE: dict[str, tuple[dict[str, dp.Box], Any, Any]] = {
    "a margin and a label that is a number": (
        {"t": dp.Box(0.0, 5.0)},
        lambda w, t: cp.logistic(w) - t * w,
        lambda w: expit(w) - 5,
    ),
    "soft labels": (
        {"x": dp.Box(-1.0, 1.0), "t": dp.Box(0.0, 1.0)},
        lambda w, x, t: cp.logistic(x * w) - t * x * w,
        lambda w: expit(w) - 1,
    ),
    "terms of different degrees": (
        {"t": dp.Box(0.0, 5.0)},
        lambda w, t: 1.25 * cp.log_sum_exp(cp.hstack([0.52 * t * w, 0.02 * w - 0.75])) - 1.25 * 0.52 * t * w,
        lambda w: -1.25 * 2.58 * expit(-2.58 * w - 0.75),
    ),
    "an offset beside a margin": (
        {"x": dp.Box(-1.0, 1.0)},
        lambda w, x: cp.logistic(x * w) + 50 * w,
        lambda w: expit(w) + 50,
    ),
}


@pytest.mark.parametrize("name", LINE)
def test_one_parameter_may_be_seen_through_several_functions_of_a_record(name: str) -> None:
    """Their rows lie on one line, and are no multiples of one row: the exact law of the noisy minimiser keeps the promise."""
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
