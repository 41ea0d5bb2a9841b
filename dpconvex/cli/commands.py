"""The commands that list problems, prove, audit, fit, tune and predict."""

import argparse
import csv
import io
import json
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np

import dpconvex as dp
from dpconvex.accounting.budget import ledger_at
from dpconvex.cli.declarations import CURVES, Declared, declare, declare_curves, open_table
from dpconvex.cli.main import ABOUT_TABLES, FURTHER, MECHANISMS, SETTINGS, as_json, emit, split_words
from dpconvex.data.learnt import Learnt
from dpconvex.data.schema import Schema
from dpconvex.data.tables import read_settings
from dpconvex.errors import NotPrivate
from dpconvex.fitting.problem_files import FOLDER, LARGEST, locate, options as options_of, takes_intercept, usual_width
from dpconvex.fitting.verify import analyse
from dpconvex.mechanisms.plans import clipped_steps
from dpconvex.model.people import People
from dpconvex.model.template import Template
from dpconvex.util.arguments import instance, one_of, refuse, require
from dpconvex.util.places import to_write, write_atomically
from dpconvex.util.runtime import Interrupt

SHARE = 0.2  # Share of a guarantee for the components of a mixture
STEPS = "adaptive-steps"


# Commands without data


def problems(chosen: argparse.Namespace) -> None:
    listing, lines, shipped = [], [], dp.problems()
    for name in chosen.names or shipped:
        known, text = options_of(name).items(), shipped.get(name, "a problem file of your own")
        options = {o: {"required": True} if p.default is p.empty else {"default": p.default} for o, p in known}
        listing.append({"name": name, "description": text, "options": options})
        shown = ", ".join(f"{o}={said['default']!r}" if "default" in said else o for o, said in options.items())
        lines.append(f"{name} - {text}\n    options: {shown}")
    emit(chosen, listing, "\n".join(lines))


def verify(chosen: argparse.Namespace) -> None:
    learner = dp.load(chosen.problem, **assignments(chosen.set))
    promise, mechanism, options = terms(chosen, learner)
    prove = dp.verify_mixture if "share" in options else dp.verify
    certificate = prove(learner, promise, chosen.size, mechanism, **options)
    said = certificate.explain() if chosen.proof else certificate
    emit(chosen, {"private": True} | (as_json(certificate) if chosen.json else {}), said)


def audit(chosen: argparse.Namespace) -> None:
    """Attack the certificate of a problem, and print claimed and found values; raise if a claim was broken."""
    learner = dp.load(chosen.problem, **assignments(chosen.set))
    promise, mechanism, options = terms(chosen, learner)
    options |= {name: getattr(chosen, name) for name in ("size", "effort", "runs", "seed")}
    picture = None if chosen.picture is None else picture_at("picture", chosen.picture, {"the problem": chosen.problem})
    found = dp.audit(learner, promise, mechanism, **options)
    emit(chosen, found.to_dict(), found)
    if picture is not None:
        found.plot(picture)
    if not found.holds:
        raise NotPrivate("a claim was broken: the attack found more than is claimed", chosen.problem, "report it")


def picture_at(option: str, path: str, inputs: Mapping[str, str | None]) -> Path:
    """Return the path of a picture that can be written, and has a format of Matplotlib."""
    file, kinds = to_write(path, inputs), import_module("matplotlib.backend_bases").FigureCanvasBase.filetypes
    said = f"--{option} {path}: the name of a picture ends in .{', .'.join(kinds)}."
    require(file.suffix[1:].lower() in kinds, said)
    return file


def writer(path: str | None, inputs: Mapping[str, str | None]) -> Callable[[str], Any]:
    """Return a function that writes a text to a file, or to standard output if there is no path."""
    out = None if path is None else to_write(path, inputs)

    def write(text: str) -> None:
        Interrupt.close()
        sys.stdout.write(text) if out is None else write_atomically(out, text.encode("utf-8"))

    return write


