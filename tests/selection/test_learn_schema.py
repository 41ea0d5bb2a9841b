"""Learnt schemas: what the counts tell of one person, how entries are read, and that no value makes them fail."""

import datetime
import decimal
import json
import math
from dataclasses import replace
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest
from learnt_tables import PRIVACY, SURPRISES, table_of, with_rows
from scipy.special import ndtr, ndtri
from sklearn.pipeline import make_pipeline

import dpconvex as dp
from dpconvex.accounting.events import Approximate, Gaussian, event_of
from dpconvex.mechanisms.noisy_queries import QueryNoise
from dpconvex.noise.gaussian import GRID_LOSS, failure_delta, gaussian_delta
from dpconvex.selection import learn_schema as module


class Transcript:
    """Answers that one run drew and a second run gets, with the exact sums of both."""

    def __init__(self, monkeypatch):
        self.answers, self.asked, self.replaying, self.place = [], [], False, 0
        original = QueryNoise.drawn

        def drawn(noise, scale, sums):
            if self.replaying:
                answer, first, known = self.answers[self.place]
                assert known == scale  # nothing but earlier answers decides it
                self.place += 1
                self.asked.append((np.asarray(sums), first, scale))
                return answer
            answer = original(noise, scale, sums)
            self.answers.append((answer, np.asarray(sums), scale))
            return answer

        monkeypatch.setattr(QueryNoise, "drawn", drawn)

    def shift(self):
        """Return how far the two runs are apart, in deviations of a Gaussian mechanism."""
        apart = [(float(((one - two) ** 2).sum()), scale**2 - 9) for one, two, scale in self.asked]
        return math.sqrt(sum(square / variance for square, variance in apart))


PATIENTS, OF_FOUR = np.repeat(np.arange(1500), 4)[:6000], {"unit": "patient", "most": 4}
ODD = {"age": -1e9, "ward": "west", "day": "?", "weight": 0, "cost": 1e300}
FAR = {"age": 1e9, "ward": "west", "day": "1999-01-01", "weight": 1e-9, "cost": -5}
NEIGHBOURS = {
    "replace-one": (dp.Privacy(3.0, 1e-4), {7: ODD}, None),
    "missing": (dp.Privacy(3.0, 1e-4), {7: dict.fromkeys(ODD)}, None),
    "add-remove": (dp.Privacy(3.0, 1e-4, "add-remove"), {7: None}, None),
    "people": (dp.Privacy(3.0, 1e-4, **OF_FOUR), dict.fromkeys(range(4), FAR), PATIENTS),
    "people come and go": (dp.Privacy(3.0, 1e-4, "add-remove", **OF_FOUR), dict.fromkeys(range(4)), PATIENTS),
}


def shift_of(name, monkeypatch):
    privacy, changed, whose = NEIGHBOURS[name]
    table, transcript = table_of(6000), Transcript(monkeypatch)
    del table["name"]  # no level of which is common: see `test_rare_levels`
    gone, options = [k for k, row in changed.items() if row is None], {"label": "cost", "seed": 0}
    whose = None if whose is None else whose.tolist()
    schema = dp.learn_schema(table, privacy, unit=whose, **options)
    transcript.replaying = True
    others = None if whose is None else [person for k, person in enumerate(whose) if k not in gone]
    again = dp.learn_schema(with_rows(table, changed), privacy, unit=others, **options)
    assert again.features == schema.features
    assert again.label_bounds == schema.label_bounds
    assert again.learnt.columns == schema.learnt.columns
    assert again.ignore == schema.ignore
    parts = event_of(schema.learnt.event).parts
    return transcript.shift(), next(part.mu for part in parts if isinstance(part, Gaussian))


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbours_are_as_far_apart_as_the_event_says(name, monkeypatch):
    found, claimed = shift_of(name, monkeypatch)
    assert 0 < found <= claimed
    if name == "replace-one":  # which takes all of it, but for counts in which a record stays where it was
        assert found > 0.7 * claimed


