"""What a partition is before it is read, and those that Dask computes.  Dask is not imported where nobody uses it."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpconvex.errors import DomainError


@dataclass(frozen=True, eq=False, repr=False)
class Source:
    """A partition: columns by name, a table or its path, a function, or an object of Dask.

    Where they are known: its number of records, and its columns, or such without any records.
    """

    value: Any
    size: int | None = None
    form: Mapping[str, Any] | None = None
    local: bool = False  # it, or a part of it, is in this process's memory

    @property
    def lazy(self) -> bool:
        return is_lazy(self.value)

    @property
    def future(self) -> bool:
        """Whether nobody but the client of its cluster can read it."""
        return self.lazy and not hasattr(self.value, "compute")


def is_lazy(value: Any) -> bool:
    known = {"dask.delayed": "Delayed", "distributed": "Future"}
    kinds = [getattr(sys.modules[module], kind) for module, kind in known.items() if module in sys.modules]
    return isinstance(value, tuple(kinds))


def is_collection(value: Any) -> bool:
    """Whether something is an array, a series or a frame of Dask."""
    collected = "dask" in sys.modules and hasattr(value, "__dask_graph__") and hasattr(value, "to_delayed")
    return collected and not isinstance(value, type) and not is_lazy(value)


def is_frame(value: Any) -> bool:
    return is_collection(value) and hasattr(value, "columns")


def is_column(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return len(value) > 0 and (is_lazy(value[0]) or is_lazy(value[-1]))  # all, or it is refused
    return is_collection(value)


def has_partitions(data: Any) -> bool:
    """Whether data are a frame of Dask, or a dictionary with columns in partitions.

    Other mappings are not looked into: to ask them for a column may be to read it.
    """
    return is_frame(data) or (isinstance(data, dict) and any(map(is_column, data.values())))


def sources_of_columns(data: Any) -> list[Source]:
    """Cut the columns of a frame, or of a mapping, into partitions of all of them."""
    from dask.delayed import delayed

    columns = {name: data[name] for name in data.columns} if is_frame(data) else dict(data)
    for name, column in columns.items():
        if not is_column(column) or (isinstance(column, list | tuple) and not all(map(is_lazy, column))):
            raise DomainError(
                f"field {name!r}: it, or some of its partitions, is in memory here, and others are of Dask; make all of them "
                "delayed (dask.delayed), or futures (client.scatter), in the same partitions."
            )
    sizes = aligned(columns)
    parts = {n: list(c) if isinstance(c, list | tuple) else list(np.ravel(c.to_delayed())) for n, c in columns.items()}
    counts = {name: len(part) for name, part in parts.items()}
    if len(set(counts.values())) != 1:
        raise DomainError(f"the fields have different numbers of partitions: {counts}.")
    forms = {name: form_of(column) for name, column in columns.items()}
    form = None if any(found is None for found in forms.values()) else forms
    whole = [delayed(dict(zip(parts, part, strict=True))) for part in zip(*parts.values(), strict=True)]
    return [Source(part, size, form) for part, size in zip(whole, sizes or [None] * len(whole), strict=True)]


def form_of(column: Any) -> Any:
    """Return a column like a collection's without records; None where that is not known."""
    kind = getattr(column, "dtype", None)
    known = isinstance(kind, np.dtype) and hasattr(column, "shape") and all(size == size for size in column.shape[1:])
    return np.empty((0, *map(int, column.shape[1:])), kind) if known else None


def aligned(columns: dict[str, Any]) -> tuple[int, ...] | None:
    """Cut arrays of known sizes along the records as the first of them is, and nowhere else; return the sizes of the pieces."""
    sizes: tuple[int, ...] | None = None
    for name, column in columns.items():
        if not hasattr(column, "rechunk"):
            continue
        rows = column.chunks[0]
        if all(size == size for size in rows):  # sizes that are not known are NaN
            sizes = sizes or tuple(map(int, rows))
            if sum(rows) != sum(sizes):
                raise DomainError(
                    f"the fields have different numbers of records: {sum(sizes)}, and {sum(rows)} of {name!r}."
                )
            rows = sizes
        columns[name] = column.rechunk({0: rows, **dict.fromkeys(range(1, column.ndim), -1)})
    return sizes


def resolved(source: Source) -> Any:
    if source.future:
        raise DomainError("a partition is a future, and there is no distributed.Client at hand that knows it.")
    return source.value.compute(scheduler="synchronous") if source.lazy else source.value
