"""Random Fourier features: exact norms, kernels approximated, nothing taken from the data."""

import numpy as np
import pytest
import scipy.sparse as sp

from dpconvex import RandomFourierFeatures


@pytest.mark.parametrize("kernel", ["gaussian", "laplace", "cauchy"])
@pytest.mark.parametrize("paired", [True, False])
def test_the_norm_bound_is_sharp_and_inner_products_approximate_the_kernel(kernel, paired):
    rng = np.random.default_rng(1)
    features = RandomFourierFeatures(3, 1 if not paired else 20, kernel, 0.7, paired)
    norms = np.linalg.norm(features.transform(rng.normal(scale=5, size=(5000, 3))), axis=1)
    assert 0.999 * features.radius <= norms.max() <= features.radius * (1 + 1e-12)
    x = rng.normal(size=(30, 2))
    features = RandomFourierFeatures(2, 20_000, kernel, 0.5, paired, seed=3)
    mapped = features.transform(x)
    # Hoeffding over D bounded terms, with a union bound over the 900 entries: exceeded with probability below 1e-9.
    difference = x[:, None, :] - x[None, :, :]
    exact = {
        "gaussian": np.exp(-0.5 * np.sum(difference**2, axis=2)),
        "laplace": np.exp(-0.5 * np.sum(np.abs(difference), axis=2)),
        "cauchy": np.prod(1 / (1 + (0.5 * difference) ** 2), axis=2),
    }[kernel]
    assert np.abs(mapped @ mapped.T - exact).max() < 0.06


@pytest.mark.sampled(2)
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(("features", "components"), [(1, 1), (3, 7), (13, 33), (40, 100)])
def test_a_records_features_do_not_depend_on_the_others(features, components, paired):
    kernel = RandomFourierFeatures(features, components, gamma=3.0, paired=paired)
    x = np.random.default_rng(0).normal(size=(300, features)) * np.logspace(-3, 8, 300)[:, None]
    x[::7] = 0.0
    x[:, :: max(features // 2, 2)] *= np.arange(300)[:, None] % 3 == 0
    alone = np.concatenate([kernel.transform(row[None]) for row in x])
    for size in range(1, 301, 7):
        np.testing.assert_array_equal(kernel.transform(x[:size]), alone[:size])
        np.testing.assert_array_equal(kernel.transform(x[-size:]), alone[-size:])
    for form in (np.asfortranarray, sp.csr_array, sp.csc_matrix, np.ndarray.tolist):
        np.testing.assert_array_equal(kernel.transform(form(x)), alone)
    order = np.random.default_rng(1).permutation(300)
    np.testing.assert_array_equal(kernel.transform(x[order]), alone[order])
    large = RandomFourierFeatures(features, 5000, gamma=3.0, paired=paired)
    np.testing.assert_array_equal(large.transform(x)[17], large.transform(x[17:18])[0])
