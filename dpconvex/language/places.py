"""Partitions in this process, and how any process reads and checks one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from dpconvex.core.summation import Tree
from dpconvex.errors import DomainError
from dpconvex.language.batch import Batch
from dpconvex.language.columns import itself, records_of
from dpconvex.language.dask_sources import resolved
from dpconvex.language.file_rows import FileRows
from dpconvex.language.tables import table_of

if TYPE_CHECKING:
    from dpconvex.language.record import Record
    from dpconvex.language.schema import Schema


@dataclass(frozen=True, repr=False)
class Check:
    """What turns a partition into records inside their domains, whenever it is read."""

    record: Record
    clip: bool
    schema: Schema | None
    load: bool = False
    turns: tuple[Callable[[Any], Any], ...] = ()

    def __call__(self, source: Any) -> Batch:
        """Return the records of a partition, or raise `DomainError`."""
        found = source() if callable(source) else source
        if self.schema is not None:
            x, y = self.schema.encode(found, clip=self.clip or None, empty=True)
            found = {"x": x, "y": y}
        if self.load:
            found = {name: np.asarray(c) if isinstance(c, FileRows) else c for name, c in found.items()}
        for turn in self.turns:
            found = turn(found)
        return self.record.validate(found, clip=self.clip, empty=True)


def count(source: Any) -> int:
    """Return the number of records of a partition, by reading it."""
    found = source() if callable(source) else source
    if isinstance(found, Mapping):
        return max((records_of(column) for column in found.values()), default=0)
    if isinstance(found, str | PathLike):
        table = table_of(found)
        return len(table.column(table.names[0]))
    return records_of(found)


def width(field: str, source: Any) -> int:
    """Return the number of features in a field of a partition, by reading it."""
    found = source() if callable(source) else source
    shape = column_shape(found[field]) if isinstance(found, Mapping) and field in found else ()
    if len(shape) != 2:
        raise DomainError(f"field {field!r}: expected a column of shape (n, features), not {shape}.")
    return int(shape[1])


def column_shape(column: Any) -> tuple[int, ...]:
    return tuple(getattr(column, "shape", None) or np.shape(column))


class Here:
    """Partitions in this process, one after the other."""

    def asked(self, function: Callable[[Any], int], sources: Sequence[Any]) -> list[int]:
        """Return a number for each partition, which a function reads."""
        return [here(number, answered, source, function) for number, source in enumerate(sources)]

    def read(self, sources: Sequence[Any], check: Check, keep: bool | None) -> tuple[list[Any], list[int]]:
        """See `Place`."""
        parts: list[Callable[[], Batch]] = []
        sizes = []
        for number, source in enumerate(sources):
            part = partial(read, source, check, number, None)
            batch = part()
            stays = keep or (isinstance(source, Mapping) and keep is None)
            parts.append(partial(itself, batch) if stays else partial(read, source, check, number, batch.size))
            sizes.append(batch.size)
        return parts, sizes

    def share(self, value: Any) -> Any:
        """See `Place`."""
        return value

    def each(
        self, function: Callable[..., Any], shared: Any, parts: Mapping[int, Any], own: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """See `Place`."""
        for number, part in parts.items():
            yield number, here(number, function, part(), shared, *own[number])

    def sums(
        self,
        function: Callable[..., Any],
        shared: Any,
        parts: Mapping[int, Any],
        own: Mapping[int, tuple[Any, ...]],
        tree: Tree,
    ) -> Iterator[tuple[int, Any]]:
        """See `Place`."""
        return self.each(function, shared, parts, own)

    def mapped(
        self,
        function: Callable[..., Batch],
        shared: Any,
        parts: Sequence[Any],
        own: Sequence[Any],
        sizes: Sequence[int],
    ) -> list[Any]:
        """See `Place`."""
        return [
            partial(itself, function(part(), shared, *given))
            if part.func is itself
            else partial(composed, function, part, shared, *given)
            for part, given in zip(parts, own, strict=True)
        ]


def composed(function: Callable[..., Batch], part: Callable[[], Batch], shared: Any, *own: Any) -> Batch:
    """Make the records of a partition anew."""
    return function(part(), shared, *own)


def read(source: Any, check: Check, number: int, size: int | None) -> Batch:
    """Read and check a partition; one that was read before must have as many records as then."""
    return unchanged(here(number, checked, source, check), number, size)


def answered(source: Any, function: Callable[[Any], int]) -> int:
    """Ask a partition that Dask may have to compute."""
    return function(resolved(source))


def checked(source: Any, check: Check) -> Batch:
    """Check a partition that Dask may have to compute."""
    return check(resolved(source))


def within(number: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with a partition; an error in its records says which it is."""
    try:
        return function(*arguments)
    except DomainError as error:
        raise numbered(number, error) from error.__cause__


def here(number: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with a partition, in this process, where a file that cannot be read will not be tried again."""
    try:
        return within(number, function, *arguments)
    except OSError as error:
        raise unreadable(number, error) from error


def unreadable(number: int, error: BaseException) -> DomainError:
    """Say which partition cannot be read, and why, without what the error tells of its records."""
    file = isinstance(error, OSError) and error.filename is not None
    what = f"{type(error).__name__}: {error.filename}" if file else type(error).__name__  # type: ignore[attr-defined]
    return DomainError(
        f"partition {number} cannot be read ({what}); nothing is released. Look at its file, or at the function or the task that "
        "makes it."
    )


def unchanged(batch: Batch, number: int, size: int | None) -> Batch:
    """Refuse a partition with other than so many records."""
    if size is not None and batch.size != size:
        raise DomainError(
            f"partition {number} holds {batch.size} records, and held {size} when it was checked; nothing is released. Data must "
            "not change during a fit."
        )
    return batch


def numbered(number: int, error: DomainError) -> DomainError:
    """Say in which partition an error is; its rows are those of the partition."""
    return DomainError(f"partition {number}: {error}")
