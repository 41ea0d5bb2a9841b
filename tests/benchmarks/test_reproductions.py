"""Reproductions of published tables: the mix of labels, clear refusals without data, and an entry of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.papers import chaudhuri
from benchmarks.papers.chaudhuri_curves import tuned
from benchmarks.papers.folds import (
    Records,
    adult_records,
    certified,
    errors,
    folds,
    one_hot_learner,
    projection,
    published,
)
from benchmarks.papers.kdd_mix import FULL_COUNTS, full_mix, rows_of
from benchmarks.public_data import Table
from dpconvex import Privacy, Release, verify
from dpconvex.errors import DomainError

# A file with a hundredth of the frequent labels, and rare ones whole.
FILE = np.repeat(list(FULL_COUNTS), [c // 100 if c > 100_000 else min(c, 300) for c in FULL_COUNTS.values()])


def test_the_mix_is_that_of_the_full_file() -> None:
    assert sum(FULL_COUNTS.values()) == 4_898_431
    rows = full_mix(FILE, 6_000, np.random.default_rng(1))
    assert len(np.unique(rows)) == len(rows) == 6_000
    frequent = ["smurf", "neptune", "normal"]
    observed = [int((FILE[rows] == label).sum()) for label in frequent]
    shares = np.array([FULL_COUNTS[label] for label in frequent]) / 4_898_431
    everything = [*observed, 6_000 - sum(observed)], [*(6_000 * shares), 6_000 * (1 - shares.sum())]
    assert stats.chisquare(*everything).pvalue > 1e-6
    own = [float((label == FILE).mean()) for label in frequent]
    wrong = [*(6_000 * np.array(own)), 6_000 * (1 - sum(own))]
    assert stats.chisquare(everything[0], wrong).pvalue < 1e-6  # the file's own mix is another one
    assert not np.array_equal(rows, np.sort(rows))


def test_a_file_with_too_few_records_is_an_error() -> None:
    with pytest.raises(DomainError, match="'smurf'"):
        full_mix(FILE, 100_000, np.random.default_rng(0))


def test_rows_keep_their_labels() -> None:
    numeric, codes = np.arange(6.0)[:, None], np.arange(6)[:, None] % 2
    table = Table(numeric, np.zeros(1), np.full(1, 10.0), codes, (("a", "b"),), np.array(list("uvwxyz")))
    some = rows_of(table, np.array([4, 1]))
    assert some.y.tolist() == ["y", "v"]
    assert some.design().toarray().tolist() == [[0.4, 1, 0], [0.1, 0, 1]]


def toy() -> Records:
    import scipy.sparse as sp

    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True) * (1 + 1e-12)
    return Records(sp.csr_matrix(x), np.where(x[:, 0] > 0, 1, -1))


def test_noise_is_left_out_where_one_hot_columns_never_go() -> None:
    groups = (2, 3, 4)
    matrix = projection(11, groups)
    x = np.zeros((24, 11))
    for k, levels in enumerate(np.ndindex(groups)):
        x[k, [2 + levels[0], 4 + levels[1], 7 + levels[2]]] = 1
    x[:, :2] = np.random.default_rng(0).uniform(size=(24, 2))
    np.testing.assert_allclose(x @ matrix, x, atol=1e-14)
    assert np.linalg.matrix_rank(matrix) == np.linalg.matrix_rank(x) == 9
    assert verify(one_hot_learner("logistic", 11, groups, 0.1), Privacy(1.0), 100).noise_dimension == 9
    np.testing.assert_array_equal(projection(3, ()), np.eye(3))
    np.testing.assert_array_equal(projection(3, (2,)), np.eye(3))


def test_folds_share_no_record() -> None:
    records = toy()
    tested = [fold.test.x.toarray() for fold in folds(records, 7)]
    assert sum(map(len, tested)) == 200
    assert len(np.unique(np.concatenate(tested), axis=0)) == 200
    for fold in folds(records, 7):
        both = np.concatenate([fold.train.x.toarray(), fold.test.x.toarray()])
        assert len(np.unique(both, axis=0)) == 200


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


def test_curves_expect_the_private_choice() -> None:
    records = toy()
    parts = [records.some(np.arange(k, 200, 5)) for k in range(5)]
    assert len(tuned("output", "logistic", parts, records, records, 1.0, 3)) == 3
    (alone,) = tuned("plain", "Huber", parts, records, records, 1.0, 3)
    (certain,) = tuned("objective", "Huber", parts[:1] * 5, records, records, 1e6, 1)  # no noise, and no doubt
    assert alone == pytest.approx(certain, abs=0.02)
    assert alone < 0.1


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


@pytest.mark.parametrize("command", ["tables", "figures", "curves"])
def test_without_data_commands_say_what_is_missing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPCONVEX_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert chaudhuri.main([command, "--output", str(tmp_path / "results")]) == 2
    message = capsys.readouterr().err
    assert "no such file" in message
    assert "DPCONVEX_DATA" in message


def test_the_papers_numbers_fit_the_grids() -> None:
    assert all(len(printed) == len(chaudhuri.GRIDS[data]) for (data, _, _), printed in chaudhuri.PRINTED.items())
    assert {way for _, _, way in chaudhuri.PRINTED} <= set(chaudhuri.WAYS)


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic", "Huber"])
def test_table_1_at_the_best_regularization(name: str, shared_data: Callable[[str], Path]) -> None:
    records = adult_records(str(shared_data("adult.csv.gz")))
    entry = chaudhuri.GRIDS["adult"].index(-2.5)
    found = {}
    for way, draws in (("plain", 1), ("output", 500), ("objective", 15), ("delta", 15)):
        runs = (
            errors(chaudhuri.WAYS[way].run(name, 10**-2.5, fold.train, 0.1, draws), fold.test)
            for fold in islice(folds(records), 3)
        )
        found[way] = float(np.mean(list(runs)))
        if ("adult", name, way) in chaudhuri.PRINTED:
            assert found[way] == pytest.approx(chaudhuri.PRINTED["adult", name, way][entry], abs=0.03)
    assert found["delta"] < found["objective"]
