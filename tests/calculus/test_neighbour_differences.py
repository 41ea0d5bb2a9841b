"""Differences of gradients between neighbours: vertices, lengths and dimensions."""

import dataclasses
import math
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

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
            gradients = loss.records(theta)[1]
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
