"""Commands that use a saved model: predict, which costs nothing, and measure its error privately, which is paid for."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Sequence
from typing import Any, TextIO

import numpy as np

import dpconvex as dp
from dpconvex.apps.settings import assignments, declare, ledger, named, privacy, say, table
from dpconvex.errors import TemplateError
from dpconvex.language.schema import Schema
from dpconvex.language.tables import table_of
from dpconvex.language.template import Template
from dpconvex.release.outputs import writable, write_whole


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
    return dp.Release.load(chosen.model, template=learner), learner, saved.schema, codes


def predict(chosen: argparse.Namespace) -> None:
    """Write the predictions of a saved release, one line for each record."""
    release, _, schema, codes = model_of(chosen)
    inputs = {"the table": chosen.data, "the model": chosen.model, "the problem": chosen.problem}
    out = None if chosen.out is None else writable(chosen.out, inputs)
    X, _ = schema.encode(chosen.data, labelled=False, clip=chosen.clip)
    columns: dict[str, Sequence[Any]] = {}
    if chosen.id is not None:
        columns[chosen.id] = passed_through(chosen.data, chosen.id)
    if chosen.id == schema.label:
        raise TemplateError(f"--id names a column to pass through, and {schema.label!r} is the one that is predicted.")
    found = release.predict(X)
    columns[schema.label] = (
        schema.decode_target(found).tolist()
        if schema.labels is None
        else [named(value, codes, schema) for value in found.tolist()]
    )
    if chosen.scores:
        columns |= per_label(f"score of {schema.label}", release.decision_function(X), schema, codes)
    if chosen.probabilities:
        columns |= per_label(f"probability of {schema.label}", release.predict_proba(X), schema, codes)
    if out is not None:
        content = io.StringIO(newline="")
        write(content, columns)
        write_whole(out, content.getvalue().encode("utf-8"))
    elif not chosen.json:
        write(sys.stdout, columns)
    if chosen.json:
        further = {name: list(column) for name, column in columns.items() if name != schema.label}
        told = {"label": schema.label, "predictions": columns[schema.label]}
        print(json.dumps(told | ({"columns": further} if further else {}), default=str))


def passed_through(data: str, name: str) -> list[Any]:
    table = table_of(data)
    table.check_names([name], None)
    return list(table.column(name).tolist())


def per_label(title: str, values: Any, schema: Schema, codes: list[Any]) -> dict[str, Sequence[float]]:
    """Return scores as columns, one for each label if there is one for each."""
    array = np.asarray(values, dtype=float)
    if array.ndim == 1 or schema.labels is None:
        return {title: array.tolist()}
    return {f"{title} {named(code, codes, schema)}": array[:, place].tolist() for place, code in enumerate(codes)}


def evaluate(chosen: argparse.Namespace) -> None:
    """Measure the error of a saved release on a table, privately."""
    release, learner, schema, codes = model_of(chosen)
    kept = release.spent.adjacency if release.spent is not None else None
    promise = privacy(chosen.epsilon, None, chosen.adjacency or kept)
    say(chosen, f"reading {chosen.data}")
    data = table(chosen.data, schema, codes, empty=promise.adjacency == "add-remove", clip=chosen.clip)
    found = dp.evaluate(
        learner,
        release,
        data,
        promise,
        budget=ledger(chosen, promise),
        name=f"evaluate {chosen.model}",
        seed=chosen.seed,
    )
    if chosen.json:
        told = {"error": found.error, "interval": list(found.interval), "records": found.records}
        print(json.dumps(told | {"private": found.spent is not None}))
    else:
        print(found)


def write(stream: TextIO, columns: dict[str, Sequence[Any]]) -> None:
    csv.writer(stream, lineterminator="\n").writerows([list(columns), *zip(*columns.values(), strict=True)])
