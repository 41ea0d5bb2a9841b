"""scikit-learn's own checks, and what its users rely on: names, sparse tables, pickles, pipelines, searches, budgets."""

import inspect
import pickle
import re
import warnings
from dataclasses import replace
from functools import cache
from itertools import product

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse
from refused import refused
from scipy.special import expit
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.ensemble import BaggingClassifier, StackingClassifier, VotingClassifier
from sklearn.exceptions import SkipTestWarning
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import dpconvex as dp

UNDECLARED = "the check has labels that were not declared, and a label set that is read off the data is not paid for"
OBJECTS = "the check has a dictionary for a number, which is refused as a DomainError when it is paid for"
EMPTY = "a table without records is one like others, where their number is protected"
FUNCTIONS = "the template is one's own and holds functions: a pickle that runs them when it is read is not made"
UNPICKLED = dict.fromkeys(("check_estimators_pickle", "check_estimators_overwrite_params"), FUNCTIONS)
BOTH = ["check_classifiers_classes", "check_classifiers_regression_target"]
TWO = ["check_estimators_dtypes", "check_fit2d_1feature", "check_classifier_data_not_an_array"]
MORE = ["check_dtype_object", "check_classifiers_train"]
SPARSE = ["check_estimator_sparse_array", "check_estimator_sparse_matrix"]
TWO_CLASSES = dict.fromkeys([*BOTH, *TWO, "check_classifier_not_supporting_multiclass"], UNDECLARED)
MORE_CLASSES = dict.fromkeys([*BOTH, *MORE, *SPARSE], UNDECLARED)
PROBABILITIES = {"check_decision_proba_consistency": UNDECLARED}


class OfAnyWidth(dp.PrivateEstimator):
    """An estimator of one's own template, which the checks fit to tables of many widths."""

    def template(self, features):
        return once("ridge_regression", features=features, regularization=0.1)


# All weights may be 0 in data that nobody may look at before they are paid for; and records are counted without weights.
WEIGHED = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]
WEIGHED += ["check_all_zero_sample_weights_error"]
WEIGHED = dict.fromkeys(WEIGHED, "weights are private, and the penalty and the noise are beside the number of records")
SCHEMA = dp.Schema({"age": (0, 100)}, "sick", ["no", "yes"])
CHECKED = {
    "LogisticRegression": (dp.LogisticRegression(), TWO_CLASSES),
    "LinearSVC": (dp.LinearSVC(fit_intercept=True), TWO_CLASSES),
    "KernelSVC": (dp.KernelSVC(components=10), TWO_CLASSES),
    "SoftmaxRegression": (dp.SoftmaxRegression(classes=(0, 1, 2)), MORE_CLASSES | PROBABILITIES),
    "LeastSquaresClassifier": (dp.LeastSquaresClassifier(classes=(0, 1, 2)), MORE_CLASSES),
    "OrdinalRegressor": (dp.OrdinalRegressor(classes=(0, 1, 2)), MORE_CLASSES),
    "LargeMarginGaussian": (dp.LargeMarginGaussian(classes=(0, 1, 2)), MORE_CLASSES),
    "LargeMarginGaussianMixture": (dp.LargeMarginGaussianMixture(classes=(0, 1, 2), components=1), MORE_CLASSES),
    "LinearRegression": (dp.LinearRegression(fit_intercept=True, clip=True, seed=0, epsilon=1e4), {}),
    "Ridge": (dp.Ridge(), {}),
    "HuberRegressor": (dp.HuberRegressor(fit_intercept=True), {}),
    "QuantileRegressor": (dp.QuantileRegressor(), {}),
    "PoissonRegressor": (dp.PoissonRegressor(weight=100.0), WEIGHED),
    "GammaRegressor": (dp.GammaRegressor(weight=100.0), WEIGHED),
    "TweedieRegressor": (dp.TweedieRegressor(weight=100.0), WEIGHED),
    "SurvivalRegressor": (dp.SurvivalRegressor(), {}),
    "MetricLearner": (dp.MetricLearner(), {}),
    "PrivateEstimator": (OfAnyWidth(dp.load("ridge_regression", features=1)), UNPICKLED),
    "SchemaEncoder": (dp.SchemaEncoder(SCHEMA), {}),
    "GroupNormalizer": (dp.GroupNormalizer(), {"check_estimators_empty_data_messages": EMPTY}),
    "ScatteringFeatures": (dp.ScatteringFeatures(), {}),
    "SplineEncoder": (dp.SplineEncoder(SCHEMA), {}),
    "AdditiveClassifier": (dp.AdditiveClassifier(SCHEMA), {}),
    "AdditiveRegressor": (dp.AdditiveRegressor(SCHEMA), {}),
}
for _estimator, _ in CHECKED.values():
    # quick to solve, and easy to judge
    if "epsilon" in _estimator.get_params() and not isinstance(_estimator, dp.LinearRegression):
        _estimator.set_params(clip=True, seed=0, epsilon=1e4, regularization=0.1)
    if "bounds" in _estimator.get_params():
        _known = _estimator.get_params()
        _estimator.set_params(bounds=(0, 10) if "alpha" in _known else (0, 1) if "intervals" in _known else (-1, 1))
