"""Checked records: `Batch` holds them in memory, `PartitionedBatch` reads, checks and sums them partition by partition."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpconvex.data.columns import checksum, take_rows
from dpconvex.errors import DomainError
from dpconvex.util.arguments import require
from dpconvex.util.arrays import frozen
from dpconvex.util.runtime import one_blas_thread
from dpconvex.util.summation import pairwise_sum

# Number of records, and checksum of the columns in memory. If either changes between passes, the partition has changed.
Seen = tuple[int, int]


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """Checked records in memory: their fields, and the group of each record (an index into ``Record.combinations``, shape (n,)).

    A field is a float64 array of shape (n, *shape), a `scipy.sparse.csr_array`, or a `columns.Stored` column of these.
    """

    fields: dict[str, Any]
    group: NDArray[np.int64]

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (self.fields, self.group)  # without cached values

    def __deepcopy__(self, memo: dict[int, Any]) -> "Batch":
        """Return an independent batch of the same records; read-only arrays are not copied."""
        own = {n: frozen(c) if isinstance(c, np.ndarray) else copy(c) for n, c in self.fields.items()}
        return Batch(own, self.group)

    def __sizeof__(self) -> int:  # Dask decides by this size where to move data
        held = (getattr(column, "data", None) for column in self.fields.values())  # of dense and sparse arrays
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
        """Return the records that the boolean mask `rows`, shape (n,), selects."""
        index = np.flatnonzero(rows)
        return Batch({n: take_rows(c, index) for n, c in self.fields.items()}, frozen(self.group[index]))

    def share(self, value: Any) -> Any:
        """Return a handle to pass an object to `added_up` and `mapped`: the object, or on a cluster a future of the object."""
        return value

    def added_up(self, function: Callable[..., Any], shared: Any, *arguments: Any, rows: Any = None) -> Any:
        """Return a sum over records, ``function(batch, shared, *arguments, rows)``; None if all partitions are empty."""
        return function(self, shared, *arguments, *(() if rows is None else (rows,)))

    def mapped(self, function: Callable[..., "Batch"], shared: Any) -> "Batch":
        """Apply a function record by record, and return the new batch ``function(batch, shared)``."""
        return function(self, shared)


class Place:
    """Partitions in this process, read one after the other, and the functions to apply after reading."""

    def __init__(self, values: Sequence[Any], keep: bool | None) -> None:
        self.values, self.turns = values, tuple[tuple[Any, Any], ...]()  # functions, arguments per partition
        self.keep = all(isinstance(value, Mapping) for value in values) if keep is None else keep

    def share(self, value: Any) -> Any:
        return value

    def each(self, function: Callable[..., Any], own: Mapping[int, tuple[Any, ...]]) -> Iterator[Any]:
        """Yield ``function(partition, *own[k])`` for each partition k in `own`."""
        return (in_partition(k, function, self._made(k), *given) for k, given in own.items())

    def turned(self, function: Callable[..., Any], own: Sequence[tuple[Any, ...]]) -> "Place":
        """Return the partitions with a further function applied: at once if `keep` is true, otherwise at each reading."""
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
    """Checked records in partitions of known sizes, in this process or on the workers of a cluster."""

    fields = group = property(
        lambda _: require(None, "this needs all records in memory, but they are in partitions: pass arrays.")
    )
    place: Place
    sizes: Sequence[int]
    known: Sequence[Seen | None]  # size and checksum of each; None for partitions computed from others

    def __init__(self, place: Place, sizes: Sequence[int], known: Sequence[Seen | None]) -> None:
        self.__dict__.update(place=place, sizes=tuple(sizes), known=known)

    def __reduce__(self) -> tuple[Any, ...]:
        return PartitionedBatch, (self.place, self.sizes, self.known)

    @classmethod
    def read(cls, place: Place, check: Callable[..., Batch], own: Sequence[Any]) -> Self:
        """Return the checked partitions, ``check(partition, own[k])`` for partition k."""
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
        return pairwise_sum(self.place.each(applied, given)) if given else None

    def mapped(self, function: Callable[..., Batch], shared: Any) -> "PartitionedBatch":
        return self._turned(self.sizes, function, [shared] * len(self.sizes))

    def chosen(self, rows: NDArray[np.bool_]) -> "PartitionedBatch":
        parts = self.split(rows)
        return self._turned([int(part.sum()) for part in parts], chosen_of, [np.packbits(part) for part in parts])

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Split an array with one entry per record into one array per partition."""
        return np.split(values, np.cumsum(self.sizes)[:-1])

    def _turned(self, sizes: Sequence[int], function: Callable[..., Batch], own: Sequence[Any]) -> "PartitionedBatch":
        given = [(known, function, mine) for known, mine in zip(self.known, own, strict=True)]
        return PartitionedBatch(self.place.turned(applied, given), sizes, [None] * len(sizes))


def is_lazy(value: Any) -> bool:
    return type(value).__module__ in ("dask.delayed", "distributed.client")


# Functions that run where a partition is stored


def called(value: Any, function: Callable[..., Any], *own: Any) -> Any:
    return function(value, *own)


def seen_of(batch: Batch) -> Seen:
    return batch.seen


def chosen_of(batch: Batch, bits: NDArray[np.uint8]) -> Batch:
    return batch.chosen(np.unpackbits(bits, count=batch.size).astype(bool))


def applied(batch: Batch, known: Seen | None, function: Callable[..., Any], *arguments: Any) -> Any:
    said = "its records have changed since the check; data must not change during a fit."
    require(known is None or batch.seen == known, said, DomainError)
    with one_blas_thread():  # results must not depend, in any bit, on a worker's processors
        return function(batch, *arguments)


def in_partition(number: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a partition; errors name the partition by its number."""
    try:
        return function(*arguments)
    except OSError as error:
        raise unreadable_error(number, error) from error
    except DomainError as error:
        raise DomainError(f"partition {number}: {error}") from error.__cause__
    except Exception as error:
        error.add_note(f"in partition {number}")
        raise


def unreadable_error(number: int, error: BaseException) -> DomainError:
    file = f": {error.filename}" if isinstance(error, OSError) and error.filename is not None else ""
    why = f"partition {number} cannot be read ({type(error).__name__}{file})"
    return DomainError(f"{why}; nothing is released. Check its file, or the function that makes it.")
