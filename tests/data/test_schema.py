"""Tables are read through a public declaration, and every entry that does not fit it is named."""

import copy
import datetime
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from command_line import main
from hypothesis import given, strategies as st
from refused import refused

import dpconvex as dp
from dpconvex import Boolean, Categorical, Date, Numeric, Ordered, Schema
from dpconvex.errors import DomainError

TABLE = Schema({"age": (0, 100), "hours": (-10, 30)}, label="sick", labels=["no", "yes"])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", r"data\.csv: the file is empty; its first line must name the columns"),
        ("age,hours,sick,age\n1,2,no,3\n", r"2 columns are called 'age'"),
        ("age,hours,sick\n1,2,no\n1,2\n", r"line 3: 2 cells, but the header has 3"),
        ("age,hours,sick\n1,2,no\n1,two,no\n", r"line 3, column 'hours': 'two' is not a finite number"),
        ("age,hours,sick\n101,2,no\n", r"line 2, column 'age': 101 is outside .* 0 to 100; .* clip=True"),
        ("age,hours,sick\n1,2,maybe\n", r"column 'sick': 'maybe' was not declared; declared are 'no', 'yes'.* label"),
        ('age,hours,sick\n1,2,"no\n', r"not valid CSV"),
        (b"age,hours,sick\n1,2,\xff\n", r"not a text file in UTF-8.*encoding='cp1252'"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, content, complaint):
    file = tmp_path / "data.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    refused(DomainError, complaint, TABLE.encode, file)


# Columns of every kind, out of everything that holds a table
KINDS = Schema(
    {
        "age": Numeric(0, 100, missing="indicator"),
        "grade": Ordered(["low", "middle", "high"], missing="middle"),
        "colour": Categorical(["red", "green"], other=True, missing="indicator"),
        "member": Boolean("no", "yes"),
        "since": Date("2020-01-01", "2020-12-31"),
    },
    label="sick",
    labels=[0, 1],
    ignore=["name"],
    absent=["?"],
)
ROWS = {
    "name": ["a", "b", "c", "d"],
    "age": [50.0, None, 100.0, 0.0],
    "grade": ["low", "?", "high", None],
    "colour": ["red", "?", "blue", None],
    "member": ["no", "YES", "yes", "no"],
    "since": ["2020-01-01", "2020-12-31", "2020-07-01", "2020-07-01"],
    "sick": [0, 1, 1, 0],
}
NAMES = "age, age: missing, grade, colour = red, colour = green, colour: other, colour: missing, member, since"
ENCODED = np.array(
    [
        [0, 0, -0.5, 1, 0, 0, 0, -0.5, -0.5],
        [0, 0.5, 0, 0, 0, 0, 1, 0.5, 0.5],
        [0.5, 0, 0.5, 0, 0, 1, 0, 0.5, 182 / 365 - 0.5],
        [-0.5, 0, 0, 0, 0, 0, 1, -0.5, 182 / 365 - 0.5],
    ]
) / np.sqrt(2)


def frames():
    pl, pa = (pytest.importorskip(name) for name in ("polars", "pyarrow"))
    typed = {**ROWS, "since": [datetime.date.fromisoformat(day) for day in ROWS["since"]]}
    return {
        "mapping": ROWS,
        "pandas": pd.DataFrame(ROWS),
        "pandas categories and times": pd.DataFrame(typed).astype({"colour": "category", "since": "datetime64[ns]"}),
        "polars": pl.DataFrame(typed),
        "pyarrow": pa.table(typed),
    }


def test_every_kind_of_column_out_of_every_kind_of_table(tmp_path):
    tables = frames()
    tables["pandas"].to_csv(tmp_path / "data.csv", index=False)
    tables["pandas"].to_parquet(tmp_path / "data.parquet")
    for table in (*tables.values(), tmp_path / "data.csv", tmp_path / "data.parquet"):
        X, y = KINDS.encode(table)
        np.testing.assert_allclose(X, ENCODED, atol=1e-15)
        assert y.tolist() == ["0", "1", "1", "0"]
    assert ", ".join(KINDS.feature_names) == NAMES
    assert KINDS.encode({name: [] for name in ROWS}, empty=True)[0].shape == (0, 9)


