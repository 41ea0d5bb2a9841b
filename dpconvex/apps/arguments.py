"""The arguments of all commands.  Nothing heavy is imported here: help and versions are told at once."""

import argparse
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import dpconvex as dp
from dpconvex.language.privacy import ADJACENCIES

ABOUT = """
An epsilon says how much one person's record can change what is released: whatever a reader thought the odds of anything about
that person were, they change by a factor of at most exp(epsilon). 0.1 is very strong, 1 strong, 10 weak. A delta is a small
probability with which this may fail; it should be far below one over the number of people, such as 1e-6. Each further release
about the same people adds to what is spent: give --ledger to keep count.

dpconvex COMMAND --help explains a command, with examples.
"""
ACCOUNTING = ("basic", "gaussian", "renyi")

# Mechanisms by name: the class, and what tells it from others of its class.  Further options follow the name.
MECHANISMS: dict[str, tuple[str, dict[str, Any]]] = {
    "objective-gamma": ("ObjectivePerturbation", {"noise": "gamma"}),
    "objective-gaussian": ("ObjectivePerturbation", {"noise": "gaussian"}),
    "objective-matrix": ("ObjectivePerturbation", {"noise": "matrix"}),
    "output-gamma": ("OutputPerturbation", {"noise": "gamma"}),
    "output-gaussian": ("OutputPerturbation", {"noise": "gaussian"}),
    "statistics-gamma": ("SufficientStatistics", {"noise": "gamma"}),
    "statistics-gaussian": ("SufficientStatistics", {"noise": "gaussian"}),
    "gradient-descent": ("NoisyGradientDescent", {}),
    "clipped-descent": ("NoisyGradientDescent", {}),  # with a clip that follows from the learner
}
WHITENING = {"yes": True, "no": False, "auto": "auto"}

# What a TOML file for `fit` may say about the table, and else; all but "options" and what only files say are options, too.
ABOUT_TABLES = ("features", "bounds", "label", "labels", "label_bounds", "ignore", "absent", "unit", "constant", "clip")
ABOUT_FITS = ("epsilon", "delta", "adjacency", "size", "share", "backend", "mechanism", "whitening")
SETTINGS = ("schema", *ABOUT_TABLES, *ABOUT_FITS, "options")
ON_THE_COMMAND_LINE = tuple(n for n in SETTINGS if n not in ("options", "ignore", "absent", "unit", "constant"))


def add_verify(sub: argparse.ArgumentParser) -> None:
    add_problem(sub)
    add_promise(sub, "public number of records", required=True)


def add_audit(sub: argparse.ArgumentParser) -> None:
    add_verify(sub)
    sub.add_argument("--effort", type=float, default=1.0, metavar="X", help="how long to search; by default 1")
    sub.add_argument("--runs", type=int, default=0, metavar="N", help="also fit the worst neighbours so often each")
    sub.add_argument("--seed", type=int, help="of the search, to repeat it")
    sub.add_argument("--picture", metavar="FILE", help="draw what was found, such as audit.png")


