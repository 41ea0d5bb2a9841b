"""The command line: list problems, prove privacy, replay proofs, fit to a table, predict, evaluate, and manage budgets.

Exit status: 0 for success, 1 if there is no proof, no budget or no certified solution, 2 for bad usage or bad data, 130 after
an interrupt.  After an error no model, table or picture is written.  Heavy imports are deferred, so that help appears at once.
"""

import argparse
import csv
import json
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from threading import Event, Thread, current_thread, main_thread
from time import monotonic
from typing import Any, NoReturn

import dpconvex as dp
from dpconvex.checker.reading import Rejected
from dpconvex.errors import BudgetExceeded, DPConvexError, NotConverged, NotPrivate
from dpconvex.util.runtime import Interrupt, Stage

REFUSED, MISTAKEN, INTERRUPTED = 1, 2, 130
# Seconds before the first progress message, between messages on a terminal, and between messages elsewhere.
FIRST, OFTEN, SELDOM = 2.0, 1.0, 10.0
ABOUT = """
Epsilon bounds how much one person's record can change a release: a reader's odds of any statement about that person change by a
factor of at most exp(epsilon). 0.1 is very strong, 1 strong, 10 weak. Delta is a small probability with which this bound may
fail; it should be far below one over the number of people, such as 1e-6. Each further release about the same people adds to the
total cost: give --ledger to record it.

dpconvex COMMAND --help explains a command, with examples.
"""

# Mechanisms by name: the class and its fixed options.  Further options follow the name.
MECHANISMS: dict[str, tuple[str, dict[str, Any]]] = {
    "adaptive-steps": ("AdaptiveSteps", {}),
    "objective-gamma": ("ObjectivePerturbation", {"noise": "gamma"}),
    "objective-gaussian": ("ObjectivePerturbation", {"noise": "gaussian"}),
    "objective-matrix": ("ObjectivePerturbation", {"noise": "matrix"}),
    "output-gamma": ("OutputPerturbation", {"noise": "gamma"}),
    "output-gaussian": ("OutputPerturbation", {"noise": "gaussian"}),
    "statistics-gamma": ("SufficientStatistics", {"noise": "gamma"}),
    "statistics-gaussian": ("SufficientStatistics", {"noise": "gaussian"}),
    "gradient-descent": ("NoisyGradientDescent", {}),
    "clipped-descent": ("NoisyGradientDescent", {}),  # the clip is computed from the learner
    "vertex-steps": ("NoisyFrankWolfe", {}),
}
ACCOUNTING = ("basic", "gaussian", "renyi")
ADJACENCIES, KEEPS = ("replace-one", "add-remove"), ("first", "random", "weights")

# Keys of a TOML file for `fit`; some are also options of the command.
LABELS, FURTHER = ("label", "labels", "label_bounds"), ("exposure", "weight", "event")
ABOUT_TABLES = ("features", "bounds", *LABELS, *FURTHER, "ignore", "absent", "unit", "constant", "clip", "privacy_unit")
ABOUT_FITS = ("epsilon", "delta", "adjacency", "most", "keep", "size", "share", "backend", "mechanism")
SETTINGS = ("schema", *ABOUT_TABLES, *ABOUT_FITS, "options")


def split_words(text: str) -> list[str]:
    """Return the words of a comma-separated list; double quotes enclose a word that contains a comma."""
    return [word.strip() for word in next(csv.reader([text], skipinitialspace=True), [])]


def beside(text: str, event: bool = False) -> dict[str, Any]:
    """Return the declaration of a column from COLUMN=LARGEST or COLUMN=LOWER,UPPER; of an event from COLUMN or COLUMN=NO,YES."""
    name, _, said = text.rpartition("=") if "=" in text else (text, "", "")
    words = split_words(said)
    if event:  # a truth value may be read as 0 and 1, so that other numbers are levels
        return {name: {"ordered" if said[:1].isdigit() else "boolean": words or ["false", "true"]}}
    if not words:
        raise argparse.ArgumentTypeError(f"write its public largest value too, as {name}=3")
    return {name: ["0", *words][-2:]}


def natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer, 0 or above, not {text!r}")
    return int(text)


def option(about: str, metavar: str | None = None, kind: Any = str, **further: Any) -> dict[str, Any]:
    return {"help": about, "metavar": metavar, "type": kind, **further}


def flag(about: str, **further: Any) -> dict[str, Any]:
    return {"help": about, "action": "store_true", **further}


