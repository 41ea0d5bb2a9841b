"""The commands that draft a schema from a public table, learn a schema privately, check a schema, or check a table by it.

The output of `check_table` is not private, and only for the owner of the data.  No command that releases results calls it.
"""

import argparse
import math
import tomllib
from collections import defaultdict
from typing import Any

import dpconvex as dp
from dpconvex.accounting.budget import charge_schema
from dpconvex.cli.commands import ledger, privacy_of, writer
from dpconvex.cli.declarations import open_table
from dpconvex.cli.main import MISTAKEN, emit
from dpconvex.data.draft import draft
from dpconvex.data.schema_columns import Column
from dpconvex.data.tables import Table, Values, identifiers_of, objects, reads_as_missing, to_float
from dpconvex.errors import DomainError, DPConvexError, NotPrivate
from dpconvex.model.people import identifier_codes

SHOWN = 8  # Number of rows printed for one fault


def schema(chosen: argparse.Namespace) -> None:
    if chosen.what != "check":
        if chosen.label is None:
            raise DPConvexError(f"schema {chosen.what} needs --label COLUMN, the column to be predicted.")
        write = writer(chosen.out, {"the table": chosen.file, "the ledger": chosen.ledger})
        table = open_table(chosen.file, chosen.decimal_comma, chosen.privacy_unit)
        text = draft(table, chosen.label) if chosen.what == "draft" else learn(chosen, table)
        if chosen.out is not None or not chosen.json:
            write(text)
        head = "\n".join(line[2:] for line in text.splitlines() if line.startswith("# "))  # the cost, or a warning
        if chosen.out is not None or chosen.json:
            emit(chosen, {"schema": tomllib.loads(text)}, f"{chosen.out}: the schema was written.\n{head}")
        return
    found = dp.Schema.load(chosen.file)
    charge_schema(None, learnt := found.learnt)  # raises if the cost was edited
    paid = "no cost is stated: bounds and levels must be public knowledge" if learnt is None else learnt.status
    if learnt is not None and any(one.not_private_because for one in learnt.costs):
        raise NotPrivate(learnt.status, chosen.file, "learn the schema without a seed")
    names, count, bound = found.feature_names, len(found.features), found.norm_bound
    sound = f"{chosen.file}: sound; {count} columns become {len(names)} features,\nrecords are divided by {bound:.4g}"
    said = f"{sound}, the largest possible length; {found.label!r} is predicted.\n{paid}"
    data = {"columns": count, "features": names, "norm bound": bound, "label": found.label}
    emit(chosen, data | {"learnt": learnt and learnt.to_dict()}, said)


def learn(chosen: argparse.Namespace, table: Any) -> str:
    """Learn a schema under the guarantee of the options; return the text of its TOML file, with the cost."""
    if chosen.epsilon is None:
        raise DPConvexError("schema learn needs --epsilon E and --delta D, the cost of the schema.")
    promise, declared = privacy_of(chosen), {"labels": chosen.labels, "label_bounds": chosen.label_bounds}
    unit = chosen.privacy_unit
    whose = table.columns([unit])[unit] if unit is not None and isinstance(table, Table) else None
    paid = {"unit": unit, "budget": ledger(chosen, promise, whose), "seed": chosen.seed}
    paid["entry"] = chosen.entry or "learn_schema"
    known = {name: kind for name, _, kind in (text.rpartition("=") for text in chosen.known)}
    found = dp.learn_schema(
        table, promise, label=chosen.label, known=known, ignore=chosen.ignore or (), **declared, **paid
    )
    return "\n".join([*(f"# {line}" for line in str(found.learnt).splitlines()), found.to_toml()])


# A table by its schema


def check_table(chosen: argparse.Namespace) -> int:
    schema = dp.Schema.load(chosen.schema)
    table = open_table(chosen.data, chosen.decimal_comma, schema.privacy_unit)
    learnt = schema.learnt.columns if schema.learnt else {}  # learnt columns accept all values
    declared = {n: c for n, c in {**schema.features, schema.label: schema.target}.items() if n not in learnt}
    declared |= {name: column for name, (_, column) in schema.further.items()}
    columns = table.columns([*declared], schema.known, schema.absent)
    rows = table.lines or range(table.size)
    found: list[dict[str, Any]] = [
        {"column": name, "fault": fault, "rows": [rows[k] for k in places], "values": listed(columns[name], places)}
        for name, column in declared.items()
        for fault, places in faults(column, columns[name], schema.clip).items()
    ]
    if (person := schema.privacy_unit) is not None:
        whose = table.columns([person])[person]
        without = [rows[k] for k, one in enumerate(identifiers_of(whose)) if reads_as_missing(one)]
        try:
            identifier_codes(whose, person)
        except DomainError as error:
            found.append({"column": person, "fault": str(error), "rows": without, "values": []})
    unit = "row" if table.lines is None else "line"
    broken = {row for item in found for row in item["rows"]}
    lines = [f"{chosen.data}: {len(rows)} records, {len(broken)} break a declaration."]
    for item in found:
        several = (item["rows"], item["values"])
        some, which = (", ".join(map(str, part[:SHOWN])) + ", ..." * (len(part) > SHOWN) for part in several)
        where = f", {unit}s {some}" * bool(some)
        lines.append(f"  column {item['column']!r}{where}:{' ' * bool(which)}{which} {item['fault']}")
    lines += ["This lists rows and values: it is only for the owner of the data. Do not release it."] * bool(found)
    emit(chosen, {"unit": unit, "records": len(rows), "faults": found}, "\n".join(lines))
    return MISTAKEN if found else 0


def listed(values: Values, places: list[int]) -> list[str]:
    """Return the distinct values at these indices as texts; texts that are not numbers are quoted."""
    found = dict.fromkeys(values[places].tolist())
    return [repr(value) if isinstance(value, str) and math.isnan(to_float(value)) else str(value) for value in found]


def faults(column: Column, values: Values, clip: bool) -> dict[str, list[int]]:
    """Return the indices of a column's invalid entries, by fault."""
    found: dict[str, list[int]] = defaultdict(list)
    try:
        column.encode(str, values, clip)
    except DomainError:
        known: dict[Any, str] = {}
        for index, value in enumerate(values.tolist()):
            key = type(value), repr(value)
            if key not in known:
                known[key] = fault(column, value, clip)
            if known[key]:
                found[known[key]].append(index)
    return found


def fault(column: Column, value: Any, clip: bool) -> str:
    try:
        column.encode(lambda index: "", objects([value]), clip)
    except DomainError as error:
        said = str(error).removeprefix(": ")
        return next((said.removeprefix(v).lstrip() for v in (repr(value), str(value)) if said.startswith(v)), said)
    return ""