def add_budget(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("what", choices=("show", "verify"))
    sub.add_argument("ledger", help="file of a budget")


def add_schema(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("what", choices=("draft", "check"))
    sub.add_argument("file", help="public CSV or Parquet file for a draft, TOML file to check")
    sub.add_argument("--label", metavar="COLUMN", help="column to be predicted, for a draft")
    sub.add_argument("--out", metavar="FILE", help="TOML file to write; without it, print")


def add_fit(sub: argparse.ArgumentParser) -> None:
    add_problem(sub)
    sub.add_argument("data", help="CSV file with a header line, Parquet file, or folder of Parquet files")
    sub.add_argument("--config", metavar="FILE", help=f"TOML file with any of: {', '.join(SETTINGS)}")
    table = sub.add_argument_group("what is publicly known about the table (never read off the data)")
    table.add_argument("--schema", metavar="FILE", help="TOML file that declares columns of every kind")
    for option, metavar, what in (
        ("--features", "A,B,...", "columns that hold numeric features"),
        ("--bounds", "LOWER,UPPER", "bounds of every feature"),
        ("--labels", "A,B,...", "labels that may occur"),
        ("--label-bounds", "LOWER,UPPER", "bounds of the target of a regression"),
    ):
        table.add_argument(option, metavar=metavar, type=words, help=what)
    table.add_argument("--label", metavar="COLUMN", help="column that holds the label")
    table.add_argument("--clip", action="store_true", default=None, help="move values to their bounds")
    sub.add_argument("--out", required=True, metavar="FILE", help="where to save the release, such as model.npz")
    add_promise(sub, "public nominal number of records, under add-remove", required=False)
    add_ledger(sub)
    sub.add_argument("--backend", help="conic or first-order")


def add_tune(sub: argparse.ArgumentParser) -> None:
    add_fit(sub)
    sub.add_argument(
        "--grid",
        action="append",
        required=True,
        metavar="OPTION=A,B,...",
        help="values of an option to choose from; may be repeated, and all combinations are tried",
    )


def add_predict(sub: argparse.ArgumentParser) -> None:
    add_model(sub, "or Parquet file")
    sub.add_argument("--out", metavar="FILE", help="CSV file to write; without it, print")
    sub.add_argument("--id", metavar="COLUMN", help="column of the table to pass through, before the predictions")
    sub.add_argument("--scores", action="store_true", help="also write the scores that the labels follow from")
    sub.add_argument("--probabilities", action="store_true", help="also write a probability for each label")


def add_evaluate(sub: argparse.ArgumentParser) -> None:
    add_model(sub, "Parquet file, or folder of Parquet files")
    sub.add_argument("--epsilon", type=float, required=True, metavar="E", help="what the measurement may cost")
    sub.add_argument("--adjacency", choices=ADJACENCIES, help="by default, that of the release")
    add_ledger(sub)


def add_demo(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--draws", type=int, metavar="N", help="splits and noises for each epsilon, by default 10")
    picture = "demo-output/error_against_epsilon.png"
    sub.add_argument("--out", default=picture, metavar="FILE", help="picture to write, by default %(default)s")
    sub.add_argument("--seed", type=int, help="repeatable, but not private, and says so")
    sub.add_argument("--quick", action="store_true", help="three epsilons, 3 draws")


def add_problem(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("problem", help="name of a problem, or the path of a problem file of your own")
    about = "option of the problem; may be repeated"
    sub.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help=about)


def add_model(sub: argparse.ArgumentParser, tables: str) -> None:
    sub.add_argument("model", help="file that fit has saved")
    sub.add_argument("data", help=f"CSV file with a header line, {tables}")
    sub.add_argument("--clip", action="store_true", default=None, help="move values to their bounds")
    sub.add_argument("--problem", metavar="FILE.py", help="problem file of your own that the model was fitted with")
    sub.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="its options, as in fit")


def add_promise(sub: argparse.ArgumentParser, size: str, required: bool) -> None:
    """Add the arguments of a promise, and the number of records that it is about."""
    sub.add_argument("--size", type=int, required=required, metavar="N", help=size)
    sub.add_argument("--epsilon", type=float, required=required, metavar="E", help="the promise's epsilon")
    sub.add_argument("--delta", type=float, metavar="D", help="its delta, by default 0")
    sub.add_argument("--adjacency", choices=ADJACENCIES, help=f"by default {ADJACENCIES[0]}")
    sub.add_argument("--share", type=float, metavar="S", help="part of it that pays for the components of a mixture")
    sub.add_argument(
        "--mechanism",
        metavar="NAME[:OPTION=VALUE,...]",
        help="by default, what learns most from so many records, or has the least predicted risk; one of "
        f"{', '.join(MECHANISMS)}, and its own options, such as gradient-descent:clip=0.25,steps=100 for clipped gradients",
    )
    sub.add_argument(
        "--whitening",
        nargs="?",
        const="yes",
        choices=WHITENING,
        help="make records round first, from a share of the promise: yes, auto where there are few records (the default with a "
        "delta), or no, which asks for an exact minimiser if no mechanism is named; all but no need a --delta",
    )


def add_ledger(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--ledger", metavar="FILE", help="budget that the cost is recorded in before the data are used")
    sub.add_argument("--budget", type=float, metavar="E", help="total epsilon of a ledger that is to be made")
    sub.add_argument("--budget-delta", type=float, default=0.0, metavar="D", help="total delta of that ledger")
    sub.add_argument("--accounting", choices=ACCOUNTING, help="how that ledger adds up spends; by default basic")
    sub.add_argument("--seed", type=int, help="for tests: the result is then not private, and says so")


def words(text: str) -> list[str]:
    """Split a list that is separated by commas; a word with a comma in it is put in double quotes.

    >>> words('age, "hours, weekly"')
    ['age', 'hours, weekly']
    """
    import csv

    return [word.strip() for word in next(csv.reader([text], skipinitialspace=True), [])]


# For each command: where its function is, what adds its arguments, what it does, and examples.
Add = Callable[[argparse.ArgumentParser], None]
COMMANDS: dict[str, tuple[str, Add | None, str, Sequence[str]]] = {
    "problems": ("showing:list_problems", None, "list the problems that come with it", ()),
    "verify": (
        "showing:verify",
        add_verify,
        "prove that a problem is private, without data",
        (
            "verify logistic_regression --set features=9 --size 583 --epsilon 1",
            "verify softmax_regression --set features=64 --set classes=10 --size 1000 --epsilon 1 --delta 1e-6",
        ),
    ),
    "audit": (
        "showing:audit",
        add_audit,
        "attack what a problem's certificate claims, without data",
        ("audit large_margin_gaussian --set features=1 --size 583 --epsilon 1 --picture audit.png",),
    ),
    "budget": (
        "showing:budget",
        add_budget,
        "show what was spent on people, or check the file that says so",
        ("budget show budget.jsonl", "budget verify budget.jsonl"),
    ),
    "schema": (
        "showing:schema",
        add_schema,
        "draft a schema from a table that is public, or check one",
        ("schema draft public_sample.csv --label income --out adult.toml", "schema check adult.toml"),
    ),
    "fit": (
        "fitting:fit",
        add_fit,
        "fit a problem privately to a table and save the release",
        (
            "fit large_margin_gaussian patients.csv --config fit.toml --out model.npz",
            "fit logistic_regression adult.csv --schema adult.toml --epsilon 1 --out model.npz",
            "fit huber_regression rents.csv --features rooms,area --bounds 0,200 --label rent --label-bounds 0,5000 \\\n"
            "      --epsilon 1 --ledger budget.jsonl --budget 3 --out model.npz",
        ),
    ),
    "tune": (
        "fitting:tune",
        add_tune,
        "fit several settings of a problem to parts of a table, and privately save the best",
        (
            "tune logistic_regression adult.csv --schema adult.toml --epsilon 1 \\\n"
            "      --grid regularization=1e-4,1e-3,1e-2 --out model.npz",
        ),
    ),
    "predict": (
        "applying:predict",
        add_predict,
        "apply a saved release to a table",
        (
            "predict model.npz new_patients.csv --out predictions.csv",
            "predict model.npz new_patients.csv --id patient --probabilities",
        ),
    ),
    "evaluate": (
        "applying:evaluate",
        add_evaluate,
        "measure the error of a saved release on a table, privately",
        ("evaluate model.npz other_patients.csv --epsilon 0.5 --ledger budget.jsonl",),
    ),
    "demo": ("demo:run", add_demo, "error against epsilon on the Breast Cancer data", ()),
}


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    raw = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="dpconvex",
        description="Convex learners that are proved differentially private, fitted and released.",
        epilog=ABOUT,
        formatter_class=raw,
    )
    top.add_argument("--version", action="version", version=f"dpconvex {dp.__version__}")
    if find_spec("shtab") is not None:
        import shtab

        shtab.add_argument_to(top, ["--print-completion"], help="print what completes commands in bash, zsh or tcsh")
    subs = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (command, add, summary, examples) in COMMANDS.items():
        epilog = "\n  dpconvex ".join(["examples:", *examples]) if examples else None
        about = summary[0].upper() + summary[1:] + "."
        sub = subs.add_parser(name, help=summary, description=about, epilog=epilog, formatter_class=raw)
        sub.set_defaults(command=command, name=name)
        sub.add_argument("--json", action="store_true", help="print JSON for a program to read")
        if add is not None:
            add(sub)
    return top
