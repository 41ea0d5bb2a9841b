"""Sums over records in partitions: the parameters go to where the records are, and partial sums come back.

What one partition is asked for is what the `BatchedLoss` of its records offers.  Partial sums are added in an order that the
numbers of records in the partitions decide, whoever is done first, and what is computed for a partition does not depend on what
was computed before: the bits are the same for any number of workers.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.arrays import Array
from dpconvex.core.parameter_space import Space
from dpconvex.evaluation import forms, programs
from dpconvex.evaluation.threads import one_blas_thread
from dpconvex.language.batch import Batch, PartitionedBatch
from dpconvex.language.template import Template


class Program:
    """The losses of a template, for the records of any partition, in any process; `loss` makes a `BatchedLoss` of a partition."""

    def __init__(self, template: Template, space: Space, loss: Callable[..., Any]) -> None:
        self.template, self.space, self.loss = template, space, loss

    def __reduce__(self) -> tuple[Any, ...]:
        lowered = programs.lower_template(self.template, self.space)
        parts = {name: getattr(self.template, name) for name in ("record", "losses", "regularizer", "variables")}
        return program_of, (parts, self.space, lowered, forms.leaf_form(self.template, self.space), self.loss)


def program_of(parts: dict[str, Any], space: Space, lowered: Any, form: Any, loss: Callable[..., Any]) -> Program:
    """Return a program in another process, with what was prepared in the first."""
    template = Template.__new__(Template)
    template.__dict__.update(parts)
    order = tuple(block.variable for block in space.blocks.values())
    programs._LOWERED[template] = (order, lowered)
    forms._FORMS[template] = (order, form)
    return Program(template, space, loss)


def summed(batch: Batch, program: Program, name: str, arguments: Sequence[Any], own: Sequence[Any] = ()) -> Any:
    """Return a sum over the records of a partition; of a value and a gradient, the value last."""
    with one_blas_thread():
        found = getattr(program.loss(program.template, program.space, batch), name)(*arguments, *own)
    return np.append(found[1], found[0]) if isinstance(found, tuple) else found


class PartitionEngine:
    """Sums over the records of all partitions."""

    def __init__(self, program: Program, batch: PartitionedBatch) -> None:
        self.batch = batch
        self.form = forms.leaf_form(program.template, program.space)
        self.dim = program.space.dim
        self._program = batch.place.share(program)

    def _total(self, name: str, *arguments: Any, own: Sequence[Any] | None = None) -> Any:
        return self.batch.added_up(summed, self._program, name, arguments, own=own)

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

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None) -> Array:
        """Sum of the records' gradients, each with a norm of at most `clip`, shape (dim,); of the chosen records only."""
        own = None if chosen is None else [(part,) for part in self.batch.split(chosen)]
        found = self._total("clipped_gradient", theta, clip, own=own)
        return np.zeros(self.dim) if found is None else np.asarray(found)
