"""Entries that schemas are learnt from and read: no value makes it fail, none moves another one, and all tables are alike."""

import datetime
import decimal
import json
import math
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest
from learnt_tables import PRIVACY, SURPRISES, table_of, with_rows
from sklearn.pipeline import make_pipeline

import dpconvex as dp

NOISY = "dpconvex.selection.learn_schema.Counts.noisy"


def test_no_value_makes_it_fail():
    table = {name: list(column) for name, column in table_of(4000).items()}
    for name in table:
        table[name][: len(SURPRISES)] = SURPRISES
    for label in ("cost", "ward"):
        schema = dp.learn_schema(table, dp.Privacy(3.0, 1e-6), label=label, absent=["?", "-999"])
        X, y = schema.encode(table)
        assert np.isfinite(X).all()
        assert len(y) == 4000
        assert np.linalg.norm(X, axis=1).max() <= 1 + 1e-9
        if label == "cost":
            dp.Ridge(epsilon=1.0, delta=1e-6, seed=0).fit(X, y)
        else:
            assert set(y) <= set(schema.labels)


def test_far_dates_of_frames_are_missing_ones():
    far = pl.Series("day", [10**7, *range(14_000, 18_999)], dtype=pl.Int32).cast(pl.Date)
    days = np.arange("2010-01-01", "2023-01-01", dtype="datetime64[D]")
    stamps = pd.Series(np.array(["20000-01-01", *days], "datetime64[s]"))
    for frame in (pl.DataFrame({"day": far, "y": range(5000)}), pd.DataFrame({"day": stamps, "y": range(len(stamps))})):
        schema = dp.learn_schema(frame, dp.Privacy(3.0, 1e-6), label="y")
        assert schema.features["day"].last < "2040"
        schema.encode(frame)


def test_what_is_beyond_is_clipped_on_every_path(tmp_path):
    table = table_of(4000)
    schema = dp.learn_schema(table, PRIVACY, label="cost", known={"age": "number"})
    odd = table | {"age": [1e9, "x", None, -1e9, *table["age"][4:]]}
    odd["cost"] = [1e9, math.nan, None, "x", *table["cost"][4:]]
    X, y = schema.encode(odd)
    assert np.allclose(y[:4], [1, 0, 0, 0])
    assert np.abs(X).max() <= 1
    sparse, again = schema.encode(odd, sparse=True)
    assert np.allclose(sparse.toarray(), X)
    assert (again == y).all()
    pd.DataFrame(table).to_parquet(tmp_path / "part.parquet")
    pd.DataFrame({**table, "age": [1e9, *table["age"][1:]]}).to_parquet(tmp_path / "part2.parquet")
    template = dp.load("ridge_regression", features=X.shape[1])
    found = dp.solve(template, dp.Partitions(tmp_path, schema), PRIVACY)
    assert np.isfinite(found.predict(X)).all()
    model = make_pipeline(dp.SchemaEncoder(schema), dp.Ridge(epsilon=1.0, delta=1e-6, bounds=schema))
    truth = np.array([1e9, math.nan, *table["cost"][2:]])
    low, high = schema.label_bounds
    assert model.fit(odd, truth).predict(odd).max() <= high + (high - low)
    additive = dp.AdditiveRegressor(schema, epsilon=1.0, delta=1e-6, bounds=schema).fit(odd, truth)
    assert np.isfinite(additive.predict(odd)).all()


