"""The losses of a whole batch, summed: values, gradients and Hessians as functions of the coordinates."""

from functools import cached_property, partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.arrays import Array
from dpconvex.core.expression import Expression
from dpconvex.core.parameter_space import Space
from dpconvex.evaluation.clipping import ClippedEngine
from dpconvex.evaluation.devices import DeviceEngine, current, has_accelerator
from dpconvex.evaluation.engine import LARGE
from dpconvex.evaluation.forms import LeafForm, losses_of
from dpconvex.evaluation.partitions import PartitionEngine, kept
from dpconvex.evaluation.programs import gradient, hessian_product
from dpconvex.geometry.quadratics import Quadratic
from dpconvex.language.batch import Batch, PartitionedBatch
from dpconvex.language.columns import Stored
from dpconvex.language.template import Template

# A Hessian has so many coordinates, and coefficients of forms, at most; second moments are of so many monomials.
ALL = 2**62
LARGEST_HESSIAN, LARGEST_COEFFICIENTS, LARGEST_GRAM = 500, 2000, 2000


class BatchedLoss:
    """The sum of the losses over a batch, and the regularizer, as functions of the coordinates.

    Examples
    --------
    >>> import cvxpy as cp
    >>> from dpconvex.core.record_domains import Ball, Choice
    >>> from dpconvex.language.record import Record
    >>> w = cp.Variable(2, name="w")
    >>> record = Record(x=Ball(2), y=Choice([-1, 1]))
    >>> template = Template(record, lambda x, y: cp.logistic(-y * (x @ w)), cp.sum_squares(w))
    >>> batch = record.validate({"x": [[1, 0], [0, 1]], "y": [1, -1]})
    >>> value, gradient = BatchedLoss(template, Space(template.variables), batch).value_and_gradient(np.zeros(2))
    >>> gradient.tolist()
    [-0.5, 0.5]
    """

    def __init__(self, template: Template, space: Space, batch: Batch, engine: str | None = None) -> None:
        self.space, self.batch, self._regularizer = space, batch, template.regularizer
        self._losses = losses_of(template, space)
        # "whole" splits no losses.
        self.engine = engine or ("device" if on_devices(batch) else "blocks")

    @cached_property
    def form(self) -> LeafForm:
        return self._losses.whole if self.engine == "whole" else self._losses.form

    @cached_property
    def _blocks(self) -> ClippedEngine | PartitionEngine:
        kind: Any = PartitionEngine if isinstance(self.batch, PartitionedBatch) else ClippedEngine
        found: ClippedEngine | PartitionEngine = kept(self.batch, id(self.form), partial(kind, self.form))
        return found

    @cached_property
    def _engine(self) -> ClippedEngine | DeviceEngine | PartitionEngine:
        if self.engine != "device":
            return self._blocks
        return kept(self.batch, (id(self._losses), current()), partial(DeviceEngine, self._losses))

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient (a subgradient at nonsmooth points), shape (dim,)."""
        return self._engine.value_and_gradient(np.asarray(theta, dtype=float))

    def value(self, theta: Array) -> float:
        """Sum of the losses."""
        return self.value_and_gradient(theta)[0]

    def gradient(self, theta: Array) -> Array:
        """Gradient of the sum of the losses, shape (dim,)."""
        return self.value_and_gradient(theta)[1]

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None = None) -> Array:
        """Sum of the records' gradients, each with a norm of at most `clip`, shape (dim,); of the chosen records only."""
        return self._blocks.clipped_gradient(np.asarray(theta, dtype=float), clip, chosen)

    @property
    def monomials(self) -> int:
        """How many products of its scalars the losses read of a record."""
        return len(self.form.monomials)

    @property
    def has_hessian(self) -> bool:
        """Whether the Hessian is small enough to be made."""
        coefficients = self.form.forms * len(self.form.monomials)
        return self.space.dim <= LARGEST_HESSIAN and coefficients <= LARGEST_COEFFICIENTS

    def hessian(self, theta: Array, records: int = ALL) -> Array:
        """Hessian of the losses' sum (one of its limits at nonsmooth points), shape (dim, dim), from about so many records."""
        if not self.batch.size:
            return np.zeros((self.space.dim, self.space.dim))
        return self._blocks.hessian(np.asarray(theta, dtype=float), records)

    def grid(self, theta: Array, records: int) -> tuple[NDArray[np.int64], Array, Array] | None:
        """Model the Hessian by second moments of about so many records, and their mean curvature; None if it is too large.

        Returns where each coordinate lies in a table, and matrices for its columns and rows: the model is their product.
        """
        grid, count, forms = self.form.grid, self.monomials, self.form.forms
        if grid is None or not self.batch.size or count > LARGEST_GRAM:
            return None
        sums = self._blocks.moments(np.asarray(theta, dtype=float), records)
        bend, table = sums[: forms**2].reshape(forms, forms) / self.batch.size, sums[forms**2 :].reshape(count, count)
        places, kinds, used = grid
        return places, kinds @ bend @ kinds.T, table[used][:, used]

    def quadratic(self, part: Expression | None = None) -> Quadratic | None:
        """Return the regularizer, or a part of it, if it is quadratic."""
        lowered = self._losses.public(part or self._regularizer)
        return lowered if isinstance(lowered, Quadratic) else None

    def regularizer_value_and_gradient(self, theta: Array, part: Expression | None = None) -> tuple[float, Array]:
        """Regularizer (as declared: per record, not times the size) and its gradient, shape (dim,); or of a part of it."""
        lowered, theta = self._losses.public(part or self._regularizer), np.asarray(theta, dtype=float)
        if isinstance(lowered, Quadratic):
            return lowered.value_and_gradient(theta)
        lift = self._losses.lift[lowered.place]
        value, slope = gradient(lowered.program, lowered.constants, (lift @ theta)[:, None], [], 1)
        return float(value[0]), np.asarray(lift.T @ slope[:, 0])

    def regularizer_hessian(self, theta: Array, part: Expression | None = None) -> sp.csr_array:
        """Hessian of the regularizer, shape (dim, dim), or of a part of it."""
        lowered = self._losses.public(part or self._regularizer)
        if isinstance(lowered, Quadratic):
            return lowered.hessian
        lift, dim = self._losses.lift[lowered.place], self.space.dim
        entries = (lift @ np.asarray(theta, dtype=float))[:, None]
        bent = hessian_product(lowered.program, lowered.constants, entries, lift.toarray(), [], dim)
        return sp.csr_array(lift.T @ bent)


def on_devices(batch: Batch) -> bool:
    """Whether devices are to sum over the records: that was asked for, or there is a GPU and there are many; all are dense."""
    if isinstance(batch, PartitionedBatch) or not batch.size:
        return False
    columns = batch.fields.values()
    size = sum(int(np.prod(column.shape, dtype=np.int64)) for column in columns)
    dense = all(isinstance(column, np.ndarray | Stored) for column in columns)
    return dense and (current().asked or (size >= LARGE and has_accelerator()))
