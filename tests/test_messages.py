"""What newcomers do, and what they are told to write instead (the words: `wording.py`)."""

import pickle
import tomllib
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
from command_line import main
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from wording import check, words

import dpconvex as dp

X, Y = np.array([[0.5, 0.1], [-0.5, 0.2]] * 20), np.array([0, 1] * 20)
DATA, BOTH, ONE = {"x": X, "y": 2 * Y - 1}, {"x": X, "y": Y}, dp.Privacy(1.0)


def fresh():
    return {"x": X.copy(), "y": 2 * Y - 1}


FAR = dp.Record(x=dp.Box([-1, 0], [1, 1e5]), y=dp.Choice([0, 1]))
LOGISTIC, MIXTURE, LINEAR = (
    dp.load(name, features=2) for name in ("logistic_regression", "large_margin_gaussian_mixture", "linear_regression")
)
W = cp.Variable(2, name="w")
RECORD = dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1]))
WARDS = dp.Schema({"ward": dp.Categorical(["a", "b"])}, "ill", label_bounds=(-1, 1))
TABLE, LINE = {"ward": ["a", "b"] * 20}, dp.LinearRegression(bounds=(-1, 1))
MODEL = dp.LogisticRegression()
MESSAGES = {
    "a typo": lambda: dp.LogisticRegresion,
    "raw columns": lambda: MODEL.fit(9 * X, Y),
    "a target without bounds": lambda: dp.Ridge(budget=dp.Budget(dp.Privacy(1))).fit(X, Y),
    "a target in other units": lambda: dp.Ridge().fit(X.copy(), 50 * Y),
    "times without a largest": lambda: dp.SurvivalRegressor().fit(X.copy(), np.array([(True, 1.0)] * 40, dtype="?,f8")),
    "three classes for two": lambda: dp.LogisticRegression(classes=(0, 1, 2)).fit(X.copy(), Y),
    "an empty level": lambda: dp.Categorical(["", "a"]),
    "probabilities of margins": lambda: dp.LinearSVC(seed=0).fit(X.copy(), Y).release_.predict_proba(X),
    "a target outside": lambda: dp.Ridge(bounds=(-1, 1)).fit(X, 3 * Y),
    "whose clip": lambda: dp.Schema({"age": (0, 100)}, "sick", ["no", "yes"]).encode({"age": [130], "sick": ["no"]}),
    "epsilons to sweep": lambda: dp.sweep(LOGISTIC, DATA, [0.1, 1]),
    "an epsilon to tune": lambda: dp.tune([LOGISTIC], DATA, 2),
    "C": lambda: dp.LogisticRegression(C=1.0),
    "alpha": lambda: dp.Ridge(alpha=1.0),
    "random_state": lambda: dp.LinearSVC(random_state=0),
    "eps": lambda: dp.LinearRegression(eps=1.0),
    "an option misspelt": lambda: dp.Ridge(epsilom=1.0),
    "sample_weight": lambda: MODEL.fit(X, Y, sample_weight=Y),
    "Python's max": lambda: dp.Template(RECORD, lambda x, y: max(0, 1 - y * (x @ W))),
    "a branch": lambda: dp.Template(RECORD, lambda x, y: W[0] if x[0] > 0 else W[1]),
    "a branch on a bound": lambda: dp.Template(RECORD, lambda x, y: W[0] if x[0] >= 0 else W[1]),
    "one candidate": lambda: dp.tune(MODEL, DATA, ONE),
    "a grid of what is no option": lambda: dp.tune(dp.PrivateEstimator(), DATA, ONE, grid={"C": [1]}),
    "a mixture to report": lambda: dp.report(dp.solve_mixture(MIXTURE, BOTH, ONE)),
    "components to tune": lambda: dp.tune(dp.LargeMarginGaussianMixture(), BOTH, ONE, grid={"components": [1, 2]}),
    "a mixture to evaluate": lambda: dp.evaluate(MIXTURE, dp.solve_mixture(MIXTURE, BOTH, ONE), BOTH, ONE),
    "a path for a total": lambda: dp.Budget("quarter.jsonl"),
    "a number for a total": lambda: dp.Budget(1.0),
    "a ledger without room": lambda: dp.Budget(dp.Privacy(100, 1e-6), accounting="renyi"),
    "levels that add up to the intercept": lambda: make_pipeline(dp.SchemaEncoder(WARDS), LINE).fit(TABLE, Y),
    "standard errors that noise leaves none of": lambda: clone(LINE).set_params(epsilon=0.1).fit(X, Y).coefficients_,
    "a reference that is no level": lambda: dp.Categorical(["a", "b"], reference="c"),
    "statistics without residuals": lambda: dp.coefficients(dp.statistics(LINEAR, DATA, ONE)),
    "a function of a partition": lambda: dp.solve(LOGISTIC, dp.Partitions([lambda: 1 / 0]), ONE),
}

