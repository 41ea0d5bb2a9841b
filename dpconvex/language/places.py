"""How a partition is read and checked, in any process, and partitions that this process reads one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dpconvex.errors import DomainError
from dpconvex.language.batch import Batch
from dpconvex.language.columns import FileRows, records_of
from dpconvex.language.dask_sources import Source, resolved
from dpconvex.language.tables import table_of


@dataclass(frozen=True, repr=False)
class Check:
    """What turns a partition into records inside their domains, whenever it is read."""

    record: Any
    clip: bool
    schema: Any
    load: bool = False
    turns: tuple[Callable[[Any], Any], ...] = ()

    def __call__(self, value: Any) -> Batch:
        found = called(value)
        if self.schema is not None:
            x, y = self.schema.encode(found, clip=self.clip or None, empty=True)
            found = {"x": x, "y": y}
        if self.load:
            found = {name: np.asarray(c) if isinstance(c, FileRows) else c for name, c in found.items()}
        for turn in self.turns:
            found = turn(found)
        batch: Batch = self.record.validate(found, clip=self.clip, empty=True)
        return batch


def called(value: Any) -> Any:
    return value() if callable(value) else value


def count(schema: Any, value: Any) -> int:
    found = called(value)
    if schema is not None:
        return table_of(found).size
    if not isinstance(found, Mapping):
        raise DomainError(f"it must map fields to columns, or be a table with a schema, not a {type(found).__name__}.")
    return max(map(records_of, found.values()), default=0)


def width(field: str, value: Any) -> int:
    found = called(value)
    column = found.get(field) if isinstance(found, Mapping) else None
    shape = () if column is None else tuple(getattr(column, "shape", None) or np.shape(column))
    if len(shape) != 2:
        raise DomainError(f"field {field!r}: expected a column of shape (n, features), not {shape}.")
    return int(shape[1])


class Here:
    """Partitions in this process: each is its records, or a function that returns them."""

    def __init__(self, parts: Sequence[Batch | Callable[[], Batch]] = ()) -> None:
        self.parts = parts

    def asked(self, function: Callable[[Any], int], sources: Sequence[Source]) -> list[int]:
        return [within(number, lambda s: function(resolved(s)), source) for number, source in enumerate(sources)]

    def read(self, sources: Sequence[Source], check: Check, keep: bool | None) -> tuple[Here, list[int]]:
        parts: list[Batch | Callable[[], Batch]] = []
        sizes = []
        for number, source in enumerate(sources):
            again = partial(within, number, lambda source: check(resolved(source)), source)
            batch = again()
            stays = keep or (isinstance(source.value, Mapping) and keep is None)
            parts.append(batch if stays else partial(unchanged, again, number, batch.seen))
            sizes.append(batch.size)
        return Here(parts), sizes

    def share(self, value: Any) -> Any:
        return value

    def each(
        self, function: Callable[..., Any], shared: Any, own: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        for number, given in own.items():
            yield number, within(number, function, called(self.parts[number]), shared, *given)

    def mapped(self, function: Callable[..., Batch], shared: Any, own: Sequence[tuple[Any, ...]]) -> Here:

        def made(part: Batch | Callable[[], Batch], given: tuple[Any, ...]) -> Batch:
            return function(called(part), shared, *given)

        pairs = zip(self.parts, own, strict=True)
        return Here([partial(made, *pair) if callable(pair[0]) else made(*pair) for pair in pairs])


def within(number: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function with a partition; an error says which it is."""
    try:
        return function(*arguments)
    except OSError as error:
        raise unreadable(number, error) from error
    except DomainError as error:
        raise DomainError(f"partition {number}: {error}") from error.__cause__
    except Exception as error:
        error.add_note(f"in partition {number}")
        raise


def unreadable(number: int, error: BaseException) -> DomainError:
    file = f": {error.filename}" if isinstance(error, OSError) and error.filename is not None else ""
    return DomainError(
        f"partition {number} cannot be read ({type(error).__name__}{file}); nothing is released. Look at its file, or at the "
        "function or the task that makes it."
    )


def unchanged(part: Any, number: int, seen: tuple[int, int] | None) -> Batch:
    """Return the records of a partition, which must be those that were there when it was checked."""
    batch: Batch = called(part)
    if seen is not None and batch.seen != seen:
        raise DomainError(
            f"partition {number} holds other records than when it was checked ({batch.size}, and then {seen[0]}); nothing is "
            "released. Data must not change during a fit."
        )
    return batch