COLUMNS = st.sampled_from(
    [
        (Numeric(-3, 5, missing="indicator"), [-3, 5, 0.25, None, float("nan")]),
        (Numeric(0, 1, missing=0.75), [0, 1, None]),
        (Ordered(["a", "b", "c"], missing="indicator"), ["a", "b", "c", None]),
        (Categorical(["a", "b"], other=True, missing="indicator"), ["a", "b", "z", None, ""]),
        (Boolean(missing=True), [True, False, "true", "FALSE", 0, 1, None]),
        (Date("2000-01-01", "2001-01-01", missing="indicator"), ["2000-01-01", datetime.date(2000, 7, 1), None]),
    ]
)


@given(columns=st.lists(COLUMNS, min_size=1, max_size=5), unit=st.booleans(), data=st.data())
def test_no_record_is_longer_than_one_and_each_is_encoded_by_itself(columns, unit, data):
    schema = Schema({f"c{i}": column for i, (column, _) in enumerate(columns)}, "y", [0, 1], unit=unit)
    draw = lambda values: data.draw(st.lists(st.sampled_from(values), min_size=4, max_size=4))  # noqa: E731
    rows = {f"c{i}": draw(values) for i, (_, values) in enumerate(columns)} | {"y": [0, 1, 0, 1]}
    X, y = schema.encode(rows)
    assert (np.linalg.norm(X, axis=1) <= 1 + 1e-12).all()
    assert X.shape == (4, len(schema.feature_names))
    for index in range(4):
        alone, _ = schema.encode({name: [column[index]] for name, column in rows.items()})
        np.testing.assert_array_equal(alone[0], X[index])
    assert schema.record.validate({"x": X, "y": y}).size == 4


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"member": ["no", "perhaps", "no", "no"]}, r"row 1, column 'member': 'perhaps' was not declared"),
        ({"member": [None, "no", "no", "no"]}, r"row 0, column 'member': the value is missing \(None\)"),
        ({"since": ["2020-01-01", "soon", "2020-01-01", "2020-01-01"]}, "row 1, column 'since': 'soon' is not a date"),
        ({"age": [1, True, 3, 4]}, "row 1, column 'age': 'true' is not a finite number"),
        ({"sick": [0, None, 1, 0]}, "row 1, column 'sick': the value is missing"),
        ({"sick": [0, 1]}, "different lengths"),
        ({"extra": [1, 2, 3, 4]}, r"the columns \['extra'\] are not declared; declare them"),
        ({"member": np.ma.masked_array(["no"] * 4, [1, 0, 0, 0])}, r"row 0, column 'member': the value is missing"),
    ],
)
def test_entries_that_do_not_fit_are_named(changes, complaint):
    refused(DomainError, complaint, KINDS.encode, {**ROWS, **changes})


def drafted(table, file):
    return main(["schema", "draft", str(table), "--label", "sick", "--out", str(file)])


def test_features_know_the_schema_that_made_them():
    first, other = (dp.Schema({"ward": dp.Categorical([*w]), "age": (0, 9)}, "l", ["no", "yes"]) for w in ("ab", "ba"))
    table = {"ward": ["a", "b"] * 100, "age": list(range(10)) * 20, "l": ["no", "yes"] * 100}
    (X, y), swapped = first.encode(table), other.encode(table)[0]
    assert X[:5].schema is first
    assert repr(X) == repr(np.asarray(X))
    for computed in (X * 2, X @ np.eye(3), np.hstack([X, X])):
        assert getattr(computed, "schema", None) is None
    model = dp.LogisticRegression(epsilon=1.0, classes=first.labels).fit(X, y)
    for call in (lambda: model.save("never.npz", other), lambda: model.predict(swapped)):
        refused(dp.TemplateError, "encoded by another schema", call)
    theirs, whose = dp.Schema({"age": (0, 9)}, "l", first.labels, privacy_unit="who"), table | {"who": range(200)}
    refused(dp.TemplateError, "identifies", dp.LogisticRegression(classes=first.labels).fit, *theirs.encode(whose))
    record = dp.Record(x=dp.Ball(1), y=dp.Choice(["no", "yes"]))
    refused(dp.TemplateError, "identifies people", dp.cluster, record, dp.Partitions([whose], theirs), dp.Privacy(1.0))


