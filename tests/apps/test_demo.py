"""The demonstration runs, keeps its accuracy, and says what it did."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")

import dpconvex as dp
from dpconvex.apps import demo
from dpconvex.datasets import breast_cancer


def test_it_prints_a_certificate_and_a_table_and_draws_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "new" / "picture.png"
    assert demo.main(["--quick", "--draws", "2", "--out", str(picture)]) == 0
    captured = capsys.readouterr()
    certificate = dp.verify(demo.learner(), dp.Privacy(1.0), 583)
    assert str(certificate) in captured.out
    for text in ("fixed without the data", "public bounds", "mean test error", "no privacy", "2 random splits"):
        assert text in captured.out
    assert "NOT PRIVATE" not in captured.out
    assert "8/8" in captured.err  # the progress bar: three epsilons and none, two draws
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_with_a_seed_it_repeats_itself_and_says_that_it_is_not_private(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = []
    for _ in range(2):
        command = ["--quick", "--draws", "2", "--seed", "3", "--json", "--out", str(tmp_path / "p.png")]
        assert demo.main(command) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    assert told[0]["private"] is False
    assert told[0]["epsilons"] == [0.3, 3.0, 30.0]
    assert np.shape(told[0]["errors"]) == (3, 2)
    assert demo.main([*command[:-3], "--out", str(tmp_path / "p.png")]) == 0
    assert "NOT PRIVATE: the noise was drawn with the seed 3" in capsys.readouterr().out


def test_private_classification_is_worth_something() -> None:
    """Mean over 20 splits; the seed makes it a fact and not a gamble, see the demonstration for fresh noise."""
    found = demo.study(20, (1.0, 10.0), seed=1, progress=False)
    assert found.errors.shape == (2, 20)
    assert found.errors[0].mean() <= 0.08
    assert found.errors[1].mean() <= 0.05
    assert found.reference.mean() <= 0.04
    assert found.chance == pytest.approx(239 / 683)


def test_splits_do_not_overlap_and_use_every_record(monkeypatch: pytest.MonkeyPatch) -> None:
    trained, tested = [], []
    _, y = breast_cancer()

    class Blind:
        def predict(self, x: np.ndarray) -> np.ndarray:
            tested.append(len(x))
            return np.full(len(x), "benign")

    def minimize(template: dp.Template, data: dict[str, np.ndarray]) -> Blind:
        trained.append(data)
        return Blind()

    monkeypatch.setattr(dp, "minimize", minimize)
    found = demo.study(3, (), progress=False)
    assert tested == [100] * 3
    for data, error in zip(trained, found.reference, strict=True):
        assert data["x"].shape == (583, 9)
        # Who is not in training is in the test: the errors of a constant prediction count the malignant ones.
        assert 100 * error == pytest.approx((y == "malignant").sum() - (data["y"] == "malignant").sum())
    assert not np.array_equal(trained[0]["x"], trained[1]["x"])


def test_the_table_shows_means_and_deviations() -> None:
    found = demo.Study((0.5, 2.0), np.array([[0.1, 0.3], [0.05, 0.05]]), np.array([0.02, 0.04]), 0.35)
    lines = str(found).splitlines()
    assert [line.split() for line in lines[2:]] == [
        ["0.5", "0.200", "0.100"],
        ["2", "0.050", "0.000"],
        ["no", "privacy", "0.030", "0.010"],
    ]


@pytest.mark.parametrize("arguments", [["--draws", "0"], ["--draws", "-1"]])
def test_mistakes_are_explained(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main([*arguments, "--out", str(tmp_path / "p.png")]) == 2
    assert "must be positive" in capsys.readouterr().err


def test_what_is_missing_can_be_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert demo.main(["--out", str(tmp_path / "p.png")]) == 2
    assert "pip install 'dpconvex[demo]'" in capsys.readouterr().err
