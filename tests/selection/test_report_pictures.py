"""The report as a browser draws it: on a computer, on a phone and in the dark."""

import shutil
import subprocess
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from test_report import RELEASE, evaluation

import dpconvex as dp

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
VIEWS = {
    "computer": (1000, "--blink-settings=preferredColorScheme=1"),
    "phone": (500, "--blink-settings=preferredColorScheme=1"),
    "dark": (1000, "--blink-settings=preferredColorScheme=0"),
}
HEIGHT, CELL = 3000, 20  # Pixels


@pytest.mark.sampled(3)
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium or Chrome")
@pytest.mark.parametrize("view", VIEWS)
def test_a_report_looks_as_it_did(view, tmp_path):
    """If the look was meant to change, delete the golden picture and run this test again: it writes the picture, and fails."""
    width, scheme = VIEWS[view]
    dp.report(RELEASE, evaluation(), None, page := tmp_path / "report.html")
    shown = tmp_path / "shown.png"
    where = (f"--window-size={width},{HEIGHT}", f"--screenshot={shown}", f"--user-data-dir={tmp_path / 'user'}")
    start = (BROWSER, "--headless", "--no-sandbox", "--no-first-run", "--hide-scrollbars", scheme, *QUIET, *where)
    subprocess.run([*start, page.as_uri()], check=True, capture_output=True, timeout=120)
    drawn = plt.imread(shown)[..., :3].mean(axis=2)
    cells = drawn.reshape(HEIGHT // CELL, CELL, width // CELL, CELL).mean(axis=(1, 3))
    golden = Path(__file__).with_name(f"report_{view}.png")
    if not golden.exists():
        plt.imsave(golden, cells, cmap="gray", vmin=0, vmax=1)
        raise AssertionError("drawn anew: look at it, and at the report")
    expected = plt.imread(golden)[..., 0]
    # Fonts differ between machines, by their lines' lengths and heights; colours, columns and curves do not.
    assert abs(np.median(cells) - np.median(expected)) < 0.02
    assert np.abs(cells.mean(axis=0) - expected.mean(axis=0)).max() < 0.08
    assert np.abs(cells - expected).mean() < 0.04
