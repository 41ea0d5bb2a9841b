"""Checks of arguments: conditions, and kinds of values with their types and ranges."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from dpconvex.errors import DPConvexError, TemplateError, shown, with_article
from dpconvex.util.plain_data import is_real, is_whole

# Errors of NumPy for values that are no array of numbers, and errors of a reader of JSON for other files.
NOT_AN_ARRAY = TypeError, ValueError, OverflowError
NOT_JSON = *NOT_AN_ARRAY, RecursionError


def require(fits: object, said: str, kind: type[DPConvexError] = TemplateError) -> None:
    """Raise an error with the message `said` unless `fits` is true."""
    if not fits:
        raise kind(said)


def refuse(faults: Iterable[str], kind: type[DPConvexError] = TemplateError) -> None:
    """Raise an error with the first of the messages, if there is one."""
    for said in faults:
        raise kind(said)


@contextmanager
def recast(said: str, *caught: type[Exception], kind: type[DPConvexError] = DPConvexError) -> Iterator[None]:
    """Context that replaces errors by an error with the message `said`, followed by the original message."""
    try:
        yield
    except caught as error:
        raise kind(f"{said} ({error}).") from error


@dataclass(frozen=True)
class Kind:
    """A kind of argument: its description in messages, and a test.

    >>> FRACTION.check("ResidualNoise", share=2.0)
    Traceback (most recent call last):
    dpconvex.errors.TemplateError: ResidualNoise: share must be a number between 0 and 1, not 2.0.
    """

    wanted: str
    fits: Callable[[Any], bool]

    def check(self, owner: str, remedy: str = "", /, **values: object) -> None:
        """Raise `TemplateError` for the first value that is not of this kind; the message names `owner` and the argument."""
        for name, value in values.items():
            if not self.fits(value):
                said = f"{name} must be {self.wanted}, not {shown(value)}. {remedy}".strip()
                raise TemplateError(f"{owner}: {said}" if owner else said)

    @property
    def or_none(self) -> "Kind":
        return Kind(f"{self.wanted}, or None", lambda value: value is None or self.fits(value))


def check_fields(subject: object, owner: str | None = None, **kinds: Kind) -> None:
    """Check attributes of an object against their kinds; messages name the class of the object, or `owner`."""
    for name, kind in kinds.items():
        kind.check(type(subject).__name__ if owner is None else owner, **{name: getattr(subject, name)})


def number(wanted: str, fits: Callable[[Any], bool]) -> Kind:
    """Return the kind of real numbers that pass a test; NaN passes no comparison."""
    return Kind(wanted, lambda value: is_real(value) and fits(value))


def number_in(low: float, high: float) -> Kind:
    return number(f"a number from {low:g} to {high:g}", lambda value: low <= value <= high)


def between(low: float, high: float) -> Kind:
    return number(f"a number between {low:g} and {high:g}", lambda value: low < value < high)


def whole(least: int, most: float = math.inf) -> Kind:
    wanted = "a positive integer" if least == 1 else f"an integer, {least} or above"
    wanted += "" if most == math.inf else f", at most {most:,}"
    return Kind(wanted, lambda value: is_whole(value, least) and value <= most)


def one_of(values: Collection[str]) -> Kind:
    listed = ", ".join(map(repr, values)) or "none"
    return Kind(f"one of {listed}", lambda value: isinstance(value, str) and value in values)


def instance(kind: type, example: str = "") -> Kind:
    name = f"cvxpy.{kind.__name__}" if kind.__module__.startswith("cvxpy.") else kind.__name__
    return Kind(f"{with_article(name)}{example and ', '}{example}", lambda value: isinstance(value, kind))


REAL = number("a number", lambda _: True)
BELOW_ONE = number("a number from 0 to below 1", lambda value: 0 <= value < 1)
POSITIVE = number("a positive, finite number", lambda value: 0 < value < math.inf)
NOT_NEGATIVE = number("a finite number, 0 or above", lambda value: 0 <= value < math.inf)
FRACTION, COUNT = between(0, 1), whole(1)
SWITCH = Kind("True or False", lambda value: isinstance(value, bool))
TRUTH = Kind(SWITCH.wanted, lambda value: isinstance(value, bool | np.bool_))
TEXT = Kind("a non-empty text", lambda value: isinstance(value, str) and value != "")
PATH = Kind("a text or a path", lambda value: isinstance(value, str | PathLike))
