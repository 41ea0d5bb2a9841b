"""Learnt schemas: what the counts tell of one person, what is refused, and that no value of a table makes them fail."""

import datetime
import decimal
import json
import math
from fractions import Fraction
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.special import ndtr, ndtri
from sklearn.pipeline import make_pipeline

import dpconvex as dp
from dpconvex.accounting.events import Gaussian, Tail, event_of
from dpconvex.mechanisms.noisy_queries import Queries
from dpconvex.selection import learn_schema as module

PRIVACY = dp.Privacy(1.0, 1e-6)


class Unspeakable:
    def __repr__(self):
        raise RuntimeError("nobody knows")


SURPRISES = [
    *(Unspeakable(), Fraction(10**5000, 10**5000 + 1), Fraction(1, 3), 2.0**60),
    *(None, math.nan, math.inf, "", "NA", "1e400", "9" * 5000, "0x1F", "12:00", "2020-13-45", "a,b", "1,5", "١٢"),
    *(b"x", [1], (1,), {1: 2}, 1j, decimal.Decimal("sNaN"), decimal.Decimal("1e400"), 10**400, True, "true", "\ud800"),
    *(datetime.timedelta(1), pd.NaT, pd.NA, np.datetime64("20000-01-01"), datetime.date(2020, 1, 1), object(), -0.0),
    *(5e-324, 1e308, -1e308, np.float32(1.1), np.longdouble(3), datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)),
]


def table_of(n, seed=0):
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, n)
    return {
        "age": age.tolist(),
        "ward": rng.choice(["east", "west", "north"], n).tolist(),
        "day": [
            f"20{year}-0{month}-11" for year, month in zip(rng.integers(10, 20, n), rng.integers(1, 9, n), strict=True)
        ],
        "name": [f"person {k}" for k in range(n)],
        "weight": np.exp(rng.normal(4, 0.3, n)).tolist(),
        "cost": (100 + 3 * age + rng.normal(0, 20, n)).tolist(),
    }


def with_rows(table, changed):
    """Return a table with some rows replaced; None leaves a row out."""
    count = len(next(iter(table.values())))
    return {
        name: [changed.get(k, {}).get(name, column[k]) for k in range(count) if changed.get(k, {}) is not None]
        for name, column in table.items()
    }


class Transcript:
    """Answers that one run drew and a second run gets, with the exact sums of both."""

    def __init__(self, monkeypatch):
        self.answers, self.asked, self.replaying, self.place = [], [], False, 0
        original = Queries.drawn

        def drawn(queries, scale, sums):
            if self.replaying:
                answer, first, known = self.answers[self.place]
                assert known == scale  # nothing but earlier answers decides it
                self.place += 1
                self.asked.append((np.asarray(sums), first, scale))
                return answer
            answer = original(queries, scale, sums)
            self.answers.append((answer, np.asarray(sums), scale))
            return answer

        monkeypatch.setattr(Queries, "drawn", drawn)

    def shift(self):
        """Return how far the two runs are apart, in deviations of a Gaussian mechanism."""
        apart = [(float(((one - two) ** 2).sum()), scale**2 - 9) for one, two, scale in self.asked]
        return math.sqrt(sum(square / variance for square, variance in apart))


NEIGHBOURS = {
    "replace-one": (
        dp.Privacy(3.0, 1e-4),
        {7: {"age": -1e9, "ward": "west", "day": "?", "weight": 0, "cost": 1e300}},
        None,
    ),
    "missing": (dp.Privacy(3.0, 1e-4), {7: dict.fromkeys(("age", "ward", "day", "weight", "cost"))}, None),
    "add-remove": (dp.Privacy(3.0, 1e-4, "add-remove"), {7: None}, None),
    "people": (
        dp.Privacy(3.0, 1e-4, unit="patient", most=4),
        {k: {"age": 1e9, "ward": "west", "day": "1999-01-01", "weight": 1e-9, "cost": -5} for k in range(4)},
        np.repeat(np.arange(1500), 4)[:6000],
    ),
    "people come and go": (
        dp.Privacy(3.0, 1e-4, "add-remove", unit="patient", most=4),
        dict.fromkeys(range(4)),
        np.repeat(np.arange(1500), 4)[:6000],
    ),
}


