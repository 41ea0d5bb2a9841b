"""The losses of a whole batch, summed: values, gradients and Hessian products as functions of the coordinates.

Two engines do the work.  Where the leaves are polynomials of the record (`leaves`), records are read block by block, wherever
they lie, and multiplied with plain matrix products.  Otherwise, and on an accelerator, records lie on the device, grouped by
their discrete fields, each group with the compiled functions of its whole loss.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.parameter_space import Space
from dpconvex.evaluation.block_engine import BlockEngine
from dpconvex.evaluation.compiled import compiled, double_precision, lower_template
from dpconvex.evaluation.device_engine import DeviceEngine
from dpconvex.evaluation.shared_forms import leaf_form
from dpconvex.geometry.absolute_values import AbsoluteValues
from dpconvex.geometry.quadratics import Quadratic
from dpconvex.language.record import Batch
from dpconvex.language.template import Template

__all__ = ["BatchedLoss", "batched_loss"]

Array = NDArray[np.float64]


class BatchedLoss:
    """The sum of the losses over a batch, and the regularizer, as functions of the coordinates.

    Parameters
    ----------
    template : Template
    space : Space
        Coordinates of the template's variables.
    batch : Batch
        Validated records.
    engine : {"blocks", "device"}, optional
        How the records are gone through; by default, whatever is fast.

    Raises
    ------
    MissingRule, TemplateError
        See `record_tape`.

    Examples
    --------
    >>> import cvxpy as cp
    >>> from dpconvex.core.record_domains import Ball, Choice
    >>> from dpconvex.language.record import Record
    >>> w = cp.Variable(2, name="w")
    >>> record = Record(x=Ball(2), y=Choice([-1, 1]))
    >>> template = Template(record, lambda x, y: cp.logistic(-y * (x @ w)), cp.sum_squares(w))
    >>> batch = record.validate({"x": [[1, 0], [0, 1]], "y": [1, -1]})
    >>> value, gradient = BatchedLoss(template, Space([w]), batch).value_and_gradient(np.zeros(2))
    >>> gradient.tolist()
    [-0.5, 0.5]
    """

    def __init__(self, template: Template, space: Space, batch: Batch, engine: str | None = None) -> None:
        self.space = space
        self.size = batch.size
        self.batch = batch
        self._lowered = lower_template(template, space)
        # Without records there are no blocks; the device has no groups then, and adds up nothing.
        device = engine == "device" or batch.size == 0 or (engine is None and on_accelerator(batch))
        form = None if device else leaf_form(template, space)
        self.engine = "device" if form is None else "blocks"
        self._engine: BlockEngine | DeviceEngine = self._device if form is None else BlockEngine(form, batch)

    @cached_property
    def _device(self) -> DeviceEngine:
        return DeviceEngine(self._lowered, self.space, self.batch)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient (a subgradient at kinks), shape (dim,)."""
        return self._engine.value_and_gradient(np.asarray(theta, dtype=float))

    def value(self, theta: Array) -> float:
        """Sum of the losses."""
        return self.value_and_gradient(theta)[0]

    def gradient(self, theta: Array) -> Array:
        """Gradient of the sum of the losses, shape (dim,)."""
        return self.value_and_gradient(theta)[1]

    def hessian_product(self, theta: Array, direction: Array) -> Array:
        """Hessian of the sum of the losses (one of its limits at kinks) times a direction, shape (dim,)."""
        return self._engine.hessian_product(np.asarray(theta, dtype=float), np.asarray(direction, dtype=float))

    def record_values(self, theta: Array) -> Array:
        """Loss of each record, shape (n,)."""
        return self._engine.record_values(np.asarray(theta, dtype=float))

    def record_gradients(self, theta: Array) -> Array:
        """Gradient of each record's loss, shape (n, dim).  Needs memory for all of them: for small batches."""
        return self._device.record_gradients(np.asarray(theta, dtype=float))

    @property
    def absolute(self) -> AbsoluteValues | None:
        """The separable absolute values in the regularizer, if there are any."""
        return self._lowered.absolute

    def quadratic(self, smooth: bool = False) -> Quadratic | None:
        """The regularizer, or its smooth part, if it is a quadratic function."""
        lowered = self._lowered.smooth if smooth else self._lowered.regularizer
        return lowered if isinstance(lowered, Quadratic) else None

    def regularizer_value_and_gradient(self, theta: Array, smooth: bool = False) -> tuple[float, Array]:
        """Regularizer (as declared: per record, not times the size) and its gradient, shape (dim,).

        With `smooth`, without its separable absolute values (see `absolute`).
        """
        lowered = self._lowered.smooth if smooth else self._lowered.regularizer
        if isinstance(lowered, Quadratic):
            return lowered.value_and_gradient(np.asarray(theta, dtype=float))
        entries = self._entries(theta)
        slope = np.zeros(len(entries))
        with double_precision():
            function = compiled(lowered.tape).value_and_gradient
            value, part = function(entries[lowered.place], *self._public, lowered.constants)
            slope[lowered.place] = np.asarray(part)
            return float(value), np.asarray(self._lowered.lift.T @ slope)

    def regularizer_hessian_product(self, theta: Array, direction: Array) -> Array:
        """Hessian of the regularizer times a direction, shape (dim,)."""
        lowered = self._lowered.regularizer
        if isinstance(lowered, Quadratic):
            return lowered.hessian_product(np.asarray(direction, dtype=float))
        entries, along = self._entries(theta)[lowered.place], self._entries(direction)[lowered.place]
        total = np.zeros(self._lowered.lift.shape[0])
        with double_precision():
            function = compiled(lowered.tape).hessian_product
            total[lowered.place] = np.asarray(function(entries, along, *self._public, lowered.constants))
        return np.asarray(self._lowered.lift.T @ total)

    @cached_property
    def _public(self) -> tuple[Any, Any]:
        """Arguments of the regularizer besides its constants: no fields, one record of weight 1."""
        import jax

        with double_precision():
            return (), jax.device_put(np.ones(1))

    def _entries(self, theta: Array) -> Array:
        return np.asarray(self._lowered.lift @ np.asarray(theta, dtype=float))


_KNOWN: WeakKeyDictionary[Batch, dict[tuple[int, ...], BatchedLoss]] = WeakKeyDictionary()


def batched_loss(template: Template, space: Space, batch: Batch) -> BatchedLoss:
    """Return the loss of a batch, the same object for equal arguments: many fits of one batch prepare it once."""
    key = (id(lower_template(template, space)), *(block.variable.id for block in space.blocks.values()))
    known = _KNOWN.setdefault(batch, {})
    if key not in known:
        known[key] = BatchedLoss(template, space, batch)
    return known[key]


def on_accelerator(batch: Batch) -> bool:
    """Whether the records should lie on a device other than the processor: there is one, and they are dense arrays."""
    import jax

    return jax.default_backend() != "cpu" and all(isinstance(column, np.ndarray) for column in batch.fields.values())
