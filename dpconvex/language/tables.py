"""Columns of entries out of whatever holds a table: data frames, mappings, CSV and Parquet files.

Nothing is decided here about what an entry means; a schema does that.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import DomainError
from dpconvex.language.entries import has_masked

Values = NDArray[Any]

PARQUET = (".parquet", ".pq")


@dataclass(frozen=True)
class Table:
    """A table whose columns are not read yet.

    Attributes
    ----------
    title : str
        For messages.
    names : list of str
        Of its columns.
    column : callable
        Returns the entries of a column: numbers, or objects with None for missing ones.
    lines : list of int or None
        The line of each record in a file.
    """

    title: str
    names: list[Any]
    column: Callable[[str], Values]
    lines: list[int] | None = None

    def where(self, name: str) -> Callable[[int], str]:
        """Return the function that says where an entry of a column stands."""
        lines = self.lines
        row = (lambda i: f"row {i}") if lines is None else (lambda i: f"line {lines[i]}")
        return lambda index: f"{self.title}, {row(index)}, column {name!r}"

    def check_names(self, names: Sequence[str], known: Collection[str] | None) -> None:
        """Refuse a table that lacks a column, has one twice, or has one that is not known."""
        for wanted in names:
            if (count := self.names.count(wanted)) > 1:
                raise DomainError(f"{self.title}: {count} columns are called {wanted!r}.")
            if not count:
                listed = ", ".join(map(str, self.names))
                raise DomainError(f"{self.title}: there is no column {wanted!r}; the columns are {listed}.")
        # What has no name is the index that data frames write.
        unknown = [key for key in self.names if known is not None and key not in known and key != ""]
        if unknown:
            raise DomainError(
                f"{self.title}: the column {unknown[0]!r} is not declared; declare it, or list it under ignore."
            )

    def columns(self, names: Sequence[str], absent: Collection[str] = ()) -> dict[str, Values]:
        """Return named columns of one length; entries that are one of the texts `absent` become missing ones."""
        found = {name: without(self.column(name), absent) for name in names}
        lengths = {name: len(values) for name, values in found.items()}
        if len(set(lengths.values())) > 1:
            raise DomainError(f"{self.title}: the columns have different lengths: {lengths}.")
        return found


def table_of(data: Any, header: bool = False) -> Table:
    """Return a table; with `header`, of a file only the names of its columns are read."""
    if isinstance(data, str | PathLike):
        path = path_of(data)
        if path.is_dir():
            raise DomainError(f"{path}: this is a folder, and one table was expected; give the files in it one by one.")
        if path.suffix.lower() not in PARQUET:
            return csv_table(path, header)
        if header:
            return Table(str(path), parquet_header(path).schema.to_arrow_schema().names, lambda name: np.zeros(0))
        return frame_table(with_pyarrow(path, lambda module: validated(module.read_table(path))), str(path))
    if isinstance(data, Mapping):
        return Table("the table", list(data), lambda name: entries(name, data[name]))
    return frame_table(data, "the table")


def path_of(path: str | PathLike[str]) -> Path:
    """Return a path that a file can have."""
    if "\0" in fspath(path):
        raise DomainError(f"{fspath(path)!r}: no file can have a name with a NUL in it.")
    return Path(path)


def frame_table(data: Any, title: str) -> Table:
    try:
        frame = nw.from_native(data, eager_only=True)
    except nw.exceptions.DuplicateError as error:
        listed = list(data.column_names if hasattr(data, "column_names") else data.columns)
        twice = next(key for key in listed if listed.count(key) > 1)
        raise DomainError(f"{title}: {listed.count(twice)} columns are called {twice!r}.") from error
    except TypeError as error:
        raise DomainError(
            "expected a data frame, a mapping of columns, or the path of a CSV or Parquet file, with names for its "
            f"columns, not a {type(data).__name__}."
        ) from error
    return Table(title, list(frame.columns), lambda name: series(title, name, frame.get_column(name)))


def series(title: str, name: str, column: nw.Series[Any]) -> Values:
    """Return a column of a data frame; times become days, as far as Python's calendar goes."""
    try:
        if isinstance(column.dtype, nw.Datetime):
            return entries(name, np.asarray(column.to_numpy()))
        if column.dtype.is_numeric() and column.dtype not in (nw.Int128, nw.UInt128) and not column.is_null().any():
            return np.asarray(column.to_numpy())
        return objects(column.to_list())
    except DomainError:
        raise
    except Exception as error:  # what a library cannot make Python's objects of
        raise DomainError(
            f"{title}, column {name!r}: its entries, of type {column.dtype}, cannot be read ({type(error).__name__})."
        ) from error


