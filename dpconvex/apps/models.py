"""Commands on tables: fit or tune a model, which is paid for, predict with it for nothing, and measure its error privately."""

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
from dpconvex.errors import TemplateError
from dpconvex.language.schema import Schema
from dpconvex.language.tables import table_of
from dpconvex.language.template import Template
from dpconvex.learners.problem_files import locate
from dpconvex.release.files import writable, write_whole


def opened(
    chosen: argparse.Namespace, settings: dict[str, Any], schema: Schema, codes: list[Any]
) -> tuple[dp.Privacy, Path, Any]:
    """Return the promise, the file to write, and the table, which is read before anything is paid.

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
    return promise, out, table(chosen.data, schema, codes, empty=promise.adjacency == "add-remove")


def fit(chosen: argparse.Namespace) -> None:
    """Fit a problem to a table and save what is released."""
    settings = settings_of(chosen)
    schema = schema_of(settings)
    learner, codes = declare(chosen.problem, schema, settings["options"] | assignments(chosen.set))
    options = labelling(learner, settings.get("share"))
    promise, out, data = opened(chosen, settings, schema, codes)
    options |= whitening_of(settings.get("whitening"), options)
    options |= {"size": settings.get("size"), "budget": ledger(chosen, promise), "seed": chosen.seed}
    options |= {"backend": settings.get("backend"), "label": f"fit {chosen.problem}"}
    release = dp.solve_mixture if "share" in options else dp.solve
    found = release(learner, data, promise, mechanism_of(settings.get("mechanism"), learner), **options)
    save(chosen, found.release if isinstance(found, dp.Mixture) else found, schema, out)


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
        options = settings["options"] | assignments(chosen.set) | varied
        candidates[name], codes = declare(chosen.problem, schema, options)
    first = next(iter(candidates.values()))
    if "m" in first.record.discrete:
        raise TemplateError("tune takes no mixtures: their components are learnt for each fit.")
    promise, out, data = opened(chosen, settings, schema, codes)
    found = dp.tune(
        candidates,
        data,
        promise,
        mechanism=mechanism_of(settings.get("mechanism"), first),
        backend=settings.get("backend"),
        size=settings.get("size"),
        budget=ledger(chosen, promise),
        seed=chosen.seed,
        **whitening_of(settings.get("whitening"), {}),
    )
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
    release = replace(release, schema=schema)
    release.save(out)
    if not release.private:
        print(f"dpconvex {chosen.name}: {release.status}", file=sys.stderr)
    proof = release.certificate
    if chosen.json:
        certificate = None if proof is None else proof.to_dict()
        print(json.dumps({"file": str(out), "private": release.private, "certificate": certificate}))
    else:
        print(f"{proof}\n\nSaved {out}: {release!r}")


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
    elif not chosen.json:
        sys.stdout.write(text.getvalue())
    if chosen.json:
        further = {name: list(column) for name, column in columns.items() if name != schema.label}
        told = {"label": schema.label, "predictions": columns[schema.label]}
        print(json.dumps(told | ({"columns": further} if further else {}), default=str))


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
    if chosen.json:
        told = {"error": found.error, "interval": list(found.interval), "records": found.records}
        print(json.dumps(told | {"private": found.spent is not None}))
    else:
        print(found)
