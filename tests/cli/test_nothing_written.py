"""Commands that fail or are interrupted: nothing is written or paid, or a model that was paid for."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tables_of_commands import COLUMNS, FIT_SHOP, ROW, SCHEMA, SHOP

import dpconvex as dp

MISTAKES = {
    "verify": [
        ({"--epsilon": "one"}, "invalid float value"),
        ({"--set": "features=3"}, "gives the option 'features' twice"),
        ({"--set": "lambda=3"}, "unexpected keyword argument 'lambda'"),
        ({"--set": "regularization=much"}, "regularization.*'much'"),
        ({"--mechanism": "nope"}, "mechanism must be one of 'adaptive-steps', 'objective-gamma'"),
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
        ({"--budget": "1"}, "give both --ledger and --budget"),
        (
            {"--set": "features=3"},
            "records of the table are Record.x=Ball.dim=2.*leave features, classes and labels out",
        ),
        ({"--set": "radius=0.5"}, "records lie outside"),
    ],
}
GIVEN = {
    "verify": {"--size": "100", "--epsilon": "1"},
    "fit": dict(word.split("=") for word in COLUMNS.split()) | {"--epsilon": "1", "--out": "model.npz"},
}


@pytest.mark.parametrize(("command", "changes", "complaint"), [(c, *row) for c in MISTAKES for row in MISTAKES[c]])
def test_mistakes_are_refused_and_nothing_is_written(run, command, changes, complaint):
    before, given = set(Path().iterdir()), GIVEN[command] | changes
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    words = "fit logistic_regression data.csv" if command == "fit" else "verify logistic_regression --set features=2"
    refused = run(words, *options, ends=1 if "--adjacency" in changes else 2)
    assert refused.out == ""
    assert re.search(f"(?s)dpconvex {command}: .*{complaint}", refused.err)
    assert set(Path().iterdir()) == before


@pytest.mark.parametrize("content", [b"", b"a,b\n\xe9,2\n", b"a,b\n1\n"], ids=["empty", "no UTF-8", "a short line"])
def test_a_damaged_table_is_not_split(run, content):
    Path("odd.csv").write_bytes(content)
    assert "dpconvex split: odd.csv" in run("split odd.csv --out a.csv --test b.csv", ends=2).err
    assert not Path("a.csv").exists()


@pytest.mark.parametrize("wrong", ["--picture a.nope", "--seed -1"])
def test_an_audit_refuses_pictures_and_seeds_before_it_begins(run, wrong):
    assert (
        wrong.split()[0] in run(f"audit logistic_regression --set features=1 --size 9 --epsilon 1 {wrong}", ends=2).err
    )


def test_a_refused_check_names_its_file(run):
    assert "data.csv: " in run("check data.csv", ends=1).err


@pytest.mark.parametrize(
    ("problem", "label", "instead"),
    [
        ("kernel_svm", "class --labels low,high", "dp.KernelSVC"),
        ("one_class_svm", "class --labels low,high", "dp.load('one_class_svm', ...) and dp.solve"),
        ("multi_task_logistic", "class --labels low,high", "dp.load('multi_task_logistic', ...)"),
        ("isotonic_regression", "b --label-bounds 0,10", "dp.load('isotonic_regression', ...) and dp.solve"),
    ],
)
def test_problems_that_no_table_fits_say_what_to_write_in_python(run, problem, label, instead):
    words = f"fit {problem} data.csv --features a --bounds 0,10 --label {label} --epsilon 1 --out m.npz"
    assert f"fit it in Python with {instead}" in run(words, ends=2).err


def test_people_with_more_records_than_promised_leave_no_ledger(run):
    SHOP.assign(customer=[f"c{k // 2}" for k in ROW]).to_csv("visits.csv", index=False)
    Path("visits.toml").write_text(SCHEMA.replace('ignore = ["customer"]', 'privacy_unit = "customer"'), "utf-8")
    paid = "--epsilon 9 --delta 1e-6 --ledger new.jsonl --budget 10 --budget-delta 1e-5"
    for command in (
        "fit logistic_regression visits.csv --schema visits.toml --out m.npz",
        "schema learn visits.csv --label bought --unit customer",
    ):
        assert "more than the declared 1" in run(f"{command} {paid}", ends=2).err
        assert not Path("new.jsonl").exists()


def test_the_module_runs_as_a_program(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(dp.__file__).resolve().parent.parent)}
    command = [sys.executable, "-X", "importtime", "-m", "dpconvex", "--version"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"dpconvex {dp.__version__}\n")
    assert not re.search(r"\b(numpy|scipy|cvxpy)\b", done.stderr)
    code = "import sys; from dpconvex.cli.main import main; sys.exit(main(['problems', '--json']))"
    reading, writing = os.pipe()
    os.close(reading)  # nobody reads
    command = [sys.executable, "-c", code]
    gone = subprocess.run(command, env=environment, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (gone.returncode, gone.stderr) == (1, "")


# A Ctrl-C that lands in a callback of the garbage collector, as JAX has one, where its exception is lost.
LOST = """
import gc, os, signal, sys
from dpconvex import Budget
from dpconvex.cli import main as cli

