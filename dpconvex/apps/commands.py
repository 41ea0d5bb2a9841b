"""The commands: prove, attack, fit, choose, predict, measure, and show problems, budgets and schemas."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import dpconvex as dp
from dpconvex.apps.cli import words
from dpconvex.apps.settings import (
    assignments,
    declare,
    labelling,
    ledger,
    literal,
    mechanism_of,
    privacy,
    schema_of,
    settings_of,
    table,
    whitening_of,
)
from dpconvex.errors import DPConvexError, NotPrivate, TemplateError
from dpconvex.language.schema import Schema, draft
from dpconvex.language.tables import table_of
from dpconvex.language.template import Template
from dpconvex.learners.problem_files import locate, options as options_of
from dpconvex.release.files import writable, write_whole


def told(chosen: argparse.Namespace, data: Any, text: object) -> None:
    """Print JSON for a program to read, or text."""
    print(json.dumps(data, default=str) if chosen.json else text)


# What fits nothing


def problems(chosen: argparse.Namespace) -> None:
    """Print names, descriptions and options of the shipped problems."""
    listing, lines = [], []
    for name, text in dp.problems().items():
        options = {
            option: {"required": True} if p.default is p.empty else {"default": p.default}
            for option, p in options_of(name).items()
        }
        listing.append({"name": name, "description": text, "options": options})
        listed = ", ".join(o + (f"={p['default']!r}" if "default" in p else "") for o, p in options.items())
        lines.append(f"{name} - {text}\n    options: {listed}")
    told(chosen, listing, "\n".join(lines))


def claimed(chosen: argparse.Namespace) -> tuple[Template, dp.Privacy, Any, dict[str, Any]]:
    """Return a problem's learner, the promise, the mechanism, and further options of what proves or attacks it."""
    learner = dp.load(chosen.problem, **assignments(chosen.set))
    share = labelling(learner, chosen.share)
    share |= whitening_of(chosen.whitening, share)
    return learner, privacy(vars(chosen)), mechanism_of(chosen.mechanism, learner), share


def verify(chosen: argparse.Namespace) -> None:
    """Print the certificate of a problem."""
    learner, promise, mechanism, options = claimed(chosen)
    prove = dp.verify_mixture if "share" in options else dp.verify
    certificate = prove(learner, promise, chosen.size, mechanism, **options)
    told(chosen, {"private": True, "certificate": certificate.to_dict()}, certificate)


def audit(chosen: argparse.Namespace) -> None:
    """Attack the certificate of a problem, and print claimed against found; a broken claim is an error."""
    learner, promise, mechanism, options = claimed(chosen)
    options |= {"size": chosen.size, "effort": chosen.effort, "runs": chosen.runs, "seed": chosen.seed}
    picture = None if chosen.picture is None else writable(chosen.picture, {"the problem": chosen.problem})
    found = dp.audit(learner, promise, mechanism, **options)
    told(chosen, found.to_dict(), found)
    if picture is not None:
        found.plot(picture)
    if not found.holds:
        raise NotPrivate("a claim was broken: more was found than is claimed", chosen.problem, "report it")


def budget(chosen: argparse.Namespace) -> None:
    """Show a ledger, or say that it is sound."""
    ledger = dp.Budget.open(chosen.ledger)
    entries = ledger.entries
    spends = [
        {"label": e.label, "epsilon": e.privacy.epsilon, "delta": e.privacy.delta, "event": e.known.to_dict()}
        for e in entries
    ]
    data: dict[str, Any] = {"total": ledger.privacy.to_dict(), "accounting": ledger.accounting, "spends": spends}
    data |= {"spent": ledger.spent._asdict(), "remaining": ledger.remaining._asdict()}
    data["fixed_beforehand"] = [vars(item) for item in ledger.totals()]
    told(chosen, data, ledger if chosen.what == "show" else f"{chosen.ledger}: sound; {len(entries)} spends.")