# Every option of every command.
OPTIONS: dict[str, dict[str, Any]] = {
    "problem": option("name of a problem, or the path of a problem file of your own"),
    "schema": option("TOML file that declares columns of every kind"),
    "model": option("file that fit has saved"),
    "data": option("CSV file with a header line, or Parquet file; to fit and evaluate also a folder of Parquet files"),
    "ledger": option("file of a budget, or address of a database, such as sqlite:///spent.db"),
    "names": option("problems to list, by default all", "NAME", nargs="*"),
    "to": option("move: the new file or database of the budget", nargs="?"),
    "file": option("draft: a public CSV or Parquet file; learn: any such file; check: a TOML file"),
    "--progress": flag("report progress on standard error, even if it is not a terminal"),
    "--json": flag("print JSON"),
    "--set": option("option of the problem; may be repeated", "OPTION=VALUE", action="append", default=[]),
    "--problem": option("problem file of your own that the model was fitted with", "FILE.py"),
    "--grid": option("values of an option; all combinations are tried", "OPTION=A,B,...", action="append"),
    # Public knowledge about the table, never computed from the data.
    "--config": option(f"TOML file with any of: {', '.join(SETTINGS)}", "FILE"),
    "--schema": option("TOML file that declares columns of every kind", "FILE"),
    "--features": option("columns that hold numeric features", "A,B,...", split_words),
    "--bounds": option("public bounds of every feature", "LOWER,UPPER", split_words),
    "--label": option("column that holds the label", "COLUMN"),
    "--labels": option("labels that may occur", "A,B,...", split_words),
    "--label-bounds": option("public bounds of the target of a regression", "LOWER,UPPER", split_words),
    "--exposure": option("column of exposures, such as years; the label is the total", "COLUMN=LARGEST", beside),
    "--weight": option("column of survey weights", "COLUMN=LARGEST", beside),
    "--event": option("column of seen events; the label is the time", "COLUMN=NO,YES", partial(beside, event=True)),
    "--rate": flag("predict for an exposure of 1, without the column of exposures"),
    "--known": option("kind of a column: number, date or category", "COLUMN=KIND", action="append", default=[]),
    "--ignore": option("columns that are not used", "A,B,...", split_words),
    "--decimal-comma": flag("read numbers as 1.234,5 and dates as 31.01.2020"),
    "--clip": flag("move values to their bounds", default=None),
    # The guarantee, the mechanism and the budget.
    "--proof": flag("print the proof, too: every constant, how epsilon is spent, the derivation, what is assumed"),
    "--size": option("public number of records; under add-remove a nominal one", "N", int),
    "--epsilon": option("epsilon of the guarantee", "E", float),
    "--delta": option("delta of the guarantee, by default 0", "D", float),
    "--adjacency": option(f"by default {ADJACENCIES[0]}, or that of the model", choices=ADJACENCIES),
    "--unit": option(
        "column of identifiers: records with the same identifier are protected together", "COLUMN", dest="privacy_unit"
    ),
    "--most": option("largest number of records of one unit", "K", int),
    "--keep": option(
        "for units with more records than --most: keep the first or random ones; otherwise an error", choices=KEEPS
    ),
    "--share": option("share of the guarantee that pays for the components of a mixture", "S", float),
    "--mechanism": option(
        f"by default the most accurate one for this size; one of {', '.join(MECHANISMS)}, with its options, such as "
        "gradient-descent:clip=0.25,steps=100 for clipped gradients",
        "NAME[:OPTION=VALUE,...]",
    ),
    "--backend": option("conic or first-order", "NAME"),
    "--ledger": option("budget, a file or a database, that records the cost before the data are used", "FILE|URL"),
    "--budget": option("total epsilon of a new ledger", "E", float),
    "--budget-delta": option("total delta of a new ledger", "D", float, default=0.0),
    "--accounting": option("composition rule of a new ledger, by default basic", choices=ACCOUNTING),
    "--entry": option("name of the spend in the ledger", "TEXT"),
    "--seed": option("seed of the noise, for tests: the result is marked as not private", "N", natural),
    # Searches, evaluations and files to write.
    "--effort": option("length of the search, relative to the default", "X", float, default=1.0),
    "--runs": option("also fit each of the worst neighbours this many times", "N", int, default=0),
    "--group": option("column with levels: rates are also measured for each level", "COLUMN"),
    "--target": option("index of the number to evaluate, from 0, of a model that predicts several", "K", int),
    "--measures": option("spend all on error, or on the deviance of counts", "A,B,...", split_words),
    "--cells": option("cut points of probabilities or scores; use finer ones for rare labels", "A,B,...", split_words),
    "--threshold": option("score threshold of the printed rates, by default 0.5", "T", float),
    "--roc": option("file for the ROC curve of two labels, such as roc.png", "FILE"),
    "--calibration": option("file for a plot of observed shares against predicted probabilities", "FILE"),
    "--residuals": option("file for a plot of a regression's residuals against predictions", "FILE"),
    "--part": option("share of the people kept for evaluation, by default 0.25", "S", float),
    "--test": option("file for the records kept for evaluation", "FILE"),
    "--table": option("records of the fit, for intervals at a cost of --epsilon and --delta", "FILE"),
    "--anyway": flag("pay for intervals, even if few records may leave them undetermined"),
    "--evaluation": option("file that evaluate has saved", "FILE.json"),
    "--coefficients": option("file that coefficients has saved", "FILE.json"),
    "--title": option("title of the report", "TEXT"),
    "--picture": option("file for a plot of the result, such as audit.png", "FILE"),
    "--out": option("file to write: a model, a table of predictions, a schema, a report or a picture", "FILE"),
    "--id": option("column of the table to pass through, before the predictions", "COLUMN"),
    "--scores": flag("also write the scores that determine the labels"),
    "--probabilities": flag("also write a probability for each label"),
    "--draws": option("random splits for each epsilon, by default 10", "N", int),
    "--quick": flag("three epsilons, 3 draws"),
}
PROMISE = "--delta --adjacency --unit --most --keep --share --mechanism"
LEDGER = "--ledger --budget --budget-delta --accounting --seed"
MODEL = "model data --clip --problem --set"
VERIFY = f"problem --set --size! --epsilon! {PROMISE}"
LEARN = f"--labels --label-bounds --known --ignore --epsilon --delta --adjacency --unit --most --keep {LEDGER} --entry"
FIT = (
    "problem data --set --config --schema --features --bounds --label --labels --label-bounds --clip --out! --size --epsilon "
    f"--exposure --weight --event {PROMISE} --proof --backend {LEDGER} --entry"
)

