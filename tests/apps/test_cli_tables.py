"""The command line on tables of every kind of column: schemas, regressions, choices, evaluations and ledgers."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import dpconvex as dp
from tests.apps.test_cli import COLUMNS, Outcome, Run, data, run

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


def test_the_same_model_from_a_template_bit_for_bit(run: Run, shop: str) -> None:
    assert fitted(run, shop, "--seed", "4").status == 0
    schema = dp.Schema.load("shop.toml")
    X, y = schema.encode(shop)
    template = dp.load("logistic_regression", features=6, labels=("no", "yes"))
    alike = dp.solve(template, {"x": X, "y": y}, dp.Privacy(5.0), seed=4)
    np.testing.assert_array_equal(dp.Release.load("model.npz")["w"], alike["w"])


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


def test_a_draft_reads_what_data_frames_write(run: Run, tmp_path: Path) -> None:
    lines = [
        ",smokes,work,sick",
        *(f"{i},{'yes' if i % 2 else 'no'},{['a', 'b', '?'][i % 3]},{i % 2}" for i in range(60)),
    ]
    (tmp_path / "frame.csv").write_text("\n".join(lines), encoding="utf-8")
    assert run("schema", "draft", "frame.csv", "--label", "sick", "--out", "draft.toml").status == 0
    schema = dp.Schema.load("draft.toml")
    assert schema.features["smokes"] == dp.Boolean("no", "yes")
    assert schema.features["work"] == dp.Categorical(["a", "b"], missing="indicator")
    assert schema.absent == ("?",)
    assert schema.encode(tmp_path / "frame.csv")[0].shape == (60, 4)


def test_a_schema_is_given_once(run: Run, shop: str) -> None:
    refused = fitted(run, shop, "--label", "bought")
    assert refused.status == 2
    assert "says label already" in refused.err


@pytest.mark.parametrize(
    "command", ["problems", "schema", "verify", "fit", "predict", "evaluate", "tune", "audit", "budget"]
)
def test_every_command_has_help(run: Run, command: str) -> None:
    shown = run(command, "--help")
    assert shown.status == 0
    assert "usage: dpconvex" in shown.out
    assert command == "problems" or "examples:" in shown.out


def test_help_says_what_epsilon_is(run: Run) -> None:
    shown = run("--help")
    assert "factor of at most exp(epsilon)" in shown.out


def test_nothing_is_said_in_passing_where_nobody_watches(run: Run, data: str) -> None:
    done = run("fit", "logistic_regression", data, *COLUMNS, "--epsilon", "5", "--out", "model.npz")
    assert (done.status, done.err) == (0, "")


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


def test_whitened_from_a_table(run: Run, shop: str, tmp_path: Path) -> None:
    private = ("--delta", "1e-5", "--ledger", "budget.jsonl", "--budget", "12", "--budget-delta", "1e-4")
    done = fitted(run, shop, *private, "--whitening", "--mechanism", "clipped-descent")
    assert done.status == 0, done.err
    assert "whitening" in done.out
    assert "clipped" in done.out
    assert json.loads(run("budget", "show", "budget.jsonl", "--json").out)["spent"]["epsilon"] == 5.0
    predicted = json.loads(run("predict", "model.npz", shop, "--json").out)["predictions"]
    truth = [row[-1] for row in csv.reader((tmp_path / shop).read_text(encoding="utf-8").splitlines())][1:]
    assert np.mean([a == b for a, b in zip(predicted, truth, strict=True)]) > 0.9
    (tmp_path / "more.toml").write_text('whitening = "auto"\n', encoding="utf-8")
    assert "whitening" in fitted(run, shop, "--delta", "1e-5", "--config", "more.toml").out
    assert fitted(run, shop, "--config", "more.toml", "--whitening", "no").status == 0
    (tmp_path / "more.toml").write_text("whitening = 3\n", encoding="utf-8")
    assert "whitening must be one of" in fitted(run, shop, "--config", "more.toml").err
    assert "delta" in fitted(run, shop, "--whitening", "yes").err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--ledger", "none.jsonl"), "none.jsonl: there is no such ledger; to make it, state its total with --budget."),
        (("--schema", "narrow.toml"), "or say clip=True (--clip) to move such values"),
        (("--schema", "cost.toml"), "It learns classes: declare labels."),
    ],
)
def test_mistakes_are_told_with_a_remedy(
    run: Run, shop: str, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    (tmp_path / "narrow.toml").write_text(SCHEMA.replace("[0, 100]", "[0, 20]"), encoding="utf-8")
    cost = 'label = "age"\nlabel_bounds = [0, 100]\n[features]\nmember = {boolean = ["no", "yes"]}\n'
    (tmp_path / "cost.toml").write_text(cost, encoding="utf-8")
    done = fitted(run, shop, *arguments)
    assert done.status == 2
    assert told in done.err
    if arguments[1] == "cost.toml":
        numbers = ("--schema", "shop.toml", "--epsilon", "1", "--out", "model.npz")
        assert "It predicts numbers: declare label_bounds." in run("fit", "huber_regression", shop, *numbers).err


def test_a_schema_with_a_constant_fits_an_intercept(run: Run, shop: str, tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text("constant = 0.5\n" + SCHEMA, encoding="utf-8")
    done = fitted(run, shop)
    assert done.status == 0, done.err
    release = dp.Release.load("model.npz", template=dp.load)
    assert release["w"].shape == (7,)
    assert release.certificate.gradient_bound == pytest.approx(1.25**0.5)
    assert run("predict", "model.npz", shop).status == 0


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


def test_a_typing_error_in_a_folder_costs_nothing(run: Run, shop: str, tmp_path: Path) -> None:
    import pandas as pd

    folder = in_folder(tmp_path, shop)
    wrong = pd.read_parquet(tmp_path / "shop" / "part2.parquet")
    wrong.loc[12, "age"] = 900
    wrong.to_parquet(tmp_path / "shop" / "part2.parquet")
    refused = fitted(run, folder, "--ledger", "budget.jsonl", "--budget", "9")
    assert refused.status == 2
    assert "partition 2" in refused.err
    assert "row 2, column 'age'" in refused.err
    assert not Path("budget.jsonl").exists()
    (tmp_path / "empty").mkdir()
    assert "no Parquet files" in fitted(run, "empty").err
