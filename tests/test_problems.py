"""The shipped learners: each declares itself alike, is proved or refused as its description says, and learns."""

import re
from typing import Any

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.learners.problem_files import execute, locate, options

# What no mechanism with a pure promise can take: an objective without strong convexity.
REFUSED = {"pathak_raj_2010"}
# Squares of unbounded parameters: the statistics that they ask of the data are released, and nothing is minimised before.
STATISTICS = {"least_squares_classifier", "linear_regression"}
PROVED = sorted(set(dp.problems()) - REFUSED)
FIRST = ["huber_svm", "large_margin_gaussian", "logistic_regression"]
PROMISE = dp.Privacy(epsilon=1.0)


@pytest.mark.parametrize("problem", sorted(dp.problems()))
def test_every_option_but_the_number_of_features_has_a_default(problem: str) -> None:
    found = options(problem)
    assert [name for name, option in found.items() if option.default is option.empty] == ["features"]
    assert all(option.kind is option.KEYWORD_ONLY for option in found.values())
    told = execute(locate(problem)).template.__doc__ or ""
    for name in found:
        assert re.search(rf"^    (\w+, )*{name}(, \w+)*( : |$)", told, flags=re.MULTILINE), f"{name} is not documented"


@pytest.mark.parametrize("problem", PROVED)
def test_it_is_proved_private_and_learns_from_records_of_its_own_domain(problem: str) -> None:
    template = dp.load(problem, features=3)
    batch = template.record.sample(60, np.random.default_rng(2))
    discrete = {name: template.record.values(batch, name) for name in template.record.discrete}
    data: dict[str, Any] = {**batch.fields, **discrete}
    release = dp.solve(template, data, PROMISE)
    assert release.private
    certificate = release.certificate
    assert certificate is not None
    assert 0 < certificate.sensitivity <= 2 * certificate.gradient_bound * (1 + 1e-9)
    assert (certificate.perturbed == "statistics") == (problem in STATISTICS)
    assert certificate.strong_convexity > 0 or problem in STATISTICS
    assert {name: value.shape for name, value in release.items()} == {v.name: v.shape for v in template.variables}
    if template.predict is not None:
        raw = problem == "kernel_svm"  # it maps features itself
        features = np.random.default_rng(3).uniform(-0.5, 0.5, size=(60, 3)) if raw else np.asarray(data["x"])
        assert len(release.predict(features)) == 60


# The first three, in depth.


def two_classes(labels: tuple[Any, Any], size: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(8)
    second = np.arange(size) % 2
    x = rng.normal(scale=0.15, size=(size, 3)) + np.where(second[:, None] == 1, 0.35, -0.35)
    return x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True)), np.array(labels)[second]


@pytest.mark.parametrize("labels", [(-1, 1), ("benign", "malignant"), (7, 3)])
@pytest.mark.parametrize("problem", FIRST)
def test_it_tells_two_classes_apart(problem: str, labels: tuple[Any, Any]) -> None:
    x, y = two_classes(labels)
    template = dp.load(problem, features=3, labels=labels)
    for release in (dp.minimize(template, {"x": x, "y": y}), dp.solve(template, {"x": x, "y": y}, dp.Privacy(10.0))):
        assert np.mean(release.predict(x) == y) > 0.97


@pytest.mark.parametrize("problem", FIRST)
def test_the_unit_of_the_features_does_not_matter(problem: str) -> None:
    x, y = two_classes((0, 1))
    unit = dp.minimize(dp.load(problem, features=3, labels=(0, 1), regularization=0.02), {"x": x, "y": y})
    # A ridge penalty is in the unit of the weights; the matrices of Gaussians are on scaled features.
    rescaled = 0.02 if problem == "large_margin_gaussian" else 0.02 * 25
    template = dp.load(problem, features=3, labels=(0, 1), radius=5.0, regularization=rescaled)
    large = dp.minimize(template, {"x": 5 * x, "y": y})
    np.testing.assert_array_equal(unit.predict(x), large.predict(5 * x))