# For each command: its options (! marks required ones), a summary, and examples.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "problems": ("names", "list the shipped problems, with their options", ""),
    "verify": (f"{VERIFY} --proof", "prove that a problem is private, without data", """
  dpconvex verify logistic_regression --set features=9 --size 583 --epsilon 1
  dpconvex verify softmax_regression --set features=64 --set classes=10 --size 1000 --epsilon 1 --delta 1e-6"""),
    "check": ("model", "replay the proof in a saved release or a JSON file by the independent checker, without data", """
  dpconvex check model.npz"""),
    "audit": (f"{VERIFY} --effort --runs --seed --picture", "attack the claims of a certificate, without data", """
  dpconvex audit large_margin_gaussian --set features=1 --size 583 --epsilon 1 --picture audit.png"""),
    "budget": ("show|verify|repair|move ledger to", "show, verify, repair or move the ledger of a budget", """
  dpconvex budget show budget.jsonl
  dpconvex budget verify budget.jsonl
  dpconvex budget repair budget.jsonl
  dpconvex budget move budget.jsonl postgresql://clerk@server/privacy"""),
    "schema": (f"draft|learn|check file --label --out {LEARN}", "draft a schema from public data, learn one, or check one", """
  dpconvex schema draft public_sample.csv --label income --out adult.toml
  dpconvex schema learn adult.csv --label income --epsilon 0.2 --delta 1e-6 --ledger budget.jsonl --out adult.toml
  dpconvex schema check adult.toml"""),
    "fit": (FIT, "fit a problem privately to a table and save the release", """
  dpconvex fit large_margin_gaussian patients.csv --config fit.toml --out model.npz
  dpconvex fit logistic_regression adult.csv --schema adult.toml --epsilon 1 --out model.npz
  dpconvex fit huber_regression rents.csv --features rooms,area --bounds 0,200 --label rent --label-bounds 0,5000 \\
      --epsilon 1 --ledger budget.jsonl --budget 3 --out model.npz"""),
    "tune": (f"{FIT} --grid!", "fit several settings of a problem to parts of a table, and privately save the best", """
  dpconvex tune logistic_regression adult.csv --schema adult.toml --epsilon 1 \\
      --grid regularization=1e-4,1e-3,1e-2 --out model.npz"""),
    "check-table": ("schema data", "list rows of a table that break a declaration; not private, for the owner only", """
  dpconvex check-table hospital.toml train.csv"""),
    "predict": (f"{MODEL} --out --id --rate --scores --probabilities", "apply a saved release to a table", """
  dpconvex predict model.npz new_patients.csv --out predictions.csv
  dpconvex predict model.npz new_patients.csv --id patient --probabilities"""),
    "evaluate": (
        f"{MODEL} --epsilon! --adjacency --most --keep --group --target --measures --cells --threshold --roc --calibration "
        f"--residuals --out {LEDGER} --entry",
        "evaluate a model on a table, privately", """
  dpconvex evaluate model.npz other_patients.csv --epsilon 0.5 --ledger budget.jsonl
  dpconvex evaluate model.npz other_patients.csv --epsilon 0.5 --group ward --roc roc.png --out evaluation.json"""),
    "split": ("data --unit --part --seed --adjacency --out! --test!", "split a CSV file in two; people stay together", """
  dpconvex split visits.csv --unit patient --out train.csv --test test.csv"""),
    "certificate": ("model --proof", "show the certificate of a model, and bounds on the success of an attacker", """
  dpconvex certificate model.npz --proof"""),
    "coefficients": (
        f"model --table --anyway --epsilon --delta --adjacency --most --keep --clip --problem --set --out {LEDGER} --entry",
        "show the effect of each column on the score, and release intervals at a further cost", """
  dpconvex coefficients model.npz
  dpconvex coefficients model.npz --table train.csv --epsilon 0.5 --delta 1e-6 --out coefficients.json"""),
    "report": (
        "model --evaluation --coefficients --ledger --title --out!",
        "write a page about a model, for its users and an ethics board", """
  dpconvex report model.npz --evaluation evaluation.json --ledger budget.jsonl --out report.html"""),
    "demo": ("--draws --out --seed --quick", "error against epsilon on the Breast Cancer data", ""),
}  # fmt: skip


