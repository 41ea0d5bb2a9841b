"""What the command line's words and settings stand for: columns, options, learners, promises and budgets."""

import argparse
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import dpconvex as dp
from dpconvex.apps.cli import ABOUT_TABLES, MECHANISMS, SETTINGS, WHITENING, words
from dpconvex.errors import TemplateError
from dpconvex.language.schema import Schema, read_settings
from dpconvex.language.template import Template
from dpconvex.language.validation import LARGEST_COPY
from dpconvex.learners.problem_files import options as options_of
from dpconvex.mechanisms.recipe import clipped_steps
from dpconvex.release.verify import analyse

SHARE = 0.2  # of a promise, for the components of a mixture


def literal(text: str) -> Any:
    """Return the value that a text denotes: a number, a TOML value such as ``[1, 2]`` and ``true``, and otherwise text."""
    for read in (int, float, lambda value: tomllib.loads(f"value = {value}")["value"]):
        with suppress(ValueError, RecursionError):  # a TOML error is one, too
            return read(text)
    return text


def assignments(texts: Sequence[str], where: str = "--set", read: Callable[[str], Any] = literal) -> dict[str, Any]:
    """Read options.

    >>> assignments(["features=9", "width=.5", "labels=['no', 'yes']", "name=w"])
    {'features': 9, 'width': 0.5, 'labels': ['no', 'yes'], 'name': 'w'}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name.isidentifier():
            raise TemplateError(f"{where} takes OPTION=VALUE, such as regularization=0.01 or clip=0.25, not {text!r}.")
        if name in found:
            raise TemplateError(f"{where} gives the option {name!r} twice.")
        found[name] = read(value)
    return found


def grid(texts: list[str]) -> list[dict[str, Any]]:
    """Return all combinations of the values of options.

    >>> grid(["regularization=1e-3,1e-2", "width=1"])
    [{'regularization': 0.001, 'width': 1}, {'regularization': 0.01, 'width': 1}]
    """
    options = assignments(texts, "--grid", lambda text: [literal(word) for word in words(text) or [text]])
    return [dict(zip(options, values, strict=True)) for values in product(*options.values())]


def schema_of(chosen: argparse.Namespace) -> Schema:
    """Return what is declared about a table, in a file of its own, or in the settings, which are put beside what was chosen."""
    said = read_settings(chosen.config, SETTINGS) if chosen.config is not None else {}
    said |= {key: value for key, value in vars(chosen).items() if key in SETTINGS and value is not None}
    for key in ("epsilon",) if "schema" in said else ("features", "label", "epsilon"):
        if key not in said:
            raise TemplateError(f"declare {key}, with --{key} or in the file that --config names.")
    options = said.get("options", {})
    if not isinstance(options, dict):
        raise TemplateError(f"the setting options must be a table of the problem's options, not {options!r}.")
    vars(chosen).update(said, options=options | assignments(chosen.set))
    given = {key: said[key] for key in ABOUT_TABLES if key in said}
    if "schema" in said:
        clip = {"clip": given.pop("clip")} if "clip" in given else {}
        if given:
            raise TemplateError(f"the schema of {said['schema']} says {min(given)} already; give it once.")
        return replace(Schema.load(said["schema"]), **clip)
    features, bounds = given["features"], given.pop("bounds", None)
    if not isinstance(features, dict if bounds is None else list):
        raise TemplateError(f"features are a table of bounds, or a list of names with --bounds, not {features!r}.")
    return Schema.from_dict(given | ({} if bounds is None else {"features": {str(name): bounds for name in features}}))


@dataclass(frozen=True)
class Declared:
    """The learner for the tables of a schema; `values` are what its field y has for the table's labels."""

    learner: Template
    schema: Schema
    values: Mapping[str, Any]

    def table(self, path: str, *, empty: bool) -> Any:
        """Read and check a table, or a folder of Parquet files, before anything is paid; return it as the problem takes it."""
        if not Path(path).is_dir():
            return coded(self.values, dict(zip("xy", self.schema.encode(path, empty=empty), strict=True)))
        parts = dp.Partitions(path, self.schema)
        # Larger ones are read again for every pass.
        small = 8 * len(self.schema.feature_names) * sum(parts.sizes) <= LARGEST_COPY
        self.schema.record.validate(parts, empty=empty)  # type: ignore[arg-type]
        return dp.Partitions(path, self.schema, keep=small).turned(partial(coded, self.values), ("x", "y"))

    def predicted(self, found: Any) -> list[Any]:
        """Return predictions as the table has them: labels, or numbers in its units."""
        if not self.values:
            return list(self.schema.decode_target(found).tolist())
        labels = {value: label for label, value in self.values.items()}
        for value in found.tolist():
            if value not in labels:
                raise TemplateError(f"the problem predicts {value!r}, which is none of its labels {list(labels)!r}.")
        return [labels[value] for value in found.tolist()]


