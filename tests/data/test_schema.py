"""Tables are read through a public declaration, and every entry that does not fit it is named."""

import dataclasses
import datetime
import enum
import json
import tomllib
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest
from command_line import main
from hypothesis import given, strategies as st

import dpconvex as dp
from dpconvex import Boolean, Categorical, Date, Numeric, Ordered, Schema
from dpconvex.errors import DomainError, TemplateError

TABLE = Schema({"age": (0, 100), "hours": (-10, 30)}, label="sick", labels=["no", "yes"])


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", r"data\.csv: the file is empty; its first line must name the columns"),
        ("age;hours;sick\n1;2;no\n", r"cells are separated by ';'"),
        ("age,hours,sick,age\n1,2,no,3\n", r"2 columns are called 'age'"),
        ("age,hours,sick\n1,2,no\n1,2\n", r"line 3: 2 cells, but the header has 3"),
        ("age,hours,sick\n1,2,no\n1,two,no\n", r"line 3, column 'hours': 'two' is not a finite number"),
        ("age,hours,sick\n101,2,no\n", r"line 2, column 'age': 101 is outside .* 0 to 100; .* clip=True"),
        (
            "age,hours,sick\n1,2,maybe\n",
            r"line 2, column 'sick': 'maybe' was not declared; declared are 'no', 'yes'\. Declare all .* It is the label",
        ),
        ('age,hours,sick\n1,2,"no\n', r"not valid CSV"),
        (b"age,hours,sick\n1,2,\xff\n", r"not a text file in UTF-8"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, content, complaint):
    file = tmp_path / "data.csv"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(DomainError, match=complaint):
        TABLE.encode(file)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"features": {"": (0, 1)}}, "column must be a text"),
        ({"features": {"age": (1, 0)}}, "'age'.* must be two numbers, finite, the lower one below"),
        ({"features": {"age": (0, 1), "sick": (0, 1)}}, "declared twice, as a feature, the label"),
        ({"labels": "no,yes"}, "as a list"),
        ({"labels": [0, "0"]}, "all of them different"),
        ({"features": {"c": {"levels": ["a", "b"], "missing": "z"}}}, "declared level or 'indicator'"),
        ({"features": {"c": {"bounds": [0, 1], "missing": 2}}}, "outside the declared bounds"),
        ({"features": {"c": {"ordered": ["a", "b"], "other": True}}}, "'other' is not known beside 'ordered'"),
        ({"features": {"c": {"dates": ["2020-01-01", "tomorrow"]}}}, "a date is written as"),
        ({"features": {"c": {"boolean": ["true", "false"]}}}, "would be misread"),
        ({"features": {"c": {}}}, "declare one of bounds, ordered, levels, boolean, dates"),
        ({"label_bounds": (0, 1)}, "either labels"),
        ({"constant": "yes"}, "constant must be float"),
    ],
)
def test_a_declaration_must_make_sense(changes, complaint):
    fields = {"features": {"age": (0, 1)}, "label": "sick", "labels": ["no", "yes"], **changes}
    with pytest.raises(TemplateError, match=complaint):
        Schema(**fields)


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
    pd, pl, pa = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
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
    rows = {
        f"c{i}": data.draw(st.lists(st.sampled_from(v), min_size=4, max_size=4)) for i, (_, v) in enumerate(columns)
    }
    rows["y"] = [0, 1, 0, 1]
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
        ({"extra": [1, 2, 3, 4]}, r"not declared are \['extra'\]; declare them"),
        ({"member": np.ma.masked_array(["no"] * 4, [1, 0, 0, 0])}, r"row 0, column 'member': the value is missing"),
    ],
)
def test_entries_that_do_not_fit_are_named(changes, complaint):
    with pytest.raises(DomainError, match=complaint):
        KINDS.encode({**ROWS, **changes})


def test_a_regression_moves_its_target_from_the_bounds_and_back():
    schema = Schema({"age": (0, 100)}, "price", label_bounds=(10, 30))
    X, y = schema.encode({"age": [0, 50], "price": [10, 25]})
    np.testing.assert_allclose(y, [-1, 0.5])
    np.testing.assert_allclose(schema.decode_target(y), [10, 25])
    assert schema.record.validate({"x": X, "y": y}).size == 2
    with pytest.raises(DomainError, match="row 0, column 'price': 50 is outside"):
        schema.encode({"age": [0], "price": [50]})


