"""Columns of entries out of whatever holds a table (data frames, mappings, CSV and Parquet files), and how an entry is read."""

import csv
import datetime
import math
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import DomainError
from dpconvex.language.columns import check_aligned
from dpconvex.language.validation import TIMES, has_masked

Values = NDArray[Any]

PARQUET = (".parquet", ".pq")
LONGEST = 2**31 - 1  # characters of a cell, at most as many as the module counts everywhere
# Texts that pandas reads as missing.
MISSING = {"NA", "N/A", "NaN", "NULL", "None", "n/a", "nan", "null", "<NA>", "#N/A", "#NA", "-NaN", "-nan", "#N/A N/A"}
MISSING |= {"1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"}
DAY = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")


@dataclass(frozen=True)
class Table:
    """A table whose columns are not read yet."""

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

    def check_names(
        self, names: Sequence[str], known: Collection[str] | None = None, numbers: Sequence[str] = ()
    ) -> None:
        """Refuse a table that lacks a column, has one twice or one that is not known, or no numbers where they are declared."""
        for wanted in names:
            if (count := self.names.count(wanted)) != 1:
                what = f"{count} columns are called {wanted!r}" if count else f"there is no column {wanted!r}"
                raise DomainError(f"{self.title}: {what}; the columns are {', '.join(map(str, self.names))}.")
        further = [name for name in self.names if known is not None and name not in known]
        if any(name != "" for name in further):  # an index that data frames write has no name
            raise DomainError(f"{self.title}: not declared are {further}; declare them, or list them under ignore.")
        for name in numbers:
            kind = self.types.get(name)
            if kind is not None and (kind.is_temporal() or kind.is_nested() or str(kind) == "Boolean"):
                raise DomainError(f"{self.title}: the column {name!r} is declared as a number, and its type is {kind}.")

    def columns(
        self, names: Sequence[str], known: Collection[str] | None = None, absent: Collection[str] = ()
    ) -> dict[str, Values]:
        """Return named columns of one length; texts have no blanks around them, and are missing if they are one of `absent`."""
        self.check_names(names, known)
        found, marks = {name: self.read(name) for name in names}, {value_of(text) for text in absent}
        numbers = [mark for mark in marks if isinstance(mark, int | float)]
        for name, values in found.items():
            if values.dtype.kind == "O" or any((values == mark).any() for mark in numbers):
                texts = [value.strip() if isinstance(value, str) else value for value in values.tolist()]
                found[name] = objects([None if value_of(v) in marks else v for v in texts] if marks else texts)
        lengths = {name: len(values) for name, values in found.items()}
        if len(set(lengths.values())) > 1:
            raise DomainError(f"{self.title}: the columns have different lengths: {lengths}.")
        return found


def name_of(name: Any) -> Any:
    """Return the name of a column; of whole numbers, as data frames have them, as a text."""
    return str(name) if isinstance(name, int | np.integer) and not isinstance(name, bool) else name


def table_of(data: Any, header: bool = False) -> Table:
    """Return a table; with `header`, of a file only the names of its columns are read."""
    if isinstance(data, Mapping):
        check_aligned(data)
        own = {name_of(name): name for name in data}
        return Table("the table", list(map(name_of, data)), lambda name: entries(name, data[own[name]]))
    if not isinstance(data, str | PathLike):
        return frame_table(data, "the table")
    path = path_of(data)
    if path.is_dir():
        raise DomainError(f"{path}: this is a folder, and one table was expected; give the files in it one by one.")
    if path.suffix.lower() not in PARQUET:
        return csv_table(path, header)

    def read(parquet: Any) -> Any:
        found = parquet.read_schema(path).empty_table() if header else parquet.read_table(path)
        found.validate(full=True)
        return found

    return frame_table(of_parquet(path, read), str(path))


def path_of(path: str | PathLike[str]) -> Path:
    if "\0" in fspath(path):
        raise DomainError(f"{fspath(path)!r}: no file can have a name with a NUL in it.")
    return Path(path)


def frame_table(data: Any, title: str) -> Table:
    import narwhals as nw

    try:
        frame = nw.from_native(data, eager_only=True)
    except nw.exceptions.DuplicateError as error:
        raise DomainError(f"{title}: several columns have one name ({error}).") from error
    except TypeError as error:
        if hasattr(data, "__dask_graph__"):
            how = "fit dpconvex.Partitions(frame, schema), or pass frame.compute()"
            raise DomainError(f"a Dask frame is encoded part by part: {how}.") from error
        raise DomainError(f"pass a data frame, columns by name, or a file, not a {type(data).__name__}.") from error

    own = {name_of(name): name for name in frame.columns}

    def read(name: str) -> Values:
        column = frame.get_column(own[name])
        numeric = column.dtype.is_numeric() and column.dtype not in (nw.Int128, nw.UInt128)
        try:
            if numeric and not column.is_null().any():
                return entries(name, np.asarray(column.to_numpy()))
            return objects(column.to_list())
        except Exception as error:
            raise DomainError(f"{title}, column {name!r}: entries of type {column.dtype} cannot be read.") from error

    types = {name_of(name): kind for name, kind in frame.schema.items()}
    return Table(title, list(map(name_of, frame.columns)), read, types=types)


