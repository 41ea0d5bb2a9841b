"""Records that passed the check, in this process or in partitions elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, reduce
from sys import getsizeof
from typing import Any, NoReturn, Protocol

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.runtime import frozen
from dpconvex.core.summation import summed
from dpconvex.errors import TemplateError
from dpconvex.language.columns import checksum, chosen


@dataclass(frozen=True, eq=False)
class Batch:
    """Records that passed the check: fields and the group (combination of discrete values) of each."""

    # Continuous field name to column of shape (n, *shape): a float64 array, a `scipy.sparse.csr_array`, or a column
    # of `dpconvex.language.columns` that turns what it is asked for into float64
    fields: dict[str, Any]
    group: NDArray[np.int64]  # shape (n,): index into ``Record.combinations``

    def __repr__(self) -> str:
        return f"<a batch of {self.size} records>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (self.fields, self.group)  # without what was prepared for it

    def __deepcopy__(self, memo: dict[int, Any]) -> Batch:
        """Return a batch of its own of the same records: what nobody can write to is shared."""
        return Batch(
            {n: frozen(c) if isinstance(c, np.ndarray) else copy(c) for n, c in self.fields.items()}, self.group
        )

    def __sizeof__(self) -> int:
        """Bytes in memory, which decide where Dask moves what."""
        return self.group.nbytes + sum(map(bytes_of, self.fields.values()))

    @property
    def size(self) -> int:
        return len(self.group)

    @cached_property
    def seen(self) -> tuple[int, int]:
        """Number of records, and a checksum of what is in memory: they tell whether a partition is what it was."""
        return self.size, reduce(lambda total, column: checksum(column, total), (self.group, *self.fields.values()), 0)

    def rows(self, group: int) -> NDArray[np.int64]:
        return np.flatnonzero(self.group == group)

    def chosen(self, rows: NDArray[np.bool_]) -> Batch:
        """Return some of the records; `rows` has an entry for each, shape (n,)."""
        index = np.flatnonzero(rows)
        return Batch({name: chosen(column, index) for name, column in self.fields.items()}, frozen(self.group[index]))


def chosen_of(batch: Batch, shared: None, bits: NDArray[np.uint8]) -> Batch:
    return batch.chosen(np.unpackbits(bits, count=batch.size).astype(bool))


def bytes_of(column: Any) -> int:
    if sp.issparse(column):
        return int(column.data.nbytes + column.indices.nbytes + column.indptr.nbytes)
    return column.nbytes if isinstance(column, np.ndarray) else getsizeof(column)


class Place(Protocol):
    """Partitions, where they lie: those with records have numbers, and `own` has further arguments for each of these."""

    def share(self, value: Any) -> Any:
        """Return what stands for an object that many calls need."""
        ...

    def each(
        self, function: Callable[..., Any], shared: Any, own: Mapping[int, tuple[Any, ...]]
    ) -> Iterator[tuple[int, Any]]:
        """Yield numbers of partitions and ``function(batch, shared, *own)`` of each, in their order."""
        ...

    def mapped(self, function: Callable[..., Batch], shared: Any, own: Sequence[tuple[Any, ...]]) -> Place:
        """Return partitions that a function makes of these."""
        ...


def refused(self: Any) -> NoReturn:
    raise TemplateError(
        "this needs all records in one place, and these are in partitions: pass arrays, or solve with the first-order backend."
    )


class PartitionedBatch(Batch):
    """Records that passed the check, in partitions of known sizes at some place; nobody has all of them."""

    fields = group = property(refused)

    def __init__(self, sizes: Sequence[int], place: Place) -> None:
        self.__dict__.update(sizes=tuple(sizes), place=place)

    sizes: tuple[int, ...]
    place: Place

    def __reduce__(self) -> tuple[Any, ...]:
        return PartitionedBatch, (self.sizes, self.place)

    def __sizeof__(self) -> int:
        return getsizeof(self.sizes)

    def __repr__(self) -> str:
        return f"<{len(self.sizes)} partitions of {self.size} records>"

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def rows(self, group: int) -> NDArray[np.int64]:
        refused(self)

    def each(
        self, function: Callable[..., Any], shared: Any, *arguments: Any, own: Sequence[Any] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """Yield the numbers of partitions with records, and ``function(batch, shared, *arguments, own)`` of each, in their order.

        `shared` is what the place's `share` returned; `own` has an entry for each partition.
        """
        asked = {k: arguments if own is None else (*arguments, own[k]) for k, size in enumerate(self.sizes) if size}
        return self.place.each(function, shared, asked)

    def added_up(
        self, function: Callable[..., Any], shared: Any, *arguments: Any, own: Sequence[Any] | None = None
    ) -> Any:
        """Return the sum of what `each` yields; None if any of it is, or without records."""
        return summed(part for _, part in self.each(function, shared, *arguments, own=own)) if self.size else None

    def mapped(self, function: Callable[..., Batch], value: Any) -> PartitionedBatch:
        own = [()] * len(self.sizes)
        return PartitionedBatch(self.sizes, self.place.mapped(function, self.place.share(value), own))

    def chosen(self, rows: NDArray[np.bool_]) -> PartitionedBatch:
        parts = self.split(rows)
        own, sizes = [(np.packbits(part),) for part in parts], [int(part.sum()) for part in parts]
        return PartitionedBatch(sizes, self.place.mapped(chosen_of, None, own))

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Cut what has an entry for each record as the records are cut."""
        return np.split(values, np.cumsum(self.sizes)[:-1])
