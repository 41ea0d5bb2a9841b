"""Audits of released statistics: tight where the proof is, and alarmed where noise is too small."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.auditing.released_statistics import attack_statistics


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_worst_neighbours_use_up_the_promise(adjacency: Any, delta: float) -> None:
    template = dp.load("linear_regression", features=2)
    found = dp.audit(template, dp.Privacy(1.0, delta, adjacency), size=200, seed=0)
    assert found.holds
    assert found["exact statistics"].ratio > 0.99
    assert found["noise as drawn"].holds


def test_what_speaks_of_gradients_says_where_to_go() -> None:
    template = dp.load("linear_regression", features=2)
    certificate = dp.verify(template, dp.Privacy(1.0, 1e-6), 200)
    with pytest.raises(dp.TemplateError, match=r"dp\.audit attacks them"):
        dp.falsify(template, certificate)
    with pytest.raises(dp.TemplateError, match="released statistics"):
        dp.risk_bound(template, certificate)


def test_noise_that_is_too_small_is_found_out() -> None:
    template = dp.load("least_squares_classifier", features=2, classes=3)
    certificate = dp.verify(template, dp.Privacy(1.0, 1e-6), 200)
    smaller = replace(certificate, noise_scale=certificate.noise_scale * 0.97)
    exact, *_ = attack_statistics(template, smaller, 400, np.random.default_rng(0))
    assert not exact.holds