def shift_of(name, monkeypatch):
    privacy, changed, whose = NEIGHBOURS[name]
    table, transcript = table_of(6000), Transcript(monkeypatch)
    del table["name"]  # no level of which is common: see `test_rare_levels`
    gone = [k for k, row in changed.items() if row is None]
    options = {"label": "cost", "seed": 0}
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
    planted = lambda queries, weights, moved, tail: original(queries, *ERRORS[name](weights, moved), tail)  # noqa: E731
    monkeypatch.setattr(module, "Counts", planted)
    found, claimed = shift_of(name, monkeypatch)
    assert found > claimed


def passes(runs):
    """Return how often the level that one person alone has is learnt."""
    privacy = dp.Privacy(1.0, 0.2)
    table = {"ward": ["east", "west"] * 60 + ["secret"], "cost": [0.0] * 121}
    options = {"label": "cost", "label_bounds": (0, 1), "known": {"ward": "category"}}
    found = (dp.learn_schema(table, privacy, seed=seed, **options) for seed in range(runs))
    return sum("secret" in schema.features["ward"].levels for schema in found)


def test_rare_levels_pass_as_seldom_as_the_event_says(monkeypatch):
    schema = dp.learn_schema(
        {"a": ["x", "y"] * 500, "b": [0] * 1000}, dp.Privacy(1.0, 0.2), label="b", label_bounds=(0, 1)
    )
    *_, lost = event_of(schema.learnt.event).parts
    assert isinstance(lost, Tail)
    assert (1 + math.e) * lost.probability <= 0.02
    runs = 500
    most = runs * lost.probability
    assert passes(runs) <= most + 4 * math.sqrt(most)
    # Planted: the threshold forgets the record itself.
    monkeypatch.setattr(module, "ndtri", lambda tail: ndtri(tail) + 1.2)
    assert passes(runs) > most + 4 * math.sqrt(most)


def test_the_threshold_covers_the_law_on_the_integers():
    _, tail, shares, event = module.planned(
        dp.Privacy(0.5, 1e-6, unit="patient", most=3), {"a": None, "b": "category"}, "b", None
    )
    lost = event.parts[-1].probability
    assert tail * 3 * 2 == pytest.approx(lost)
    assert (1 + math.exp(0.5)) * lost <= 1e-7
    mu = event.parts[0].mu
    assert sum(shares.values()) + module.COUNTING == pytest.approx(1)
    from dpconvex.noise.gaussian import gaussian_delta, grid_loss

    assert gaussian_delta(0.5, mu) + grid_loss(0.5) + (1 + math.exp(0.5)) * lost <= 1e-6


def test_noise_passes_for_a_number_in_one_column_of_ten_thousand():
    cells = 2 * module.OCTAVE, 2 * module.COMMON
    assert cells[0] * ndtr(-module.FAR) + cells[1] * ndtr(-module.SURE) < 1.1e-4


def test_bounds_and_levels_are_close():
    schema = dp.learn_schema(table_of(20_000), dp.Privacy(2.0, 1e-6), label="cost")
    age, ward, day = (schema.features[name] for name in ("age", "ward", "day"))
    assert 10 < age.lower < 30
    assert 80 < age.upper < 110
    assert set(ward.levels) == {"east", "west", "north"}
    assert ward.reference in ward.levels
    assert "2005" < day.first < "2011"
    assert "2018" < day.last < "2022"
    assert schema.ignore == ("name",)  # no two have one
    low, high = schema.label_bounds
    assert 50 < low < 200
    assert 330 < high < 500
    assert schema.learnt.columns.keys() == {"age", "ward", "day", "weight", "cost"}


