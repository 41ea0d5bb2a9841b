"""What the command line's words and settings stand for: columns, options, learners, promises and budgets."""

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import dpconvex as dp
from dpconvex.apps.cli import ABOUT_TABLES, MECHANISMS, SETTINGS, WHITENING, words
from dpconvex.core.record_domains import Box
from dpconvex.errors import TemplateError
from dpconvex.language.schema import Schema, read_settings
from dpconvex.language.template import Template
from dpconvex.language.validation import LARGEST_COPY
from dpconvex.learners.problem_files import options as options_of
from dpconvex.mechanisms.recipe import clipped_steps
from dpconvex.release.verify import analyse

SHARE = 0.2  # of a promise, for the components of a mixture


def assignments(texts: Sequence[str], where: str = "--set ", example: str = "regularization=0.01") -> dict[str, Any]:
    """Read options: numbers, TOML values such as ``[1, 2]`` and ``true``, and otherwise text.

    >>> assignments(["features=9", "width=.5", "labels=['no', 'yes']", "name=w"])
    {'features': 9, 'width': 0.5, 'labels': ['no', 'yes'], 'name': 'w'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier():
            raise TemplateError(f"{where.strip(' :')} takes OPTION=VALUE, such as {where}{example}, not {text!r}.")
        if name in found:
            raise TemplateError(f"{where.strip(' :')} gives the option {name!r} twice.")
        found[name] = literal(value)
    return found


def literal(text: str) -> Any:
    """Return the value that a text denotes."""
    for read in (int, float, lambda value: tomllib.loads(f"value = {value}")["value"]):
        with suppress(ValueError, RecursionError):  # a TOML error is one, too
            return read(text)
    return text


def settings_of(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return what a file and the command line say together."""
    settings = read_settings(chosen.config, SETTINGS) if chosen.config is not None else {}
    settings |= {key: value for key, value in vars(chosen).items() if key in SETTINGS and value is not None}
    for key in ("epsilon",) if "schema" in settings else ("features", "label", "epsilon"):
        if key not in settings:
            raise TemplateError(f"declare {key}, with --{key} or in the file that --config names.")
    if not isinstance(settings.setdefault("options", {}), dict):
        raise TemplateError(
            f"the setting options must be a table of the problem's options, not {settings['options']!r}."
        )
    return settings


def schema_of(settings: dict[str, Any]) -> Schema:
    """Return what is declared about a table: a file of its own, or the settings themselves."""
    given = {key: settings[key] for key in ABOUT_TABLES if key in settings}
    if "schema" in settings:
        clip = {"clip": given.pop("clip")} if "clip" in given else {}
        if given:
            raise TemplateError(f"the schema of {settings['schema']} says {min(given)} already; give it once.")
        return replace(Schema.load(settings["schema"]), **clip)
    if "labels" not in given and "label_bounds" not in given:
        raise TemplateError(
            "declare labels, or label_bounds for a regression, with an option or in the file of --config."
        )
    features, bounds = given["features"], given.pop("bounds", None)
    if isinstance(features, dict) and bounds is not None:
        raise TemplateError("give bounds once: with each feature, or one pair for all in a list of features.")
    if not isinstance(features, dict):
        if not (isinstance(features, list) and all(isinstance(name, str) for name in features) and bounds is not None):
            raise TemplateError(f"features are a table of bounds, or a list of names with --bounds, not {features!r}.")
        given["features"] = dict.fromkeys(features, bounds)
    return Schema.from_dict(given)


