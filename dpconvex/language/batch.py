"""Records that passed the check: all in one place, or in partitions that are read, checked and summed up where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.runtime import frozen
from dpconvex.core.summation import summed
from dpconvex.errors import DomainError, TemplateError
from dpconvex.language.columns import checksum, chosen, itself

# Number of records, and a checksum of what is in memory: they tell whether a partition is what it was.
Seen = tuple[int, int]


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """Records that passed the check: their fields, and the group of each (an index into ``Record.combinations``, shape (n,)).

    A field is a float64 array of shape (n, *shape), a `scipy.sparse.csr_array`, or a column of `columns` that is read as such.
    """

    fields: dict[str, Any]
    group: NDArray[np.int64]

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (self.fields, self.group)  # without what was prepared for it

    def __deepcopy__(self, memo: dict[int, Any]) -> Batch:
        """Return a batch of its own of the same records: what nobody can write to is shared."""
        own = {n: frozen(c) if isinstance(c, np.ndarray) else copy(c) for n, c in self.fields.items()}
        return Batch(own, self.group)

    def __sizeof__(self) -> int:
        """Bytes in memory, which decide where Dask moves what."""
        held = (getattr(column, "data", None) for column in self.fields.values())  # of arrays, and of sparse ones
        return self.group.nbytes + sum(getattr(numbers, "nbytes", 0) for numbers in held)

    @property
    def size(self) -> int:
        return len(self.group)

    @cached_property
    def seen(self) -> Seen:
        return self.size, reduce(lambda total, column: checksum(column, total), (self.group, *self.fields.values()), 0)

    def rows(self, group: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.group == group)

    def chosen(self, rows: NDArray[np.bool_]) -> Batch:
        """Return some of the records; `rows` has an entry for each, shape (n,)."""
        index = np.flatnonzero(rows)
        return Batch({name: chosen(column, index) for name, column in self.fields.items()}, frozen(self.group[index]))


# Partitions


@dataclass(frozen=True)
class Task:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    def __call__(self) -> Any:
        return self.function(*(a() if isinstance(a, Task) else a for a in self.arguments))


class Place:
    """Where partitions are read and functions called with them: in this process, one after the other, or as a subclass says."""

    def step(self, count: int) -> int:
        """Return how many neighbours of so many partitions one task reads."""
        return 1

    def share(self, value: Any) -> Any:
        """Return what stands for an object that many tasks need."""
        return value

    def task(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return a task that is not started yet; arguments may be tasks."""
        return Task(function, arguments)

    def keeps(self, value: Any, keep: bool | None) -> bool:
        """Whether a partition stays in memory after it was read."""
        return isinstance(value, Mapping) if keep is None else keep

    def held(self, task: Any, spread: float | None = None) -> Any:
        """Start a task, and hold its result; `spread`, from 0 to 1, is its place among all, if that is to decide who does it."""
        return Task(itself, (task(),))

    def results(self, tasks: Mapping[int, Any]) -> Iterator[Any]:
        """Yield what tasks return, each by the number of its first partition."""
        return (task() for task in tasks.values())


@dataclass(frozen=True)
class Bundle:
    """Neighbouring partitions that one task reads, by their numbers, and what was seen of each, if it must stay so."""

    numbers: range
    task: Any
    held: bool = False
    seen: Sequence[Seen | None] = ()


def bundles(place: Place, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Bundle]:
    """Return tasks that call a function with what neighbouring partitions are before they are read."""
    step, shared, every = place.step(len(values)), place.share(function), range(len(values))
    numbers = [every[k : k + step] for k in every[::step]]
    return [Bundle(n, place.task(called, n, shared, values[n.start : n.stop])) for n in numbers]


def asked(place: Place, function: Callable[[Any], int], values: Sequence[Any]) -> list[int]:
    """Return a number of each partition, before any of them was checked."""
    tasks = {bundle.numbers[0]: bundle.task for bundle in bundles(place, function, values)}
    return [int(number) for found in place.results(tasks) for number in found]


def refused(self: Any) -> NoReturn:
    raise TemplateError("this needs all records in one place, and these are in partitions: pass arrays.")


