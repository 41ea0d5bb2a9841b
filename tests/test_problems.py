"""The shipped learners: each declares itself alike, is proved or refused as its description says, and learns."""

import inspect
import re

import numpy as np
import pytest
import scipy.sparse
from learners_of_tests import records_of

import dpconvex as dp
from dpconvex.fitting.problem_files import execute, locate, options

# What no mechanism with a pure guarantee can take: an objective without strong convexity.
REFUSED = {"pathak_raj_2010"}
# Squares of unbounded parameters: the statistics that they ask of the data are released, and nothing is minimised before.
STATISTICS = {"additive_regression", "least_squares_classifier", "linear_regression"}
PROVED = sorted(set(dp.problems()) - REFUSED)
PROMISE = dp.Privacy(epsilon=1.0)
FREE = [(problem, {"constant": 0.5}) for problem in PROVED if "constant" in options(problem)]  # with an intercept


@pytest.mark.parametrize("problem", sorted(dp.problems()))
def test_every_option_but_the_number_of_features_has_a_default(problem):
    found = options(problem)
    assert [name for name, option in found.items() if option.default is option.empty] == ["features"]
    assert all(option.kind is option.KEYWORD_ONLY for option in found.values())
    told = inspect.getdoc(execute(locate(problem)).template) or ""
    for name in found:
        assert re.search(rf"^(\w+, )*{name}(, \w+)*( : |$)", told, flags=re.MULTILINE), f"{name} is not documented"


@pytest.mark.parametrize(("problem", "given"), [*((problem, {}) for problem in PROVED), *FREE])
def test_it_is_proved_private_and_learns_from_records_of_its_own_domain(problem, given):
    template = dp.load(problem, features=3, **given)
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
        for function, known in (("predict", predicted), ("decision_function", None)):
            if features.ndim == 2 and (
                known is not None or template.decision is not None
            ):  # sparse ones are taken alike
                found, expected = (getattr(release, function)(x) for x in (scipy.sparse.csr_array(features), features))
                same = np.testing.assert_array_equal if expected.dtype.kind != "f" else np.testing.assert_allclose
                same(found, expected)


@pytest.mark.parametrize("labels", [("benign", "malignant"), (7, 3)])
@pytest.mark.parametrize("problem", ["huber_svm", "large_margin_gaussian", "logistic_regression"])
def test_it_tells_two_classes_apart_whatever_they_are_called_and_in_any_unit(problem, labels):
    rng, second = np.random.default_rng(8), np.arange(400) % 2
    x = dp.Ball(3).project(rng.normal(scale=0.15, size=(400, 3)) + np.where(second == 1, 0.35, -0.35)[:, None])
    y = np.array(labels)[second]
    fit = dp.solve_without_privacy(dp.load(problem, features=3, labels=labels, regularization=0.02), {"x": x, "y": y})
    assert np.mean(fit.predict(x) == y) > 0.97
    # A ridge penalty is in the unit of the weights; the matrices of Gaussians are on scaled features.
    rescaled = 0.02 if problem == "large_margin_gaussian" else 0.02 * 25
    template = dp.load(problem, features=3, labels=labels, radius=5.0, regularization=rescaled)
    np.testing.assert_array_equal(
        dp.solve_without_privacy(template, {"x": 5 * x, "y": y}).predict(5 * x), fit.predict(x)
    )
