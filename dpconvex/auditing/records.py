"""Batches of records, and their losses' affine leaves and derivatives, compiled once for all labels that share a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.atoms.arrangement import hstack, vec
from dpconvex.core.double_precision import double_precision
from dpconvex.core.expression import Field
from dpconvex.core.parameter_space import Space
from dpconvex.evaluation.compiled import single
from dpconvex.evaluation.programs import Lowered, Program, entries_matrix

Array = NDArray[np.float64]
Derivatives = tuple[Array, Array]

# Name of the field that holds the weights in a weighted sum of leaves.
WEIGHTS = "weights of the leaves"
# Records or points that are evaluated at once: each shape is compiled anew.
BATCH = 64


@dataclass(frozen=True, eq=False)
class Code:
    """A program and, for each combination of discrete fields that shares it, what stands in its slots."""

    program: Program
    fields: tuple[str, ...]
    index: NDArray[np.int64]
    weight: Array
    constants: tuple[Array, ...]

    @classmethod
    def build(cls, lowered: Sequence[Lowered], space: Space) -> Code:
        """Stack the slots of losses with equal programs."""
        lift = entries_matrix(space)  # every entry is a multiple of one coordinate
        index, weight = lift.indices.astype(np.int64), np.asarray(lift.data, dtype=float)
        place = np.stack([one.place for one in lowered])
        constants = tuple(np.stack(numbers) for numbers in zip(*(one.constants for one in lowered), strict=True))
        return cls(lowered[0].program, lowered[0].fields, index[place], weight[place], constants)

    def __call__(self, theta: Any, group: Any, values: Mapping[str, Any]) -> Any:
        """Evaluate at coordinates, one combination and the continuous fields, under JAX."""
        import jax.numpy as xp

        entries = xp.asarray(self.weight)[group] * theta[xp.asarray(self.index)[group]]
        constants = tuple(xp.asarray(numbers)[group] for numbers in self.constants)
        return single(self.program)(entries, tuple(values[name] for name in self.fields), constants)


@dataclass(frozen=True, eq=False)
class Kind:
    """Combinations of discrete fields whose losses are one program, but for its variables and numbers.

    Attributes
    ----------
    groups : ndarray of int, shape (k,)
        Indices into ``record.combinations``.
    leaves : Code or None
        The weighted sum of the entries of all affine leaves; the weights are one more field.
    owner : ndarray of int, shape (size,)
        Which leaf each of those entries belongs to.
    """

    groups: NDArray[np.int64]
    loss: Code
    leaves: Code | None
    owner: NDArray[np.int64]
    dim: int
    widest: int
    _compiled: dict[Any, Callable[..., Any]] = field(default_factory=dict)

    @property
    def rows(self) -> Callable[..., Any]:
        """``f(group, fields)``, which gives ``A_z`` and ``c_z`` for batches of records."""
        import jax
        import jax.numpy as xp

        zero, size, leaves = np.zeros(self.dim), len(self.owner), self.leaves

        def one(group: Any, values: Mapping[str, Any]) -> tuple[Any, Any]:
            if leaves is None:
                return xp.zeros((size, self.dim)), xp.zeros(size)

            def leaf(weights: Any) -> Any:
                return jax.value_and_grad(lambda t: leaves(t, group, {**values, WEIGHTS: weights}))(xp.asarray(zero))

            value, slope = jax.vmap(leaf)(xp.eye(size))
            return slope, value

        if "rows" not in self._compiled:
            self._compiled["rows"] = jax.jit(jax.vmap(one))
        return self._compiled["rows"]

    def derivatives(self, curved: bool) -> Callable[..., Any]:
        """``f(point, frame, group, fields)``: gradients and Hessians in coordinates of frames, for batches."""
        import jax
        import jax.numpy as xp

        def one(point: Any, frame: Any, group: Any, fields: Any) -> Any:
            def restricted(t: Any) -> Any:
                return self.loss(frame @ t, group, fields)

            bend = jax.hessian(restricted)(point) if curved else xp.zeros((1, 1))
            return jax.grad(restricted)(point), bend

        if curved not in self._compiled:
            self._compiled[curved] = jax.jit(jax.vmap(one))
        return self._compiled[curved]


_KINDS: WeakKeyDictionary[LossForm, list[Kind]] = WeakKeyDictionary()


def kinds_of(form: LossForm) -> list[Kind]:
    """Sort the combinations of discrete fields by the programs of their losses; once for a template."""
    if form in _KINDS:
        return _KINDS[form]
    found: dict[Any, list[tuple[int, Lowered, Lowered | None]]] = {}
    for k, loss, leaves in zip(form.labels, form.losses, form.leaves, strict=True):
        lowered, probe = Lowered.build(loss, form.space), None
        sizes = tuple(leaf.size for leaf in leaves)
        if sizes:
            weights = Field.of((sum(sizes),), WEIGHTS)
            probe = Lowered.build(weights @ hstack(*(vec(leaf) for leaf in leaves)), form.space)
        key = (lowered.program, lowered.fields, probe and (probe.program, probe.fields), sizes or (1,))
        found.setdefault(key, []).append((k, lowered, probe))
    kinds, widest = [], min(2 * max(sum(key[3]) for key in found), form.space.dim)
    for (_, _, _, sizes), members in found.items():
        groups, owner = np.array([k for k, _, _ in members]), np.repeat(np.arange(len(sizes)), sizes)
        probes = [probe for _, _, probe in members if probe is not None]
        table = Code.build(probes, form.space) if probes else None
        kinds.append(
            Kind(groups, Code.build([one for _, one, _ in members], form.space), table, owner, form.space.dim, widest)
        )
    _KINDS[form] = kinds
    return kinds


@dataclass(frozen=True, eq=False)
class Records:
    """A batch of records of one kind; None stands for no record at all, under add-remove."""

    kind: Kind | None
    group: NDArray[np.int64]
    fields: dict[str, Array]

    def __len__(self) -> int:
        return len(self.group)

    def take(self, index: Any) -> Records:
        """Return some of them."""
        return Records(self.kind, self.group[index], {name: v[index] for name, v in self.fields.items()})

    def rows(self, dim: int) -> Derivatives:
        """Return the rows of the affine leaves, shape (B, k, dim), and their offsets, shape (B, k)."""
        if self.kind is None:
            return np.zeros((len(self), 0, dim)), np.zeros((len(self), 0))
        names, parts = list(self.fields), []
        with double_precision():
            for group, *fields in batches([self.group, *self.fields.values()], BATCH):
                parts.append(
                    [np.asarray(part) for part in self.kind.rows(group, dict(zip(names, fields, strict=True)))]
                )
        return joined(parts, len(self))

    def slopes(self, points: Array, frame: Array, curved: bool = True) -> Derivatives:
        """Return gradients (B, d) and Hessians (B, d, d) at ``frame @ t``, for t of shape (B, d), frames (B, dim, d)."""
        count, d = points.shape
        if self.kind is None:
            return np.zeros((count, d)), np.zeros((count, d, d))
        program, names, parts = self.kind.derivatives(curved), list(self.fields), []
        more = max(self.kind.widest - d, 0)  # one width is compiled; other coordinates change nothing
        points, frame = np.pad(points, ((0, 0), (0, more))), np.pad(frame, ((0, 0), (0, 0), (0, more)))
        with double_precision():
            for point, some, group, *fields in batches([points, frame, self.group, *self.fields.values()], BATCH):
                gradient, bend = program(point, some, group, dict(zip(names, fields, strict=True)))
                parts.append([np.asarray(gradient)[:, :d], np.asarray(bend)[:, :d, :d]])
        return joined(parts, count)

    def slopes_at(self, points: Array, frame: Array) -> Derivatives:
        """Return the same for the only record, at many points, shape (m, d), in one frame, shape (dim, d)."""
        many = self.take(np.zeros(len(points), dtype=np.int64))
        return many.slopes(points, np.broadcast_to(frame, (len(points), *frame.shape)))


def batches(columns: list[Any], length: int) -> list[list[Any]]:
    """Cut arrays into pieces of one length, the last filled up with copies."""
    cut = []
    for column in map(np.asarray, columns):
        missing = -len(column) % length
        column = np.concatenate([column, np.broadcast_to(column[-1:], (missing, *column.shape[1:]))])
        cut.append([column[k : k + length] for k in range(0, len(column), length)])
    return [list(pieces) for pieces in zip(*cut, strict=True)]


def joined(parts: list[list[Array]], count: int) -> Derivatives:
    first, second = (np.concatenate([part[k] for part in parts])[:count] for k in range(2))
    return first, second