def drafted(table, file):
    return main(["schema", "draft", str(table), "--label", "sick", "--out", str(file)])


def test_a_draft_keeps_the_spelling_of_labels(tmp_path):
    table, file = {"age": [1.0, 2.0, 3.0], "sick": ["True", "False", "True"]}, tmp_path / "schema.toml"
    pd.DataFrame(table).to_csv(tmp_path / "public.csv", index=False)
    assert drafted(tmp_path / "public.csv", file) == 0
    assert Schema.load(file).encode(table)[1].tolist() == table["sick"]


def test_a_schema_is_written_and_read(tmp_path):
    file = tmp_path / "schema.toml"
    file.write_text(KINDS.to_toml(), encoding="utf-8")
    assert Schema.load(file) == KINDS
    assert Schema.from_dict(json.loads(json.dumps(KINDS.to_dict()))) == KINDS


def test_a_constant_is_a_last_feature_and_makes_records_longer():
    plain = Schema({"age": (0, 100)}, "sick", ["no", "yes"])
    schema = dataclasses.replace(plain, constant=0.5)
    assert schema.feature_names == ["age", "constant"]
    rows = {"age": [0, 100], "sick": ["no", "yes"]}
    X, y = schema.encode(rows)
    np.testing.assert_array_equal(X, [[-1.0, 0.5], [1.0, 0.5]])
    np.testing.assert_array_equal(schema.encode(rows, sparse=True)[0].toarray(), X)
    assert schema.record.validate({"x": X, "y": y}).size == 2
    assert Schema.from_dict(tomllib.loads(schema.to_toml())) == schema != plain


def test_features_know_the_schema_that_made_them():
    first, other = (
        dp.Schema({"ward": dp.Categorical(list(w)), "age": (0, 9)}, "l", ["no", "yes"]) for w in ("ab", "ba")
    )
    table = {"ward": ["a", "b"] * 100, "age": list(range(10)) * 20, "l": ["no", "yes"] * 100}
    (X, y), swapped = first.encode(table), other.encode(table)[0]
    assert X[:5].schema is first
    assert repr(X) == repr(np.asarray(X))
    for computed in (X * 2, X @ np.eye(3), np.hstack([X, X])):
        assert getattr(computed, "schema", None) is None
    model = dp.LogisticRegression(epsilon=1.0, classes=first.labels).fit(X, y)
    for refused in (lambda: model.save("never.npz", other), lambda: model.predict(swapped)):
        with pytest.raises(dp.TemplateError, match="encoded by another schema"):
            refused()
    theirs = dp.Schema({"age": (0, 9)}, "l", ["no", "yes"], privacy_unit="who")
    with pytest.raises(dp.TemplateError, match="the schema says whose records are whose"):
        dp.LogisticRegression(classes=["no", "yes"]).fit(*theirs.encode(table | {"who": list(range(200))}))


def test_a_saved_model_reads_tables_of_its_own_schema(tmp_path):
    schema = dp.Schema({"age": (0, 9), "rank": (0, 1)}, "l", ["no", "yes"])
    table = {"age": list(range(10)) * 20, "rank": [0, 1] * 100, "l": ["no", "yes"] * 100}
    X, y = schema.encode(table)
    dp.LogisticRegression(epsilon=1.0, classes=schema.labels).fit(X, y).save(tmp_path / "model.npz")
    release = dp.Release.load(tmp_path / "model.npz", template=dp.load)
    assert release.schema == schema
    assert release.predict(release.schema.encode(table, labelled=False)[0]).shape == (200,)
    turned = dp.Schema({"rank": (0, 1), "age": (0, 9)}, "l", ["no", "yes"]).encode(table)[0]
    with pytest.raises(dp.TemplateError, match="encoded by another schema"):
        release.predict(turned)


