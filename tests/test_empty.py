"""Where the number of records is protected, none of them is a number like others, nor are zeros: a fit on them is released."""

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp

PROTECTED = dp.Privacy(2.0, adjacency="add-remove")
DELTA = dp.Privacy(2.0, 1e-6, "add-remove")
GRID = {f"{r:g}": dp.load("logistic_regression", features=3, regularization=r) for r in (0.01, 0.1)}
LEARNER = GRID["0.1"]
MECHANISMS = [None, dp.ObjectivePerturbation("gaussian"), dp.OutputPerturbation("gaussian")]
RECORDS = np.arange(41)
EMPTY = {
    "array": (0, np.zeros((0, 3))),
    "list": (0, []),
    "one axis": (0, np.array([])),
    "sparse, no record": (0, sp.csr_array((0, 3))),
    "sparse, one record": (1, sp.csr_array((1, 3))),
    "no entries": (40, sp.csr_array((40, 3))),
    "explicit zeros": (40, sp.csr_array((np.zeros(40), np.zeros(40, dtype=int), RECORDS), shape=(40, 3))),
    "a column of zeros": (40, sp.csr_array((np.full(40, 0.5), np.ones(40, dtype=int), RECORDS), shape=(40, 3))),
}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("kind", EMPTY)
def test_columns_with_nothing_in_them_are_fitted(kind):
    """Whether there is a release must not show that there are no records, or that all entries are 0."""
    count, x = EMPTY[kind]
    y = np.where(np.arange(count) % 2, 1, -1)
    for labels in (y, y.tolist(), y.astype(object)):
        release = dp.solve(LEARNER, {"x": x, "y": labels}, PROTECTED, size=40)
        assert 0 <= dp.evaluate(LEARNER, release, {"x": x, "y": labels}, PROTECTED).error <= 1
        assert dp.cluster(LEARNER, {"x": x, "y": labels}, PROTECTED).centers.shape[1] == 2
    for mechanism, backend in product(MECHANISMS, ("first-order", "conic")):
        release = dp.solve(LEARNER, {"x": x, "y": y}, DELTA, mechanism, backend, size=40)
        assert np.isfinite(release["w"]).all()
    many = dp.load("softmax_regression", features=3, classes=3)
    release = dp.solve(many, {"x": x, "y": np.arange(count) % 3}, DELTA, size=40)
    assert all(np.isfinite(value).all() for value in release.values())


@pytest.mark.parametrize("size", [0, 1])
def test_what_combines_fits_releases_whatever_the_number_of_records(size):
    data = {"x": np.full((size, 3), 0.5), "y": np.ones(size, dtype=int)}
    assert dp.tune(GRID, data, PROTECTED, size=30).choice in GRID
    assert dp.tune_repeated(GRID, data, PROTECTED, size=30, repetitions=dp.Repetitions(mean=2)).choice in GRID
    assert len(list(dp.sweep(LEARNER, data, [PROTECTED, DELTA], size=30))) == 2
    mixture = dp.load("large_margin_gaussian_mixture", features=3, components=2, labels=(-1, 1))
    assert dp.solve_mixture(mixture, data, PROTECTED, size=50).release is not None
