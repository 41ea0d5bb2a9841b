"""Columns of a table as they are publicly known: numbers between bounds, ordered grades, categories, yes or no, dates.

A column becomes one or more features, each record by itself, and says how much it can add to the squared norm of a record.
Numbers, grades and dates become one feature between -1/2 and 1/2; a category becomes one feature per level, of which exactly one
is 1.  A missing value is an error, or a public value, or has a feature of its own.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.schema_entries import (
    Where,
    codes,
    day,
    describe_missing,
    interval,
    label_text,
    levels_of,
    missing_entries,
    not_a_number,
    parsed,
    text_of,
)

Array = NDArray[np.float64]

INDICATOR = "indicator"
CLIP = "say clip=True (--clip) to move such values to the nearest bound"


class Column(Protocol):
    """What a schema asks of a column."""

    def names(self, name: str) -> list[str]: ...

    @property
    def square(self) -> float:
        """Bound the sum of squares of the features."""
        ...

    def encode(self, where: Where, values: NDArray[Any], clip: bool) -> Array:
        """Return the features of each entry, shape (n, features); `where` says where an entry stands."""
        ...

    def to_dict(self) -> Any:
        """Return the declaration as a TOML file spells it."""
        ...


class OneNumber:
    """What columns share that become one number between -1/2 and 1/2, and perhaps a feature for missing values."""

    missing: Any

    def names(self, name: str) -> list[str]:
        """Name the features that a column becomes."""
        return [name, f"{name}: missing"] if self.missing == INDICATOR else [name]

    @property
    def square(self) -> float:
        """Bound the sum of squares of the features: a record has the number or lacks it, and both count the same."""
        return 0.25

    def encode(self, where: Where, values: NDArray[Any], clip: bool) -> Array:
        """Return the features of each entry, shape (n, features)."""
        absent = missing_entries(values)
        if absent.any() and self.missing is None:
            first = int(np.flatnonzero(absent)[0])
            raise DomainError(f"{where(first)}: {describe_missing(values[first])}")
        encoded = np.zeros(len(values))
        present = np.flatnonzero(~absent)
        encoded[present] = self._numbers(lambda i: where(int(present[i])), values[present], clip)
        if self.missing is None:
            return encoded[:, None]
        if self.missing == INDICATOR:
            return np.column_stack([encoded, absent / 2])
        encoded[absent] = self._numbers(lambda i: "missing", np.array([self.missing], dtype=object), False)
        return encoded[:, None]

    def _numbers(self, where: Where, values: NDArray[Any], clip: bool) -> Array:
        raise NotImplementedError

    def _spelled(self, key: str, value: Any) -> dict[str, Any]:
        return {key: value} if self.missing is None else {key: value, "missing": self.missing}


@dataclass(frozen=True)
class Numeric(OneNumber):
    """A number between public bounds.

    Parameters
    ----------
    lower, upper : float
        Bounds that hold by definition, known without the data.
    missing : None, "indicator" or float
        What a missing value is: an error, a feature of its own, or this public number.

    Raises
    ------
    TemplateError
        If the bounds are not finite, or not in order.

    Examples
    --------
    >>> import numpy as np
    >>> Numeric(0, 100, missing="indicator").encode(str, np.array([0, 75, None], dtype=object), False)
    array([[-0.5 ,  0.  ],
           [ 0.25,  0.  ],
           [ 0.  ,  0.5 ]])
    """

    lower: float
    upper: float
    missing: str | float | None = None

    def __post_init__(self) -> None:
        lower, upper = interval("a number", (self.lower, self.upper))
        object.__setattr__(self, "lower", lower)
        object.__setattr__(self, "upper", upper)
        if self.missing is not None and self.missing != INDICATOR:
            check_missing(self, self.missing)

    def _numbers(self, where: Where, values: NDArray[Any], clip: bool) -> Array:
        numbers = values.astype(float) if values.dtype.kind in "iuf" else parsed(where, values)
        outside = ~((numbers >= self.lower) & (numbers <= self.upper))
        if outside.any():
            first = int(np.flatnonzero(outside)[0])
            if not math.isfinite(numbers[first]):
                raise DomainError(not_a_number(where(first), values[first]))
            if not clip:
                raise DomainError(
                    f"{where(first)}: {values[first]} is outside the declared bounds {self.lower:g} to {self.upper:g}; "
                    f"declare bounds that hold by definition, or {CLIP}."
                )
            if not np.isfinite(numbers).all():
                first = int(np.flatnonzero(~np.isfinite(numbers))[0])
                raise DomainError(not_a_number(where(first), values[first]))
        return (np.clip(numbers, self.lower, self.upper) - self.lower) / (self.upper - self.lower) - 0.5

    def to_dict(self) -> Any:
        """Return the declaration as a TOML file spells it."""
        pair = [self.lower, self.upper]
        return pair if self.missing is None else self._spelled("bounds", pair)


@dataclass(frozen=True)
class Ordered(OneNumber):
    """Grades in order, evenly spaced.

    Parameters
    ----------
    levels : sequence of str or int
        From the lowest to the highest.
    missing : None, "indicator" or a level
        What a missing value is: an error, a feature of its own, or this level.

    Raises
    ------
    TemplateError
        If there are fewer than two levels, or one stands twice.
    """

    levels: Sequence[str]
    missing: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", levels_of(self.levels))
        if self.missing is not None and self.missing != INDICATOR:
            object.__setattr__(self, "missing", label_text(self.missing))
            check_missing(self, self.missing)

    def _numbers(self, where: Where, values: NDArray[Any], clip: bool) -> Array:
        return np.asarray(codes(where, values, self.levels, None) / (len(self.levels) - 1) - 0.5, dtype=float)

    def to_dict(self) -> Any:
        """Return the declaration as a TOML file spells it."""
        return self._spelled("ordered", list(self.levels))


@dataclass(frozen=True)
class Boolean(OneNumber):
    """Yes or no.

    Parameters
    ----------
    false, true : str
        How a text spells them; truth values and 0 and 1 are understood, too.
    missing : None, "indicator" or a truth value
        What a missing value is: an error, a feature of its own, or this.
    """

    false: str = "false"
    true: str = "true"
    missing: str | bool | None = None

    def __post_init__(self) -> None:
        levels_of((self.false, self.true))
        if self.false.casefold() in ("true", "1") or self.true.casefold() in ("false", "0"):
            raise TemplateError(
                f"{self.false!r} as no and {self.true!r} as yes would be misread; declare them as Ordered."
            )
        if self.missing is not None and self.missing != INDICATOR:
            check_missing(self, self.missing)

    def _numbers(self, where: Where, values: NDArray[Any], clip: bool) -> Array:
        spelled = {self.false.casefold(): "0", self.true.casefold(): "1", "false": "0", "true": "1"}
        plain = np.array([spelled.get(text_of(v).casefold(), text_of(v)) for v in values.tolist()], dtype=object)
        return np.asarray(codes(where, plain, ("0", "1"), None) - 0.5, dtype=float)

    def to_dict(self) -> Any:
        """Return the declaration as a TOML file spells it."""
        return self._spelled("boolean", [self.false, self.true])


@dataclass(frozen=True)
class Date(OneNumber):
    """A day between two public days.

    Parameters
    ----------
    first, last : str or datetime.date
        As ``"2020-01-31"``.
    missing : None, "indicator", str or datetime.date
        What a missing value is: an error, a feature of its own, or this day.

    Raises
    ------
    TemplateError
        If these are no days, or not in order.
    """

    first: Any
    last: Any
    missing: Any = None

    def __post_init__(self) -> None:
        for name in ("first", "last"):
            number = day(getattr(self, name))
            if number is None:
                raise TemplateError(f"a date is written as 2020-01-31, not {getattr(self, name)!r}.")
            object.__setattr__(self, name, datetime.date.fromordinal(number).isoformat())
        if not self.first < self.last:
            raise TemplateError(f"the first day must be before the last one, not {self.first} and {self.last}.")
        if self.missing is not None and self.missing != INDICATOR:
            check_missing(self, self.missing)
            number = day(self.missing)
            assert number is not None
            object.__setattr__(self, "missing", datetime.date.fromordinal(number).isoformat())

    def _numbers(self, where: Where, values: NDArray[Any], clip: bool) -> Array:
        days = [day(value) for value in values.tolist()]
        if None in days:
            first = days.index(None)
            raise DomainError(f"{where(first)}: {values[first]!r} is not a date such as 2020-01-31.")
        low, high = day(self.first), day(self.last)
        assert low is not None
        assert high is not None
        numbers = np.array(days, dtype=float)
        outside = np.flatnonzero((numbers < low) | (numbers > high))
        if len(outside) and not clip:
            raise DomainError(
                f"{where(int(outside[0]))}: {values[outside[0]]} is outside the declared days {self.first} to {self.last}; "
                f"declare days that hold by definition, or {CLIP}."
            )
        return (np.clip(numbers, low, high) - low) / (high - low) - 0.5

    def to_dict(self) -> Any:
        """Return the declaration as a TOML file spells it."""
        return self._spelled("dates", [self.first, self.last])


@dataclass(frozen=True)
class Categorical:
    """One of several levels, of which each becomes a feature.

    Parameters
    ----------
    levels : sequence of str or int
        All that may occur, known without the data.
    other : bool
        Whether other levels share a feature; otherwise they are an error.
    missing : None, "indicator" or a level
        What a missing value is: an error, a feature of its own, or this level.

    Raises
    ------
    TemplateError
        If there are fewer than two levels, or one stands twice.

    Examples
    --------
    >>> import numpy as np
    >>> Categorical(["red", "green"], other=True).encode(str, np.array(["green", "blue"]), False)
    array([[0., 1., 0.],
           [0., 0., 1.]])
    """

    levels: Sequence[str]
    other: bool = False
    missing: str | None = None

    square: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", levels_of(self.levels))
        if not isinstance(self.other, bool):
            raise TemplateError(f"other must be true or false, not {self.other!r}.")
        if self.missing is not None and self.missing != INDICATOR:
            object.__setattr__(self, "missing", label_text(self.missing))
            if self.missing not in self.levels:
                raise TemplateError(
                    f"a missing value stands for a declared level or 'indicator', not {self.missing!r}."
                )

    def names(self, name: str) -> list[str]:
        """Name the features that a column becomes."""
        further = ["other"] * self.other + ["missing"] * (self.missing == INDICATOR)
        return [f"{name} = {level}" for level in self.levels] + [f"{name}: {what}" for what in further]

    def encode(self, where: Where, values: NDArray[Any], clip: bool) -> Array:
        """Return the features of each entry, shape (n, features)."""
        width = len(self.names(""))
        absent = missing_entries(values)
        place = np.zeros(len(values), dtype=int)
        if absent.any():
            if self.missing is None:
                first = int(np.flatnonzero(absent)[0])
                raise DomainError(f"{where(first)}: {describe_missing(values[first])}")
            place[absent] = width - 1 if self.missing == INDICATOR else list(self.levels).index(self.missing)
        present = np.flatnonzero(~absent)
        unknown = len(self.levels) if self.other else None
        place[present] = codes(lambda i: where(int(present[i])), values[present], self.levels, unknown, "or other=True")
        encoded = np.zeros((len(values), width))
        encoded[np.arange(len(values)), place] = 1.0
        return encoded

    def to_dict(self) -> Any:
        """Return the declaration as a TOML file spells it."""
        spelled: dict[str, Any] = {"levels": list(self.levels)}
        if self.other:
            spelled["other"] = True
        return spelled if self.missing is None else {**spelled, "missing": self.missing}


KINDS: dict[str, Callable[..., Column]] = {
    "bounds": lambda pair, **rest: Numeric(*interval("a number", pair), **rest),
    "ordered": Ordered,
    "levels": Categorical,
    "boolean": lambda pair, **rest: Boolean(*pair_of(pair), **rest),
    "dates": lambda pair, **rest: Date(*pair_of(pair), **rest),
}


def pair_of(pair: Any) -> Sequence[Any]:
    if not isinstance(pair, list | tuple):
        raise TypeError
    return pair


def column_of(name: str, declared: Any) -> Column:
    """Return a declared column: an object, a pair of bounds, or a table as a TOML file spells it."""
    if isinstance(declared, Numeric | Ordered | Boolean | Date | Categorical):
        return declared
    try:
        if not isinstance(declared, dict):
            return Numeric(*interval(repr(name), declared))
        kinds = [key for key in KINDS if key in declared]
        if len(kinds) != 1:
            raise TemplateError(f"declare one of {', '.join(KINDS)}.")
        rest = {key: value for key, value in declared.items() if key != kinds[0]}
        return KINDS[kinds[0]](declared[kinds[0]], **rest)
    except TypeError as error:
        raise TemplateError(f"the column {name!r} is not declared in a way that is known: {declared!r}.") from error
    except TemplateError as error:
        raise error if repr(name) in str(error) else TemplateError(f"the column {name!r}: {error}") from error


def check_missing(column: OneNumber, value: Any) -> None:
    try:
        column._numbers(lambda i: "missing", np.array([value], dtype=object), False)
    except DomainError as error:
        raise TemplateError(f"a missing value stands for a value of the column or 'indicator': {error}") from error