def test_stated_shares_hold():
    wrong, total = 0, 0
    for seed in range(5):
        table = table_of(6000, seed)
        schema = dp.learn_schema(table, PRIVACY, label="cost")
        for name, outside in schema.learnt.columns.items():
            column, values = {**schema.features, schema.label: schema.target}[name], table[name]
            if isinstance(column, dp.Categorical):
                share = np.mean([value not in column.levels for value in values])
            else:
                numbers = np.array([column.reads(value) for value in values])
                share = np.mean((numbers < column.ends[0]) | (numbers > column.ends[1]))
            wrong, total = wrong + (share > outside), total + 1
    assert wrong <= 0.05 * total


@pytest.mark.parametrize("scale", [1e-300, 1e-20, 1.0, 1e20, 1e300])
def test_numbers_of_any_size(scale):
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 5, 5000)
    schema = dp.learn_schema({"x": x * scale, "y": x}, dp.Privacy(3.0, 1e-6), label="y")
    column = schema.features["x"]
    assert -6 < column.lower / scale < -2
    assert 4 < column.upper / scale < 9


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scale", [5e-324, 1e-305, 1e305, 1.7e308])
def test_numbers_beyond_any_use_are_zeros_or_the_largest(scale):
    rng = np.random.default_rng(0)
    table = {"x": rng.choice([scale, -scale, 0.0], 5000), "z": rng.normal(size=5000), "y": rng.normal(size=5000)}
    schema = dp.learn_schema(table, dp.Privacy(3.0, 1e-6), label="y")
    assert ("x" in schema.features) == (scale > 1)
    found = np.unique(schema.encode(table)[0][:, 0]) if scale > 1 else np.zeros(3)
    assert len(found) == 3 or scale < 1


def test_missing_values_are_paid_for():
    table = table_of(6000)
    table["age"] = [None if k % 3 else age for k, age in enumerate(table["age"])]
    table["ward"] = ["?" if k % 4 == 0 else ward for k, ward in enumerate(table["ward"])]
    schema = dp.learn_schema(table, dp.Privacy(3.0, 1e-6), label="cost", absent=["?"])
    assert schema.features["age"].missing == "indicator"
    assert schema.features["ward"].missing == "indicator"
    assert "?" not in schema.features["ward"].levels


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


def test_frames_of_any_kind_say_the_same():
    table = table_of(4000)
    frames = [table, pd.DataFrame(table), pl.DataFrame(table), pd.DataFrame(table).astype({"age": float})]
    found = [dp.learn_schema(frame, PRIVACY, label="cost", seed=1) for frame in frames]
    assert all(one.features == found[0].features and one.label_bounds == found[0].label_bounds for one in found)


def test_far_dates_of_frames_are_missing_ones():
    far = pl.Series("day", [10**7, *range(14_000, 18_999)], dtype=pl.Int32).cast(pl.Date)
    stamps = pd.Series(
        np.array(["20000-01-01", *np.arange("2010-01-01", "2023-01-01", dtype="datetime64[D]")], "datetime64[s]")
    )
    for frame in (pl.DataFrame({"day": far, "y": range(5000)}), pd.DataFrame({"day": stamps, "y": range(len(stamps))})):
        schema = dp.learn_schema(frame, dp.Privacy(3.0, 1e-6), label="y")
        assert schema.features["day"].last < "2040"
        schema.encode(frame)


def test_entries_are_read_by_themselves(monkeypatch):
    zones = [ZoneInfo("UTC"), ZoneInfo("Asia/Tokyo")]
    times = [datetime.datetime(2020, 1, 1, 9, tzinfo=zones[1]), datetime.datetime(2020, 1, 1, 0, tzinfo=zones[0])]
    assert times[0] == times[1]
    entries = [*times, 1, 1.0, True, "1", decimal.Decimal("1.50"), decimal.Decimal("1.5"), *SURPRISES]
    alone = [module.facts(entry, frozenset()) for entry in entries]
    counts = module.Counts(None, np.ones(len(entries), dtype=np.int64), 1.0, 0.1)
    seen = []

    def noisy(_, places, cells, level):
        seen.append(places)
        return np.eye(cells)[-1], 1.0

    monkeypatch.setattr(module.Counts, "noisy", noisy)
    monkeypatch.setattr(module.Counts, "levels", lambda _, texts, level: seen.append(texts))
    for order in (np.arange(len(entries)), np.arange(len(entries))[::-1]):
        seen.clear()
        counts.column(np.fromiter((entries[k] for k in order), dtype=object), frozenset(), None, 1.0)
        kinds, texts = seen
        assert kinds.tolist() == [alone[k][0] for k in order]
        assert texts == [module.level_of(entries[k]) if alone[k][0] else "" for k in order]


