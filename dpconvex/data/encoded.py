"""Encoded features: arrays computed from them keep the cost of a learnt schema, and its column of identifiers."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar, cast

import numpy as np
import scipy.sparse as sp

from dpconvex.data.learnt import Learnt, Origin, origin_of
from dpconvex.data.partitions import Partitions
from dpconvex.data.record import columns_of
from dpconvex.util.arguments import require

Made = TypeVar("Made")


class Encoded(np.ndarray[Any, Any]):
    """An array of features or targets with its schema and table index; arrays that NumPy computes from it keep its `origin`."""

    schema: Any = None
    origin = Origin()
    index: Any = None

    def __array_finalize__(self, source: Any) -> None:
        self.origin = getattr(source, "origin", Origin())

    def __getitem__(self, key: Any) -> Any:
        found, (_, *others) = super().__getitem__(key), key if isinstance(key, tuple) and key else (key,)
        whole = all(part is ... or (isinstance(part, slice) and part == slice(None)) for part in others)
        if whole and isinstance(found, Encoded) and found.ndim == self.ndim:
            found.schema = self.schema
        return found

    def copy(self, order: Any = "C") -> Any:
        found = super().copy(order)
        found.schema, found.index = self.schema, self.index
        return found

    def __deepcopy__(self, memo: Any) -> Any:
        return self.copy()

    def __reduce__(self) -> tuple[Any, ...]:
        return np.ndarray.view, (np.asarray(self), Encoded), vars(self)

    def __setstate__(self, known: Any) -> None:
        vars(self).update(known)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.schema = self.index = None
        self.origin = origin_of(self, value)
        super().__setitem__(key, value)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        plain, out = [np.asarray(one) for one in inputs], options.pop("out", ())
        found = getattr(ufunc, method)(*plain, **options, **({"out": tuple(map(np.asarray, out))} if out else {}))
        return with_origin(found, *inputs, *out)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        inputs = (part for one in args for part in (one if isinstance(one, list | tuple) else [one]))
        return with_origin(super().__array_function__(function, types, args, options), self, *inputs)

    def __repr__(self) -> str:
        return repr(np.asarray(self))


class EncodedRows(sp.csr_array):
    """Sparse features; their rows, multiples, matrix products and copies, sparse or dense, keep the `origin`."""

    origin = Origin()

    def toarray(self, order: Any = None, out: Any = None) -> Any:
        return with_origin(super().toarray(order, out), self)

    todense = toarray

    def __matmul__(self, other: Any) -> Any:
        return with_origin(super().__matmul__(other), self)

    def __getitem__(self, key: Any) -> Any:
        return with_origin(super().__getitem__(key), self)

    def _with_data(self, data: Any, copy: bool = True) -> Any:  # for results of the same pattern
        return with_origin(super()._with_data(data, copy), self)


def with_origin(found: Made, *sources: Any) -> Made:
    """Return a computed array with the combined `Origin` of its source arrays."""
    origin, made = origin_of(*sources), cast(Any, found)
    if origin != Origin():
        made = made.view(Encoded) if isinstance(made, np.ndarray) and made.ndim else made
        with suppress(AttributeError, TypeError):  # numbers have no attributes
            object.__setattr__(made, "origin", origin)
    return cast(Made, made)


def origins(data: Any) -> list[Any]:
    """Return the objects with an `origin` in normalized data: the partitions, or each column."""
    return [data] if isinstance(data, Partitions) else [data[name] for name in columns_of(data).keys()]  # noqa: SIM118


def learnt_cost(found: Iterable[Any]) -> Learnt | None:
    """Return the cost that includes all other costs, or None; raise if two schemas were learnt independently of each other."""
    costs = sorted(origin_of(*found).learnt, key=lambda one: -len(one.costs))
    entries = [{part.entry for part in one.costs} for one in costs]
    why = "these data were encoded by two schemas that were learnt independently, but a release states one cost"
    said = f"{why}; learn the second schema with known= the first, and encode all fields with the second."
    require(set().union(*entries) <= set().union(*entries[:1]), said)
    return costs[0] if costs else None
