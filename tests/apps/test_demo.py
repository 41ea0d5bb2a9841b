"""The demonstration runs, keeps its accuracy, and says what it did."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")

import dpconvex as dp
from dpconvex.apps import cli, demo


def test_it_prints_a_certificate_and_a_table_and_draws_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "new" / "picture.png"
    assert cli.main(["demo", "--quick", "--draws", "2", "--out", str(picture)]) == 0
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
        command = ["demo", "--quick", "--draws", "2", "--seed", "3", "--json", "--out", str(tmp_path / "p.png")]
        assert cli.main(command) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    assert told[0]["private"] is False
    assert told[0]["epsilons"] == [0.3, 3.0, 30.0]
    assert np.shape(told[0]["errors"]) == (3, 2)
    assert cli.main([*command[:-3], "--out", str(tmp_path / "p.png")]) == 0
    assert "NOT PRIVATE: the noise was drawn with the seed 3" in capsys.readouterr().out


def test_private_classification_is_worth_something() -> None:
    """Mean over 20 splits; the seed makes it a fact and not a gamble, see the demonstration for fresh noise."""
    found = demo.study(20, (1.0, 10.0), seed=1, progress=False)
    assert found.errors.shape == (2, 20)
    assert found.errors[0].mean() <= 0.08
    assert found.errors[1].mean() <= 0.05
    assert found.reference.mean() <= 0.04
    assert found.chance == pytest.approx(239 / 683)
