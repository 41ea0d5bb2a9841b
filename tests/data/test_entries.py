"""Entries are read by their value alone: alike out of a file and every frame of it, or refused."""

import datetime
import enum
from decimal import Decimal
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pytest

import dpconvex as dp
from dpconvex import Schema


def sources(path):
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


OTHER, YEAR, TEN = {"other": True, "missing": "indicator"}, ("2020-01-01", "2021-01-01"), "2020-01-31T10:00:00Z"
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
    "long ones": (dp.Categorical([f"900719925474099{k}" for k in "32"], **OTHER), ["9007199254740993", "", "1"], False),
    "names of missing": (dp.Categorical(["a", "b"], **OTHER), ["a", "None", "NA"], False),
    "a level that is read as missing": (dp.Categorical(["a", "NA"], missing="indicator"), ["a", "NA", "a"], False),
    "yes and no": (dp.Boolean("0", "1.0"), ["1.0", "0.0", "1.0"], True),
    "a truth value": (dp.Boolean(missing="indicator"), ["True", "", "FALSE"], True),
    "absent numbers": (dp.Numeric(0, 99, missing="indicator"), ["1", "99", "5"], True),
    "absent decimals": (dp.Numeric(0, 200, missing="indicator"), ["1.5", "99.0", "5"], True),
    "dates": (dp.Date(*YEAR, missing="indicator"), ["2020-01-31", "2020-12-31", "2020-03-01"], True),
    "times of a day": (dp.Categorical(["10:30", "11:00:00"], **OTHER), ["10:30", "11:00", "10:30"], True),
    "other times": (dp.Categorical(["10:30", "11:00"], **OTHER), ["10:30", "12:00", "10:30"], False),
    "short hours": (dp.Categorical(["9:30", "10:30"], **OTHER), ["9:30", "10:30", "9:30"], False),
    "times with zones": (dp.Categorical([TEN, "b"], **OTHER), [TEN, "2020-01-31T11:00:00+01:00", TEN], True),
    "days with zones": (dp.Date(*YEAR), ["2020-01-31T23:00:00-05:00"] * 3, False),
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


UNREADABLE = [b"a", [1], (1,), {"a": 1}, 1j, datetime.timedelta(1), np.timedelta64(1, "D"), pd.Timedelta("1D")]
UNREADABLE += [pd.Period("2020-01-31"), pd.Interval(0, 1), enum.Enum("Colour", "a").a, object(), Decimal("NaN")]
UNREADABLE += [np.array([1]), np.datetime64("20000-01-01")]


@pytest.mark.parametrize("entry", UNREADABLE, ids=lambda entry: type(entry).__name__)
def test_entries_of_an_unknown_kind_are_refused(entry):
    columns = {None: dp.Categorical(["a", "1"], **OTHER), "5": dp.Numeric(0, 9), "2020-01-31": dp.Date(*YEAR)}
    for first, column in columns.items():
        schema = dp.Schema({"a": column}, "y", ["0", "1"], absent=["99"])
        with pytest.raises(dp.DomainError, match=r"row 1, column 'a': .* is of type "):
            schema.encode({"a": [first, entry]}, labelled=False)


def test_numbers_that_single_precision_may_have_rounded_to_a_mark_are_refused():
    schema = dp.Schema({"a": dp.Numeric(0, 1e9, missing="indicator")}, "y", ["0", "1"], absent=["99999999"])
    assert schema.encode({"a": [99999999, 1e8]}, labelled=False)[0][:, 1].tolist() == [1.0, 0.0]
    with pytest.raises(dp.DomainError, match=r"row 0, column 'a': .*double precision"):
        schema.encode({"a": np.array([99999999], dtype=np.float32)}, labelled=False)


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


def test_masked_entries_of_lists_are_missing():
    schema, column = Schema({"d": dp.Numeric(0, 9, missing="indicator")}, "y", ["0", "1"]), [3.0, np.ma.masked]
    expected = schema.encode({"d": [3.0, None]}, labelled=False)[0]
    for given in (column, np.fromiter(column, dtype=object)):
        assert (schema.encode({"d": given}, labelled=False)[0] == expected).all()


def test_no_warning_tells_of_a_number_beyond_double_precision():
    values, column = np.array(["1", "1e400"], dtype=np.longdouble), dp.Numeric(0, 9)
    assert np.array_equal(column.readable(values), [1.0, np.nan], equal_nan=True)


@pytest.mark.parametrize("make", [partial(pd.Series, dtype="Int64"), partial(pd.array, dtype="UInt64"), pl.Series])
def test_long_numbers_keep_their_digits_beside_a_missing_one(make):
    codes = [2**53 + k for k in range(4)]
    schema = Schema({"d": {"levels": list(map(str, codes)), "missing": "indicator"}}, "y", labels=["no", "yes"])
    for last, place in ((codes[0], 0), (None, 4)):
        found = schema.encode({"d": make([*codes, last])}, labelled=False)[0]
        assert found.argmax(axis=1).tolist() == [0, 1, 2, 3, place]


def test_events_at_the_end_of_observation_are_seen_in_single_precision_too():
    schema = Schema({"age": (0, 99)}, "time", label_bounds=(0, 10.1), event={"died": dp.Boolean("no", "yes")})
    table = {"age": [1, 2, 3], "time": np.array([10.1, 10.1, 10.2], np.float32), "died": ["yes", "no", "yes"]}
    assert schema.records(table)["event"].tolist() == [1, 0, 0]
