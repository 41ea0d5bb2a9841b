"""Columns and rows keep their names: every fit remembers columns and schemas, and indexes that differ are refused."""

from functools import partial

import cvxpy as cp
import numpy as np
import pandas as pd
import polars as pl
import pytest
from learners_of_tests import X, Y as SIGNS
from refused import refused
from sklearn.pipeline import make_pipeline

import dpconvex as dp

FRAME = pd.DataFrame(X[:, :2], columns=["a", "b"])
SWAPPED, TARGET = FRAME[["b", "a"]], pd.Series((SIGNS > 0).astype(int))
HALVES = [slice(None, 400), slice(400, None)]
LEARNER = dp.load("logistic_regression", features=2, labels=(0, 1))
ONES = {"privacy": dp.Privacy(5.0), "seed": 0}


def halves(first, second, target=TARGET):
    return [{"x": x[half], "y": target[half]} for x, half in zip((first, second), HALVES, strict=True)]


@pytest.mark.parametrize("lazy", [False, True])
def test_partitions_of_frames_have_the_same_columns_and_remember_their_names(lazy):
    def parts(second=FRAME, target=TARGET):
        made = halves(FRAME, second, target)
        return dp.Partitions([lambda part=part: part for part in made] if lazy else made)

    budget, said = dp.Budget(dp.Privacy(5.0)), r"partition \d: .*(columns are b, a|different indexes)"
    for mixed in ({"second": SWAPPED}, {"target": TARGET[::-1]}):
        with pytest.raises(dp.DomainError, match=said):
            dp.LogisticRegression(budget=budget).fit(parts(**mixed))
        with pytest.raises(dp.DomainError, match=said):
            dp.solve(LEARNER, parts(**mixed), dp.Privacy(5.0), budget=budget)
    assert not budget.entries
    model = dp.LogisticRegression(epsilon=5.0, seed=0).fit(parts())
    assert model.feature_names_in_.tolist() == ["a", "b"]
    refused(ValueError, "feature names should match", model.predict, SWAPPED)


def test_releases_remember_the_names_of_columns_and_refuse_others():
    release = dp.solve(LEARNER, {"x": FRAME, "y": TARGET}, **ONES)
    again = dp.Release.from_bytes(release.to_bytes(), template=dp.load)
    by_parts = dp.solve(LEARNER, dp.Partitions(halves(FRAME, FRAME)), **ONES)
    expected = release.predict(FRAME.to_numpy())
    for one in (release, again, by_parts):
        np.testing.assert_array_equal(one.predict(pl.from_pandas(FRAME)), expected)
        for other in (SWAPPED, pl.from_pandas(SWAPPED), FRAME.rename(columns={"a": "c"})):
            refused(dp.DomainError, "those of the fit are a, b", one.predict, other)
            for ask in (dp.evaluate, dp.intervals):
                with pytest.raises(dp.DomainError, match="those of the fit are a, b"):
                    ask(LEARNER, one, {"x": other, "y": TARGET}, dp.Privacy(5.0, 1e-6), seed=0)


def fits_of(x, y):
    data, second, options = {"x": x, "y": y}, dp.load("logistic_regression", features=2, labels=(0, 1)), ONES
    squares, pure = dp.load("ridge_regression", features=2), dp.Privacy(5.0)
    mixture = dp.load("large_margin_gaussian_mixture", features=2, components=2)
    yield dp.solve(LEARNER, data, **options)
    yield dp.tune([LEARNER, second], data, **options).release
    yield dp.tune([LEARNER, second], data, dp.Privacy(5.0, 1e-6), split=False, seed=0).release
    yield dp.tune_repeated([LEARNER, second], data, repetitions=dp.Repetitions(mean=2), **options).release
    yield next(iter(dp.sweep(LEARNER, data, pure, seed=0)))
    yield dp.solve_mixture(mixture, data, **options).release
    yield dp.Statistics.from_bytes(dp.statistics(squares, data, **options).to_bytes(), template=squares).fit()
    yield dp.solve_without_privacy(LEARNER, data)
    yield dp.LogisticRegression(epsilon=5.0, seed=0).fit(x, y).release_


NUMBERED = [[0, 1], pd.MultiIndex.from_tuples([("u", "a"), ("u", "b")]), ["a", 1], pd.to_datetime(["2020", "2021"])]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("names", [["a", "b"], *NUMBERED], ids=str)
def test_every_fit_remembers_names_of_whatever_type(names):
    frame = FRAME.set_axis(names, axis=1)
    usual = [dp.solve(LEARNER, PLAIN[0] | {"x": frame}, **ONES)]
    for release in fits_of(frame, TARGET) if list(names) == ["a", "b"] else usual:
        np.testing.assert_array_equal(release.predict(frame), release.predict(frame.to_numpy()))
        refused(dp.DomainError, "those of the fit are", release.predict, frame.iloc[:, ::-1])
    if list(names) not in (["a", 1], ["a", "b"]):  # which scikit-learn refuses by itself
        model = dp.LogisticRegression(epsilon=5.0, seed=0).fit(frame, TARGET)
        refused(dp.DomainError, "those of the fit are", model.predict, frame.iloc[:, ::-1])
    dp.solve(LEARNER, PLAIN[0] | {"x": FRAME.set_axis([0, 1], axis=1)}, **ONES).predict(FRAME)  # a frame of an array


