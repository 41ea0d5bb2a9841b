"""Estimators clone, fit, predict and verify, and learn nothing that was not declared, from tables and from partitions."""

import pickle
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from learners_of_tests import CUTS, X, Y as SIGNS, in_files, pieces
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import dpconvex as dp

LABELS = ("no", "yes")
Y = np.where(SIGNS > 0, "yes", "no")
Z = 50 + 40 * X[:, 0]


def test_component_labels_are_learnt_declared_or_given():
    x = X[:600, :2]
    y = np.where(x[:, 0] + 0.1 * x[:, 1] > 0, "yes", "no")
    centers = [[[-0.5, 0.5], [-0.5, -0.5]], [[0.5, 0.5], [0.5, -0.5]]]
    fixed = {"epsilon": 20.0, "classes": LABELS, "regularization": 1e-3, "seed": 1}
    learnt = dp.LargeMarginGaussianMixture(**fixed, share=0.3, rounds=4)
    nearest = dp.LargeMarginGaussianMixture(**fixed, component_labels="nearest", centers=centers)
    given = dp.LargeMarginGaussianMixture(**fixed, component_labels="given")
    for estimator, extra in ((learnt, ()), (nearest, ()), (given, (x[:, 1] > 0,))):
        again = clone(estimator)
        assert again.fit(x, y, *extra).score(x, y) > 0.9
        assert again.release_.certificate == estimator.certificate(features=2, size=600)
        assert [mean.shape for mean in again.means_] == [(2, 2)] * 2
    noise = learnt.certificate(features=2, size=600).clustering
    assert (noise.epsilon, noise.rounds) == (6.0, 4)
    assert given.certificate(2, 600) == nearest.certificate(2, 600)
    assert given.certificate(2, 600).clustering is None
    np.testing.assert_array_equal(nearest.fit(x, y).components_.assign(x, y), x[:, 1] <= 0)


NO_NUMBERS = [
    lambda x: np.ma.masked_array(x, mask=x > 0.2),
    lambda x: np.zeros(x.shape, dtype="m8[ns]"),
    lambda x: x.astype(str),
]


@pytest.mark.parametrize("spoil", NO_NUMBERS)
def test_what_is_no_number_is_refused_before_it_is_paid_for(spoil):
    x, y = np.linspace(-0.5, 0.5, 40).reshape(20, 2), np.array([-1, 1] * 10)
    given = {"epsilon": 1.0, "budget": dp.Budget(dp.Privacy(9.0))}
    regression, classifier = dp.HuberRegressor(**given), dp.LogisticRegression(classes=(-1, 1), **given)
    for model, features, target in (
        (regression, spoil(x), x[:, 0]),
        (regression, x, spoil(x[:, 0])),
        (classifier, spoil(x), y),
        (dp.PrivateEstimator(dp.load("logistic_regression", features=2), **given), spoil(x), y),
        (dp.MetricLearner(radius=2.0, **given), spoil(x.reshape(10, 2, 2)), [0, 1] * 5),
        (classifier, x, np.ma.masked_array(y, mask=np.arange(20) < 3)),
        (classifier, x, y.astype("m8[ns]")),
    ):
        with pytest.raises(dp.DomainError, match=r"masked|dates or durations"):
            model.fit(features, target)
    assert not given["budget"].entries
    with pytest.raises(dp.DomainError, match=r"masked|dates or durations"):
        classifier.fit(x, y).predict(spoil(x))


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
        (dp.KernelSVC(**given), gap, y),
        (dp.KernelSVC(**given), scipy.sparse.csr_array(gap), y),
        (dp.LargeMarginGaussianMixture(**given), x, other),
        (dp.MetricLearner(**given), pairs, other),
        (dp.HuberRegressor(**given), x, other),
        (dp.HuberRegressor(**given), x, np.where(y, np.nan, 0.0)),
        (dp.LinearRegression(**given), far, y),
        (dp.PrivateEstimator(dp.load("logistic_regression", features=2), **given), x, other),
        *((dp.LogisticRegression(**given), pd.DataFrame(spoilt), y) for spoilt in objects),
        (dp.LogisticRegression(**given), x, np.where(y, pd.NaT, y.astype(object))),
        (dp.MetricLearner(**given), pairs, np.where(y, pd.NA, y.astype(object))),
    )
    for spent, (model, features, target) in enumerate(models, 1):
        with pytest.raises(
            dp.DomainError, match=r"NaN|nan|not declared|outside Box|outside Ball|not an array of numbers"
        ):
            model.fit(features, target)
        assert len(budget.entries) == spent


