"""The commands that evaluate a saved model, show its certificate and coefficients, write a report, and split a table."""

import argparse
import csv
import io
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import dpconvex as dp
from dpconvex.cli.commands import ledger, load_model, picture_at
from dpconvex.cli.declarations import CURVES, open_table
from dpconvex.cli.main import REFUSED, as_json, emit
from dpconvex.data.schema import Schema
from dpconvex.data.tables import Table, as_list, csv_separator, csv_table
from dpconvex.errors import NotConverged
from dpconvex.fitting.intervals import DOUBT
from dpconvex.fitting.statistics import Coefficients
from dpconvex.selection.report import RATES, effect_unit, effects, missing_charges, missing_intercept
from dpconvex.util.arguments import number_in, one_of, require
from dpconvex.util.markup import upward
from dpconvex.util.places import to_write, write_atomically

# Plots of an evaluation, and the labels that they are for
PICTURES = dict.fromkeys(("roc", "calibration"), "two labels") | {"residuals": "a number"}


def evaluate(chosen: argparse.Namespace) -> None:
    release, declared = load_model(chosen)
    schema = declared.schema
    inputs = {"the table": chosen.data, "the model": chosen.model, "the ledger": chosen.ledger}
    out = None if chosen.out is None else to_write(chosen.out, inputs)
    others = inputs | {"the evaluation": chosen.out}
    asked = {name: path for name in PICTURES if (path := getattr(chosen, name)) is not None}
    pictures = {name: picture_at(name, path, others) for name, path in asked.items()}
    count = 1 if schema.event else len(schema.labels or ())
    for name in pictures:  # before the charge
        said = f"--{name} is for {PICTURES[name]}, which {schema.label!r} is not, and for all measures (without --measures)."
        require(count == (0 if name == "residuals" else 2) and chosen.measures is None, said)
    table = open_table(chosen.data, chosen.decimal_comma, schema.privacy_unit)
    promise, whose = promised(chosen, release, schema, table)
    data = declared.table(table, empty=promise.adjacency == "add-remove")
    options = {
        "budget": ledger(chosen, promise, whose, schema.learnt),
        "entry": chosen.entry or f"evaluate {chosen.model}",
        "seed": chosen.seed,
    }
    if chosen.group is not None:
        data, options["groups"] = grouped(schema, table, chosen.group, data)
        options["group"] = GROUP
    options |= {"unit": whose, "measures": chosen.measures, "cells": chosen.cells, "target": chosen.target}
    number_in(0, 1).or_none.check("evaluate", **{"--threshold": chosen.threshold})
    found = dp.evaluate(declared.learner, release, data, promise, **options)
    if chosen.threshold is not None:
        found = replace(found, threshold=chosen.threshold)
    units = schema.label_bounds or found.bounds  # the schema scaled targets to between -1 and 1
    label = schema.label if chosen.target is None else f"{schema.label}[{chosen.target}]"
    found = replace(found, labels=tuple(schema.labels or ()), label=label, bounds=units)
    measured = {"error": found.first, "measure": found.measure.rstrip(":"), "interval": list(found.interval)}
    measured |= {"records": found.records, "private": found.private, "numbers": numbers(found)}
    measured |= {"groups": {name: numbers(own) for name, own in found.by_group().items()}} if found.groups else {}
    said = str(found)
    if schema.label_bounds is not None and "error" in found.summary():
        root = measured["root_mean_square"] = found.error**0.5
        known = f"{root:.4g} ({' to '.join(f'{max(end, 0.0) ** 0.5:.4g}' for end in found.error.interval)}, root mean square)"
        said += f"\nIn the units of {schema.label}: {known}" * (not found.error.is_undetermined)
    emit(chosen, measured, said)
    if out is not None:
        found.save(out)
    for name, path in pictures.items():
        getattr(dp.plots, name)(found).figure.savefig(path)


