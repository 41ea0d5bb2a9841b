"""Data in partitions: arrays in files, what a partition can be, and what is said of one that is none."""

import io
import os
from functools import partial

import numpy as np
import pytest
import scipy.sparse as sp
from refused import refused

import dpconvex as dp

X = np.random.default_rng(0).uniform(-0.7, 0.7, size=(50, 2))
Y = np.where(X[:, 0] > 0, 1, -1)


def saved(folder, name, array):
    np.save(folder / f"{name}.npy", array)
    return folder / f"{name}.npy"


def test_records_are_checked_whenever_a_file_is_read(tmp_path):
    path = saved(tmp_path, "x", X)
    data, candidates = dp.Partitions([{"x": path, "y": Y}]), [dp.load("logistic_regression", features=2)]
    parts = [dp.tune(candidates, rows, dp.Privacy(1.0), seed=0).release["w"] for rows in (data, {"x": X, "y": Y})]
    np.testing.assert_array_equal(*parts)
    np.save(path, np.where(np.arange(100).reshape(50, 2) == 81, 7.0, X))
    refused(dp.DomainError, "row 40", dp.solve, *candidates, data, dp.Privacy(1.0))


@pytest.mark.parametrize("other", [np.hstack([X, X]), X[:30], np.asfortranarray(X), X.view(np.int64)])
def test_a_file_that_became_another_is_refused_whatever_reads_it(tmp_path, other):
    path, learner = saved(tmp_path, "x", X), dp.load("logistic_regression", features=2)
    parts = dp.Partitions([{"x": path, "y": Y}])
    saved(tmp_path, "x", other)
    refused(dp.DomainError, r"0: .*x\.npy: .*(its shape or type|in C order)", dp.solve, learner, parts, dp.Privacy(1.0))


SCHEMA = dp.Schema({"age": (0, 1)}, label="y", labels=["a", "b"])
TABLE = {"age": [0.5, 1.0], "y": ["a", "b"]}


def parquet(path, table=TABLE):
    pq = pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pytest.importorskip("pyarrow").table(table), path)
    return path


def test_a_folder_of_parquet_files(tmp_path):
    refused(dp.DomainError, "no Parquet files", dp.Partitions, tmp_path, SCHEMA)
    first = parquet(tmp_path / "b.parquet")
    for name in ("._b.parquet", "_metadata.parquet", "notes.txt"):
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "_temporary").mkdir()
    assert dp.Partitions(tmp_path, SCHEMA).sizes == (2,)
    (tmp_path / "a.parquet").write_bytes(b"neither")
    for source, schema, said in (
        (tmp_path, None, "tables need a schema"),
        (first, SCHEMA, "not a folder; pass a list of files"),
        (tmp_path / "none", SCHEMA, "not a folder"),
        ([tmp_path / "none.parquet"], SCHEMA, r"partition 0: .*none\.parquet: this is not a file"),
        (tmp_path, SCHEMA, r"partition 0: .*a\.parquet: the file is damaged"),
    ):
        refused(dp.DomainError, said, dp.Partitions, source, schema)
    parquet(tmp_path / "ward=1" / "c.parquet")
    refused(dp.DomainError, "ward=1: subfolders are not read", dp.Partitions, tmp_path, SCHEMA)


def test_small_tables_are_encoded_once():
    read, frame = [], {"age": list(range(50)), "sick": ["no", "yes"] * 25}
    schema = dp.Schema({"age": (0, 100)}, label="sick", labels=["no", "yes"])
    learner = dp.load("logistic_regression", features=1, labels=("no", "yes"))
    for keep in (None, False):
        made = partial(lambda how: (read.append(how), frame)[1], keep)
        dp.solve(learner, dp.Partitions([made], schema, keep=keep), dp.Privacy(1.0, 1e-6))
    assert read.count(None) <= 3 < read.count(False)


def test_files_that_are_written_anew(tmp_path):
    path, learner = parquet(tmp_path / "a.parquet"), dp.load("logistic_regression", features=1, labels=("a", "b"))
    parts = dp.Partitions([path], SCHEMA)
    assert parts.sizes == (2,)
    parquet(path, {"age": [0.5] * 3, "y": ["a"] * 3})
    refused(dp.DomainError, r"3 records, but there were 2 .*make new", dp.solve, learner, parts, dp.Privacy(1.0))


def test_what_is_no_file_of_numbers_is_refused_at_once(tmp_path):
    path, header = tmp_path / "x.npy", io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (-1,)})
    path.write_bytes(header.getvalue() + bytes(80))
    refused(dp.DomainError, r"partition 0: .*x\.npy: no array can be read", dp.Partitions, [{"x": path, "y": Y}])
    path.unlink()
    for name in ("x.npy", "x.parquet"):
        os.mkfifo(tmp_path / name)
    refused(dp.DomainError, r"partition 0: .*x\.npy: .*a device or a pipe", dp.Partitions, [{"x": path, "y": Y}])
    refused(dp.DomainError, r"0: .*x\.parquet: this is not a file", dp.Partitions, [tmp_path / "x.parquet"], SCHEMA)
    with pytest.raises(dp.DomainError, match=r"partition 0: it must map fields to columns.* not a NoneType"):
        dp.solve(dp.load("logistic_regression", features=2), dp.Partitions([lambda: None]), dp.Privacy(1.0))


def test_columns_of_tables_are_checked_before_anything_is_paid(tmp_path):
    pd = pytest.importorskip("pandas")
    twice = pd.DataFrame([[0.5, 0.5, "a"]], columns=["age", "age", "y"])
    refused(dp.DomainError, "partition 1: the table: several columns have", dp.Partitions, [TABLE, twice], SCHEMA)
    for column in (pd.to_datetime(["2020-01-01"] * 2), [[0.5], [1.0]], [True, False]):
        parquet(tmp_path / "a.parquet", {"age": column, "y": ["a", "b"]})
        with pytest.raises(dp.DomainError, match=r"0: .*a\.parquet: the column 'age' is declared as a number"):
            dp.Partitions(tmp_path, SCHEMA)


OTHERS = {"negated": lambda x, y: (-x, y), "rows": lambda x, y: (x[::-1], y), "labels": lambda x, y: (x, -y)}


@pytest.mark.parametrize(("form", "kind"), [("", "negated"), ("", "labels"), ("sparse", "rows"), ("large", "rows")])
def test_equal_numbers_in_other_places_are_other_records(kind, form, monkeypatch):
    x = np.random.default_rng(1).uniform(-0.7, 0.7, size=(50, 2))
    y, calls = np.where(x[:, 0] > 0.1, 1.0, -1.0), []
    if form == "large":
        monkeypatch.setattr("dpconvex.data.validation.LARGEST_COPY", 1)

    def changing():
        calls.append(1)
        moved, labels = (x, y) if len(calls) < 5 else OTHERS[kind](x, y)
        return {"x": sp.csr_array(moved) if form == "sparse" else moved, "y": labels}

    learner, data = dp.load("logistic_regression", features=2), dp.Partitions([changing])
    refused(dp.DomainError, "records have changed", dp.solve, learner, data, dp.Privacy(1.0))
