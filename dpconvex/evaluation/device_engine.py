"""Sums over the records of a batch that lie on the device of the compiled functions, all at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.parameter_space import Space
from dpconvex.core.summation import Pairwise
from dpconvex.evaluation.block_engine import padded_size
from dpconvex.evaluation.compiled import Compiled, compiled, double_precision
from dpconvex.evaluation.lowered_template import LoweredTemplate
from dpconvex.evaluation.programs import Lowered
from dpconvex.language.record import Batch

__all__ = ["DeviceEngine"]

Array = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Group:
    """The records with one combination of discrete fields, on the device."""

    rows: Indices
    lowered: Lowered
    functions: Compiled
    arguments: tuple[Any, Any, Any]  # fields, weights, constants


class DeviceEngine:
    """Sums over records that lie on the device of the compiled functions."""

    def __init__(self, lowered: LoweredTemplate, space: Space, batch: Batch) -> None:
        self.lift = lowered.lift
        self.space = space
        self.size = batch.size
        self._groups = [
            self._group(loss, batch, rows) for g, loss in enumerate(lowered.losses) if len(rows := batch.rows(g))
        ]

    @staticmethod
    def _group(lowered: Lowered, batch: Batch, rows: Indices) -> Group:
        import jax

        size = padded_size(len(rows))
        # Padding repeats a record with weight zero: a value that is in the domain keeps every function finite.
        filled = np.concatenate([rows, np.full(size - len(rows), rows[0])])
        weights = np.concatenate([np.ones(len(rows)), np.zeros(size - len(rows))])
        fields = (batch.fields[name] for name in lowered.fields)
        dense = tuple(f[filled].toarray() if sp.issparse(f) else f[filled] for f in fields)
        with double_precision():
            arguments = jax.device_put((dense, weights, lowered.constants))
        return Group(rows, lowered, compiled(lowered.program), arguments)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Sum of the losses and its gradient, shape (dim,)."""
        entries = self._entries(theta)
        with double_precision():
            # All groups are dispatched before the first result is waited for.
            results = [g.functions.value_and_gradient(entries[g.lowered.place], *g.arguments) for g in self._groups]
            total, slope = 0.0, Pairwise(np.zeros(len(entries)))
            for group, (value, part) in zip(self._groups, results, strict=True):
                total += float(value)
                own = np.zeros(len(entries))
                own[group.lowered.place] = np.asarray(part)
                slope.add(own)
        return total, np.asarray(self.lift.T @ slope.value)

    def hessian_product(self, theta: Array, direction: Array) -> Array:
        """Hessian of the sum of the losses times a direction, shape (dim,)."""
        entries, along = self._entries(theta), self._entries(direction)
        total = np.zeros(len(entries))
        with double_precision():
            results = [
                g.functions.hessian_product(entries[g.lowered.place], along[g.lowered.place], *g.arguments)
                for g in self._groups
            ]
            for group, part in zip(self._groups, results, strict=True):
                total[group.lowered.place] += np.asarray(part)
        return np.asarray(self.lift.T @ total)

    def record_values(self, theta: Array) -> Array:
        """Loss of each record, shape (n,)."""
        entries, values = self._entries(theta), np.empty(self.size)
        with double_precision():
            for group in self._groups:
                found = group.functions.record_values(entries[group.lowered.place], *group.arguments)
                values[group.rows] = np.asarray(found)[: len(group.rows)]
        return values

    def record_gradients(self, theta: Array) -> Array:
        """Gradient of each record's loss, shape (n, dim)."""
        entries, gradients = self._entries(theta), np.zeros((self.size, self.space.dim))
        with double_precision():
            for group in self._groups:
                found = group.functions.record_gradients(entries[group.lowered.place], *group.arguments)
                slopes = np.asarray(found)[: len(group.rows)]
                gradients[group.rows] = slopes @ self.lift[group.lowered.place]
        return gradients

    def _entries(self, theta: Array) -> Array:
        return np.asarray(self.lift @ theta)
