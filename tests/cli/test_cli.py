"""The command line, as its users meet it: what it prints, what it writes, and the exit status."""

import csv
import dataclasses
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from learners_of_tests import calls_of
from tables_of_commands import COLUMNS, DATA, FIT_SHOP, RNG, ROW, SCHEMA, SHOP

import dpconvex as dp


def test_verify_prints_what_is_proved_or_why_not(run):
    promised = "--size 50 --epsilon 0.5 --adjacency add-remove --json"
    done = run(f"verify logistic_regression --set features=3 --set regularization=0.2 {promised}", ends=0)
    template = dp.load("logistic_regression", features=3, regularization=0.2)
    found = dp.Certificate.from_dict(done.json["certificate"])
    assert found == dp.verify(template, dp.Privacy(0.5, adjacency="add-remove"), 50)
    command = "verify logistic_regression --set features=3 --set regularization=0 --size 9 --epsilon 1"
    refused = run(command, ends=1)
    assert refused.out == ""
    assert "not strongly convex" in refused.err
    told = run(command, "--json").json
    assert (told["private"], told["error"], told["where"]) == (False, "NotPrivate", "0 * sum_squares(w)")


def test_usage_and_problems_are_explained(run):
    for command in ("", "teach", "fit", "verify logistic_regression"):
        assert "usage: dpconvex" in run(command, ends=2).err
    commands = re.findall(r"^    ([a-z-]+) ", run("--help").out, flags=re.MULTILINE)
    assert {"fit", "verify", "budget", "schema"} < set(commands)
    without = {command for command in commands if "examples:\n  dpconvex" not in run(command, "--help").out}
    assert without == {"demo", "problems"}
    budget, privacy = lambda name: dp.Budget(dp.Privacy(1.0), accounting=name), lambda name: dp.Privacy(1.0, 0.0, name)
    for option, call in (("accounting", budget), ("adjacency", privacy)):
        (offered,) = set(re.findall(rf"--{option} {{(.*?)}}", run("fit --help").out))
        with pytest.raises(dp.TemplateError, match="'x'") as told:
            call("x")
        assert sorted(offered.split(",")) == sorted(re.findall(r"'([a-z-]{2,})'", str(told.value)))
    listed = run("problems").out
    assert all(f"{name} - {description}" in listed for name, description in dp.problems().items())
    assert "features, classes=2, regularization=0.01, radius=1.0, labels=(-1, 1)" in listed
    assert {problem["name"] for problem in run("problems --json").json} == set(dp.problems())
    assert run("problems gamma_regression").out.startswith("gamma_regression - ")
    assert "did you mean 'gamma_regression'?" in run("problems gama_regression", ends=2).err


