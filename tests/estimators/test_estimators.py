"""Estimators clone, fit, predict and verify, and learn nothing that was not declared, from tables and from partitions."""

import pickle
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from command_line import main
from learners_of_tests import CUTS, X, Y as SIGNS, in_files, pieces
from refused import refused
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import dpconvex as dp

LABELS = ("no", "yes")
Y = np.where(SIGNS > 0, "yes", "no")
Z = 50 + 40 * X[:, 0]


def test_components_are_learnt_for_a_share_of_the_guarantee():
    x = X[:600, :2]
    y = np.where(x[:, 0] + 0.1 * x[:, 1] > 0, "yes", "no")
    options = {"epsilon": 20.0, "classes": LABELS, "regularization": 1e-3, "seed": 1}
    estimator = dp.LargeMarginGaussianMixture(**options, share=0.3, rounds=4)
    again = clone(estimator)
    assert again.fit(x, y).score(x, y) > 0.9
    assert again.release_.certificate == estimator.certificate(features=2, size=600)
    assert [mean.shape for mean in again.means_] == [(2, 2)] * 2
    noise = estimator.certificate(features=2, size=600).clustering
    assert (noise.epsilon, noise.rounds) == (6.0, 4)


NO_NUMBERS = [lambda x: np.ma.masked_array(x, mask=x > 0.2), lambda x: np.zeros(x.shape, dtype="m8[ns]")]
NO_NUMBERS += [lambda x: x.astype(str)]


@pytest.mark.parametrize("spoil", NO_NUMBERS)
def test_what_is_no_number_is_refused_before_it_is_paid_for(spoil):
    x, y = np.linspace(-0.5, 0.5, 40).reshape(20, 2), np.array([-1, 1] * 10)
    given = {"epsilon": 1.0, "budget": dp.Budget(dp.Privacy(9.0))}
    classifier, regression = dp.LogisticRegression(classes=(-1, 1), **given), dp.HuberRegressor(**given, bounds=(-1, 1))
    for model, features, target in (
        (regression, spoil(x), x[:, 0]),
        (regression, x, spoil(x[:, 0])),
        (classifier, spoil(x), y),
        (dp.PrivateEstimator(dp.load("logistic_regression", features=2), **given), spoil(x), y),
        (dp.MetricLearner(radius=2.0, **given), spoil(x.reshape(10, 2, 2)), [0, 1] * 5),
        (classifier, x, np.ma.masked_array(y, mask=np.arange(20) < 3)),
        (classifier, x, y.astype("m8[ns]")),
    ):
        refused(dp.DomainError, r"masked|dates or durations", model.fit, features, target)
    assert not given["budget"].entries
    refused(dp.DomainError, r"masked|dates or durations", classifier.fit(x, y).predict, spoil(x))


