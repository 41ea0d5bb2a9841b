"""The duel's parts: data in the unit ball, competitors that keep to their budget, and one round of it."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from benchmarks.utility import competitors, tables
from benchmarks.utility.__main__ import EPSILONS, halved, main

SHIPPED = ["wisconsin", "diagnostic", "iris", "wine", "digits", "parity", "diabetes", "heavy tails"]


@pytest.mark.parametrize("name", SHIPPED)
def test_records_lie_in_the_unit_ball_and_halves_are_apart(name: str) -> None:
    split = tables.find(name, most=300)
    assert split is not None
    assert (np.linalg.norm(np.concatenate([split.x, split.x_test]), axis=1) <= 1 + 1e-12).all()
    assert np.abs(split.y).max() <= (1 if split.classes == 0 else split.classes - 1)
    choosing, reporting = halved(split)
    assert len(choosing.y_test) + len(reporting.y_test) == len(split.y_test)
    assert split.error(split.y_test) == 0


@pytest.mark.parametrize("classes", [2, 3])
def test_clipped_sums_move_by_no_more_than_the_clip(classes: int) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 4)), rng.integers(0, classes, size=20)
    weights = rng.normal(size=(4, 1 if classes == 2 else classes))
    whole = competitors.clipped_sum(x, y, weights, classes, 0.3)
    for k in range(20):
        keep = np.arange(20) != k
        rest = competitors.clipped_sum(x[keep], y[keep], weights, classes, 0.3)
        assert np.linalg.norm(whole - rest) <= 0.3 * (1 + 1e-12)
    # With a clip that binds nowhere it is the gradient of the loss.
    exact, step = competitors.clipped_sum(x, y, weights, classes, 1e9), 1e-6
    moved = weights.copy()
    moved[1, 0] += step
    assert (loss(x, y, moved) - loss(x, y, weights)) / step == pytest.approx(exact[1, 0], rel=1e-4)


def loss(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    """The sum of the losses."""
    scores = x @ weights if weights.shape[1] > 1 else np.column_stack([np.zeros(len(y)), x @ weights])
    return float(np.sum(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]))


def test_the_duel_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("dp_accounting")
    pytest.importorskip("matplotlib")
    main(["--data", "wisconsin", "--output", str(tmp_path)])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| wisconsin")]
    assert len(rows) == 5
    assert all(len(row.split("|")) == len(EPSILONS) + 4 for row in rows)
    ours = next(row for row in rows if "ours" in row)
    assert float(ours.split("|")[-2]) < 0.1
    assert (tmp_path / "utility.png").stat().st_size > 10_000
