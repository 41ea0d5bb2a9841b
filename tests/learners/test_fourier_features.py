"""Random Fourier features: exact norms, kernels approximated, nothing taken from the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import dpconvex as dp
from dpconvex.errors import DomainError, TemplateError
from dpconvex.learners.fourier_features import KERNELS, RandomFourierFeatures


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("paired", [True, False])
def test_the_norm_bound_holds_and_is_sharp(kernel: str, paired: bool) -> None:
    rng = np.random.default_rng(0)
    features = RandomFourierFeatures(3, 1 if not paired else 20, kernel, 0.7, paired)
    norms = np.linalg.norm(features.transform(rng.normal(scale=5, size=(5000, 3))), axis=1)
    assert norms.max() <= features.radius * (1 + 1e-12)
    assert norms.max() >= 0.999 * features.radius


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("paired", [True, False])
def test_inner_products_approximate_the_kernel(kernel: str, paired: bool) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(30, 2))
    features = RandomFourierFeatures(2, 20_000, kernel, 0.5, paired, seed=3)
    mapped = features.transform(x)
    # Hoeffding over D bounded terms, with a union bound over the 900 entries: exceeded with probability below 1e-9.
    assert np.abs(mapped @ mapped.T - features.exact(x, x)).max() < 0.06


def test_the_cosine_form_is_that_of_scikit_learn() -> None:
    kernel_approximation = pytest.importorskip("sklearn.kernel_approximation")
    x = np.random.default_rng(4).normal(size=(20, 3))
    ours = RandomFourierFeatures(3, 200, "gaussian", 0.3, paired=False, seed=5)
    theirs = kernel_approximation.RBFSampler(gamma=0.3, n_components=200, random_state=0).fit(x)
    frequencies, phase = ours._drawn
    # The same law of the frequencies, and, for the same frequencies, the same map.
    assert frequencies.std() / theirs.random_weights_.std() == pytest.approx(1, abs=0.25)
    theirs.random_weights_, theirs.random_offset_ = frequencies.T, phase
    np.testing.assert_allclose(ours.transform(x), theirs.transform(x), atol=1e-12)


def test_a_seed_is_the_whole_model() -> None:
    x = np.ones((1, 2))
    first, second = RandomFourierFeatures(2, 5, seed=1), RandomFourierFeatures(2, 5, seed=1)
    assert np.array_equal(first.transform(x), second.transform(x))
    assert not np.array_equal(first.transform(x), RandomFourierFeatures(2, 5, seed=2).transform(x))


@pytest.mark.parametrize(
    "options", [{"kernel": "polynomial"}, {"gamma": 0.0}, {"gamma": float("nan")}, {"components": 0}, {"features": 0}]
)
def test_bad_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(dp.TemplateError):
        RandomFourierFeatures(**{"features": 2, "components": 5, **options})  # type: ignore[arg-type]


def test_bad_records_are_refused() -> None:
    features = RandomFourierFeatures(2, 5)
    with pytest.raises(dp.DomainError, match="shape"):
        features.transform(np.ones((3, 4)))
    with pytest.raises(dp.DomainError, match="finite"):
        features.transform([[np.nan, 0.0]])


def test_the_kernel_machine_separates_rings_privately() -> None:
    rng = np.random.default_rng(2)
    angle, inner = rng.uniform(0, 2 * np.pi, 4000), rng.integers(0, 2, 4000)
    x = (np.where(inner, 0.4, 1.2) + 0.05 * rng.normal(size=4000))[:, None] * np.stack(
        [np.cos(angle), np.sin(angle)], 1
    )
    y = np.where(inner, 1, -1)
    options = {"features": 2, "components": 30, "gamma": 1.0}
    template = dp.load("kernel_svm", regularization=1e-3, **options)
    mapped = RandomFourierFeatures(**options).transform(x)  # type: ignore[arg-type]
    release = dp.solve(template, {"x": mapped, "y": y}, dp.Privacy(epsilon=5.0), seed=0)
    assert np.mean(release.predict(x) != y) < 0.1


def test_the_cosine_form_pays_for_its_norm() -> None:
    cosine = dp.verify(dp.load("kernel_svm", features=2, paired=False), dp.Privacy(1.0), size=1000)
    paired = dp.verify(dp.load("kernel_svm", features=2, paired=True), dp.Privacy(1.0), size=1000)
    assert cosine.sensitivity == pytest.approx(np.sqrt(2) * paired.sensitivity)


# A record's features depend on that record alone.


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(("features", "components"), [(1, 1), (3, 7), (13, 33), (40, 100)])
def test_a_records_features_do_not_depend_on_the_others(features: int, components: int, paired: bool) -> None:
    kernel = RandomFourierFeatures(features, components, gamma=3.0, paired=paired)
    x = np.random.default_rng(0).normal(size=(300, features)) * np.logspace(-3, 8, 300)[:, None]
    x[::7] = 0.0
    x[:, :: max(features // 2, 2)] *= np.arange(300)[:, None] % 3 == 0
    alone = np.concatenate([kernel.transform(row[None]) for row in x])
    for size in range(1, 301):
        np.testing.assert_array_equal(kernel.transform(x[:size]), alone[:size])
        np.testing.assert_array_equal(kernel.transform(x[-size:]), alone[-size:])
    for form in (
        np.asfortranarray,
        sp.csr_array,
        sp.csc_matrix,
        lambda v: np.repeat(v, 2, axis=1)[:, ::2],
        np.ndarray.tolist,
    ):
        np.testing.assert_array_equal(kernel.transform(form(x)), alone)
    order = np.random.default_rng(1).permutation(300)
    np.testing.assert_array_equal(kernel.transform(x[order]), alone[order])
    large = RandomFourierFeatures(features, 5000, gamma=3.0, paired=paired)
    np.testing.assert_array_equal(large.transform(x)[17], large.transform(x[17:18])[0])


@pytest.mark.parametrize(
    "options",
    [
        {"features": 1.0},
        {"features": True},
        {"features": 10**13},
        {"components": "5"},
        {"components": 10**12},
        {"gamma": "1"},
        {"gamma": np.inf},
        {"gamma": None},
        {"paired": 3},
        {"seed": -1},
        {"seed": 1.5},
        {"kernel": ["gaussian"]},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TemplateError):
        RandomFourierFeatures(**{"features": 2, "components": 3, **options})


@pytest.mark.parametrize(
    "x", [[["0.5", "1"]], [np.ma.array([1.0, 2.0], mask=[True, False])], sp.csr_array((1, 3)), None, 5]
)
def test_records_that_are_no_numbers_are_refused(x: Any) -> None:
    with pytest.raises(DomainError):
        RandomFourierFeatures(2, 3).transform(x)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_record_whose_angles_overflow_is_named(sparse: bool) -> None:
    x = np.zeros((400, 2))
    x[300] = 1.7e308
    with pytest.raises(DomainError, match="row 300 is too large"):
        RandomFourierFeatures(2, 50, gamma=100.0).transform(sp.csr_array(x) if sparse else x)
