"""What the command line's words and settings stand for: columns, options, learners, promises and budgets."""

import argparse
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import dpconvex as dp
from dpconvex.apps.arguments import ABOUT_TABLES, MECHANISMS, WHITENING, words
from dpconvex.core.record_domains import Box
from dpconvex.errors import TemplateError
from dpconvex.language.privacy import ADJACENCIES
from dpconvex.language.schema import Schema
from dpconvex.language.template import Template
from dpconvex.language.validation import LARGEST_COPY
from dpconvex.learners.problem_files import options as options_of
from dpconvex.mechanisms.recipe import clipped_steps
from dpconvex.release.verify import analyse

# Of a promise, for the components of a mixture.
SHARE = 0.2


def assignments(texts: Sequence[str], where: str = "--set ", example: str = "regularization=0.01") -> dict[str, Any]:
    """Read options: numbers, TOML values such as ``[1, 2]`` and ``true``, and otherwise text.

    >>> assignments(["features=9", "width=.5", "labels=['no', 'yes']", "name=w"])
    {'features': 9, 'width': 0.5, 'labels': ['no', 'yes'], 'name': 'w'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise TemplateError(f"{where.strip(' :')} takes OPTION=VALUE, such as {where}{example}, not {text!r}.")
        if name.strip() in found:
            raise TemplateError(f"{where.strip(' :')} gives the option {name.strip()!r} twice.")
        found[name.strip()] = literal(value.strip())
    return found


def literal(text: str) -> Any:
    """Return the value that a text denotes."""
    for read in (int, float, lambda value: tomllib.loads(f"value = {value}")["value"]):
        try:
            return read(text)
        except (ValueError, RecursionError):  # a TOML error is one, too
            continue
    return text


def schema_of(settings: dict[str, Any]) -> Schema:
    """Return what is declared about a table: a file of its own, or the settings themselves."""
    given = {key: settings[key] for key in ABOUT_TABLES if key in settings}
    if "schema" in settings:
        further = [key for key in given if key != "clip"]
        if further:
            raise TemplateError(f"the schema of {settings['schema']} says {further[0]} already; give it once.")
        found = Schema.load(settings["schema"])
        return replace(found, clip=settings["clip"]) if "clip" in settings else found
    if "labels" not in given and "label_bounds" not in given:
        raise TemplateError(
            "declare labels, or label_bounds for a regression, with an option or in the file of --config."
        )
    given["features"] = columns(given.get("features"), given.pop("bounds", None))
    return Schema.from_dict(given)


def columns(features: Any, bounds: Any) -> dict[str, Any]:
    """Return the features with their bounds: each with its own, or a list of names and one pair for all of them."""
    if isinstance(features, dict):
        if bounds is not None:
            raise TemplateError("give bounds once: with each feature, or one pair for all in a list of features.")
        return features
    if bounds is None:
        raise TemplateError("declare bounds, the public lower and upper bound of every feature.")
    if not isinstance(features, list) or not all(isinstance(name, str) for name in features):
        raise TemplateError(f"features must be a list of column names, or a table of bounds, not {features!r}.")
    if len(set(features)) != len(features):
        raise TemplateError(f"a feature is declared twice: {', '.join(features)}.")
    return dict.fromkeys(features, bounds)


def declare(problem: str, schema: Schema, options: dict[str, Any]) -> tuple[Template, list[Any]]:
    """Return the learner for a table, and the values of its field y that stand for the table's labels, in order."""
    count = len(schema.feature_names)
    declared: dict[str, Any] = {"features": count} | ({"radius": schema.radius} if schema.constant else {})
    if schema.labels is not None:
        declared |= {"classes": len(schema.labels), "labels": list(schema.labels)}
    learner = dp.load(problem, **{key: v for key, v in declared.items() if key in options_of(problem)} | options)
    known = learner.record.fields
    needed = set(known) - ({"m"} & set(learner.record.discrete))  # the component m of a mixture is learnt
    target = known.get("y")
    values = getattr(target, "values", ())
    if schema.labels is None:
        right = isinstance(target, Box) and target.shape == () and (target.lower, target.upper) == (-1, 1)
        wanted, other = "a number y between -1 and 1", " It learns classes: declare labels." if values else ""
    else:
        right, wanted = bool(values), "a label y from declared values"
        other = " It predicts numbers: declare label_bounds." if isinstance(target, Box) else ""
    if needed != {"x", "y"} or getattr(known["x"], "shape", None) != (count,) or not right:
        raise TemplateError(
            f"{problem}: to be fitted to this table, a problem needs a record of features x, here a vector of {count}, and "
            f"{wanted}; it has {learner.record!r}.{other}"
        )
    if schema.labels is None:
        return learner, []
    if len(values) != len(schema.labels):
        raise TemplateError(f"{problem} has {len(values)} classes, but {len(schema.labels)} labels are declared.")
    return learner, list(values)