# Modules of the commands that are not in `commands`.
MODULES = {"demo": "demo", "check": "check", "budget": "main", "check-table": "schemas", "schema": "schemas"}
MODULES |= dict.fromkeys(("evaluate", "split", "certificate", "coefficients", "report"), "saved_models")


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        hint = "; a value that begins with a minus is written after =, as in --labels=-1,1"
        super().error(message + hint * message.endswith("expected one argument"))


def parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    about = "Convex learners that are proved differentially private, fitted and released."
    top = Parser(prog="dpconvex", description=about, epilog=ABOUT, formatter_class=raw)
    top.add_argument("--version", action="version", version=f"dpconvex {dp.__version__}")
    if find_spec("shtab") is not None:
        import shtab

        shtab.add_argument_to(top, ["--print-completion"], help="print a completion script for bash, zsh or tcsh")
    subs = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (options, summary, examples) in COMMANDS.items():
        more = examples and f"examples:{examples}"
        about = summary[0].upper() + summary[1:] + "."
        sub = subs.add_parser(name, help=summary, description=about, epilog=more, formatter_class=raw)
        sub.set_defaults(module=MODULES.get(name, "commands"), name=name)
        reads = bool({"data", "file", "--table"} & {*options.split()})
        for key in ["--json", "--progress", *["--decimal-comma"] * reads, *options.split()]:
            if "|" in key:
                sub.add_argument("what", choices=key.split("|"))
            else:
                needed: dict[str, Any] = {"required": True} if key.endswith("!") else {}
                sub.add_argument(key.rstrip("!"), **OPTIONS[key.rstrip("!")], **needed)
    return top


def emit(chosen: argparse.Namespace, data: Any, text: object) -> None:
    """Print `data` as JSON if --json was given, and `text` otherwise."""
    from dpconvex.util.plain_data import json_numbers

    Interrupt.close()
    print(json.dumps(json_numbers(data), default=str) if chosen.json else text)


def as_json(certificate: Any) -> dict[str, Any]:
    """Return a certificate as the data that `check` reads, with its proof if it has one."""
    proved = getattr(certificate, "proof", None) is not None
    return dict(json.loads(certificate.to_json())) if proved else {"certificate": certificate.to_dict()}


