"""Tables: columns of data frames, mappings, CSV and Parquet files, and the conversion of their entries."""

import csv
import datetime
import math
import re
import tomllib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from numbers import Number
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TextIO
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from dpconvex.data.columns import check_aligned
from dpconvex.data.validation import DURATIONS, has_masked, label_entries
from dpconvex.errors import DomainError, TemplateError
from dpconvex.util.arguments import recast, refuse, require

Values = NDArray[Any]

PARQUET = (".parquet", ".pq")
LONGEST = 2**31 - 1  # characters of a cell, the largest limit that the csv module takes on every platform
# Texts that pandas reads as missing.
MISSING = {"NA", "N/A", "NaN", "NULL", "None", "n/a", "nan", "null", "<NA>", "#N/A", "#NA", "-NaN", "-nan", "#N/A N/A"}
MISSING |= {"1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"}
COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?")
DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(\D.*|)")
DAY, TIME = re.compile(r"\d{4}-\d\d-\d\d(?!\d)"), re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)?")
SINGLE = np.float32, np.float16


@dataclass(frozen=True)
class Table:
    """A table with columns that are read on demand."""

    title: str  # for messages
    names: list[Any]
    read: Callable[[str], Values]  # returns the entries of a column: numbers, or objects with None for missing ones
    lines: list[int] | None = None  # the line of each record in a file
    types: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.read(self.names[0])) if self.names else 0

    def where(self, name: str) -> Callable[[int], str]:
        row = "row {}".format if self.lines is None else [f"line {line}" for line in self.lines].__getitem__
        return lambda index: f"{self.title}, {row(index)}, column {name!r}"

    def check_names(self, names: Sequence[str], known: Any = None, numbers: Sequence[str] = ()) -> None:
        """Raise if a column is missing, repeated or undeclared, or has another type although it is declared as a number."""
        for wanted in names:
            if (count := self.names.count(wanted)) != 1:
                what = f"{count} columns are called {wanted!r}" if count else f"there is no column {wanted!r}"
                raise DomainError(f"{self.title}: {what}; the columns are {', '.join(map(str, self.names))}.")
        # Data frames write their index as a column without a name.
        further = [name for name in self.names if known is not None and name not in known and name != ""]
        said = f"{self.title}: the columns {further} are not declared; declare them, or list them under ignore."
        require(not further, said, DomainError)
        for name in numbers:
            kind = self.types.get(name)
            if kind is not None and (kind.is_temporal() or kind.is_nested() or str(kind) == "Boolean"):
                raise DomainError(f"{self.title}: the column {name!r} is declared as a number, and its type is {kind}.")

    def columns(
        self, names: Sequence[str], known: Any = None, absent: Collection[str] = (), strict: bool = True
    ) -> dict[str, Values]:
        """Return the named columns, of equal length; texts are stripped, and entries equal to one of `absent` become None."""
        self.check_names(names, known)
        found, marks = {name: self.read(name) for name in names}, {v for text in absent for v in values_of(text)}
        several = (mark if isinstance(mark, tuple) else (mark,) for mark in marks)
        numbers = [float(value) for mark in several for value in mark if isinstance(value, int | float)]
        for name, values in found.items():
            if values.dtype.kind == "O" or np.isin(values, numbers).any():
                own = objects(map(as_python, as_list(values)))
                for index in (k for k, value in enumerate(own) if marks and value_of(value) in marks):
                    if strict and lost_digits(own[index]):
                        why = "stands for a missing value, but may be a rounded number; pass double precision"
                        raise DomainError(f"{self.where(name)(index)}: {own[index]!r} {why}.")
                    own[index] = None
                found[name] = own
        lengths = {name: len(values) for name, values in found.items()}
        said = f"{self.title}: the columns have different lengths: {lengths}."
        require(len(set(lengths.values())) < 2, said, DomainError)
        return found


def name_of(name: Any) -> Any:
    """Return a column name; whole numbers, which data frames allow as names, become texts."""
    return str(name) if isinstance(name, int | np.integer) and not isinstance(name, bool) else name