def sources(path):
    """The same file by path, and as what readers make of it."""
    frame, texts = pd.read_csv(path), pd.read_csv(path, dtype=str, keep_default_na=False)
    parquet = path.with_suffix(".parquet")
    frame.to_parquet(parquet)
    singles = {name: "float32" for name in frame.columns if frame[name].dtype.kind == "f"}
    single = frame.astype(singles)
    with np.errstate(over="ignore"):
        half = frame.astype(dict.fromkeys(singles, "float16"))
    return {
        "pandas": frame,
        "texts": texts,
        "string": pd.read_csv(path, dtype="string"),
        "category": frame.astype("category"),
        "nullable": pd.read_csv(path, dtype_backend="numpy_nullable"),
        "objects": frame.astype(object),
        "single": single,
        "single, nullable": frame.astype(dict.fromkeys(singles, "Float32")),
        "single, arrow": pa.Table.from_pandas(single),
        "single, polars": pl.from_pandas(single),
        "single, category": single.astype("category"),
        "single, list": {name: list(column.to_numpy()) for name, column in single.items()},
        "half": half,
        "polars": pl.read_csv(path),
        "polars dates": pl.read_csv(path, try_parse_dates=True),
        "arrow columns": dict(zip("ay", pa.csv.read_csv(path).columns, strict=True)),
        "arrow": pa.csv.read_csv(path),
        "parquet": parquet,
        "lists": {name: list(column) for name, column in frame.items()},
        "arrays": {name: column.to_numpy() for name, column in frame.items()},
    }


