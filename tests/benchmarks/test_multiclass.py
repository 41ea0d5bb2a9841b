"""The comparison of learners of many classes: what it feeds them, and that one fit of each kind goes as it should."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from benchmarks.papers import multiclass
from benchmarks.papers.multiclass import PURE, REST, SOFTMAX, Case, measure, unit


def test_records_are_scaled_by_public_bounds_and_their_own_norm() -> None:
    raw, y = multiclass.digits()
    assert raw.shape == (1797, 64)
    assert (raw.min(), raw.max()) == (-1.0, 1.0)
    x = unit(raw)
    assert (np.linalg.norm(x, axis=1) <= 1).all()
    assert np.linalg.norm(x, axis=1) == pytest.approx(1.0)
    np.testing.assert_array_equal(unit(raw[:5]), x[:5])  # one record at a time
    assert not unit(np.zeros((1, 3))).any()
    assert len(np.unique(y)) == 10


def test_learners_of_all_classes_at_once_beat_one_against_the_rest(tmp_path: Path) -> None:
    cases = [Case("digits", SOFTMAX, 3, (1e-3, 10)), Case("digits", REST, 3, (100,)), Case("digits", PURE, 3, (100,))]
    outcomes = list(measure(cases, 2))
    native, rest, pure = outcomes
    assert native.errors[0].tolist() == [1.0, 1.0]  # refused: curvature alone costs more than epsilon
    assert native.best == 1
    assert native.error < 0.25  # 0.13 on average, with a deviation of 0.02
    assert min(rest.error, pure.error) > native.error + 0.1  # 0.5
    multiclass.draw(outcomes, {"digits": 0.02}, tmp_path / "new" / "picture.png")
    assert (tmp_path / "new" / "picture.png").stat().st_size > 10_000