def entries(name: str, column: Any) -> Values:
    if isinstance(column, str | bytes | Mapping | set | frozenset) or not hasattr(column, "__len__"):
        raise DomainError(f"column {name!r}: expected a list or an array, not a {type(column).__name__}.")
    if has_masked(column):
        raise DomainError(f"column {name!r}: entries are masked; put None for what is missing.")
    array = np.asarray(column) if hasattr(column, "dtype") else objects(column)
    if array.ndim != 1:
        raise DomainError(f"column {name!r}: expected one entry per record, got shape {array.shape}.")
    if array.dtype.kind in "iuf":
        return array
    return objects(list(array) if array.dtype.kind in "mM" else array.tolist())  # times would become integers


def objects(values: Collection[Any]) -> Values:
    return np.fromiter(values, dtype=object, count=len(values))


def of_parquet(path: Path, read: Callable[[Any], Any]) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DomainError(f"{path}: Parquet files need PyArrow: pip install 'dpconvex[tables]'.") from error
    if not path.is_file():  # a pipe may never begin
        raise DomainError(f"{path}: this is no file, and a Parquet file was expected.")
    try:
        return read(pyarrow.parquet)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # PyArrow has many for a file that is damaged
        raise DomainError(f"{path}: the file is damaged, or no Parquet file; write it anew.") from error


def csv_table(path: Path, header: bool) -> Table:
    try:
        csv.field_size_limit(LONGEST)
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            rows = ((reader.line_num, row) for row in reader if row)
            found = list(islice(rows, 1) if header else rows)
    except UnicodeDecodeError as error:
        raise DomainError(f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start}).") from error
    except csv.Error as error:
        raise DomainError(f"{path}, line {reader.line_num}: not valid CSV ({error}).") from error
    if not found:
        raise DomainError(f"{path}: the file is empty; its first line must name the columns.")
    (_, first), *records = found
    names = [name.strip() for name in first]
    mark = next((mark for mark in ";\t|" if mark in first[0]), "")
    if len(names) == 1 and mark:
        how = f"pass pandas.read_csv({str(path)!r}, sep={mark!r}), with decimal=',' if numbers have commas"
        raise DomainError(f"{path}: cells are separated by {mark!r}, not by commas; {how}.")
    for line, row in records:
        if len(row) != len(names):
            raise DomainError(f"{path}, line {line}: {len(row)} cells, but the header has {len(names)}.")

    def read(name: str) -> Values:
        place = names.index(name)
        return objects([row[place] for _, row in records])

    return Table(str(path), names, read, [line for line, _ in records])


# Entries


def text_of(value: Any) -> str:
    """Return an entry as a text: whole numbers without a point, truth values in small letters."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def value_of(entry: Any) -> Hashable:
    """Return an entry's value, by which entries are compared: a text in a file has that of what a data frame makes of it.

    Numbers are compared as numbers, dates as times, and "True" is a truth value, whose value is ``(True,)``, for True equals 1.
    """
    if isinstance(entry, np.datetime64):
        entry = entry.astype("datetime64[us]").item()
    if isinstance(entry, datetime.date):
        return entry if isinstance(entry, datetime.datetime) else datetime.datetime.combine(entry, datetime.time())
    found = number(entry)
    if not math.isnan(found):
        with suppress(ValueError, OverflowError):  # of 1e2 and infinity; whole numbers beyond 2^53 stay apart
            return int(entry) if found.is_integer() else found
        return found
    if isinstance(entry, str) and DAY.match(entry):
        with suppress(ValueError):
            return datetime.datetime.fromisoformat(entry)
    text = text_of(entry)
    return (text.lower() == "true",) if text.lower() in ("true", "false") else text


def missing_entries(values: Values) -> NDArray[np.bool_]:
    if values.dtype.kind in "iuf":
        return values != values
    return np.array([is_missing(value) for value in values.tolist()], dtype=bool)


def is_missing(value: Any) -> bool:
    """Say whether an entry is missing: none at all, NaN, not a time, or an empty text."""
    if value is None or isinstance(value, str) or type(value).__name__ in ("NAType", "NaTType"):
        return not isinstance(value, str) or not value
    return isinstance(value, float | np.generic) and bool(value != value)


def number(value: Any) -> float:
    """Return the number that an entry holds or spells, NaN if it is none."""
    if isinstance(value, (bool, *TIMES)) or (isinstance(value, str) and "_" in value):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def day(value: Any) -> float:
    """Return the number of the day that an entry is or spells, perhaps with a time of it; NaN if it is none."""
    try:
        if isinstance(value, datetime.date):
            return float(value.toordinal())
        text = str(value.astype("datetime64[D]")) if isinstance(value, np.datetime64) else str(value)
        return float(datetime.datetime.fromisoformat(text).toordinal()) if DAY.match(text) else math.nan
    except (ValueError, NotImplementedError):  # of years that Python does not count
        return math.nan