def test_values_are_looked_at_when_they_are_paid_for():
    x, y = np.linspace(-0.5, 0.5, 40).reshape(20, 2), np.array([0, 1] * 10)
    gap, far, other, pairs = np.where(x == x[3], np.nan, x), 9.0 * x, 5 * y, np.stack([x, 0.5 * x], axis=1)
    objects = [np.where(x == x[3], what, x.astype(object)) for what in (pd.NA, 10**400, "0.1", Decimal("sNaN"))]
    budget = dp.Budget(dp.Privacy(99.0, 0.1))
    given = {"epsilon": 1.0, "budget": budget}
    models = (
        (dp.LogisticRegression(**given), gap, y),
        (dp.LogisticRegression(**given), x, other),
        (dp.LogisticRegression(**given), x, np.where(y, np.nan, 0.0)),
        (dp.LogisticRegression(**given), [["0.1", 0.1], *x[1:].tolist()], y),
        (dp.HuberRegressor(**given, bounds=(-1, 1)), x, ["0.1", *x[1:, 0].tolist()]),
        (dp.KernelSVC(**given), gap, y),
        (dp.KernelSVC(**given), scipy.sparse.csr_array(gap), y),
        (dp.LargeMarginGaussianMixture(**given), x, other),
        (dp.MetricLearner(**given), pairs, other),
        (dp.MetricLearner(**given), np.where(pairs == x[3, 0], np.nan, pairs), y),
        (dp.MetricLearner(**given), np.where(pairs == x[3, 0], "0.1", pairs.astype(object)), y),
        (dp.HuberRegressor(**given, bounds=(-1, 1)), x, other),
        (dp.HuberRegressor(**given, bounds=(-1, 1)), x, np.where(y, np.nan, 0.0)),
        (dp.LinearRegression(**given, bounds=(-1, 1)), far, y),
        (dp.PrivateEstimator(dp.load("logistic_regression", features=2), **given), x, other),
        *((dp.LogisticRegression(**given), pd.DataFrame(spoilt), y) for spoilt in objects),
        (dp.LogisticRegression(**given), x, np.where(y, pd.NaT, y.astype(object))),
        (dp.MetricLearner(**given), pairs, np.where(y, pd.NA, y.astype(object))),
        # Warnings of numbers, which are errors here, would tell of records before they are paid for.
        (dp.MetricLearner(**given), np.full((20, 2, 2), np.inf), y),
        (dp.LogisticRegression(**given), np.full((20, 2), np.longdouble("1e4000")), y),
    )
    for spent, (model, features, target) in enumerate(models, 1):
        words = r"NaN|nan|is inf|not declared|outside Box|outside Ball|not an array of numbers"
        refused(dp.DomainError, words, model.fit, features, target)
        assert len(budget.entries) == spent


def test_columns_whose_types_are_wrong_cost_nothing():
    x, frame = np.zeros((4, 2)), pd.DataFrame({"ward": list("abab"), "age": [1, 2, 3, 4]})
    times, budget = [1.0, 2.0, 3.0, 4.0], dp.Budget(dp.Privacy(1.0))
    given, learner = {"epsilon": 1.0, "budget": budget}, dp.load("logistic_regression", features=2)
    lived = dp.SurvivalRegressor(**given, bounds=(0, 9)).fit
    texts = pd.DataFrame({"event": ["yes", "no"] * 2, "time": times})
    structured = np.array([("a", 1.0)] * 4, dtype="U1,f8").view([("event", "U1"), ("t", float)])
    refused(dp.DomainError, "SchemaEncoder", dp.LogisticRegression(**given).fit, frame, [0, 1, 0, 1])
    refused(dp.DomainError, "dates for numbers|or durations", dp.Ridge(**given, bounds=(0, 1)).fit, x, frame["ward"])
    refused(dp.DomainError, "event of y are texts", lived, x, texts)
    refused(dp.DomainError, "event of y are texts", lived, x, structured)
    refused(dp.DomainError, "put the event first", lived, x, pd.DataFrame({"time": times, "event": [True, False] * 2}))
    for labels in (frame["ward"], pd.Series([True, False] * 2), pd.to_datetime(pd.Series(["2020-01-31"] * 4))):
        declared = [1, 2, 3] if labels.name == "ward" else ["a", "b", "c"]
        refused(dp.DomainError, "texts|entries|dates", dp.OrdinalRegressor(**given, classes=declared).fit, x, labels)
    for data in ({"x": frame, "y": [1, -1] * 2}, {"x": x, "y": frame["ward"]}):
        refused(dp.DomainError, r"encode the table|has texts", dp.solve, learner, data, dp.Privacy(1.0), budget=budget)
    assert not budget.entries


@pytest.mark.parametrize("labels", [(0, "0"), (2**53 + 1, 0.5)])
def test_a_label_of_another_type_leaves_those_of_others_as_they_are(labels):
    y, pairs = [labels[0]] * 49 + [labels[1]], np.zeros((50, 2, 2))
    for learner, x in ((dp.LogisticRegression(classes=labels), pairs[:, 0]), (dp.MetricLearner(classes=labels), pairs)):
        for form in (y, tuple(y)):
            assert learner._data(x, form)["y"].tolist() == y


