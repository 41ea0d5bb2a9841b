"""Dask arrays, series and frames: tests for them, and the division of their columns into partitions."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dpconvex.data.batch import is_lazy
from dpconvex.errors import DomainError
from dpconvex.util.arguments import require


def is_collection(value: Any) -> bool:
    return hasattr(type(value), "__dask_graph__") and hasattr(type(value), "to_delayed")


def is_frame(value: Any) -> bool:
    return is_collection(value) and hasattr(value, "columns")


def is_column(value: Any) -> bool:
    several = isinstance(value, list | tuple)  # `dask_parts` raises unless all entries are lazy
    return any(map(is_lazy, (*value[:1], *value[-1:]))) if several else is_collection(value)


def has_partitions(data: Any) -> bool:
    """Return whether data are a Dask frame, or a dict with a lazy column; other mappings are not searched."""
    return is_frame(data) or (isinstance(data, dict) and any(map(is_column, data.values())))


def dask_parts(data: Any) -> Iterator[tuple[Any, int | None, Mapping[str, Any] | None]]:
    """Yield (partition, size or None, empty columns or None) for each partition; all arrays get the chunks of the first."""
    from dask.delayed import delayed

    columns = {name: data[name] for name in data.columns} if is_frame(data) else dict(data)
    sizes: tuple[int, ...] | None = None
    for name, column in columns.items():
        if not is_column(column) or (isinstance(column, list | tuple) and not all(map(is_lazy, column))):
            raise DomainError(f"field {name!r}: some columns are in memory, others of Dask; make all delayed.")
        if hasattr(column, "rechunk"):
            rows = column.chunks[0]
            if all(size == size for size in rows):  # unknown sizes are NaN
                sizes = sizes or tuple(map(int, rows))
                if sum(rows) != sum(sizes):
                    raise DomainError(f"different numbers of records: {sum(sizes)}, and {sum(rows)} of {name!r}.")
                rows = sizes
            columns[name] = column.rechunk({0: rows, **dict.fromkeys(range(1, column.ndim), -1)})
    parts = {n: list(c) if isinstance(c, list | tuple) else list(np.ravel(c.to_delayed())) for n, c in columns.items()}
    counts = {name: len(part) for name, part in parts.items()}
    require(len(set(counts.values())) == 1, f"the fields have different numbers of partitions: {counts}.", DomainError)
    forms = {name: form_of(column) for name, column in columns.items()}
    form = None if any(found is None for found in forms.values()) else forms
    whole = [delayed(dict(zip(parts, part, strict=True))) for part in zip(*parts.values(), strict=True)]
    for part, size in zip(whole, sizes or [None] * len(whole), strict=True):
        yield part, size, form


def form_of(column: Any) -> Any:
    """Return an empty column with the type, dtype, shape and origin of a Dask collection; None if these are unknown."""
    kind = getattr(column, "dtype", None)
    known = isinstance(kind, np.dtype) and hasattr(column, "shape") and all(size == size for size in column.shape[1:])
    return np.empty_like(column._meta, kind, shape=(0, *map(int, column.shape[1:]))) if known else None