@pytest.mark.parametrize("odd", [None, "rare", [1]], ids=str)
def test_estimators_read_learnt_labels_as_encode_does(odd):
    table = table_of(4000)
    schema = dp.learn_schema(table, dp.Privacy(3.0, 1e-6), label="ward")
    wards = [odd, *table["ward"][1:]]
    budget = dp.Budget(dp.Privacy(9.0, 1e-3))
    options = {"epsilon": 1.0, "delta": 1e-6}
    own = dp.load("softmax_regression", features=len(schema.feature_names), classes=3, labels=list(schema.labels))
    for model in (dp.SoftmaxRegression(classes=schema.labels, **options), dp.PrivateEstimator(own, **options)):
        make_pipeline(dp.SchemaEncoder(schema), model).fit(table, wards)
    two = dp.learn_schema(table | {"old": np.array(table["age"]) > 50}, PRIVACY, label="old", known={"old": "category"})
    old = [odd, *(age > 50 for age in table["age"][1:])]
    dp.AdditiveClassifier(two, **options).fit(table, old)
    declared = dp.learn_schema(table, PRIVACY, label="ward", labels=sorted({*table["ward"]}))
    model = dp.SoftmaxRegression(classes=declared.labels, budget=budget, **options)
    with pytest.raises(dp.DomainError, match=r"not declared|one value"):
        make_pipeline(dp.SchemaEncoder(declared), model).fit(table, wards)
    assert len(budget.entries) == 2  # with that of the schema: a value is looked at when it is paid for


def test_a_level_called_indicator_is_a_level():
    ward = ["indicator"] * 3000 + ["west"] * 999 + [None]
    table = {"age": np.arange(4000) % 90, "ward": ward}
    schema = dp.learn_schema(table, PRIVACY, label="ward")
    assert set(schema.encode(table)[1]) == {"indicator", "west"}


def test_numbers_that_stand_for_missing_values_never_make_it_fail():
    marked = np.array([2.0**25, *np.arange(3999)], dtype=np.float32)  # which single precision may have rounded
    table = {"x": marked, "y": np.arange(4000.0)}
    schema = dp.learn_schema(table, dp.Privacy(3.0, 1e-6), label="y", absent=[str(2**25)])
    assert np.isfinite(schema.encode(table)[0]).all()


def test_units_whose_rows_are_in_another_order_are_refused():
    frame = pd.DataFrame(table_of(4000))
    whose = pd.Series(np.arange(4000)).sample(frac=1, random_state=0)
    with pytest.raises(dp.DomainError, match="index"):
        dp.learn_schema(frame, dp.Privacy(3.0, 1e-6, unit="patient", most=2), label="cost", unit=whose)


def test_partitions_and_masked_entries_are_the_table_that_they_hold(tmp_path):
    table = table_of(1200)
    table["age"][3] = table["ward"][5] = None
    frame = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in table.items()})
    ages = np.ma.array([age or 0 for age in table["age"]], mask=[age is None for age in table["age"]])
    masked = table | {"age": ages}
    halves = [with_rows(table, dict.fromkeys(own)) for own in (range(500, 1200), range(500))]
    (tmp_path / "visits").mkdir()
    for k, half in enumerate(halves):
        pd.DataFrame(half).astype({"age": "Int64"}).to_parquet(tmp_path / "visits" / f"part{k}.parquet")
    known = {"age": "number", "cost": "number", "ward": "category"}
    options = {"label": "cost", "ignore": ["name", "day", "weight"], "known": known, "seed": 1}
    of_complex = {**table, "age": np.array([1j if age is None else age for age in table["age"]])}
    tables = table, frame, masked, dp.Partitions(halves), dp.Partitions([lambda: halves[0], lambda: halves[1]])
    tables = *tables, tmp_path / "visits", of_complex
    learnt = [dp.learn_schema(data, dp.Privacy(3.0, 1e-6), **options) for data in tables]
    assert len({json.dumps([schema.to_dict()[key] for key in ("features", "label_bounds")]) for schema in learnt}) == 1
    budget = dp.Budget(dp.Privacy(3.0, 1e-5))
    short = dp.Partitions([halves[0], {"age": [1.0]}])
    with pytest.raises(dp.errors.DomainError, match="no column"):
        dp.learn_schema(short, dp.Privacy(1.0, 1e-6), budget=budget, **options)
    assert not budget.entries