def collected(*_):
    gc.callbacks.remove(collected)
    os.kill(os.getpid(), signal.SIGINT)

def struck(owner, name):
    function = getattr(owner, name)
    def stands_in(*arguments, **options):
        if when == "after":
            done = function(*arguments, **options)
        gc.callbacks.append(collected)
        gc.collect()
        return done if when == "after" else function(*arguments, **options)
    setattr(owner, name, stands_in)

_, where, when, *sys.argv[1:] = sys.argv
struck(*{"loaded": (cli, "import_module"), "paid": (Budget, "spend")}[where])
sys.exit(cli.main())
"""


# Tests may run where SIGINT is ignored, and what they start inherits that.
HEARD = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
FIT_ALONE = f"fit logistic_regression data.csv {COLUMNS} --epsilon 1 --ledger ledger.jsonl --budget 3 --out model.npz"


def started(*python):
    environment = {**os.environ, "PYTHONPATH": str(Path(dp.__file__).resolve().parent.parent)}
    for file in ("ledger.jsonl", "model.npz"):
        Path(file).unlink(missing_ok=True)
    command = [sys.executable, "-c", HEARD, sys.executable, *python, *FIT_ALONE.split()]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def spends():
    return len(dp.Budget.open("ledger.jsonl").entries) if Path("ledger.jsonl").exists() else 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("where", "when", "paid"), [("paid", "before", 0), ("loaded", "after", 0), ("paid", "after", 1)]
)
def test_an_interrupt_that_is_swallowed_ends_a_fit_before_it_pays_or_writes(run, where, when, paid):
    fit = started("-c", LOST, where, when)
    said = fit.communicate(timeout=300)[1].decode()
    assert fit.returncode == 130, said
    assert "Exception ignored" in said
    assert "interrupted; nothing was written" in said
    assert spends() == paid
    assert not Path("model.npz").exists()


@pytest.mark.parametrize("moments", [pytest.param(30, marks=pytest.mark.slow)])
def test_a_fit_that_is_interrupted_at_any_time_writes_a_model_that_was_paid_for_or_nothing(run, moments):
    begun, usual, random = time.monotonic(), 0.0, np.random.default_rng()
    for moment in range(moments + 1):
        fit = started("-m", "dpconvex")
        if moment:
            time.sleep(random.uniform(0.1, 1.1) * usual)
            fit.send_signal(signal.SIGINT)
        said = fit.communicate(timeout=300)[1].decode()
        assert fit.returncode in (0, 130, -signal.SIGINT), said  # the last before the command line is loaded
        assert Path("model.npz").exists() == (fit.returncode == 0), said
        assert spends() == 1 if fit.returncode == 0 else spends() <= 1
        usual = usual if moment else time.monotonic() - begun


PLACES = ["data.csv", "ledger.jsonl", "to ledger", "to fit", "folder", "missing/m.npz", "data.csv/m.npz", "pipe"]


@pytest.mark.parametrize("out", [*PLACES, "x" * 250, "shop/part0.parquet", "shop/new.npz", "linked.parquet", "\0", ""])
def test_a_place_where_no_file_can_be_made_is_found_before_it_is_paid_for(run, out):
    dp.Budget(dp.Privacy(9.0), "ledger.jsonl")
    Path("folder").mkdir()
    os.mkfifo("pipe")
    os.symlink("ledger.jsonl", "to ledger")
    os.link("fit.toml", "to fit")
    Path("linked.parquet").write_bytes(b"data")
    os.symlink("../linked.parquet", "shop/link.parquet")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    if "parquet" in out or "shop" in out:
        found = run(f"fit logistic_regression shop {FIT_SHOP}", "--out", out, ends=2)
    else:
        found = run("fit logistic_regression data.csv --config fit.toml --ledger ledger.jsonl --out", out, ends=2)
    assert re.search("no file can be made there|would be written over|a folder with data files", found.err)
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("further", ["--delta 1e-6", "--epsilon 5", "--delta"])
def test_a_total_without_room_leaves_no_ledger(run, further):
    fit = "fit logistic_regression data.csv --config fit.toml --out m.npz --ledger l.jsonl --budget 3"
    done = run(f"{fit} {further}")
    assert done.status
    assert not Path("l.jsonl").exists()
    if further != "--delta":
        total = re.search(r"such as --budget (\S+) --budget-delta", done.err)[1]
        assert float(total) == (5 if further == "--epsilon 5" else 3)  # never less than what was offered


def test_identifiers_that_a_fit_refuses_break_a_declaration(run):
    Path("whose.toml").write_text('privacy_unit = "who"\n' + Path("shop.toml").read_text("utf-8"), "utf-8")
    for names, lines in ({4: " "}, [6]), ({4: "7", 5: "07"}, []):
        SHOP.assign(who=[names.get(k, f"P{k}") for k in range(400)]).to_csv("whose.csv", index=False)
        (fault,) = run("check-table whose.toml whose.csv --json", ends=2).json["faults"]
        assert (fault["column"], fault["rows"]) == ("who", lines)
        run("fit logistic_regression whose.csv --schema whose.toml --epsilon 1 --most 1 --out model.npz", ends=2)


def test_a_fit_with_a_seed_is_never_shown_as_private(run):
    run("fit logistic_regression shop.csv --seed 1", *FIT_SHOP.split(), ends=0)
    found = run("certificate model.npz").out  # has the certificate of a fit without a seed
    assert found.startswith("NOT PRIVATE")
    assert "attacker" not in found
    assert run("coefficients model.npz").out.startswith("NOT PRIVATE")
    assert "NOT PRIVATE" in run("predict model.npz shop.csv", ends=0).err
    dp.Budget(dp.Privacy(9.0), "ledger.jsonl")
    assert "not a saved release" in run("check ledger.jsonl", ends=1).err


def test_a_torn_ledger_is_repaired_and_the_spend_named(run):
    fit = f"fit logistic_regression data.csv {COLUMNS} --epsilon 0.5 --ledger budget.jsonl --out model.npz"
    run(f"{fit} --budget 1 --entry march", ends=0)
    whole = Path("budget.jsonl").read_bytes()
    Path("budget.jsonl").write_bytes(whole + b'{"label": "ap')
    assert "dpconvex budget repair" in run(f"{fit} --entry april", ends=2).err
    assert '{"label": "ap' in run("budget repair budget.jsonl", ends=0).out
    assert Path("budget.jsonl").read_bytes() == whole
    run(f"{fit} --entry april", ends=0)
    assert [entry.label for entry in dp.Budget.open("budget.jsonl").entries] == ["march", "april"]