def test_labels_of_several_types_and_classes_that_are_none_are_refused_in_words():
    x = np.zeros((4, 2))
    with pytest.raises(dp.DomainError, match="None"):
        dp.LogisticRegression(classes=LABELS).fit(x, np.array(["yes", "no", "no", None], dtype=object))
    for classes in (("a",), ("a", "a"), (), (1, True)):
        with pytest.raises(dp.TemplateError, match=r"two or more labels|declare at least one|not distinct"):
            dp.LogisticRegression(classes=classes).fit(x, ["a"] * 4)
    with pytest.raises(dp.TemplateError, match="LinearRegression has no penalty; use Ridge"):
        dp.LinearRegression(epsilon=1.0, regularization=1.0).fit(x, np.zeros(4))


def test_errors_are_those_of_the_statistics_in_units_of_the_target():
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.7, 0.7, size=(8000, 2))
    table, y = pd.DataFrame(x, columns=["age", "dose"]), 60 + x @ [10.0, -4.0] + rng.uniform(-3, 3, 8000)
    model = dp.LinearRegression(epsilon=1.0, delta=1e-6, bounds=(0, 100), fit_intercept=True, seed=1).fit(table, y)
    found = model.coefficients_
    assert found.names == ("age", "dose", "intercept")
    np.testing.assert_allclose(found.estimates, [*model.coef_, model.intercept_])
    np.testing.assert_allclose(found.standard_errors, [*model.coef_std_, model.intercept_std_])
    np.testing.assert_allclose(found.lower + found.upper, 2 * found.estimates)
    np.testing.assert_allclose(found.upper - found.lower, 2 * 1.959964 * found.standard_errors, rtol=1e-6)
    np.testing.assert_allclose(model.coef_std_, 50 * dp.coefficients(model.statistics_).standard_errors[:2])
    assert model.certificate(2, 8000) == model.release_.certificate


def test_pairs_in_partitions_are_refused_before_they_are_paid_for_and_pairs_that_are_no_numbers_in_words():
    budget = dp.Budget(dp.Privacy(2.0))
    model, x, y = dp.MetricLearner(epsilon=1.0, budget=budget), np.full((10, 2, 2), 0.1), [0, 1] * 5
    with pytest.raises(dp.TemplateError, match="MetricLearner needs all records in one place"):
        model.fit(dp.Partitions([{"x": x[:, 0], "y": y}]))
    assert not budget.entries
    x[3, 0, 0] = np.nan
    with pytest.raises(dp.DomainError, match="row 3, column 0 is NaN"):
        model.fit(x, y)
    assert len(budget.entries) == 1


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
    for parts, complaint in (
        ([{"x": X}], "y"),
        ([{"x": X, "y": Y, "z": Z}], "z"),
        ([{"x": X[:, 0], "y": Y}], "shape"),
        ([{"x": X, "y": Y}, narrow], "partition 1: field 'x': expected shape"),
    ):
        with pytest.raises(dp.DomainError, match=complaint):
            dp.LogisticRegression(classes=LABELS, budget=budget).fit(dp.Partitions(parts))
    assert not budget.entries
    later = dp.Partitions([lambda: {"x": X, "y": Y}, lambda: narrow])
    for estimator in (dp.KernelSVC(classes=LABELS), dp.LogisticRegression(classes=LABELS, fit_intercept=True)):
        with pytest.raises(dp.DomainError, match="shape"):
            estimator.fit(later)


def test_arrays_and_frames_of_dask():
    da, dd = (pytest.importorskip(name) for name in ("dask.array", "dask.dataframe"))
    expected, found = (dp.LogisticRegression(classes=LABELS, seed=1) for _ in range(2))
    expected.fit(X, Y)
    found.fit(da.from_array(X, chunks=(tuple(np.diff(CUTS).tolist()), (2, 1))), da.from_array(Y, chunks=350))
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=0, atol=1e-6)
    for y, complaint in ((Y, "in memory here, and others of Dask"), (None, "features of Dask with their labels")):
        with pytest.raises((dp.DomainError, dp.TemplateError), match=complaint):
            found.fit(da.from_array(X, chunks=350), y)
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