def table_of(data: Any, header: bool = False) -> Table:
    """Return data, or a file, as a `Table`; with `header`, only the column names of a file are read."""
    if isinstance(data, Table):
        return data
    if isinstance(data, Mapping):
        check_aligned(data)
        own = {name_of(name): name for name in data}
        return Table("the table", list(map(name_of, data)), lambda name: entries(name, data[own[name]]))
    if not isinstance(data, str | PathLike):
        return frame_table(data, "the table")
    path = path_of(data)
    if path.is_dir():
        raise DomainError(f"{path}: this is a folder, but one table was expected; pass its files one by one.")
    if path.suffix.lower() not in PARQUET:
        return csv_table(path, header)

    def read(parquet: Any) -> Any:
        found = parquet.read_schema(path).empty_table() if header else parquet.read_table(path)
        found.validate(full=True)
        return found

    return frame_table(read_parquet(path, read), str(path))


def path_of(path: str | PathLike[str]) -> Path:
    require("\0" not in fspath(path), f"{fspath(path)!r}: no file can have a name with a NUL in it.", DomainError)
    return Path(path)


def read_settings(path: str | Path, allowed: Sequence[str]) -> dict[str, Any]:
    # ValueError: also invalid UTF-8, and integers of thousands of digits.
    with recast(f"{path}: not valid TOML", RecursionError, ValueError, kind=TemplateError):
        settings = tomllib.loads(path_of(path).read_text(encoding="utf-8"))
    unknown = (key for key in settings if key not in allowed)
    refuse(f"{path}: unknown setting {key!r}; settings are {', '.join(allowed)}." for key in unknown)
    return settings


def frame_table(data: Any, title: str) -> Table:
    import narwhals as nw

    try:
        frame = nw.from_native(data, eager_only=True)
    except nw.exceptions.DuplicateError as error:
        raise DomainError(f"{title}: several columns have the same name ({error}).") from error
    except TypeError as error:
        if hasattr(data, "__dask_graph__"):
            how = "fit dpconvex.Partitions(frame, schema), or pass frame.compute()"
            raise DomainError(f"a Dask frame is encoded part by part: {how}.") from error
        raise DomainError(f"pass a data frame, columns by name, or a file, not a {type(data).__name__}.") from error

    own = {name_of(name): name for name in frame.columns}

    def read(name: str) -> Values:
        column = frame.get_column(own[name])
        categories = getattr(getattr(native := column.to_native(), "dtype", None), "categories", None)
        if getattr(categories, "dtype", None) in SINGLE:  # lists of pandas categories lose single precision
            return entries(name, np.asarray(native))
        numeric = column.dtype.is_numeric() and column.dtype not in (nw.Int128, nw.UInt128)
        with suppress(Exception):
            if numeric and (column.dtype.is_float() or not column.is_null().any()):
                return entries(name, np.asarray(column.to_numpy()))
            return objects(column.to_list())
        return objects(map(partial(entry_at, column), range(len(column))))

    types = {name_of(name): kind for name, kind in frame.schema.items()}
    return Table(title, list(map(name_of, frame.columns)), read, types=types)


def entry_at(column: Any, place: int) -> Any:
    """Return an entry; NotImplemented if Python cannot represent its value, such as a date of the year 20000."""
    try:
        return column[place]
    except Exception:
        return NotImplemented


def is_list(column: Any) -> bool:
    return hasattr(column, "__len__") and not isinstance(column, str | bytes | Mapping | set | frozenset)


def entries(name: str, column: Any) -> Values:
    if not is_list(column):
        raise DomainError(f"column {name!r}: expected a list or an array, not a {type(column).__name__}.")
    if isinstance(column, np.ma.MaskedArray):  # masked entries are missing
        masked, column = np.ma.getmaskarray(column), column.data.astype(object)
        column[masked] = None
    if has_masked(column):
        column = [None if has_masked(entry) else entry for entry in column]
    column = column.to_pylist() if hasattr(column, "to_pylist") else column  # PyArrow's
    array = np.asarray(column) if hasattr(column, "dtype") else objects(column)
    require(array.ndim == 1, f"column {name!r}: expected one entry per record, got shape {array.shape}.", DomainError)
    if hasattr(column, "dtype") and array.dtype != np.asarray(column[:0]).dtype:
        array = objects(list(column))  # missing entries turned whole numbers into floats, which rounds large ones
    if array.dtype.kind in "iuf":
        return array
    return objects(list(array) if array.dtype.kind in "mM" else array.tolist())  # times would become integers


def objects(values: Iterable[Any]) -> Values:
    return np.fromiter(values, dtype=object)


def as_list(values: Values) -> list[Any]:
    """Return the entries of a column; entries in single precision keep their type, because 1.1 is another number there."""
    return list(values) if values.dtype in SINGLE else values.tolist()


