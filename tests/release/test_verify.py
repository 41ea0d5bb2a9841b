"""The checker says yes with the right constants, and no with the reason, the place and a remedy."""

import math
from typing import Any

import pytest

import dpconvex as dp

DIGITS = {"rel": 1e-9, "abs": 0.0}


def certified(name: str, adjacency: str = "replace-one", **options: Any) -> dp.Certificate:
    return dp.verify(dp.load(name, **options), dp.Privacy(1.0, adjacency=adjacency), 583, dp.ObjectivePerturbation())


# The constants of the shipped problems, known by hand.


@pytest.mark.parametrize(
    ("classes", "gradient", "replacement", "dimension", "eigenvalue"),
    [
        (2, math.sqrt(2), 2 * math.sqrt(2), 55, 2.0),
        (4, math.sqrt(12), 4 * math.sqrt(2), 165, 4.0),
    ],
)
def test_constants_of_large_margin_gaussians(
    classes: int, gradient: float, replacement: float, dimension: int, eigenvalue: float
) -> None:
    options = {"features": 9, "classes": classes, "competitors": "summed"}
    certificate = certified("large_margin_gaussian", radius=1.0, width=0.5, **options)
    assert certificate.gradient_bound == pytest.approx(gradient, **DIGITS)
    assert certificate.sensitivity == pytest.approx(replacement, **DIGITS)
    assert certificate.hessian_bound == pytest.approx(eigenvalue, **DIGITS)
    assert certificate.noise_dimension == dimension
    removal = certified("large_margin_gaussian", "add-remove", **options)
    assert removal.sensitivity == pytest.approx(gradient, **DIGITS)


@pytest.mark.parametrize("radius", [1.0, 2.0])
def test_constants_of_logistic_regression(radius: float) -> None:
    certificate = certified("logistic_regression", features=3, radius=radius)
    assert certificate.gradient_bound == pytest.approx(radius, **DIGITS)
    assert certificate.sensitivity == pytest.approx(2 * radius, **DIGITS)
    assert certificate.hessian_bound == pytest.approx(radius**2 / 4, **DIGITS)
    assert certificate.noise_dimension == 3
    assert certified("logistic_regression", "add-remove", features=3).sensitivity == pytest.approx(1.0, **DIGITS)


# How the constants turn into noise.


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("problem", ["logistic_regression", "huber_svm", "large_margin_gaussian"])
def test_what_is_spent_adds_up(problem: str, adjacency: str) -> None:
    for epsilon in (0.01, 1.0, 30.0):
        template = dp.load(problem, features=4)
        certificate = dp.verify(template, dp.Privacy(epsilon, adjacency=adjacency), 300, dp.ObjectivePerturbation())
        assert certificate.epsilon == epsilon
        cover = certificate.cover
        assert cover is not None
        assert (cover.counting > 0) == (adjacency == "add-remove")
        spent = certificate.noise_epsilon + certificate.jacobian_epsilon + cover.epsilon + cover.counting
        assert spent == pytest.approx(epsilon, rel=1e-9)
        assert certificate.noise_scale == pytest.approx(certificate.sensitivity / certificate.noise_epsilon, rel=1e-9)
        assert certificate.expected_noise == pytest.approx(certificate.noise_dimension * certificate.noise_scale)
