"""One record's loss, and its affine leaves, as JAX functions that several labels share.

Losses for different labels are mostly one program with other variables and numbers in its slots.  Those become arguments, so
that one compiled function serves candidates of all labels at once, and every attack on a template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.calculus.loss_form import LossForm
from dpconvex.core.atoms.arrangement import hstack, vec
from dpconvex.core.expression import Field
from dpconvex.core.parameter_space import Space
from dpconvex.evaluation.compiled import single
from dpconvex.evaluation.programs import Lowered, Program, entries_matrix

Array = NDArray[np.float64]

# What is measured at a point: the norm of the gradient, the norm of its difference to the neighbour's, and the Hessian's
# largest eigenvalue, trace, and log det(I + M^(-1/2) H M^(-1/2)).
QUANTITIES = ("gradient", "difference", "eigenvalue", "trace", "log_det")

# Name of the field that holds the weights in a weighted sum of leaves.
WEIGHTS = "weights of the leaves"


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
    """Combinations of discrete fields whose losses are the same program, but for its variables and numbers.

    Attributes
    ----------
    groups : ndarray of int, shape (k,)
        Indices into ``record.combinations``.
    loss : Code
    leaves : Code or None
        The weighted sum of the entries of all affine leaves; the weights are one more field.
    owner : ndarray of int, shape (size,)
        Which leaf each of those entries belongs to.
    """

    groups: NDArray[np.int64]
    loss: Code
    leaves: Code | None
    owner: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Number of entries of all leaves."""
        return len(self.owner)

    def rows(self, theta: Any, group: Any, values: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return ``A_z``, shape (size, dim), and ``c_z``, shape (size,), under JAX; `theta` is any point."""
        import jax
        import jax.numpy as xp

        zero = xp.zeros_like(theta)
        if self.leaves is None:
            return zero[None, :], xp.zeros(1)
        leaves = self.leaves

        def leaf(weights: Any) -> Any:
            return jax.value_and_grad(lambda t: leaves(t, group, {**values, WEIGHTS: weights}))(zero)

        value, slope = jax.vmap(leaf)(xp.eye(self.size))
        return slope, value


def kinds_of(form: LossForm) -> list[Kind]:
    """Sort the combinations of discrete fields by the programs of their losses."""
    found: dict[Any, list[tuple[int, Lowered, Lowered | None]]] = {}
    for k, loss, leaves in zip(form.labels, form.losses, form.leaves, strict=True):
        lowered, probe = Lowered.build(loss, form.space), None
        sizes = tuple(leaf.size for leaf in leaves)
        if sizes:
            weights = Field.of((sum(sizes),), WEIGHTS)
            probe = Lowered.build(weights @ hstack(*(vec(leaf) for leaf in leaves)), form.space)
        key = (lowered.program, lowered.fields, probe and (probe.program, probe.fields), sizes or (1,))
        found.setdefault(key, []).append((k, lowered, probe))
    kinds = []
    for (_, _, _, sizes), members in found.items():
        probes = [probe for _, _, probe in members if probe is not None]
        kinds.append(
            Kind(
                np.array([k for k, _, _ in members]),
                Code.build([lowered for _, lowered, _ in members], form.space),
                Code.build(probes, form.space) if probes else None,
                np.repeat(np.arange(len(sizes)), sizes),
            )
        )
    return kinds


class Programs:
    """The compiled functions of a template.  They outlive an attack, but not the template: nothing here refers to it."""

    def __init__(self, kinds: list[Kind], basis: sp.csc_array) -> None:
        self.kinds, self.basis = kinds, basis
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def rows(self, kind: Kind) -> Callable[..., Any]:
        """Return ``f(theta, group, fields)``, which gives ``A_z`` and ``c_z`` for batches of the last two."""
        import jax

        if id(kind) not in self._compiled:
            self._compiled[id(kind)] = jax.jit(jax.vmap(kind.rows, in_axes=(None, 0, 0)))
        return self._compiled[id(kind)]

    def measure(self, first: Kind, second: Kind, curved: bool) -> Callable[..., Any]:
        """Return ``f(theta, record, neighbour, group, other, factors, moduli)`` for batches of the first five.

        It gives (sums of `QUANTITIES` with weights `factors`, and the quantities, shape (B, 5)) and the gradients of those sums
        in theta and in the fields of both records.  Without `curved`, the quantities of the Hessian are zero.
        """
        import jax

        key = (id(first), id(second), curved)
        if key not in self._compiled:
            one = jax.value_and_grad(measured(first, second, curved, self.basis), argnums=(0, 1, 2), has_aux=True)
            self._compiled[key] = jax.jit(jax.vmap(one, in_axes=(0, 0, 0, 0, 0, None, None)))
        return self._compiled[key]


_PROGRAMS: WeakKeyDictionary[LossForm, Programs] = WeakKeyDictionary()


def programs_of(form: LossForm) -> Programs:
    """Return the programs of a template, made once."""
    found = _PROGRAMS.get(form)
    if found is None:
        found = Programs(kinds_of(form), form.basis)
        _PROGRAMS[form] = found
    return found


def measured(first: Kind, second: Kind, curved: bool, basis: sp.csc_array) -> Callable[..., Any]:
    """Return the function of one candidate that `Programs.measure` differentiates and compiles."""
    import jax
    import jax.numpy as xp

    def norm(vector: Any) -> Any:
        return xp.sqrt(xp.sum(vector**2) + 1e-300)  # differentiable at zero

    def measure(
        theta: Any, record: Any, neighbour: Any, group: Any, other: Any, factors: Any, moduli: Any
    ) -> tuple[Any, Any]:
        slope = jax.grad(lambda t: first.loss(t, group, record))
        here, there = slope(theta), jax.grad(lambda t: second.loss(t, other, neighbour))(theta)
        curvature = [xp.zeros(())] * 3
        if curved:
            # Rows of `frame` are orthonormal and span the range of the Hessian.  They may be held fixed while
            # differentiating: first-order changes of that range change none of the three quantities.
            if first.size < basis.shape[1]:
                frame = xp.linalg.qr(jax.lax.stop_gradient(first.rows(theta, group, record)[0]).T)[0].T
            else:
                frame = xp.asarray(basis.toarray().T)
            image = jax.vmap(lambda v: jax.jvp(slope, (theta,), (v,))[1])(frame)
            small = image @ frame.T
            small = (small + small.T) / 2
            top = jax.lax.stop_gradient(xp.linalg.eigh(small)[1][:, -1])
            scaled = small @ ((frame / moduli) @ frame.T)
            curvature = [top @ small @ top, xp.trace(small), xp.linalg.slogdet(xp.eye(len(frame)) + scaled)[1]]
        parts = xp.stack([norm(here), norm(here - there), *curvature])
        return factors @ parts, parts

    return measure