def test_a_metric_finds_what_pairs_share():
    x = np.random.default_rng(0).uniform(-1, 1, size=(3000, 2, 2))
    y = np.where(np.abs(x[:, 0, 0] - x[:, 1, 0]) < 0.6, "same", "other")  # the second feature says nothing
    model = dp.MetricLearner(epsilon=50.0, seed=0, radius=3.0, regularization=1e-4, classes=("other", "same"))
    fitted = clone(model).fit(x, y)
    assert fitted.score(x, y) > 0.8
    assert fitted.metric_[0, 0] > 5 * abs(fitted.metric_[1, 1])
    assert fitted.n_features_in_ == 2
    assert model.certificate(2, len(x)) == fitted.release_.certificate
    gaps = (fitted.transform(x[:, 0]) - fitted.transform(x[:, 1])) ** 2
    np.testing.assert_allclose(fitted.decision_function(x), fitted.threshold_ - gaps.sum(axis=1), atol=1e-12)
    between = x[:, 0] - x[:, 1]
    np.testing.assert_allclose(gaps.sum(axis=1), np.einsum("ni,ij,nj->n", between, fitted.metric_, between), atol=1e-12)
    assert np.linalg.eigvalsh(fitted.metric_)[0] >= -1e-15
    # The problem file says the same of differences.
    np.testing.assert_array_equal(fitted.release_.predict(between), fitted.predict(x))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(x), fitted.predict(x))


MODELS = {
    "logistic": (dp.LogisticRegression(classes=LABELS, seed=1, epsilon=2.0), Y),
    "kernel": (dp.KernelSVC(classes=LABELS, seed=1, epsilon=9.0, components=5, fit_intercept=True), Y),
    "line": (dp.LinearRegression(bounds=(0, 100), seed=1, epsilon=2.0, delta=1e-6, fit_intercept=True), Z),
    "mixture": (dp.LargeMarginGaussianMixture(classes=LABELS, seed=1, epsilon=9.0), Y),
    "own": (dp.PrivateEstimator(dp.load("logistic_regression", features=3, labels=LABELS), seed=1), Y),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_fit_to_partitions_is_one_to_the_table(name, tmp_path):
    model, y = MODELS[name]
    expected = clone(model).fit(X, y)
    for parts in (dp.Partitions(pieces({"x": X, "y": y})), in_files(tmp_path, {"x": X, "y": y})):
        found = clone(model).fit(parts)
        for parameter, value in expected.release_.items():
            np.testing.assert_allclose(found.release_[parameter], value, rtol=0, atol=1e-6)
        assert (found.n_features_in_, hasattr(found, "feature_names_in_")) == (3, False)
        if y is Y:
            assert (found.predict(X) == expected.predict(X)).mean() > 0.99
            assert list(found.classes_) == list(LABELS)
        else:
            np.testing.assert_allclose(found.predict(X), expected.predict(X), rtol=0, atol=1e-3)


def test_partitions_of_other_fields_or_features_are_refused():
    budget, narrow = dp.Budget(dp.Privacy(9.0)), {"x": X[:, :2], "y": Y}
    for parts, said in (
        ([{"x": X}], "y"),
        ([{"x": X, "y": Y, "z": Z}], "z"),
        ([{"x": X[:, 0], "y": Y}], "shape"),
        ([{"x": X, "y": Y}, narrow], "partition 1: field 'x': expected shape"),
    ):
        refused(dp.DomainError, said, dp.LogisticRegression(classes=LABELS, budget=budget).fit, dp.Partitions(parts))
    assert not budget.entries
    later = dp.Partitions([lambda: {"x": X, "y": Y}, lambda: narrow])
    for estimator in (dp.KernelSVC(classes=LABELS), dp.LogisticRegression(classes=LABELS, fit_intercept=True)):
        refused(dp.DomainError, "shape", estimator.fit, later)


def test_arrays_and_frames_of_dask():
    da, dd = (pytest.importorskip(name) for name in ("dask.array", "dask.dataframe"))
    expected, found = (dp.LogisticRegression(classes=LABELS, seed=1) for _ in range(2))
    expected.fit(X, Y)
    found.fit(da.from_array(X, chunks=(tuple(np.diff(CUTS).tolist()), (2, 1))), da.from_array(Y, chunks=350))
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=0, atol=1e-6)
    for y, complaint in ((Y, "in memory, others of Dask"), (None, "features of Dask with their labels")):
        refused((dp.DomainError, dp.TemplateError), complaint, found.fit, da.from_array(X, chunks=350), y)
    frame = dd.from_pandas(pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=Y), npartitions=3)
    found.fit(frame[["a", "b", "c"]], frame["y"])
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=0, atol=1e-6)
    assert list(found.feature_names_in_) == ["a", "b", "c"]
    found.fit(dp.Partitions(pieces({"x": X, "y": Y})))  # names of an earlier fit are forgotten
    assert not hasattr(found, "feature_names_in_")


