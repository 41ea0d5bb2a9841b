"""Entries of columns: bounds, levels and labels as they are declared, and numbers, days and levels as they stand in a table."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.entries import TIMES

Array = NDArray[np.float64]
Where = Callable[[int], str]

DAY = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")


def interval(what: str, pair: Any) -> tuple[float, float]:
    """Return bounds as two numbers."""
    try:
        if isinstance(pair, str | set | frozenset | Mapping):  # which have no order
            raise TypeError
        lower, upper = (float(value) for value in pair)
    except OverflowError as error:
        raise TemplateError(
            f"the bounds of {what} must be finite; one is larger than floating-point numbers go."
        ) from error
    except (TypeError, ValueError) as error:
        levels = isinstance(pair, list | tuple) and all(isinstance(v, str) for v in pair)
        remedy = (
            f"levels are declared as Categorical({list(pair)!r}), or {{levels = {list(pair)!r}}} in a TOML file"
            if levels
            else "what holds no numbers is declared as Categorical, Ordered, Boolean or Date"
        )
        raise TemplateError(
            f"the bounds of {what} must be two numbers, a lower and an upper one, not {pair!r}; {remedy}."
        ) from error
    if not (lower < upper and math.isfinite(upper - lower)):
        raise TemplateError(f"the bounds of {what} must be finite, the lower one below the upper one, not {pair!r}.")
    return lower, upper


def levels_of(levels: Any, what: str = "levels") -> tuple[str, ...]:
    """Return declared levels, or labels, as texts, all different."""
    if isinstance(levels, str) or not isinstance(levels, Sequence):
        raise TemplateError(f"declare the {what} as a list, not {levels!r}.")
    texts = tuple(label_text(value) for value in levels)
    if len(texts) < 2 or len(set(texts)) != len(texts):
        raise TemplateError(f"declare at least two {what}, all of them different, not {list(texts)!r}.")
    return texts


def label_text(value: Any) -> str:
    """Return a declared label as the text that stands in a file."""
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise TemplateError(
            f"a label must be a text or an integer, not {value!r}; write it as a text, truth values as 'false' and 'true'."
        )
    return str(value)


def text_of(value: Any) -> str:
    """Return an entry as a text: whole numbers without a point, truth values in small letters."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def codes(
    where: Where, values: NDArray[Any], levels: Sequence[str], unknown: int | None, remedy: str = ""
) -> NDArray[np.int64]:
    """Return the place of each entry among the levels, or refuse what is none of them."""
    places: dict[str, int] = {level: place for place, level in enumerate(levels)}
    found = [places.get(text_of(value), unknown) for value in values.tolist()]
    if None in found:
        index = found.index(None)
        shown = ", ".join(levels[:12]) + (", ..." if len(levels) > 12 else "")
        raise DomainError(
            f"{where(index)}: the label {text_of(values.tolist()[index])!r} was not declared; declared are {shown}. "
            f"Declare all that may occur{remedy and f', {remedy}'}."
        )
    return np.array(found, dtype=np.int64)


def missing_entries(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Say which entries are missing: none at all, NaN, not a time, or an empty text."""
    if values.dtype.kind in "iufb":
        return values != values
    return np.array([is_missing(value) for value in values.tolist()], dtype=bool)


def is_missing(value: Any) -> bool:
    if value is None or isinstance(value, str):
        return value is None or not value.strip()
    return (isinstance(value, float) and value != value) or type(value).__name__ in ("NAType", "NaTType")


def describe_missing(value: Any) -> str:
    what = "the cell is empty" if isinstance(value, str) else f"{value!r} is not a finite number; the value is missing"
    return (
        f"{what}; remove such records or fill them in with public values, or declare what is missing: "
        "missing='indicator', or a public value."
    )


def parsed(where: Where, values: NDArray[Any]) -> Array:
    """Return the numbers that entries hold or spell."""
    numbers = np.empty(len(values))
    for index, value in enumerate(values.tolist()):
        try:
            if isinstance(value, (bool, *TIMES)) or (isinstance(value, str) and "_" in value):
                raise ValueError
            numbers[index] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise DomainError(not_a_number(where(index), value)) from None
    return numbers


def not_a_number(where: str, value: Any) -> str:
    return f"{where}: {value!r} is not a finite number; remove such records or fill them in with public values."


def day(value: Any) -> int | None:
    """Return the number of the day that an entry is or spells, perhaps with a time of it."""
    if isinstance(value, datetime.date):
        return value.toordinal()
    text = str(value.astype("datetime64[D]")) if isinstance(value, np.datetime64) else str(value)
    try:
        return datetime.datetime.fromisoformat(text).toordinal() if DAY.match(text) else None
    except ValueError:
        return None
