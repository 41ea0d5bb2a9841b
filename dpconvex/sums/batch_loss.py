"""The losses of a batch, summed: values, gradients and Hessians by the coordinates, to the same bits with any workers."""

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.data.batch import Batch
from dpconvex.expressions.expression import Expression
from dpconvex.expressions.parameter_space import Space, entries_matrix
from dpconvex.model.template import Template
from dpconvex.sets.quadratics import Quadratic
from dpconvex.sums.forms import LeafForm, form_of, public_part
from dpconvex.sums.hessian_sums import HessianSums
from dpconvex.sums.programs import Lowered
from dpconvex.util.arrays import Array, Indices

T = TypeVar("T")

# A Hessian has so many coordinates, and coefficients of forms, at most; second moments are of so many monomials.
ALL = 2**62
LARGEST_HESSIAN, LARGEST_COEFFICIENTS, LARGEST_GRAM, LARGEST_FACTORS = 500, 2000, 2000, 2**27


def kept(batch: Batch, key: Hashable, make: Callable[[Batch], T]) -> T:
    """Return what is made for a batch, the same object for equal keys: many passes prepare it once."""
    known: dict[Hashable, T] = vars(batch).setdefault("_kept", {})  # forgotten with the batch
    if key not in known:
        # Of a copy: a batch that nobody needs any more goes at once, not when circles are looked for.
        known[key] = make(copy(batch))
    return known[key]


def part_of(batch: Batch, form: LeafForm, name: str, arguments: Sequence[Any], *rows: Any) -> Any:
    return getattr(kept(batch, id(form), partial(HessianSums, form)), name)(*arguments, *rows)


class BatchedLoss:
    """The sum of the losses over a batch, and the regularizer, as functions of the coordinates."""

    def __init__(self, template: Template, space: Space, batch: Batch) -> None:
        self.template, self.space, self.batch = template, space, batch

    @cached_property
    def lift(self) -> sp.csr_array:
        return entries_matrix(self.space)

    @cached_property
    def form(self) -> LeafForm:
        return form_of(self.template, self.space)

    def public(self, part: Expression | None) -> Lowered | Quadratic:
        return public_part(self.template, self.space, part)

    def _sum(self, name: str, theta: Array, *more: Any, chosen: NDArray[Any] | None = None) -> Any:
        """Ask the engine of the processors, or those of all partitions."""
        arguments = (np.asarray(theta, dtype=float), *more)
        # The form stays with what stands for it, for another would be known by the same number.
        form = self.form
        _, shared = kept(self.batch, ("shared", id(form)), lambda batch: (form, batch.share(form)))
        return self.batch.added_up(part_of, shared, name, arguments, rows=chosen)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient (a subgradient at nonsmooth points), shape (dim,)."""
        found = self._sum("gradient_and_value", theta)
        found = np.zeros(self.space.dim + 1) if found is None else found
        return float(found[-1]), np.array(found[:-1])

    def gradient(self, theta: Array) -> Array:
        """Gradient of the sum of the losses, shape (dim,)."""
        return self.value_and_gradient(theta)[1]

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None = None) -> Array:
        """Sum of the records' gradients, each with a norm of at most `clip`, shape (dim,); of the chosen records only."""
        found = self._sum("clipped_gradient", theta, clip, chosen=chosen)
        return np.zeros(self.space.dim) if found is None else np.asarray(found)

    def clipped_sums(self, theta: Array, clip: float, people: NDArray[np.int64]) -> Array:
        """Sum over people, each with the sum of the records' gradients scaled to a norm of at most `clip`, shape (dim,)."""
        found = self._sum("clipped_sums", theta, clip, chosen=people)
        return np.zeros(self.space.dim) if found is None else np.asarray(found)

    @property
    def monomials(self) -> int:
        """The number of products of its scalars that losses read of a record."""
        return self.form.design.count

    @property
    def has_hessian(self) -> bool:
        """Whether the Hessian is small enough to be made."""
        return self.space.dim <= LARGEST_HESSIAN and self.form.forms * self.monomials <= LARGEST_COEFFICIENTS

    def hessian(self, theta: Array, records: int = ALL) -> Array:
        """Hessian of the losses' sum (one of its limits at nonsmooth points), shape (dim, dim), from about so many records."""
        if not self.batch.size:
            return np.zeros((self.space.dim, self.space.dim))
        return np.asarray(self._sum("hessian", theta, max(self.batch.size // records, 1)))

    def grid(self, theta: Array, records: int) -> tuple[Indices, Array, Array, Array] | None:
        """Model the Hessian by second moments: coordinates in a table, their scales, and matrices of columns and rows."""
        grid, count, forms = self.form.grid, self.monomials, self.form.forms
        if grid is None or not self.batch.size or count > LARGEST_GRAM:
            return None
        sums = self._sum("moments", theta, max(self.batch.size // records, 1))
        bend, table = sums[: forms**2].reshape(forms, forms) / self.batch.size, sums[forms**2 :].reshape(count, count)
        places, kinds, used, scale = grid
        return places, scale, kinds @ bend @ kinds.T, table[used][:, used]

    def factors(self, theta: Array, records: int) -> tuple[Array, Array] | None:
        """Return monomials and Hessians by the forms of about so many records, those that bend; None if they lie elsewhere."""
        if type(self.batch) is not Batch or not self.batch.size:
            return None
        every = max(self.batch.size // records, 1)
        if self.batch.size // every * (self.form.forms**2 + self.monomials) > LARGEST_FACTORS:
            return None
        return self._sum("factors", theta, every)

    def quadratic(self, part: Expression | None = None) -> Quadratic | None:
        """Return the regularizer, or a part of it, if it is quadratic."""
        found = self.public(part)
        return found if isinstance(found, Quadratic) else None

    def regularizer_value_and_gradient(self, theta: Array, part: Expression | None = None) -> tuple[float, Array]:
        """Regularizer (as declared: per record, not times the size) and its gradient, shape (dim,); or of a part of it."""
        found, theta = self.public(part), np.asarray(theta, dtype=float)
        if isinstance(found, Quadratic):
            return found.value_and_gradient(theta)
        lift = self.lift[found.place]
        value, slope = found.gradient((lift @ theta)[:, None], [], 1)
        return float(value[0]), np.asarray(lift.T @ slope[:, 0])

    def regularizer_hessian(self, theta: Array, part: Expression | None = None) -> sp.csr_array:
        """Hessian of the regularizer, shape (dim, dim), or of a part of it."""
        found = self.public(part)
        if isinstance(found, Quadratic):
            return found.hessian
        lift = self.lift[found.place]
        entries = (lift @ np.asarray(theta, dtype=float))[:, None]
        return sp.csr_array(lift.T @ found.hessian_product(entries, lift.toarray(), [], self.space.dim))
