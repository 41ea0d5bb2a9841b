"""Columns of entries out of whatever holds a table: data frames, mappings, CSV and Parquet files.

Nothing is decided here about what an entry means; a schema does that.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
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
class Columns:
    """The entries of some columns, as arrays of numbers or of objects, and where they stand.

    Attributes
    ----------
    name : str
        Of the table, for messages.
    columns : dict of str to ndarray, shape (n,)
    lines : list of int or None
        The line of each record in a file.
    """

    name: str
    columns: dict[str, Values]
    lines: list[int] | None = None

    @property
    def size(self) -> int:
        """Number of records."""
        return len(next(iter(self.columns.values())))

    def where(self, name: str) -> Callable[[int], str]:
        """Return the function that says where an entry of a column stands."""
        lines = self.lines
        row = (lambda i: f"row {i}") if lines is None else (lambda i: f"line {lines[i]}")
        return lambda index: f"{self.name}, {row(index)}, column {name!r}"


def columns_of(data: Any, names: Sequence[str], known: Collection[str] | None, absent: Collection[str]) -> Columns:
    """Return the named columns of a table; with `known` names, others are refused.

    Entries that are one of the texts `absent` become missing ones.
    """
    if isinstance(data, str | PathLike):
        path = Path(data)
        if path.is_dir():
            raise DomainError(f"{path}: this is a folder, and one table was expected; give the files in it one by one.")
        if path.suffix.lower() not in PARQUET:
            return from_csv(path, names, known, absent)
        return from_frame(parquet(path), str(path), names, known, absent)
    return from_frame(data, "the table", names, known, absent)


def names_of(data: Any) -> list[str]:
    """Return the names of the columns of a table."""
    if isinstance(data, Mapping):
        return list(data)
    if not isinstance(data, str | PathLike):
        return list(native(data, "the table").columns)
    path = Path(data)
    if path.suffix.lower() in PARQUET:
        return list(parquet_header(path).schema.to_arrow_schema().names)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        return [name.strip() for name in next(csv.reader(stream), [])]


def from_frame(
    data: Any, name: str, names: Sequence[str], known: Collection[str] | None, absent: Collection[str]
) -> Columns:
    if isinstance(data, Mapping):
        present, column = list(data), lambda key: entries(key, data[key])
    else:
        frame = native(data, name)
        present, column = frame.columns, lambda key: series(frame.get_column(key))
    check_names(name, present, names, known)
    found = {key: without(column(key), absent) for key in names}
    lengths = {key: len(values) for key, values in found.items()}
    if len(set(lengths.values())) != 1:
        raise DomainError(f"{name}: the columns have different lengths: {lengths}.")
    return Columns(name, found)


def native(data: Any, name: str) -> Any:
    """Return a data frame of whatever kind."""
    try:
        return nw.from_native(data, eager_only=True)
    except nw.exceptions.DuplicateError as error:
        listed = list(data.column_names if hasattr(data, "column_names") else data.columns)
        twice = next(key for key in listed if listed.count(key) > 1)
        raise DomainError(f"{name}: {listed.count(twice)} columns are called {twice!r}.") from error
    except TypeError as error:
        raise DomainError(
            "expected a data frame, a mapping of columns, or the path of a CSV or Parquet file, with names for its "
            f"columns, not a {type(data).__name__}."
        ) from error


def series(column: nw.Series[Any]) -> Values:
    """Return a column of a data frame: numbers as they are if none is missing, else objects with None for missing ones."""
    if column.dtype.is_numeric() and not column.is_null().any():
        return np.asarray(column.to_numpy())
    return objects(column.to_list())


def entries(name: str, column: Any) -> Values:
    if has_masked(column):
        raise DomainError(f"column {name!r}: entries are masked; put None for what is missing.")
    array = np.asarray(column) if hasattr(column, "dtype") else None
    if array is None or array.dtype.kind not in "iuf":
        listed = array.astype("datetime64[D]") if array is not None and array.dtype.kind == "M" else column
        array = objects(listed.tolist() if hasattr(listed, "tolist") else list(listed))
    if array.ndim != 1:
        raise DomainError(f"column {name!r}: expected one entry per record, got shape {array.shape}.")
    return array


def objects(values: list[Any]) -> Values:
    """Return a list as an array of objects, whatever they are."""
    return np.fromiter(values, dtype=object, count=len(values))


def without(values: Values, absent: Collection[str]) -> Values:
    """Replace the texts that stand for a missing value."""
    if values.dtype.kind != "O" or not absent:
        return values
    return objects([None if isinstance(value, str) and value in absent else value for value in values.tolist()])


def check_names(name: str, present: Sequence[Any], names: Sequence[str], known: Collection[str] | None) -> None:
    """Refuse a table that lacks a column, has one twice, or has one that is not known."""
    listed = list(present)
    for wanted in names:
        if listed.count(wanted) > 1:
            raise DomainError(f"{name}: {listed.count(wanted)} columns are called {wanted!r}.")
        if wanted not in listed:
            raise DomainError(f"{name}: there is no column {wanted!r}; the columns are {', '.join(map(str, listed))}.")
    # What has no name is the index that data frames write.
    unknown = [key for key in listed if known is not None and key not in known and key != ""]
    if unknown:
        raise DomainError(f"{name}: the column {unknown[0]!r} is not declared; declare it, or list it under ignore.")


def parquet(path: Path) -> Any:
    """Read a Parquet file with PyArrow."""
    return with_pyarrow(path, lambda module: module.read_table(path))


def parquet_header(path: Path) -> Any:
    """Return what a Parquet file says about itself."""
    if path.is_dir():
        raise DomainError(f"{path}: this is a folder, and a Parquet file was expected; give the files in it.")
    if not path.exists():
        raise DomainError(f"{path}: there is no such file.")
    return with_pyarrow(path, lambda module: module.read_metadata(path))


def with_pyarrow(path: Path, read: Callable[[Any], Any]) -> Any:
    """Read something of a Parquet file, or say that it is none."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DomainError(f"{path}: Parquet files need PyArrow: pip install 'dpconvex[tables]'.") from error
    try:
        return read(pyarrow.parquet)
    except pyarrow.ArrowException as error:
        raise DomainError(f"{path}: the file is damaged, or no Parquet file; write it anew.") from error


def from_csv(path: Path, names: Sequence[str], known: Collection[str] | None, absent: Collection[str]) -> Columns:
    """Return the columns of a CSV file with a header line."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            header = [name.strip() for name in next(reader, [])]
            if not header:
                raise DomainError(f"{path}: the file is empty; its first line must name the columns.")
            check_names(str(path), header, names, known)
            places = [header.index(name) for name in names]
            rows, lines = [], []
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise DomainError(
                        f"{path}, line {reader.line_num}: {len(row)} cells, but the header has {len(header)}."
                    )
                rows.append([row[index].strip() for index in places])
                lines.append(reader.line_num)
    except UnicodeDecodeError as error:
        raise DomainError(f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start}).") from error
    except csv.Error as error:
        raise DomainError(f"{path}, line {reader.line_num}: not valid CSV ({error}).") from error
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in names]
    return Columns(str(path), {n: without(objects(c), absent) for n, c in zip(names, columns, strict=True)}, lines)
