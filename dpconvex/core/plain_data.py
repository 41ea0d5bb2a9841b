"""Numbers and objects from outside: what kind of number an argument is, and dataclasses from plain data, as JSON has them."""

import math
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from dpconvex.errors import TemplateError

Readers = Mapping[type, Callable[[Any], Any]]


def is_real(value: object) -> bool:
    """Whether a value is a real number of Python or NumPy (a truth value is none), no larger than floating-point numbers go."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, float | np.integer | np.floating)


def is_whole(value: object, least: int) -> bool:
    """Whether a value is a whole number of Python or NumPy, and large enough."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def built(kind: Any, value: Any, readers: Readers | None = None, where: str = "") -> Any:
    """Return what a type hint asks for, or raise `TemplateError`; `readers` read types that have a form of their own."""
    readers = readers or {}
    if kind in readers:
        return readers[kind](value)
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        refusals = []
        for one in arguments:
            if one is not type(None):
                try:
                    return built(one, value, readers, where)
                except TemplateError as error:
                    refusals.append(error)
        raise refusals[0]
    if is_dataclass(kind):
        return object_of(kind, value, readers, where)  # type: ignore[arg-type]
    if origin is tuple and isinstance(value, list | tuple):
        if arguments[-1] is ...:
            return tuple(built(arguments[0], item, readers, f"{where}[{k}]") for k, item in enumerate(value))
        if len(value) == len(arguments):
            return tuple(
                built(one, item, readers, f"{where}[{k}]")
                for k, (one, item) in enumerate(zip(arguments, value, strict=True))
            )
    if origin in (dict, Mapping) and isinstance(value, Mapping):
        return {
            built(arguments[0], key, readers, f"a name in {where}"): built(
                arguments[1], item, readers, f"{where}.{key}"
            )
            for key, item in value.items()
        }
    number = value.item() if isinstance(value, np.generic) else value
    if kind is int and type(number) is int:
        return number
    fits = type(number) is float or (type(number) is int and abs(number) < 2**1023)
    if kind is float and fits and not math.isnan(number):
        return float(number)
    if kind in (bool, str) and type(value) is kind:
        return value
    raise TemplateError(f"{where or 'it'} must be {getattr(kind, '__name__', kind)}, not {value!r:.60}")


def object_of(kind: type, value: Any, readers: Readers, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise TemplateError(f"{where or 'it'} must hold the fields of a {kind.__name__}, not {value!r:.60}")
    needed = {item.name for item in fields(kind) if item.default is MISSING and item.default_factory is MISSING}
    if not needed <= set(value) <= {item.name for item in fields(kind)}:
        raise TemplateError(f"{where or 'it'} has other fields than a {kind.__name__}: {sorted(map(str, value))}")
    hints = hints_of(kind)
    return kind(
        **{name: built(hints[name], item, readers, f"{where}.{name}".lstrip(".")) for name, item in value.items()}
    )


hints_of = lru_cache(get_type_hints)
