"""Data in partitions: this process, or the workers of a Dask cluster, read, check and sum each partition in place.

Only sums leave a worker. Errors come back as results: Dask logs exceptions, and messages of the check quote values.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from os import PathLike
from os.path import abspath
from pathlib import Path
from typing import Any, Self, cast
from zlib import crc32

import numpy as np

from dpconvex.data.batch import Batch, PartitionedBatch, Place, in_partition, is_lazy
from dpconvex.data.columns import FileRows, check_aligned, check_names, names_of, records_of
from dpconvex.data.dask_columns import dask_parts, has_partitions, is_frame
from dpconvex.data.domains import Ball
from dpconvex.data.learnt import Origin, origin_of
from dpconvex.data.queries import Blocks, Query, join_columns
from dpconvex.data.tables import PARQUET, Table, identifiers_of, path_of, read_parquet, table_of
from dpconvex.data.validation import label_entries, length_of
from dpconvex.data.workers import Workers
from dpconvex.errors import DomainError, DPConvexError
from dpconvex.util.arguments import SWITCH, Kind, refuse, require

LARGEST_KEPT = 2**31  # Bytes of the features of tables that stay in memory by default


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """A partition before it is read, with its size and columns as far as they are known."""

    value: Any  # columns by name, a table or its path, a function, or an object of Dask
    size: int | None = None
    form: Mapping[str, Any] | None = None  # its columns, with or without records
    local: bool = False  # whether this process holds some of its data in memory


class Partitions:
    """Declare data in partitions. Memory must hold one partition at a time.

    Parameters
    ----------
    source : list, Dask data frame, or path of a folder
        A list has one entry for each partition.  An entry is a mapping of fields to columns (a column may be the path of an .npy
        file), a function without arguments that returns such a mapping, or a `dask.delayed` object or a future of one.  With a
        schema, tables replace the mappings: data frames, paths of Parquet or CSV files, or a folder of Parquet files.
    schema : Schema, optional
        Encodes each partition, a table, as the fields x and y.  Its `privacy_unit` is the column of identifiers.
    keep : bool, optional
        Keep partitions in memory after the first reading.  Otherwise each pass reads and checks them again.  By default workers
        keep them, except .npy files, and a single process keeps arrays, and tables whose features take up to 2 GiB.

    Examples
    --------
    >>> import dpconvex as dp
    >>> learner = dp.load("logistic_regression", features=1)
    >>> parts = [{"x": [[1.0], [0.5]], "y": [1, 1]}, {"x": [[-1.0]], "y": [-1]}]
    >>> dp.solve(learner, dp.Partitions(parts), dp.Privacy(1.0)).certificate.size
    3
    """

    def __init__(self, source: Any, schema: Any = None, *, keep: bool | None = None) -> None:
        SWITCH.or_none.check("Partitions", keep=keep)
        Kind("a dpconvex.Schema", lambda given: hasattr(given, "encode")).or_none.check("Partitions", schema=schema)
        self.schema, self.keep, self.privacy_unit = schema, keep, getattr(schema, "privacy_unit", None)
        self.marks: list[int | None] = []  # Checksums of identifiers that were read
        self.turns: tuple[Callable[[Any], Any], ...] = ()
        self.sources = self._sources(source)
        require(self.sources, "Partitions: there is no partition.", DomainError)
        first = self.sources[0].value if schema is None else schema.record.fields
        self.fields = list(first) if isinstance(first, Mapping) else None
        self.local = any(source.local for source in self.sources)
        futures = any(is_lazy(s.value) and not hasattr(s.value, "compute") for s in self.sources)
        said = "Partitions: some are in memory here, and others are futures; send all to the cluster (client.scatter)."
        require(not (self.local and futures), said, DomainError)

    @classmethod
    def from_query(
        cls,
        connection: Any,
        sql: str | None,
        schema: Any = None,
        *,
        by: str | Sequence[str] | None,
        fields: Mapping[str, str | Sequence[str]] | None = None,
        rows: int = 250_000,
        keep: bool | None = None,
        unit: str | None = None,
    ) -> Self:
        """Return the answer to a query as partitions, which this process reads block by block in every pass.

        Only columns that the schema or `fields` names are read.  Changed rows raise a `DomainError`.

        Parameters
        ----------
        connection : connection, engine or dataset
            Of DuckDB, SQLite, psycopg or ADBC; an engine or a connection of SQLAlchemy; or a dataset of PyArrow.
        sql : str or None
            The query; None for a dataset.
        schema : Schema, optional
            Turns rows into the fields x and y.
        by : str, sequence of str, or None
            Columns to sort the rows by, such as a key.  Pass None only for a query that returns the same order each time: it
            has an ORDER BY, or reads Parquet files by DuckDB.
        fields : mapping, optional
            Without a schema: for each field a column, or several that make a matrix.  By default a field for each column.
        rows : int
            Number of rows in a block.
        keep : bool, optional
            Keep features in memory as one partition after the first reading; by default if they take up to 2 GiB.  Otherwise
            each block is a partition, and is read again in each pass.
        unit : str, optional
            Column of identifiers of people with several records, not a field; by default the schema's `privacy_unit`.

        Examples
        --------
        >>> import sqlite3
        >>> import dpconvex as dp
        >>> connection = sqlite3.connect(":memory:")
        >>> _ = connection.execute("CREATE TABLE visits AS SELECT 1 AS id, 50 AS age, 'no' AS sick UNION SELECT 2, 80, 'yes'")
        >>> schema = dp.Schema({"age": (0, 100)}, label="sick", labels=["no", "yes"])
        >>> dp.Partitions.from_query(connection, "SELECT * FROM visits", schema, by="id").sizes
        (2,)
        >>> connection.close()
        """

        def wanted(names: list[str]) -> list[str]:
            if schema is not None:
                schema.check_names({name: [] for name in names})
                return [*schema.features, schema.label, *mine]
            several = [[c] if isinstance(c, str) else list(c) for c in (fields or {}).values()]
            return list(dict.fromkeys([*chain.from_iterable(several), *mine])) if fields else names

        said = "from_query: declare the unit in the schema, as privacy_unit='patient', not here."
        require(schema is None or unit is None, said)
        mine = [name for name in (unit, getattr(schema, "privacy_unit", None)) if name is not None]
        query = Query(connection, sql, by, rows, wanted)
        fields = fields or {name: name for name in query.names if name not in mine}
        columns = None if schema is not None else {**fields, **{name: name for name in mine}}
        width = len(query.names if schema is None else schema.feature_names)
        kept, numbers = 8 * width * query.size <= LARGEST_KEPT if keep is None else keep, range(len(query.sizes))
        parts = [Blocks(query, part, columns) for part in ([numbers] if kept else [[k] for k in numbers])]
        made = cls(parts, schema, keep=kept)
        made.sources = [Source(part, part.size, local=True) for part in parts]
        made.fields, made.local = made.fields or list(fields), True
        made.privacy_unit = mine[0] if mine else None
        return made

    def _sources(self, source: Any) -> list[Source]:
        if is_frame(source) and self.schema is not None:
            self.schema.check_names(source._meta)
            return [Source(part) for part in source.to_delayed()]
        if is_frame(source) or isinstance(source, Mapping):
            return [Source(*part) for part in dask_parts(source)]
        path = isinstance(source, str | PathLike)
        found = files_of(path_of(source)) if path and self.schema is not None else source
        if isinstance(found, list | tuple):
            return [in_partition(number, self._source, entry) for number, entry in enumerate(found)]
        given = source if path else type(source).__name__
        raise DomainError(f"Partitions: pass a list, a Dask frame or a folder (tables need a schema), not {given}.")

    def _source(self, entry: Any) -> Source:
        """Return the `Source` of a list entry; raise if a table or file lacks the columns of the schema."""
        if is_lazy(entry) or callable(entry):
            return Source(entry)
        if self.schema is not None:
            self.schema.check_names(entry)
            if not isinstance(entry, str | PathLike):
                return Source(entry, table_of(entry).size, local=True)
            path, size = Path(abspath(entry)), None
            if path.suffix.lower() in PARQUET:
                size = read_parquet(path, lambda parquet: int(parquet.read_metadata(path).num_rows))
            return Source(path, size)
        given, said = mapping_of(entry), "its columns are Dask objects; make the whole partition delayed or a future."
        require(not any(map(is_lazy, given.values())), said, DomainError)
        columns = {n: FileRows(c) if isinstance(c, str | PathLike) else c for n, c in given.items()}
        local = not all(isinstance(column, FileRows) for column in columns.values())
        return Source(columns, seen_of(None, columns)[0], columns, local)

    def forms(self) -> list[tuple[int, Mapping[str, Any]]]:
        """Return (number, columns) of each partition with columns known before reading; the columns may be empty."""
        known = self.sources if self.schema is None and not self.turns else []
        return [(number, source.form) for number, source in enumerate(known) if source.form is not None]

    def turned(self, function: Callable[[Any], Any], fields: Sequence[str] | None = None) -> Self:
        """Return the same partitions with a further record-wise function of their columns, applied at each reading."""
        made = copy(self)
        made.turns, made.fields = (*self.turns, function), None if fields is None else list(fields)
        return made

    def keys(self) -> list[str] | None:
        """Return the names of the fields; None if they are unknown until a partition is read."""
        return self.fields

    @property
    def place(self) -> Place:
        values = [source.value for source in self.sources]
        if not self.local and "distributed" in sys.modules:
            from distributed import default_client

            with suppress(ValueError):  # there is no client
                return Workers(default_client(), values, self.keep)
        sizes: Any = self.sizes if "_seen" in vars(self) else [source.size for source in self.sources]
        known = self.schema is not None and None not in sizes
        small = known and 8 * len(self.schema.feature_names) * sum(sizes) <= LARGEST_KEPT
        return Place(values, True if small and self.keep is None else self.keep)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of records of the partitions. Tables and Dask results may have to be read to count them."""
        return self._seen[0]

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """Names of the columns of fields that are data frames, the same in all partitions."""
        return self._seen[1]

    @property
    def origin(self) -> Origin:
        """The combined origin of the columns. Without a schema, partitions may have to be read to find it."""
        return origin_of(Origin((), self.privacy_unit), self._seen[2] if self.schema is None else self.schema)

    @cached_property
    def _seen(self) -> tuple[tuple[int, ...], dict[str, tuple[str, ...]], Origin]:
        seen: list[Any] = [(source.size, *known_of(source.form or {})) for source in self.sources]
        if any(size is None for size, *_ in seen):
            seen = self.place.asked(partial(seen_of, self.schema), range(len(seen)))
        names: dict[str, tuple[str, ...]] = {}
        for number, (_, given, _) in enumerate(seen):
            for field, columns in given.items():
                in_partition(number, check_names, f"field {field!r}", names.setdefault(field, columns), columns)
        return tuple(size for size, *_ in seen), names, origin_of(*(origin for *_, origin in seen))

    def width(self, field: str, known: int | None = None) -> int:
        """Return the number of features in a field, if unknown of the first partition; raise if other known partitions differ."""
        if known is None and self.schema is None:
            known = int(self.place.asked(partial(width_of, field), [0])[0])
        known = len(self.schema.feature_names) if known is None else known
        for number, form in self.forms():
            in_partition(number, length_of, field, Ball(known), form.get(field))
        return known

    def identifiers(self, given: Any = None) -> Any:
        """Return the identifiers of the records' people from the `privacy_unit` column; without this column, return `given`.

        Raise if `given` differs from the column, or accompanies a query, because the query may order its rows differently.
        """
        if self.privacy_unit is None:
            why = "unit: identifiers beside a query may have another order than its rows; nothing was spent"
            remedy = "Name their column: from_query(..., unit='patient'), or privacy_unit= of the schema"
            require(given is None or not isinstance(self.sources[0].value, Blocks), f"{why}. {remedy}.", DomainError)
            return given
        each = self.place.asked(partial(whose, self.schema, self.privacy_unit), range(len(self.sources)))
        found, self.marks = list(chain.from_iterable(each)), list(map(mark_of, each))
        if given is not None and not (isinstance(given, str) and given == self.privacy_unit):
            why = f"unit: these identifiers differ from the column {self.privacy_unit!r}; nothing was spent"
            same = isinstance(given, Iterable) and label_entries("unit", given) == found
            require(same, f"{why}. Leave unit= out: partitions carry their identifiers.", DomainError)
        return found

    def batch(self, record: Any, clip: bool) -> PartitionedBatch:
        turns = self.turns if self.schema is not None else (self.origin.checked, *self.turns)
        check = partial(checked, record, clip, self.schema, self.privacy_unit, self.keep is True, turns)
        return PartitionedBatch.read(self.place, check, self.marks or [None] * len(self.sources))


