"""Competing classes, summed or soft: what one record can do does not grow with the number of classes if they are soft."""

from typing import Any

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.calculus.analysis import Analysis
from dpconvex.release.verify import analyse

SINGLE, MIXTURE = "large_margin_gaussian", "large_margin_gaussian_mixture"
DIGITS = {"rel": 1e-9, "abs": 0.0}


def of(name: str, **options: Any) -> Analysis:
    return analyse(dp.load(name, **options))


@pytest.mark.parametrize("width", [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("classes", [3, 4, 10])
def test_the_trace_of_the_hessian_is_the_one_known_by_hand(classes: int, width: float) -> None:
    # With s the sum of squares of the softmax weights, |E v|^2 = 1 + s and tr Cov = 1 - s for vertices v = e_y - e_c.
    s = np.array([1 / (classes - 1), 1.0])
    exact = max((1 + s) / (2 * width) + 1 - s)
    for loss in of(SINGLE, features=2, classes=classes, width=width).losses:
        assert loss.curvature.trace == pytest.approx(exact, **DIGITS)
        assert loss.curvature.rank == classes - 1
        if width <= 0.5:
            assert loss.curvature.trace == pytest.approx(1 / width, **DIGITS)


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("name", [SINGLE, MIXTURE])
def test_matrix_shaped_noise_is_chosen_where_it_is_smaller(name: str, adjacency: str) -> None:
    template = dp.load(name, features=9, classes=3)
    promise = dp.Privacy(1.0, adjacency=adjacency)
    gamma = dp.verify(template, promise, 1000, dp.ObjectivePerturbation())
    chosen = dp.verify(template, promise, 1000)
    assert chosen.noise == "matrix"
    assert chosen.expected_noise < 0.8 * gamma.expected_noise