def test_tables_with_a_schema_are_saved_with_it(tmp_path):
    table = pd.DataFrame({"a": 50 + 40 * X[:, 0], "b": 50 + 20 * X[:, 1], "y": Y, "z": Z})
    features = {"a": (0, 100), "b": (0, 100)}
    for schema, model in (
        (dp.Schema(features, "y", LABELS, ignore=["z"]), dp.LogisticRegression(classes=LABELS, seed=1)),
        (dp.Schema(features, "z", label_bounds=(0, 100), ignore=["y"]), dp.Ridge(bounds=(0, 100), seed=1, epsilon=5.0)),
    ):
        model.fit(schema.encode(table)[0], table[schema.label])
        expected = model.coef_  # in the units of the table
        model.fit(dp.Partitions(pieces(table), schema)).save(tmp_path / "model.npz")
        np.testing.assert_allclose(model.coef_, expected, rtol=0, atol=1e-4)
        assert dp.Release.load(tmp_path / "model.npz", template=dp.load).schema == schema


FITS = {key: {"classes": (-1, 1)} for key in (dp.LogisticRegression, dp.LargeMarginGaussian, dp.OrdinalRegressor)}
FITS |= {key: {"bounds": (-1.0, 1.0)} for key in (dp.LinearRegression, dp.Ridge)}
FITS[dp.KernelSVC] = {"classes": (-1, 1), "components": 4}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("kind", FITS, ids=lambda kind: kind.__name__)
def test_what_a_fit_leaves_undetermined_is_an_attribute_that_is_not_there(kind, delta):
    model = kind(delta=delta, seed=0, **FITS[kind]).fit(X[:60], SIGNS[:60])
    for name in dir(model):
        hasattr(model, name)
    assert model._repr_html_()
    if kind is dp.LinearRegression:
        with pytest.warns(dp.PrivacyWarning, match="Ridge is fitted instead"):
            kind(delta=delta, **FITS[kind]).fit(X[:60], SIGNS[:60])
        assert not hasattr(model, "coefficients_")
        with pytest.raises(dp.NotConverged, match="help"):
            model.coef_std_  # noqa: B018


SECRET = 0.123456789


@pytest.mark.parametrize(
    "call",
    [
        lambda: dp.LogisticRegression().fit(np.full((5, 2), SECRET + 0j), [0, 1, 0, 1, 0]),
        lambda: dp.LogisticRegression().fit(np.full(5, SECRET), [0, 1, 0, 1, 0]),
        lambda: dp.LogisticRegression().fit(np.array(SECRET), [0]),
        lambda: dp.Ridge(bounds=(-1, 1)).fit(np.full((5, 2), 0.1), np.full(5, SECRET + 1j)),
        lambda: dp.Ridge(bounds=(-1, 1)).fit(np.full((5, 2), 0.1), np.full((5, 2), SECRET)),
        lambda: dp.MetricLearner().fit(np.full((5, 2, 2), SECRET + 1j), [0, 1, 0, 1, 0]),
        lambda: dp.MetricLearner().fit(np.full((5, 2, 2), 0.1), np.full(5, SECRET + 1j)),
        lambda: dp.PublicPreconditioner([[1.0, 0.0]]).fit_transform(np.full((5, 2), SECRET + 1j)),
        lambda: dp.PublicPreconditioner([[1.0, 0.0]]).fit_transform(np.full(5, SECRET)),
    ],
)
def test_errors_quote_no_records(call):
    with pytest.raises(ValueError, match=r"[Cc]omplex|array|shape") as told:
        call()
    assert str(SECRET)[:5] not in str(told.value)


