"""Sums of losses, gradients and Hessians over a batch, with the same bits for any number of workers."""

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpconvex.data.batch import Batch
from dpconvex.expressions.parameter_space import Space
from dpconvex.model.template import Template
from dpconvex.sums.forms import LeafForm, form_of
from dpconvex.sums.hessian_sums import HessianSums
from dpconvex.util.arrays import Array, Indices

T = TypeVar("T")

# Limits: coordinates and form coefficients of an exact Hessian, monomials of second moments, numbers of `factors`.
ALL = 2**62
LARGEST_HESSIAN, LARGEST_COEFFICIENTS, LARGEST_GRAM, LARGEST_FACTORS = 500, 2000, 2000, 2**27


def cached_by_batch(batch: Batch, key: Hashable, make: Callable[[Batch], T]) -> T:
    """Return `make(batch)`, computed once for each batch and key."""
    known: dict[Hashable, T] = vars(batch).setdefault("_kept", {})  # forgotten with the batch
    if key not in known:
        # Make it from a copy: a reference cycle would keep the batch in memory until garbage collection.
        known[key] = make(copy(batch))
    return known[key]


def part_of(batch: Batch, form: LeafForm, name: str, arguments: Sequence[Any], *rows: Any) -> Any:
    return getattr(cached_by_batch(batch, id(form), partial(HessianSums, form)), name)(*arguments, *rows)


def form_sum(batch: Batch, form: LeafForm, name: str, *arguments: Any, rows: NDArray[Any] | None = None) -> Any:
    """Return a sum of `HessianSums` over a batch; None if all partitions are empty."""
    # Keep the form with its shared copy: the key is its `id`, which another form could reuse.
    _, shared = cached_by_batch(batch, ("shared", id(form)), lambda batch: (form, batch.share(form)))
    return batch.added_up(part_of, shared, name, arguments, rows=rows)


class BatchedLoss:
    """The sum of the losses over a batch, as a function of the coordinates."""

    def __init__(self, template: Template, space: Space, batch: Batch) -> None:
        self.template, self.space, self.batch = template, space, batch
        self.evaluations = 0.0  # Passes over the records; a pass over some records counts in proportion

    @cached_property
    def form(self) -> LeafForm:
        return form_of(self.template, self.space)

    def _sum(self, name: str, theta: Array, *more: Any, chosen: NDArray[Any] | None = None) -> Any:
        """Return the sum with this name, from this process or from all partitions."""
        return form_sum(self.batch, self.form, name, np.asarray(theta, dtype=float), *more, rows=chosen)

    def _every(self, records: int) -> int:
        """Return k such that every k-th record makes about `records` records; count the pass in proportion."""
        every = max(self.batch.size // records, 1)
        self.evaluations += 1 / every
        return every

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the sum of the losses and its gradient (a subgradient at nonsmooth points), shape (dim,)."""
        self.evaluations += 1
        found = self._sum("gradient_and_value", theta)
        found = np.zeros(self.space.dim + 1) if found is None else found
        return float(found[-1]), np.array(found[:-1])

    def gradient(self, theta: Array) -> Array:
        """Return the gradient of the sum of the losses, shape (dim,)."""
        return self.value_and_gradient(theta)[1]

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None = None) -> Array:
        """Return the sum of the (chosen) records' gradients, each clipped to the norm `clip`, shape (dim,)."""
        found = self._sum("clipped_gradient", theta, clip, chosen=chosen)
        return np.zeros(self.space.dim) if found is None else np.asarray(found)

    def clipped_sums(self, theta: Array, clip: float, people: NDArray[np.int64]) -> Array:
        """Return the sum over people of each person's gradient sum, clipped to the norm `clip`, shape (dim,)."""
        found = self._sum("clipped_sums", theta, clip, chosen=people)
        return np.zeros(self.space.dim) if found is None else np.asarray(found)

    @property
    def monomials(self) -> int:
        """The number of monomials of a record that the losses read."""
        return self.form.design.count

    @property
    def has_hessian(self) -> bool:
        """Whether the Hessian is small enough to be computed."""
        return self.space.dim <= LARGEST_HESSIAN and self.form.forms * self.monomials <= LARGEST_COEFFICIENTS

    def hessian(self, theta: Array, records: int = ALL) -> Array:
        """Return the Hessian of the losses' sum (a limit at nonsmooth points), shape (dim, dim), from about `records` records."""
        if not self.batch.size:
            return np.zeros((self.space.dim, self.space.dim))
        return np.asarray(self._sum("hessian", theta, self._every(records)))

    def grid(self, theta: Array, records: int) -> tuple[Indices, Array, Array, Array] | None:
        """Return a model of the Hessian: places of coordinates in a table, scales, and matrices of columns and rows; or None."""
        grid, count, forms = self.form.grid, self.monomials, self.form.forms
        if grid is None or not self.batch.size or count > LARGEST_GRAM:
            return None
        sums = self._sum("moments", theta, self._every(records))
        bend, table = sums[: forms**2].reshape(forms, forms) / self.batch.size, sums[forms**2 :].reshape(count, count)
        places, kinds, used, scale = grid
        return places, scale, kinds @ bend @ kinds.T, table[used][:, used]

    def factors(self, theta: Array, records: int) -> tuple[Array, Array] | None:
        """Return monomials and Hessians by the forms of curved records, from about `records`; None if too large or in parts."""
        if type(self.batch) is not Batch or not self.batch.size:
            return None
        every = self._every(records)
        if self.batch.size // every * (self.form.forms**2 + self.monomials) > LARGEST_FACTORS:
            return None
        return self._sum("factors", theta, every)
