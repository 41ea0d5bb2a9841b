"""Labels of a problem of one's own, which its loss may treat differently, are those of the table, in whatever order."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpconvex as dp
from dpconvex.apps import cli

PROBLEM = """
import cvxpy as cp
import numpy as np
import dpconvex as dp


def template(*, features):
    w = cp.Variable(features, name="w")
    return dp.Template(
        record=dp.Record(x=dp.Ball(features), y=dp.Choice({labels})),
        loss=lambda x, y: cp.logistic(x @ w if y == "low" else -x @ w),
        regularizer=0.01 * cp.sum_squares(w),
        predict=lambda parameters, x: np.where(x @ parameters["w"] > 0, "high", "low"),
    )
"""
TABLE = ["--features", "a,b", "--bounds", "0,10", "--label", "class", "--labels", "low,high"]
FIT = ["fit", "mine.py", "data.csv", *TABLE, "--epsilon", "9", "--out", "m.npz"]


@pytest.mark.parametrize("labels", [["low", "high"], ["high", "low"], ["low", "big"]], ids=" ".join)
def test_labels_are_told_by_their_texts(
    labels: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    high = np.arange(300) % 2 == 1
    table = pd.DataFrame(
        {"a": np.where(high, 9.0, 1.0), "b": np.where(high, 8.0, 2.0), "class": np.where(high, "high", "low")}
    )
    table.to_csv("data.csv", index=False)
    Path("mine.py").write_text(PROBLEM.format(labels=labels), encoding="utf-8")
    if "big" in labels:
        assert cli.main(FIT) == 2
        assert "is about the labels ['low', 'big'], and the table's are ['low', 'high']" in capsys.readouterr().err
        return
    assert cli.main(FIT) == 0
    w = dp.Release.load("m.npz", template=dp.load("mine.py", features=2))["w"]
    assert np.all(w > 0)  # larger numbers speak for "high", wherever it stands in the problem
