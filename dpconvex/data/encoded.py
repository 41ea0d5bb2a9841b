"""Features that a schema made, and the cost of a learnt one, which stays with the arrays that are computed from them."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar, cast

import numpy as np
import scipy.sparse as sp

from dpconvex.data.learnt import Learnt
from dpconvex.data.partitions import Partitions
from dpconvex.data.record import table
from dpconvex.errors import TemplateError

Made = TypeVar("Made")


class Encoded(np.ndarray[Any, Any]):
    """Features, or targets, with the schema that made them, its cost if it was learnt, and the index of their table.

    Some of the rows keep the schema.  All arrays that NumPy computes from them keep the cost.
    """

    schema: Any = None
    learnt: tuple[Learnt, ...] = ()
    index: Any = None

    def __array_finalize__(self, source: Any) -> None:
        self.learnt = getattr(source, "learnt", ())

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

    def __reduce__(self) -> tuple[Any, ...]:
        return np.ndarray.view, (np.asarray(self), Encoded), vars(self)

    def __setstate__(self, known: Any) -> None:
        vars(self).update(known)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.schema = self.index = None
        super().__setitem__(key, value)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        plain, out = [np.asarray(one) for one in inputs], options.pop("out", ())
        found = getattr(ufunc, method)(*plain, **options, **({"out": tuple(map(np.asarray, out))} if out else {}))
        return carrying(found, *inputs, *out)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        inputs = (part for one in args for part in (one if isinstance(one, list | tuple) else [one]))
        return carrying(super().__array_function__(function, types, args, options), self, *inputs)

    def __repr__(self) -> str:
        return repr(np.asarray(self))


class EncodedRows(sp.csr_array):
    """Sparse features.  Their rows, multiples and copies keep the cost."""

    learnt: tuple[Learnt, ...] = ()

    def __getitem__(self, key: Any) -> Any:
        return carrying(super().__getitem__(key), self)

    def _with_data(self, data: Any, copy: bool = True) -> Any:  # what SciPy makes with the same pattern
        return carrying(super()._with_data(data, copy), self)


def carrying(found: Made, *sources: Any) -> Made:
    """Return an array that was computed from others, with the costs of the learnt schemas behind these."""
    learnt, made = {id(one): one for source in sources for one in costs_of(source)}, cast(Any, found)
    if learnt:
        made = made.view(Encoded) if isinstance(made, np.ndarray) and made.ndim else made
        with suppress(AttributeError, TypeError):  # numbers, and lists of arrays that have them already
            object.__setattr__(made, "learnt", tuple(learnt.values()))
    return cast(Made, made)


def costs_of(source: Any) -> tuple[Learnt, ...]:
    """Return the costs that an array, a schema or a release knows of."""
    found = source if isinstance(source, Learnt) else getattr(source, "learnt", ())  # a frame may have columns
    return (found,) if isinstance(found, Learnt) else found if isinstance(found, tuple) else ()


def learnt_of(data: Any) -> Learnt | None:
    """Return the cost of learning the schemas behind the columns of settled data, None if none was learnt."""
    if isinstance(data, Partitions):
        return most_paid([data.schema, *(column for one in data.sources for column in dict(one.form or {}).values())])
    return most_paid(data[name] for name in table(data).keys())  # noqa: SIM118


def most_paid(found: Iterable[Any]) -> Learnt | None:
    """Return the cost that the others are part of; refuse data behind which are schemas that were learnt apart."""
    costs = sorted((one for source in found for one in costs_of(source)), key=lambda one: -len(one.costs))
    entries = [{part.entry for part in one.costs} for one in costs]
    if not set().union(*entries) <= set().union(*entries[:1]):
        why = "these data were encoded by two schemas that were learnt apart, and a release states the cost of one"
        raise TemplateError(f"{why}; learn the second with known= the first, and encode all fields with it.")
    return costs[0] if costs else None