@pytest.mark.parametrize("kind", [dp.Ridge, dp.HuberRegressor, dp.LinearRegression, dp.PoissonRegressor])
def test_a_target_that_a_schema_encoded_is_read_in_the_units_of_the_declared_bounds(kind, tmp_path):
    doses = np.random.default_rng(0).uniform(0.0, 100.0, 2000)
    table = {"dose": doses, "cost": 100.0 + 1.5 * doses}
    schema = dp.Schema({"dose": (0, 100)}, label="cost", label_bounds=(0, 350))
    X, y = schema.encode(table)
    options = {"epsilon": 5.0, "delta": 1e-5, "seed": 0}
    plain, encoded = (kind(bounds=(0, 350), **options).fit(X, target) for target in (table["cost"], y))
    np.testing.assert_allclose(encoded.predict(X), plain.predict(X), rtol=1e-6)
    assert encoded.score(X[::2], y[::2]) == pytest.approx(plain.score(X[::2], table["cost"][::2]), abs=1e-6)
    encoded.save(tmp_path / "model.npz")
    for wrong in ((-50, 350), (0, 351)):
        refused(dp.TemplateError, r"label_bounds \(0\.0, 350\.0\); write", kind(bounds=wrong, **options).fit, X, y)
    budget = dp.Budget(dp.Privacy(99.0, 0.1))
    usual = kind(**options, budget=budget)
    behind = make_pipeline(dp.SchemaEncoder(schema), usual)
    refused(dp.TemplateError, r"bounds are \(-1\.0, 1\.0\), but the schema declares", behind.fit, table, table["cost"])
    for target in (table["cost"], np.asarray(y)):  # a default that they exceed was paid for
        refused(dp.TemplateError, r"such as bounds=\(0, 100\) or bounds=schema", usual.fit, X, target)
    assert not budget.entries
    np.testing.assert_allclose(usual.fit(X, y).predict(X), (plain.predict(X) - 175) / 175, atol=1e-5)
    if kind is not dp.PoissonRegressor:  # nothing is lost without a budget
        np.testing.assert_allclose(kind(**options).fit(X, np.asarray(y)).predict(X), usual.predict(X), atol=1e-5)


def test_what_a_schema_says_of_records_is_compared_before_payment():
    """Records that are all longer than the radius, or targets that were moved, were refused when they had been paid for."""
    table = {"age": np.linspace(0, 100, 600), "ward": ["a", "b"] * 300, "cost": np.linspace(0, 900, 600)}
    features = {"age": (0, 100), "ward": dp.Categorical(["a", "b"])}
    schema = dp.Schema(features, "cost", label_bounds=(0, 900), constant=0.5)
    (x, y), budget = schema.encode(table), dp.Budget(dp.Privacy(9.0, 1e-4))
    promise, given = dp.Privacy(1.0, 1e-6), {"epsilon": 1.0, "delta": 1e-6, "bounds": schema, "budget": budget}
    ridge, counts = dp.load("ridge_regression", features=4), dp.load("poisson_regression", features=4, target=900.0)
    for refusal in (
        lambda: dp.Ridge(**given).fit(x, y),
        lambda: make_pipeline(dp.SchemaEncoder(schema), dp.Ridge(**given)).fit(table, table["cost"]),
        lambda: dp.solve(ridge, {"x": x, "y": y}, promise, budget=budget),
    ):
        refused(dp.DomainError, r"declare radius=schema\.radius", refusal)
    half = {"x": np.asarray(x) / 2, "y": y}
    refused(dp.DomainError, r"pass schema\.decode_target\(y\)", dp.solve, counts, half, promise, budget=budget)
    assert not budget.entries
    for options in ({"radius": schema.radius}, {"clip": True}):
        dp.Ridge(**given, **options).fit(x, y)
    dp.solve(ridge, {"x": x, "y": y}, promise, budget=budget, clip=True)
    assert len(budget.entries) == 3