def concatenate_values(pieces: Sequence[Values]) -> Values:
    """Concatenate columns of several tables; if their dtypes differ, each entry keeps its type."""
    if len({piece.dtype for piece in pieces}) == 1:
        return np.concatenate(pieces)
    return objects(entry for piece in pieces for entry in as_list(piece))


def read_parquet(path: Path, read: Callable[[Any], Any]) -> Any:
    with recast(f"{path}: Parquet files need PyArrow: pip install 'dpconvex[tables]'", ImportError, kind=DomainError):
        import pyarrow.parquet
    if not path.is_file():  # reading a pipe may block forever
        raise DomainError(f"{path}: this is not a file; a Parquet file was expected.")
    try:
        return read(pyarrow.parquet)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # PyArrow raises many types of errors for a damaged file
        raise DomainError(f"{path}: the file is damaged, or no Parquet file; write it anew.") from error


def single(ends: Sequence[float]) -> NDArray[Any]:
    """Return bounds rounded to single precision, which may lie outside the bounds."""
    with np.errstate(over="ignore"):
        return np.ravel([np.array(ends, dtype=kind).astype(float) for kind in SINGLE])


def within(values: Values, ends: Sequence[float]) -> NDArray[np.bool_]:
    """Return whether entries are numbers up to the upper bound, or one rounded to single precision."""
    numbers = np.array(list(map(to_float, values)))
    return (numbers <= ends[1]) | np.isin(numbers, single(ends))


def csv_separator(stream: TextIO) -> str:
    """Return the separator of a CSV file, read off its header: a comma, or that of a header without commas; rewind."""
    head = next(csv.reader(line for line in stream if line.strip()), [""])
    stream.seek(0)
    return next((mark for mark in ";\t|" if len(head) == 1 and mark in head[0]), ",")


def with_point(entry: Any) -> Any:
    """Return a text such as 1.234,5 or 31.01.2020 as 1234.5 or 2020-01-31, and any other entry unchanged."""
    text = entry.strip() if isinstance(entry, str) else ""
    day = DOTTED.fullmatch(text)
    found = "{2}-{1:0>2}-{0:0>2}{3}".format(*day.groups()) if day else entry
    return text.replace(".", "").replace(",", ".") if COMMA.fullmatch(text) else found


def csv_table(path: Path, header: bool) -> Table:
    try:
        csv.field_size_limit(LONGEST)
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, delimiter=csv_separator(stream), strict=True)
            rows = ((reader.line_num, row) for row in reader if row)
            found = list(islice(rows, 1) if header else rows)
    except UnicodeDecodeError as error:
        said = f"not a text file in UTF-8 ({error.reason} at byte {error.start}); save it in UTF-8 (iconv -f cp1252 -t utf-8), or"
        raise DomainError(f"{path}: {said} pass pandas.read_csv({str(path)!r}, encoding='cp1252').") from error
    except csv.Error as error:
        raise DomainError(f"{path}, line {reader.line_num}: not valid CSV ({error}).") from error
    require(found, f"{path}: the file is empty; its first line must name the columns.", DomainError)
    (_, first), *records = found
    names = [name.strip() for name in first]
    for line, row in records:
        if len(row) != len(names):
            raise DomainError(f"{path}, line {line}: {len(row)} cells, but the header has {len(names)}.")

    def read(name: str) -> Values:
        place = names.index(name)
        return objects([row[place] for _, row in records])

    return Table(str(path), names, read, [line for line, _ in records])


# Entries


