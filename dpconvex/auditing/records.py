"""Batches of records, and their losses' affine leaves and derivatives, compiled once for all labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.atoms.arrangement import hstack, vec
from dpconvex.core.runtime import double_precision
from dpconvex.evaluation.programs import lower

Array = NDArray[np.float64]
Derivatives = tuple[Array, Array]

# Records or points that are evaluated at once: each shape is compiled anew.
BATCH = 64


class Losses:
    """The losses of all examined labels, and the entries of their affine leaves, under JAX.

    Attributes
    ----------
    owner : ndarray of int, shape (labels, width)
        Which leaf each entry of a label's leaves belongs to; labels with fewer are filled up with zeros.
    """

    def __init__(self, form: LossForm) -> None:
        self.dim, self.count = form.space.dim, len(form.labels)
        sizes = [[leaf.size for leaf in leaves] for leaves in form.leaves]
        self.width = max(1, *(sum(each) for each in sizes))
        self.owner = np.zeros((self.count, self.width), dtype=np.int64)
        for row, each in zip(self.owner, sizes, strict=True):
            row[: sum(each)] = np.repeat(np.arange(len(each)), each)
        self._losses = [lower(loss, form.space) for loss in form.losses]
        self._leaves = [lower(hstack(*map(vec, leaves)), form.space) if leaves else None for leaves in form.leaves]
        self._compiled: dict[bool, Callable[..., Any]] = {}

    @cached_property
    def rows(self) -> Callable[..., Any]:
        """``f(group, fields)``, which gives ``A_z`` and ``c_z`` for batches of records."""
        with double_precision():  # or it says that JAX is missing
            import jax
            import jax.numpy as xp

        def one(group: Any, values: Any) -> tuple[Any, Any]:
            def padded(leaves: Any) -> Callable[[Any], Any]:
                def entries(theta: Any) -> Any:
                    found = xp.zeros(0) if leaves is None else xp.ravel(leaves(theta, values))
                    return xp.pad(found, (0, self.width - len(found)))

                return entries

            def chosen(theta: Any) -> Any:
                return jax.lax.switch(group, [padded(leaves) for leaves in self._leaves], theta)

            zero = xp.zeros(self.dim)
            return jax.jacrev(chosen)(zero), chosen(zero)

        return jax.jit(jax.vmap(one))

    def derivatives(self, curved: bool) -> Callable[..., Any]:
        """``f(point, frame, group, fields)``: gradients and Hessians in coordinates of frames, for batches."""
        import jax
        import jax.numpy as xp

        def one(point: Any, frame: Any, group: Any, fields: Any) -> Any:
            def restricted(t: Any) -> Any:
                branches = [lambda theta, loss=loss: xp.reshape(loss(theta, fields), ()) for loss in self._losses]
                return jax.lax.switch(group, branches, frame @ t)

            bend = jax.hessian(restricted)(point) if curved else xp.zeros((1, 1))
            return jax.grad(restricted)(point), bend

        if curved not in self._compiled:
            self._compiled[curved] = jax.jit(jax.vmap(one))
        return self._compiled[curved]


_LOSSES: WeakKeyDictionary[LossForm, Losses] = WeakKeyDictionary()


def losses_of(form: LossForm) -> Losses:
    """Prepare the losses of a template, once."""
    if form not in _LOSSES:
        _LOSSES[form] = Losses(form)
    return _LOSSES[form]


@dataclass(frozen=True, eq=False)
class Records:
    """A batch of records; without losses it stands for no record at all, under add-remove."""

    losses: Losses | None
    group: NDArray[np.int64]
    fields: dict[str, Array]

    def __len__(self) -> int:
        return len(self.group)

    def take(self, index: Any) -> Records:
        return Records(self.losses, self.group[index], {name: v[index] for name, v in self.fields.items()})

    def rows(self, dim: int) -> Derivatives:
        """Return the rows of the affine leaves, shape (B, k, dim), and their offsets, shape (B, k)."""
        if self.losses is None:
            return np.zeros((len(self), 0, dim)), np.zeros((len(self), 0))
        return self._run(self.losses.rows)

    def slopes(self, points: Array, frame: Array, curved: bool = True) -> Derivatives:
        """Return gradients (B, d) and Hessians (B, d, d) at ``frame @ t``, for t of shape (B, d), frames (B, dim, d)."""
        count, d = points.shape
        if self.losses is None:
            return np.zeros((count, d)), np.zeros((count, d, d))
        # One width is compiled; the rest changes nothing.
        more = max(min(2 * self.losses.width, self.losses.dim) - d, 0)
        points, frame = np.pad(points, ((0, 0), (0, more))), np.pad(frame, ((0, 0), (0, 0), (0, more)))
        gradient, bend = self._run(self.losses.derivatives(curved), points, frame)
        return gradient[:, :d], bend[:, :d, :d]

    def slopes_at(self, points: Array, frame: Array) -> Derivatives:
        """Return the same for the only record, at many points, shape (m, d), in one frame, shape (dim, d)."""
        many = self.take(np.zeros(len(points), dtype=np.int64))
        return many.slopes(points, np.broadcast_to(frame, (len(points), *frame.shape)))

    def _run(self, program: Callable[..., Any], *more: Array) -> Derivatives:
        """Evaluate batches of one length, the last filled up with copies."""
        parts = []
        for start in range(0, len(self), BATCH):
            place = np.minimum(np.arange(start, start + BATCH), len(self) - 1)
            fields = {name: value[place] for name, value in self.fields.items()}
            with double_precision():
                found = program(*(part[place] for part in more), self.group[place], fields)
                parts.append([np.asarray(part) for part in found])
        first, second = (np.concatenate([part[k] for part in parts])[: len(self)] for k in range(2))
        return first, second
