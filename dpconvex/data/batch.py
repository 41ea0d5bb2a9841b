"""Records that passed the check: all in one place, or in partitions that are read, checked and summed up where they lie."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpconvex.data.columns import checksum, chosen
from dpconvex.errors import DomainError
from dpconvex.util.arguments import require
from dpconvex.util.arrays import frozen
from dpconvex.util.runtime import one_blas_thread
from dpconvex.util.summation import summed

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

    def __deepcopy__(self, memo: dict[int, Any]) -> "Batch":
        """Return a batch of its own of the same records: what nobody can write to is shared."""
        own = {n: frozen(c) if isinstance(c, np.ndarray) else copy(c) for n, c in self.fields.items()}
        return Batch(own, self.group)

    def __sizeof__(self) -> int:  # by which Dask decides what to move
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

    def chosen(self, rows: NDArray[np.bool_]) -> "Batch":
        """Return some of the records; `rows` has an entry for each, shape (n,)."""
        index = np.flatnonzero(rows)
        return Batch({name: chosen(column, index) for name, column in self.fields.items()}, frozen(self.group[index]))

    def share(self, value: Any) -> Any:
        """Return what stands for an object in `added_up` and `mapped`, where it is an argument for many partitions."""
        return value

    def added_up(self, function: Callable[..., Any], shared: Any, *arguments: Any, rows: Any = None) -> Any:
        """Return a sum over records, ``function(batch, shared, *arguments, rows)``; None for partitions without any."""
        return function(self, shared, *arguments, *(() if rows is None else (rows,)))

    def mapped(self, function: Callable[..., "Batch"], shared: Any) -> "Batch":
        """Return what a function makes of the records, each by itself."""
        return function(self, shared)


class Place:
    """Partitions in this process, read one after the other, and functions that are called with them."""

    def __init__(self, values: Sequence[Any], keep: bool | None) -> None:
        self.values, self.turns = values, tuple[tuple[Any, Any], ...]()  # functions, and arguments for each partition
        self.keep = all(isinstance(value, Mapping) for value in values) if keep is None else keep

    def share(self, value: Any) -> Any:
        return value

    def each(self, function: Callable[..., Any], own: Mapping[int, tuple[Any, ...]]) -> Iterator[Any]:
        """Yield ``function(partition, *own)`` for those partitions that have arguments of their own."""
        return (in_partition(k, function, self._made(k), *given) for k, given in own.items())

    def turned(self, function: Callable[..., Any], own: Sequence[tuple[Any, ...]]) -> "Place":
        """Return what `each` yields of all as partitions, which are made anew whenever they are asked for, or kept."""
        made = copy(self)
        made.turns = (*self.turns, (function, own))
        if self.keep:
            made.values, made.turns = [made._made(k) for k in range(len(own))], ()
        return made

    def _made(self, number: int) -> Any:
        value = self.values[number]
        for function, own in self.turns:
            value = in_partition(number, function, value, *own[number])
        return value

    def asked(self, function: Callable[[Any], Any], numbers: Iterable[int]) -> list[Any]:
        return list(self.each(called, dict.fromkeys(numbers, (self.share(function),))))


class PartitionedBatch(Batch):
    """Records that passed the check, in partitions of known sizes at some place; nobody has all of them."""

    fields = group = property(
        lambda _: require(None, "this needs all records in one place, and these are in partitions: pass arrays.")
    )
    place: Place
    sizes: Sequence[int]
    known: Sequence[Seen | None]  # what was seen of each, if it must stay so

    def __init__(self, place: Place, sizes: Sequence[int], known: Sequence[Seen | None]) -> None:
        self.__dict__.update(place=place, sizes=tuple(sizes), known=known)

    def __reduce__(self) -> tuple[Any, ...]:
        return PartitionedBatch, (self.place, self.sizes, self.known)

    @classmethod
    def read(cls, place: Place, check: Callable[..., Batch], own: Sequence[Any]) -> Self:
        """Return what a function makes of each partition, and of what belongs to it."""
        shared = place.share(check)
        made = place.turned(called, [(shared, mine) for mine in own])
        seen = list(made.each(seen_of, dict.fromkeys(range(len(own)), ())))
        return cls(made, [size for size, _ in seen], seen)

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def share(self, value: Any) -> Any:
        return self.place.share(value)

    def added_up(self, function: Callable[..., Any], shared: Any, *arguments: Any, rows: Any = None) -> Any:
        own = [()] * len(self.sizes) if rows is None else [(part,) for part in self.split(rows)]
        given = {k: (self.known[k], function, shared, *arguments, *own[k]) for k, n in enumerate(self.sizes) if n}
        return summed(self.place.each(applied, given)) if given else None

    def mapped(self, function: Callable[..., Batch], shared: Any) -> "PartitionedBatch":
        return self._turned(self.sizes, function, [shared] * len(self.sizes))

    def chosen(self, rows: NDArray[np.bool_]) -> "PartitionedBatch":
        parts = self.split(rows)
        return self._turned([int(part.sum()) for part in parts], chosen_of, [np.packbits(part) for part in parts])

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Cut what has an entry for each record as the records are cut."""
        return np.split(values, np.cumsum(self.sizes)[:-1])

    def _turned(self, sizes: Sequence[int], function: Callable[..., Batch], own: Sequence[Any]) -> "PartitionedBatch":
        given = [(known, function, mine) for known, mine in zip(self.known, own, strict=True)]
        return PartitionedBatch(self.place.turned(applied, given), sizes, [None] * len(sizes))


def is_lazy(value: Any) -> bool:
    return type(value).__module__ in ("dask.delayed", "distributed.client")


# What is done where partitions are


def called(value: Any, function: Callable[..., Any], *own: Any) -> Any:
    return function(value, *own)


def seen_of(batch: Batch) -> Seen:
    return batch.seen


def chosen_of(batch: Batch, bits: NDArray[np.uint8]) -> Batch:
    return batch.chosen(np.unpackbits(bits, count=batch.size).astype(bool))


def applied(batch: Batch, known: Seen | None, function: Callable[..., Any], *arguments: Any) -> Any:
    said = "it holds other records than when it was checked; data must not change during a fit."
    require(known is None or batch.seen == known, said, DomainError)
    with one_blas_thread():  # bits must not depend on a worker's processors
        return function(batch, *arguments)


def in_partition(number: int, function: Callable[..., Any], *arguments: Any) -> Any:
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
    why = f"partition {number} cannot be read ({type(error).__name__}{file})"
    return DomainError(f"{why}; nothing is released. Look at its file, or at what makes it.")