FITS = {
    dp.LinearRegression: {"bounds": (-1.0, 1.0)},
    dp.Ridge: {"bounds": (-1.0, 1.0)},
    dp.LogisticRegression: {"classes": (-1, 1)},
    dp.KernelSVC: {"classes": (-1, 1), "components": 4},
    dp.LargeMarginGaussian: {"classes": (-1, 1)},
    dp.OrdinalRegressor: {"classes": (-1, 1)},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("kind", FITS, ids=lambda kind: kind.__name__)
def test_what_a_fit_leaves_undetermined_is_an_attribute_that_is_not_there(kind, delta):
    model = kind(delta=delta, seed=0, **FITS[kind]).fit(X[:60], SIGNS[:60])
    for name in dir(model):
        hasattr(model, name)
    assert model._repr_html_()
    if kind is dp.LinearRegression:
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
        lambda: dp.Ridge().fit(np.full((5, 2), 0.1), np.full(5, SECRET + 1j)),
        lambda: dp.Ridge().fit(np.full((5, 2), 0.1), np.full((5, 2), SECRET)),
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


def test_pairs_of_other_labels_are_told_what_was_declared():
    pairs = np.full((20, 2, 2), 0.1)
    with pytest.raises(dp.DomainError, match=r"declared are \[(0, 1|1, 0)\]"):
        dp.MetricLearner().fit(pairs, [-1, 1] * 10)
    assert set(dp.MetricLearner(classes=(-1, 1), seed=0).fit(pairs, [-1, 1] * 10).predict(pairs)) <= {-1, 1}


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

    budget = dp.Budget(dp.Privacy(5.0))
    for mixed in ({"second": SWAPPED}, {"target": TARGET[::-1]}):
        with pytest.raises(dp.DomainError, match=r"partition \d: .*(columns are b, a|different indexes)"):
            dp.LogisticRegression(budget=budget).fit(parts(**mixed))
        with pytest.raises(dp.DomainError, match=r"partition \d: .*(columns are b, a|different indexes)"):
            dp.solve(LEARNER, parts(**mixed), dp.Privacy(5.0), budget=budget)
    assert not budget.entries
    model = dp.LogisticRegression(epsilon=5.0, seed=0).fit(parts())
    assert model.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(SWAPPED)


def test_releases_remember_the_names_of_columns_and_refuse_others():
    release = dp.solve(LEARNER, {"x": FRAME, "y": TARGET}, **ONES)
    again = dp.Release.from_bytes(release.to_bytes(), template=dp.load)
    by_parts = dp.solve(LEARNER, dp.Partitions(halves(FRAME, FRAME)), **ONES)
    expected = release.predict(FRAME.to_numpy())
    for one in (release, again, by_parts):
        np.testing.assert_array_equal(one.predict(pl.from_pandas(FRAME)), expected)
        for other in (SWAPPED, pl.from_pandas(SWAPPED), FRAME.rename(columns={"a": "c"})):
            with pytest.raises(dp.DomainError, match="those of the fit are a, b"):
                one.predict(other)
            with pytest.raises(dp.DomainError, match="those of the fit are a, b"):
                dp.evaluate(LEARNER, one, {"x": other, "y": TARGET}, **ONES)


def fits_of(x, y):
    data, second, pure = {"x": x, "y": y}, dp.load("logistic_regression", features=2, labels=(0, 1)), dp.Privacy(5.0)
    squares, options = dp.load("ridge_regression", features=2), {"privacy": pure, "seed": 0}
    mixture = dp.load("large_margin_gaussian_mixture", features=2, components=2)
    yield dp.solve(LEARNER, data, **options)
    yield dp.tune([LEARNER, second], data, **options).release
    yield dp.tune([LEARNER, second], data, dp.Privacy(5.0, 1e-6), split=False, seed=0).release
    yield dp.tune_repeated([LEARNER, second], data, repetitions=dp.Repetitions(mean=2), **options).release
    yield next(iter(dp.sweep(LEARNER, data, pure, seed=0)))
    yield dp.solve_mixture(mixture, data, **options).release
    yield dp.Statistics.from_bytes(dp.statistics(squares, data, **options).to_bytes(), template=squares).fit()
    yield dp.solve_without_privacy(LEARNER, data)


NUMBERED = [[0, 1], pd.MultiIndex.from_tuples([("u", "a"), ("u", "b")]), ["a", 1], pd.to_datetime(["2020", "2021"])]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("names", [["a", "b"], *NUMBERED], ids=str)
def test_every_fit_remembers_names_of_whatever_type(names):
    frame = FRAME.set_axis(names, axis=1)
    for release in (
        fits_of(frame, TARGET) if list(names) == ["a", "b"] else [dp.solve(LEARNER, PLAIN[0] | {"x": frame}, **ONES)]
    ):
        np.testing.assert_array_equal(release.predict(frame), release.predict(frame.to_numpy()))
        with pytest.raises(dp.DomainError, match="those of the fit are"):
            release.predict(frame.iloc[:, ::-1])
    if list(names) not in (["a", 1], ["a", "b"]):  # which scikit-learn refuses by itself
        model = dp.LogisticRegression(epsilon=5.0, seed=0).fit(frame, TARGET)
        with pytest.raises(dp.DomainError, match="those of the fit are"):
            model.predict(frame.iloc[:, ::-1])
    dp.solve(LEARNER, PLAIN[0] | {"x": FRAME.set_axis([0, 1], axis=1)}, **ONES).predict(FRAME)  # a frame of an array


def test_every_fit_remembers_the_schema_of_its_features():
    schema, other = (dp.Schema(dict.fromkeys(names, (-1, 1)), "y", labels=["0", "1"]) for names in ("ab", "ba"))
    table = FRAME.assign(y=TARGET)
    learner = dp.load("logistic_regression", features=2, labels=("0", "1"))
    (x, y), (x_other, _), (thin, _) = schema.encode(table), other.encode(table), other.encode(table, sparse=True)
    given, budget = {"x": x, "y": y}, dp.Budget(dp.Privacy(5.0))
    models = [dp.solve(learner, data, **ONES) for data in (given, dp.Partitions([table], schema))]
    models += [
        dp.tune([learner, learner], given, **ONES).release,
        next(iter(dp.sweep(learner, given, dp.Privacy(1.0)))),
    ]
    for model in models:
        for wrong in (x_other, thin):
            with pytest.raises(dp.TemplateError, match="another schema"):
                model.predict(wrong)
            with pytest.raises(dp.TemplateError, match="another schema"):
                dp.evaluate(learner, model, {"x": wrong, "y": y}, dp.Privacy(1.0), budget=budget)
        with pytest.raises(dp.TemplateError, match="another schema"):
            dp.evaluate(learner, model, dp.Partitions([table], other), dp.Privacy(1.0), budget=budget)
    assert not budget.entries
    with pytest.raises(dp.TemplateError, match="another schema"):
        dp.LogisticRegression(classes=("0", "1"), epsilon=5.0, seed=0).fit(*schema.encode(table, sparse=True)).predict(
            thin
        )
    for permuted in (x[:, [1, 0]], np.flip(x, 1), np.roll(x, 1, axis=1), np.take(x, [1, 0], axis=1), x[..., ::-1]):
        assert getattr(permuted, "schema", None) is None
    for rows in (x[:3], x[[2, 1]], x[x[:, 0] > 0], x[[0, 1], ...], x.copy()):
        assert rows.schema is schema


def test_intervals_refuse_columns_in_another_order():
    privacy, signs = dp.Privacy(1.0, 1e-6), TARGET
    fit = dp.solve(LEARNER, {"x": FRAME, "y": signs}, privacy, dp.ObjectivePerturbation("gaussian"), seed=1)
    with pytest.raises(dp.DomainError, match="those of the fit are a, b"):
        dp.intervals(LEARNER, fit, {"x": SWAPPED, "y": signs}, privacy, seed=2)


def test_dask_frames_are_predicted_by_their_columns():
    dask = pytest.importorskip("dask.dataframe")
    model = dp.LogisticRegression(epsilon=5.0, seed=0).fit(FRAME, TARGET)
    frame = dask.from_pandas(FRAME, npartitions=2)
    np.testing.assert_array_equal(model.predict_proba(frame), model.predict_proba(FRAME))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame[["b", "a"]])


