"""How a partition is read and checked, in any process, and partitions that this process reads one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any

import numpy as np

from dpconvex.core.summation import Tree
from dpconvex.errors import DomainError
from dpconvex.language.batch import Batch
from dpconvex.language.columns import records_of
from dpconvex.language.dask_sources import resolved
from dpconvex.language.file_rows import FileRows
from dpconvex.language.tables import table_of

Seen = tuple[int, int | None]  # number of records, and their fingerprint where they must not be others


@dataclass(frozen=True, repr=False)
class Check:
    """What turns a partition into records inside their domains, whenever it is read."""

    record: Any
    clip: bool
    schema: Any
    load: bool = False
    turns: tuple[Callable[[Any], Any], ...] = ()

    def __call__(self, source: Any) -> Batch:
        found = source() if callable(source) else source
        if self.schema is not None:
            x, y = self.schema.encode(found, clip=self.clip or None, empty=True)
            found = {"x": x, "y": y}
        if self.load:
            found = {name: np.asarray(c) if isinstance(c, FileRows) else c for name, c in found.items()}
        for turn in self.turns:
            found = turn(found)
        batch: Batch = self.record.validate(found, clip=self.clip, empty=True)
        return batch


def count(source: Any) -> int:
    found = source() if callable(source) else source
    if isinstance(found, Mapping):
        return max(map(records_of, found.values()), default=0)
    if isinstance(found, str | PathLike):
        table = table_of(found)
        return len(table.column(table.names[0]))
    if not hasattr(found, "__len__"):
        raise DomainError(f"it must map fields to columns, or be a table with a schema, not a {type(found).__name__}.")
    return records_of(found)


def width(field: str, source: Any) -> int:
    found = source() if callable(source) else source
    column = found.get(field) if isinstance(found, Mapping) else None
    shape = () if column is None else tuple(getattr(column, "shape", None) or np.shape(column))
    if len(shape) != 2:
        raise DomainError(f"field {field!r}: expected a column of shape (n, features), not {shape}.")
    return int(shape[1])


class Here:
    """Partitions in this process: each is its records, or a function that returns them."""

    def __init__(self, parts: Sequence[Batch | Callable[[], Batch]] = ()) -> None:
        self.parts = parts

    def asked(self, function: Callable[[Any], int], sources: Sequence[Any]) -> list[int]:
        return [here(number, lambda s: function(resolved(s)), source) for number, source in enumerate(sources)]

    def read(self, sources: Sequence[Any], check: Check, keep: bool | None) -> tuple[Here, list[int]]:
        parts: list[Batch | Callable[[], Batch]] = []
        sizes = []
        for number, source in enumerate(sources):
            batch = read(source, check, number)
            stays = keep or (isinstance(source, Mapping) and keep is None)
            parts.append(batch if stays else partial(read, source, check, number, (batch.size, batch.fingerprint)))
            sizes.append(batch.size)
        return Here(parts), sizes

    def share(self, value: Any) -> Any:
        return value

    def each(
        self, function: Callable[..., Any], shared: Any, own: Mapping[int, tuple[Any, ...]], tree: Tree | None = None
    ) -> Iterator[tuple[int, Any]]:
        for number, given in own.items():
            yield number, here(number, function, itself(self.parts[number]), shared, *given)

    def mapped(
        self, function: Callable[..., Batch], shared: Any, own: Sequence[tuple[Any, ...]], sizes: Sequence[int]
    ) -> Here:

        def made(part: Batch | Callable[[], Batch], given: tuple[Any, ...]) -> Batch:
            return function(itself(part), shared, *given)

        pairs = zip(self.parts, own, strict=True)
        return Here([partial(made, *pair) if callable(pair[0]) else made(*pair) for pair in pairs])


def itself(part: Batch | Callable[[], Batch]) -> Batch:
    return part() if callable(part) else part


def read(source: Any, check: Check, number: int, seen: Seen | None = None) -> Batch:
    """Read and check a partition; one that was read before must be as it was."""
    return unchanged(here(number, lambda found: check(resolved(found)), source), number, seen)


def within(number: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with a partition; an error in its records says which it is, and any other remembers."""
    try:
        return function(*arguments)
    except DomainError as error:
        raise DomainError(f"partition {number}: {error}") from error.__cause__
    except Exception as error:
        error.partition = number  # type: ignore[attr-defined]
        raise


def here(number: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with a partition, in this process, where a file that cannot be read will not be tried again."""
    try:
        return within(number, function, *arguments)
    except OSError as error:
        raise unreadable(number, error) from error


def unreadable(number: int, error: BaseException) -> DomainError:
    file = f": {error.filename}" if isinstance(error, OSError) and error.filename is not None else ""
    return DomainError(
        f"partition {number} cannot be read ({type(error).__name__}{file}); nothing is released. Look at its file, or at the "
        "function or the task that makes it."
    )


def unchanged(batch: Batch, number: int, seen: Seen | None) -> Batch:
    """Refuse a partition that has another number of records than when it was checked, or others."""
    size, fingerprint = seen or (batch.size, None)
    if batch.size == size and fingerprint in (None, batch.fingerprint):
        return batch
    what = f"{batch.size} records, and held {size}" if batch.size != size else "other records than"
    raise DomainError(
        f"partition {number} holds {what} when it was checked; nothing is released. Data must not change during a fit."
    )