def coded(values: Mapping[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Put the values of a problem's field y for a table's labels; the target of a regression is one already."""
    return {**found, "y": [values[text] for text in found["y"].tolist()]} if values else found


def declare(problem: str, schema: Schema, options: dict[str, Any]) -> Declared:
    count, labels = len(schema.feature_names), list(schema.labels or ())
    known: dict[str, Any] = {"features": count} | ({"radius": schema.radius} if schema.constant else {})
    known |= {"classes": len(labels), "labels": labels} if labels else {}
    learner = dp.load(problem, **{key: known[key] for key in options_of(problem) if key in known} | options)
    record, values = learner.record.fields, list(getattr(learner.record.fields.get("y"), "values", ()))
    fits = len(values) == len(labels) if labels else repr(record.get("y")) == repr(schema.record.fields["y"])
    # The component m of a mixture is learnt.
    if set(record) - {"m"} != {"x", "y"} or getattr(record["x"], "shape", None) != (count,) or not fits:
        needed = f"a record like {schema.record!r}, with as many labels"
        raise TemplateError(f"{problem}: a problem for this table needs {needed}, not {learner.record!r}.")
    if set(values) == set(labels):
        values = labels  # whatever their order in the problem
    elif any(isinstance(value, str) for value in values):
        raise TemplateError(f"{problem} is about the labels {values!r}, and the table's are {labels!r}.")
    return Declared(learner, schema, dict(zip(labels, values, strict=True)))


def privacy(given: argparse.Namespace) -> dp.Privacy:
    further = {key: getattr(given, key, None) for key in ("delta", "adjacency")}
    return dp.Privacy(given.epsilon, **{key: value for key, value in further.items() if value is not None})


def terms(chosen: argparse.Namespace, learner: Template) -> tuple[dp.Privacy, Any, dict[str, Any]]:
    """Return the promise, the mechanism, and further options: of mixtures, and only of these, a share."""
    word, share = chosen.whitening, chosen.share
    options: dict[str, Any] = {"whitening": WHITENING.get(word, word) if isinstance(word, str) else word}
    if "m" in learner.record.discrete:
        options["share"] = SHARE if share is None else share
    elif share is not None:
        raise TemplateError("share pays for the components of a mixture, and this problem has none.")
    return privacy(chosen), mechanism_of(chosen.mechanism, learner), options


def mechanism_of(text: str | None, learner: Template) -> Any:
    """Return the mechanism of a name and its options for a learner, None for the automatic choice."""
    if text is None:
        return None
    name, _, further = str(text).partition(":")
    if name not in MECHANISMS:
        raise TemplateError(f"there is no mechanism {name!r}; there are: {', '.join(MECHANISMS)}.")
    kind, fixed = MECHANISMS[name]
    given = assignments(words(further), "--mechanism NAME")
    own = {option.name for option in fields(getattr(dp, kind))} - set(fixed)
    if not set(given) <= own:
        unknown = min(set(given) - own)
        raise TemplateError(f"the mechanism {name} has no option {unknown!r}; it has: {', '.join(sorted(own))}.")
    if name == "clipped-descent":
        return replace(clipped_steps(analyse(learner)), **given)
    return getattr(dp, kind)(**fixed, **given)


def ledger(chosen: argparse.Namespace, promise: dp.Privacy) -> dp.Budget | None:
    """Open the budget that pays, or make it if a total is given."""
    if chosen.ledger is not None and chosen.budget is not None:
        total = dp.Privacy(chosen.budget, chosen.budget_delta, promise.adjacency)
        return dp.Budget(total, chosen.ledger, chosen.accounting)
    if chosen.budget is not None or chosen.accounting is not None:
        raise TemplateError("a ledger to be made needs its file and its total: state both, --ledger and --budget.")
    return None if chosen.ledger is None else dp.Budget.open(chosen.ledger)