OTHER = {"other": True, "missing": "indicator"}
TYPED = {
    "truth values": (dp.Categorical(["True", "False"], **OTHER), ["True", "False", "True"], True),
    "truth values, other case": (dp.Categorical(["true", "FALSE"], **OTHER), ["True", "False", "True"], True),
    "padded codes": (dp.Categorical(["01067", "99999"], **OTHER), ["01067", "99999", "00001"], True),
    "decimals": (dp.Categorical(["1.50", "2.25"], **OTHER), ["1.50", "2.25", "1.1"], True),
    "exponents": (dp.Categorical(["1e2", "7"], **OTHER), ["1e2", "7", "8"], True),
    "holes": (dp.Categorical(["1", "2"], **OTHER), ["1", "", "2"], True),
    "days": (dp.Categorical(["2020-01-31", "2020-02-01"], **OTHER), ["2020-01-31", "2020-02-01", "2020-01-31"], True),
    "grades": (dp.Ordered(["1.0", "2.0", "3.0"]), ["1.0", "2.0", "3.0"], True),
    "two spellings": (dp.Categorical(["1067", "01067"], **OTHER), ["1067", "01067", "1067"], False),
    "long codes": (
        dp.Categorical(["9007199254740993", "9007199254740992"], **OTHER),
        ["9007199254740993", "", "1"],
        False,
    ),
    "names of missing": (dp.Categorical(["a", "b"], **OTHER), ["a", "None", "NA"], False),
    "a level that is read as missing": (dp.Categorical(["a", "NA"], missing="indicator"), ["a", "NA", "a"], False),
    "yes and no": (dp.Boolean("0", "1.0"), ["1.0", "0.0", "1.0"], True),
    "a truth value": (dp.Boolean(missing="indicator"), ["True", "", "FALSE"], True),
    "absent numbers": (dp.Numeric(0, 99, missing="indicator"), ["1", "99", "5"], True),
    "absent decimals": (dp.Numeric(0, 200, missing="indicator"), ["1.5", "99.0", "5"], True),
    "dates": (
        dp.Date("2020-01-01", "2021-01-01", missing="indicator"),
        ["2020-01-31", "2020-12-31", "2020-03-01"],
        True,
    ),
    "times of a day": (dp.Categorical(["10:30", "11:00:00"], **OTHER), ["10:30", "11:00", "10:30"], True),
    "other times": (dp.Categorical(["10:30", "11:00"], **OTHER), ["10:30", "12:00", "10:30"], False),
    "short hours": (dp.Categorical(["9:30", "10:30"], **OTHER), ["9:30", "10:30", "9:30"], False),
    "times with zones": (
        dp.Categorical(["2020-01-31T10:00:00Z", "b"], **OTHER),
        ["2020-01-31T10:00:00Z", "2020-01-31T11:00:00+01:00", "2020-01-31T10:00:00Z"],
        True,
    ),
    "days with zones": (dp.Date("2020-01-01", "2021-01-01"), ["2020-01-31T23:00:00-05:00"] * 3, False),
    "hexadecimal codes": (dp.Categorical(["0x10", "0X1f"], **OTHER), ["0x10", "0x11", "0X1f"], True),
    "hexadecimal codes and numbers": (dp.Categorical(["0x10", "16"], **OTHER), ["0x10", "16", "3"], False),
    "hexadecimal numbers": (dp.Numeric(0, 99), ["0x10", "0x11", "0x12"], True),
    "decimals with a hole": (dp.Categorical(["1.1", "2.25"], **OTHER), ["1.1", "", "1.2"], True),
    "long decimals": (dp.Categorical(["1.23456789", "0.1"], **OTHER), ["1.23456789", "0.1", ""], True),
    "decimals alike": (dp.Categorical(["1.23456789", "1.23456788"], **OTHER), ["1.23456788", "", "1.5"], False),
    "an absent decimal": (dp.Numeric(0, 200, missing="indicator"), ["1.1", "99.9", "5"], True),
    "an absent decimal and a hole": (dp.Numeric(0, 200, missing="indicator"), ["1.1", "99.9", ""], True),
    "truth values and one": (dp.Categorical(["true", "false"], **OTHER), ["true", "1", "false"], False),
    "one and truth values": (dp.Categorical(["0", "1"], **OTHER), ["true", "1", "0"], False),
    "all of them": (dp.Categorical(["true", "1", "0"], **OTHER), ["true", "1", "0"], False),
    "other digits": (dp.Categorical(["\u0661", "b"], **OTHER), ["b", "\u0661", "1"], True),
    "underscores": (dp.Categorical(["1_000", "1000"], **OTHER), ["1_000", "1000", "7"], True),
    "signs": (dp.Categorical(["-0", "+1"], **OTHER), ["0", "1", "-0.0"], True),
    "letters in two forms": (dp.Categorical(["caf\u00e9", "b"], **OTHER), ["cafe\u0301", "caf\u00e9", "b"], True),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", TYPED)
def test_a_file_is_encoded_as_any_frame_of_it_or_one_of_them_is_refused(name, tmp_path):
    column, entries, same = TYPED[name]
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f"{entry},{label}\n" for entry, label in zip(entries, "010", strict=True)))
    schema = dp.Schema({"a": column}, "y", ["0", "1"], absent=["99", "2020-12-31", "99.9"])

    def encoded(table):
        try:
            return schema.encode(table)[0]
        except dp.DomainError:
            return None

    by_path = encoded(path)
    assert not same or by_path is not None
    for source, table in sources(path).items():
        found = encoded(table)
        assert not same or found is not None, source
        if by_path is not None and found is not None:
            # half precision has three digits
            np.testing.assert_allclose(found, by_path, atol=1e-3 if source == "half" else 1e-6, err_msg=source)


