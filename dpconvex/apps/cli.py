"""The command line: list problems, prove privacy, fit to a CSV file, predict.

Exit status: 0 if all went well, 1 if there is no proof, no budget or no certified solution, 2 for bad usage or bad data.
Whatever goes wrong, nothing is written.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TextIO

import dpconvex as dp
from dpconvex.accounting.rules import RULES
from dpconvex.apps import demo
from dpconvex.apps.settings import assignments, columns, declare, labelling, ledger, named, privacy, words
from dpconvex.errors import BudgetExceeded, DPConvexError, NotConverged, NotPrivate, TemplateError
from dpconvex.language.csv_tables import Table, read_settings
from dpconvex.language.privacy import ADJACENCIES
from dpconvex.learners.problem_files import locate, options as options_of
from dpconvex.release.outputs import writable, write_whole

__all__ = ["main"]

REFUSED, MISTAKEN = 1, 2

# Mechanisms by name: the class, and its noise.
MECHANISMS = {
    "objective-gamma": ("ObjectivePerturbation", "gamma"),
    "objective-gaussian": ("ObjectivePerturbation", "gaussian"),
    "objective-matrix": ("ObjectivePerturbation", "matrix"),
    "output-gamma": ("OutputPerturbation", "gamma"),
    "output-gaussian": ("OutputPerturbation", "gaussian"),
    "gradient-descent": ("NoisyGradientDescent", ""),
}

# What a TOML file for `fit` may say; all but "options" are also options of the command line, which takes precedence.
SETTINGS = (
    "features",
    "bounds",
    "label",
    "labels",
    "clip",
    "epsilon",
    "delta",
    "adjacency",
    "size",
    "share",
    "backend",
    "options",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    chosen = parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], None] = chosen.command
    try:
        command(chosen)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output has seen enough
        sys.stdout = None
        return REFUSED
    except (DPConvexError, OSError) as error:
        if chosen.json:
            print(json.dumps(complaint(error)))
        print(f"dpconvex {chosen.name}: {message(error)}", file=sys.stderr)
        return REFUSED if isinstance(error, NotPrivate | NotConverged | BudgetExceeded) else MISTAKEN
    return 0


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    top = argparse.ArgumentParser(
        prog="dpconvex", description="Convex learners that are proved differentially private, fitted and released."
    )
    top.add_argument("--version", action="version", version=f"dpconvex {dp.__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, command: Callable[[argparse.Namespace], None], summary: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        sub.set_defaults(command=command, name=name)
        sub.add_argument("--json", action="store_true", help="print JSON for a program to read")
        return sub

    add("problems", list_problems, "list the problems that come with it")

    sub = add("verify", verify, "prove that a problem is private, without data")
    add_problem(sub)
    add_promise(sub, "public number of records", required=True)

    sub = add("audit", audit, "attack what a problem's certificate claims, without data")
    add_problem(sub)
    add_promise(sub, "public number of records", required=True)
    sub.add_argument("--mechanism", choices=sorted(MECHANISMS), help="by default, the one that verify chooses")
    sub.add_argument("--effort", type=float, default=1.0, metavar="X", help="how long to search; by default 1")
    sub.add_argument("--runs", type=int, default=0, metavar="N", help="also fit the worst neighbours so often each")
    sub.add_argument("--seed", type=int, help="of the search, to repeat it")
    sub.add_argument("--picture", metavar="FILE", help="draw what was found, such as audit.png")

    sub = add("fit", fit, "fit a problem privately to a CSV file and save the release")
    add_problem(sub)
    sub.add_argument("data", help="CSV file with a header line")
    sub.add_argument("--out", required=True, metavar="FILE", help="where to save the release, such as model.npz")
    sub.add_argument("--config", metavar="FILE", help=f"TOML file with any of: {', '.join(SETTINGS)}")
    table = sub.add_argument_group("what is publicly known about the table (never read off the data)")
    table.add_argument("--features", metavar="A,B,...", type=words, help="columns that hold features")
    table.add_argument("--bounds", metavar="LOWER,UPPER", type=words, help="bounds of every feature")
    table.add_argument("--label", metavar="COLUMN", help="column that holds the label")
    table.add_argument("--labels", metavar="A,B,...", type=words, help="labels that may occur")
    table.add_argument("--clip", action="store_true", default=None, help="move values to their bounds")
    add_promise(sub, "public nominal number of records, under add-remove", required=False)
    sub.add_argument("--ledger", metavar="FILE", help="budget that the cost is recorded in before the data are used")
    sub.add_argument("--budget", type=float, metavar="E", help="total epsilon of a ledger that is to be made")
    sub.add_argument("--budget-delta", type=float, default=0.0, metavar="D", help="total delta of that ledger")
    sub.add_argument("--accounting", choices=sorted(RULES), help="how that ledger adds up; by default basic")
    sub.add_argument("--backend", help="conic or first-order")
    sub.add_argument("--seed", type=int, help="for tests: the release is then not private, and says so")

    sub = add("predict", predict, "apply a saved release to a CSV file")
    sub.add_argument("model", help="file that fit has saved")
    sub.add_argument("data", help="CSV file with a header line")
    sub.add_argument("--out", metavar="FILE", help="CSV file to write; without it, print")
    sub.add_argument("--clip", action="store_true", default=None, help="move values to their bounds")
    sub.add_argument("--problem", metavar="FILE.py", help="problem file of your own that the model was fitted with")
    sub.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="its options, as in fit")

    sub = add("budget", budget, "say what a ledger has spent, by which rule, and what is left")
    sub.add_argument("ledger", help="file of a budget")

    demo.add_arguments(add("demo", demo.run, demo.SUMMARY))
    return top


def add_problem(sub: argparse.ArgumentParser) -> None:
    """Add the arguments that declare a learner."""
    sub.add_argument("problem", help="name of a problem, or the path of a problem file of your own")
    sub.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="option of the problem; may be repeated"
    )


def add_promise(sub: argparse.ArgumentParser, size: str, required: bool) -> None:
    """Add the arguments of a promise, and the number of records that it is about."""
    sub.add_argument("--size", type=int, required=required, metavar="N", help=size)
    sub.add_argument("--epsilon", type=float, required=required, metavar="E")
    sub.add_argument("--delta", type=float, metavar="D", help="by default 0")
    sub.add_argument("--adjacency", choices=ADJACENCIES, help=f"by default {ADJACENCIES[0]}")
    sub.add_argument("--share", type=float, metavar="S", help="part of it that pays for the components of a mixture")


# Commands


def list_problems(chosen: argparse.Namespace) -> None:
    """Print names, descriptions and options of the shipped problems."""
    found = dp.problems()
    if chosen.json:
        listing = [
            {
                "name": name,
                "description": text,
                "options": {
                    option: {"required": True} if p.default is p.empty else {"default": p.default}
                    for option, p in options_of(name).items()
                },
            }
            for name, text in found.items()
        ]
        print(json.dumps(listing, default=str))
        return
    wide = max(map(len, found), default=0)
    for name, text in found.items():
        print(f"{name:<{wide}}  {text}")
        listed = ", ".join(o if p.default is p.empty else f"{o}={p.default!r}" for o, p in options_of(name).items())
        print(f"{'':<{wide}}  options: {listed}")


def verify(chosen: argparse.Namespace) -> None:
    """Print the certificate of a problem."""
    promise = privacy(chosen.epsilon, chosen.delta, chosen.adjacency)
    learner = dp.load(chosen.problem, **assignments(chosen.set))
    share = labelling(learner, chosen.share)
    prove = dp.verify_mixture if share else dp.verify
    certificate = prove(learner, promise, chosen.size, **share)
    print(json.dumps({"private": True, "certificate": certificate.to_dict()}) if chosen.json else certificate)


def audit(chosen: argparse.Namespace) -> None:
    """Attack the certificate of a problem, and print claimed against found; a broken claim is an error."""
    promise = privacy(chosen.epsilon, chosen.delta, chosen.adjacency)
    learner = dp.load(chosen.problem, **assignments(chosen.set))
    kind, noise = MECHANISMS.get(chosen.mechanism, (None, ""))
    mechanism = None if kind is None else getattr(dp, kind)(*([noise] if noise else []))
    share = labelling(learner, chosen.share)
    options = {"size": chosen.size, "effort": chosen.effort, "runs": chosen.runs, "seed": chosen.seed}
    picture = None if chosen.picture is None else writable(chosen.picture, {"the problem": chosen.problem})
    found = dp.audit(learner, promise, mechanism, **options, **share)
    print(json.dumps(found.to_dict(), default=str) if chosen.json else found)
    if picture is not None:
        found.plot(picture)
    if not found.holds:
        raise NotPrivate("a claim was broken: more was found than is claimed", chosen.problem, "report it")


def fit(chosen: argparse.Namespace) -> None:
    """Fit a problem to a CSV file and save what is released.

    The file is checked before the budget is charged, so that a typing error in it costs nothing: what is printed then is
    for the owner of the data and not part of any release.
    """
    settings = read_settings(chosen.config, SETTINGS) if chosen.config is not None else {}
    given = {key: getattr(chosen, key) for key in SETTINGS if key != "options"}
    settings |= {key: value for key, value in given.items() if value is not None}
    for key in ("features", "label", "labels", "epsilon"):
        if key not in settings:
            raise TemplateError(f"declare {key}, with --{key} or in the file that --config names.")
    table = Table(columns(settings), settings["label"], settings["labels"], settings.get("clip", False))
    options = settings.get("options", {})
    if not isinstance(options, dict):
        raise TemplateError(f"the setting options must be a table of the problem's options, not {options!r}.")
    learner, codes = declare(chosen.problem, table, options | assignments(chosen.set))
    promise = privacy(settings["epsilon"], settings.get("delta"), settings.get("adjacency"))
    share = labelling(learner, settings.get("share"))
    inputs = {"the table": chosen.data, "the ledger": chosen.ledger, "the file of settings": chosen.config}
    out = writable(chosen.out, inputs | {"the problem": str(locate(chosen.problem))})
    X, y = table.read(chosen.data, empty=promise.adjacency == "add-remove")
    solve = dp.solve_mixture if share else dp.solve
    found = solve(
        learner,
        {"x": X, "y": [codes[table.labels.index(text)] for text in y]},
        promise,
        backend=settings.get("backend"),
        size=settings.get("size"),
        budget=ledger(chosen, promise),
        label=f"fit {chosen.problem}",
        seed=chosen.seed,
        **share,
    )
    release = replace(found.release if isinstance(found, dp.Mixture) else found, table=table)
    release.save(out)
    if not release.private:
        print(f"dpconvex fit: {release.status}", file=sys.stderr)
    proof = release.certificate
    if chosen.json:
        certificate = None if proof is None else proof.to_dict()
        print(json.dumps({"file": str(out), "private": release.private, "certificate": certificate}))
    else:
        print(f"{proof}\n\nSaved {out}: {release!r}")


def budget(chosen: argparse.Namespace) -> None:
    """Print a ledger: the total, the rule, the spends, and what is left."""
    found = dp.Budget.open(chosen.ledger)
    if not chosen.json:
        print(found)
        return
    spends = [
        {"label": item.label, "privacy": item.privacy.to_dict(), "event": item.known.to_dict()}
        for item in found.entries
    ]
    fixed = [vars(item) for item in found.totals()]
    told = {"total": found.privacy.to_dict(), "accounting": found.accounting, "spent": found.spent._asdict()}
    print(json.dumps({**told, "left": found.remaining._asdict(), "fixed_beforehand": fixed, "spends": spends}))


def predict(chosen: argparse.Namespace) -> None:
    """Write the predictions of a saved release: one column, one line for each record."""
    saved = dp.Release.load(chosen.model)
    if saved.table is None:
        raise TemplateError(f"{chosen.model}: it does not say which columns it reads; fit it with dpconvex fit.")
    table = saved.table
    name, options = (chosen.problem, {}) if chosen.problem is not None else (saved.source or (None, {}))
    if name is None:
        raise TemplateError(f"{chosen.model}: it was fitted with a problem file of your own; name that with --problem.")
    learner, codes = declare(name, table, options | assignments(chosen.set))
    release = dp.Release.load(chosen.model, template=learner)
    inputs = {"the table": chosen.data, "the model": chosen.model, "the problem": chosen.problem}
    out = None if chosen.out is None else writable(chosen.out, inputs)
    X, _ = table.read(chosen.data, labelled=False, clip=chosen.clip)
    predictions = [named(value, codes, table) for value in release.predict(X).tolist()]
    if out is not None:
        content = io.StringIO(newline="")
        write(content, table.label, predictions)
        write_whole(out, content.getvalue().encode("utf-8"))
    elif not chosen.json:
        write(sys.stdout, table.label, predictions)
    if chosen.json:
        print(json.dumps({"label": table.label, "predictions": predictions}))


# From objects to text


def write(stream: TextIO, header: str, column: Sequence[str]) -> None:
    """Write one column as CSV."""
    csv.writer(stream, lineterminator="\n").writerows([[header], *([value] for value in column)])


def message(error: Exception) -> str:
    """Return what a person is told."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}."
    return str(error)


def complaint(error: Exception) -> dict[str, Any]:
    """Return what a program is told."""
    told: dict[str, Any] = {"error": type(error).__name__, "message": message(error)}
    if isinstance(error, NotPrivate):
        told |= {"private": False, "reason": error.reason, "where": error.expression, "remedy": error.remedy}
    return told


if __name__ == "__main__":
    sys.exit(main())
