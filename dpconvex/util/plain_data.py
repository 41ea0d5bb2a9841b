"""Tests of numbers, dataclasses from JSON-able data, and texts in TOML syntax."""

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from dpconvex.errors import TemplateError

Readers = Mapping[type, Callable[[Any], Any]]
BARE = re.compile(r"[A-Za-z0-9_-]+")  # Keys that TOML takes without quotes


def is_real(value: object) -> bool:
    """Return whether a value is a real number of Python or NumPy (not a truth value) in the range of floats."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, float | np.integer | np.floating)


def is_whole(value: object, least: int) -> bool:
    """Return whether a value is a whole number of Python or NumPy, and at least `least`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def without_missing(value: Any) -> Any:
    """Return plain data without fields that are infinite or None."""
    if isinstance(value, dict):
        return {key: without_missing(item) for key, item in value.items() if item is not None and item != math.inf}
    return [without_missing(item) for item in value] if isinstance(value, list | tuple) else value


def json_numbers(data: Any) -> Any:
    """Return data with lists for arrays, and None for infinite numbers and NaN, which JSON does not have."""
    if isinstance(data, Mapping):
        return {name: json_numbers(value) for name, value in data.items()}
    data = data.tolist() if isinstance(data, np.ndarray | np.generic) else data
    if isinstance(data, list | tuple):
        return [json_numbers(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def build(kind: Any, value: Any, readers: Readers | None = None, where: str = "") -> Any:
    """Return a value of the type hint `kind`, or raise `TemplateError`; `readers` convert types with a form of their own."""
    if kind is Any or (type(value) is kind and kind in (bool, int, str)):
        return value
    if readers and kind in readers:
        return readers[kind](value)
    (origin, arguments), name = parts_of(kind), where or "it"

    def part(one: Any, item: Any, place: object) -> Any:
        return build(one, item, readers, f"{where}{place}".lstrip("."))

    if value is None and NoneType in arguments:
        return value
    if origin in (Union, UnionType):
        *others, last = (one for one in arguments if one is not NoneType)
        for one in others:
            with suppress(TemplateError):
                return part(one, value, "")
        return part(last, value, "")
    if is_dataclass(kind):
        cls: Any = kind
        known, needed = field_names(cls)
        if not isinstance(value, Mapping):
            raise TemplateError(f"{name} must hold the fields of a {cls.__name__}, not {value!r:.60}")
        if not needed <= set(value) <= known:
            raise TemplateError(f"{name} has other fields than a {cls.__name__}: {sorted(map(str, value))}")
        hints = hints_of(cls)
        return cls(**{key: part(hints[key], item, f".{key}") for key, item in value.items()})
    if origin is tuple and isinstance(value, list | tuple):
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        if len(value) == len(kinds):
            return tuple(part(one, item, f"[{k}]") for k, (one, item) in enumerate(zip(kinds, value, strict=True)))
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        key_kind, item_kind = arguments
        return {part(key_kind, key, ""): part(item_kind, item, f".{key}") for key, item in value.items()}
    number = value.item() if isinstance(value, np.generic) else value
    if kind is int and type(number) is int:
        return number
    fits = type(number) is float or (type(number) is int and abs(number) < 2**1023)
    if kind is float and fits and not math.isnan(number):
        return float(number)
    words = {float: "a number", int: "a whole number", str: "a text", bool: "a truth value", tuple: "a list"}
    raise TemplateError(f"{name} must be {words.get(origin or kind, kind)}, not {value!r:.60}")


hints_of = lru_cache(get_type_hints)
parts_of: Any = lru_cache(lambda kind: (get_origin(kind), get_args(kind)))


@lru_cache
def field_names(cls: Any) -> tuple[set[str], set[str]]:
    """Return the names of all fields of a dataclass, and of those without a default."""
    needed = {item.name for item in fields(cls) if item.default is MISSING and item.default_factory is MISSING}
    return {item.name for item in fields(cls)}, needed


def toml(value: Any) -> str:
    """Return a value in TOML syntax; texts, numbers, truth values and lists are written as in JSON."""
    if isinstance(value, Mapping):
        keys = {key: key if BARE.fullmatch(key) else toml(key) for key in value}
        return "{" + ", ".join(f"{keys[key]} = {toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
