"""Pictures show the numbers that they were given, under honest labels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from dpconvex.errors import TemplateError
from dpconvex.plots import error_against_epsilon

EPSILONS = [0.1, 1.0, 10.0]
ERRORS = np.array([[0.4, 0.2], [0.1, 0.1], [0.0, 0.04]])


def test_means_and_deviations_are_drawn() -> None:
    axes = error_against_epsilon(EPSILONS, ERRORS, reference=[0.01, 0.03], chance=0.35).axes[0]
    (bars,) = axes.containers
    line, _, (segments,) = bars.lines
    np.testing.assert_allclose(line.get_xdata(), EPSILONS)
    np.testing.assert_allclose(line.get_ydata(), [0.3, 0.1, 0.02])
    heights = [segment[:, 1] for segment in segments.get_segments()]
    np.testing.assert_allclose(heights, [[0.2, 0.4], [0.1, 0.1], [0.0, 0.04]], atol=1e-12)
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [float(y) for line in dashed for y in line.get_ydata()] == pytest.approx([0.02, 0.02])
    assert axes.get_xscale() == "log"
    assert axes.get_ylim()[0] == 0


def test_labels_say_what_is_shown() -> None:
    figure = error_against_epsilon(EPSILONS, ERRORS, reference=[0.02], chance=0.35, title="Title", subtitle="Promise")
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == ["private: mean ± 1 sd of 2 draws", "without privacy: 2.0 %", "most frequent class: 35.0 %"]
    axes = figure.axes[0]
    assert "ε" in axes.get_xlabel()
    assert axes.get_ylabel() == "test error"
    assert axes.get_title(loc="left") == "Title"
    assert "Promise" in [text.get_text() for text in axes.texts]
    figure.canvas.draw()
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.1", "1", "10"]


def test_one_draw_is_called_one_draw() -> None:
    (legend,) = error_against_epsilon([1.0], [[0.1]]).legends
    assert [text.get_text() for text in legend.get_texts()] == ["private: 1 draw"]


def test_it_can_be_saved(tmp_path: Path) -> None:
    figure = error_against_epsilon(EPSILONS, ERRORS, title="Title", subtitle="Promise")
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("epsilons", "errors"),
    [
        ([], []),
        ([0.0, 1.0], [[0.1], [0.1]]),
        ([-1.0], [[0.1]]),
        ([float("inf")], [[0.1]]),
        ([1.0], [0.1]),
        ([1.0], [[0.1], [0.2]]),
        ([1.0], [[]]),
        ([1.0], [[float("nan")]]),
    ],
)
def test_shapes_must_go_together(epsilons: Any, errors: Any) -> None:
    with pytest.raises(TemplateError, match="error_against_epsilon"):
        error_against_epsilon(epsilons, errors)


def test_no_window_is_opened() -> None:
    code = "import sys, dpconvex.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parent.parent)


def test_without_matplotlib_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['matplotlib.figure'] = None\n"
        "from dpconvex.errors import DPConvexError\n"
        "try:\n    import dpconvex.plots\n"
        "except DPConvexError as error:\n    assert \"pip install 'dpconvex[plots]'\" in str(error)\n"
        "else:\n    raise SystemExit('imported')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parent.parent)