@pytest.mark.parametrize(
    "touched",
    [
        *(lambda X: X * 1.0, lambda X: X.astype(np.float32), lambda X: np.vstack([X, X])[:20]),
        *(lambda X: np.hstack([X * 0.5]), lambda X: np.clip(X, 0, 1)),
        *(lambda X: dp.RandomFourierFeatures(1, 1).transform(X)[:, :1], copy.deepcopy),
    ],
)
def test_features_of_people_stay_theirs_when_they_are_touched(touched):
    schema = dp.Schema({"age": (0, 19)}, "l", ["no", "yes"], privacy_unit="who")
    X, y = schema.encode({"age": range(20), "l": ["no", "yes"] * 10, "who": [0, 1] * 10})
    x, record = touched(X), dp.Record(x=dp.Ball(1))
    assert copy.deepcopy(X).schema is schema
    for data in ({"x": x}, dp.Partitions([{"x": x}]), dp.Partitions([lambda: {"x": x}])):
        refused(dp.TemplateError, "identifies people", dp.cluster, record, data, dp.Privacy(1.0), group=None)
    learner, both = dp.load("logistic_regression", features=1, labels=("no", "yes")), {"x": x, "y": y}
    refused(dp.TemplateError, "identifies people", dp.solve, learner, dp.Partitions([lambda: both]), dp.Privacy(1.0))
    assert dp.solve(learner, both, dp.Privacy(1.0, unit="who", most=10), clip=True, unit=[0, 1] * 10).private


def test_identifiers_that_are_one_number_in_a_frame_are_no_two_people_in_a_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,y,who\n" + "".join(f".5,0,{who}\n" for who in ("7", "07", "8")))
    schema = dp.Schema({"a": (0, 1)}, "y", ["0", "1"], privacy_unit="who", absent=["8"])
    privacy = dp.Privacy(1.0, unit="who", most=1)
    learner = dp.load("logistic_regression", features=1, labels=("0", "1"))
    data = dict(zip("xy", schema.encode(path), strict=True))
    refused(dp.DomainError, "have no identifier", dp.solve, learner, data, privacy, unit=schema.units(path))
    for table in (path, pd.read_csv(path)):
        budget, who = dp.Budget(dp.Privacy(5.0)), replace(schema, absent=()).units(table)
        refused(dp.DomainError, "unit: ", dp.solve, learner, data, privacy, unit=who, budget=budget)
        assert not budget.entries


def test_frames_of_dask_are_sent_to_partitions():
    dd = pytest.importorskip("dask.dataframe")
    frame = dd.from_pandas(pd.DataFrame({"a": [0.5, -0.5], "y": ["no", "yes"]}), npartitions=1)
    refused(dp.DomainError, r"Partitions\(frame, schema\)", dp.Schema({"a": (-1, 1)}, "y", ["no", "yes"]).encode, frame)


def test_drafts_of_codes_and_flags(tmp_path, capsys):
    path = tmp_path / "public.csv"
    rows = [f"{k / 7:.3f},{k % 5 + 1067:05d},{k % 2},{'yes' if k % 3 else 'no'}" for k in range(400)]
    path.write_text("\n".join(["size,post,flag,sick", *rows]), encoding="utf-8")
    assert drafted(path, path.with_suffix(".toml")) == 0
    schema = dp.Schema.load(path.with_suffix(".toml"))
    assert schema.features["post"] == dp.Categorical(["01067", "01068", "01069", "01070", "01071"])
    assert schema.features["flag"] == dp.Boolean("0", "1")
    assert isinstance(schema.features["size"], dp.Numeric)
    assert schema.encode(path)[0].shape == (400, 7)
    for entry in ("1,234", "1,234,567.5", "0,5"):
        path.write_text("\n".join(["size,sick", *(f'"{entry}",{k % 2}' for k in range(40))]), encoding="utf-8")
        assert drafted(path, path.with_suffix(".toml")) == 2
        assert "'size' has numbers with commas" in capsys.readouterr().err


def test_truth_values_are_labels():
    schema = Schema({"age": (0, 100)}, label="sick", labels=[False, True])
    assert schema.labels == ("false", "true")
    for values in ([True, False], ["true", "False"], np.array([True, False])):
        assert schema.encode({"age": [1, 2], "sick": values})[1].tolist() == ["true", "false"]
    schema = Schema({"age": (0, 100)}, label="sick", labels=["Yes", "no"])  # as DuckDB reads a column of these
    assert schema.encode({"age": [1, 2, 3], "sick": [True, "no", False]})[1].tolist() == ["Yes", "no", "no"]
    other = Schema({"age": (0, 100)}, label="sick", labels=["ill", "well"])
    refused(dp.DomainError, "was not declared", other.encode, {"age": [1], "sick": [True]})