KNOWN = {
    type(e): why if isinstance(e, TransformerMixin | dp.MetricLearner) else {"check_dtype_object": OBJECTS} | why
    for e, why in CHECKED.values()
}
once = cache(dp.load)
# One of each kind is checked always; the others, made of the same parts, are slow.
QUICK = {"LogisticRegression", "SoftmaxRegression", "Ridge", "MetricLearner"}
QUICK |= {"SchemaEncoder", "GroupNormalizer", "ScatteringFeatures", "SplineEncoder", "AdditiveClassifier"}


def checks_of(names):
    with warnings.catch_warnings():  # pairs and tables with names are input that most checks do not make
        warnings.simplefilter("ignore", SkipTestWarning)
        some = [CHECKED[name][0] for name in CHECKED if name in names]
        return parametrize_with_checks(some, expected_failed_checks=lambda estimator: KNOWN[type(estimator)])


def remembered(name, **options):
    return once(name, **{key: tuple(value) if isinstance(value, list) else value for key, value in options.items()})


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore")
@checks_of(QUICK)
def test_scikit_learns_own_checks(estimator, check, monkeypatch):
    monkeypatch.setattr("dpconvex.estimators.base.load", remembered)  # one proof for all fits of a problem
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@checks_of(set(CHECKED) - QUICK)
def test_scikit_learns_own_checks_of_others(estimator, check, monkeypatch):
    test_scikit_learns_own_checks(estimator, check, monkeypatch)


SECTION = r"^(\w+)\n-+\n(.*?)(?=^\w+\n-+\n|\Z)"


def test_every_estimator_is_checked_and_described():
    public = {name: getattr(dp, name) for name in dp.__all__}
    estimators = {name for name, kind in public.items() if isinstance(kind, type) and issubclass(kind, BaseEstimator)}
    # These take a declared number of features, and the checks give them others.
    assert estimators == {*CHECKED, "PublicPreconditioner", "RandomFourierFeatures"}
    for name in estimators:
        kind = getattr(dp, name)
        if issubclass(kind, TransformerMixin):
            continue
        listed = dict(re.findall(SECTION, inspect.cleandoc(kind.__doc__), flags=re.MULTILINE | re.DOTALL))
        entries = re.findall(r"^(\w[\w, ]*?)(?: :|$)", listed["Parameters"], flags=re.MULTILINE)
        assert sorted(", ".join(entries).split(", ")) == sorted(kind._get_param_names()), name
        assert "release_ : Release" in listed["Attributes"]
        assert f"dp.{name}(" in listed["Examples"]


RNG = np.random.default_rng(0)
X = RNG.uniform(-0.7, 0.7, size=(400, 2))
Y = (X[:, 0] + 0.5 * X[:, 1] > 0.2).astype(int)


def test_two_grades_are_scored_from_their_threshold():
    grades = dp.OrdinalRegressor(epsilon=50.0, delta=1e-6, classes=(0, 1), seed=1).fit(X, Y)
    np.testing.assert_array_equal(grades.decision_function(X) > 0, grades.predict(X))
    assert 0.05 < np.mean(grades.predict(X)) < 0.6