def declare(problem: str, schema: Schema, options: dict[str, Any]) -> tuple[Template, list[Any]]:
    """Return the learner for a table, and the values of its field y that stand for the table's labels, in order."""
    count = len(schema.feature_names)
    declared: dict[str, Any] = {"features": count} | ({"radius": schema.radius} if schema.constant else {})
    if schema.labels is not None:
        declared |= {"classes": len(schema.labels), "labels": list(schema.labels)}
    learner = dp.load(problem, **{key: v for key, v in declared.items() if key in options_of(problem)} | options)
    known = learner.record.fields
    target, values = known.get("y"), list(getattr(known.get("y"), "values", ()))
    if schema.labels is None:
        right = isinstance(target, Box) and target.shape == () and (target.lower, target.upper) == (-1, 1)
        wanted = "a number y between -1 and 1 (for classes, declare labels)"
    else:
        right, wanted = bool(values), "a label y from declared values (for numbers, declare label_bounds)"
    needed = set(known) - ({"m"} & set(learner.record.discrete))  # the component m of a mixture is learnt
    if needed != {"x", "y"} or getattr(known["x"], "shape", None) != (count,) or not right:
        raise TemplateError(
            f"{problem}: to be fitted to this table, a problem needs a record of features x, here a vector of {count}, and "
            f"{wanted}; it has {learner.record!r}."
        )
    labels = list(schema.labels or ())
    if len(values) != len(labels):
        raise TemplateError(f"{problem} has {len(values)} classes, but {len(labels)} labels are declared.")
    if set(values) == set(labels):
        values = labels  # whatever their order in the problem
    elif any(isinstance(value, str) for value in values):
        raise TemplateError(f"{problem} is about the labels {values!r}, and the table's are {labels!r}.")
    return learner, values


def table(path: str, schema: Schema, codes: list[Any], *, empty: bool) -> Any:
    """Read and check a table, or a folder of Parquet files, before anything is paid; return it as a problem takes it."""
    if not Path(path).is_dir():
        X, y = schema.encode(path, empty=empty)
        return coded(schema, codes, {"x": X, "y": y})
    parts = dp.Partitions(path, schema)
    # Larger ones are read again for every pass.
    small = 8 * len(schema.feature_names) * sum(parts.sizes) <= LARGEST_COPY
    schema.record.validate(parts, empty=empty)  # type: ignore[arg-type]
    return dp.Partitions(path, schema, keep=small).turned(partial(coded, schema, codes), ("x", "y"))


def coded(schema: Schema, codes: list[Any], found: dict[str, Any]) -> dict[str, Any]:
    """Put the values of a problem's field y for a table's labels; the target of a regression is one already."""
    if schema.labels is None:
        return found
    return {**found, "y": [codes[list(schema.labels).index(text)] for text in found["y"].tolist()]}


def labelling(learner: Template, share: float | None) -> dict[str, Any]:
    """Return what learning the components of a mixture takes, nothing if the problem is none."""
    if "m" in learner.record.discrete:
        return {"share": SHARE if share is None else share}
    if share is not None:
        raise TemplateError("share pays for the components of a mixture, and this problem has none.")
    return {}


def privacy(given: Mapping[str, Any]) -> dp.Privacy:
    """Return the promise of settings."""
    further = {key: given[key] for key in ("delta", "adjacency") if given.get(key) is not None}
    return dp.Privacy(given["epsilon"], **further)


def ledger(chosen: argparse.Namespace, promise: dp.Privacy) -> dp.Budget | None:
    """Open the budget that pays, or make it if a total is given."""
    if chosen.ledger is None:
        if chosen.budget is not None:
            raise TemplateError("--budget is the total of a ledger: name its file with --ledger.")
        return None
    if chosen.budget is not None:
        total = dp.Privacy(chosen.budget, chosen.budget_delta, promise.adjacency)
        return dp.Budget(total, chosen.ledger, chosen.accounting)
    if chosen.accounting is not None or not Path(chosen.ledger).exists():
        raise TemplateError(f"{chosen.ledger}: a ledger that is to be made needs its total: state it with --budget.")
    return dp.Budget.open(chosen.ledger)


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
    found = WHITENING.get(word) if isinstance(word, str) else word
    if found not in (None, True, False, "auto") or (found is None and word is not None):
        raise TemplateError(f"whitening must be one of {', '.join(WHITENING)}, not {word!r}.")
    if share and found is True:
        raise TemplateError("leave whitening out: the components of a mixture are learnt from original records.")
    return {} if found is None or (share and found == "auto") else {"whitening": found}