# What is refused, and what it costs


def test_too_few_records_are_refused_before_anything_is_paid():
    budget = dp.Budget(dp.Privacy(3.0, 1e-5))
    with pytest.raises(dp.NotPrivate, match=r"records.*nothing was spent"):
        dp.learn_schema(table_of(100), dp.Privacy(0.2, 1e-6), label="cost", budget=budget)
    assert not budget.entries


@pytest.mark.parametrize("rows", [0, 40])
def test_where_their_number_is_protected_noise_refuses_them(rows):
    budget = dp.Budget(dp.Privacy(3.0, 1e-5, "add-remove"))
    with pytest.raises(dp.NotConverged, match="stays paid"):
        dp.learn_schema(table_of(rows), dp.Privacy(0.2, 1e-6, "add-remove"), label="cost", budget=budget)
    assert len(budget.entries) == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"known": {"age": "figure"}}, "known"),
        ({"known": {"cost": "date"}}, "known"),
        ({"known": {"height": "number"}}, "known"),
        ({"known": {"cost": (0, 5)}}, "known"),
        ({"ignore": "name"}, "ignore"),
        ({"ignore": ["cost"]}, "twice"),
        ({"labels": ["a", "b"], "label_bounds": (0, 1)}, "either"),
        ({"unit": "name"}, "unit"),
        (
            {
                "known": dict.fromkeys(("age", "weight"), (0, 1)),
                "ignore": ["day", "name", "ward"],
                "label_bounds": (0, 9),
            },
            "declared",
        ),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_anything_is_paid(options, why):
    budget = dp.Budget(dp.Privacy(3.0, 1e-5))
    with pytest.raises(dp.TemplateError, match=why):
        dp.learn_schema(table_of(4000), PRIVACY, **{"label": "cost", "budget": budget, **options})
    assert not budget.entries


def test_a_pure_guarantee_is_refused():
    with pytest.raises(dp.NotPrivate, match="delta"):
        dp.learn_schema(table_of(4000), dp.Privacy(1.0), label="cost")


def test_declared_columns_cost_nothing():
    ward = dp.Categorical(["east", "west", "north"])
    known = {"ward": ward, "age": (0, 120), "weight": "number"}
    schema = dp.learn_schema(table_of(4000), PRIVACY, label="cost", known=known, ignore=["name", "day"])
    assert schema.features["ward"] == ward
    assert schema.features["age"] == dp.Numeric(0, 120)
    assert schema.learnt.columns.keys() == {"weight", "cost"}


# What it is, once it was learnt


def test_it_is_saved_with_its_cost(tmp_path):
    schema = dp.learn_schema(table_of(4000), PRIVACY, label="ward")
    path = tmp_path / "learnt.toml"
    path.write_text(schema.to_toml(), encoding="utf-8")
    assert dp.Schema.load(path) == schema == dp.Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    assert event_of(dp.Schema.load(path).learnt.event).parts[0].mu > 0.2
    X, y = schema.encode(table_of(4000))
    model = dp.SoftmaxRegression(epsilon=1.0, delta=1e-6, classes=schema.labels).fit(X, y)
    model.save(tmp_path / "model.npz")
    release = dp.Release.load(tmp_path / "model.npz")
    assert release.schema == schema
    assert release.private
    assert "to learn the schema, spent: epsilon = 1" in release.status