def promised(chosen: argparse.Namespace, release: dp.Release, schema: Schema, table: Any) -> tuple[dp.Privacy, Any]:
    """Return the guarantee from the options, for the model's privacy unit, and the unit of each record or None."""
    known = release.spent or (dp.Privacy(1.0) if release.certificate is None else release.certificate.privacy)
    further = {name: value for name in ("adjacency", "most", "keep") if (value := getattr(chosen, name)) is not None}
    promise = replace(known, epsilon=chosen.epsilon or 0.0, delta=getattr(chosen, "delta", None) or 0.0, **further)
    return promise, None if promise.unit is None else schema.units(table)


def numbers(found: dp.Evaluation) -> dict[str, Any]:
    """Return the summary of an evaluation by name, with intervals."""
    return {name: {"value": value, "interval": value.interval} for name, value in found.summary().items()}


GROUP = "group_of_a_record"  # Name of the field that --group adds


def grouped(schema: Schema, table: Any, name: str, data: Any) -> tuple[Any, tuple[str, ...]]:
    """Return data with each record's group, and the groups: the levels of a column, and "other" for other entries."""
    column: Any = schema.features.get(name)
    levels = tuple(map(str, getattr(column, "levels", ())))
    known = ", ".join(each for each, declared in schema.features.items() if hasattr(declared, "levels")) or "none"
    require(isinstance(table, Table), "--group reads one file, not a folder of several.")
    require(levels, f"--group takes a column that is declared with levels ({known}), not {name!r}.")
    places = map(column.reads, as_list(table.columns([name], absent=schema.absent)[name]))
    further = ("other",) if getattr(column, "other", False) or column.missing is not None else ()
    groups = [levels[int(place)] if place < len(levels) else "other" for place in places]  # NaN for a missing entry
    return {**data, GROUP: groups}, (*levels, *further)


def split(chosen: argparse.Namespace) -> None:
    """Split the lines of a CSV file between two files; all lines of a person go to the same file."""
    files = [to_write(path, {"the table": chosen.data}) for path in (chosen.out, chosen.test)]
    names = csv_table(Path(chosen.data), False).names  # raises for a damaged file, or for lines of another length
    with open(chosen.data, newline="", encoding="utf-8-sig") as stream:
        mark = csv_separator(stream)
        head, *lines = filter(None, csv.reader(stream, delimiter=mark))  # blank lines are skipped
    one_of(names).or_none.check(chosen.data, **{"--unit": chosen.privacy_unit})
    place = None if chosen.privacy_unit is None else names.index(chosen.privacy_unit)
    whose = len(lines) if place is None else [line[place].strip() for line in lines]
    given = {"test": chosen.part, "seed": chosen.seed, "adjacency": chosen.adjacency}
    parts = dp.split(whose, **{name: value for name, value in given.items() if value is not None})
    for file, rows in zip(files, parts, strict=True):
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=mark, lineterminator="\n").writerows([head, *(lines[row] for row in rows)])
        write_atomically(file, text.getvalue().encode("utf-8"))
    sizes = {str(file): len(rows) for file, rows in zip(files, parts, strict=True)}
    emit(chosen, sizes, "\n".join(f"{file}: {size} records" for file, size in sizes.items()))


def certificate(chosen: argparse.Namespace) -> None:
    """Print the certificate of a saved model, and bounds on the success of an attacker."""
    release = dp.Release.load(chosen.model)
    found, learnt = cast(Any, release.certificate), release.learnt
    require(found is not None, f"{chosen.model}: it has no certificate; {release.status}.")
    risks = {f"{rate:g}": 1 - found.risk(rate) for rate in RATES} if hasattr(found, "risk") and release.private else {}
    said = [
        f"  {rate} of the people outside the data finds at most {upward(part, 3)} of those inside"
        for rate, part in risks.items()
    ]
    data = as_json(found) | {"schema": learnt and learnt.to_dict(), "lines": dict(found.lines())}
    data |= {"not_private_because": release.not_private_because}
    text = [release.status, found.explain() if chosen.proof else str(found)]
    text += ["An attacker who wrongly suspects", *said] if said else []
    emit(chosen, data | {"risk": risks, "private": release.private, "status": release.status}, "\n".join(text))


