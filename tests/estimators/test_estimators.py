"""The scikit-learn wrappers: they clone, fit, predict and verify, and learn nothing that was not declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_wine

import dpconvex as dp
from dpconvex.release.verify import analyse

estimators = dp

BINARY = [
    *("LogisticRegression", "HuberSVC", "KernelSVC", "SoftmaxRegression"),
    *("LargeMarginGaussian", "LargeMarginGaussianMixture"),
]


def separable(size: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, 2))
    x /= np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True))
    return x, np.where(x[:, 0] + 0.3 * x[:, 1] > 0, "yes", "no")


@pytest.mark.parametrize("name", BINARY)
def test_fit_predict_clone(name: str) -> None:
    x, y = separable()
    estimator = getattr(estimators, name)(epsilon=5.0, classes=("no", "yes"), regularization=1e-3, seed=1)
    again = clone(estimator)
    assert again.get_params() == estimator.get_params()
    assert again.fit(x, y).score(x, y) > 0.85
    assert list(again.classes_) == ["no", "yes"]
    assert again.certificate(features=2, size=len(y)).epsilon == 5.0
    assert not again.release_.private


def test_a_fit_without_a_seed_is_private() -> None:
    x, y = separable(300)
    fitted = estimators.LogisticRegression(epsilon=1.0, classes=("no", "yes")).fit(x, y)
    assert fitted.release_.private
    assert fitted.release_.spent == dp.Privacy(1.0)


def test_many_classes() -> None:
    raw = load_wine()
    lower, upper = np.zeros(13), np.array([16, 7, 5, 40, 200, 5, 6, 1, 5, 15, 2, 5, 2000.0])
    x = (np.clip(raw.data, lower, upper) - lower) / (upper - lower) - 0.5
    x /= np.sqrt(13) / 2
    fitted = estimators.SoftmaxRegression(epsilon=1e6, classes=(0, 1, 2), regularization=1e-4, seed=0)
    assert fitted.fit(x, raw.target).score(x, raw.target) > 0.9


def test_competing_classes_are_an_option() -> None:
    rng = np.random.default_rng(5)
    y = np.arange(900) % 3
    angle = 2 * np.pi * y / 3
    x = 0.6 * np.column_stack([np.cos(angle), np.sin(angle)]) + rng.uniform(-0.15, 0.15, size=(900, 2))
    for competitors, gradient in ((None, np.sqrt(2)), ("soft", np.sqrt(2)), ("summed", np.sqrt(6))):
        estimator = estimators.LargeMarginGaussian(
            epsilon=20.0, classes=(0, 1, 2), regularization=1e-3, competitors=competitors, seed=1
        )
        assert clone(estimator).get_params()["competitors"] == competitors
        assert estimator.certificate(features=2, size=900).gradient_bound == pytest.approx(gradient)
        assert estimator.fit(x, y).score(x, y) > 0.95
    template = estimators.LargeMarginGaussian(classes=(0, 1, 2)).template(2)
    assert analyse(template).modulus == pytest.approx(
        analyse(dp.load("large_margin_gaussian", features=2, classes=3)).modulus
    )
    with pytest.raises(dp.TemplateError, match="'summed' or 'soft'"):
        estimators.LargeMarginGaussian(classes=(0, 1, 2), competitors="nearest").fit(x, y)


def test_component_labels_are_learnt_declared_or_given() -> None:
    x, y = separable(600)
    centers = [[[-0.5, 0.5], [-0.5, -0.5]], [[0.5, 0.5], [0.5, -0.5]]]
    fixed: dict[str, Any] = {"epsilon": 20.0, "classes": ("no", "yes"), "regularization": 1e-3, "seed": 1}
    learnt = estimators.LargeMarginGaussianMixture(**fixed, share=0.3, rounds=4)
    nearest = estimators.LargeMarginGaussianMixture(**fixed, component_labels="nearest", centers=centers)
    given = estimators.LargeMarginGaussianMixture(**fixed, component_labels="given")
    for estimator, extra in ((learnt, ()), (nearest, ()), (given, (x[:, 1] > 0,))):
        again = clone(estimator)
        assert again.fit(x, y, *extra).score(x, y) > 0.9
        assert again.release_.certificate == estimator.certificate(features=2, size=600)
    noise = learnt.certificate(features=2, size=600).clustering
    assert noise is not None
    assert (noise.epsilon, noise.rounds) == (6.0, 4)
    assert given.certificate(2, 600) == nearest.certificate(2, 600)
    assert given.certificate(2, 600).clustering is None
    np.testing.assert_array_equal(nearest.fit(x, y).components_.assign(x, y), x[:, 1] <= 0)


@pytest.mark.parametrize(
    ("options", "arguments", "message"),
    [
        ({"component_labels": "free"}, (), "component_labels must be"),
        ({"component_labels": "given"}, (), "are passed for"),
        ({}, (np.zeros(50, dtype=int),), "are passed for"),
        ({"component_labels": "nearest"}, (), "declare public centers"),
        ({"centers": [[[0.0, 0.0]]]}, (), "declare public centers"),
        ({"share": 2.0}, (), "share"),
        ({"components": 0}, (), "at least one component"),
    ],
)
def test_labels_from_nowhere_are_refused(options: dict[str, Any], arguments: tuple[Any, ...], message: str) -> None:
    x, y = separable(50)
    with pytest.raises(dp.TemplateError, match=message):
        estimators.LargeMarginGaussianMixture(classes=("no", "yes"), **options).fit(x, y, *arguments)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"classes": ("no", "maybe")}, dp.DomainError),
        ({"epsilon": -1.0}, dp.TemplateError),
        ({"radius": 0.1}, dp.DomainError),
        ({"adjacency": "add-remove"}, dp.NotPrivate),
    ],
)
def test_bad_options_are_refused(change: dict[str, Any], error: type[Exception]) -> None:
    x, y = separable(50)
    with pytest.raises(error):
        estimators.LogisticRegression(**{"classes": ("no", "yes"), **change}).fit(x, y)


def test_unfitted_estimators_say_so() -> None:
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        estimators.HuberSVC().predict(np.zeros((1, 2)))
