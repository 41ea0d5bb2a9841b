"""The commands about a saved model: how good it is, and for whom."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import dpconvex as dp
from dpconvex.cli.commands import ledger, model_of
from dpconvex.cli.main import told
from dpconvex.data.schema import Schema
from dpconvex.data.tables import table_of, text_of
from dpconvex.errors import TemplateError
from dpconvex.util.places import writable

PICTURES = ("roc", "calibration", "residuals")  # of an evaluation


def evaluate(chosen: argparse.Namespace) -> None:
    release, declared = model_of(chosen)
    schema = declared.schema
    inputs = {"the table": chosen.data, "the model": chosen.model, "the ledger": chosen.ledger}
    out = None if chosen.out is None else writable(chosen.out, inputs)
    pictures = {name: writable(path, inputs) for name in PICTURES if (path := getattr(chosen, name)) is not None}
    known = release.spent or (dp.Privacy(1.0) if release.certificate is None else release.certificate.privacy)
    promise = replace(known, epsilon=chosen.epsilon, delta=0.0, adjacency=chosen.adjacency or known.adjacency)
    whose = None if promise.unit is None else schema.units(chosen.data)
    data = declared.table(chosen.data, empty=promise.adjacency == "add-remove")
    options = {"budget": ledger(chosen, promise), "entry": f"evaluate {chosen.model}", "seed": chosen.seed}
    if chosen.group is not None:
        data, options["groups"] = grouped(schema, chosen.data, chosen.group, data)
        options["group"] = GROUP
    found = dp.evaluate(declared.learner, release, data, promise, unit=whose, **options)
    found = replace(found, labels=tuple(schema.labels or ()), label=schema.label)
    measured = {"error": found.error, "measure": found.measure.rstrip(":"), "interval": list(found.interval)}
    measured |= {"records": found.records, "private": found.spent is not None, "numbers": numbers(found)}
    measured |= {"groups": {name: numbers(own) for name, own in found.by_group().items()}} if found.groups else {}
    said = str(found)
    if schema.label_bounds is not None:  # which became -1 and 1
        lower, upper = schema.label_bounds
        root = measured["root_mean_square"] = found.error**0.5 * (upper - lower) / 2
        said += f"\nIn the units of {schema.label}: {root:.4g} (root mean square)"
    for name, path in pictures.items():
        getattr(dp.plots, name)(found).figure.savefig(path)
    told(chosen, measured, said)
    if out is not None:
        found.save(out)


def numbers(found: dp.Evaluation) -> dict[str, Any]:
    """Return the usual numbers of an evaluation, with their intervals."""
    return {name: {"value": value, "interval": value.interval} for name, value in found.summary().items()}


GROUP = "group_of_a_record"  # the field that --group adds


def grouped(schema: Schema, path: str, name: str, data: Any) -> tuple[Any, tuple[str, ...]]:
    """Return data with the group of each record, and the groups: levels of a declared column, and "other" for what is none."""
    levels = tuple(map(str, getattr(schema.features.get(name), "levels", ())))
    if not levels or Path(path).is_dir():
        raise TemplateError(f"--group takes a column of one table that is declared with levels, not {name!r}.")
    entries = (text_of(entry) for entry in table_of(path).columns([name])[name].tolist())
    return {**data, GROUP: [entry if entry in levels else "other" for entry in entries]}, (*levels, "other")