def coefficients(chosen: argparse.Namespace) -> None:
    """Print released effects; with a table and an epsilon, charge for intervals and print them too."""
    out = None if chosen.out is None else to_write(chosen.out, {"the model": chosen.model, "the table": chosen.table})
    found, release = None, dp.Release.load(chosen.model)
    shown = next(effects(release, None), None) is not None
    said = f"{chosen.model}: only a model of one score, linear in named columns, has effects. Pass --table for intervals of"
    said += " all parameters, or read them in Python: dpconvex.Release.load(path).parameters."
    require(shown or chosen.table is not None, said)
    if chosen.table is not None:
        release, declared = load_model(chosen)
        table = open_table(chosen.table, chosen.decimal_comma, declared.schema.privacy_unit)
        promise, whose = promised(chosen, release, declared.schema, table)
        data, size = declared.table(table, empty=False), getattr(release.certificate, "size", None)
        entry = chosen.entry or f"intervals {chosen.model}"
        options = {"budget": ledger(chosen, promise, whose, release.learnt), "entry": entry, "seed": chosen.seed}
        options["size"] = size if promise.adjacency == "add-remove" else None
        with warnings.catch_warnings():
            if not chosen.anyway:
                warnings.filterwarnings("error", f".*{re.escape(DOUBT)}", dp.PrivacyWarning)
            try:
                found = dp.intervals(declared.learner, release, data, promise, unit=whose, **options)
            except dp.PrivacyWarning as error:
                raise NotConverged(f"{error} Nothing was charged; --anyway releases intervals regardless.") from None
        if out is not None:
            found.save(out)
    if found is not None and not shown:
        known = [(n, v, [low, high] if high >= low else None) for n, v, _, _, low, high in found.rows()]
        listed = [{"name": n, "estimate": v if e else None, "interval": e} for n, v, e in known]
        return emit(chosen, {"parameters": listed, "private": found.private}, str(found))
    rows = list(effects(release, found))
    ends = [[low, high] if found and high >= low else None for *_, low, high in rows]
    listed = [{"name": n, "change": c, "effect": v, "interval": e} for (n, c, v, *_), e in zip(rows, ends, strict=True)]
    wide, long = (max(map(len, texts)) for texts in list(zip(*rows, strict=True))[:2])
    reach = ("" if not found else f"  {own[0]:.4g} to {own[1]:.4g}" if own else "  not determined" for own in ends)
    lines = [] if release.private else [release.status]
    lines += [f"What each change adds to {(unit := effect_unit(release)[1])}:"]
    lines += [f"{n:<{wide}}  {c:<{long}}  {v:>9.4g}{text}" for (n, c, v, *_), text in zip(rows, reach, strict=True)]
    remedy = "no intervals: --table, --epsilon and --delta release them, if dp.intervals supports the learner"
    lines.append("intervals of 95 %" if found else remedy)
    lines += [note] if (note := missing_intercept(release)) else []
    emit(chosen, {"effects": listed, "unit": unit, "private": release.private, "note": note}, "\n".join(lines))


def report(chosen: argparse.Namespace) -> int:
    inputs = {name: getattr(chosen, name) for name in ("model", "evaluation", "coefficients", "ledger")}
    out = to_write(chosen.out, inputs)
    found = None if chosen.evaluation is None else dp.Evaluation.load(chosen.evaluation)
    known = None if chosen.coefficients is None else Coefficients.load(chosen.coefficients)
    budget = None if chosen.ledger is None else dp.Budget.open(chosen.ledger)
    release = dp.Release.load(chosen.model)
    kind = CURVES.get(release.source[0]) if release.source else None
    shown = getattr(dp, kind).read(release) if kind else release
    dp.report(shown, found, budget, out, coefficients=known, title=chosen.title)
    missing = [] if budget is None else missing_charges(release, budget)
    data = {"file": str(out), "private": release.private, "missing": missing}
    emit(chosen, data, f"Saved {out}: open it in a browser.")
    if missing:
        said = f"{chosen.ledger} does not list this model; missing: {', '.join(missing)}. The page says so, too"
        print(f"dpconvex report: {said}.", file=sys.stderr)
    return REFUSED if missing else 0