def prepared(
    chosen: argparse.Namespace, declared: Declared, promise: dp.Privacy, further: dict[str, Any]
) -> tuple[Path, Any, dict[str, Any]]:
    """Return the file to write, the table (read before any charge), and the options of every fit."""
    inputs = {"the table": chosen.data, "the schema": chosen.schema, "the file of settings": chosen.config}
    inputs["the ledger"] = chosen.ledger and ledger_at(chosen.ledger).file
    inputs["the problem"] = str(locate(chosen.problem))
    out = to_write(chosen.out, inputs)
    if locate(chosen.problem) == FOLDER / "ordinal_regression.py":
        said = f"grades, from the lowest: {', '.join(declared.schema.labels or ())}; the order is that of the labels."
        print(f"dpconvex {chosen.name}: {said}", file=sys.stderr)
    table = open_table(chosen.data, chosen.decimal_comma, declared.schema.privacy_unit)
    data = declared.table(table, empty=promise.adjacency == "add-remove")
    options = further | {"size": chosen.size, "backend": chosen.backend, "seed": chosen.seed}
    if promise.unit is not None and "share" not in further:
        options["unit"] = declared.schema.units(table)
    return out, data, options | {"budget": ledger(chosen, promise, options.get("unit"), declared.schema.learnt)}


def fit(chosen: argparse.Namespace) -> None:
    schema = suited(chosen)
    declared = declare(chosen.problem, schema, chosen.options)
    promise, mechanism, further = terms(chosen, declared.learner)
    out, data, options = prepared(chosen, declared, promise, further)
    if declared.model is not None:
        require(chosen.entry is None, f"{chosen.problem} names its spend itself; leave --entry out.")
        unit, known = options.pop("unit", None), {item.name: getattr(promise, item.name) for item in fields(promise)}
        declared.model.set_params(**known, **options, mechanism=mechanism).fit_features(**data, unit=unit)
        return save(chosen, declared.model.released(), schema, out)
    solve: Any = dp.solve_mixture if "share" in further else dp.solve
    found = solve(declared.learner, data, promise, mechanism, **options, entry=entry_of(chosen))
    save(chosen, found.release if "share" in further else found, schema, out)


def entry_of(chosen: argparse.Namespace) -> str:
    """Return the name of a spend in the ledger."""
    return chosen.entry or f"{chosen.name} {chosen.problem} {chosen.out}"


def tune(chosen: argparse.Namespace) -> None:
    schema, candidates = suited(chosen), {}
    for varied in grid(chosen.grid):
        declared = declare(chosen.problem, schema, chosen.options | varied)
        candidates[", ".join(f"{key}={value!r}" for key, value in varied.items())] = declared.learner
    promise, mechanism, further = terms(chosen, declared.learner)
    said = "tune supports neither mixtures nor additive models: fit each with one --ledger, and compare by `evaluate`."
    require("share" not in further and declared.model is None, said)
    out, data, options = prepared(chosen, declared, promise, further)
    found = dp.tune(candidates, data, promise, mechanism, **options, entry=entry_of(chosen))
    if not chosen.json:
        print(f"Chosen: {found.choice}\n")
    save(chosen, found.release, schema, out)


def save(chosen: argparse.Namespace, release: dp.Release, schema: Schema, out: Path) -> None:
    release, proof = replace(release, schema=schema), release.certificate
    Interrupt.close()
    if out.exists():  # the old file may be a model that cost privacy
        before = out.replace(out.with_name(f"{out.name}.old"))
        print(f"dpconvex {chosen.name}: the old {out} was renamed to {before}.", file=sys.stderr)
    release.save(out)
    if not release.private:
        print(f"dpconvex {chosen.name}: {release.status}", file=sys.stderr)
    data = {"file": str(out), "private": release.private, "certificate": proof and proof.to_dict()}
    data["schema"] = release.learnt and release.learnt.to_dict()
    emit(chosen, data, f"{proof.explain() if proof and chosen.proof else proof}\n\nSaved {out}: {release!r}")


