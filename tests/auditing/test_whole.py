"""The audit as a user calls it: tight where the proof is tight, printed, drawn, and on the command line."""

import json
from pathlib import Path
from typing import Any

import cvxpy as cp
import pytest

import dpconvex as dp
from dpconvex.apps.cli import main
from dpconvex.noise import samplers

GAMMA, GAUSSIAN = dp.ObjectivePerturbation(), dp.ObjectivePerturbation("gaussian")
LEARNER = dp.load("logistic_regression", features=1)


SLOW = pytest.mark.slow


def test_where_no_line_is_found_it_says_so() -> None:
    template = dp.load("softmax_regression", features=2, classes=3)
    found = dp.audit(template, dp.Privacy(1.0, 1e-5), GAUSSIAN, size=1000, effort=0.05, seed=1)
    assert found.holds
    assert "on the line only" in str(found)


def regression(noise: str, dimension: int, ends: str) -> tuple[dp.Template, Any]:
    """Return least squares on a bounded set, and a mechanism."""
    w = cp.Variable(dimension, name="w")
    record = dp.Record(x=dp.Ball(dimension), y=dp.Box(-1.0, 1.0))
    constraints = {"ball": [cp.norm(w) <= 0.4], "box": [w >= -0.2, w <= 0.5]}
    template = dp.Template(record, lambda x, y: cp.square(x @ w - y) / 2, 0.05 * cp.sum_squares(w), constraints[ends])
    return template, dp.ObjectivePerturbation(noise)


@pytest.mark.parametrize(
    ("noise", "dimension", "ends"),
    [("gamma", 1, "ball"), ("gaussian", 1, "ball"), pytest.param("gamma", 3, "box", marks=SLOW)],
)
def test_bounded_sets(noise: str, dimension: int, ends: str) -> None:
    template, mechanism = regression(noise, dimension, ends)
    delta = 1e-3 if noise == "gaussian" else 0.0
    found = dp.audit(template, dp.Privacy(2.0, delta), mechanism, size=20, effort=0.1, seed=1)
    assert found.holds, str(found)
    assert found["exact answer"].found_epsilon > 0.05 or found["exact answer"].found_delta > 0


def test_a_set_without_a_projection_is_refused() -> None:
    w = cp.Variable(2, name="w")
    record = dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1]))
    constraints = [w >= -3, cp.log_sum_exp(w) <= 2]
    template = dp.Template(record, lambda x, y: cp.logistic(-y * (x @ w)), cp.sum_squares(w), constraints)
    with pytest.raises(dp.TemplateError, match=r"which points lie in the feasible set: .*log_sum_exp"):
        dp.audit(template, dp.Privacy(2.0), GAMMA, size=20, effort=0.1, seed=1)


def test_mappings_and_sequences_are_audited_as_tuning() -> None:
    found = dp.audit({"a": LEARNER, "b": LEARNER}, dp.Privacy(1.0), GAMMA, size=90, effort=0.05, seed=1)
    assert [attack.part for attack in found.attacks if attack.part.endswith("exact answer")] == [
        "candidate 0, exact answer",
        "candidate 1, exact answer",
    ]
    assert found["choice"].holds
    with pytest.raises(KeyError, match="attacked were"):
        found["nothing"]


def test_everything_as_released() -> None:
    template = dp.load("huber_svm", features=1, regularization=4)  # one record, which decides the answer
    found = dp.audit(template, dp.Privacy(4.0), dp.OutputPerturbation(), size=1, effort=0.1, runs=150, seed=1)
    attack = found["as released"]
    assert found.holds, str(found)
    assert 0.7 < attack.found_epsilon < 4.0, str(found)


@SLOW
def test_it_prints_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    template = dp.load("huber_svm", features=1)
    found = dp.audit(template, dp.Privacy(1.0, 1e-6), GAUSSIAN, size=50, effort=0.05, seed=1)
    text = str(found)
    assert "claimed" in text
    assert "one data set has" in text
    assert "the rest of the data" in text
    assert "ratio" in found._repr_html_()
    assert json.loads(json.dumps(found.to_dict()))["holds"] is True
    found.plot(tmp_path / "audit.png")
    assert (tmp_path / "audit.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("template", "options", "message"),
    [
        (LEARNER, {"effort": 0}, "effort must be"),
        (LEARNER, {"effort": True}, "effort must be"),
        (LEARNER, {"runs": 3}, "runs must be"),
        (LEARNER, {"selection": "best"}, "selection must be"),
        (LEARNER, {"repetitions": 3}, "repetitions must be"),
        (LEARNER, {"size": 0}, "size must be"),
        (LEARNER, {"mechanism": GAUSSIAN}, "delta = 0"),
        ([LEARNER] * 5, {"size": 3}, "cannot be split"),
        ("logistic_regression", {}, "expected"),
        ([], {}, "expected"),
        ([3], {}, "expected"),
    ],
)
def test_what_makes_no_sense_is_refused(template: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(dp.DPConvexError, match=message):
        dp.audit(template, dp.Privacy(1.0), **({"size": 10} | options))


def test_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ["audit", "huber_svm", "--set", "features=1", "--size", "50", "--epsilon", "1", "--effort", "0.05"]
    common += ["--mechanism", "output-gamma", "--adjacency", "add-remove"]
    picture = tmp_path / "audit.png"
    assert main([*common, "--json", "--picture", str(picture)]) == 0
    assert json.loads(capsys.readouterr().out)["holds"] is True
    assert picture.exists()
    honest = samplers.Gamma.calibrate
    monkeypatch.setattr(samplers.Gamma, "calibrate", lambda *arguments: 0.5 * honest(*arguments))
    assert main(common) == 1
    printed = capsys.readouterr()
    assert "BROKEN: exact answer" in printed.out
    assert "a claim was broken" in printed.err
