"""Records in partitions: each is read, checked and summed up where it lies, and no more than sums leave it.

A partition is made by its *source*: columns in memory or in files, a table with a schema, a function, or something that Dask
computes.  A *place* reads partitions and calls functions with them: this process, one partition after the other (`places`), or
the workers of a Dask cluster (`workers`).  Whoever sums up over the records asks a `PartitionedBatch` and does not know which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from os import PathLike
from os.path import abspath
from pathlib import Path
from typing import Any

from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.batch import PartitionedBatch
from dpconvex.language.columns import FileRows, records_of
from dpconvex.language.dask_sources import Source, has_partitions, is_frame, is_lazy, sources_of_columns
from dpconvex.language.places import Check, Here, count, width, within
from dpconvex.language.tables import PARQUET, path_of, rows_of_parquet
from dpconvex.language.validation import length_of_numbers
from dpconvex.language.workers import Workers, workers


class Partitions:
    """Data in partitions, of which no more than one need be in memory at a time.

    Parameters
    ----------
    source : list, Dask data frame, or path of a folder
        A list has one entry for each partition: a mapping of fields to columns, in which a column may be the path of an .npy
        file; a function without arguments that returns such a mapping; or a `dask.delayed` object or a future of one.  With a
        schema, tables stand for the mappings: data frames, or paths of Parquet or CSV files.  Of a folder, each of its Parquet
        files is a partition.
    schema : Schema, optional
        Turns each partition, a table, into the fields x and y.
    keep : bool, optional
        Whether partitions that are not in memory yet stay there after they were read for the first time; if not, they are
        read and checked again for each pass.  By default workers keep them, and a single process does not.  Columns in .npy
        files are kept only if that is asked for: they are read block by block.

    Examples
    --------
    >>> import dpconvex as dp
    >>> learner = dp.load("logistic_regression", features=1)
    >>> parts = [{"x": [[1.0], [0.5]], "y": [1, 1]}, {"x": [[-1.0]], "y": [-1]}]
    >>> release = dp.solve(learner, dp.Partitions(parts), dp.Privacy(1.0))
    >>> release.certificate.size
    3
    """

    def __init__(self, source: Any, schema: Any = None, *, keep: bool | None = None) -> None:
        if not (keep is None or isinstance(keep, bool)):
            raise TemplateError(f"Partitions: keep must be True, False or None, not {keep!r}.")
        if not (schema is None or hasattr(schema, "encode")):
            raise TemplateError(f"Partitions: schema must be a dpconvex.Schema, not a {type(schema).__name__}.")
        self.schema, self.keep = schema, keep
        self.turns: tuple[Callable[[Any], Any], ...] = ()
        self.fields: list[str] | None = None
        self.sources = [self._source(number, entry) for number, entry in enumerate(self._entries(source))]
        if not self.sources:
            raise DomainError("Partitions: there is no partition.")
        if any(source.local for source in self.sources) and any(source.future for source in self.sources):
            raise DomainError(
                "Partitions: some are in this process's memory, and others are futures of a cluster; send the first to the "
                "workers (client.scatter), or make all of them delayed objects."
            )

    def _entries(self, source: Any) -> Sequence[Any]:
        if is_frame(source) and self.schema is not None:
            self.schema.check_names(source._meta)
            return [Source(part) for part in source.to_delayed()]
        if is_frame(source) or isinstance(source, Mapping):
            return sources_of_columns(source)
        if isinstance(source, str | PathLike) and self.schema is not None:
            return files_of(path_of(source))
        if isinstance(source, list | tuple):
            return source
        raise DomainError(
            "Partitions: expected a list with an entry for each partition, a Dask data frame, or, with a schema, a folder, not "
            f"{source if isinstance(source, str | PathLike) else type(source).__name__}; a folder holds tables, which need a "
            "schema, and paths of .npy files go into a list."
        )

    def _source(self, number: int, entry: Any) -> Source:
        if isinstance(entry, Source):
            return entry
        return Source(entry) if is_lazy(entry) or callable(entry) else within(number, self._here, entry)

    def _here(self, entry: Any) -> Source:
        """Return a partition that is in memory or in files; names of columns of tables are checked."""
        if self.schema is not None:
            self.schema.check_names(entry)
            if not isinstance(entry, str | PathLike):
                return Source(entry, count(self.schema, entry), local=True)
            path = abspath(entry)
            return Source(path, rows_of_parquet(Path(path)) if Path(path).suffix.lower() in PARQUET else None)
        if not isinstance(entry, Mapping) or any(map(is_lazy, entry.values())):
            raise DomainError(
                "a partition must map fields to columns that are not of Dask, or be a table with a schema, a function, or of "
                f"Dask as a whole, such as dask.delayed({{...}}), not a {type(entry).__name__}."
            )
        columns = {name: FileRows.of(c) if isinstance(c, str | PathLike) else c for name, c in entry.items()}
        local = not all(isinstance(column, FileRows) for column in columns.values())
        return Source(columns, max(map(records_of, columns.values()), default=0), columns, local)

    def forms(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield numbers and columns of partitions, or columns like theirs without records, that can be looked at unread."""
        if self.schema is None and not self.turns:
            yield from ((number, source.form) for number, source in enumerate(self.sources) if source.form is not None)

    def turned(self, function: Callable[[Any], Any], fields: Sequence[str] | None = None) -> Partitions:
        """Return the same partitions, of which a function makes columns, of these names, whenever they are read.

        The function keeps the number of records, and treats every record by itself.
        """
        made = copy(self)
        made.turns, made.fields = (*self.turns, function), None if fields is None else list(fields)
        return made

    def keys(self) -> list[str] | None:
        """Names of the fields; None where only a partition itself can tell."""
        if self.turns:
            return self.fields
        if self.schema is not None:
            return list(self.schema.record.fields)
        first = self.sources[0].value
        return list(first) if isinstance(first, Mapping) else None

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of records of each partition; those of tables and of what Dask computes may have to be read for it."""
        known = [source.size for source in self.sources if source.size is not None]
        if len(known) < len(self.sources):
            known = place_of(self).asked(partial(count, self.schema), self.sources)
        return tuple(known)

    def width(self, field: str, known: int | None = None) -> int:
        """Return the number of features in a field, which all partitions that can be looked at must have.

        Of partitions that have to be read for that, the first is.
        """
        if known is None and self.schema is not None:
            known = len(self.schema.feature_names)
        if known is None:
            known = place_of(self).asked(partial(width, field), self.sources[:1])[0]
        for number, form in self.forms():
            within(number, length_of_numbers, field, (known,), form.get(field))
        return known

    def batch(self, record: Any, clip: bool) -> PartitionedBatch:
        check = Check(record, clip, self.schema, self.keep is True, self.turns)
        place, sizes = place_of(self).read(self.sources, check, self.keep)
        return PartitionedBatch(sizes, place)


def settled(data: Any) -> Any:
    """Return data as what they are to everybody from here on: `Partitions`, which know their sizes, or a mapping of columns."""
    return Partitions(data) if has_partitions(data) else data


def files_of(folder: Path) -> list[Path]:
    """Return the Parquet files of a folder; hidden ones and other files are left out, and folders in it are refused."""
    if not folder.is_dir():
        what = "this is a file; give a list of files" if folder.exists() else "there is no such folder"
        raise DomainError(f"{folder}: {what}, or a folder of Parquet files.")
    shown = [file for file in sorted(folder.iterdir()) if not file.name.startswith((".", "_"))]
    for file in shown:
        if file.is_dir():
            raise DomainError(
                f"{file}: a folder in a folder is not read, because what its name says is in no column; give a list of files."
            )
    files = [file for file in shown if file.suffix.lower() in PARQUET]
    if not files:
        raise DomainError(f"{folder}: the folder has no Parquet files.")
    return files


def place_of(partitions: Partitions) -> Here | Workers:
    return (None if any(source.local for source in partitions.sources) else workers()) or Here()
