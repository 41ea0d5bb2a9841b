"""The shipped learners: each declares itself alike, is proved or refused as its description says, and learns."""

import inspect
import re

import numpy as np
import pytest
import scipy.sparse
from learners_of_tests import bounded, options_of, problem_file, records_of

import dpconvex as dp

# What no mechanism with a pure guarantee can take: an objective without strong convexity.
REFUSED = {"pathak_raj_2010"}
# Squares of unbounded parameters: the statistics that they ask of the data are released, and nothing is minimised before.
STATISTICS = {"additive_regression", "least_squares_classifier", "linear_regression"}
PROVED = sorted(set(dp.problems()) - REFUSED)
PROMISE = dp.Privacy(epsilon=1.0)
FREE = [(problem, {"constant": 0.5}) for problem in PROVED if "constant" in options_of(problem)]  # with an intercept


@pytest.mark.parametrize("problem", sorted(dp.problems()))
def test_every_option_but_the_number_of_features_has_a_default(problem):
    found = options_of(problem)
    assert [name for name, option in found.items() if option.default is option.empty] == ["features"]
    assert all(option.kind is option.KEYWORD_ONLY for option in found.values())
    told = inspect.getdoc(problem_file(problem)) or ""
    for name in found:
        assert re.search(rf"^(\w+, )*{name}(, \w+)*( : |$)", told, flags=re.MULTILINE), f"{name} is not documented"


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("problem", "given"), [*((problem, {}) for problem in PROVED), *FREE])
def test_it_is_proved_private_and_learns_from_records_of_its_own_domain(problem, given):
    template = dp.load(problem, features=3, **bounded(problem), **given)
    data = records_of(template)
    release = dp.solve(template, data, PROMISE)
    assert release.private
    certificate = release.certificate
    assert 0 < certificate.sensitivity <= 2 * certificate.gradient_bound * (1 + 1e-9)
    assert (certificate.perturbed == "statistics") == (problem in STATISTICS)
    assert certificate.strong_convexity > 0 or problem in STATISTICS
    assert {name: value.shape for name, value in release.items()} == {v.name: v.shape for v in template.variables}
    if template.predict is not None:
        raw = problem == "kernel_svm"  # it maps features itself
        features = np.random.default_rng(3).uniform(-0.5, 0.5, size=(60, 3)) if raw else np.asarray(data["x"])
        predicted = release.predict(features)
        assert len(predicted) == 60
        if raw:
            mapped = dp.RandomFourierFeatures(3, 50).transform(features)
            np.testing.assert_array_equal(release.predict(mapped), predicted)
        for function, known in (("predict", predicted), ("decision_function", None)):
            if features.ndim == 2 and (known is not None or template.decision is not None):  # sparse ones, too
                found, expected = (getattr(release, function)(x) for x in (scipy.sparse.csr_array(features), features))
                same = np.testing.assert_array_equal if expected.dtype.kind != "f" else np.testing.assert_allclose
                same(found, expected)