def test_a_seeded_one_is_not_private(tmp_path):
    schema = dp.learn_schema(table_of(4000), PRIVACY, label="cost", seed=0)
    assert "NOT PRIVATE" in schema.learnt.status
    assert "NOT PRIVATE" in str(schema.learnt)
    X, y = schema.encode(table_of(4000))
    release = dp.solve(dp.load("ridge_regression", features=X.shape[1]), {"x": X, "y": y}, PRIVACY)
    assert not release.private
    assert "NOT PRIVATE" in release.status
    assert not dp.Ridge(epsilon=1.0, delta=1e-6).fit(X, y).release_.private


def test_a_budget_counts_it_once():
    table = table_of(4000)
    own, later = dp.Budget(dp.Privacy(9.0, 1e-4)), dp.Budget(dp.Privacy(9.0, 1e-4))
    schema = dp.learn_schema(table, PRIVACY, label="cost", budget=own)
    X, y = schema.encode(table)
    template = dp.load("ridge_regression", features=X.shape[1])
    for budget in (own, later):
        dp.solve(template, {"x": X, "y": y}, PRIVACY, budget=budget)
        dp.Ridge(epsilon=1.0, delta=1e-6, budget=budget).fit(X, y)
        make_pipeline(dp.SchemaEncoder(schema), dp.Ridge(epsilon=1.0, delta=1e-6, budget=budget, bounds=schema)).fit(
            table, table["cost"]
        )
        assert [entry.label for entry in budget.entries].count(schema.learnt.entry) == 1
        assert len(budget.entries) == 4
        assert budget.spent.epsilon == 4.0
    with pytest.raises(dp.BudgetExceeded):
        dp.Ridge(epsilon=1.0, delta=1e-6, budget=dp.Budget(dp.Privacy(1.5, 1e-4))).fit(X, y)


def test_a_second_label_takes_over_what_was_learnt():
    table = {name: column for name, column in table_of(4000).items() if name in ("age", "ward", "cost")}
    table["again"] = ["no", "yes"] * 2000
    first = dp.learn_schema(table, PRIVACY, label="again", ignore=["cost"])
    later, public = (
        dp.learn_schema(table, PRIVACY, label="cost", known=first),
        first.with_label("cost", label_bounds=(0, 9)),
    )
    budget = dp.Budget(dp.Privacy(9.0, 1e-4))
    for schema, paid in ((later, 3.0), (public, 4.0)):
        assert schema.features == first.features
        assert dp.Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema
        X, y = schema.encode({**table, "age": ["x", *table["age"][1:]], "ward": ["never seen", *table["ward"][1:]]})
        release = dp.solve(dp.load("ridge_regression", features=X.shape[1]), {"x": X, "y": y}, PRIVACY, budget=budget)
        assert budget.spent.epsilon == paid
        assert release.certificate.whole[0].epsilon == (3.0 if schema is later else 2.0)
        assert not release.schema.decode_target(y).max() > schema.label_bounds[1]
    with pytest.warns(dp.PrivacyWarning, match=r"outside \[-1, 1\]"):
        later.decode_target([100.0, 200.0])


def test_fields_of_two_schemas_learnt_apart_are_refused_since_one_would_not_be_charged():
    table = {name: column for name, column in table_of(2000).items() if name in ("age", "cost")}
    one, other = (dp.learn_schema(table, PRIVACY, label="cost") for _ in range(2))
    X, y, budget = one.encode(table)[0], other.encode(table)[1], dp.Budget(dp.Privacy(9.0, 1e-4))
    template = dp.load("ridge_regression", features=X.shape[1])
    for fit in (
        lambda: dp.solve(template, {"x": X, "y": y}, PRIVACY, budget=budget),
        lambda: dp.statistics(template, {"x": X, "y": y}, PRIVACY, budget=budget),
        lambda: dp.Ridge(epsilon=1.0, delta=1e-6, bounds=other, budget=budget).fit(X, table["cost"]),
    ):
        with pytest.raises(dp.TemplateError, match="learnt apart"):
            fit()
    assert not budget.entries


def test_missing_dates_are_in_the_middle():
    days = (np.datetime64("2020-01-01") + np.arange(4000) % 900).astype(str)
    schema = dp.learn_schema({"day": days, "y": np.arange(4000) % 7}, dp.Privacy(4.0, 1e-6), label="y")
    day = schema.features["day"]
    X, _ = schema.encode({"day": [day.first, None, day.last], "y": [0, 0, 0]})
    assert abs(X[1, 0] - (X[0, 0] + X[2, 0]) / 2) < 0.01


