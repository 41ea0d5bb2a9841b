"""The command line, as its users meet it: what it prints, what it writes, and the exit status."""

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.apps import cli

COLUMNS = ["--features", "a,b", "--bounds", "0,10", "--label", "class", "--labels", "low,high"]
SETTINGS = """
label = "class"
labels = ["low", "high"]
epsilon = 2.0

[features]
a = [0, 10]
b = [0, 10]
"""


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a command in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> Outcome:
        try:
            status = cli.main(arguments)
        except SystemExit as end:  # from argparse
            status = int(end.code or 0)
        captured = capsys.readouterr()
        return Outcome(status, captured.out, captured.err)

    return command


def rows(size: int) -> Iterator[tuple[float, float, str]]:
    rng = np.random.default_rng(7)
    for index in range(size):
        high = index % 2 == 1
        a, b = np.clip(rng.normal(8 if high else 2, 1.0, 2), 0, 10)
        yield round(float(a), 3), round(float(b), 3), "high" if high else "low"


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Write 300 records of two classes that are easy to tell apart."""
    with (tmp_path / "data.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("a", "b", "class"), *rows(300)])
    return "data.csv"


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# problems, verify


def test_problems_are_listed_with_their_options(run: Run) -> None:
    listed = run("problems")
    assert listed.status == 0
    for name, description in dp.problems().items():
        assert f"{name} " in listed.out
        assert description in listed.out
    assert "features, classes=2, regularization=0.01, radius=1.0, labels=(-1, 1)" in listed.out


def test_verify_prints_json(run: Run) -> None:
    done = run(
        *("verify", "logistic_regression", "--set", "features=3", "--set", "regularization=0.2"),
        *("--size", "50", "--epsilon", "0.5", "--adjacency", "add-remove", "--json"),
    )
    told = json.loads(done.out)
    template = dp.load("logistic_regression", features=3, regularization=0.2)
    assert told["private"] is True
    found = dp.Certificate.from_dict(told["certificate"])
    assert found == dp.verify(template, dp.Privacy(0.5, adjacency="add-remove"), 50)


def test_verify_says_why_not(run: Run) -> None:
    command = ("verify", "logistic_regression", "--set=features=3", "--set=regularization=0", "--size=9", "--epsilon=1")
    refused = run(*command)
    assert refused.status == 1
    assert refused.out == ""
    for part in ("not strongly convex", "where: 0 * sum_squares(w)", "remedy: add 1e-6"):
        assert part in refused.err
    told = json.loads(run(*command, "--json").out)
    assert told["private"] is False
    assert told["error"] == "NotPrivate"
    assert "not strongly convex" in told["reason"]
    assert told["where"] == "0 * sum_squares(w)"
    assert "sum_squares" in told["remedy"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"epsilon": "nan"}, "epsilon must be positive and finite"),
        ({"epsilon": "one"}, "invalid float value"),
        ({"size": "0"}, "size must be a positive integer"),
        ({"set": "features=3"}, "gives the option 'features' twice"),
        ({"set": "lambda=3"}, "unknown option 'lambda'"),
        ({"set": "regularization=much"}, "cannot be declared with .*'much'"),
    ],
)
def test_verify_refuses_mistakes(run: Run, changes: dict[str, str], complaint: str) -> None:
    options = {"size": "100", "epsilon": "1", **changes}
    refused = run("verify", "logistic_regression", "--set=features=2", *(f"--{k}={v}" for k, v in options.items()))
    assert refused.status == 2
    assert refused.out == ""
    assert_matches(complaint, refused.err)


def assert_matches(pattern: str, text: str) -> None:
    with pytest.raises(RuntimeError, match=pattern):
        raise RuntimeError(text)


@pytest.mark.parametrize("arguments", [[], ["teach"], ["fit"], ["verify", "logistic_regression"]])
def test_bad_usage_is_explained(run: Run, arguments: list[str]) -> None:
    refused = run(*arguments)
    assert refused.status == 2
    assert "usage: dpconvex" in refused.err


# fit, predict


@pytest.mark.parametrize("problem", ["huber_svm", "large_margin_gaussian"])
def test_fit_with_a_file_of_settings(run: Run, data: str, tmp_path: Path, problem: str) -> None:
    (tmp_path / "fit.toml").write_text(f"{SETTINGS}\n[options]\nregularization = 0.05\n", encoding="utf-8")
    fitted = run("fit", problem, data, "--config", "fit.toml", "--out", "model.npz")
    assert fitted.status == 0, fitted.err
    release = dp.Release.load("model.npz", template=dp.load)
    assert release.spent == dp.Privacy(2.0)
    options = {"features": 2, "classes": 2, "labels": ["low", "high"], "regularization": 0.05}
    assert release.source == (problem, options)
    # The model remembers how the table was scaled, so the raw numbers come out right.
    predicted = run("predict", "model.npz", data, "--json")
    told = json.loads(predicted.out)
    assert told["label"] == "class"
    assert np.mean([found == label for found, (_, _, label) in zip(told["predictions"], rows(300), strict=True)]) > 0.9


def test_the_settings_of_the_documentation_work(run: Run, tmp_path: Path) -> None:
    page = (Path(dp.__file__).parent.parent / "docs" / "command_line.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"^```toml\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "fit.toml").write_text(settings, encoding="utf-8")
    lines = [
        "clump thickness,cell size,ward,diagnosis",
        *(f"{1 + i % 10},{10 - i % 7},west,benign" for i in range(50)),
    ]
    (tmp_path / "patients.csv").write_text("\n".join(lines), encoding="utf-8")
    command = ("fit", "large_margin_gaussian", "patients.csv", "--config", "fit.toml", "--out", "model.npz")
    assert run(*command, "--ledger", "budget.jsonl", "--budget", "3").status == 0
    assert run("predict", "model.npz", "patients.csv", "--out", "predictions.csv").status == 0
    assert files(tmp_path) >= {"model.npz", "predictions.csv", "budget.jsonl"}


def test_a_mixture_pays_for_its_components(run: Run, data: str, tmp_path: Path) -> None:
    problem = ("large_margin_gaussian_mixture", "--epsilon", "4", "--delta", "1e-6")
    proved = run("verify", *problem, "--set", "features=2", "--size", "300", "--json")
    assert proved.status == 0, proved.err
    (tmp_path / "fit.toml").write_text("share = 0.25", encoding="utf-8")
    columns = (data, *COLUMNS, "--out", "model.npz")
    fitted = run("fit", *problem, *columns, "--ledger", "budget.jsonl", "--budget", "4", "--budget-delta", "1e-6")
    assert fitted.status == 0, fitted.err
    assert "( 20 %)  the component labels: noisy k-means" in fitted.out
    release = dp.Release.load("model.npz")
    assert release.certificate is not None
    told = release.certificate.to_dict()
    for key in ("clustering", "privacy", "noise_scale", "cover"):
        assert told[key] == json.loads(proved.out)["certificate"][key]
    assert dp.Budget.open("budget.jsonl").remaining == (0.0, 0.0)
    assert run("predict", "model.npz", data).status == 0
    assert run("fit", *problem, *columns, "--config", "fit.toml").status == 0
    certificate = dp.Release.load("model.npz").certificate
    assert certificate is not None
    assert certificate.clustering is not None
    assert certificate.clustering.epsilon == 1.0
    one = run("verify", *problem, "--set", "features=2", "--size", "300", "--set", "components=1")
    assert "component labels" not in one.out
    refused = run("verify", "huber_svm", "--set", "features=2", "--size", "300", "--epsilon", "1", "--share", "0.2")
    assert refused.status == 2
    assert "this problem has none" in refused.err


def test_fits_differ_and_seeds_are_not_private(run: Run, data: str) -> None:
    command = ("fit", "logistic_regression", data, *COLUMNS, "--epsilon", "1", "--json")
    for name in ("one", "two"):
        told = json.loads(run(*command, "--out", name).out)
        assert told["private"] is True
        assert told["certificate"]["privacy"]["epsilon"] == 1.0
    assert not np.array_equal(dp.Release.load("one")["w"], dp.Release.load("two")["w"])
    for name in ("three", "four"):
        seeded = run(*command, "--out", name, "--seed", "5")
        assert json.loads(seeded.out)["private"] is False
        assert "NOT PRIVATE: the noise was drawn with the seed 5" in seeded.err
    assert np.array_equal(dp.Release.load("three")["w"], dp.Release.load("four")["w"])
    assert not dp.Release.load("three").private


def test_a_ledger_of_events_says_what_is_spent_and_by_which_rule(run: Run, data: str, tmp_path: Path) -> None:
    promise = ("--epsilon", "0.1", "--delta", "1e-7", "--ledger", "budget.jsonl")
    total = ("--budget", "1", "--budget-delta", "1e-6", "--accounting", "gaussian")
    assert run("fit", "logistic_regression", data, *COLUMNS, *promise, *total, "--out", "a.npz").status == 0
    printed = run("budget", "show", "budget.jsonl")
    assert printed.status == 0
    assert "accounting gaussian: squares of Gaussian shifts add up" in printed.out
    assert "fit logistic_regression  epsilon = 0.1, delta = 1e-07, replace-one; " in printed.out
    told = json.loads(run("budget", "show", "budget.jsonl", "--json").out)
    assert told["accounting"] == "gaussian"
    assert told["spends"][0]["event"]["kind"]
    assert {"rule", "epsilon", "delta"} <= set(told["fixed_beforehand"][0])
    assert 0 < told["spent"]["epsilon"] < 1
    again = run("fit", "logistic_regression", data, *COLUMNS, *promise, "--accounting", "renyi", "--out", "b.npz")
    assert again.status == 2
    assert "to be made" in again.err
    assert run("budget", "show", "nothing.jsonl").status == 2


def test_a_ledger_is_charged_and_refuses_to_overspend(run: Run, data: str, tmp_path: Path) -> None:
    command = ("fit", "logistic_regression", data, *COLUMNS, "--epsilon", "0.7", "--ledger", "budget.jsonl")
    missing = run(*command, "--out", "model.npz")
    assert missing.status == 2
    assert run(*command, "--out", "model.npz", "--budget", "1").status == 0
    before = (tmp_path / "model.npz").read_bytes()
    refused = run(*command, "--out", "model.npz")
    assert refused.status == 1
    assert "epsilon = 0.3 is left" in refused.err
    assert (tmp_path / "model.npz").read_bytes() == before
    assert [entry.label for entry in dp.Budget.open("budget.jsonl").entries] == ["fit logistic_regression"]


def test_a_mistake_in_the_file_costs_nothing(run: Run, data: str) -> None:
    dp.Budget(dp.Privacy(1.0), "budget.jsonl")
    Path("broken.csv").write_text("a,b,class\n1,2,low\n1,x,low\n", encoding="utf-8")
    refused = run(
        *("fit", "logistic_regression", "broken.csv", *COLUMNS),
        *("--epsilon", "0.7", "--ledger", "budget.jsonl", "--out", "model.npz"),
    )
    assert refused.status == 2
    assert dp.Budget.open("budget.jsonl").entries == ()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"--features": None}, "declare features"),
        ({"--labels": None}, "declare labels"),
        ({"--epsilon": None}, "declare epsilon"),
        ({"--features": "a,c"}, "data.csv: there is no column 'c'"),
        ({"--bounds": "0,5"}, "data.csv, line [0-9]+, column '[ab]': .* is outside the declared bounds 0 to 5"),
        ({"--bounds": "0"}, "must be two numbers"),
        ({"--labels": "low,medium"}, "line 3, column 'class': the label 'high' was not declared"),
        ({"--backend": "magic"}, "unknown backend 'magic'"),
        ({"--adjacency": "add-remove"}, "pass a public nominal number of records"),
        ({"--config": "nowhere.toml"}, "nowhere.toml: No such file"),
        ({"--out": "nowhere/model.npz"}, "its folder is missing"),
        ({"--budget": "1"}, "name its file with --ledger"),
        ({"--set": "features=3"}, "a vector of 2"),
        ({"--set": "radius=0.5"}, "records lie outside"),
    ],
)
def test_fit_refuses_mistakes_and_writes_nothing(
    run: Run, data: str, tmp_path: Path, changes: dict[str, str | None], complaint: str
) -> None:
    given = dict(zip(COLUMNS[::2], COLUMNS[1::2], strict=True)) | {"--epsilon": "1", "--out": "model.npz"} | changes
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    refused = run("fit", "logistic_regression", data, *options)
    assert refused.status == (1 if "--adjacency" in changes else 2)
    assert refused.out == ""
    assert_matches(f"(?s)dpconvex fit: .*{complaint}", refused.err)
    assert files(tmp_path) == {"data.csv"}


OWN = '''"""My own learner."""
import cvxpy as cp
import numpy as np
import dpconvex as dp


def template(*, features, strength=0.1):
    w = cp.Variable(features, name="w")
    return dp.Template(
        record=dp.Record(x=dp.Ball(features), y=dp.Choice([-1, 1])),
        loss=lambda x, y: cp.logistic(-y * (x @ w)),
        regularizer=strength * cp.sum_squares(w),
        predict=lambda parameters, x: np.where(x @ parameters["w"] > 0, 1, {positive}),
    )
'''


def test_a_problem_file_of_your_own(run: Run, data: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN.replace("{positive}", "-1"), encoding="utf-8")
    fitted = run("fit", "mine.py", data, *COLUMNS, "--epsilon", "9", "--out", "m.npz", "--set", "strength=0.01")
    assert fitted.status == 0
    refused = run("predict", "m.npz", data)
    assert refused.status == 2
    assert "name that with --problem" in refused.err
    found = run("predict", "m.npz", data, "--problem", "mine.py", "--set", "strength=0.01").out.splitlines()[1:]
    assert np.mean([one == label for one, (_, _, label) in zip(found, rows(300), strict=True)]) > 0.95
    (tmp_path / "mine.py").write_text(OWN.replace("{positive}", "7"), encoding="utf-8")
    refused = run("predict", "m.npz", data, "--problem", "mine.py")
    assert refused.status == 2
    assert "predicts 7, which is none of its labels" in refused.err


# As a program


def test_the_module_runs_as_a_program(tmp_path: Path) -> None:
    root = Path(dp.__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "dpconvex.apps.cli"]
    done = subprocess.run([*command, "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    heavy = (
        "import sys; from dpconvex.apps.arguments import parser; parser(); print({'cvxpy', 'scipy'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", heavy], env=environment, text=True) == "set()\n"
    assert (done.returncode, done.stdout) == (0, f"dpconvex {dp.__version__}\n")
    code = "import sys; from dpconvex.apps.cli import main; sys.exit(main(['problems', '--json']))"
    reading, writing = os.pipe()
    os.close(reading)  # nobody reads
    gone = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert gone.stderr == ""
    assert gone.returncode == 1


# Where a command may write.


@pytest.mark.parametrize(("what", "link"), [("data.csv", None), ("ledger.jsonl", os.symlink), ("fit.toml", os.link)])
def test_fit_does_not_write_over_what_it_reads(run: Run, data: str, tmp_path: Path, what: str, link: Any) -> None:
    (tmp_path / "fit.toml").write_text(SETTINGS, encoding="utf-8")
    dp.Budget(dp.Privacy(9.0), tmp_path / "ledger.jsonl")
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    out = what if link is None else "other.npz"
    if link is not None:
        link(tmp_path / what, tmp_path / out)
    found = run("fit", "logistic_regression", data, "--config", "fit.toml", "--ledger", "ledger.jsonl", "--out", out)
    assert found.status == 2
    assert "would be written over" in found.err
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


@pytest.mark.parametrize(
    "out", ["folder", "missing/model.npz", "data.csv/model.npz", "x" * 250, "pipe", "a\0b", "", "closed/model.npz"]
)
def test_a_place_where_no_file_can_be_made_is_found_before_it_is_paid_for(
    run: Run, data: str, tmp_path: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "closed").mkdir()
    os.mkfifo(tmp_path / "pipe")
    touch = Path.touch

    def refused(path: Path, *arguments: Any, **options: Any) -> None:
        if path.parent.name == "closed":  # the tests may run as a user to whom every folder is open
            raise PermissionError(13, "Permission denied", str(path))
        touch(path, *arguments, **options)

    monkeypatch.setattr(Path, "touch", refused)
    ledger = tmp_path / "ledger.jsonl"
    dp.Budget(dp.Privacy(9.0), ledger)
    found = run("fit", "logistic_regression", *COLUMNS, "--epsilon", "5", "--ledger", str(ledger), data, "--out", out)
    assert found.status == 2
    assert "no file can be made there" in found.err
    assert dp.Budget.open(ledger).entries == ()


def test_predictions_are_written_whole_or_not_at_all(
    run: Run, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("fit", "logistic_regression", *COLUMNS, "--epsilon", "5", data, "--out", "model.npz").status == 0
    (tmp_path / "old.csv").write_text("kept", encoding="utf-8")

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert run("predict", "model.npz", data, "--out", "old.csv").status == 2
    assert (tmp_path / "old.csv").read_text(encoding="utf-8") == "kept"
    assert files(tmp_path) == {"data.csv", "model.npz", "old.csv"}
    assert run("predict", "model.npz", data, "--out", "old.csv").status == 0
    assert len((tmp_path / "old.csv").read_text(encoding="utf-8").splitlines()) == 301
