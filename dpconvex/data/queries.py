"""Results of database queries, read in blocks of rows in a fixed order, as partitions."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from typing import Any

import numpy as np

from dpconvex.data.tables import concatenate_values, objects
from dpconvex.errors import DomainError, DPConvexError
from dpconvex.util.arguments import COUNT, TEXT, refuse, require


@dataclass(frozen=True, eq=False)
class Blocks:
    """A partition of query blocks; a call reads the columns of `fields`, or an iterator of tables if `fields` is None."""

    query: "Query"
    numbers: Sequence[int]
    fields: Mapping[str, Any] | None

    @property
    def size(self) -> int:
        return sum(self.query.sizes[number] for number in self.numbers)

    def __call__(self) -> Any:
        tables, fields = map(self.query.block, self.numbers), self.fields
        if fields is None:
            return tables
        return join_columns({name: stacked(table, cols) for name, cols in fields.items()} for table in tables)


class Query:
    """The result of a query in blocks of `rows` rows; each pass runs the query again.

    The connection is one of DuckDB, a DB-API (SQLite, psycopg) or ADBC, or an engine or a connection of SQLAlchemy. For a
    PyArrow dataset, the query is None.
    """

    def __init__(
        self, connection: Any, sql: str | None, by: Any, rows: int, wanted: Callable[[list[str]], Sequence[str]]
    ) -> None:
        keys = list(by or ()) if isinstance(by, list | tuple | None) else [by]
        COUNT.check("from_query", rows=rows)
        TEXT.check("from_query", **{f"column {place} of by": key for place, key in enumerate(keys)})
        if hasattr(connection, "raw_connection"):  # an engine of SQLAlchemy
            connection = connection.raw_connection()
        elif hasattr(connection, "exec_driver_sql"):
            connection = connection.connection
        self.held = connection  # keep a reference: a dropped connection closes that of its driver
        self.source = getattr(connection, "driver_connection", connection)
        self.rows, self._open, self._next = rows, iter(()), -1
        if is_dataset := hasattr(self.source, "to_batches"):
            names, self.size = list(self.source.schema.names), int(self.source.count_rows())
        fits = isinstance(sql, str | None) and is_dataset == (sql is None) and not (is_dataset and keys)
        said = "from_query: pass a connection, as duckdb.connect(path), and a text in SQL; or a PyArrow dataset, None and by=None"
        require(fits and not isinstance(connection, str | PathLike), f"{said}.")
        inner = f"({(sql or '').strip().rstrip(';')}\n) AS asked"  # the text may end in a comment
        if not is_dataset:
            names = self._asked(f"SELECT * FROM {inner} WHERE 1 = 0")[0]
        self.names = list(wanted(names))
        listed, missing = ", ".join(names), (name for name in (*keys, *self.names) if names.count(name) != 1)
        refuse((f"the query must have one column {n!r}; its columns are {listed}." for n in missing), DomainError)
        self.sql = f"SELECT {', '.join(map(quoted, self.names))} FROM {inner}"
        if keys:  # only rows that are equal in all columns may swap
            self.sql += f" ORDER BY {', '.join(map(quoted, dict.fromkeys([*keys, *self.names])))}"
        if not is_dataset:
            self.size = int(self._asked(f"SELECT count(*) FROM {inner}")[1][0][0])
        self.sizes = [min(rows, self.size - start) for start in range(0, max(self.size, 1), rows)]  # of blocks

    def block(self, number: int) -> Any:
        """Return a block as a table; if the current pass is beyond the block, run the query again and skip earlier blocks."""
        with self._told():
            if not 0 <= self._next <= number:
                self._end()
                self._open, self._next = self._blocks(), 0
            found: Any = next(islice(self._open, number - self._next, None), None)
            self._next = number + 1
            if number == len(self.sizes) - 1:
                more = next(self._open, None)
                self._end()
                if more is not None:
                    raise changed(f"more than {self.size}", self.size)
        found = {name: [] for name in self.names} if found is None else found
        if (count := len(found[self.names[0]])) != self.sizes[number]:
            raise changed(number * self.rows + count, self.size)
        return found

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Context that turns errors of the database into a `DomainError`."""
        try:
            yield
        except DPConvexError:
            raise
        except Exception as error:
            self._end()
            said = (str(error).splitlines() or [""])[0]
            raise DomainError(f"the query failed ({type(error).__name__}: {said}).") from error

    def _end(self) -> None:
        """End the current pass and close its cursor."""
        if hasattr(self._open, "close"):
            self._open.close()
        self._open, self._next = iter(()), -1

    def _asked(self, sql: str) -> tuple[list[str], list[Any]]:
        """Run a query with a short result; return its column names and its rows."""
        with self._told():
            if hasattr(self.source, "sql"):
                relation = self.source.sql(sql)
                return list(relation.columns), relation.fetchall()
            with closed(self.source.cursor()) as cursor:
                cursor.execute(sql)
                return [column[0] for column in cursor.description], cursor.fetchall()

    def _blocks(self) -> Iterator[Any]:
        if hasattr(self.source, "to_batches"):
            yield from joined(self.source.to_batches(columns=self.names, batch_size=self.rows), self.rows)
        elif hasattr(self.source, "sql"):  # of DuckDB
            relation = self.source.sql(self.sql)
            read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
            with closed(read(self.rows)) as reader:
                yield from joined(reader, self.rows)
        else:  # psycopg fetches all rows at once unless the cursor has a name
            named = {"name": "dpconvex", "withhold": True} if hasattr(self.source, "pgconn") else {}
            with closed(self.source.cursor(**named)) as cursor:
                cursor.execute(self.sql)
                if hasattr(cursor, "fetch_record_batch"):  # of ADBC
                    yield from joined(cursor.fetch_record_batch(), self.rows)
                    return
                while block := cursor.fetchmany(self.rows):
                    yield dict(zip(self.names, map(list, zip(*block, strict=True)), strict=True))


@contextmanager
def closed(resource: Any) -> Iterator[Any]:
    """Context that closes a cursor or a stream at its end, and ignores errors of a connection closed before."""
    try:
        yield resource
    finally:
        with suppress(Exception):
            resource.close()


def joined(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    """Yield PyArrow tables of `rows` rows, the last one of fewer, from batches of any size."""
    import pyarrow as pa

    held: list[Any] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += len(batch)
        while count >= rows:
            table = pa.Table.from_batches(held)
            yield table[:rows]
            held, count = table[rows:].to_batches(), count - rows
    if count:
        yield pa.Table.from_batches(held)


def join_columns(pieces: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Concatenate the columns of several mappings by name."""
    first, *others = pieces
    if not others:
        return dict(first)
    several = {name: [column, *(other[name] for other in others)] for name, column in first.items()}
    rows = {name: np.ndim(own[0]) > 1 for name, own in several.items()}
    return {n: np.concatenate(own) if rows[n] else concatenate_values(own) for n, own in several.items()}


def stacked(table: Any, columns: str | Sequence[str]) -> Any:
    """Return a column of a table as an array, or several columns as a matrix."""
    if isinstance(columns, str):
        column = table[columns]
        if not hasattr(column, "to_numpy"):  # entries of several types keep their types
            return np.asarray(column) if {*map(type, column)} in ({int}, {float}) else objects(column)
        return objects(column.to_pylist()) if column.null_count else column.to_numpy()
    return np.column_stack([stacked(table, name) for name in columns])


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def changed(count: object, known: int) -> DomainError:
    why = f"the query has {count} rows, but had {known} when the Partitions were made: data must not change"
    return DomainError(f"{why}. Nothing is released.")
