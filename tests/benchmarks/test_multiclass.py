"""The comparison of learners of many classes: what it feeds them, and that one fit of each kind goes as it should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from benchmarks.papers import multiclass
from benchmarks.papers.multiclass import CASES, PURE, REST, SOFT, SOFTMAX, SUMMED, Case, Outcome, measure, split, unit


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


def test_a_split_keeps_four_fifths_for_training() -> None:
    train, test = split(1797, 3)
    assert (len(train), len(test)) == (1438, 359)
    assert sorted([*train, *test]) == list(range(1797))


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


def test_a_line_says_whether_the_goal_is_reached() -> None:
    case = Case("digits", SOFTMAX, 1, (1, 2), 0.37, 0.356)
    line = multiclass.row(Outcome(case, np.array([[0.3, 0.4], [0.4, 0.5]]), 1.0))
    assert line == "| digits | softmax | 1 | 0.350 | 0.050 | 1 | 1: 0.350, 2: 0.450 | 0.37 | 0.356 | yes |"
    assert "**no**" in multiclass.row(Outcome(case, np.full((2, 2), 0.5), 1.0))


def test_every_goal_has_its_case() -> None:
    goals = {(case.data, case.learner, case.epsilon): case.goal for case in CASES if case.goal is not None}
    assert goals == {
        ("digits", SOFTMAX, 1): 0.37,
        ("digits", SOFTMAX, 3): 0.15,
        ("letter", SOFTMAX, 1): 0.41,
        ("letter", SOFTMAX, 3): 0.31,
        ("landsat", SOFTMAX, 1): 0.25,
        ("landsat", SOFTMAX, 3): 0.22,
        ("letter", SOFT, 3): 0.30,
        ("letter", SOFT, 10): 0.21,
    }
    assert any(case.learner == SUMMED for case in CASES)


def test_missing_data_are_left_out_with_a_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPCONVEX_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert multiclass.available(["digits", "letter"]) == ["digits"]
    assert "letter is left out: letter_recognition.npz: no such file" in capsys.readouterr().out
