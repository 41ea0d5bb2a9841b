"""Public declarations of table columns, and their encoding as features, one record at a time (docs/data.md)."""

import datetime
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpconvex.data import tables
from dpconvex.data.tables import as_python, to_float
from dpconvex.errors import DomainError, TemplateError, shorten
from dpconvex.util.arguments import SWITCH, one_of, refuse, require
from dpconvex.util.arrays import Array, Indices

Where = Callable[[int], str]

INDICATOR = "indicator"
FURTHER = ("exposure", "weight", "event")  # Settings of a schema that name one column each, beside features and label
ORDERED = (list, tuple, np.ndarray)
TRUTHS = (False,), (True,)
NONE: Mapping[Any, float] = MappingProxyType({})


class Column:
    """Base class of column declarations: an entry is read as a number between `ends` and encoded as features."""

    kind: ClassVar[str]  # its key in a TOML file
    square: ClassVar[float] = 0.25  # bound on the sum of squares of the features of one entry
    missing: Any
    ends: tuple[float, float]
    unknown, remedy = "is not a finite number", ""  # message for an unreadable entry
    missing_remedy = (
        "declare missing='indicator' or a public value, or fill it in by a public rule; do not leave records out"
    )
    reads: ClassVar[Any] = staticmethod(to_float)  # maps an entry to a number; NaN or infinity if it is unreadable

    def __post_init__(self) -> None:
        if self.missing not in (None, INDICATOR):
            try:
                self._placed(str, tables.objects([self.missing]), False)
            except DomainError as error:
                said = str(error).partition(": ")[2]
                raise TemplateError(f"missing must be a value, a declared level or 'indicator': {said}") from error

    def names(self, name: str) -> list[str]:
        """Return the names of the features of a column."""
        return [name, f"{name}: missing"] if self.missing == INDICATOR else [name]

    def encode(self, where: Where, values: NDArray[Any], clip: bool) -> Array:
        """Return the features of each entry, shape (n, features); `where` names the position of an entry for messages."""
        place, value = self.placed(where, values, clip)
        return np.where(place[:, None] == np.arange(len(self.names(""))), value[:, None], 0.0)

    def placed(self, where: Where, values: NDArray[Any], clip: bool) -> tuple[Indices, Array]:
        """Return the index and value of the one feature of each entry that may be nonzero; index -1 for the reference level."""
        numeric = values.dtype.kind in "iuf"
        absent = values != values if numeric else np.array(list(map(tables.is_missing, values.tolist())), dtype=bool)
        if absent.any() and self.missing is None:
            first = int(np.argmax(absent))
            said = f"the value is missing ({as_python(values[first])!r}); {self.missing_remedy}"
            raise DomainError(f"{where(first)}: {said}.")
        present = np.flatnonzero(~absent)
        place, value = np.empty(len(values), dtype=np.int64), np.empty(len(values))
        place[present], value[present] = self._placed(lambda i: where(int(present[i])), values[present], clip)
        if self.missing == INDICATOR:
            place[absent], value[absent] = len(self.names("")) - 1, math.sqrt(self.square)
        elif absent.any():
            place[absent], value[absent] = self._placed(where, tables.objects([self.missing]), False)
        return place, value

    def amounts(self, where: Where, values: NDArray[Any], clip: bool, beyond: bool) -> Array:
        """Return the numbers of the entries; with `beyond`, those above the bounds are neither clipped nor an error."""
        (low, high), given = self.ends, values.copy()
        numbers = self._numbers(values)
        above = (numbers > high) & (numbers < np.inf) & beyond
        given[above] = high
        found = np.minimum(low + (self.placed(where, given, clip)[1] + 0.5) * (high - low), high)
        return np.where(above, numbers, found)

    def readable(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the entries, with NaN for unreadable ones."""
        read = np.isfinite(self._numbers(values))
        found = values.copy() if values.dtype.kind == "f" else values.astype(object)
        found[~read] = math.nan  # which is missing in any column
        return values if read.all() else found

    def _numbers(self, values: NDArray[Any]) -> Array:
        if self.reads is to_float and values.dtype.kind in "iuf":
            with np.errstate(over="ignore"):  # a warning about a long double would reveal data
                return np.array(values, float)
        entries = tables.as_list(values)
        try:  # read equal entries of one type only once
            return np.array(list(map(lru_cache(2**16, typed=True)(self.reads), entries)), float)
        except (TypeError, ValueError):  # an entry is not hashable
            return np.array(list(map(self.reads, entries)), float)

    def _placed(self, where: Where, values: NDArray[Any], clip: bool) -> tuple[Indices, Array]:
        """Return index and value of the feature of each present entry; raise at the first unreadable or outside."""
        (lower, upper), numbers = self.ends, self._numbers(values)
        for index in np.flatnonzero(~np.isfinite(numbers))[:1].tolist():
            value = values.tolist()[index]
            if (kind := tables.value_of(value)) != kind:
                said = f"{value!r} is of type {type(value).__name__}"
                raise DomainError(f"{where(index)}: {said}; write a number, a text, a truth value, a date or a time.")
            shown = tables.text_of(value) if isinstance(value, bool) else value
            comma = (
                isinstance(value, str) and self.reads is to_float and math.isfinite(to_float(value.replace(",", "")))
            )
            how = "; write decimal points, and no commas: --decimal-comma, or pandas.read_csv(..., decimal=',')"
            remedy = how * comma or self.remedy
            raise DomainError(f"{where(index)}: {shown!r} {self.unknown}{remedy}.")
        inside = (numbers >= lower) & (numbers <= upper) | np.isin(numbers, tables.single(self.ends))
        outside = np.flatnonzero(~inside)
        if len(outside) and not clip:
            ends = " to ".join(map(tables.text_of, self.content))
            said = f"{values[outside[0]]} is outside the declared bounds {ends}"
            remedy = "declare bounds that hold by definition, or clip values by Schema(..., clip=True) (--clip)"
            raise DomainError(f"{where(int(outside[0]))}: {said}; {remedy}.")
        numbers = np.clip(numbers, lower, upper)
        if not isinstance(self, Categorical):
            return np.zeros(len(numbers), dtype=np.int64), (numbers - lower) / (upper - lower) - 0.5
        places = numbers.astype(np.int64)
        if self.reference is not None:
            left_out = self.levels.index(self.reference)
            places = np.where(places == left_out, -1, places - (places > left_out))
        return places, np.ones(len(numbers))

    @property
    def content(self) -> list[Any]:
        """Declared bounds or levels."""
        first, second = (getattr(self, field.name) for field in fields(self)[:2])  # type: ignore[arg-type]
        return list(first) if isinstance(first, tuple) else [first, second]

    def to_dict(self) -> Any:
        """Return the declaration in the form of a TOML file."""
        further = {name: value for name in ("other", "reference") if (value := getattr(self, name, None))}
        further |= {} if self.missing is None else {"missing": self.missing}
        return {self.kind: self.content, **further} if further or self.kind != "bounds" else self.content


@dataclass(frozen=True)
class Numeric(Column):
    """Declare a number between public bounds.

    Parameters
    ----------
    lower, upper : float
        Bounds that hold by definition, known without the data.
    missing : None, "indicator" or float
        Treatment of a missing value: an error (None), a feature of its own ("indicator"), or this public number.

    Examples
    --------
    >>> Numeric(0, 100, missing="indicator").encode(str, np.array([0, 75, np.nan]), False)
    array([[-0.5 ,  0.  ],
           [ 0.25,  0.  ],
           [ 0.  ,  0.5 ]])
    """

    lower: float
    upper: float
    missing: str | float | None = None

    kind: ClassVar[str] = "bounds"

    def __post_init__(self) -> None:
        lower, upper = bounds_of("a number", (self.lower, self.upper))
        self.__dict__.update(lower=lower, upper=upper, ends=(lower, upper))
        super().__post_init__()


class Times(Numeric):
    """Times of an event: observation ends at the upper bound, and later times are moved there."""

    def _placed(self, where: Where, values: NDArray[Any], clip: bool) -> tuple[Indices, Array]:
        numbers = self._numbers(values)
        return super()._placed(where, np.where((numbers > self.upper) & (numbers < np.inf), self.upper, values), clip)


class Levels(Column):
    """Base class of columns with levels: an entry is read as the index of its level."""

    levels: Sequence[str]
    other = False
    folded: ClassVar[bool] = False  # whether case is ignored

    def __post_init__(self, synonyms: Mapping[Any, float] = NONE) -> None:
        levels = self.__dict__["levels"] = levels_of(self.levels)
        said = f"was not declared; declared are {shorten(', '.join(map(repr, levels)))}"
        remedy = "Declare all levels that may occur, and texts of missing values under absent; a Categorical may say other=True"
        texts = {level: float(place) for place, level in enumerate(levels)}
        places: dict[Any, float] = {}
        for level, place in texts.items():
            for value in tables.values_of(level):  # if "01" and "1" are levels, the number 1 matches neither
                places[value] = math.nan if value in places else place
        kinds = {type(value) for value in (*TRUTHS, 0, 1) if value in places}
        for value in (*TRUTHS, 0, 1) if kinds else ():  # PyArrow reads "1" beside "true" as a truth value
            if value not in places or (value in TRUTHS and len(kinds) > 1):
                places[value] = math.nan
        known, ends = {**places, **texts, **synonyms}, (0.0, len(levels) - 1.0 + self.other)
        self.__dict__.update(unknown=said, remedy=f". {remedy}", places=known, ends=ends)
        super().__post_init__()

    def reads(self, value: Any) -> float:
        text, places = isinstance(value, str), self.__dict__["places"]
        # A data frame may have read some texts as missing values, and rounded large whole numbers.
        if (text and self.missing not in (None, value) and value in tables.MISSING) or tables.lost_digits(value):
            return math.nan
        value = value.casefold() if text and self.folded else value
        place = places.get(value) if text else None
        if place is None:
            place = places.get(found := tables.value_of(value))
        if place is None:  # a time outside the levels is a misread entry, and NaN has no known type
            known = text or (isinstance(found, float | int | tuple) and found == found)
            place = float(len(self.levels)) if self.other and known else math.nan
        return float(place)


@dataclass(frozen=True)
class Ordered(Levels):
    """Declare ordered grades with even spacing.

    Parameters
    ----------
    levels : sequence of str or int
        From the lowest to the highest.
    missing : None, "indicator" or a level
        As for `Numeric`.
    """

    levels: Sequence[str]
    missing: str | None = None

    kind: ClassVar[str] = "ordered"


@dataclass(frozen=True)
class Boolean(Levels):
    """Declare a truth value.

    Parameters
    ----------
    false, true : str
        Spelling as texts.  Truth values, 0 and 1 are accepted too.
    missing : None, "indicator" or a truth value
        As for `Numeric`.
    """

    false: str = "false"
    true: str = "true"
    missing: str | bool | None = None

    kind: ClassVar[str] = "boolean"
    folded: ClassVar[bool] = True

    def __post_init__(self) -> None:
        false, true = self.__dict__["levels"] = levels_of((self.false, self.true))
        no, yes = (tables.value_of(level.casefold()) for level in (false, true))
        fits = no not in ((True,), 1) and yes not in ((False,), 0) and no != yes
        require(fits, f"{false!r} and {true!r} would be misread; declare them as Ordered.")
        known = {"0": 0.0, "1": 1.0, "false": 0.0, "true": 1.0, false.casefold(): 0.0, true.casefold(): 1.0}
        super().__post_init__({value: place for text, place in known.items() for value in tables.values_of(text)})


@dataclass(frozen=True)
class Date(Column):
    """Declare a day between two public days.

    Parameters
    ----------
    first, last : str or datetime.date
        As ``"2020-01-31"``.
    missing : None, "indicator", str or datetime.date
        As for `Numeric`.
    """

    first: Any
    last: Any
    missing: Any = None

    kind: ClassVar[str] = "dates"
    unknown = (
        "is not a date such as 2020-01-31; --decimal-comma, or pandas.to_datetime(column, dayfirst=True), reads 31.01.2020, and "
        "column.dt.tz_localize(None) drops a time zone"
    )
    reads: ClassVar[Any] = staticmethod(tables.to_ordinal)

    def __post_init__(self) -> None:
        for name in ("first", "last", *(["missing"] if self.missing not in (None, INDICATOR) else [])):
            number = tables.to_ordinal(getattr(self, name))
            require(not math.isnan(number), f"write a date as 2020-01-31, not {getattr(self, name)!r}.")
            self.__dict__[name] = datetime.date.fromordinal(int(number)).isoformat()
        require(self.first < self.last, f"the first day must be before the last one, not {self.first} and {self.last}.")
        self.__dict__["ends"] = (tables.to_ordinal(self.first), tables.to_ordinal(self.last))
        super().__post_init__()


@dataclass(frozen=True)
class Categorical(Levels):
    """Declare one of several levels.  Each level becomes a feature.

    Parameters
    ----------
    levels : sequence of str or int
        All levels that may occur, known without the data.
    other : bool
        Give all other levels one common feature.  Otherwise another level is an error.
    missing : None, "indicator" or a level
        As for `Numeric`.
    reference : None or a level
        A level without a feature, so that features do not add up to a constant.  `LinearRegression` with an intercept needs it.
    """

    levels: Sequence[str]
    other: bool = False
    missing: str | None = None
    reference: str | None = None

    kind: ClassVar[str] = "levels"
    square: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        SWITCH.check("", other=self.other)
        self.__dict__["reference"] = None if self.reference is None else tables.text_of(self.reference)
        one_of(levels_of(self.levels)).or_none.check("", reference=self.reference)
        super().__post_init__()

    def names(self, name: str) -> list[str]:
        further = ["other"] * self.other + ["missing"] * (self.missing == INDICATOR)
        levels = [f"{name} = {level}" for level in self.levels if level != self.reference]
        return [*levels, *(f"{name}: {what}" for what in further)]


KINDS: dict[str, Any] = {kind.kind: kind for kind in (Numeric, Ordered, Categorical, Boolean, Date)}


def column_of(name: str, declared: Any) -> Column:
    """Return a column declaration from an object, a pair of bounds, or a dict in the form of a TOML file."""
    if isinstance(declared, Column):
        return declared
    rest = dict(declared) if isinstance(declared, dict) else {"bounds": declared}
    kinds = [key for key in KINDS if key in rest]
    try:
        require(len(kinds) == 1, f"declare one of {', '.join(KINDS)}.")
        kind, content = kinds[0], rest.pop(kinds[0])
        unknown = rest.keys() - {"missing", *(["other", "reference"] if kind == "levels" else [])}
        refuse(f"{key!r} is not an option of {kind!r}." for key in unknown)
        several = content if kind in ("boolean", "dates") and isinstance(content, ORDERED) else [content]
        return KINDS[kind](*(bounds_of("a number", content) if kind == "bounds" else several), **rest)
    except TypeError as error:
        raise TemplateError(f"the declaration of the column {name!r} is not valid: {declared!r}.") from error
    except TemplateError as error:
        raise TemplateError(f"the column {name!r}: {error}") from error


def beside(field: str, given: Any) -> dict[str, Column] | None:
    """Return the declaration of the one column of an exposure, a weight or an event."""
    if given is None:
        return None
    own = '{"died": {"boolean": ["no", "yes"]}}' if field == "event" else '{"years": [0, 3]}'
    require(isinstance(given, Mapping) and len(given) == 1, f"{field} names one column, as {own}, not {given!r}.")
    ((name, declared),) = given.items()
    column = column_of(tables.name_of(name), declared)
    truth = isinstance(column, Boolean | Ordered) and column.ends == (0.0, 1.0)
    fits = (truth if field == "event" else isinstance(column, Numeric)) and column.missing != INDICATOR
    what = "a truth value" if field == "event" else "a number with bounds from 0"
    require(fits and column.ends[0] >= 0, f"the {field} {name!r} must be {what}, as {own}, not {given!r}.")
    return {tables.name_of(name): column}


# Declared bounds, levels and labels


def bounds_of(what: str, pair: Any) -> tuple[float, float]:
    with suppress(TypeError, ValueError, OverflowError):
        lower, upper = (float(value) for value in (pair if isinstance(pair, ORDERED) else ()))
        if lower < upper and math.isfinite(upper - lower):
            return lower, upper
    texts = " Declare texts by {levels = [...]}, or dp.Categorical([...])." * (what == "a number")
    raise TemplateError(f"the bounds of {what} must be two finite numbers, the lower one first, not {pair!r}.{texts}")


def levels_of(levels: Any, what: str = "levels") -> tuple[str, ...]:
    several = isinstance(levels, Sequence) and not isinstance(levels, str)
    require(several, f"declare the {what} as a list, not {levels!r}.")
    texts = tuple(tables.text_of(value).strip() for value in levels)  # as entries are read
    wrong = (v for v in levels if not isinstance(v, str | int))
    refuse(f"one of the {what} is {v!r}; write it as a text, such as 'true', or an integer." for v in wrong)
    remedy = "declare missing='indicator' or a level, or list texts of missing entries under absent of the Schema"
    require(all(texts), f"one of the {what} is empty, as missing entries are. Leave it out: {remedy}.")
    distinct = len(set(texts)) == len(texts) > 1
    require(distinct, f"declare at least two {what}, all of them different, not {list(texts)!r}.")
    return texts