@pytest.mark.parametrize("odd", [np.array([np.nan]), np.array([None]), np.array(["x"]), np.array([0.5], np.float32)])
def test_a_partition_of_another_type_leaves_the_entries_of_others_what_they_are(odd, monkeypatch):
    """Numbers above 2^53 are others in floating point: one record beside them may move one count."""
    seen = []

    def counts(self, places, cells, level):
        seen.append(np.bincount(places, minlength=cells))
        return seen[-1].astype(float) * 100, 1e-3

    monkeypatch.setattr(NOISY, counts)
    codes = 2**60 + 1 + 2 * (np.arange(600) % 4)
    tables = [{"code": own, "y": np.linspace(0, 1, len(own))} for own in (codes, odd)]
    for parts in (tables[:1], tables):
        schema = dp.learn_schema(dp.Partitions(parts), PRIVACY, label="y", known={"code": "category"})
        assert {str(code) for code in codes[:4]} <= set(schema.features["code"].levels)


def test_people_are_who_they_are_beside_identifiers_of_another_type():
    privacy = dp.Privacy(3.0, 1e-6, unit="p", most=1, keep="first")
    codes = 2**60 + 1 + 2 * np.arange(900)
    lines = {own: np.linspace(0, 1, own) for own in (900, 1)}
    parts = [{"p": own, "x": lines[len(own)], "y": lines[len(own)]} for own in (codes, np.array([0.5]))]
    schema = dp.learn_schema(dp.Partitions(parts), privacy, label="y", unit="p", seed=0)
    assert schema.features["x"].lower < 0.1  # of one person nothing would be seen


@pytest.mark.parametrize("keep", ["first", "random"])
def test_texts_of_records_that_are_left_out_are_no_levels(keep, monkeypatch):
    """Each cell passes with a probability that so many levels of a person may have, and records of a person have any number."""
    monkeypatch.setattr(NOISY, lambda self, places, cells, level: (np.full(cells, 1e6), 1e-3))
    privacy = dp.Privacy(1.0, 1e-6, unit="p", most=1, keep=keep)
    table = {"ward": [*"ab" * 50, *map(str, range(40))], "y": [0.5] * 140, "p": [*range(100), *[100] * 40]}
    known = {"ward": "category"}
    schema = dp.learn_schema(table, privacy, label="y", label_bounds=(0, 1), known=known, unit="p")
    assert len(schema.features["ward"].levels) == 3


def test_entries_are_read_by_themselves(monkeypatch):
    zones = [ZoneInfo("UTC"), ZoneInfo("Asia/Tokyo")]
    times = [datetime.datetime(2020, 1, 1, 9, tzinfo=zones[1]), datetime.datetime(2020, 1, 1, 0, tzinfo=zones[0])]
    assert times[0] == times[1]
    entries = [*times, 1, 1.0, True, "1", decimal.Decimal("1.50"), decimal.Decimal("1.5"), *SURPRISES]
    seen = []

    def noisy(_, places, cells, level):
        seen.append(places.tolist())
        return np.full(cells, 1e6), 1e-3

    def read(column, **known):
        """Return the cells of the first count, and the levels of a category."""
        seen.clear()
        some = 300 * [0.0] * len(column)
        table = {"a": np.fromiter(300 * column, dtype=object), "b": some, "y": some}
        promise, known = dp.Privacy(9.0, 1e-6), {"b": (0, 1), **known}
        schema = dp.learn_schema(table, promise, label="y", label_bounds=(0, 1), known=known)
        return seen[0][: len(column)], set(schema.features["a"].levels) if "a" in known else set()

    monkeypatch.setattr(NOISY, noisy)
    kinds = [read([entry])[0][0] for entry in entries]
    assert {*kinds} == {0, 1, 2, 3}
    alone = [read([entry, "u", "v"], a="category")[1] for entry in entries]
    for order in (entries, entries[::-1]):
        assert read(order)[0] == kinds[:: 1 if order is entries else -1]
        assert read([*order, "u", "v"], a="category")[1] == set().union(*alone)
