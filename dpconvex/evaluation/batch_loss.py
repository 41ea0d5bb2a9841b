"""The losses of a whole batch, summed: values, gradients and Hessian products as functions of the coordinates.

Where the leaves are polynomials of the record (`shared_forms`), records are read block by block, wherever they lie, and
multiplied with plain matrix products.  Otherwise each group of records with equal discrete fields is gone through with its whole
loss: in NumPy, or, on devices or where there are many, compiled.  Of records in partitions each partition is one batch,
wherever it lies.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.expression import Expression
from dpconvex.core.parameter_space import Space
from dpconvex.evaluation.block_engine import BlockEngine
from dpconvex.evaluation.clipped_engine import ClippedEngine
from dpconvex.evaluation.clipping import gradient_norms
from dpconvex.evaluation.compiled import installed
from dpconvex.evaluation.derivatives import gradient, hessian_product
from dpconvex.evaluation.device_engine import DeviceEngine
from dpconvex.evaluation.devices import current, has_accelerator
from dpconvex.evaluation.gram import Gram
from dpconvex.evaluation.lowered_template import lower_template
from dpconvex.evaluation.partitions import PartitionEngine, Program
from dpconvex.evaluation.programs import Lowered
from dpconvex.evaluation.shared_forms import leaf_form
from dpconvex.evaluation.whole_losses import WholeLosses
from dpconvex.geometry.quadratics import Quadratic
from dpconvex.language.batch import Batch, PartitionedBatch
from dpconvex.language.columns import Stored
from dpconvex.language.template import Template

Array = NDArray[np.float64]

# Records times coordinates from which whole losses are compiled: a hundred passes pay for it.  And numbers in the records from
# which an accelerator is looked for.
PAYS, LARGE = 1e6, 2**17
# Matrices of second derivatives of so many coefficients of forms are made at once.
LARGEST_HESSIAN = 2000
# An accelerator evaluates so many times while a processor does once, which makes second moments.
HOST = 20.0
# Second moments of so many monomials are made.
LARGEST_GRAM = 2000


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
        self._template, self.space = template, space
        self.size = batch.size
        self.batch = batch
        self._lowered = lower_template(template, space)
        self._engine: BlockEngine | WholeLosses | DeviceEngine | PartitionEngine
        if isinstance(batch, PartitionedBatch):
            self.engine, self._engine = "partitions", PartitionEngine(Program(template, space, batched_loss), batch)
            return
        if engine is None:
            engine = "device" if on_devices(batch) else "blocks"
        # Without records there are no blocks; whole losses have no groups then, and add up nothing.
        form = leaf_form(template, space) if engine == "blocks" and batch.size else None
        if form is None and engine == "blocks":
            engine = "device" if batch.size * space.dim >= PAYS and installed() else "whole"
        self.engine = engine
        if form is not None:
            self._engine = BlockEngine(form, batch)
        else:
            self._engine = DeviceEngine(self._lowered, space, batch) if engine == "device" else self._whole

    @cached_property
    def _whole(self) -> WholeLosses:
        return WholeLosses(self._lowered, self.space, self.batch)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient (a subgradient at kinks), shape (dim,)."""
        return self._engine.value_and_gradient(np.asarray(theta, dtype=float))

    def value(self, theta: Array) -> float:
        """Sum of the losses."""
        return self.value_and_gradient(theta)[0]

    def gradient(self, theta: Array) -> Array:
        """Gradient of the sum of the losses, shape (dim,)."""
        return self.value_and_gradient(theta)[1]

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None = None) -> Array:
        """Sum of the records' gradients, each with a norm of at most `clip`, shape (dim,); of the chosen records only."""
        theta = np.asarray(theta, dtype=float)
        return self._clipped.clipped_gradient(theta, clip, chosen)

    @cached_property
    def _clipped(self) -> ClippedEngine | WholeLosses | PartitionEngine:
        """What sums clipped gradients: which it is does not depend on the records."""
        if isinstance(self._engine, PartitionEngine):
            return self._engine
        form = leaf_form(self._template, self.space) if self.size else None
        norms = None if form is None else gradient_norms(form)
        return self._whole if form is None or norms is None else ClippedEngine(form, self.batch, norms)

    def hessian_product(self, theta: Array, direction: Array) -> Array:
        """Hessian of the sum of the losses (one of its limits at kinks) times a direction, shape (dim,)."""
        return self._engine.hessian_product(np.asarray(theta, dtype=float), np.asarray(direction, dtype=float))

    def hessian(self, theta: Array) -> Array | None:
        """Hessian of the sum of the losses, shape (dim, dim); None if products with directions are all there is."""
        engine = self._engine
        if isinstance(engine, PartitionEngine):
            return engine.hessian(np.asarray(theta, dtype=float))
        if not isinstance(engine, BlockEngine) or engine.form.forms * len(engine.form.monomials) > LARGEST_HESSIAN:
            return None
        return engine.hessian(np.asarray(theta, dtype=float))

    def gram(self, theta: Array, by_label: bool = False) -> Gram | None:
        """A model of the Hessian of the sum of the losses; None if there is none, or it would take too long.

        Every part of it is a sum over the records, or a mean; of those with the same label, if that is asked for.
        """
        return None if self._modelled is None else self._modelled.gram(np.asarray(theta, dtype=float), by_label)

    @property
    def gram_passes(self) -> float:
        """How many evaluations the Gram matrix takes as long as, about; infinite without one."""
        if self._modelled is None:
            return np.inf
        slower = HOST if isinstance(self._engine, DeviceEngine) and has_accelerator() else 1.0
        return slower * self._modelled.gram_passes

    @property
    def coefficients(self) -> int:
        """How many coefficients the forms of the losses have, each multiplied with every record in an evaluation; 0 without."""
        form = None if self._modelled is None else self._modelled.form
        return 0 if form is None else form.forms * len(form.monomials)

    @cached_property
    def _modelled(self) -> BlockEngine | PartitionEngine | None:
        """The engine, if it knows the forms of the losses, and has not too many second moments."""
        engine: Any = self._engine
        form = leaf_form(self._template, self.space) if self.size else None
        if (
            form is None
            or len(form.monomials) > LARGEST_GRAM
            or not isinstance(engine, BlockEngine | PartitionEngine | DeviceEngine)
        ):
            return None
        # What devices sum up, a processor goes through for this once more.
        return BlockEngine(form, self.batch) if isinstance(engine, DeviceEngine) else engine

    def record_values(self, theta: Array) -> Array:
        return self._engine.record_values(np.asarray(theta, dtype=float))

    def record_gradients(self, theta: Array) -> Array:
        """Gradient of each record's loss, shape (n, dim).  Needs memory for all of them: for small batches."""
        return self._whole.record_gradients(np.asarray(theta, dtype=float))

    def quadratic(self, part: Expression | None = None) -> Quadratic | None:
        lowered = self._lowered.public(part)
        return lowered if isinstance(lowered, Quadratic) else None

    def regularizer_value_and_gradient(self, theta: Array, part: Expression | None = None) -> tuple[float, Array]:
        """Regularizer (as declared: per record, not times the size) and its gradient, shape (dim,).

        Or of a part of it.
        """
        lowered = self._lowered.public(part)
        if isinstance(lowered, Quadratic):
            return lowered.value_and_gradient(np.asarray(theta, dtype=float))
        value, slope = gradient(lowered.program, self._leaves(lowered, theta), 1)
        return float(value[0]), self._coordinates(lowered, slope)

    def regularizer_hessian_product(self, theta: Array, direction: Array, part: Expression | None = None) -> Array:
        lowered = self._lowered.public(part)
        if isinstance(lowered, Quadratic):
            return lowered.hessian_product(np.asarray(direction, dtype=float))
        along = lowered.program.cut(self._entries(lowered, direction))
        return self._coordinates(lowered, hessian_product(lowered.program, self._leaves(lowered, theta), along, 1))

    def _entries(self, lowered: Lowered, theta: Array) -> Array:
        return np.asarray(self._lowered.lift @ np.asarray(theta, dtype=float))[lowered.place, None]

    def _leaves(self, lowered: Lowered, theta: Array) -> dict[Expression, Any]:
        return lowered.leaves(self._entries(lowered, theta), {})

    def _coordinates(self, lowered: Lowered, slope: Array) -> Array:
        whole = np.zeros(self._lowered.lift.shape[0])
        whole[lowered.place] = slope[:, 0]
        return np.asarray(self._lowered.lift.T @ whole)


def batched_loss(template: Template, space: Space, batch: Batch) -> BatchedLoss:
    """Return the loss of a batch, the same object for equal arguments: many fits of one batch prepare it once."""
    key = (id(lower_template(template, space)), current(), *(block.variable for block in space.blocks.values()))
    known: dict[Any, BatchedLoss] = vars(batch).setdefault("_losses", {})  # forgotten with the batch
    if key not in known:
        # Of a copy: a batch that nobody needs any more goes at once, not when circles are looked for.
        known[key] = BatchedLoss(template, space, copy(batch))
    return known[key]


def on_devices(batch: Batch) -> bool:
    """Whether devices are to sum over the records: that was asked for, or there is a GPU and there are many; all are dense."""
    columns = batch.fields.values()
    if not all(isinstance(column, np.ndarray | Stored) for column in columns):
        return False
    large = sum(int(np.prod(column.shape, dtype=np.int64)) for column in columns) >= LARGE
    return current().asked or (large and has_accelerator())