def schema(chosen: argparse.Namespace) -> None:
    """Draft a schema, or say what a schema makes of a record."""
    if chosen.what == "draft":
        if chosen.label is None:
            raise DPConvexError("a draft needs --label COLUMN, the column to be predicted.")
        out = None if chosen.out is None else writable(chosen.out, {"the table": chosen.file})
        text = draft(chosen.file, chosen.label)
        if out is None:
            print(text, end="")
        else:
            write_whole(out, text.encode("utf-8"))
        return
    found = dp.Schema.load(chosen.file)
    data = {"columns": len(found.features), "features": found.feature_names}
    data |= {"norm bound": found.norm_bound, "label": found.label}
    told(
        chosen,
        data,
        f"{chosen.file}: sound; {len(found.features)} columns become {len(found.feature_names)} features,\n"
        f"records are divided by {found.norm_bound:.4g}, the largest possible length; {found.label!r} is predicted.",
    )


# What is paid for


def opened(
    chosen: argparse.Namespace, settings: dict[str, Any], schema: Schema, codes: list[Any]
) -> tuple[dp.Privacy, Path, Any, dict[str, Any]]:
    """Return the promise, the file to write, the table, which is read before anything is paid, and options of every fit.

    So a typing error in it costs nothing: what is printed then is for the owner of the data and not part of any release.
    """
    promise = privacy(settings)
    inputs = {
        "the table": chosen.data,
        "the ledger": chosen.ledger,
        "the file of settings": chosen.config,
        "the schema": chosen.schema,
        "the problem": str(locate(chosen.problem)),
    }
    out = writable(chosen.out, inputs)
    data = table(chosen.data, schema, codes, empty=promise.adjacency == "add-remove")
    options = {"size": settings.get("size"), "backend": settings.get("backend"), "seed": chosen.seed}
    return promise, out, data, options | {"budget": ledger(chosen, promise)}


def fit(chosen: argparse.Namespace) -> None:
    """Fit a problem to a table and save what is released."""
    settings = settings_of(chosen)
    schema = schema_of(settings)
    learner, codes = declare(chosen.problem, schema, settings["options"] | assignments(chosen.set))
    share = labelling(learner, settings.get("share"))
    further = share | whitening_of(settings.get("whitening"), share) | {"label": f"fit {chosen.problem}"}
    mechanism = mechanism_of(settings.get("mechanism"), learner)
    promise, out, data, options = opened(chosen, settings, schema, codes)
    found: Any = (dp.solve_mixture if share else dp.solve)(learner, data, promise, mechanism, **options, **further)
    save(chosen, found.release if share else found, schema, out)


def tune(chosen: argparse.Namespace) -> None:
    """Choose among settings of a problem privately, and save the release of the best."""
    settings = settings_of(chosen)
    schema = schema_of(settings)
    if schema.labels is None:
        raise TemplateError("tune counts wrong labels; a regression has none. Fit it with the settings of your choice.")
    candidates: dict[str, Any] = {}
    codes: list[Any] = []
    for varied in grid(chosen.grid):
        name = ", ".join(f"{key}={value!r}" for key, value in varied.items())
        candidates[name], codes = declare(
            chosen.problem, schema, settings["options"] | assignments(chosen.set) | varied
        )
    first = next(iter(candidates.values()))
    if "m" in first.record.discrete:
        raise TemplateError("tune takes no mixtures: their components are learnt for each fit.")
    mechanism, whitening = mechanism_of(settings.get("mechanism"), first), whitening_of(settings.get("whitening"), {})
    promise, out, data, options = opened(chosen, settings, schema, codes)
    found = dp.tune(candidates, data, promise, mechanism, **options, **whitening)
    if not chosen.json:
        print(f"Chosen: {found.choice}\n")
    save(chosen, found.release, schema, out)


def grid(texts: list[str]) -> list[dict[str, Any]]:
    """Return all combinations of the values of options.

    >>> grid(["regularization=1e-3,1e-2", "width=1"])
    [{'regularization': 0.001, 'width': 1}, {'regularization': 0.01, 'width': 1}]
    """
    options = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip().isidentifier() or not words(values):
            raise TemplateError(f"--grid takes OPTION=A,B,..., such as --grid regularization=1e-3,1e-2, not {text!r}.")
        options[name.strip()] = [literal(value) for value in words(values)]
    return [dict(zip(options, values, strict=True)) for values in product(*options.values())]


