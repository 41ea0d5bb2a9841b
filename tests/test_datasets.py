"""The shipped data set and scaling by public bounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from dpconvex.datasets import breast_cancer, unit_ball
from dpconvex.errors import DomainError, TemplateError

batches = st.tuples(st.integers(1, 5), st.integers(1, 12)).flatmap(lambda s: arrays(float, s, elements=st.floats(0, 1)))


def test_breast_cancer_is_the_documented_table() -> None:
    X, y = breast_cancer()
    assert X.shape == (683, 9)
    assert X.dtype == np.float64
    assert set(np.unique(X)) == set(range(1, 11))
    labels, counts = np.unique(y, return_counts=True)
    assert dict(zip(labels.tolist(), counts.tolist(), strict=True)) == {"benign": 444, "malignant": 239}
    np.testing.assert_array_equal(X[0], [5, 1, 1, 1, 2, 1, 3, 1, 1])
    # Malignant cells grade higher in every feature: a shifted column or label would not pass.
    assert (X[y == "malignant"].mean(axis=0) > X[y == "benign"].mean(axis=0)).all()


@pytest.mark.shared
def test_breast_cancer_is_the_public_file(shared_data: Callable[[str], Path], root: Path) -> None:
    shipped = root / "dpconvex" / "data" / "breast_cancer_wisconsin.csv"
    assert shipped.read_bytes() == shared_data("breast_cancer_wisconsin.csv").read_bytes()


def test_attribution_is_shipped_beside_the_data(root: Path) -> None:
    text = (root / "dpconvex" / "data" / "README.md").read_text(encoding="utf-8")
    for needed in ("Wolberg", "10.24432/C5HP4Z", "CC BY 4.0", "Changes made"):
        assert needed in text


@given(batches, st.floats(-1e3, 1e3), st.floats(1e-2, 1e3))
def test_every_record_lies_in_the_unit_ball(unit: Any, lower: float, width: float) -> None:
    upper = lower + width
    X = np.clip(lower + unit * width, lower, upper)
    scaled = unit_ball(X, lower, upper)
    assert (np.linalg.norm(scaled, axis=1) <= 1 + 1e-12).all()
    np.testing.assert_allclose(scaled * np.sqrt(X.shape[1]) / 2, (X - lower) / (upper - lower) - 0.5, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 9])
def test_corners_lie_on_the_sphere_and_the_centre_at_zero(d: int) -> None:
    lower, upper = np.arange(d) - 1.0, np.arange(d) + 2.0
    scaled = unit_ball([lower, upper, (lower + upper) / 2], lower, upper)
    np.testing.assert_allclose(np.linalg.norm(scaled, axis=1), [1, 1, 0], atol=1e-15)


def test_scaling_treats_each_record_alone() -> None:
    X, _ = breast_cancer()
    together = unit_ball(X, 1, 10)
    np.testing.assert_array_equal(unit_ball(X[:7], 1, 10), together[:7])


def test_values_outside_the_bounds_are_refused_or_clipped() -> None:
    X = [[0.0, 1.0], [0.5, 3.0]]
    with pytest.raises(DomainError, match="1 records lie outside"):
        unit_ball(X, 0, 1)
    np.testing.assert_allclose(unit_ball(X, 0, 1, clip=True)[1], [0.0, 1 / np.sqrt(2)])
    with pytest.raises(DomainError, match="row 0, column 1 is nan"):
        unit_ball([[0.0, np.nan]], 0, 1, clip=True)


@pytest.mark.parametrize(
    ("X", "lower", "upper", "message"),
    [
        ([1.0, 2.0], 0, 1, "must have shape"),
        (np.zeros((3, 0)), 0, 1, "must have shape"),
        ([[1.0], [1.0, 2.0]], 0, 1, "must have shape"),
        ([[1.0, 2.0]], [0, 0, 0], 1, "one or 2 of them"),
        ([[1.0, 2.0]], "low", 1, "must be numbers"),
        ([[1.0, 2.0]], 0, [1, 0], "drop constant features"),
        ([[1.0, 2.0]], np.nan, 1, "below its upper bound"),
    ],
)
def test_bounds_that_do_not_fit_are_refused(X: Any, lower: Any, upper: Any, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        unit_ball(X, lower, upper)