OPTIONAL = ("exposure", "offset", "weight")
WITH_FIELDS = [name for name in PROVED if {"weight"} & set(options_of(name))]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", WITH_FIELDS)
def test_records_with_weights_and_exposures_are_proved_replayed_and_fitted(name):
    optional = {field: 2.0 for field in OPTIONAL if field in options_of(name)}
    template = dp.load(name, features=3, **optional)
    assert set(optional) < set(template.record.fields)
    data = records_of(template)
    for privacy in (PROMISE, dp.Privacy(1.0, 1e-5, "add-remove", unit="person", most=2)):
        release = dp.solve(template, data, privacy, size=60, unit=np.arange(60) // 2 if privacy.unit else None)
        assert release.certificate.check().unreplayed == ()
        assert np.isfinite(release.predict(data["x"])).all() or name in {"sparse_logistic", "probit_regression"}
    # A record without weight says nothing, whatever else it has.
    lost = {**data, "weight": np.where(np.arange(60) < 30, data["weight"], 0.0)}
    fewer = {**lost, "y": [*data["y"][:30], *data["y"][::-1][:30]]}
    fits = [dp.solve_without_privacy(template, rest, tolerance=1e-6) for rest in (lost, fewer)]
    for parameter in fits[0]:
        np.testing.assert_allclose(fits[0][parameter], fits[1][parameter], atol=1e-4)


def test_expectiles_shortfalls_and_sparse_models_are_what_they_are_called():
    rng = np.random.default_rng(0)
    x, flat = dp.Ball(3, norm=np.inf).project(rng.uniform(-1, 1, (4000, 3))), np.zeros((4000, 3))
    y = np.clip(0.2 * rng.normal(size=4000), -1, 1)
    middle = dp.solve_without_privacy(dp.load("expectile_regression", features=3, constant=1.0), {"x": flat, "y": y})
    assert float(middle["b"]) == pytest.approx(y.mean(), abs=1e-3)
    upper = dp.load("expectile_regression", features=3, constant=1.0, expectile=0.9)
    b = float(dp.solve_without_privacy(upper, {"x": flat, "y": y})["b"])
    assert 0.9 * np.maximum(y - b, 0).mean() == pytest.approx(0.1 * np.maximum(b - y, 0).mean(), rel=1e-2)
    worst = dp.load("expected_shortfall", features=3, level=0.8, levels=8, width=0.001, regularization=1e-6)
    tail = dp.solve_without_privacy(worst, {"x": flat, "y": y}, tolerance=1e-2).predict(flat[:1])
    assert float(tail[0]) == pytest.approx(y[y >= np.quantile(y, 0.8)].mean(), rel=0.03)
    target = np.clip(0.5 * x[:, 0] + 0.1 * rng.normal(size=4000), -1, 1)
    sparse = dp.solve_without_privacy(dp.load("sparse_regression", features=3, bound=0.3), {"x": x, "y": target})
    assert abs(sparse["w"] - [0.3, 0, 0]).max() < 1e-3
    labels = np.where(x[:, 0] + 0.1 * rng.normal(size=4000) > 0, 1, -1)
    few = dp.solve_without_privacy(dp.load("sparse_logistic", features=3, bound=2.0), {"x": x, "y": labels})
    assert abs(few["w"] - [2, 0, 0]).max() < 1e-2
    probit = dp.load("probit_regression", features=3, bound=20.0)
    fit = dp.solve_without_privacy(probit, {"x": x / np.sqrt(3), "y": labels})
    shares = fit.predict_proba(x / np.sqrt(3))
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert np.mean((shares[:, 1] > 0.5) == (labels == 1)) > 0.95
    with pytest.raises(dp.MissingRule, match="parameters"):
        dp.solve_without_privacy(dp.load("probit_regression", features=3), {"x": x / 2, "y": labels})


LEARNER = """\
import cvxpy as cp
import dpconvex as dp


def template(*, features, scale=1.0, name="w"):
    w = cp.Variable(features, name=name)
    return dp.Template(
        record=dp.Record(x=dp.Ball(features), y=dp.Choice([-1, 1])),
        loss=lambda x, y: scale * cp.logistic(-y * (x @ w)),
        regularizer=0.1 * cp.sum_squares(w),
    )
"""


def written(folder, text):
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return folder / "mine.py"


def test_labels_say_how_many_classes_there_are():
    for name in ("softmax_regression", "large_margin_gaussian", "ordinal_regression"):
        template = dp.load(name, features=2, labels=("a", "b", "c"))
        assert template.record.fields["y"].values == ("a", "b", "c")
        with pytest.raises(dp.TemplateError, match="2 labels"):
            dp.load(name, features=2, labels=("a", "b", "c"), classes=2)


def test_names_and_options_that_are_unknown_are_explained(tmp_path, monkeypatch):
    file = written(tmp_path, LEARNER)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dp.TemplateError, match=r"no problem 'mine'.*give its path, ending in \.py"):
        dp.load("mine")  # a bare name never means a file of the working directory
    with pytest.raises(dp.TemplateError, match=r"did you mean 'logistic_regression'\?"):
        dp.load("logistic")  # and not 'sparse_logistic', which has more of its letters
    with pytest.raises(dp.TemplateError) as info:
        dp.load(file, features=2, scal=3.0)
    options = "Options are: features, scale=1.0, name='w'"
    assert str(info.value) == f"mine: got an unexpected keyword argument 'scal'. {options}."


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"no function `template`.*def template\(\*, features"),
        ("template = 3\n", "no function `template`"),
        ("def template():\n    return 3\n", r"must return a dpconvex\.Template, not int"),
        ("def (:\n", "cannot be executed: SyntaxError"),
        ("import no_such_module_anywhere\n", "cannot be executed: ModuleNotFoundError: .*no_such_module_anywhere"),
        ("1 / 0\n", "cannot be executed: ZeroDivisionError"),
    ],
)
def test_a_broken_file_is_explained(tmp_path, text, message):
    file = written(tmp_path, text)
    with pytest.raises(dp.TemplateError, match=message) as info:
        dp.load(file)
    assert str(file) in str(info.value)


@pytest.mark.parametrize("name", ["logistic_regression", "ridge_regression", "softmax_regression"])
def test_numbers_out_of_range_are_refused_by_the_name_of_the_option(name):
    for option in ["regularization", "radius", *["bound"] * (name == "ridge_regression")]:
        for value in (-1.0, float("nan"), "a"):
            with pytest.raises(dp.TemplateError, match=option):
                dp.load(name, features=2, **{option: value})
    with pytest.raises(dp.NotPrivate, match="regularization=1e-6"):
        dp.verify(dp.load("logistic_regression", features=2, regularization=0.0), dp.Privacy(1.0), 1000)


def test_a_quantile_moves_alone():
    """As sums of distances from the middle one, all moved together: five times the slopes, and fits stayed near zero."""
    many = dp.load("quantile_fan", features=3, quantiles=tuple(np.linspace(0.1, 0.9, 11)))
    assert dp.verify(many, PROMISE, 1000).gradient_bound <= np.sqrt(2 * 11)
    rng, levels = np.random.default_rng(0), np.array([0.1, 0.5, 0.9])
    x = rng.uniform(-0.5, 0.5, (1000, 4))
    y = -0.9 + 0.05 * x[:, 0] + 0.03 * rng.gamma(2, 1, 1000).clip(0, 10)
    learner, privacy = dp.load("quantile_fan", features=4, width=0.005), dp.Privacy(0.5, 1e-6)
    shares = [(y[:, None] <= dp.solve(learner, {"x": x, "y": y}, privacy, seed=k).predict(x)).mean(0) for k in range(3)]
    assert np.abs(np.median(shares, axis=0) - levels).max() < 0.3
