"""What combines releases takes partitions: the same bits as in memory where sums are whole numbers, else up to rounding."""

import numpy as np
import pytest
from learners_of_tests import X, Y, pieces

import dpconvex as dp

DATA = {"x": X, "y": Y}
P, Q, ADDED = dp.Privacy(2.0), dp.Privacy(2.0, 1e-6), dp.Privacy(2.0, adjacency="add-remove")
LEARNER = dp.load("logistic_regression", features=3)
HUBER = dp.load("huber_regression", features=3)
MODEL = dp.Release({"w": [1.0, 0.2, 0.0]}, not_private_because="a test", predictor=LEARNER.predict)
LINE = dp.Release({"w": [0.5, 0.0, 0.1]}, not_private_because="a test", predictor=HUBER.predict)
GRID = {f"{r:g}": dp.load("logistic_regression", features=3, regularization=r) for r in (1e-3, 0.1)}


def cut(data=DATA):
    return dp.Partitions(pieces(data))


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize(("template", "model"), [(LEARNER, MODEL), (HUBER, LINE)], ids=["labels", "numbers"])
def test_an_evaluation_has_the_bits_of_one_in_memory(adjacency, template, model):
    data = DATA if template is LEARNER else {"x": X, "y": np.clip(X[:, 0], -1, 1)}
    promise = dp.Privacy(1.0, adjacency=adjacency)
    found, expected = (dp.evaluate(template, model, some, promise, seed=3) for some in (cut(data), data))
    assert found == expected


@pytest.mark.parametrize(
    ("privacy", "options"),
    [(P, {}), (ADDED, {"size": 700}), (P, {"split": False}), (Q, {"whitening": True})],
    ids=["split", "added", "all", "whitened"],
)
def test_tuning_is_the_same(privacy, options):
    expected = dp.tune(GRID, DATA, privacy, seed=4, **options)
    budget = dp.Budget(privacy)
    found = dp.tune(GRID, cut(), privacy, seed=4, budget=budget, **options)
    assert found.choice == expected.choice
    np.testing.assert_allclose(found.release["w"], expected.release["w"], rtol=0, atol=1e-6)
    assert len(budget.entries) == 1


@pytest.mark.parametrize("group", ["y", None])
@pytest.mark.parametrize("privacy", [Q, ADDED], ids=["replaced", "added"])
def test_a_clustering_has_the_bits_of_one_in_memory(privacy, group):
    expected = dp.cluster(LEARNER, DATA, privacy, 3, group=group, seed=1)
    budget = dp.Budget(privacy)
    found = dp.cluster(LEARNER, cut(), privacy, 3, group=group, seed=1, budget=budget)
    np.testing.assert_array_equal(found.centers, expected.centers)
    assert len(budget.entries) == 1