@pytest.mark.parametrize(
    ("labels", "entries"), [(["True", "False"], "True False True"), (["01", "1.50"], "01 1.50 01")]
)
def test_labels_are_compared_by_value(labels, entries, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,y\n" + "".join(f".5,{entry}\n" for entry in entries.split()))
    schema = dp.Schema({"a": (0, 1)}, "y", labels)
    for source, table in {"path": path, **sources(path)}.items():
        assert schema.encode(table)[1].tolist() == entries.split(), source


UNREADABLE = [b"a", [1], (1,), {"a": 1}, 1j, datetime.timedelta(1), np.timedelta64(1, "D"), pd.Timedelta("1D")]
UNREADABLE += [pd.Period("2020-01-31"), pd.Interval(0, 1), enum.Enum("Colour", "a").a, object(), Decimal("NaN")]
UNREADABLE += [np.array([1]), np.datetime64("20000-01-01")]


@pytest.mark.parametrize("entry", UNREADABLE, ids=lambda entry: type(entry).__name__)
def test_entries_of_an_unknown_kind_are_refused(entry):
    for column in (dp.Categorical(["a", "1"], **OTHER), dp.Numeric(0, 9), dp.Date("2020-01-01", "2021-01-01")):
        schema = dp.Schema({"a": column}, "y", ["0", "1"], absent=["99"])
        with pytest.raises(dp.DomainError, match=r"row 1, column 'a': .* is of type "):
            schema.encode(
                {"a": [None if column.missing else "5" if column.kind == "bounds" else "2020-01-31", entry]},
                labelled=False,
            )


@pytest.mark.parametrize(
    ("entry", "place"),
    [
        (Decimal("1.50"), 0),
        (np.float32(1.1), 1),
        (float(np.float32(1.1)), 1),
        (np.bool_(True), 2),
        (np.str_(" a "), 3),
        (np.datetime64("2020-01-31T00:00"), 4),
        (pd.Timestamp("2020-01-31"), 4),
        (datetime.time(10, 30), 5),
        (2**60 + 1, 6),
        (pd.NaT, 8),
        (pd.NA, 8),
        (np.datetime64("NaT"), 8),
        (np.float32(99.9), 8),
        (Decimal("99.9"), 8),
        (2**60, 7),
    ],
)
def test_entries_of_every_kind_are_read_by_value(entry, place):
    levels = ["1.5", "1.1", "true", "a", "2020-01-31", "10:30", str(2**60 + 1)]
    schema = dp.Schema({"a": dp.Categorical(levels, **OTHER)}, "y", ["0", "1"], absent=["99.9"])
    assert schema.encode({"a": [entry]}, labelled=False)[0].argmax() == place


def test_numbers_that_single_precision_may_have_rounded_to_a_mark_are_refused():
    schema = dp.Schema({"a": dp.Numeric(0, 1e9, missing="indicator")}, "y", ["0", "1"], absent=["99999999"])
    assert schema.encode({"a": [99999999, 1e8]}, labelled=False)[0][:, 1].tolist() == [1.0, 0.0]
    with pytest.raises(dp.DomainError, match=r"row 0, column 'a': .*double precision"):
        schema.encode({"a": np.array([99999999], dtype=np.float32)}, labelled=False)


def test_identifiers_that_are_one_number_in_a_frame_are_no_two_people_in_a_file(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,y,who\n" + "".join(f".5,0,{who}\n" for who in ("7", "07", "8")))
    schema = dp.Schema({"a": (0, 1)}, "y", ["0", "1"], privacy_unit="who", absent=["8"])
    privacy, learner = (
        dp.Privacy(1.0, unit="who", most=1),
        dp.load("logistic_regression", features=1, labels=("0", "1")),
    )
    data = dict(zip("xy", schema.encode(path), strict=True))
    with pytest.raises(dp.DomainError, match="without an identifier"):
        dp.solve(learner, data, privacy, unit=schema.units(path))
    for table in (path, pd.read_csv(path)):
        budget = dp.Budget(dp.Privacy(5.0))
        with pytest.raises(dp.DomainError, match="unit: "):
            dp.solve(learner, data, privacy, unit=replace(schema, absent=()).units(table), budget=budget)
        assert not budget.entries


def test_timestamps_of_pandas_are_identifiers():
    times = pd.to_datetime(["2020-01-31 12:00", "2020-01-31 13:00", "2020-01-31 12:00"])
    learner, data = dp.load("logistic_regression", features=1), {"x": [[0.1], [0.2], [0.3]], "y": [1, -1, 1]}
    for zone in (None, "UTC", "Europe/Berlin"):
        whose = pd.Series(times if zone is None else times.tz_localize(zone))
        fitted = dp.solve(learner, data, dp.Privacy(1.0, unit="time", most=2), unit=whose)
        assert fitted.certificate.size == 3
        with pytest.raises(dp.DomainError, match="more records than the 1"):
            dp.solve(learner, data, dp.Privacy(1.0, unit="time", most=1), unit=whose)


def test_a_bound_in_single_precision_and_a_long_cell_are_read(tmp_path):
    for k in range(1, 1000):
        schema = dp.Schema({"a": (-k / 10, k / 10)}, "y", label_bounds=(-k / 10, k / 10))
        ends = np.array([-k / 10, k / 10], dtype=np.float32)
        for single in (ends, ends.astype(float)):
            x, y = schema.encode({"a": single, "y": single})
            assert np.abs([x[:, 0], y]).max() <= 1.0
            np.testing.assert_allclose([x[:, 0], y], [[-1.0, 1.0]] * 2, rtol=1e-6)
        with pytest.raises(dp.DomainError, match="outside"):
            schema.encode({"a": np.nextafter(ends, np.float32(np.inf)), "y": ends})
    path = tmp_path / "t.csv"
    path.write_text(f"a,y,note\n.5,0,{'n' * 200_000}\n")
    assert dp.Schema({"a": (0, 1)}, "y", ["0", "1"]).encode(path)[1].tolist() == ["0"]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_files_with_other_separators_are_refused_with_a_remedy(tmp_path, mark):
    path = tmp_path / "de.csv"
    path.write_text(f"a{mark}y\n0,5{mark}no\n0,25{mark}yes\n", encoding="utf-8")
    schema = dp.Schema({"a": (-1, 1)}, "y", ["no", "yes"])
    with pytest.raises(dp.DomainError, match=r"read_csv\(.*sep=.*decimal"):
        schema.encode(path)
    assert schema.encode(pd.read_csv(path, sep=mark, decimal=","))[0].ravel().tolist() == [0.5, 0.25]
    path.write_text('a,y\n"0,5",no\n', encoding="utf-8")
    with pytest.raises(dp.DomainError, match="write decimal points"):
        schema.encode(path)


def test_whole_numbers_name_columns():
    table = pd.DataFrame({0: [0.5, -0.5], 1: [0.2, 0.1], 2: ["no", "yes"]})
    x, y = dp.Schema({0: (-1, 1), np.int64(1): (-1, 1)}, 2, ["no", "yes"], ignore=[3]).encode(table)
    named = dp.Schema({"0": (-1, 1), "1": (-1, 1)}, "2", ["no", "yes"])
    for held in (table, {str(name): table[name].tolist() for name in table}, dict(table)):
        again = named.encode(held)
        assert (again[0] == x).all()
        assert (again[1] == y).all()
    with pytest.raises(dp.DomainError, match="2 columns are called '0'"):
        named.encode({0: [0.5], "0": [0.5], 1: [0.1], 2: ["no"]})


def test_frames_of_dask_are_sent_to_partitions():
    dd = pytest.importorskip("dask.dataframe")
    frame = dd.from_pandas(pd.DataFrame({"a": [0.5, -0.5], "y": ["no", "yes"]}), npartitions=1)
    with pytest.raises(dp.DomainError, match=r"Partitions\(frame, schema\)"):
        dp.Schema({"a": (-1, 1)}, "y", ["no", "yes"]).encode(frame)


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


CONTAINERS = {
    "array": lambda values, last: values,
    "list": lambda values, last: list(values),
    "masked": lambda values, last: np.ma.array(values, mask=values == -1),
    "pandas": lambda values, last: pd.Series(values),
    "pandas, nullable": lambda values, last: pd.array([*values[:-1], pd.NA if last == -1 else last], dtype="Float32"),
    "pandas, categories": lambda values, last: pd.Series(pd.Categorical(values)),
    "polars": lambda values, last: pl.Series(values),
    "pyarrow": lambda values, last: pa.array(values),
}


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("container", CONTAINERS)
def test_an_entry_is_read_alike_whatever_stands_beside_it(container, kind):
    schema = Schema({"d": {"bounds": [0.1, 1], "missing": "indicator"}}, "y", labels=["no", "yes"], absent=["-1"])
    if kind is np.float16 and container in ("pandas, nullable", "pandas, categories"):
        pytest.skip("has no such numbers")
    found = []
    for last in (0.5, -1):
        column = CONTAINERS[container](np.array([0.1, 0.3, last], kind), last)
        found.append(schema.encode({"d": column, "y": ["no"] * 3})[0])
    assert (found[0][:2] == found[1][:2]).all()
    assert (found[0][2] != found[1][2]).any()
