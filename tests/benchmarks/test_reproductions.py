"""Reproductions of published tables: the mix of labels, clear refusals without data, and an entry of a table."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.papers import chaudhuri
from benchmarks.papers.folds import (
    Records,
    certified,
    errors,
    folds,
    published,
)
from dpconvex import Privacy, Release


def toy() -> Records:
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True) * (1 + 1e-12)
    return Records(sp.csr_matrix(x), np.where(x[:, 0] > 0, 1, -1))


def test_ways_run_and_unproved_ones_are_left_out() -> None:
    fold = next(folds(toy(), 2))
    assert len(errors(published("Huber", 0.1, fold.train, 10.0, 2, 3), fold.test)) == 3
    assert max(errors(certified("logistic", 0.1, fold.train, Privacy(30.0), 0.0, 2), fold.test)) < 0.3
    releases = list(certified("Huber", 1e-9, fold.train, Privacy(0.1), 0.0, 1))
    assert releases == []
    (release,) = certified("Huber", 1e-9, fold.train, Privacy(0.1, 1e-6, "add-remove"), None, 1)
    assert release.spent == Privacy(0.1, 1e-6, "add-remove")
    assert release.certificate is not None
    assert release.certificate.added > 0


def test_an_interrupted_table_goes_on(tmp_path: Path) -> None:
    fold, calls = next(folds(toy(), 2)), []

    def run(draws: int) -> Iterator[Release]:
        calls.append(draws)
        return published("Huber", 0.1, fold.train, 10.0, 2, draws)

    way = chaudhuri.Way("counted", run)
    for draws, expected in ((2, [2]), (2, [2]), (5, [2, 3])):
        log = chaudhuri.Log(tmp_path / "log.csv", "learner", "way", "epsilon")
        log.run(("Huber", "counted", 10.0), 0, way, draws, test=fold.test)
        assert calls == expected
    again = chaudhuri.Log(tmp_path / "log.csv", "learner", "way", "epsilon")
    assert again.found.keys() == {("Huber", "counted", 10.0)}
    assert again.mean("Huber", "counted", 10.0) == pytest.approx(log.mean("Huber", "counted", 10.0), abs=1e-6)
    assert len(again.found["Huber", "counted", 10.0][0]) == 5
    assert np.isnan(again.mean("Huber", "other", 10.0))
