"""A first draft of a schema, from data that are public: what it says is read off them."""

import datetime
import math
from pathlib import Path
from typing import Any

from dpconvex.errors import DomainError
from dpconvex.language.schema import Schema
from dpconvex.language.schema_columns import Boolean, Categorical, Column, Date, Numeric
from dpconvex.language.tables import day, is_missing, number, table_of, text_of

# A column of numbers with at most so many different ones may be a category.
FEW = 2
# A column of texts with more levels than this is not offered as a category.
MANY = 200
# More texts than this, of which no two are equal, name the records.
DISTINCT = 10
# Texts that usually stand for a missing value.
UNKNOWN = ("?", "NA", "N/A")
HEAD = """# A draft that was read off {name}. Use it only if that file is public, or synthetic: bounds and levels that are read
# off private data are answers that nobody paid for. Widen every bound to what holds by definition, and complete the levels.
"""


def draft(data: Any, label: str) -> str:
    """Return a TOML file that declares a public table.

    Parameters
    ----------
    data : data frame, mapping of str to column, or path
        Public data: its ranges and levels are what the draft says.
    label : str
        The column to be predicted.

    Raises
    ------
    DomainError
        If there is no such column, or a column has nothing in it.
    """
    table = table_of(data)
    names = [name for name in table.names if name]  # an index has none
    table.check_names(names, None)
    marked, columns = table.columns(names), table.columns(names, UNKNOWN)
    if label not in columns:
        raise DomainError(f"there is no column {label!r}; the columns are {', '.join(names)}.")
    found = {name: column_from(name, values.tolist()) for name, values in columns.items()}
    target = found.pop(label)
    ignored = [name for name, column in found.items() if column is None]
    features = {name: column for name, column in found.items() if column is not None}
    if target is None or not features:
        raise DomainError(f"the columns {names} make no schema: the label or all features have too many levels.")
    said: dict[str, Any] = {"labels": list(target.levels)} if isinstance(target, Categorical) else {}
    if isinstance(target, Boolean):
        said = {"labels": [target.false, target.true]}
    elif isinstance(target, Numeric):
        said = {"label_bounds": (target.lower, target.upper)}
    absent = [mark for mark in UNKNOWN if any(mark in values.tolist() for values in marked.values())]
    schema = Schema(features, label, ignore=ignored or None, absent=absent, **said)
    name = Path(data).name if isinstance(data, str | Path) else "a table"
    return HEAD.format(name=name) + schema.to_toml()


def column_from(name: str, values: list[Any]) -> Column | None:
    """Return the declaration that a public column suggests; None for one that looks like an identifier."""
    present = [value for value in values if not is_missing(value)]
    if not present:
        raise DomainError(f"column {name!r}: there is no entry to read a declaration off.")
    missing = "indicator" if len(present) < len(values) else None
    numbers = [number(value) for value in present]
    levels = sorted({text_of(value).strip() for value in present})
    for no, yes in (("false", "true"), ("no", "yes")):
        if {level.casefold() for level in levels} == {no, yes}:
            return Boolean(no, yes, missing)
    if all(map(math.isfinite, numbers)) and len(levels) > FEW:
        return Numeric(*round_outward(numbers), missing)
    days = [day(value) for value in present]
    if all(map(math.isfinite, days)) and len(levels) > 1:
        first, last = (datetime.date.fromordinal(int(extreme(days))) for extreme in (min, max))
        return Date(first, last, missing)
    if len(levels) < 2 or len(levels) > MANY or DISTINCT < len(levels) == len(present):
        return None
    return Categorical(levels, missing=missing)


def round_outward(values: list[float]) -> tuple[float, float]:
    """Return bounds of two digits about the numbers.

    >>> round_outward([-1.23e-15, 4.56e-15])
    (-1.3e-15, 4.6e-15)
    """
    low, high = min(values), max(values)
    unit = 10.0 ** (math.floor(math.log10(max(high - low, abs(high), abs(low), 1e-300))) - 1)
    low, high = math.floor(low / unit) * unit, math.ceil(high / unit) * unit
    return float(f"{low:.12g}"), float(f"{max(high, low + unit):.12g}")
