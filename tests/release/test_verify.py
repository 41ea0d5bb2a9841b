"""The constants of shipped problems, known by hand."""

import math
from typing import Any

import pytest

import dpconvex as dp

SUMMED = {"features": 9, "radius": 1.0, "width": 0.5, "competitors": "summed"}
# name, options, gradient bound, sensitivity under replace-one, largest eigenvalue, dimension
CONSTANTS: list[tuple[str, dict[str, Any], float, float, float, int]] = [
    ("large_margin_gaussian", {"classes": 2, **SUMMED}, math.sqrt(2), 2 * math.sqrt(2), 2.0, 55),
    ("large_margin_gaussian", {"classes": 4, **SUMMED}, math.sqrt(12), 4 * math.sqrt(2), 4.0, 165),
    ("logistic_regression", {"features": 3}, 1.0, 2.0, 0.25, 3),
    ("logistic_regression", {"features": 3, "radius": 2.0}, 2.0, 4.0, 1.0, 3),
]


@pytest.mark.parametrize(("name", "options", "gradient", "sensitivity", "eigenvalue", "dimension"), CONSTANTS)
def test_constants_are_those_known_by_hand(
    name: str, options: dict[str, Any], gradient: float, sensitivity: float, eigenvalue: float, dimension: int
) -> None:
    for adjacency, apart in (("replace-one", sensitivity), ("add-remove", gradient)):
        privacy = dp.Privacy(1.0, adjacency=adjacency)
        certificate = dp.verify(dp.load(name, **options), privacy, 583, dp.ObjectivePerturbation())
        found = certificate.gradient_bound, certificate.sensitivity, certificate.hessian_bound
        assert found == pytest.approx((gradient, apart, eigenvalue), rel=1e-9, abs=0.0)
        assert certificate.noise_dimension == dimension
