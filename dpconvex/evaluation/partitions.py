"""Sums over records in partitions: the parameters go to where the records are, and partial sums come back.

What one partition is asked for is what the `BatchedLoss` of its records offers.  Partial sums are added in an order that the
numbers of records in the partitions decide, whoever is done first, and what is computed for a partition does not depend on what
was computed before: the bits are the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.packing import packed, unpacked
from dpconvex.core.parameter_space import Space
from dpconvex.evaluation.gram import Gram, groups_of, passes_of
from dpconvex.evaluation.lowered_template import lower_template
from dpconvex.evaluation.shared_forms import leaf_form
from dpconvex.evaluation.threads import one_blas_thread
from dpconvex.language.batch import Batch, PartitionedBatch
from dpconvex.language.template import Template

Array = NDArray[np.float64]


class Program:
    """The losses of a template, for the records of any partition, in any process; `loss` makes a `BatchedLoss` of a partition."""

    def __init__(self, template: Template, space: Space, loss: Callable[..., Any]) -> None:
        self.template, self.space, self.loss = template, space, loss

    def __reduce__(self) -> tuple[Any, ...]:
        template, space = self.template, self.space
        lowered = lower_template(template, space)
        lowered.losses  # noqa: B018  (made here, for all)
        form = leaf_form(template, space)
        parts = {name: getattr(template, name) for name in ("record", "losses", "regularizer", "variables")}
        return program_of, (packed((parts, space, lowered, form)), self.loss)

    def sum(self, batch: Batch, name: str, arguments: Sequence[Any]) -> Any:
        """Return a sum over the records of a partition; of a value and a gradient, the value last."""
        with one_blas_thread():
            found = getattr(self.loss(self.template, self.space, batch), name)(*arguments)
        if isinstance(found, Gram):
            return found.sums()
        return np.append(found[1], found[0]) if isinstance(found, tuple) else found


def program_of(payload: bytes, loss: Callable[..., Any]) -> Program:
    """Return a program in another process, with what was prepared in the first."""
    from dpconvex.evaluation import lowered_template, shared_forms

    parts, space, lowered, form = unpacked(payload)
    template = Template.__new__(Template)
    template.__dict__.update(parts)
    order = tuple(block.variable for block in space.blocks.values())
    lowered_template._lowered[template] = (order, lowered)
    shared_forms._FORMS[template] = (order, form)
    return Program(template, space, loss)


def summed(batch: Batch, program: Program, name: str, arguments: Sequence[Any], own: Sequence[Any] = ()) -> Any:
    """Do the work of `Program.sum`, where a partition is."""
    return program.sum(batch, name, (*arguments, *own))


class PartitionEngine:
    """Sums over the records of all partitions."""

    def __init__(self, program: Program, batch: PartitionedBatch) -> None:
        self.batch = batch
        self.dim = program.space.dim
        self.form = leaf_form(program.template, program.space)
        self._program = batch.place.share(program)
        self._bent = True

    def _total(self, name: str, *arguments: Any, own: Sequence[Any] | None = None) -> Any:
        return self.batch.added_up(summed, self._program, name, arguments, own=own)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient, shape (dim,)."""
        found = self._total("value_and_gradient", theta)
        return (0.0, np.zeros(self.dim)) if found is None else (float(found[-1]), np.array(found[:-1]))

    def hessian_product(self, theta: Array, direction: Array) -> Array:
        """Hessian of the sum of the losses times a direction, shape (dim,)."""
        found = self._total("hessian_product", theta, direction)
        return np.zeros(self.dim) if found is None else np.asarray(found)

    def hessian(self, theta: Array) -> Array | None:
        """Hessian of the sum of the losses, shape (dim, dim); None if a partition has products with directions only."""
        found = self._total("hessian", theta) if self._bent else None
        self._bent = found is not None
        return found

    def gram(self, theta: Array, by_label: bool = False) -> Gram | None:
        found = self._total("gram", theta, by_label) if self.form is not None else None
        if found is None or self.form is None:
            return None
        form = self.form
        groups = groups_of(len(form.labels), len(form.monomials), form.forms, by_label)
        return Gram.of(found, groups, form.forms, form.map)

    @property
    def gram_passes(self) -> float:
        """How many evaluations `gram` takes as long as, about, if records are dense."""
        return np.inf if self.form is None else passes_of(len(self.form.monomials), self.form.forms)

    def clipped_gradient(self, theta: Array, clip: float, chosen: NDArray[np.bool_] | None) -> Array:
        """Sum of the records' gradients, each with a norm of at most `clip`, shape (dim,); of the chosen records only."""
        own = None if chosen is None else [(part,) for part in self.batch.split(chosen)]
        found = self._total("clipped_gradient", theta, clip, own=own)
        return np.zeros(self.dim) if found is None else np.asarray(found)

    def record_values(self, theta: Array) -> Array:
        """Loss of each record, shape (n,)."""
        values = np.empty(self.batch.size)
        places = self.batch.split(np.arange(self.batch.size))
        for number, found in self.batch.each(summed, self._program, "record_values", (theta,)):
            values[places[number]] = found
        return values