def test_probabilities_of_grades_are_differences_of_their_logistic_regressions():
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, (2000, 2))
    y = np.array(["poor", "fine", "good"])[np.digitize(x[:, 0] + rng.logistic(0, 0.1, 2000), [-0.2, 0.2])]
    model = dp.OrdinalRegressor(epsilon=8.0, delta=1e-6, classes=("poor", "fine", "good"), seed=0).fit(x, y)
    found, above = model.predict_proba(x), expit(model.decision_function(x)[:, None] - model.release_["b"])
    np.testing.assert_allclose(found, np.stack([above[:, 0] - above[:, 1], above[:, 1], 1 - above[:, 0]], axis=1))
    assert found.min() >= 0
    assert log_loss(y, found) < 0.8 * np.log(3)
    lowest = found[:, [2, 0, 1]].cumsum(axis=1) >= 0.5
    np.testing.assert_array_equal(np.array(["poor", "fine", "good"])[lowest.argmax(axis=1)], model.predict(x))


LINEAR = {
    **{kind: {} for kind in (dp.LogisticRegression, dp.LinearSVC)},
    **{kind: {"classes": (0, 1, 2)} for kind in (dp.SoftmaxRegression, dp.LeastSquaresClassifier)},
    **{kind: {"bounds": (-9, 99)} for kind in (dp.Ridge, dp.HuberRegressor, dp.QuantileRegressor, dp.LinearRegression)},
}
PROMISES = [{"delta": 0.0}, {"delta": 1e-6}, {"delta": 1e-6, "mechanism": dp.AdaptiveSteps()}]
PROMISES += [{"delta": 1e-6, "mechanism": dp.NoisyGradientDescent(clip=1.0)}]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("promise", PROMISES, ids=str)
@pytest.mark.parametrize("kind", LINEAR, ids=lambda kind: kind.__name__)
def test_scores_are_linear_and_intercepts_free_whatever_the_mechanism(kind, promise):
    if kind is dp.LinearRegression and "mechanism" in promise:
        return  # it releases statistics
    x = np.random.default_rng(0).uniform(-0.7, 0.7, size=(5000, 2))
    y = (np.arange(5000) % 10 == 0).astype(int)  # what features say nothing of: most records have the label 0
    penalty = {} if kind is dp.LinearRegression else {"regularization": 1.0}
    given = {"epsilon": 5.0, "adjacency": "add-remove", "size": 5000, "seed": 0, "fit_intercept": True}
    given |= promise | LINEAR[kind] | penalty
    model = kind(**given).fit(x, y)
    scores, classifies = x @ model.coef_.T + model.intercept_, hasattr(model, "classes_")
    found = model.decision_function(x).reshape(len(x), -1) if classifies else model.predict(x)
    np.testing.assert_allclose(found, scores, atol=1e-12)
    np.testing.assert_allclose(model.predict(scipy.sparse.csr_array(x)), model.predict(x), atol=1e-12)
    if isinstance(model.mechanism, dp.AdaptiveSteps):
        return  # nothing is claimed about where they end
    if classifies:
        assert np.mean(model.predict(x) == 0) > 0.99
    else:  # the median of these is 0, and the others' best constants are between 0 and .1
        assert abs(model.intercept_) < 1.0
    if hasattr(model, "predict_proba"):
        np.testing.assert_allclose(model.predict_proba(x)[:, :2].mean(axis=0), [0.9, 0.1], atol=0.05)