class PartitionedBatch(Batch):
    """Records that passed the check, in partitions of known sizes at some place; nobody has all of them."""

    fields = group = property(refused)
    sizes: Sequence[int]
    place: Place
    bundles: Sequence[Bundle]

    def __init__(self, sizes: Sequence[int], place: Place, bundles: Sequence[Bundle]) -> None:
        self.__dict__.update(sizes=tuple(sizes), place=place, bundles=bundles)

    def __reduce__(self) -> tuple[Any, ...]:
        return PartitionedBatch, (self.sizes, self.place, self.bundles)

    @classmethod
    def read(
        cls, place: Place, check: Callable[[Any], Batch], values: Sequence[Any], keep: bool | None
    ) -> PartitionedBatch:
        """Read all partitions once, and keep those that stay."""
        made = bundles(place, check, values)
        for k, bundle in enumerate(made):
            if place.keeps(first := values[bundle.numbers[0]], keep):
                spread = None if is_lazy(first) else k / len(made)  # Dask knows where it made something
                made[k] = replace(bundle, task=place.held(bundle.task, spread), held=True)
        found = place.results({bundle.numbers[0]: place.task(seen_of, bundle.task) for bundle in made})
        made = [replace(bundle, seen=seen) for bundle, seen in zip(made, found, strict=True)]
        return cls([seen[0] for bundle in made for seen in bundle.seen if seen], place, made)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def added_up(
        self, function: Callable[..., Any], shared: Any, *arguments: Any, own: Sequence[Any] | None = None
    ) -> Any:
        """Return the sum of ``function(batch, shared, *arguments, own)`` over partitions; None if one is, or without records.

        `shared` is what the place's `share` returned; `own` has an entry for each partition.
        """
        given = {k: arguments if own is None else (*arguments, own[k]) for k, size in enumerate(self.sizes) if size}
        tasks = {bundle.numbers[0]: task for bundle, task in self._tasks(function, shared, given)}
        return summed(part for found in self.place.results(tasks) for part in found) if tasks else None

    def mapped(self, function: Callable[..., Batch], value: Any) -> PartitionedBatch:
        """Return partitions that a function makes of these."""
        return self._changed(self.sizes, function, self.place.share(value), [()] * len(self.sizes))

    def chosen(self, rows: NDArray[np.bool_]) -> PartitionedBatch:
        parts = self.split(rows)
        return self._changed([int(p.sum()) for p in parts], chosen_of, None, [(np.packbits(p),) for p in parts])

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Cut what has an entry for each record as the records are cut."""
        return np.split(values, np.cumsum(self.sizes)[:-1])

    def _changed(
        self, sizes: Sequence[int], function: Callable[..., Batch], shared: Any, own: Sequence[tuple[Any, ...]]
    ) -> PartitionedBatch:
        made = [
            replace(old, task=self.place.held(task) if old.held else task, seen=[None] * len(old.seen))
            for old, task in self._tasks(function, shared, dict(enumerate(own)))
        ]
        return PartitionedBatch(sizes, self.place, made)

    def _tasks(
        self, function: Callable[..., Any], shared: Any, own: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[Bundle, Any]]:
        """Yield bundles, and tasks that call a function with those of their partitions that have arguments of their own."""
        for bundle in self.bundles:
            mine = {k: own[k] for k in bundle.numbers if k in own}
            if mine:
                arguments = bundle.task, bundle.numbers, bundle.seen, function, shared, mine
                yield bundle, self.place.task(applied, *arguments)


def is_lazy(value: Any) -> bool:
    """Whether something is a delayed object of Dask, or a future."""
    return type(value).__module__ in ("dask.delayed", "distributed.client")


# What is done where partitions are


def called(numbers: range, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
    return [within(number, function, value) for number, value in zip(numbers, values, strict=True)]


def seen_of(parts: Sequence[Batch]) -> list[Seen]:
    return [part.seen for part in parts]


def chosen_of(batch: Batch, shared: None, bits: NDArray[np.uint8]) -> Batch:
    return batch.chosen(np.unpackbits(bits, count=batch.size).astype(bool))


def applied(
    parts: Sequence[Batch],
    numbers: range,
    seen: Sequence[Seen | None],
    function: Callable[..., Any],
    shared: Any,
    own: Mapping[int, tuple[Any, ...]],
) -> list[Any]:
    """Call a function with those partitions that have arguments of their own; all must be as they were."""
    for number, part, known in zip(numbers, parts, seen, strict=True):
        if known is not None and part.seen != known:
            raise DomainError(
                f"partition {number} holds other records than when it was checked ({part.size}, and then {known[0]}); nothing is "
                "released. Data must not change during a fit."
            )
    mine = zip(numbers, parts, strict=True)
    return [within(number, function, part, shared, *own[number]) for number, part in mine if number in own]


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