ERRORS = {
    "replace-one": lambda weights, moved: (weights, moved / 2**0.5),  # as if no record left a cell
    "add-remove": lambda weights, moved: (2 * weights, moved),
    "people": lambda weights, moved: (weights - weights + 2**16, moved),  # each record weighs as much as a person
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_planted_error_in_the_sensitivity_is_found(name, monkeypatch):
    original = module.Counts
    planted = lambda noise, weights, moved, tail: original(noise, *ERRORS[name](weights, moved), tail)  # noqa: E731
    monkeypatch.setattr(module, "Counts", planted)
    found, claimed = shift_of(name, monkeypatch)
    assert found > claimed


def passes(runs, people=1):
    """Return how often the level that these people alone have is learnt."""
    privacy = dp.Privacy(1.0, 0.2)
    table = {"ward": ["east", "west"] * 60 + ["secret"] * people, "cost": [0.0] * (120 + people)}
    options = {"label": "cost", "label_bounds": (0, 1), "known": {"ward": "category"}}
    found = (dp.learn_schema(table, privacy, seed=seed, **options) for seed in range(runs))
    return sum("secret" in schema.features["ward"].levels for schema in found)


def test_rare_levels_pass_as_seldom_as_the_event_says(monkeypatch):
    table = {"a": ["x", "y"] * 500, "b": [0] * 1000}
    schema = dp.learn_schema(table, dp.Privacy(1.0, 0.2), label="b", label_bounds=(0, 1))
    *_, lost = event_of(schema.learnt.event).parts
    assert isinstance(lost, Approximate)
    assert (lost.epsilon, lost.delta) <= (0, 0.02)
    runs = 500
    most = runs * lost.delta
    assert passes(runs) <= most + 4 * math.sqrt(most)
    group = event_of(schema.learnt.event).of_group(3).parts[-1].delta  # the counts of a group add up
    assert 0.2 * 100 < passes(100, 3) <= 100 * group
    # Planted: the threshold forgets the record itself.
    monkeypatch.setattr(module, "ndtri", lambda tail: ndtri(tail) + 1.2)
    assert passes(runs) > most + 4 * math.sqrt(most)


def test_the_threshold_covers_the_law_on_the_integers():
    privacy = dp.Privacy(0.5, 1e-6, unit="patient", most=3)
    _, tail, shares, event = module.counting_plan(privacy, {"a": None, "b": "category"}, "b", None)
    lost = event.parts[-1].delta
    assert tail * 3 * 2 == pytest.approx(lost)
    assert lost <= 1e-7
    mu = event.parts[0].mu
    assert sum(shares.values()) + module.COUNTING == pytest.approx(1)
    assert gaussian_delta(0.5, mu) + failure_delta(GRID_LOSS, 0.5) + lost <= 1e-6


def test_noise_passes_for_a_number_in_one_column_of_ten_thousand():
    cells = 2 * module.OCTAVE, 2 * module.COMMON
    assert cells[0] * ndtr(-module.FAR) + cells[1] * ndtr(-module.SURE) < 1.1e-4


def test_stated_shares_hold():
    wrong, total = 0, 0
    for seed in range(5):
        table = table_of(6000, seed)
        schema = dp.learn_schema(table, PRIVACY, label="cost", seed=seed)
        for name, outside in schema.learnt.columns.items():
            column, values = {**schema.features, schema.label: schema.target}[name], table[name]
            if isinstance(column, dp.Categorical):
                share = np.mean([value not in column.levels for value in values])
            else:
                numbers = np.array([column.reads(value) for value in values])
                share = np.mean((numbers < column.ends[0]) | (numbers > column.ends[1]))
            wrong, total = wrong + (share > outside), total + 1
    assert wrong <= 0.05 * total


def test_bounds_end_at_zero_unless_records_lie_beyond():
    rng = np.random.default_rng(0)
    claims, below = np.where(rng.random(6000) < 0.7, 0.0, rng.gamma(2.0, 200.0, 6000)), rng.uniform(-0.4, 10.0, 6000)
    for seed in range(6):
        table, share = {"claims": claims, "below": below, "x": claims > 0}, dp.Privacy(1.0, 2e-6)
        schema = dp.learn_schema(table, share, label="claims", known={"below": "number"}, seed=seed)
        assert schema.label_bounds[0] == 0  # a log link fits what exceeds the lower bound
        column = schema.features["below"]
        outside = np.mean((below < column.lower) | (below > column.upper))
        assert outside <= schema.learnt.columns["below"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scale", [5e-324, 1e-305, 1e305, 1.7e308])
def test_numbers_beyond_any_use_are_zeros_or_the_largest(scale):
    rng = np.random.default_rng(0)
    table = {"x": rng.choice([scale, -scale, 0.0], 5000), "z": rng.normal(size=5000), "y": rng.normal(size=5000)}
    schema = dp.learn_schema(table, dp.Privacy(3.0, 1e-6), label="y")
    assert ("x" in schema.features) == (scale > 1)
    found = np.unique(schema.encode(table)[0][:, 0]) if scale > 1 else np.zeros(3)
    assert len(found) == 3 or scale < 1


def test_a_file_of_an_earlier_version_counts_rare_levels_in_groups_and_once_in_its_ledger():
    """Events had a failure of probability p for rare levels, which adds up to too little for groups of people."""
    schema = dp.learn_schema(table_of(4000), PRIVACY, label="ward")
    *most, rare = schema.learnt.event["parts"]
    failure = {"kind": "tail", "probability": rare["delta"] / (1 + math.exp(PRIVACY.epsilon))}
    earlier = replace(schema.learnt, event={"kind": "composition", "parts": [*most, failure]})
    X, y = replace(schema, learnt=earlier).encode(table_of(4000))
    budget = dp.Budget(dp.Privacy(3.0, 1e-5))
    budget.spend(PRIVACY, earlier.entry, event_of(earlier.event))
    model = dp.SoftmaxRegression(epsilon=1.0, delta=1e-6, classes=schema.labels, budget=budget).fit(X, y)
    assert len(budget.entries) == 2
    group = model.release_.certificate.whole[1].of_group(4)
    assert sum(part.delta for part in group.leaves() if isinstance(part, Approximate)) > 10 * failure["probability"]


# Entries: none moves another one, and all tables are alike
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
    wards, budget = [odd, *table["ward"][1:]], dp.Budget(dp.Privacy(9.0, 1e-3))
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
    budget, short = dp.Budget(dp.Privacy(3.0, 1e-5)), dp.Partitions([halves[0], {"age": [1.0]}])
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
    codes, lines = 2**60 + 1 + 2 * np.arange(900), {own: np.linspace(0, 1, own) for own in (900, 1)}
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