def coded(schema: Schema, codes: list[Any], y: Any) -> Any:
    """Return the values of a problem's field y for a table's labels; the target of a regression is one already."""
    return y if schema.labels is None else [codes[list(schema.labels).index(text)] for text in y.tolist()]


def table(path: str, schema: Schema, codes: list[Any], *, empty: bool, clip: bool | None = None) -> Any:
    """Read and check a table, or a folder of Parquet files, before anything is paid; return it as a problem takes it."""
    schema = schema if clip is None else replace(schema, clip=clip)
    if not Path(path).is_dir():
        X, y = schema.encode(path, empty=empty)
        return {"x": X, "y": coded(schema, codes, y)}
    parts = dp.Partitions(path, schema)
    # Larger ones are read again for every pass.
    small = 8 * len(schema.feature_names) * sum(parts.sizes) <= LARGEST_COPY
    schema.record.validate(parts, empty=empty)  # type: ignore[arg-type]
    return dp.Partitions(path, schema, keep=small).turned(partial(columns_for, schema, codes), ("x", "y"))


def columns_for(schema: Schema, codes: list[Any], found: dict[str, Any]) -> dict[str, Any]:
    """Return the columns of a partition as a problem takes them."""
    return {**found, "y": coded(schema, codes, found["y"])}


def labelling(learner: Template, share: float | None) -> dict[str, Any]:
    """Return what learning the components of a mixture takes, nothing if the problem is none."""
    if "m" in learner.record.discrete:
        return {"share": SHARE if share is None else share}
    if share is not None:
        raise TemplateError("share pays for the components of a mixture, and this problem has none.")
    return {}


def named(value: Any, codes: list[Any], schema: Schema) -> str:
    """Return the label that a predicted value stands for."""
    if value not in codes or schema.labels is None:
        raise TemplateError(f"the problem predicts {value!r}, which is none of its labels {codes!r}.")
    return schema.labels[codes.index(value)]


def privacy(epsilon: float, delta: float | None, adjacency: str | None) -> dp.Privacy:
    """Return the promise."""
    return dp.Privacy(epsilon, 0.0 if delta is None else delta, ADJACENCIES[0] if adjacency is None else adjacency)


def ledger(chosen: argparse.Namespace, promise: dp.Privacy) -> dp.Budget | None:
    """Open the budget that pays, or make it if a total is given."""
    if chosen.ledger is None:
        if chosen.budget is not None:
            raise TemplateError("--budget is the total of a ledger: name its file with --ledger.")
        return None
    if chosen.budget is None:
        if chosen.accounting is not None:
            raise TemplateError("--accounting is of a ledger that is to be made: state its total with --budget.")
        if not Path(chosen.ledger).exists():
            raise TemplateError(f"{chosen.ledger}: there is no such ledger; to make it, state its total with --budget.")
        return dp.Budget.open(chosen.ledger)
    total = dp.Privacy(chosen.budget, chosen.budget_delta, promise.adjacency)
    return dp.Budget(total, chosen.ledger, chosen.accounting)


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
    if name == "clipped-descent":
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