def save(chosen: argparse.Namespace, release: dp.Release, schema: Schema, out: Path) -> None:
    release, proof = replace(release, schema=schema), release.certificate
    release.save(out)
    if not release.private:
        print(f"dpconvex {chosen.name}: {release.status}", file=sys.stderr)
    data = {"file": str(out), "private": release.private, "certificate": proof and proof.to_dict()}
    told(chosen, data, f"{proof}\n\nSaved {out}: {release!r}")


def model_of(chosen: argparse.Namespace) -> tuple[dp.Release, Template, Schema, list[Any]]:
    """Return a saved release with its functions, its template, and what it knows of tables and labels."""
    saved = dp.Release.load(chosen.model)
    if saved.schema is None:
        raise TemplateError(
            f"{chosen.model}: it does not say which columns it reads; fit it with dpconvex fit, or write it with "
            "the save(path, schema) of an estimator, which adds them."
        )
    name, options = (chosen.problem, {}) if chosen.problem is not None else (saved.source or (None, {}))
    if name is None:
        raise TemplateError(f"{chosen.model}: it was fitted with a problem file of your own; name that with --problem.")
    learner, codes = declare(name, saved.schema, options | assignments(chosen.set))
    schema = saved.schema if chosen.clip is None else replace(saved.schema, clip=chosen.clip)
    return dp.Release.load(chosen.model, template=learner), learner, schema, codes


def predict(chosen: argparse.Namespace) -> None:
    """Write the predictions of a saved release, one line for each record."""
    release, _, schema, codes = model_of(chosen)
    inputs = {"the table": chosen.data, "the model": chosen.model, "the problem": chosen.problem}
    out = None if chosen.out is None else writable(chosen.out, inputs)
    X, _ = schema.encode(chosen.data, labelled=False)
    columns: dict[str, Sequence[Any]] = {}
    if chosen.id == schema.label:
        raise TemplateError(f"--id names a column to pass through, and {schema.label!r} is the one that is predicted.")
    if chosen.id is not None:
        raw = table_of(chosen.data)
        raw.check_names([chosen.id], None)
        columns[chosen.id] = raw.column(chosen.id).tolist()
    found = release.predict(X)
    if schema.labels is None:
        columns[schema.label] = schema.decode_target(found).tolist()
    else:
        columns[schema.label] = [named(value, codes, schema.labels) for value in found.tolist()]
    if chosen.scores:
        columns |= per_label("score", release.decision_function(X), schema)
    if chosen.probabilities:
        columns |= per_label("probability", release.predict_proba(X), schema)
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([list(columns), *zip(*columns.values(), strict=True)])
    if out is not None:
        write_whole(out, text.getvalue().encode("utf-8"))
    if chosen.json:
        further = {name: list(column) for name, column in columns.items() if name != schema.label}
        data = {"label": schema.label, "predictions": columns[schema.label]}
        print(json.dumps(data | ({"columns": further} if further else {}), default=str))
    elif out is None:
        sys.stdout.write(text.getvalue())


def named(value: Any, codes: list[Any], labels: Sequence[str]) -> str:
    """Return the label that a predicted value stands for."""
    if value not in codes:
        raise TemplateError(f"the problem predicts {value!r}, which is none of its labels {codes!r}.")
    return labels[codes.index(value)]


def per_label(what: str, values: Any, schema: Schema) -> dict[str, Sequence[float]]:
    """Return scores as columns, one for each label if there is one for each."""
    array, title = np.asarray(values, dtype=float), f"{what} of {schema.label}"
    if array.ndim == 1 or schema.labels is None:
        return {title: array.tolist()}
    return {f"{title} {label}": array[:, place].tolist() for place, label in enumerate(schema.labels)}


def evaluate(chosen: argparse.Namespace) -> None:
    """Measure the error of a saved release on a table, privately."""
    release, learner, schema, codes = model_of(chosen)
    kept = release.spent.adjacency if release.spent is not None else None
    promise = privacy({"epsilon": chosen.epsilon, "adjacency": chosen.adjacency or kept})
    data = table(chosen.data, schema, codes, empty=promise.adjacency == "add-remove")
    options = {"budget": ledger(chosen, promise), "name": f"evaluate {chosen.model}", "seed": chosen.seed}
    found = dp.evaluate(learner, release, data, promise, **options)
    measured = {"error": found.error, "interval": list(found.interval), "records": found.records}
    told(chosen, measured | {"private": found.spent is not None}, found)