WARNINGS = {
    "a large delta": lambda: dp.solve(LOGISTIC, fresh(), dp.Privacy(1.0, 0.05)),
    "a huge epsilon": lambda: dp.sweep(LOGISTIC, fresh(), dp.Privacy(1e6)),
    "few records": lambda: dp.LogisticRegression().fit(np.full((30, 16), 0.1), [0, 1] * 15),
    "entries with units of their own": lambda: dp.solve(
        dp.Template(FAR, lambda x, y: cp.logistic((1 - 2 * y) * (x @ W)), 1e-6 * cp.sum_squares(W)), BOTH, ONE
    ),
    "a second fit": lambda: dp.LogisticRegression().fit(X.copy(), Y).fit(X.copy(), Y),
    "the same data again": lambda: [dp.solve(LOGISTIC, data, ONE) for data in [fresh()] * 2],
    "the same data by another estimator": lambda: [dp.LogisticRegression().fit(x, Y) for x in [X.copy()] * 2],
    "a score": lambda: dp.LogisticRegression().fit(X.copy(), Y).score(X, Y),
    "a search": lambda: GridSearchCV(MODEL, {"regularization": [0.1, 1.0]}, cv=3).fit(X.copy(), Y),
    "a cross-validation": lambda: cross_val_score(MODEL, X, Y, cv=3),
}


def warned(call):
    """Return the type and the text of the one warning that a call gives, in the line of its user."""
    with pytest.warns(dp.PrivacyWarning) as found:
        call()
    assert [item.filename for item in found] == [__file__]
    return f"PrivacyWarning: {found[0].message}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WARNINGS)
def test_what_is_warned_of_once_and_in_the_line_of_the_user(name):
    check("warnings", name, warned(WARNINGS[name]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MESSAGES)
def test_what_is_said(name):
    check("messages", name, words(MESSAGES[name]))


def test_a_value_with_a_minus_sign(capsys):
    assert main(["fit", "logistic_regression", "visits.csv", "--out", "model.npz", "--labels", "-1,1"]) == 2
    assert capsys.readouterr().err.endswith(
        "argument --labels: expected one argument; a value that begins with a minus is written after =, as in --labels=-1,1\n"
    )


def test_a_reference_level_has_no_feature_and_leaves_coefficients_determined():
    less = replace(WARDS, features={"ward": dp.Categorical(["a", "b"], reference="a")})
    assert less.feature_names == ["ward = b"]
    assert dp.Schema.from_dict(tomllib.loads(less.to_toml())) == less
    encoded = less.encode(TABLE, labelled=False)[0]
    np.testing.assert_array_equal(encoded, WARDS.encode(TABLE, labelled=False)[0][:, 1:])
    model = make_pipeline(dp.SchemaEncoder(less), dp.LinearRegression(epsilon=100.0, fit_intercept=True, seed=0))
    assert model.fit(TABLE, Y)[-1].coefficients_.names == ("ward = b", "intercept")
    refused = dp.Budget(dp.Privacy(1.0))
    with pytest.raises(dp.TemplateError, match="undetermined"):
        make_pipeline(dp.SchemaEncoder(WARDS), clone(LINE).set_params(budget=refused)).fit(TABLE, Y)
    assert not refused.entries


@pytest.mark.parametrize("fit_intercept", [False, True])
def test_a_strong_pure_promise_gets_the_fit_of_ridge(fit_intercept):
    given = {"epsilon": 0.1, "bounds": (0, 10), "fit_intercept": fit_intercept, "seed": 3}
    x = np.random.default_rng(0).uniform(-0.3, 0.3, size=(2000, 8))
    y = 5 + 3 * x[:, 0]
    line, ridge = (kind(**given).fit(x, y) for kind in (dp.LinearRegression, dp.Ridge))
    np.testing.assert_allclose(line.predict(x), ridge.predict(x))
    np.testing.assert_allclose(x @ line.coef_ + line.intercept_, line.predict(x))
    assert line.certificate(8, 2000) == line.release_.certificate == ridge.release_.certificate
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(line)).predict(x), line.predict(x))
    named = dp.SufficientStatistics("gamma", residuals=True)
    for other in (given | {"epsilon": 1e4}, given | {"delta": 1e-6, "epsilon": 1e4}, given | {"mechanism": named}):
        assert hasattr(dp.LinearRegression(**other).fit(x, y), "statistics_")