def load_model(chosen: argparse.Namespace) -> tuple[dp.Release, Declared]:
    """Return a saved release with its functions, and the declaration of its tables and labels."""
    saved = dp.Release.load(chosen.model)
    remedy = "fit it with dpconvex fit, or write it with the save(path, schema) of an estimator"
    require(saved.schema, f"{chosen.model}: it does not name the columns that it reads; {remedy}.")
    name, options = (chosen.problem, {}) if chosen.problem is not None else (saved.source or ("", {}))
    require(name, f"{chosen.model}: it was fitted with a problem file of your own; name that with --problem.")
    schema = cast(Schema, saved.schema)
    schema = schema if chosen.clip is None else replace(schema, clip=chosen.clip)
    if name in CURVES:
        learner, model = dp.load(name, **options), getattr(dp, CURVES[name]).read(replace(saved, schema=schema))
        return dp.Release.load(chosen.model, template=learner), declare_curves(learner, model)
    if not saved.private:
        print(f"dpconvex {chosen.name}: {chosen.model}: {saved.status}", file=sys.stderr)
    declared = declare(name, schema, options | assignments(chosen.set))
    return dp.Release.load(chosen.model, template=declared.learner), declared


def predict(chosen: argparse.Namespace) -> None:
    """Write the predictions of a saved release, one line for each record."""
    release, declared = load_model(chosen)
    schema = declared.schema
    write = writer(chosen.out, {"the table": chosen.data, "the model": chosen.model, "the problem": chosen.problem})
    table = open_table(chosen.data, chosen.decimal_comma, chosen.id)
    columns = declared.features(table, chosen.rate)
    X, title = columns.pop("x"), schema.label
    require(chosen.id != schema.label, f"--id names a column to pass through; {schema.label!r} is the predicted one.")
    passed = [] if chosen.id is None else table.columns([chosen.id]).items()
    first, further = {name: values.tolist() for name, values in passed}, dict[str, Sequence[Any]]()
    found = declared.predicted(release.predict(X, **columns))
    if chosen.rate:
        found = [value / schema.largest["exposure"] for value in found]
        title += f" per 1 of {next(iter(schema.exposure or ()))}"
    entries = list(map(list, zip(*found, strict=True))) if found and isinstance(found[0], list) else []
    each = [f"{title}[{k}]" for k in range(len(entries))]
    each = each if declared.times is None else [f"probability of {title} > {end:g}" for end in declared.times]
    named = dict(zip(each, entries, strict=True)) if entries else {title: found}
    labels = None if release.labels is None else declared.predicted(dp.Choice(release.labels).array)
    if chosen.scores:
        further |= per_label("score", release.decision_function(X), schema, labels)
    if chosen.probabilities and declared.times is None:  # Predictions of survival are probabilities
        further |= per_label("probability", release.predict_proba(X), schema, labels)
    if chosen.out is not None or not chosen.json:
        text, columns = io.StringIO(newline=""), {**first, **named, **further}
        csv.writer(text, lineterminator="\n").writerows([list(columns), *zip(*columns.values(), strict=True)])
        write(text.getvalue())
    if chosen.json:
        rest = {"columns": first | further} if first or further else {}
        print(json.dumps({"label": schema.label, "predictions": found, **rest}, default=str))


def per_label(what: str, values: Any, schema: Schema, labels: Sequence[Any] | None) -> dict[str, Sequence[float]]:
    """Return columns of scores by name: one for each label, or one for the second of two labels."""
    array, title = np.asarray(values, dtype=float), f"{what} of {schema.label}"
    if labels is None or (array.ndim == 1 and len(labels) != 2):
        return {title: array.tolist()}
    named = zip(labels, array.T, strict=True) if array.ndim > 1 else [(labels[1], array)]
    return {f"{title} {label}": column.tolist() for label, column in named}


# Columns, options, learners, guarantees and budgets