KINDS = [dp.LogisticRegression, dp.LinearSVC, dp.KernelSVC, dp.SoftmaxRegression, dp.LeastSquaresClassifier]
KINDS += [dp.OrdinalRegressor, dp.LargeMarginGaussian, dp.LargeMarginGaussianMixture]
PAIRS = [*product([("survived", "died"), (1, "a")], KINDS), *product([(True, False), (5, 2.5)], KINDS[:1])]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("labels", "kind"), PAIRS)
def test_classes_are_sorted_and_scores_are_theirs_however_labels_are_declared(kind, labels):
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.7, 0.7, size=(1000, 2))
    second = x[:, 0] > 0
    y = np.array(labels, dtype=object if labels == (1, "a") else None)[second.astype(int)]
    options = {"epsilon": 20.0, "delta": 1e-6, "seed": 0}
    model = kind(classes=labels, **options).fit(x, y)
    assert model.classes_.tolist() == (list(labels) if labels == (1, "a") else sorted(labels))
    one = model.decision_function(x)
    assert roc_auc_score(np.array([str(label) == str(model.classes_[1]) for label in y]), one) > 0.99
    assert np.mean(model.classes_[(one > 0).astype(int)].astype(str) == y.astype(str)) > 0.95
    assert np.mean(model.predict(x).astype(str) == y.astype(str)) > 0.95
    if hasattr(model, "predict_proba"):
        np.testing.assert_array_equal(model.predict_proba(x).argmax(axis=1), one > 0)
        assert log_loss(y.astype(str), model.predict_proba(x)) < 0.3
        release, places = model.release_, [labels.index(label) for label in model.classes_.tolist()]
        assert release.labels == labels  # whose scores are in the declared order
        np.testing.assert_array_equal(release.predict_proba(x)[:, places], model.predict_proba(x))
        again = dp.Release.from_bytes(release.to_bytes(), template=dp.load)
        assert again.labels == labels
    if hasattr(model, "coef_"):
        scores = x @ model.coef_.T + model.intercept_
        np.testing.assert_allclose(scores[:, -1] - (scores[:, 0] if scores.shape[1] == 2 else 0), one, atol=1e-12)
    found, expected = (kind(classes=c, **options).certificate(2, 1000) for c in (labels, labels[::-1]))
    assert replace(found, derivation=expected.derivation) == expected


def test_what_leaks_around_a_fit_is_warned_of():
    model = dp.LogisticRegression(epsilon=3.0, clip=True)
    with pytest.warns(dp.PrivacyWarning, match=r"each fit spends epsilon = 3 .* budget"):
        cross_val_score(model, X, Y, cv=2)
    with pytest.warns(dp.PrivacyWarning, match=r"dpconvex\.tune"):
        GridSearchCV(model, {"regularization": [0.1, 1.0]}, cv=2).fit(X, Y)
    with pytest.warns(dp.PrivacyWarning, match="StandardScaler learns from the data"):
        make_pipeline(StandardScaler(), model).fit(X, Y)
    model.fit(X, Y)  # one fit is what was asked for
    make_pipeline(Normalizer(), model).fit(X, Y)


def test_a_template_of_ones_own():
    w = cp.Variable(2, name="w")
    record, loss = dp.Record(x=dp.Ball(2), y=dp.Choice([0, 1])), lambda x, y: cp.logistic((1 - 2 * y) * (x @ w))
    says = {"decision": lambda parameters, x: x @ parameters["w"], "probabilities": "softmax"}
    template = dp.Template(record, loss, 0.001 * cp.sum_squares(w), **says)
    model = clone(dp.PrivateEstimator(template, epsilon=50.0, seed=1)).fit(X, Y)
    assert model.score(X, Y) > 0.7
    assert list(model.classes_) == [0, 1]
    assert model.predict_proba(X).shape == (400, 2)
    refused(TypeError, "save the release", pickle.dumps, model)
    refused(dp.TemplateError, "vector x of 3 features", dp.PrivateEstimator(template).fit, np.zeros((5, 3)), [0] * 5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["voting", "soft voting", "stacking", "bagging"])
def test_ensembles_number_labels(kind):
    rng = np.random.default_rng(0)
    x = rng.uniform(-0.5, 0.5, (2000, 2))
    y = np.where(x[:, 0] > 0, "yes", "no")

    def ensemble(**options):
        one, two = (dp.LogisticRegression(epsilon=5.0, seed=seed, **options) for seed in (0, 1))
        if kind == "stacking":
            return StackingClassifier([("one", one), ("two", two)], cv=2)
        if kind == "bagging":
            return BaggingClassifier(one, n_estimators=2)
        return VotingClassifier([("one", one), ("two", two)], voting="soft" if kind[0] == "s" else "hard")

    refused(dp.DomainError, r"Ensembles.*declare classes=range\(2\)", ensemble(classes=("no", "yes")).fit, x, y)
    model = ensemble(classes=range(2)).fit(x, y)
    assert set(model.predict(x)) == {"no", "yes"}
    assert (model.predict(x) == y).mean() > 0.9
