"""The command line, as its users meet it: what it prints, what it writes, and the exit status."""

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import dpconvex as dp
from dpconvex.accounting.totals import RULES
from dpconvex.apps import cli, demo
from dpconvex.language.privacy import ADJACENCIES

COLUMNS = ["--features", "a,b", "--bounds", "0,10", "--label", "class", "--labels", "low,high"]
SETTINGS = """
label = "class"
labels = ["low", "high"]
epsilon = 2.0
features = {a = [0, 10], b = [0, 10]}
options = {regularization = 0.05}
"""
SCHEMA = """
label = "bought"
labels = ["no", "yes"]
ignore = ["customer"]

[features]
age = [0, 100]
colour = {levels = ["red", "green"], other = true, missing = "indicator"}
member = {boolean = ["no", "yes"]}
"""


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


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


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Write 300 records of two classes that are easy to tell apart."""
    high = np.arange(300) % 2 == 1
    a, b = np.clip(np.random.default_rng(7).normal(np.where(high, 8, 2), 1.0, (2, 300)), 0, 10).round(3)
    pd.DataFrame({"a": a, "b": b, "class": np.where(high, "high", "low")}).to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "fit.toml").write_text(SETTINGS, encoding="utf-8")
    return "data.csv"


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """Write 400 records in which members buy, as a file and as a folder of files."""
    rng, row = np.random.default_rng(3), np.arange(400)
    table = pd.DataFrame({"customer": [f"c{k}" for k in row], "age": rng.integers(18, 90, 400)})
    table["colour"] = np.array(["red", "green", "blue", None], dtype=object)[row % 4]
    table["member"] = np.where(row % 2 == 0, "yes", "no")
    table["bought"] = np.where((row % 2 == 0) == (rng.random(400) < 0.95), "yes", "no")
    table.to_csv(tmp_path / "shop.csv", index=False)
    (tmp_path / "shop").mkdir()
    for number, (start, stop) in enumerate([(0, 10), (10, 10), (10, 300), (300, 400)]):
        table[start:stop].to_parquet(tmp_path / "shop" / f"part{number}.parquet")
    (tmp_path / "shop.toml").write_text(SCHEMA, encoding="utf-8")
    return "shop.csv"


def fitted(run: Run, shop: str, *further: str) -> Outcome:
    command = ("fit", "logistic_regression", shop, "--schema", "shop.toml", "--epsilon", "5", "--out", "model.npz")
    return run(*command, *further)


# What needs no data


def test_verify_prints_what_is_proved_or_why_not(run: Run) -> None:
    done = run(
        *("verify", "logistic_regression", "--set", "features=3", "--set", "regularization=0.2"),
        *("--size", "50", "--epsilon", "0.5", "--adjacency", "add-remove", "--json"),
    )
    template = dp.load("logistic_regression", features=3, regularization=0.2)
    found = dp.Certificate.from_dict(done.json["certificate"])
    assert found == dp.verify(template, dp.Privacy(0.5, adjacency="add-remove"), 50)
    command = ("verify", "logistic_regression", "--set=features=3", "--set=regularization=0", "--size=9", "--epsilon=1")
    refused = run(*command)
    assert (refused.status, refused.out) == (1, "")
    assert "not strongly convex" in refused.err
    told = run(*command, "--json").json
    assert (told["private"], told["error"], told["where"]) == (False, "NotPrivate", "0 * sum_squares(w)")


def test_usage_and_problems_are_explained(run: Run) -> None:
    for arguments in ([], ["teach"], ["fit"], ["verify", "logistic_regression"]):
        refused = run(*arguments)
        assert (refused.status, "usage: dpconvex" in refused.err) == (2, True)
    for command, (_, _, examples) in cli.COMMANDS.items():
        assert not examples or "examples:\n  dpconvex" in run(command, "--help").out
    assert (sorted(RULES), ADJACENCIES) == (sorted(cli.ACCOUNTING), cli.ADJACENCIES)
    listed = run("problems").out
    assert all(f"{name} - {description}" in listed for name, description in dp.problems().items())
    assert "features, classes=2, regularization=0.01, radius=1.0, labels=(-1, 1)" in listed
    assert {problem["name"] for problem in run("problems", "--json").json} == set(dp.problems())


# Fits


def test_the_settings_of_the_documentation_work(run: Run, tmp_path: Path) -> None:
    page = (Path(dp.__file__).parent.parent / "docs" / "command_line.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"^```toml\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "fit.toml").write_text(settings, encoding="utf-8")
    lines = ["clump thickness,cell size,ward,diagnosis"]
    lines += [f"{1 + i % 10},{10 - i % 7},west,benign" for i in range(50)]
    (tmp_path / "patients.csv").write_text("\n".join(lines), encoding="utf-8")
    command = ("fit", "large_margin_gaussian", "patients.csv", "--config", "fit.toml", "--out", "model.npz")
    assert run(*command, "--ledger", "budget.jsonl", "--budget", "3").status == 0
    release = dp.Release.load("model.npz", template=dp.load)
    assert (release.spent, (release.source or ("", {}))[1]["regularization"]) == (dp.Privacy(1.0), 1e-3)
    assert run("predict", "model.npz", "patients.csv", "--out", "predictions.csv").status == 0
    assert len(Path("predictions.csv").read_text(encoding="utf-8").splitlines()) == 51


def test_a_mixture_pays_for_its_components(run: Run, data: str) -> None:
    problem = ("large_margin_gaussian_mixture", "--epsilon", "4", "--delta", "1e-6")
    proved = run("verify", *problem, "--set", "features=2", "--size", "300", "--json")
    columns = (data, *COLUMNS, "--out", "model.npz")
    done = run("fit", *problem, *columns, "--ledger", "budget.jsonl", "--budget", "4", "--budget-delta", "1e-6")
    assert done.status == 0, done.err
    assert "( 20 %)  the component labels: noisy k-means" in done.out
    certificate = dp.Release.load("model.npz").certificate
    assert certificate is not None
    assert certificate.to_dict()["clustering"] == proved.json["certificate"]["clustering"]
    assert dp.Budget.open("budget.jsonl").remaining == (0.0, 0.0)
    assert run("predict", "model.npz", data).status == 0
    assert "( 25 %)" in run("fit", *problem, *columns, "--share", "0.25").out


def test_a_ledger_is_charged_shown_and_refuses_to_overspend(run: Run, data: str, tmp_path: Path) -> None:
    further = ["--delta", "1e-7", "--ledger", "budget.jsonl", "--out", "model.npz"]
    command = ("fit", "logistic_regression", data, *COLUMNS, *further)
    assert run(*command, "--epsilon", "0.1").status == 2  # there is no such ledger
    total = ("--budget", "1", "--budget-delta", "1e-6", "--accounting", "gaussian")
    assert run(*command, "--epsilon", "0.7", *total).status == 0
    before = (tmp_path / "model.npz").read_bytes()
    refused = run(*command, "--epsilon", "0.9")
    assert refused.status == 1
    assert "is left" in refused.err
    assert (tmp_path / "model.npz").read_bytes() == before
    assert "gaussian accounting (squares of Gaussian shifts add up)" in run("budget", "show", "budget.jsonl").out
    told = run("budget", "show", "budget.jsonl", "--json").json
    assert (told["accounting"], told["spends"][0]["epsilon"]) == ("gaussian", 0.7)
    assert {"rule", "epsilon", "delta"} <= set(told["fixed_beforehand"][0])
    assert 0 < told["spent"]["epsilon"] < 1
    assert run("budget", "verify", "budget.jsonl").out == "budget.jsonl: sound; 1 spends.\n"
    assert "to be made" in run(*command, "--epsilon", "0.1", "--accounting", "renyi").err
    assert run("budget", "show", "nothing.jsonl").status == 2
    assert len(dp.Budget.open("budget.jsonl").entries) == 1


MISTAKES = {
    "verify": [
        ({"--epsilon": "one"}, "invalid float value"),
        ({"--set": "features=3"}, "gives the option 'features' twice"),
        ({"--set": "lambda=3"}, "unexpected keyword argument 'lambda'"),
        ({"--set": "regularization=much"}, "cannot be declared with .*'much'"),
        ({"--mechanism": "nope"}, "there is no mechanism 'nope'; there are: objective-gamma"),
        ({"--mechanism": "gradient-descent:clop=1"}, "has no option 'clop'; it has: clip"),
        ({"--mechanism": "gradient-descent:20"}, "--mechanism NAME takes OPTION=VALUE"),
        ({"--share": "0.2"}, "this problem has none"),
    ],
    "fit": [
        ({"--features": None}, "declare features"),
        ({"--features": "a,c"}, "data.csv: there is no column 'c'"),
        ({"--bounds": "0,5"}, "data.csv, line [0-9]+, column '[ab]': .* is outside the declared bounds 0 to 5"),
        ({"--labels": "low,medium"}, "line 3, column 'class': 'high' was not declared"),
        ({"--backend": "magic"}, "unknown backend 'magic'"),
        ({"--adjacency": "add-remove"}, "pass a public nominal number of records"),
        ({"--budget": "1"}, "state both, --ledger and --budget"),
        ({"--set": "features=3"}, "a record like Record.x=Ball.dim=2"),
        ({"--set": "radius=0.5"}, "records lie outside"),
    ],
}
GIVEN = {
    "verify": {"--size": "100", "--epsilon": "1"},
    "fit": dict(zip(COLUMNS[::2], COLUMNS[1::2], strict=True)) | {"--epsilon": "1", "--out": "model.npz"},
}


@pytest.mark.parametrize(("command", "changes", "complaint"), [(c, *row) for c in MISTAKES for row in MISTAKES[c]])
def test_mistakes_are_refused_and_nothing_is_written(
    run: Run, data: str, tmp_path: Path, command: str, changes: dict[str, str | None], complaint: str
) -> None:
    given: dict[str, str | None] = GIVEN[command] | changes
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    refused = run(command, "logistic_regression", data if command == "fit" else "--set=features=2", *options)
    assert (refused.status, refused.out) == (1 if "--adjacency" in changes else 2, "")
    assert re.search(f"(?s)dpconvex {command}: .*{complaint}", refused.err)
    assert {path.name for path in tmp_path.iterdir()} == {"data.csv", "fit.toml"}


OWN = '''"""My own learner, in which labels play different parts."""
import cvxpy as cp
import numpy as np
import dpconvex as dp


def template(*, features, strength=0.1):
    w = cp.Variable(features, name="w")
    return dp.Template(
        record=dp.Record(x=dp.Ball(features), y=dp.Choice(LABELS)),
        loss=lambda x, y: cp.logistic(-x @ w if y == HIGH else x @ w),
        regularizer=strength * cp.sum_squares(w),
        predict=lambda parameters, x: np.where(x @ parameters["w"] > 0, HIGH, OTHER),
    )
'''


@pytest.mark.parametrize(
    ("labels", "other", "complaint"),
    [
        ([-1, 1], -1, None),  # told by their order
        (["low", "high"], "low", None),
        (["high", "low"], "low", None),
        (["low", "big"], "low", "is about the labels ['low', 'big'], and the table's are ['low', 'high']"),
        ([-1, 1], 7, "predicts 7, which is none of its labels"),
    ],
)
def test_a_problem_file_of_your_own(
    run: Run, data: str, tmp_path: Path, labels: list[Any], other: Any, complaint: str | None
) -> None:
    high = "high" if "high" in labels else labels[1]
    (tmp_path / "mine.py").write_text(f"{OWN}\n\nLABELS, HIGH, OTHER = {labels!r}, {high!r}, {other!r}\n", "utf-8")
    own = ("--set", "strength=0.01")
    done = run("fit", "mine.py", data, *COLUMNS, "--epsilon", "9", "--out", "m.npz", *own)
    if done.status == 0:
        assert "name that with --problem" in run("predict", "m.npz", data).err
        done = run("predict", "m.npz", data, "--problem", "mine.py", *own)
    assert (done.status == 0) == (complaint is None)
    if complaint is None:
        assert np.mean(np.array(done.out.splitlines()[1:]) == pd.read_csv(tmp_path / data)["class"]) > 0.95
    else:
        assert complaint in done.err


def test_categories_missing_values_and_truth_values_are_fitted(run: Run, shop: str, tmp_path: Path) -> None:
    done = fitted(run, shop, "--ledger", "budget.jsonl", "--budget", "12")
    assert done.status == 0, done.err
    release = dp.Release.load("model.npz", template=dp.load)
    assert release["w"].shape == (6,)
    assert release.schema == dp.Schema.load("shop.toml")
    predicted = run("predict", "model.npz", shop, "--id", "customer", "--scores", "--probabilities")
    lines = list(csv.reader(predicted.out.splitlines()))
    ends = ("score of bought", "probability of bought no", "probability of bought yes")
    assert lines[0] == ["customer", "bought", *ends]
    assert np.mean([row[1] for row in lines[1:]] == pd.read_csv(tmp_path / shop)["bought"]) > 0.9
    for _, label, score, no, yes in lines[1:]:
        assert float(no) + float(yes) == pytest.approx(1)
        assert (label == "yes") == (float(score) > 0) == (float(yes) > 0.5)
    measure = ("evaluate", "model.npz", shop, "--epsilon", "5", "--ledger", "budget.jsonl")
    told = run(*measure, "--json").json
    assert told["private"]
    assert told["interval"][0] <= told["error"] <= told["interval"][1] < 0.2
    assert dp.Budget.open("budget.jsonl").remaining.epsilon == 2.0


def test_a_regression_is_fitted_and_predicts_in_its_own_units(run: Run, tmp_path: Path) -> None:
    area = np.random.default_rng(5).integers(0, 100, 500)
    pd.DataFrame({"area": area, "rent": 500 + 20 * area}).to_csv(tmp_path / "rents.csv", index=False)
    declared = ("--features", "area", "--bounds", "0,100", "--label", "rent", "--label-bounds", "0,3000")
    done = run("fit", "huber_regression", "rents.csv", *declared, "--epsilon", "20", "--out", "model.npz")
    assert done.status == 0, done.err
    told = run("predict", "model.npz", "rents.csv", "--json").json
    assert np.corrcoef(told["predictions"], area)[0, 1] > 0.99
    assert 0 < np.mean(told["predictions"]) < 3000
    assert run("evaluate", "model.npz", "rents.csv", "--epsilon", "5", "--json").json["error"] < 0.5
    wrong = run("fit", "logistic_regression", "rents.csv", *declared, "--epsilon", "20", "--out", "model.npz")
    assert "a record like Record(x=Ball(dim=1, radius=1.0, norm=2), y=Box" in wrong.err


def test_a_choice_among_settings_is_made_privately(run: Run, shop: str) -> None:
    command = ("tune", "logistic_regression", "shop", "--schema", "shop.toml", "--epsilon", "8", "--out", "model.npz")
    done = run(*command, "--grid", "regularization=1e-3,1.0")
    assert done.status == 0, done.err
    assert done.out.startswith("Chosen: regularization=")
    assert dp.Release.load("model.npz", template=dp.load).private
    assert "--grid takes" in run(*command, "--grid", "regularization").err


def test_a_draft_of_a_public_table_is_a_schema_of_it(run: Run, shop: str) -> None:
    assert run("schema", "draft", shop, "--label", "bought", "--out", "draft.toml").status == 0
    assert "answers that nobody paid for" in Path("draft.toml").read_text(encoding="utf-8")
    schema = dp.Schema.load("draft.toml")
    assert schema.ignore == ("customer",)  # as many levels as records
    assert len(schema.encode(shop)[0]) == 400
    assert "3 columns become 6 features" in run("schema", "check", "draft.toml").out
    assert run("schema", "draft", shop).status == 2


@pytest.mark.parametrize("small", [True, False], ids=["kept", "read again"])
def test_a_folder_of_files_is_a_table(run: Run, shop: str, monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    if not small:
        monkeypatch.setattr("dpconvex.apps.settings.LARGEST_COPY", 0)
    released, measured = [], []
    for table in (shop, "shop"):
        done = fitted(run, table, "--delta", "1e-6", "--mechanism", "objective-gaussian", "--seed", "1")
        assert done.status == 0, done.err
        assert "NOT PRIVATE: the noise was drawn with the seed 1" in done.err
        released.append(dp.Release.load("model.npz")["w"])
        measured.append(run("evaluate", "model.npz", table, "--epsilon", "5", "--seed", "1", "--json").json)
    np.testing.assert_allclose(released[1], released[0], rtol=0, atol=1e-6)
    assert measured[0] == measured[1]
    assert "give the files in it one by one" in run("predict", "model.npz", "shop").err


def test_the_module_runs_as_a_program(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(dp.__file__).resolve().parent.parent)}
    command = [sys.executable, "-X", "importtime", "-m", "dpconvex", "--version"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"dpconvex {dp.__version__}\n")
    assert not re.search(r"\b(numpy|scipy|cvxpy)\b", done.stderr)
    code = "import sys; from dpconvex.apps.cli import main; sys.exit(main(['problems', '--json']))"
    reading, writing = os.pipe()
    os.close(reading)  # nobody reads
    command = [sys.executable, "-c", code]
    gone = subprocess.run(command, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (gone.returncode, gone.stderr) == (1, "")


PLACES = ["data.csv", "ledger.jsonl", "to ledger", "to fit", "folder", "missing/m.npz", "data.csv/m.npz", "pipe"]


@pytest.mark.parametrize(
    "out", [*PLACES, "x" * 250, "shop/part0.parquet", "shop/new.npz", "linked.parquet", "a\0b", ""]
)
def test_a_place_where_no_file_can_be_made_is_found_before_it_is_paid_for(
    run: Run, data: str, shop: str, tmp_path: Path, out: str
) -> None:
    dp.Budget(dp.Privacy(9.0), tmp_path / "ledger.jsonl")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    os.symlink(tmp_path / "ledger.jsonl", tmp_path / "to ledger")
    os.link(tmp_path / "fit.toml", tmp_path / "to fit")
    (tmp_path / "linked.parquet").write_bytes(b"data")
    (tmp_path / "shop" / "link.parquet").symlink_to(tmp_path / "linked.parquet")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    if "parquet" in out or "shop" in out:
        found = fitted(run, "shop", "--out", out)
    else:
        ledger = ("--ledger", "ledger.jsonl")
        found = run("fit", "logistic_regression", data, "--config=fit.toml", *ledger, "--out", out)
    assert found.status == 2
    assert re.search("no file can be made there|would be written over|a folder whose files are data", found.err)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


# The demonstration


def test_the_demonstration_repeats_itself_with_a_seed_and_says_so(run: Run, tmp_path: Path) -> None:
    command = ("demo", "--quick", "--draws", "1", "--out", "new/picture.png")
    printed = run(*command)
    assert str(dp.verify(demo.learner(), dp.Privacy(1.0), 583)) in printed.out
    assert "NOT PRIVATE" not in printed.out
    assert (tmp_path / "new" / "picture.png").read_bytes().startswith(b"\x89PNG")
    told = [run(*command, "--seed", "3", "--json").json for _ in range(2)]
    assert told[0] == told[1]
    assert (told[0]["private"], np.shape(told[0]["errors"])) == (False, (3, 1))