def test_every_fit_remembers_the_schema_of_its_features():
    schema, other = (dp.Schema(dict.fromkeys(names, (-1, 1)), "y", labels=["0", "1"]) for names in ("ab", "ba"))
    table = FRAME.assign(y=TARGET)
    learner = dp.load("logistic_regression", features=2, labels=("0", "1"))
    (x, y), (x_other, _), (thin, _) = schema.encode(table), other.encode(table), other.encode(table, sparse=True)
    given, budget, mixed = {"x": x, "y": y}, dp.Budget(dp.Privacy(5.0)), dp.Partitions([table], other)
    models = [dp.solve(learner, data, **ONES) for data in (given, dp.Partitions([table], schema))]
    models += [dp.tune([learner, learner], given, **ONES).release, *dp.sweep(learner, given, dp.Privacy(1.0))]
    choice = {"grid": {"regularization": [0.1, 0.2]}, "privacy": dp.Privacy(5.0), "seed": 0}
    models += [
        tune(dp.LogisticRegression(classes=("0", "1")), given, **choice).release for tune in (dp.tune, dp.tune_repeated)
    ]
    for model in models:
        for wrong in (x_other, thin):
            refused(dp.TemplateError, "another schema", model.predict, wrong)
            with pytest.raises(dp.TemplateError, match="another schema"):
                dp.evaluate(learner, model, {"x": wrong, "y": y}, dp.Privacy(1.0), budget=budget)
        refused(dp.TemplateError, "another schema", dp.evaluate, learner, model, mixed, PLAIN[1], budget=budget)
    assert not budget.entries
    sparse = dp.LogisticRegression(classes=("0", "1"), epsilon=5.0, seed=0).fit(*schema.encode(table, sparse=True))
    refused(dp.TemplateError, "another schema", sparse.predict, thin)
    for permuted in (x[:, [1, 0]], np.flip(x, 1), np.roll(x, 1, axis=1), np.take(x, [1, 0], axis=1), x[..., ::-1]):
        assert getattr(permuted, "schema", None) is None
    for rows in (x[:3], x[[2, 1]], x[x[:, 0] > 0], x[[0, 1], ...], x.copy()):
        assert rows.schema is schema