def literal(text: str) -> Any:
    """Return the value of a text: a number, a TOML value such as ``[1, 2]`` or ``true``, or the text itself."""
    for read in (int, float, lambda value: tomllib.loads(f"value = {value}")["value"]):
        with suppress(ValueError, RecursionError):  # errors of TOML are ValueErrors
            return read(text)
    return text


def assignments(texts: Sequence[str], where: str = "--set", read: Callable[[str], Any] = literal) -> dict[str, Any]:
    """Return options by name from texts such as ``features=9``, ``width=.5``, ``labels=['no', 'yes']`` and ``name=w``."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = (part.strip() for part in text.partition("="))
        said = f"{where} takes OPTION=VALUE, such as regularization=0.01 or clip=0.25, not {text!r}."
        require(equals and name.isidentifier(), said)
        require(name not in found, f"{where} gives the option {name!r} twice.")
        found[name] = read(value)
    return found


def grid(texts: list[str]) -> list[dict[str, Any]]:
    """Return all combinations of option values, from texts such as ``regularization=1e-3,1e-2`` and ``width=1``."""
    options = assignments(texts, "--grid", lambda text: [literal(word) for word in split_words(text) or [text]])
    return [dict(zip(options, values, strict=True)) for values in product(*options.values())]


def suited(chosen: argparse.Namespace) -> Schema:
    """Return the declared schema, and complete the options of a shipped problem as its estimator does."""
    schema, known = declared_schema(chosen), options_of(chosen.problem)
    shipped, bare = locate(chosen.problem).parent == FOLDER, replace(schema, constant=0.0)
    constant = chosen.options.get("constant", schema.constant or 0.5 * (shipped and takes_intercept(chosen.problem)))
    usual: dict[str, Any] = {"constant": constant} if constant else {}
    if shipped and schema.labels is None:
        target = schema.label_bounds[1] if schema.label_bounds and "dispersion" in known else LARGEST
        usual |= (counts := {"scaled": True, "target": target} if "scaled" in known else {})
        said = f"{chosen.problem}: targets must not be negative; label_bounds are {schema.label_bounds}: let them begin at 0."
        require(not counts or min(schema.label_bounds or (0.0,)) >= 0, said)
        steps = bool(chosen.delta) and (chosen.mechanism or STEPS).startswith(STEPS)  # They need no bound
        if steps or "quantile" in known:
            usual |= {"width": usual_width(steps, len(bare.feature_names) + bool(constant), chosen)}
        elif getattr(known.get("bound"), "default", 0.0) is None:
            usual |= {"bound": 1.0}
    if chosen.problem not in CURVES:
        chosen.options = {name: usual[name] for name in known if name in usual} | chosen.options
    return bare if shipped or "constant" in known else schema


def declared_schema(chosen: argparse.Namespace) -> Schema:
    """Return the declared schema, from its own file or from the settings, and add the settings to `chosen`."""
    said = read_settings(chosen.config, SETTINGS) if chosen.config is not None else {}
    said |= {key: value for key, value in vars(chosen).items() if key in SETTINGS and value is not None}
    for key in ("epsilon",) if "schema" in said else ("features", "label", "epsilon"):
        require(key in said, f"declare {key}, with --{key} or in the file that --config names.")
    options = said.get("options", {})
    instance(dict, "a table of the problem's options").check(str(chosen.config), options=options)
    vars(chosen).update(said, options=options | assignments(chosen.set))
    given = {key: said[key] for key in ABOUT_TABLES if key in said}
    if "schema" in said:
        more = {key: given.pop(key) for key in ("clip", "privacy_unit", *FURTHER) if key in given}
        require(not given, f"the schema {said['schema']} already declares {', '.join(given)}; declare it once.")
        found = Schema.load(said["schema"])
        found = found.with_label(found.label, labels=found.labels, label_bounds=found.label_bounds, **more)
        chosen.privacy_unit = found.privacy_unit
        return found
    features, bounds = given["features"], given.pop("bounds", None)
    fits = isinstance(features, dict if bounds is None else list)
    require(fits, f"features are a table of bounds, or a list of names with --bounds, not {features!r}.")
    return Schema.from_dict(given | ({} if bounds is None else {"features": {str(name): bounds for name in features}}))


def terms(chosen: argparse.Namespace, learner: Template) -> tuple[dp.Privacy, Any, dict[str, Any]]:
    """Return the guarantee, the mechanism, and further options: `share` for a mixture, otherwise none."""
    mixed, share, promise = "m" in learner.record.discrete, chosen.share, privacy_of(chosen)
    options = {"share": SHARE if share is None else share} if mixed else dict[str, Any]()
    require(mixed or share is None, "share pays for the components of a mixture, and this problem has none.")
    return promise, mechanism_of(chosen.mechanism, learner, promise), options


def privacy_of(chosen: argparse.Namespace) -> dp.Privacy:
    """Return the guarantee that the options state."""
    further = {key: getattr(chosen, key, None) for key in ("delta", "adjacency", "most", "keep")}
    column = getattr(chosen, "privacy_unit", None)
    further["unit"] = column and re.sub(r"\W|^(?=\d)", "_", column)  # the privacy unit, named after the column
    return dp.Privacy(chosen.epsilon, **{key: value for key, value in further.items() if value is not None})


def mechanism_of(text: str | None, learner: Template, promise: dp.Privacy) -> Any:
    """Return the mechanism for a text with name and options, or None (the automatic choice) without a text."""
    if text is None:
        return None
    name, _, further = str(text).partition(":")
    one_of(MECHANISMS).check("", mechanism=name)
    kind, fixed = MECHANISMS[name]
    given = assignments(split_words(further), "--mechanism NAME")
    own = {option.name for option in fields(getattr(dp, kind))} - set(fixed)
    known, unknown = ", ".join(sorted(own)), sorted(set(given) - own)
    refuse(f"the mechanism {name} has no option {option!r}; it has: {known}." for option in unknown)
    if name == "clipped-descent":
        return replace(clipped_steps(analyse(learner), promise), **given)
    return getattr(dp, kind)(**fixed, **given)


def ledger(
    chosen: argparse.Namespace, promise: dp.Privacy, whose: Any = None, learnt: Learnt | None = None
) -> dp.Budget | None:
    """Return the budget to charge, or None.  If a total is given, create the ledger, after a check of room and of units."""
    if chosen.ledger is not None and chosen.budget is not None:
        if not ledger_at(chosen.ledger).exists():
            why = f"a new ledger of epsilon = {chosen.budget:g}, delta = {chosen.budget_delta:g} has no room for {promise}"
            schemas = [one.privacy for one in learnt.costs] if learnt and chosen.accounting in (None, "basic") else []
            needed = (getattr(promise, n) + sum(one.get(n, 0.0) for one in schemas) for n in ("epsilon", "delta"))
            said, given = " and its learnt schema" * bool(schemas), (chosen.budget, chosen.budget_delta)
            total = tuple(max(own * (1 - 1e-9), whole) for own, whole in zip(needed, given, strict=True))
            more = "--budget {:g} --budget-delta {:g}".format(*total)
            require(total == given, f"{why}{said}; give a larger total, such as {more}.")
            if whose is not None:
                People.read(promise, whose, len(whose), np.random.default_rng())
        return dp.Budget(promise.part(chosen.budget, chosen.budget_delta), chosen.ledger, chosen.accounting)
    said = "a new ledger needs a file and a total: give both --ledger and --budget."
    require(chosen.budget is None and chosen.accounting is None, said)
    if chosen.ledger is None and chosen.seed is None:
        said = "no --ledger was given: nothing adds up what several releases about the same people cost"
        print(f"dpconvex {chosen.name}: {said}.", file=sys.stderr)
    return None if chosen.ledger is None else dp.Budget.open(chosen.ledger)
