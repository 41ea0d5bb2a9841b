"""Pictures show the numbers that they were given, under honest labels."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import dpconvex as dp
from dpconvex.errors import TemplateError
from dpconvex.plots import error_bands, gaussians, spending

EPSILONS = [0.1, 1.0, 10.0]


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


def test_bands_hold_the_middle_half_of_the_draws() -> None:
    errors = np.array([[0.4, 0.3, 0.2, 0.1, 0.0], [0.1] * 5, [0.0] * 5])
    axes = error_bands(EPSILONS, errors, label="ours")
    assert error_bands(EPSILONS, errors / 2, label="theirs", colour="#b3541e", axes=axes) is axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.2, 0.1, 0.0])
    band = axes.collections[0].get_paths()[0].vertices
    assert {0.1, 0.3} <= set(np.round(band[np.isclose(band[:, 0], 0.1), 1], 12))
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["ours", "theirs"]
    with pytest.raises(TemplateError, match="error_bands: errors must have shape"):
        error_bands(EPSILONS, [[0.1]])


def test_bars_are_the_shares_of_the_certificate() -> None:
    certificate = dp.verify(dp.load("logistic_regression", features=3), dp.Privacy(1.0), 500)
    axes = spending(certificate)
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([100 * spent for spent, _ in certificate.shares()])
    assert sum(widths) == pytest.approx(100)
    assert axes.get_yticklabels()[0].get_text() == "the noise"


def test_ellipses_are_where_a_gaussian_has_fallen() -> None:
    mean, precision = np.array([1.0, -2.0, 5.0]), np.diag([4.0, 1.0, 9.0])
    axes = gaussians([mean, [[0.0, 0.0, 0.0]]], [precision, [np.eye(3)]], labels=["a", "b"])
    line = np.array(axes.lines[0].get_data()).T - mean[:2]
    np.testing.assert_allclose(np.einsum("ni,ij,nj->n", line, precision[:2, :2], line), 1.0)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    flat = gaussians([mean], [np.diag([1.0, 0.0, 0.0])])
    assert not flat.lines