TABLE = pd.DataFrame({"age": np.random.default_rng(0).integers(0, 100, 400)})
TABLE["colour"] = np.random.default_rng(0).choice(["red", "green"], 400)
FEATURES = {"age": (0, 100), "colour": dp.Categorical(["red", "green"])}
SICK = dp.Schema(FEATURES, "sick", ["no", "yes"])
COST = dp.Schema(FEATURES, "cost", label_bounds=(0, 1000))
LESS = replace(COST, features=FEATURES | {"colour": dp.Categorical(["red", "green"], reference="red")})
YES = {"epsilon": 20.0, "classes": ("no", "yes")}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("estimator", "schema"),
    [
        (dp.LogisticRegression(**YES, fit_intercept=True, intercept_scaling=2.0), SICK),
        (dp.LogisticRegression(**YES, delta=1e-6, fit_intercept=False), SICK),
        (dp.OrdinalRegressor(**YES), SICK),
        (dp.Ridge(epsilon=20.0, bounds=(0, 1000), fit_intercept=True), COST),
        (dp.LinearRegression(epsilon=20.0, delta=1e-6, bounds=(0, 1000), fit_intercept=True), LESS),
        (dp.PoissonRegressor(epsilon=20.0, bounds=(0, 1000)), COST),
        (dp.TweedieRegressor(epsilon=20.0, delta=1e-6, bounds=(0, 1000)), COST),
    ],
)
def test_a_fit_behind_a_schema_is_saved_with_it(estimator, schema, tmp_path, capsys):
    target = np.where(TABLE["colour"] == "red", "yes", "no") if schema is SICK else 10.0 * TABLE["age"].to_numpy()
    model = make_pipeline(dp.SchemaEncoder(schema), estimator).fit(TABLE, target)
    model[-1].save(tmp_path / "model.json")
    TABLE.assign(**{schema.label: target}).to_csv(tmp_path / "people.csv", index=False)
    files = [str(tmp_path / "model.json"), str(tmp_path / "people.csv")]
    assert main(["predict", *files]) == 0
    printed, predicted = capsys.readouterr().out.splitlines()[1:], model.predict(TABLE)
    if schema is SICK:
        assert printed == predicted.tolist()
    else:
        np.testing.assert_allclose(np.array(printed, dtype=float), np.clip(predicted, 0, 1000))
    assert main(["evaluate", *files, "--epsilon", "5"]) == 0
    features = schema.encode(TABLE, labelled=False)[0]
    alone = estimator.fit(np.array(features), target)  # without the schema that comes with features
    refused(dp.TemplateError, r"save\(path, schema\)", alone.save, tmp_path / "alone.npz")
    for fitted, given in ((alone, schema), (estimator.fit(features, target), None)):
        fitted.save(tmp_path / "alone.npz", given)
        assert dp.Release.load(tmp_path / "alone.npz").schema == dp.Release.load(files[0]).schema


@pytest.mark.parametrize(("size", "most"), [(None, 0.1), (1000, 0.1), (20_000, 0.01)])
def test_quantiles_without_a_delta_are_smoothed_less_where_many_records_are_declared(size, most):
    model = dp.QuantileRegressor(quantile=0.1, epsilon=1.0, size=size, bounds=(-1, 1))
    assert model.template(3).source[1]["width"] == pytest.approx(most, rel=0.3)


def test_a_quantile_of_many_records_is_near_its_share():
    """With a width of 0.1, .04 of these targets were below the quantile .1."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, size=(20_000, 2))
    y = np.minimum(0.2 * np.exp(x[:, 0] + 0.6 * rng.normal(size=20_000)) - 0.9, 1)
    model = dp.QuantileRegressor(quantile=0.1, epsilon=1.0, size=20_000, bounds=(-1, 1), clip=True, seed=0).fit(x, y)
    assert abs(np.mean(y <= model.predict(x)) - 0.1) < 0.01
