"""What commands share: how they are added, and the arguments that declare a learner, a promise, a table and a ledger."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import dpconvex as dp
from dpconvex.accounting.rules import RULES
from dpconvex.apps.settings import assignments, words
from dpconvex.errors import TemplateError
from dpconvex.language.privacy import ADJACENCIES
from dpconvex.language.template import Template
from dpconvex.mechanisms.recipe import clipped_steps
from dpconvex.release.verify import analyse

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
    "clipped-descent": ("NoisyGradientDescent", {}),
}

# Gradient descent with a clip that follows from the learner.
CLIPPED = "clipped-descent"
WHITENING = {"yes": True, "no": False, "auto": "auto"}


class Commands:
    """The commands of a parser, to add to."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(
        self, name: str, command: Callable[[argparse.Namespace], None], summary: str, examples: str = ""
    ) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = self.parsers.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=f"examples:\n{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(command=command, name=name)
        sub.add_argument("--json", action="store_true", help="print JSON for a program to read")
        return sub


def add_problem(sub: argparse.ArgumentParser) -> None:
    """Add the arguments that declare a learner."""
    sub.add_argument("problem", help="name of a problem, or the path of a problem file of your own")
    sub.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE", help="option of the problem; may be repeated"
    )


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


def add_table(sub: argparse.ArgumentParser, allowed: tuple[str, ...]) -> None:
    sub.add_argument("data", help="CSV file with a header line, Parquet file, or folder of Parquet files")
    sub.add_argument("--config", metavar="FILE", help=f"TOML file with any of: {', '.join(allowed)}")
    table = sub.add_argument_group("what is publicly known about the table (never read off the data)")
    table.add_argument("--schema", metavar="FILE", help="TOML file that declares columns of every kind")
    table.add_argument("--features", metavar="A,B,...", type=words, help="columns that hold numeric features")
    table.add_argument("--bounds", metavar="LOWER,UPPER", type=words, help="bounds of every feature")
    table.add_argument("--label", metavar="COLUMN", help="column that holds the label")
    table.add_argument("--labels", metavar="A,B,...", type=words, help="labels that may occur")
    table.add_argument("--label-bounds", metavar="LOWER,UPPER", type=words, help="bounds of the target of a regression")
    table.add_argument("--clip", action="store_true", default=None, help="move values to their bounds")


def add_ledger(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of a budget."""
    sub.add_argument("--ledger", metavar="FILE", help="budget that the cost is recorded in before the data are used")
    sub.add_argument("--budget", type=float, metavar="E", help="total epsilon of a ledger that is to be made")
    sub.add_argument("--budget-delta", type=float, default=0.0, metavar="D", help="total delta of that ledger")
    sub.add_argument("--accounting", choices=sorted(RULES), help="how that ledger adds up spends; by default basic")
    sub.add_argument("--seed", type=int, help="for tests: the result is then not private, and says so")


def mechanism_of(text: str | None, learner: Template) -> Any:
    """Return the mechanism of a name and its options for a learner, None for the automatic choice."""
    if text is None:
        return None
    name, _, further = str(text).partition(":")
    if name not in MECHANISMS:
        raise TemplateError(f"there is no mechanism {name!r}; there are: {', '.join(MECHANISMS)}.")
    kind, fixed = MECHANISMS[name]
    given = assignments(words(further), "--mechanism NAME:", "clip=0.25")
    own = {option.name for option in fields(getattr(dp, kind))} - set(fixed)
    if not set(given) <= own:
        raise TemplateError(
            f"the mechanism {name} has no option {min(set(given) - own)!r}; it has: {', '.join(sorted(own))}."
        )
    if name == CLIPPED:
        return replace(clipped_steps(analyse(learner)), **given)
    return getattr(dp, kind)(**fixed, **given)


def whitening_of(word: Any, share: dict[str, Any]) -> dict[str, Any]:
    """Return the option for a word or a truth value; mixtures take none of their own."""
    found = word if isinstance(word, bool) or word is None else WHITENING.get(word) if isinstance(word, str) else None
    if found is None and word is not None:
        raise TemplateError(f"whitening must be one of {', '.join(WHITENING)}, not {word!r}.")
    if found is None or (share and found == "auto"):
        return {}
    if share and found is not False:
        raise TemplateError("leave whitening out: the components of a mixture are learnt from original records.")
    return {"whitening": found}


def say(chosen: argparse.Namespace, what: str) -> None:
    """Tell a person at a terminal what is being done; programs and pipes are told nothing."""
    if not chosen.json and sys.stderr.isatty():
        print(f"{what} ...", file=sys.stderr, flush=True)
