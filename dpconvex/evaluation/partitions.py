"""Sums over records in partitions: the parameters go to where the records are, and partial sums come back.

Partial sums are added in an order that the numbers of records in the partitions decide, whoever is done first, and what is
computed for a partition does not depend on what was computed before: the bits are the same for any number of workers.
"""

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.arrays import Array
from dpconvex.evaluation.clipping import ClippedEngine
from dpconvex.evaluation.forms import LeafForm
from dpconvex.evaluation.threads import one_blas_thread
from dpconvex.language.batch import Batch, PartitionedBatch

T = TypeVar("T")


def kept(batch: Batch, key: Hashable, make: Callable[[Batch], T]) -> T:
    """Return what is made for a batch, the same object for equal keys: many passes prepare it once."""
    known: dict[Hashable, T] = vars(batch).setdefault("_kept", {})  # forgotten with the batch
    if key not in known:
        known[key] = make(
            copy(batch)
        )  # a batch that nobody needs any more goes at once, not when circles are looked for
    return known[key]


def summed(batch: Batch, form: LeafForm, name: str, arguments: Sequence[Any], own: Sequence[Any] = ()) -> Any:
    """Return a sum over the records of a partition; of a value and a gradient, the value last."""
    with one_blas_thread():
        found = getattr(kept(batch, id(form), partial(ClippedEngine, form)), name)(*arguments, *own)
    return np.append(found[1], found[0]) if isinstance(found, tuple) else found


class PartitionEngine:
    """Sums over the records of all partitions."""

    def __init__(self, form: LeafForm, batch: PartitionedBatch) -> None:
        self.form, self.batch, self.dim = form, batch, form.map.shape[1]
        self._form = batch.place.share(form)

    def _total(self, name: str, *arguments: Any, own: Sequence[Any] | None = None) -> Any:
        return self.batch.added_up(summed, self._form, name, arguments, own=own)

    def _share(self, records: int) -> int:
        """Return how many of a sample's records are in a partition, about."""
        return max(records // max(len(self.batch.sizes), 1), 1)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient, shape (dim,)."""
        found = self._total("value_and_gradient", theta)
        return (0.0, np.zeros(self.dim)) if found is None else (float(found[-1]), np.array(found[:-1]))

    def hessian(self, theta: Array, records: int) -> Array:
        """Hessian of the sum of the losses, shape (dim, dim), from about so many records."""
        return np.asarray(self._total("hessian", theta, self._share(records)))

    def moments(self, theta: Array, records: int) -> Array:
        """See `Engine.moments`."""
        return np.asarray(self._total("moments", theta, self._share(records)))

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None = None) -> Array:
        """See `ClippedEngine.clipped_gradient`."""
        own = None if chosen is None else [(part,) for part in self.batch.split(chosen)]
        found = self._total("clipped_gradient", theta, clip, own=own)
        return np.zeros(self.dim) if found is None else np.asarray(found)