def test_what_is_beyond_is_clipped_on_every_path(tmp_path):
    table = table_of(4000)
    schema = dp.learn_schema(table, PRIVACY, label="cost", known={"age": "number"})
    odd = {
        **table,
        "age": [1e9, "x", None, -1e9, *table["age"][4:]],
        "cost": [1e9, math.nan, None, "x", *table["cost"][4:]],
    }
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


def test_estimators_behind_an_encoder_take_labels_that_were_not_learnt():
    table = table_of(4000)
    schema = dp.learn_schema(table, PRIVACY, label="ward", ignore=["name"])
    wards = ["never seen", None, *table["ward"][2:]]
    model = dp.SoftmaxRegression(epsilon=1.0, delta=1e-6, classes=schema.labels)
    pipeline = make_pipeline(dp.SchemaEncoder(schema), model).fit(table, np.array(wards, dtype=object))
    assert set(pipeline.predict(table)) <= set(schema.labels)


def test_counts_take_learnt_bounds():
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 5000)
    table = {"x": x, "visits": rng.poisson(np.exp(2 * x))}
    schema = dp.learn_schema(table, dp.Privacy(2.0, 1e-6), label="visits", seed=0)
    assert schema.label_bounds[0] == 0
    X, _ = schema.encode(table)
    model = dp.PoissonRegressor(epsilon=2.0, delta=1e-6, bounds=schema).fit(X, table["visits"])
    low, high = model.predict(schema.encode({"x": [0.1, 0.9], "visits": [0, 0]})[0])
    assert 0.5 < low < 3 < high < 10


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


def test_one_complex_number_moves_no_other_record():
    plain, mixed = np.arange(90.0), np.where(np.arange(90) == 7, 7 + 1j, np.arange(90.0))
    found = [[module.facts(entry, frozenset()) for entry in column.tolist()] for column in (plain, mixed)]
    assert [k for k, (one, other) in enumerate(zip(*found, strict=True)) if str(one) != str(other)] == [7]


def test_a_cheaper_promise_than_its_event_is_not_charged():
    table = {"age": np.arange(4000) % 90, "ward": ["east", "west"] * 2000, "cost": np.arange(4000.0)}
    said = dp.learn_schema(table, dp.Privacy(1.0, 1e-6), label="cost").to_dict()
    said["learnt"]["privacy"] |= {"epsilon": 1e-6, "delta": 1e-30}
    schema = dp.Schema.from_dict(said)
    X, y = schema.encode(table)
    budget = dp.Budget(dp.Privacy(3.0, 1e-5))
    with pytest.raises(dp.TemplateError, match="its event costs more"):
        dp.solve(
            dp.load("ridge_regression", features=X.shape[1]), {"x": X, "y": y}, dp.Privacy(1.0, 1e-6), budget=budget
        )
    assert not budget.entries


def test_clusters_are_charged_for_the_schema_that_made_their_features():
    table = {"age": np.arange(4000) % 90, "ward": ["east", "west"] * 2000, "cost": np.arange(4000.0)}
    schema = dp.learn_schema(table, dp.Privacy(1.0, 1e-6), label="cost")
    x, _ = schema.encode(table)
    budget = dp.Budget(dp.Privacy(5.0, 1e-5))
    record = dp.Record(x=dp.Ball(x.shape[1]))
    for entry in ("one", "two"):
        dp.cluster(record, {"x": x}, dp.Privacy(1.0, 1e-6), components=2, group=None, budget=budget, entry=entry)
    assert [item.label for item in budget.entries] == [schema.learnt.entry, "one", "two"]