def budget(chosen: argparse.Namespace) -> None:
    """Show, check, repair or move a ledger; CVXPY is not imported."""
    from dpconvex.accounting.budget import ORIGIN
    from dpconvex.accounting.database_ledger import is_address
    from dpconvex.util.arguments import require

    said = "dpconvex budget move takes two places, FROM and TO; show, verify and repair take one."
    require((chosen.what == "move") == (chosen.to is not None), said)
    if chosen.what == "move":
        dp.Budget.move(chosen.ledger, chosen.to)
    removed = dp.Budget.repair(chosen.ledger) if chosen.what == "repair" else ""
    place = chosen.to or chosen.ledger
    ledger = dp.Budget.open(place)
    place, entries = ledger.path if is_address(place) else place, ledger.entries  # an address without its password
    data: dict[str, Any] = {"total": ledger.privacy.to_dict(), "accounting": ledger.accounting, "spends": []}
    for e in entries:
        spend = {"label": e.label, "epsilon": e.privacy.epsilon, "delta": e.privacy.delta, "event": e.known.to_dict()}
        data["spends"].append(spend | {name: getattr(e, name) for name in ORIGIN})
    data |= {"spent": ledger.spent._asdict(), "remaining": ledger.remaining._asdict()}
    if chosen.json:  # the totals take seconds
        data["non_adaptive"] = [vars(item) for item in ledger.totals()]
    counted = f"{len(entries)} spend{'s' * (len(entries) != 1)}"
    cut = f" Removed the fragment of a spend on which nothing was released: {removed}" * bool(removed)
    emit(chosen, data | {"removed": removed}, ledger if chosen.what == "show" else f"{place}: sound; {counted}.{cut}")


@contextmanager
def progress(name: str, asked: bool) -> Iterator[None]:
    """Print the stage and the elapsed seconds of a slow command on standard error: on a terminal, or if `asked`."""
    Stage.name = "preparing"
    terminal, done, begun = sys.stderr.isatty(), Event(), monotonic()

    def watch() -> None:
        pause = FIRST
        while not done.wait(pause):
            said = f"dpconvex {name}: {Stage.name}, {monotonic() - begun:.0f} s"
            print(f"\r\033[K{said}" if terminal else said, end="" if terminal else "\n", file=sys.stderr, flush=True)
            pause = OFTEN if terminal else SELDOM
        if terminal and pause != FIRST:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    thread = Thread(target=watch, daemon=True)
    if asked or terminal:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if asked or terminal:
            thread.join()


@contextmanager
def interruptible(program: bool) -> Iterator[None]:
    """Record Ctrl-C and raise KeyboardInterrupt, until the answer is written.  After that, Ctrl-C does not stop a program."""

    def note(*_: Any) -> None:
        if not Interrupt.closed:
            Interrupt.noted = True
            raise KeyboardInterrupt

    Interrupt.noted = Interrupt.closed = False
    usual = signal.default_int_handler
    ours = current_thread() is main_thread() and signal.getsignal(signal.SIGINT) is usual
    if ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_IGN if program and Interrupt.closed else usual)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    chosen = parser().parse_args(arguments)
    try:
        with interruptible(arguments is None), warnings.catch_warnings(), progress(chosen.name, chosen.progress):
            tell = lru_cache(None)(lambda said: print(f"dpconvex {chosen.name}: {said}", file=sys.stderr))
            warnings.showwarning = lambda said, *_: tell(str(said))  # once for many fits
            command = getattr(import_module(f"dpconvex.cli.{chosen.module}"), chosen.name.replace("-", "_"))
            status: int | None = command(chosen)
            sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the output
        sys.stdout = None
        return REFUSED
    except KeyboardInterrupt:
        said = "interrupted; nothing was written, and charges to a budget remain."
        print(f"dpconvex {chosen.name}: {said}", file=sys.stderr)
        return INTERRUPTED
    except (DPConvexError, OSError, Rejected, ModuleNotFoundError) as error:
        file = getattr(error, "filename", None)
        message = str(error) if file is None else f"{file}: {getattr(error, 'strerror', '')}."
        if isinstance(error, ModuleNotFoundError):
            message = f"{error.name} is not installed, and this command needs it: pip install {error.name}."
        told: dict[str, Any] = {"error": type(error).__name__, "message": message}
        if isinstance(error, NotPrivate):
            told |= {"private": False, "reason": error.reason, "where": error.expression, "remedy": error.remedy}
        if chosen.json:
            print(json.dumps(told))
        print(f"dpconvex {chosen.name}: {message}", file=sys.stderr)
        return REFUSED if isinstance(error, NotPrivate | NotConverged | BudgetExceeded | Rejected) else MISTAKEN
    return status or 0