def test_rows_that_pandas_numbers_otherwise_are_not_paired():
    budget, other = dp.Budget(dp.Privacy(5.0)), TARGET.sample(frac=1.0, random_state=0)
    lines = (kind(bounds=(-1, 1)) for kind in (dp.Ridge, dp.LinearRegression))
    for estimator in (dp.LogisticRegression(), *lines, dp.PrivateEstimator(LEARNER)):
        refused(dp.DomainError, r"reset_index\(drop=True\)", estimator.set_params(budget=budget).fit, FRAME, other)
    data, promise = {"x": FRAME, "y": other}, PLAIN[1]
    solved, grid = dp.solve(LEARNER, *PLAIN), {"regularization": [0.1, 0.2]}
    tuned = [partial(call, dp.LogisticRegression(), grid=grid) for call in (dp.tune, dp.tune_repeated)]
    for call in (partial(dp.solve, LEARNER), partial(dp.evaluate, LEARNER, solved), *tuned):
        refused(dp.DomainError, r"reset_index\(drop=True\)", call, data, promise, budget=budget)
    for call in tuned:
        release = call({"x": FRAME, "y": TARGET}, promise, seed=0).release
        refused(dp.DomainError, "the columns are b, a", release.predict, FRAME[["b", "a"]])
    whose = pd.Series(np.arange(len(FRAME)) // 2)
    persons = dp.Budget(dp.Privacy(5.0, unit="person", most=2))
    of_two = dp.LogisticRegression(unit="person", most=2, budget=persons)
    refused(dp.DomainError, "unit have different indexes", of_two.fit, FRAME, TARGET, unit=whose[::-1])
    promise = dp.Privacy(1.0, unit="person", most=2)
    for call in (partial(dp.solve, LEARNER), *tuned):
        with pytest.raises(dp.DomainError, match="unit have different indexes"):
            call({"x": FRAME, "y": TARGET}, promise, unit=whose[::-1])
    assert not budget.entries + persons.entries
    of_two.fit(FRAME, TARGET, unit=whose)
    w = cp.Variable(2, name="w")
    learner = dp.Template(LEARNER.record, lambda x, y: cp.logistic(-(2 * y - 1) * (x @ w)), cp.sum_squares(w))
    own = dp.PrivateEstimator(learner)
    assert own.fit(FRAME, TARGET).records(FRAME, TARGET)["y"].tolist() == TARGET.tolist()


def test_rows_of_further_fields_belong_to_those_of_x():
    x, groups = FRAME, pd.Series(np.arange(len(FRAME)) % 2)
    w, a = cp.Variable(2, name="w"), cp.Variable(2, name="a")
    record = dp.Record(x=dp.Ball(2), g=dp.Choice([0, 1]), y=dp.Box(-1, 1))
    loss, predict = (lambda x, g, y: cp.square(x @ w + a[g] - y)), lambda p, x, g: x @ p["w"] + p["a"][g]
    data, template = {"x": x, "g": groups, "y": np.zeros(len(x))}, dp.Template(record, loss, predict=predict)
    release = dp.solve(template, data, dp.Privacy(1.0, 1e-6), seed=0)
    refused(dp.DomainError, "x and g have different indexes", release.predict, x, g=groups[::-1])
    np.testing.assert_array_equal(release.predict(x, g=groups), release.predict(x, g=groups.to_numpy()))


def test_indexes_of_partitions_and_of_encoded_tables_are_compared():
    schema = dp.Schema({"a": (-1, 1), "b": (-1, 1)}, "y", labels=["0", "1"])
    table, whose = FRAME.assign(y=TARGET), pd.Series(np.arange(len(FRAME)) // 2)
    wrong, sorted_table, promise = whose[::-1], table.sort_values("a"), dp.Privacy(1.0, unit="person", most=2)
    budget = dp.Budget(promise)
    learner = dp.load("logistic_regression", features=2, labels=("0", "1"))
    encoded = dict(zip("xy", schema.encode(sorted_table), strict=True))
    sparse = dict(zip("xy", schema.encode(sorted_table, sparse=True), strict=True))
    tables = dp.Partitions([table[half] for half in HALVES], schema)
    reset = dp.Partitions([{n: c.reset_index(drop=True) for n, c in part.items()} for part in halves(FRAME, FRAME)])
    release = dp.solve(learner, tables, promise, unit=whose)
    for template, data, others in (
        (LEARNER, dp.Partitions(halves(FRAME, FRAME)), wrong),
        (LEARNER, reset, wrong),
        (learner, tables, wrong),
        (learner, encoded, whose),
        (learner, sparse, whose),
    ):
        refused(dp.DomainError, "different indexes", dp.solve, template, data, promise, unit=others, budget=budget)
        refused(dp.DomainError, "different", dp.evaluate, template, release, data, promise, unit=others, budget=budget)
    assert not budget.entries
    dp.solve(LEARNER, reset, promise, unit=whose)
    dp.solve(learner, encoded, promise, unit=whose[sorted_table.index])
    taken = {"x": encoded["x"][np.arange(len(FRAME))], "y": encoded["y"]}  # nobody knows of what table these rows are
    dp.solve(learner, taken, promise, unit=whose)


def test_what_is_not_private_compares_indexes_too():
    other, schema = TARGET[::-1], dp.Schema({"a": (-1, 1), "b": (-1, 1)}, "y", labels=["0", "1"])
    model = dp.LogisticRegression(epsilon=5.0, seed=0).fit(FRAME, TARGET)
    behind = make_pipeline(dp.SchemaEncoder(schema), dp.LogisticRegression(epsilon=5.0, seed=0))
    for call in (
        lambda: model.score(FRAME, other),
        lambda: model.score(X=FRAME, y=other),
        lambda: behind.fit(FRAME, other),
        lambda: schema.encode({"a": FRAME["a"], "b": FRAME["b"][::-1], "y": TARGET}),
        lambda: LEARNER.record.validate({"x": FRAME, "y": other}),
        lambda: dp.solve_without_privacy(LEARNER, {"x": FRAME, "y": other}),
    ):
        refused(dp.DomainError, "different indexes", call)


PLAIN = ({"x": FRAME, "y": TARGET}, dp.Privacy(1.0))


def test_coefficients_of_encoded_arrays_have_the_names_of_their_schema():
    schema = dp.Schema({"age": (0, 1), "dose": (0, 1)}, label="cost", label_bounds=(0, 1))
    table = {name: np.linspace(0, 1, 20_000) ** power for power, name in enumerate(["cost", "age", "dose"], 1)}
    sums = dp.SufficientStatistics(residuals=True)
    model = dp.LinearRegression(epsilon=20.0, delta=1e-6, bounds=schema, mechanism=sums, seed=0)
    assert model.fit(*schema.encode(table)).coefficients_.names == ("age", "dose", "intercept")
