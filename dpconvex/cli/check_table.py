"""The command that says which rows of a table break which declaration.

What it prints is taken from the data: it is for their owner's eyes.  Nothing that releases anything calls it.
"""

import argparse
import math
from collections import defaultdict
from typing import Any

from dpconvex.cli.main import MISTAKEN, told
from dpconvex.data.schema import Schema
from dpconvex.data.schema_columns import Column
from dpconvex.data.tables import Values, number, objects, table_of
from dpconvex.errors import DomainError

SHOWN = 8  # Rows that are named for one fault


def check_table(chosen: argparse.Namespace) -> int:
    schema, table = Schema.load(chosen.schema), table_of(chosen.data)
    learnt = schema.learnt.columns if schema.learnt else {}  # which refuse nothing
    declared = {n: c for n, c in {**schema.features, schema.label: schema.target}.items() if n not in learnt}
    columns = table.columns([*declared], schema.known, schema.absent)
    rows = table.lines or range(table.size)
    found: list[dict[str, Any]] = [
        {"column": name, "fault": fault, "rows": [rows[k] for k in places], "values": listed(columns[name], places)}
        for name, column in declared.items()
        for fault, places in faults(column, columns[name], schema.clip).items()
    ]
    unit = "row" if table.lines is None else "line"
    broken = {row for item in found for row in item["rows"]}
    lines = [f"{chosen.data}: {len(rows)} records, {len(broken)} break a declaration."]
    for item in found:
        several = (item["rows"], item["values"])
        some, which = (", ".join(map(str, part[:SHOWN])) + ", ..." * (len(part) > SHOWN) for part in several)
        lines.append(f"  column {item['column']!r}, {unit}s {some}: {which} {item['fault']}")
    lines += ["This names rows and values: it is for the owner of the data, and not fit for release."] * bool(found)
    told(chosen, {"unit": unit, "records": len(rows), "faults": found}, "\n".join(lines))
    return MISTAKEN if found else 0


def listed(values: Values, places: list[int]) -> list[str]:
    """Return the different values at some places, numbers as they are written."""
    found = dict.fromkeys(values[places].tolist())
    return [repr(value) if isinstance(value, str) and math.isnan(number(value)) else str(value) for value in found]


def faults(column: Column, values: Values, clip: bool) -> dict[str, list[int]]:
    """Return what is wrong with the entries of a column, and the places of those that are."""
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
