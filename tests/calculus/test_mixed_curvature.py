"""A rank-one part and a covariance under the same weights: never below a mixture of vertices, and close to the worst one."""

from __future__ import annotations

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.calculus.mixed_curvature import Mixed
from dpconvex.release.verify import analyse

MODULI = (0.03, 0.3, 3.0, 300.0)


def worst(points: np.ndarray, outer: float, spread: float, mu: float, rng: np.random.Generator) -> float:
    """Largest log det(I + H/mu) among mixtures of the points."""
    found = 0.0
    corners = [np.eye(len(points))[0], np.full(len(points), 1 / len(points))]
    drawn = [rng.dirichlet(np.full(len(points), rng.choice([0.1, 1.0, 10.0]))) for _ in range(300)]
    leaning = [(1 - t) * corners[0] + t * corners[1] for t in np.linspace(0, 1, 40)]
    for weights in (*corners, *drawn, *leaning):
        mean = weights @ points
        covariance = (points - mean).T @ (weights[:, None] * (points - mean))
        hessian = outer * np.outer(mean, mean) + spread * covariance
        found = max(found, float(np.linalg.slogdet(np.eye(len(mean)) + hessian / mu)[1]))
    return found


@pytest.mark.parametrize("width", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("classes", [3, 4, 8])
def test_soft_competitors_on_a_grid_of_weights(classes: int, width: float) -> None:
    loss = analyse(dp.load("large_margin_gaussian", features=2, classes=classes, width=width)).losses[0]
    points = np.eye(classes)[0] - np.eye(classes)[1:]
    rng = np.random.default_rng(classes)
    for mu in MODULI:
        seen, found = worst(points, 1 / (2 * width), 1.0, mu, rng), loss.curvature.log_det(mu)
        assert seen <= found * (1 + 1e-9)
        assert found <= 1.12 * seen


def test_it_is_sharper_than_the_trace_where_many_classes_compete() -> None:
    curvature = analyse(dp.load("large_margin_gaussian", features=2, classes=10, width=1.0)).losses[0].curvature
    (found,) = curvature.mixed
    assert found is not None
    assert found.variance == pytest.approx(1 - 1 / 9)
    assert (found.longest**2, found.rank) == (pytest.approx(2.0), 8)
    for mu in (0.1, 0.5):
        trace_alone = curvature.rank * np.log1p(curvature.trace / (curvature.rank * mu))
        assert curvature.log_det(mu) < 0.95 * trace_alone
    assert curvature.padded(2.0).log_det(0.2) == pytest.approx(curvature.log_det(0.1))


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_value_is_at_an_end_or_where_the_derivative_vanishes(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(200):
        longest, outer, spread, mu = np.exp(rng.normal(scale=2.0, size=4))
        variance, rank = longest**2 * rng.uniform(), int(rng.integers(1, 30))
        found = Mixed(longest, variance, rank, outer, spread).log_det(mu)
        v = np.linspace(0, variance, 4001)
        seen = (rank * np.log1p(spread * v / (rank * mu)) + np.log1p(outer * (longest**2 - v) / mu)).max()
        assert seen <= found * (1 + 1e-12)
        assert found <= seen * (1 + 1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_with_the_gradient_it_is_the_largest_value_too(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(200):
        longest, outer, spread, mu, weight = np.exp(rng.normal(scale=2.0, size=5))
        variance, rank = longest**2 * rng.uniform(), int(rng.integers(1, 30))
        mixed = Mixed(longest, variance, rank, outer, spread)
        v = np.linspace(0, variance, 4001)
        left = longest**2 - v
        seen = (weight * np.sqrt(left) + rank * np.log1p(spread * v / (rank * mu)) + np.log1p(outer * left / mu)).max()
        assert seen <= mixed.loss(weight, mu) * (1 + 1e-12)
        assert mixed.loss(weight, mu) <= seen * (1 + 1e-3)
        assert mixed.loss(weight, mu) <= (weight * longest + mixed.log_det(mu)) * (1 + 1e-12)
        assert mixed.loss(0.0, mu) == mixed.log_det(mu)


def test_one_kind_alone() -> None:
    assert Mixed(2.0, 0.0, 0, 3.0, 1.0).log_det(0.5) == pytest.approx(np.log1p(3 * 4 / 0.5))
    assert Mixed(2.0, 1.0, 2, 0.0, 1.0).log_det(0.5) == pytest.approx(2 * np.log1p(1 / (2 * 0.5)))