def test_the_settings_of_the_documentation_work(run):
    page = (Path(dp.__file__).parent.parent / "docs" / "command_line.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"^```toml\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    Path("fit.toml").write_text(settings, encoding="utf-8")
    rows = [f"{1 + i % 10},{10 - i % 7},west,benign" for i in range(50)]
    Path("patients.csv").write_text("\n".join(["clump thickness,cell size,ward,diagnosis", *rows]), encoding="utf-8")
    fit = "fit large_margin_gaussian patients.csv --config fit.toml --out model.npz --ledger budget.jsonl --budget 3"
    run(fit, ends=0)
    release = dp.Release.load("model.npz", template=dp.load)
    assert (release.spent, (release.source or ("", {}))[1]["regularization"]) == (dp.Privacy(1.0), 1e-3)
    run("predict model.npz patients.csv --out predictions.csv", ends=0)
    assert len(Path("predictions.csv").read_text(encoding="utf-8").splitlines()) == 51


def test_a_mixture_pays_for_its_components(run):
    problem = "large_margin_gaussian_mixture --epsilon 4 --delta 1e-6"
    proved = run(f"verify {problem} --set features=2 --size 300 --json").json
    fit = f"fit {problem} data.csv {COLUMNS} --out model.npz --proof"
    done = run(f"{fit} --ledger budget.jsonl --budget 4 --budget-delta 1e-6", ends=0)
    assert "( 20 %)  the component labels: noisy k-means" in done.out
    assert dp.Release.load("model.npz").certificate.to_dict()["clustering"] == proved["certificate"]["clustering"]
    assert dp.Budget.open("budget.jsonl").remaining == (0.0, 0.0)
    run("predict model.npz data.csv", ends=0)
    assert "( 25 %)" in run(f"{fit} --share 0.25").out


def test_a_ledger_is_charged_shown_and_refuses_to_overspend(run):
    fit = f"fit logistic_regression data.csv {COLUMNS} --delta 1e-7 --ledger budget.jsonl --out model.npz"
    run(f"{fit} --epsilon 0.1", ends=2)  # there is no such ledger
    run(f"{fit} --epsilon 0.7 --budget 1 --budget-delta 1e-6 --accounting gaussian", ends=0)
    before = Path("model.npz").read_bytes()
    assert "is left" in run(f"{fit} --epsilon 0.9", ends=1).err
    assert Path("model.npz").read_bytes() == before
    assert "gaussian accounting (GDP privacy filter: squares of mu add up)" in run("budget show budget.jsonl").out
    told = run("budget show budget.jsonl --json").json
    assert (told["accounting"], told["spends"][0]["epsilon"]) == ("gaussian", 0.7)
    assert {"rule", "epsilon", "delta"} <= set(told["non_adaptive"][0])
    assert 0 < told["spent"]["epsilon"] < 1
    assert run("budget verify budget.jsonl").out == "budget.jsonl: sound; 1 spend.\n"
    assert "a new ledger needs" in run(f"{fit} --epsilon 0.1 --accounting renyi").err
    run("budget show nothing.jsonl", ends=2)
    assert len(dp.Budget.open("budget.jsonl").entries) == 1
    assert run("report model.npz --ledger budget.jsonl --out page.html", ends=0).err == ""
    dp.Budget(dp.Privacy(9.0, 1e-6), "other.jsonl")
    assert "does not list this model" in run("report model.npz --ledger other.jsonl --out page.html", ends=1).err
    for _ in range(2):  # fits without a ledger said nothing
        assert run(f"fit logistic_regression data.csv {COLUMNS} --epsilon 1 --out m.npz").err.count("no --ledger") == 1


def test_a_ledger_in_a_database_is_charged_shown_and_moved(run):
    pytest.importorskip("sqlalchemy")
    fit = f"fit logistic_regression data.csv {COLUMNS} --epsilon 0.5 --ledger sqlite:///spent.db"
    run(f"{fit} --out model.npz", ends=2)  # there is no such ledger
    assert not Path("spent.db").exists()
    run(f"{fit} --out model.npz --budget 1", ends=0)
    assert "this is the ledger" in run(f"{fit} --out spent.db", ends=2).err
    told = run("budget show sqlite:///spent.db --json").json
    assert (told["total"]["epsilon"], told["spent"]["epsilon"]) == (1.0, 0.5)
    assert run("budget verify sqlite:///spent.db").out.endswith("/spent.db: sound; 1 spend.\n")
    assert "two places" in run("budget move sqlite:///spent.db", ends=2).err
    assert run("budget move sqlite:///spent.db spent.jsonl", ends=0).out == "spent.jsonl: sound; 1 spend.\n"
    assert "was moved to" in run(f"{fit} --out model.npz", ends=2).err
    said = run("budget show postgresql://clerk:hunter2@127.0.0.1:1/d", ends=2)
    assert "hunter2" not in said.out + said.err


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
        (["low", "big"], "low", "are ['low', 'big'], but the table's are ['low', 'high']"),
        ([-1, 1], 7, "predicts 7, which is none of its labels"),
    ],
)
def test_a_problem_file_of_your_own(run, labels, other, complaint):
    high = "high" if "high" in labels else labels[1]
    Path("mine.py").write_text(f"{OWN}\n\nLABELS, HIGH, OTHER = {labels!r}, {high!r}, {other!r}\n", "utf-8")
    done = run(f"fit mine.py data.csv {COLUMNS} --epsilon 9 --out m.npz --set strength=0.01")
    if done.status == 0:
        assert "name that with --problem" in run("predict m.npz data.csv").err
        done = run("predict m.npz data.csv --problem mine.py --set strength=0.01")
    assert (done.status == 0) == (complaint is None)
    if complaint is None:
        assert np.mean(np.array(done.out.splitlines()[1:]) == DATA["class"]) > 0.95
    else:
        assert complaint in done.err


def test_categories_missing_values_and_truth_values_are_fitted(run):
    run(f"fit logistic_regression shop.csv {FIT_SHOP} --ledger budget.jsonl --budget 12", ends=0)
    release = dp.Release.load("model.npz", template=dp.load)
    assert (release["w"].shape, release.schema) == ((6,), dp.Schema.load("shop.toml"))
    predicted = run("predict model.npz shop.csv --id customer --scores --probabilities")
    names, *lines = csv.reader(predicted.out.splitlines())
    ends = ("score of bought yes", "probability of bought no", "probability of bought yes")
    assert names == ["customer", "bought", *ends]
    assert np.mean([row[1] for row in lines] == SHOP["bought"]) > 0.9
    for _, label, score, no, yes in lines:
        assert float(no) + float(yes) == pytest.approx(1)
        assert (label == "yes") == (float(score) > 0) == (float(yes) > 0.5)
    told = run("evaluate model.npz shop.csv --epsilon 5 --ledger budget.jsonl --json").json
    assert told["private"]
    assert told["interval"][0] <= told["error"] <= told["interval"][1] < 0.2
    assert dp.Budget.open("budget.jsonl").remaining.epsilon == 2.0
    dataclasses.replace(release, spent=None, not_private_because="a seed").save("seeded.npz")
    assert not run("evaluate seeded.npz shop.csv --epsilon 5 --json").json["private"]
    SHOP.assign(member=["true", *SHOP["member"][1:]]).to_csv("odd.csv", index=False)  # as the schema reads it
    asked = "evaluate model.npz odd.csv --epsilon 5 --group member --seed 0"
    assert list(run(f"{asked} --json", ends=0).json["groups"]) == ["no", "yes"]
    run(f"{asked} --cells .2,.4 --threshold .2 --out found.json", ends=0)
    found = dp.Evaluation.load("found.json")
    assert (found.threshold, found.cells.cuts) == (0.2, (0.2, 0.4, 0.5))
    assert "--threshold must be a number from 0 to 1" in run(f"{asked} --threshold 2", ends=2).err


def test_a_model_about_people_is_evaluated_about_people(run, monkeypatch):
    reads = calls_of(monkeypatch, Path, "open", lambda path, *_: path.name)
    SHOP.assign(**{"customer no.": [f"c{k // 2}" for k in ROW]}).to_csv("visits.csv", index=False)
    Path("visits.toml").write_text(SCHEMA.replace('ignore = ["customer"]', 'privacy_unit = "customer no."'), "utf-8")
    run("fit logistic_regression visits.csv --schema visits.toml --epsilon 9 --most 2 --out model.npz", ends=0)
    budget = dp.Budget(dp.Privacy(9.0, unit="customer_no_", most=2), "people.jsonl")
    asked = "evaluate model.npz visits.csv --epsilon 5 --ledger people.jsonl --json --group member"
    assert run(asked, ends=0).json["records"] == 400
    assert [entry.privacy for entry in budget.entries] == [dp.Privacy(5.0, unit="customer_no_", most=2)]
    asked = "coefficients model.npz --table visits.csv --epsilon 9 --delta 1e-6 --json --seed 1"
    told, more = run(asked).json, run(f"{asked} --most 1").json  # 400 records, or too many of one person
    assert told["error"] == "NotConverged"
    assert "unit: one customer_no_ has more than the declared 1 records" in more["message"]
    assert reads.count("visits.csv") == 4  # Each command once: a file may change between two readings


def test_effects_on_a_target_are_in_its_units_and_say_what_they_compare(run):
    rng = np.random.default_rng(5)
    table = pd.DataFrame({"area": rng.integers(0, 100, 4000), "ward": rng.choice(["east", "west"], 4000)})
    table["rent"] = 500 + 20 * table["area"] + 300 * (table["ward"] == "east")
    table.loc[::9, "area"] = np.nan
    table.loc[::9, "rent"] = 2000
    table.to_csv("rents.csv", index=False)
    columns = (
        'area = {bounds = [0, 100], missing = "indicator"}\nward = {levels = ["east", "west"], reference = "west"}'
    )
    Path("rents.toml").write_text(f'label = "rent"\nlabel_bounds = [0, 3000]\n[features]\n{columns}', encoding="utf-8")
    fit = "rents.csv --schema rents.toml --epsilon 20 --delta 1e-6 --out model.npz"
    run(f"fit ridge_regression {fit}", ends=0)
    told = run("coefficients model.npz --json", ends=0).json
    assert told["unit"] == "'rent', in its units"
    found = {row["name"]: (row["change"], row["effect"]) for row in told["effects"]}
    changes = {"area": "0 to 100", "ward = east": "against 'west'", "area: missing": "against the middle"}
    assert {name: change for name, (change, _) in found.items()} == changes
    effects = [effect for _, effect in map(found.get, changes)]
    rows = pd.DataFrame({"area": [100, 0, 50, 50, np.nan], "ward": ["west", "west", "east", "west", "west"]})
    rows.to_csv("rows.csv", index=False)
    rent = run("predict model.npz rows.csv --json", ends=0).json["predictions"]
    np.testing.assert_allclose(effects, [rent[0] - rent[1], rent[2] - rent[3], rent[4] - rent[3]], rtol=1e-6)
    assert "in its units:\narea " in run("coefficients model.npz", ends=0).out
    assert "What a column adds to &#x27;rent&#x27;, in its units: " in dp.report(dp.Release.load("model.npz"))
    paid = "coefficients model.npz --table rents.csv --epsilon .5 --delta 1e-6 --ledger spent.jsonl"
    assert "Nothing was charged; --anyway" in run(f"{paid} --budget 1 --budget-delta 1e-5", ends=1).err
    assert not (spent := dp.Budget.open("spent.jsonl")).entries
    run(f"{paid} --anyway")  # which may be refused
    assert len(spent.entries) == 1
    run(f"fit poisson_regression {fit}", ends=0)
    assert run("coefficients model.npz --json", ends=0).json["unit"] == "the score; exp of it is the rate ratio"


def test_a_choice_among_settings_is_made_privately(run):
    paid = "--ledger l.jsonl --budget 9 --entry march"  # tune had no --entry
    done = run(f"tune logistic_regression shop {FIT_SHOP} --grid regularization=1e-3,1.0 {paid}", ends=0)
    assert [entry.label for entry in dp.Budget.open("l.jsonl").entries] == ["march"]
    assert done.out.startswith("Chosen: regularization=")
    assert dp.Release.load("model.npz", template=dp.load).private
    assert "--grid takes" in run(f"tune logistic_regression shop {FIT_SHOP} --grid regularization").err


def test_a_fit_of_grades_says_their_order_and_predicts_their_probabilities(run):
    fit = "fit ordinal_regression data.csv --features a,b --bounds 0,10 --label class --labels low,high --epsilon 9"
    assert "grades, from the lowest: low, high" in run(f"{fit} --out grades.npz", ends=0).err
    assert "probability of class high" in run("predict grades.npz data.csv --probabilities", ends=0).out


def test_a_draft_of_a_public_table_is_a_schema_of_it(run):
    run("schema draft shop.csv --label bought --out draft.toml", ends=0)
    assert "reveal data at no counted cost" in Path("draft.toml").read_text(encoding="utf-8")
    assert "write grades (of ordinal_regression) from the lowest" in Path("draft.toml").read_text(encoding="utf-8")
    schema = dp.Schema.load("draft.toml")
    assert schema.ignore == ("customer",)  # as many levels as records
    assert len(schema.encode("shop.csv")[0]) == 400
    assert "3 columns become 6 features" in run("schema check draft.toml").out
    run("schema draft shop.csv", ends=2)
    # Numbers of records, and texts that nearly all differ, name the records; measurements and short tables do not.
    few, many = SHOP.head(12), SHOP.assign(number=ROW + 1000, customer=[*SHOP["customer"][:-3], *3 * ["c1"]])
    for table, ignored in (
        (many.assign(weight=RNG.random(400)), ("customer", "number")),
        (few.assign(number=few.age), ("customer",)),
    ):
        table.to_csv("public.csv", index=False)
        run("schema draft public.csv --label bought --out draft.toml", ends=0)
        assert dp.Schema.load("draft.toml").ignore == ignored


def test_a_learnt_schema_is_paid_for_and_fitted(run):
    rng = np.random.default_rng(0)
    dose = rng.uniform(0, 40, 5000)
    frame = pd.DataFrame({"daily dose": dose, "ward": rng.choice(["east", "west"], 5000)})
    frame["name"] = rng.permutation(5000)
    frame["well"] = np.where(rng.random(5000) < dose / 40, "yes", "no")
    frame = frame.astype(object)
    frame.loc[0] = ["no idea", "nowhere", "", "never"]
    frame.to_csv("visits.csv", index=False)
    told, kind = "--label well --ignore name --out visits.toml --delta 1e-6", ("--known", "daily dose=number")
    paid = "--ledger spent.jsonl --budget 2 --budget-delta 1e-5"
    assert "visits.toml" in run(f"schema learn visits.csv {told} --epsilon 1 {paid}", *kind, ends=0).out
    schema = dp.Schema.load("visits.toml")
    assert schema.labels == ("no", "yes")
    learnt = Path("visits.toml").read_text(encoding="utf-8")
    assert "# schema:" in learnt
    assert "spent: epsilon = 1.0" in run("schema check visits.toml", ends=0).out
    Path("forged.toml").write_text(learnt.replace("privacy = {epsilon = 1.0", "privacy = {epsilon = 0.1"), "utf-8")
    assert "its event costs more" in run("schema check forged.toml", ends=2).err
    unsaid = "\n".join(line for line in learnt.splitlines() if not line.startswith("learnt"))
    Path("unsaid.toml").write_text(unsaid, "utf-8")
    assert "no cost is stated" in run("schema check unsaid.toml", ends=0).out
    marked = learnt.replace('not_private_because = ""', 'not_private_because = "a seed"')
    Path("seeded.toml").write_text(marked, "utf-8")
    assert "NOT PRIVATE: a seed" in run("schema check seeded.toml", ends=1).err
    fit = "fit logistic_regression visits.csv --schema visits.toml --epsilon 1 --delta 1e-6 --ledger spent.jsonl"
    assert run(f"{fit} --out m.npz --json", ends=0).json["schema"]["privacy"]["epsilon"] == 1
    spent = run("budget show spent.jsonl --json", ends=0).json
    assert (spent["spent"]["epsilon"], spent["spends"][0]["label"]) == (2, schema.learnt.entry)
    assert len(run("predict m.npz visits.csv", ends=0).out.split()) == 5001
    assert "0 break a declaration" in run("check-table visits.toml visits.csv", ends=0).out
    own = "--ledger own.jsonl --budget 1 --budget-delta 1e-6"  # left a ledger without room for the schema
    assert (
        "--budget 2 --budget-delta 2e-06" in run(f"{fit} --out m.npz".replace("--ledger spent.jsonl", own), ends=2).err
    )
    assert not Path("own.jsonl").exists()
    run(f"schema learn visits.csv {told} --epsilon 1 --ledger spent.jsonl", ends=1)
    run("schema learn visits.csv --label well --out visits.toml", ends=2)
    assert "nothing was spent" in run(f"schema learn visits.csv {told} --epsilon 0.001", ends=1).err


def test_rows_that_break_a_declaration_are_named_for_the_owner(run):
    assert "400 records, 0 break" in run("check-table shop.toml shop.csv", ends=0).out
    broken = SHOP.assign(age=SHOP["age"].astype(object), colour=SHOP["colour"].fillna("red"))
    broken.loc[[3, 7], "age"], broken.loc[9, "age"], broken.loc[9, "bought"] = 213, None, "perhaps"
    broken.to_csv("broken.csv", index=False)
    broken.astype({"age": float}).to_parquet("broken.parquet")
    said = run("check-table shop.toml broken.csv", ends=2)
    assert "400 records, 3 break" in said.out
    assert "column 'age', lines 5, 9: 213 is outside the declared bounds 0 to 100" in said.out
    assert "Do not release it" in said.out
    told = run("check-table shop.toml broken.parquet --json", ends=2).json
    assert {(item["column"], *item["rows"]) for item in told["faults"]} == {("age", 3, 7), ("age", 9), ("bought", 9)}


@pytest.mark.parametrize("asked", ["", "--progress"])
def test_a_long_fit_says_what_it_does_if_it_is_asked_to_and_how_long_but_nothing_of_data(run, monkeypatch, asked):
    monkeypatch.setattr("dpconvex.cli.main.FIRST", 0.0)
    monkeypatch.setattr("dpconvex.cli.main.SELDOM", 0.001)
    said = run(f"fit logistic_regression shop.csv {FIT_SHOP} --ledger l.jsonl --budget 9 {asked}", ends=0).err
    stages = set(re.findall(r"^dpconvex fit: ([a-z ]+), \d s$", said, flags=re.MULTILINE))
    known = "preparing, reading the table, proving, checking the records, computing the private answer"
    assert stages <= {*known.split(", ")}
    assert bool(stages) == bool(asked)
    assert not asked or len(said.splitlines()) == len(re.findall(r"fit: [a-z ]+, \d s$", said, flags=re.MULTILINE))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("small", [True, False], ids=["kept", "read again"])
def test_a_folder_of_files_is_a_table(run, monkeypatch, small):
    if not small:
        monkeypatch.setattr("dpconvex.data.partitions.LARGEST_KEPT", 0)
    released, measured = [], []
    for table in ("shop.csv", "shop"):
        further = "--delta 1e-6 --mechanism objective-gaussian --seed 1"
        done = run(f"fit logistic_regression {table} {FIT_SHOP} {further}", ends=0)
        assert "NOT PRIVATE: the noise was drawn with the seed 1" in done.err
        released.append(dp.Release.load("model.npz")["w"])
        measured.append(run(f"evaluate model.npz {table} --epsilon 5 --seed 1 --json").json)
    np.testing.assert_allclose(released[1], released[0], rtol=0, atol=1e-6)
    assert measured[0] == measured[1]
    assert "reads one file" in run("evaluate model.npz shop --epsilon 5 --group member").err
    assert "pass its files one by one" in run("predict model.npz shop").err


def test_adaptive_steps_have_a_name_and_their_option(run):
    asked = "verify logistic_regression --set features=2 --size 500 --delta 1e-6 --epsilon 1 --json --mechanism"
    plain, rounds = (run(f"{asked} {name}", ends=0).json for name in ("adaptive-steps", "adaptive-steps:rounds=7"))
    assert "adaptive preconditioned steps" in str(plain)
    assert plain != rounds


def test_the_demonstration_repeats_itself_with_a_seed_and_says_so(run):
    command = "demo --quick --draws 1 --out new/picture.png"
    printed = run(command)
    learner = dp.load("large_margin_gaussian", features=9, labels=("benign", "malignant"))
    assert str(dp.verify(learner, dp.Privacy(1.0), 583)) in printed.out
    assert "NOT PRIVATE" not in printed.out
    assert Path("new/picture.png").read_bytes().startswith(b"\x89PNG")
    told = [run(f"{command} --seed 3 --json").json for _ in range(2)]
    assert told[0] == told[1]
    assert (told[0]["private"], np.shape(told[0]["errors"])) == (False, (3, 1))


def test_an_additive_regression_predicts_in_units_and_refuses_what_it_has_not(run):
    fit = "data.csv --features a --bounds=-9,19 --label b --label-bounds=-9,19 --epsilon 9 --out m.npz"
    run(f"fit additive_regression {fit} --delta 1e-6 --ledger l.jsonl --budget 9 --budget-delta 1e-6", ends=0)
    assert np.corrcoef(run("predict m.npz data.csv --json").json["predictions"], DATA["b"])[0, 1] > 0.8
    assert dp.Budget.open("l.jsonl").remaining == (0.0, 0.0)
    mistyped = run(f"fit additive_regression {fit} --set knot=1", ends=2)
    assert "has no option 'knot': did you mean `knots`" in mistyped.err
    assert "in one file" in run(f"fit additive_logistic shop {FIT_SHOP}", ends=2).err
    assert "nor additive models" in run(f"tune additive_logistic shop.csv {FIT_SHOP} --grid most=1", ends=2).err
    release = dp.Release.load("m.npz")
    name, options = release.source
    damages = {"pairs": None}, {"deviations": None}, {"knots": 3}, {"deviations": [["x"]]}, {"monotone": {"a": "up"}}
    for damage in damages:
        curves = {key: v for key, v in (options["curves"] | damage).items() if v is not None or key == "knots"}
        with pytest.raises(dp.TemplateError):
            dp.AdditiveRegressor.read(dataclasses.replace(release, source=(name, options | {"curves": curves})))
    with pytest.raises(dp.TemplateError, match="this estimator"):
        dp.AdditiveClassifier.read(dp.Release.load("m.npz"))