def normalized(data: Any) -> Any:
    """Return Dask data as `Partitions`, and other data unchanged."""
    return Partitions(data) if has_partitions(data) else data


def files_of(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder; skip hidden and other files, and raise if there is a subfolder."""
    said = f"{folder}: not a folder; pass a list of files, or a folder of Parquet files."
    require(folder.is_dir(), said, DomainError)
    shown = [file for file in sorted(folder.iterdir()) if not file.name.startswith((".", "_"))]
    inner = filter(Path.is_dir, shown)
    refuse((f"{name}: subfolders are not read; pass a list of files." for name in inner), DomainError)
    files = [file for file in shown if file.suffix.lower() in PARQUET]
    require(files, f"{folder}: the folder has no Parquet files.", DomainError)
    return files


def tables_in(data: Any) -> Iterator[Table]:
    """Yield the tables of partitions or of a folder of Parquet files; otherwise yield the data as one table."""
    if isinstance(data, Partitions):
        yield from (table_of(table) for source in data.sources for table in several(taken(source.value)))
    else:
        folder = isinstance(data, str | PathLike) and path_of(data).is_dir()
        yield from map(table_of, files_of(path_of(data)) if folder else [data])


# Functions that run where a partition is stored


def taken(value: Any) -> Any:
    if is_lazy(value):
        said = "a partition is a future, but there is no distributed.Client to read it."
        require(hasattr(value, "compute"), said, DomainError)
        value = value.compute(scheduler="synchronous")
    try:
        return value() if callable(value) else value
    except (DPConvexError, OSError):  # Dask may retry to read a file
        raise
    except Exception as error:
        raise DomainError(f"the function that makes it failed with {type(error).__name__}.") from error


def checked(
    record: Any, clip: bool, schema: Any, unit: Any, load: bool, turns: Sequence[Any], value: Any, mark: int | None
) -> Batch:
    found, people = taken(value), list[Any]()
    if schema is not None:
        pieces = []
        for table in several(found):
            people += [] if mark is None else whose(schema, unit, table)
            pieces.append(schema.records(table, clip=clip or None, empty=True))
        found = join_columns(pieces)
    elif unit is not None:
        people = whose(None, unit, found)
        found = {name: column for name, column in found.items() if name != unit}
    said = "unit: its identifiers have changed since they were read; data must not change."
    require(mark in (None, mark_of(people)), said, DomainError)
    if load:
        found = {name: c[:] if isinstance(c, FileRows) else c for name, c in found.items()}
    for turn in turns:
        found = turn(found)
    return record.validate(found, clip=clip, empty=True)


def several(found: Any) -> Iterable[Any]:
    return found if isinstance(found, Iterator) else [found]


def whose(schema: Any, unit: str, value: Any) -> list[Any]:
    """Return the identifiers of people in a partition, or in its tables."""
    parts = (table[unit] if schema is None else schema.units(table) for table in several(taken(value)))
    return [entry for part in parts for entry in identifiers_of(part)]


def mark_of(identifiers: Sequence[Any]) -> int:
    return crc32(repr(identifiers).encode())


def seen_of(schema: Any, value: Any) -> tuple[int, dict[str, tuple[str, ...]], Origin]:
    found = taken(value)
    if schema is not None:
        return table_of(found).size, {}, Origin()
    check_aligned(mapping_of(found))
    return max(map(records_of, found.values()), default=0), *known_of(found)


def known_of(columns: Mapping[str, Any]) -> tuple[dict[str, tuple[str, ...]], Origin]:
    names = {name: names for name, column in columns.items() if (names := names_of(column))}
    return names, origin_of(*columns.values())


def mapping_of(value: Any) -> Mapping[str, Any]:
    said = f"it must map fields to columns, or be a table with a schema, not a {type(value).__name__}."
    require(isinstance(value, Mapping), said, DomainError)
    return cast(Mapping[str, Any], value)


def width_of(field: str, value: Any) -> int:
    column = mapping_of(taken(value)).get(field)
    shape = () if column is None else tuple(getattr(column, "shape", None) or np.shape(column))
    require(len(shape) == 2, f"field {field!r}: expected a column of shape (n, features), not {shape}.", DomainError)
    return int(shape[1])