def test_partitions_and_masked_entries_are_the_table_that_they_hold(tmp_path):
    table = table_of(1200)
    table["age"][3] = table["ward"][5] = None
    frame = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in table.items()})
    masked = {
        **table,
        "age": np.ma.array([age or 0 for age in table["age"]], mask=[age is None for age in table["age"]]),
    }
    halves = [with_rows(table, dict.fromkeys(own)) for own in (range(500, 1200), range(500))]
    (tmp_path / "visits").mkdir()
    for k, half in enumerate(halves):
        pd.DataFrame(half).astype({"age": "Int64"}).to_parquet(tmp_path / "visits" / f"part{k}.parquet")
    known = {"age": "number", "cost": "number", "ward": "category"}
    options = {"label": "cost", "ignore": ["name", "day", "weight"], "known": known, "seed": 1}
    learnt = [
        dp.learn_schema(data, dp.Privacy(3.0, 1e-6), **options)
        for data in (table, frame, masked, dp.Partitions(halves), dp.Partitions([lambda: halves[0], lambda: halves[1]]))
    ]
    learnt.append(dp.learn_schema(tmp_path / "visits", dp.Privacy(3.0, 1e-6), **options))
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

    monkeypatch.setattr(module.Counts, "noisy", counts)
    codes = 2**60 + 1 + 2 * (np.arange(600) % 4)
    tables = [{"code": own, "y": np.linspace(0, 1, len(own))} for own in (codes, odd)]
    for parts in (tables[:1], tables):
        schema = dp.learn_schema(dp.Partitions(parts), PRIVACY, label="y", known={"code": "category"})
        assert {str(code) for code in codes[:4]} <= set(schema.features["code"].levels)


def test_people_are_who_they_are_beside_identifiers_of_another_type():
    privacy = dp.Privacy(3.0, 1e-6, unit="p", most=1, keep="first")
    codes = 2**60 + 1 + 2 * np.arange(900)
    parts = [
        {"p": own, "x": np.linspace(0, 1, len(own)), "y": np.linspace(0, 1, len(own))}
        for own in (codes, np.array([0.5]))
    ]
    schema = dp.learn_schema(dp.Partitions(parts), privacy, label="y", unit="p", seed=0)
    assert schema.features["x"].lower < 0.1  # of one person nothing would be seen


@pytest.mark.parametrize("keep", ["first", "random"])
def test_texts_of_records_that_are_left_out_are_no_levels(keep, monkeypatch):
    """Each cell passes with a probability that so many levels of a person may have, and records of a person have any number."""
    monkeypatch.setattr(module.Counts, "noisy", lambda self, places, cells, level: (np.full(cells, 1e6), 1e-3))
    privacy = dp.Privacy(1.0, 1e-6, unit="p", most=1, keep=keep)
    table = {"ward": [*"ab" * 50, *map(str, range(40))], "y": [0.5] * 140, "p": [*range(100), *[100] * 40]}
    known = {"ward": "category"}
    schema = dp.learn_schema(table, privacy, label="y", label_bounds=(0, 1), known=known, unit="p")
    assert len(schema.features["ward"].levels) == 3


@pytest.fixture(scope="module")
def seeded():
    """A table of two columns, with a schema that is not private."""
    rng = np.random.default_rng(0)
    table = {"age": rng.uniform(0, 90, 4000), "cost": rng.normal(size=4000)}
    table["cost"] += table["age"] / 30
    return table, dp.learn_schema(table, dp.Privacy(3.0, 1e-6), label="cost", seed=0)


def test_every_result_states_and_pays_what_its_schema_cost(seeded, tmp_path):
    table, schema = seeded
    X, y = schema.encode(table)
    learner, data = dp.load("ridge_regression", features=1), {"x": X, "y": y}
    budgets = [dp.Budget(dp.Privacy(99.0, 1e-4)) for _ in range(3)]
    functions = dp.fitting.release.functions_of(learner)
    release = dp.Release({"w": [0.5]}, spent=dp.Privacy(3.0, 1e-6), schema=schema, **functions)
    found = [
        dp.evaluate(learner, release, data, dp.Privacy(1.0), budget=budgets[0]),
        dp.cluster(dp.Record(x=dp.Ball(1)), {"x": X}, PRIVACY, group=None, budget=budgets[1]),
        dp.intervals(learner, release, data, dp.Privacy(3.0, 1e-6), budget=budgets[2]),
    ]
    for one, budget in zip(found, budgets, strict=True):
        assert not one.private
        assert "to learn the schema, NOT PRIVATE" in one.status
        assert [item.label for item in budget.entries][:1] == [schema.learnt.entry]
        assert len(budget.entries) == 2
    assert "to learn the schema" in repr(found[2])
    (tmp_path / "intervals.json").write_text(json.dumps(found[2].to_dict()), encoding="utf-8")
    again = [dp.Evaluation.from_dict(json.loads(json.dumps(found[0].to_dict())))]
    again.append(dp.ComponentCenters.from_bytes(found[1].to_bytes()))
    again.append(dp.Coefficients.load(tmp_path / "intervals.json"))
    assert [one.status for one in again] == [one.status for one in found]