def test_rows_that_pandas_numbers_otherwise_are_not_paired():
    budget, other = dp.Budget(dp.Privacy(5.0)), TARGET.sample(frac=1.0, random_state=0)
    for estimator in (dp.LogisticRegression(), dp.Ridge(), dp.LinearRegression(), dp.PrivateEstimator(LEARNER)):
        with pytest.raises(dp.DomainError, match=r"reset_index\(drop=True\)"):
            estimator.set_params(budget=budget).fit(FRAME, other)
    for call in (
        dp.solve,
        lambda *given, **options: dp.evaluate(LEARNER, dp.solve(LEARNER, *PLAIN), *given[1:], **options),
    ):
        with pytest.raises(dp.DomainError, match=r"reset_index\(drop=True\)"):
            call(LEARNER, {"x": FRAME, "y": other}, dp.Privacy(1.0), budget=budget)
    whose = pd.Series(np.arange(len(FRAME)) // 2)
    persons = dp.Budget(dp.Privacy(5.0, unit="person", most=2))
    of_two = dp.LogisticRegression(unit="person", most=2, budget=persons)
    with pytest.raises(dp.DomainError, match="unit have different indexes"):
        of_two.fit(FRAME, TARGET, unit=whose[::-1])
    with pytest.raises(dp.DomainError, match="unit have different indexes"):
        dp.solve(LEARNER, {"x": FRAME, "y": TARGET}, dp.Privacy(1.0, unit="person", most=2), unit=whose[::-1])
    assert not budget.entries + persons.entries
    of_two.fit(FRAME, TARGET, unit=whose)


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
        with pytest.raises(dp.DomainError, match="different indexes"):
            dp.solve(template, data, promise, unit=others, budget=budget)
        with pytest.raises(dp.DomainError, match="different indexes"):
            dp.evaluate(template, release, data, promise, unit=others, budget=budget)
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
        with pytest.raises(dp.DomainError, match="different indexes"):
            call()


PLAIN = ({"x": FRAME, "y": TARGET}, dp.Privacy(1.0))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", [dp.Ridge, dp.LinearRegression, dp.HuberRegressor, dp.QuantileRegressor])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_an_intercept_far_from_the_middle_of_the_bounds_is_found(kind, delta):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(20_000, 3)) / np.sqrt(3)
    for mean in (5.0, 55.0, 30.0):
        y = np.clip(mean + 2 * x[:, 0] + rng.normal(scale=0.5, size=len(x)), 0, 60)
        model = kind(epsilon=1.0, delta=delta, fit_intercept=True, bounds=(0, 60), seed=1).fit(x, y)
        assert abs(model.intercept_ - mean) < 0.5
        assert model.score(x, y) > 0.5


def test_weights_of_people_leave_statistics_as_they_are():
    rng = np.random.default_rng(0)
    x, who = rng.normal(size=(400, 3)) / 4, np.repeat(np.arange(100), 4)
    budget = dp.Budget(dp.Privacy(9.0, 1e-3, unit="person", most=5))
    options = {"delta": 1e-5, "bounds": (-5, 5), "unit": "person", "most": 5, "keep": "weights", "budget": budget}
    assert np.isfinite(dp.LinearRegression(clip=True, **options).fit(x, x.sum(axis=1), unit=who).coef_).all()


@pytest.mark.parametrize("kind", [dp.Ridge, dp.HuberRegressor, dp.LinearRegression])
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
        with pytest.raises(dp.TemplateError, match=r"label_bounds \(0\.0, 350\.0\); write bounds="):
            kind(bounds=wrong, **options).fit(X, y)
    with pytest.raises(dp.TemplateError, match=r"bounds are \(-1\.0, 1\.0\), and the schema declares"):
        make_pipeline(dp.SchemaEncoder(schema), kind(**options)).fit(table, table["cost"])