def entries(name: str, column: Any) -> Values:
    """Return a column of a mapping."""
    if isinstance(column, str | bytes | Mapping | set | frozenset) or not hasattr(column, "__len__"):
        raise DomainError(f"column {name!r}: expected a list or an array, not a {type(column).__name__}.")
    if has_masked(column):
        raise DomainError(f"column {name!r}: entries are masked; put None for what is missing.")
    try:
        array = np.asarray(column) if hasattr(column, "dtype") else objects(list(column))
    except (TypeError, ValueError) as error:
        raise DomainError(f"column {name!r}: expected a list or an array ({error}).") from error
    if array.ndim != 1:
        raise DomainError(f"column {name!r}: expected one entry per record, got shape {array.shape}.")
    if array.dtype.kind == "M":
        array = array.astype("datetime64[D]")
    if array.dtype.kind == "m":  # whose list may be one of integers
        return objects(list(array))
    return array if array.dtype.kind in "iuf" else objects(array.tolist())


def objects(values: list[Any]) -> Values:
    """Return a list as an array of objects, whatever they are."""
    return np.fromiter(values, dtype=object, count=len(values))


def without(values: Values, absent: Collection[str]) -> Values:
    """Replace the texts that stand for a missing value."""
    if values.dtype.kind != "O" or not absent:
        return values
    return objects([None if isinstance(value, str) and value in absent else value for value in values.tolist()])


def parquet_header(path: Path) -> Any:
    """Return what a Parquet file says about itself."""
    if path.is_dir():
        raise DomainError(f"{path}: this is a folder, and a Parquet file was expected; give the files in it.")
    if not path.exists():
        raise DomainError(f"{path}: there is no such file.")
    return with_pyarrow(path, lambda module: module.read_metadata(path))


def validated(table: Any) -> Any:
    table.validate(full=True)
    return table


def with_pyarrow(path: Path, read: Callable[[Any], Any]) -> Any:
    """Read something of a Parquet file, or say that it is none."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DomainError(f"{path}: Parquet files need PyArrow: pip install 'dpconvex[tables]'.") from error
    try:
        return read(pyarrow.parquet)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # PyArrow has many for a file that is damaged
        raise DomainError(f"{path}: the file is damaged, or no Parquet file; write it anew.") from error


@contextmanager
def csv_rows(path: Path) -> Iterator[Any]:
    """Context with the rows of a CSV file, each a list of cells."""
    reader = None
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            yield reader
    except UnicodeDecodeError as error:
        raise DomainError(f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start}).") from error
    except csv.Error as error:
        raise DomainError(f"{path}, line {reader.line_num if reader else 1}: not valid CSV ({error}).") from error


def csv_table(path: Path, header: bool) -> Table:
    """Return the table of a CSV file with a header line."""
    with csv_rows(path) as reader:
        names = [name.strip() for name in next(reader, [])]
        if not names:
            raise DomainError(f"{path}: the file is empty; its first line must name the columns.")
        rows: list[list[str]] = []
        lines: list[int] = []
        for row in () if header else reader:
            if not row:
                continue
            if len(row) != len(names):
                raise DomainError(f"{path}, line {reader.line_num}: {len(row)} cells, but the header has {len(names)}.")
            rows.append(row)
            lines.append(reader.line_num)
    places = {name: place for place, name in enumerate(names)}
    return Table(str(path), names, lambda name: objects([row[places[name]].strip() for row in rows]), lines)
