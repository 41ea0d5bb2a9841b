"""Differences of gradients between neighbours: vertices, lengths and dimensions."""

import math
from collections import Counter

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.neighbour_differences import Difference, Slopes, differences, tally
from dpconvex.evaluation.batch_loss import BatchedLoss
from dpconvex.release.verify import analyse

ADJACENCIES = ("replace-one", "add-remove")


def of(problem: str, **options: object) -> Analysis:
    return analyse(dp.load(problem, **options))


def vertices(item: Difference) -> dict[float, int]:
    assert item.vertices is not None
    return {round(float(length), 5): int(count) for length, count in zip(*item.vertices, strict=True)}


def test_a_hinge_that_appears_has_one_vertex_and_a_replaced_one_three() -> None:
    analysis = of("huber_svm", features=4)
    (alone,) = differences(analysis, "add-remove")
    assert (alone.dimension, vertices(alone)) == (1, {1.0: 1})
    (pair,) = differences(analysis, "replace-one")
    assert (pair.dimension, vertices(pair)) == (2, {1.0: 2, 2.0: 1})
    assert alone.slopes == pair.slopes == Slopes(0.0, pytest.approx(1.0), 0.0)
    assert pair.behind == pytest.approx([0.0, 1.0])


def test_a_logistic_record_has_slopes_of_its_own() -> None:
    analysis = of("logistic_regression", features=4, radius=2.0)
    (alone,) = differences(analysis, "add-remove")
    assert alone.slopes == Slopes(0.0, pytest.approx(2.0), pytest.approx(4.0))
    assert vertices(alone) == {2.0: 1}
    (pair,) = differences(analysis, "replace-one")
    assert vertices(pair) == {2.0: 2, 4.0: 1}
    assert pair.behind == pytest.approx([0.0, 2.0])


@pytest.mark.parametrize("classes", [2, 3, 6])
def test_softmax_has_a_vertex_for_each_other_class(classes: int) -> None:
    analysis = of("softmax_regression", features=3, classes=classes)
    (alone,) = differences(analysis, "add-remove")
    assert alone.dimension == min(classes - 1, 3 * (classes - 1)) == analysis.row_dimension
    if classes == 2:
        return
    assert vertices(alone) == {round(math.sqrt(2), 5): classes - 1}
    for pair in differences(analysis, "replace-one"):
        assert pair.length == pytest.approx(2 * math.sqrt(2))
        assert sum(vertices(pair).values()) <= (classes - 1) ** 2 + 2 * (classes - 1)
        assert vertices(pair)[round(math.sqrt(2), 5)] == 2 * (classes - 1)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_summed_margins_span_a_zonotope(classes: int) -> None:
    analysis = of("large_margin_gaussian", features=3, classes=classes, competitors="summed")
    (item,) = differences(analysis, "add-remove")
    expected = {round(math.sqrt(k * (k + 1)), 5): math.comb(classes - 1, k) for k in range(1, classes)}
    assert vertices(item) == expected
    assert item.dimension == classes - 1


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


def test_a_tally_never_shortens() -> None:
    rng = np.random.default_rng(3)
    squares = np.concatenate([rng.random(1000) * 10.0 ** rng.integers(-8, 8, 1000), [0.0, 0.0]])
    lengths, counts = tally(squares)
    assert counts.sum() == 1000
    exact = np.sort(np.sqrt(squares[squares > 0]))
    rounded = np.repeat(lengths, counts.astype(int))
    assert (rounded >= exact).all()
    assert (rounded <= exact * (1 + 3e-7)).all()
    assert Counter(tally(np.array([2.0, 2.0 * (1 + 1e-15)]))[1].tolist()) == Counter([2.0])
