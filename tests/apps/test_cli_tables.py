"""The command line on tables of every kind of column: schemas, regressions, choices, evaluations and ledgers."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import dpconvex as dp
from dpconvex.accounting.rules import RULES
from dpconvex.apps.arguments import ACCOUNTING
from tests.apps.test_cli import Outcome, Run, data, run

__all__ = ["data", "run"]  # fixtures

SCHEMA = """
label = "bought"
labels = ["no", "yes"]
ignore = ["customer"]

[features]
age = [0, 100]
colour = {levels = ["red", "green"], other = true, missing = "indicator"}
member = {boolean = ["no", "yes"]}
"""


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """Write 400 records in which members buy."""
    rng = np.random.default_rng(3)
    rows = [("customer", "age", "colour", "member", "bought")]
    for index in range(400):
        member = index % 2 == 0
        bought = "yes" if member == (rng.random() < 0.95) else "no"
        colour = ["red", "green", "blue", ""][index % 4]
        rows.append((f"c{index}", str(rng.integers(18, 90)), colour, "yes" if member else "no", bought))
    with (tmp_path / "shop.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    (tmp_path / "shop.toml").write_text(SCHEMA, encoding="utf-8")
    return "shop.csv"


def fitted(run: Run, shop: str, *further: str) -> Outcome:
    command = ("fit", "logistic_regression", shop, "--schema", "shop.toml", "--epsilon", "5", "--out", "model.npz")
    return run(*command, *further)


def test_categories_missing_values_and_truth_values_are_fitted(run: Run, shop: str, tmp_path: Path) -> None:
    done = fitted(run, shop)
    assert done.status == 0, done.err
    release = dp.Release.load("model.npz", template=dp.load)
    assert release["w"].shape == (6,)
    assert release.schema == dp.Schema.load("shop.toml")
    predicted = run("predict", "model.npz", shop, "--id", "customer", "--scores", "--probabilities")
    lines = list(csv.reader(predicted.out.splitlines()))
    assert lines[0] == [
        "customer",
        "bought",
        "score of bought",
        "probability of bought no",
        "probability of bought yes",
    ]
    assert lines[1][0] == "c0"
    truth = [row[-1] for row in csv.reader((tmp_path / shop).read_text(encoding="utf-8").splitlines())][1:]
    assert np.mean([row[1] == label for row, label in zip(lines[1:], truth, strict=True)]) > 0.9
    for _, label, score, no, yes in lines[1:]:
        assert float(no) + float(yes) == pytest.approx(1)
        assert (label == "yes") == (float(score) > 0) == (float(yes) > 0.5)
    told = json.loads(run("predict", "model.npz", shop, "--id", "customer", "--json").out)
    assert told["columns"]["customer"][:2] == ["c0", "c1"]


def test_an_error_is_measured_and_paid_for(run: Run, shop: str) -> None:
    assert fitted(run, shop, "--ledger", "budget.jsonl", "--budget", "12").status == 0
    measured = run("evaluate", "model.npz", shop, "--epsilon", "5", "--ledger", "budget.jsonl", "--json")
    told = json.loads(measured.out)
    assert told["private"]
    assert told["interval"][0] <= told["error"] <= told["interval"][1] < 0.2
    shown = run("budget", "show", "budget.jsonl")
    assert "fit logistic_regression" in shown.out
    assert "evaluate model.npz" in shown.out
    assert "remaining  epsilon = 2" in shown.out
    assert run("budget", "verify", "budget.jsonl").out == "budget.jsonl: sound; 2 spends.\n"
    assert json.loads(run("budget", "show", "budget.jsonl", "--json").out)["spent"]["epsilon"] == 10.0
    refused = run("evaluate", "model.npz", shop, "--epsilon", "5", "--ledger", "budget.jsonl")
    assert refused.status == 1
    assert refused.out == ""


def test_a_regression_is_fitted_and_predicts_in_its_own_units(run: Run, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows = [("area", "rent"), *((a, 500 + 20 * a) for a in rng.integers(0, 100, 500).tolist())]
    with (tmp_path / "rents.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    declared = ("--features", "area", "--bounds", "0,100", "--label", "rent", "--label-bounds", "0,3000")
    done = run("fit", "huber_regression", "rents.csv", *declared, "--epsilon", "20", "--out", "model.npz")
    assert done.status == 0, done.err
    told = json.loads(run("predict", "model.npz", "rents.csv", "--json").out)
    assert np.corrcoef(told["predictions"], [rent for _, rent in rows[1:]])[0, 1] > 0.99
    assert 0 < np.mean(told["predictions"]) < 3000
    measured = json.loads(run("evaluate", "model.npz", "rents.csv", "--epsilon", "5", "--json").out)
    assert measured["error"] < 0.5
    wrong = run("fit", "logistic_regression", "rents.csv", *declared, "--epsilon", "20", "--out", "model.npz")
    assert wrong.status == 2
    assert "a number y between -1 and 1" in wrong.err


def test_a_choice_among_settings_is_made_privately(run: Run, shop: str) -> None:
    command = ("tune", "logistic_regression", shop, "--schema", "shop.toml", "--epsilon", "8", "--out", "model.npz")
    done = run(*command, "--grid", "regularization=1e-3,1.0")
    assert done.status == 0, done.err
    assert done.out.startswith("Chosen: regularization=")
    assert dp.Release.load("model.npz", template=dp.load).private
    refused = run(*command, "--grid", "regularization")
    assert refused.status == 2
    assert "--grid takes" in refused.err


def test_a_draft_of_a_public_table_is_a_schema_of_it(run: Run, shop: str) -> None:
    done = run("schema", "draft", shop, "--label", "bought", "--out", "draft.toml")
    assert (done.status, done.out) == (0, "")
    text = Path("draft.toml").read_text(encoding="utf-8")
    assert "answers that nobody paid for" in text
    schema = dp.Schema.load("draft.toml")
    assert schema.ignore == ("customer",)  # as many levels as records
    X, _ = schema.encode(shop)
    assert len(X) == 400
    checked = run("schema", "check", "draft.toml")
    assert "3 columns become 6 features" in checked.out
    assert run("schema", "draft", shop).status == 2


@pytest.mark.parametrize("command", ["schema", "verify", "fit", "predict", "evaluate", "tune", "audit", "budget"])
def test_every_command_has_help(run: Run, command: str) -> None:
    shown = run(command, "--help")
    assert shown.status == 0
    assert "usage: dpconvex" in shown.out
    assert "examples:" in shown.out


def test_a_mechanism_is_named_with_options_of_its_own(run: Run, shop: str) -> None:
    done = fitted(run, shop, "--delta", "1e-6", "--mechanism", "gradient-descent:clip=0.25,steps=20")
    assert done.status == 0, done.err
    proof = dp.Release.load("model.npz", template=dp.load).certificate
    assert isinstance(proof, dp.Certificate)
    assert proof.settings["steps"] == 20
    for text, message in (
        ("nope", "there is no mechanism 'nope'; there are: objective-gamma"),
        ("gradient-descent:clop=1", "has no option 'clop'; it has: average, clip"),
        ("output-gamma:noise=gaussian", "has no option 'noise'"),
        ("gradient-descent:20", "NAME takes OPTION=VALUE"),
    ):
        refused = fitted(run, shop, "--delta", "1e-6", "--mechanism", text)
        assert refused.status == 2
        assert message in refused.err


def in_folder(tmp_path: Path, shop: str) -> str:
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    table = pd.read_csv(tmp_path / shop)
    (tmp_path / "shop").mkdir()
    for number, (start, stop) in enumerate([(0, 10), (10, 10), (10, 300), (300, 400)]):
        table[start:stop].to_parquet(tmp_path / "shop" / f"part{number}.parquet")
    return "shop"


@pytest.mark.parametrize("small", [True, False], ids=["kept", "read again"])
def test_a_folder_of_parquet_files_is_a_table(
    run: Run, shop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    folder = in_folder(tmp_path, shop)
    if not small:
        monkeypatch.setattr("dpconvex.apps.settings.LARGEST_COPY", 0)
    released = []
    for table in (shop, folder):
        done = fitted(run, table, "--seed", "1")
        assert done.status == 0, done.err
        released.append(dp.Release.load("model.npz")["w"])
    np.testing.assert_allclose(released[1], released[0], rtol=0, atol=1e-6)
    measure = ("--epsilon", "5", "--seed", "1", "--json")
    measured = [json.loads(run("evaluate", "model.npz", table, *measure).out) for table in (shop, folder)]
    assert measured[0] == measured[1]
    assert "give the files in it one by one" in run("predict", "model.npz", folder).err
    done = run(
        *("tune", "logistic_regression", folder, "--schema", "shop.toml", "--epsilon", "20"),
        *("--grid", "regularization=1e-3,1e-1", "--out", "tuned.npz"),
    )
    assert done.status == 0, done.err


def test_nothing_is_written_into_a_folder_of_data(run: Run, shop: str, tmp_path: Path) -> None:
    folder = in_folder(tmp_path, shop)
    (tmp_path / "linked.parquet").write_bytes(b"data")
    (tmp_path / folder / "link.parquet").symlink_to(tmp_path / "linked.parquet")
    schema = ("--schema", "shop.toml", "--epsilon", "20")
    for out in (f"{folder}/part0.parquet", f"{folder}/new.npz", "linked.parquet"):
        for command in (
            ("fit", "logistic_regression", folder, *schema),
            ("tune", "logistic_regression", folder, *schema, "--grid", "regularization=1e-3,1e-1"),
            ("schema", "draft", folder, "--label", "y"),
        ):
            found = run(*command, "--out", out)
            assert found.status == 2
            assert "a folder whose files are data" in found.err
    assert (tmp_path / "linked.parquet").read_bytes() == b"data"


def test_rules_of_ledgers_are_those_of_the_help() -> None:
    assert sorted(RULES) == list(ACCOUNTING)
