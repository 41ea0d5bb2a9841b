"""The data sets for demonstrations, scaling by public bounds, and pictures that show the numbers they were given."""

import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from refused import refused

import dpconvex as dp
from dpconvex.datasets import ADULT_NUMBERS, adult, breast_cancer, drawn_shapes, unit_ball

batches = st.tuples(st.integers(1, 5), st.integers(1, 12)).flatmap(lambda s: arrays(float, s, elements=st.floats(0, 1)))


def test_breast_cancer_is_the_documented_table():
    X, y = breast_cancer()
    assert X.shape == (683, 9)
    assert set(np.unique(X)) == set(range(1, 11))
    assert Counter(y.tolist()) == {"benign": 444, "malignant": 239}
    # Malignant cells grade higher in every feature: a shifted column or label would not pass.
    assert (X[y == "malignant"].mean(axis=0) > X[y == "benign"].mean(axis=0)).all()


@given(batches, st.floats(-1e3, 1e3), st.floats(1e-2, 1e3))
def test_every_record_lies_in_the_unit_ball(unit, lower, width):
    upper = lower + width
    X = np.clip(lower + unit * width, lower, upper)
    scaled = unit_ball(X, lower, upper)
    assert (np.linalg.norm(scaled, axis=1) <= 1 + 1e-12).all()
    np.testing.assert_allclose(scaled * np.sqrt(X.shape[1]) / 2, (X - lower) / (upper - lower) - 0.5, atol=1e-12)


ADULT_WORDS = ("workclass", "education", "marital-status", "occupation", "relationship", "race", "sex", "country")
PERSON = dict.fromkeys(ADULT_NUMBERS, 3) | dict.fromkeys(ADULT_WORDS, "a")


def test_adult_keeps_complete_cases_of_a_file_or_of_openml(tmp_path, monkeypatch):
    rows = pd.DataFrame([PERSON | {"class": ">50K"}, PERSON | {"class": "<=50K", "workclass": None}])
    answers = [rows.astype(dict.fromkeys((*ADULT_WORDS, "class"), "category"))]

    def fetch(name, version, as_frame):
        assert (name, version, as_frame) == ("adult", 2, True)
        if not answers:
            raise OSError("no network")
        return SimpleNamespace(frame=answers.pop())

    monkeypatch.setenv("DPCONVEX_DATA", str(tmp_path))
    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    table = adult()
    assert table["income"].tolist() == [">50K"]
    assert table["workclass"].dtype == object
    refused(dp.DPConvexError, r"no network.*DPCONVEX_DATA", adult)
    rows = [PERSON | {"label": "<=50K"}, PERSON | {"label": ">50K", "sex": "?"}, PERSON | {"label": ">50K"}]
    pd.DataFrame(rows).to_csv(tmp_path / "adult.csv.gz", index=False)
    for table in (adult(), adult(tmp_path)):
        assert table["income"].tolist() == ["<=50K", ">50K"]
        assert table.index.tolist() == [0, 1]
        assert all(table[name].dtype == float for name in ADULT_NUMBERS)


@pytest.mark.shared
def test_adult_is_the_documented_table(shared_data):
    table = adult(shared_data("adult.csv.gz").parent)
    assert table.shape == (45222, 15)
    assert (table["income"] == ">50K").sum() == 11208
    assert (table["income"][:30162] == ">50K").sum() == 7508


def test_without_matplotlib_it_says_what_to_install():
    code = "import sys; sys.modules['matplotlib.figure'] = None\nimport dpconvex.plots"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "DPConvexError: pictures need Matplotlib: pip install 'dpconvex[plots]'" in failed.stderr


def test_pictures_show_what_they_were_given():
    plots = pytest.importorskip("dpconvex.plots")
    errors = np.array([[0.4, 0.3, 0.2, 0.1, 0.0], [0.1] * 5, [0.0] * 5])
    axes = plots.error_bands([0.1, 1.0, 10.0], errors, label="ours")
    assert plots.error_bands([0.1, 1.0, 10.0], errors / 2, label="theirs", colour="#b3541e", axes=axes) is axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [0.2, 0.1, 0.0])
    band = axes.collections[0].get_paths()[0].vertices
    assert {0.1, 0.3} <= set(np.round(band[np.isclose(band[:, 0], 0.1), 1], 12))
    refused(dp.TemplateError, "error_bands: errors must have shape", plots.error_bands, [0.1, 1.0, 10.0], [[0.1]])

    certificate = dp.verify(dp.load("logistic_regression", features=3), dp.Privacy(1.0), 500)
    widths = [bar.get_width() for bar in plots.spending(certificate).patches]
    assert widths == pytest.approx([100 * spent for spent, _ in certificate.shares()])

    budget = dp.Budget(dp.Privacy(3.0))
    budget.spend(dp.Privacy(1.0), "March")
    drawn = plots.spending(budget)
    assert [tick.get_text() for tick in drawn.get_yticklabels()] == ["March", "spent in all", "left"]
    assert [bar.get_width() for bar in drawn.patches] == [1.0, 1.0, 2.0]

    mean, precision = np.array([1.0, -2.0, 5.0]), np.diag([4.0, 1.0, 9.0])
    axes = plots.gaussians([mean, [[0.0, 0.0, 0.0]]], [precision, [np.eye(3)]], labels=["a", "b"])
    line = np.array(axes.lines[0].get_data()).T - mean[:2]
    np.testing.assert_allclose(np.einsum("ni,ij,nj->n", line, precision[:2, :2], line), 1.0)
    assert not plots.gaussians([mean], [np.diag([1.0, 0.0, 0.0])]).lines  # flat in a direction


def test_invented_images_are_what_their_seed_says():
    images = drawn_shapes(20, (12, 10), seed=3)
    assert images.shape == (20, 12, 10)
    assert images.dtype == np.float32
    assert images.min() >= 0
    assert images.max() <= 1
    assert (images.std(axis=(1, 2)) > 0).all()
    np.testing.assert_array_equal(images, drawn_shapes(20, (12, 10), seed=3))
    assert (images != drawn_shapes(20, (12, 10), seed=4)).any()
