"""Draft of a schema: types, bounds and levels are read off data that must be public."""

import datetime
import math
import re
from pathlib import Path
from typing import Any

from dpconvex.data.schema import Schema
from dpconvex.data.schema_columns import Boolean, Categorical, Column, Date, Numeric
from dpconvex.data.tables import is_missing, table_of, text_of, to_float, to_ordinal
from dpconvex.errors import DomainError
from dpconvex.util.arguments import require

# A column of numbers with at most FEW values may be categorical, and texts with more than MANY levels are not.
# UNKNOWN texts usually stand for a missing value. Over TEXTS texts or WHOLE integers, NEARLY all different, name the records.
FEW, MANY, UNKNOWN = 2, 200, ("?", "NA", "N/A")
NEARLY, TEXTS, WHOLE = 0.95, 10, 50
PADDED, COMMAS = re.compile(r"[+-]?0\d+"), re.compile(r"[+-]?\d*(,\d+)+(\.\d+)?")
HEAD = """# A draft, read off {name}. Use it only if that file is public or synthetic: bounds and levels that are read off
# private data reveal data at no counted cost. Widen every bound until it holds by definition, and complete the levels.
# Columns that look like identifiers, or have too many levels, are ignored; declare a column that is a measurement.
"""

ORDER = "# Labels are in alphabetical order; write grades (of ordinal_regression) from the lowest.\n"


def draft(data: Any, label: str) -> str:
    """Return the text of a TOML schema for a public table with the column `label` as its label."""
    table = table_of(data)
    names = [name for name in table.names if name]  # an index has no name
    columns = {name: values.tolist() for name, values in table.columns([*names, label]).items()}
    marked = {entry for values in columns.values() for entry in values if entry in UNKNOWN}
    present = {n: [v for v in values if not is_missing(v) and v not in UNKNOWN] for n, values in columns.items()}
    found = {name: column_from(name, present[name], len(values)) for name, values in columns.items()}
    target = found.pop(label)
    features = {n: column for n, column in found.items() if column is not None and not identifies(present[n], column)}
    if target is None or not features:
        raise DomainError(f"no schema fits the columns {names}: the label or all features have too many levels.")
    bounds = (target.lower, target.upper) if isinstance(target, Numeric) else None
    labels = None if bounds else levels_in(present[label])
    ignored = [name for name in found if name not in features] or None
    schema = Schema(features, label, labels, False, bounds, ignored, sorted(marked))
    name = Path(table.title).name
    return HEAD.format(name=name) + ORDER * bool(labels) + schema.to_toml()


def identifies(present: list[Any], column: Column) -> bool:
    """Return whether a public column identifies the records: its entries are texts or integers, and nearly all differ."""
    whole = isinstance(column, Numeric) and all(to_float(value).is_integer() for value in present)
    least = WHOLE if whole else TEXTS if isinstance(column, Categorical) else len(present)
    return len(levels_in(present)) > max(least, NEARLY * len(present))


def levels_in(present: list[Any]) -> list[str]:
    return sorted(set(map(text_of, present)))


def column_from(name: str, present: list[Any], records: int) -> Column | None:
    """Return a declaration read off public entries; None for a column with one level, or with texts of more than MANY levels."""
    levels, missing = levels_in(present), "indicator" if len(present) < records else None
    require(present, f"column {name!r}: there are no entries to read a declaration from.", DomainError)
    for no, yes in (("0", "1"), ("false", "true"), ("no", "yes")):
        if {level.casefold() for level in levels} == {no, yes}:
            return Boolean(no, yes, missing)
    numbers, days = ([read(value) for value in present] for read in (to_float, to_ordinal))
    texts = [value for value in present if isinstance(value, str)]
    padded = any(PADDED.fullmatch(value) for value in texts)  # codes, such as postal codes
    if any(map(COMMAS.fullmatch, texts)) and all(math.isfinite(to_float(str(v).replace(",", ""))) for v in present):
        raise DomainError(f"column {name!r} has numbers with commas: write decimal points, and no commas.")
    if all(map(math.isfinite, numbers)) and len(levels) > FEW and not padded:
        return Numeric(min(numbers), max(numbers), missing)
    if all(map(math.isfinite, days)) and len(levels) > 1:
        first, last = (datetime.date.fromordinal(int(extreme(days))) for extreme in (min, max))
        return Date(first, last, missing)
    return Categorical(levels, missing=missing) if 1 < len(levels) <= MANY else None