def text_of(value: Any) -> str:
    """Return an entry as a text: whole numbers without a point, truth values in lower case."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def as_python(entry: Any) -> Any:
    """Return an entry as a plain Python value, texts stripped; single precision and unknown types are unchanged."""
    if type(entry) is str:
        return entry.strip()
    if isinstance(entry, (complex, np.complexfloating)) and entry.imag == 0:
        return float(entry.real)  # one complex number makes all others of a column complex
    if isinstance(entry, np.generic) and not isinstance(entry, (*SINGLE, np.timedelta64)):
        if isinstance(entry, np.datetime64):
            year = 1970 + int(entry.astype("datetime64[Y]").astype(int))
            if not (np.isnat(entry) or datetime.MINYEAR <= year <= datetime.MAXYEAR):
                return entry  # microseconds would overflow
            entry = entry.astype("datetime64[us]")
        entry = entry.item()
    stamp: Any = entry if isinstance(entry, datetime.datetime) and hasattr(entry, "to_pydatetime") else None
    if stamp is not None:  # a pandas Timestamp, with nanoseconds
        with suppress(ValueError):
            return stamp.to_pydatetime(warn=False) if stamp == stamp else None
        return stamp.to_numpy()  # outside the years of Python
    return entry.strip() if isinstance(entry, str) else entry


def value_of(entry: Any) -> Hashable:
    """Return the value by which entries are compared; a text has the value that a data frame would read it as.

    Numbers compare as numbers, dates and times as times. "True" has the value ``(True,)``, because True equals 1. A number in
    single precision is compared in single precision. Entries of other types have the value NaN.
    """
    entry = as_python(entry)
    if isinstance(entry, SINGLE):
        return type(entry), float(entry)
    if isinstance(entry, (datetime.datetime, datetime.time, bool)):
        return (entry,) if isinstance(entry, bool) else entry
    if isinstance(entry, datetime.date):
        return datetime.datetime.combine(entry, datetime.time())
    text = isinstance(entry, str)
    if text and (time := DAY.match(entry) or TIME.fullmatch(entry)):
        with suppress(ValueError):
            return (datetime.time if time.re is TIME else datetime.datetime).fromisoformat(entry)
    found = to_float(entry)
    if found != found:
        if text and entry.lower() in ("true", "false"):
            return (entry.lower() == "true",)
        return normalize("NFC", entry) if text else math.nan
    with suppress(ValueError, OverflowError):  # 1e2 and infinity raise; whole numbers beyond 2^53 stay distinct
        return int(entry, 16) if spells_hex(entry) else int(entry) if found.is_integer() else found
    return found


def lost_digits(value: Any) -> bool:
    """Return whether a number is so large that its type may have rounded it to a whole number, or a time has nanoseconds."""
    if isinstance(value, np.datetime64):
        return bool(value > value.astype("datetime64[us]"))
    if isinstance(value, datetime.datetime):  # of pandas
        return bool(getattr(value, "nanosecond", 0) > 0)
    return isinstance(value, (float, *SINGLE)) and bool(abs(float(value)) >= 2 / float(np.finfo(type(value)).eps))


def identifiers_of(column: Any) -> list[Hashable]:
    """Return identifiers of people as Python values; raise if numbers are so large that their type may have rounded them."""
    found, given = label_entries("unit", column), np.asarray(column) if hasattr(column, "__array__") else column
    numeric = isinstance(given, np.ndarray) and given.dtype.kind in "iuf"
    lost = lost_digits(np.abs(given).max(initial=0)) if numeric else any(map(lost_digits, given))
    why = "unit: identifiers have so many digits that their type may have rounded different ones to one; nothing was spent"
    require(not lost, f"{why}. Pass whole numbers or texts.", DomainError)
    return found


def values_of(text: str) -> set[Hashable]:
    """Return the values that a text may have in a column: its own, and those of its number in single precision."""
    value, single = value_of(text), []
    if isinstance(value, int | float):
        with np.errstate(over="ignore"):
            single = [kind(value) for kind in SINGLE]
    return {value, *map(value_of, single), *(float(kind) for kind in single[:1] if isinstance(value, float))}


def is_missing(value: Any) -> bool:
    """Return whether an entry is missing: None, NaN, NaT, or an empty text."""
    if value is None or isinstance(value, str) or type(value).__name__ in ("NAType", "NaTType"):
        return not isinstance(value, str) or not value
    return isinstance(value, float | np.generic) and bool(value != value)


def reads_as_missing(value: Any) -> bool:
    """Return whether an entry is missing, or a text that data frames read as missing."""
    text = value.strip() if isinstance(value, str) else value
    return is_missing(text) or (isinstance(text, str) and text in MISSING)


def to_float(value: Any) -> float:
    """Return the number that an entry holds or spells; NaN if there is none."""
    try:  # single precision has its exact value, so that single entries and columns are read alike
        if not isinstance(value, str):
            known = isinstance(value, Number) and not isinstance(value, (bool, *DURATIONS))
            return float(value) if known else math.nan
        return math.nan if "_" in value else float(int(value, 16) if spells_hex(value) else value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def spells_hex(value: Any) -> bool:
    """Return whether an entry is a text such as "0x1F", which PyArrow reads as a number."""
    return isinstance(value, str) and value[:2] in ("0x", "0X") and value.isalnum() and value.isascii()


def to_ordinal(value: Any) -> float:
    """Return the ordinal of the day that an entry holds or spells, with or without a time; NaN if none, or with a time zone."""
    found = value_of(value)
    return found.toordinal() if isinstance(found, datetime.datetime) and found.tzinfo is None else math.nan