def test_an_evaluation_of_a_release_without_a_guarantee_has_none():
    data = {"x": [[0.5], [-0.5]] * 50, "y": [1, -1] * 50}
    learner = dp.load("logistic_regression", features=1)
    release = dp.Release(
        {"w": [1.0]}, not_private_because="no noise was added", **dp.fitting.release.functions_of(learner)
    )
    found = dp.evaluate(learner, release, data, dp.Privacy(1.0))
    assert found.status == "NOT PRIVATE: no noise was added"
    assert found.spent == dp.Privacy(1.0)


MADE = {
    "multiplied": lambda X, _: X * 1.0,
    "cast": lambda X, _: X.astype(np.float32),
    "stacked": lambda X, _: np.hstack([X, np.zeros_like(X)]),
    "normalised": lambda X, _: dp.GroupNormalizer(1).fit_transform(np.hstack([X, 1 - X])),
    "Fourier features": lambda X, _: dp.RandomFourierFeatures(1, 3).transform(X),
    "splines": lambda _, schema: dp.SplineEncoder(schema).fit_transform({"age": [3.0, 5.0] * 2000}),
    "sparse rows": lambda _, schema: schema.encode({"age": [3.0] * 4000}, labelled=False, sparse=True)[0][::1] * 0.5,
}


@pytest.mark.parametrize("way", MADE)
def test_arrays_that_are_computed_from_features_keep_the_cost_of_their_schema(way, seeded):
    table, schema = seeded
    X, y = schema.encode(table)
    x, budget = MADE[way](X, schema), dp.Budget(dp.Privacy(9.0, 1e-4))
    learner = dp.load("ridge_regression", features=x.shape[1])
    found = dp.statistics(learner, {"x": x, "y": np.asarray(y)}, PRIVACY, budget=budget)
    assert budget.entries[0].label == schema.learnt.entry
    assert found.schema is None
    assert not found.private
    assert dp.Statistics.from_bytes(found.to_bytes()).status == found.fit().status == found.status
    if way == "splines":
        assert not dp.Ridge(epsilon=1.0, delta=1e-6).fit(x, np.asarray(y)).release_.private


@pytest.mark.parametrize("tail", [0.0, 4.74e-8])
def test_a_cheaper_event_than_its_promise_is_refused(tail, seeded):
    _, schema = seeded
    said = schema.to_dict()
    parts = [{"kind": "gaussian", "mu": 1e-9}, {"kind": "tail", "probability": tail}]
    said["learnt"]["event"] = {"kind": "composition", "parts": parts}
    forged = dp.Schema.from_dict(said)
    with pytest.raises(dp.TemplateError, match="its event costs less"):
        dp.Release({"w": [1.0]}, spent=PRIVACY, schema=forged)
    with pytest.raises(dp.TemplateError, match="its event costs less"):
        dp.learn_schema(table_of(4000), PRIVACY, label="ward", known=forged)


def test_masked_entries_of_lists_are_missing(seeded):
    _, schema = seeded
    column = [3.0, np.ma.masked]
    for given in (column, np.fromiter(column, dtype=object)):
        assert (
            schema.encode({"age": given}, labelled=False)[0] == schema.encode({"age": [3.0, None]}, labelled=False)[0]
        ).all()
