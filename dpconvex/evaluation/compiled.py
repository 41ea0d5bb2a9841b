"""From one record's CVXPY loss to compiled float64 functions of a whole batch.

Records are grouped by their discrete fields; the loss of a group becomes a tape (see `tape`), and the tape a JAX function
that is mapped over the group's records and compiled.  Compiled functions are kept by tape, not by template: variables,
numbers and records are arguments, so that all labels of a template and all its solves share them.

Double precision is switched on around every call here, and nowhere else: JAX's global configuration is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from dpconvex.core.parameter_space import Block, Space
from dpconvex.evaluation.compiled_summation import sum_of_pieces
from dpconvex.evaluation.tape import Tape, record_tape
from dpconvex.geometry.absolute_values import AbsoluteValues, split_absolute
from dpconvex.geometry.quadratics import Quadratic, quadratic
from dpconvex.language.template import Template

__all__ = [
    "Lowered",
    "affine_rows",
    "compiled",
    "compiled_outer",
    "double_precision",
    "entries_matrix",
    "lower",
    "lower_template",
]

Array = NDArray[np.float64]


def double_precision() -> AbstractContextManager[Any]:
    """Context in which JAX computes in float64."""
    import jax

    current: Any = getattr(jax, "enable_x64", None)
    if current is None:  # where older releases keep it
        from jax import experimental

        older: Any = experimental
        return older.enable_x64()
    return current(True)


def lower(
    expression: cp.Expression, space: Space, fields: Sequence[cp.Parameter] = ()
) -> Callable[[Any, Mapping[str, Any]], Any]:
    """Turn an expression for one record into a JAX function.

    Parameters
    ----------
    expression : cvxpy.Expression
    space : Space
        Coordinates of its variables.
    fields : sequence of cvxpy.Parameter
        The record's continuous fields.

    Returns
    -------
    callable
        ``f(theta, values)`` with coordinates theta, shape (space.dim,), and values of the fields by name.  It can be traced,
        mapped and differentiated; call it within `double_precision`.

    Raises
    ------
    MissingRule, TemplateError
        See `record_tape`.

    Examples
    --------
    >>> w, x = cp.Variable(2, name="w"), cp.Parameter(2, name="x")
    >>> f = lower(cp.logistic(-(x @ w)), Space([w]), [x])
    >>> with double_precision():
    ...     float(f(np.zeros(2), {"x": np.ones(2)}))
    0.6931471805599453
    """
    tape, leaves = record_tape(expression, space, fields)

    def evaluate(theta: Any, values: Mapping[str, Any]) -> Any:
        import jax.numpy as xp

        variables = space.unpack_with(xp.asarray(theta), xp)
        found = [
            variables[leaf.content.name]
            if isinstance(leaf.content, Block)
            else xp.asarray(values[leaf.content] if isinstance(leaf.content, str) else leaf.content)
            for leaf in leaves
        ]
        return tape.run(found, xp)

    return evaluate


@dataclass(frozen=True, eq=False)
class Lowered:
    """A tape, its constants, and where its variables lie among the entries of all variables.

    Attributes
    ----------
    tape : Tape
    fields : tuple of str
        The record fields that it reads, in order of their slots.
    constants : tuple of ndarray
    place : ndarray of int
        Numbers of the entries that it reads, variable by variable in order of their slots, each in column order.
    given : tuple of int
        Numbers of the given subexpressions, in order of their slots.
    """

    tape: Tape
    fields: tuple[str, ...]
    constants: tuple[Array, ...]
    place: NDArray[np.int64]
    given: tuple[int, ...] = ()

    @classmethod
    def build(
        cls,
        expression: cp.Expression,
        space: Space,
        fields: Sequence[cp.Parameter] = (),
        given: Mapping[int, int] | None = None,
    ) -> Lowered:
        """Lower an expression; `given` as for `record_tape`."""
        tape, leaves = record_tape(expression, space, fields, given)
        sizes = [int(block.variable.size) for block in space.blocks.values()]
        start = dict(zip(space.blocks, np.cumsum([0, *sizes])[:-1], strict=True))
        blocks = [leaf.content for leaf in leaves if isinstance(leaf.content, Block)]
        pieces = [start[block.name] + np.arange(block.variable.size) for block in blocks]
        return cls(
            tape,
            tuple(leaf.content for leaf in leaves if isinstance(leaf.content, str)),
            tuple(leaf.content for leaf in leaves if isinstance(leaf.content, np.ndarray)),
            np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int64),
            tuple(leaf.content for leaf in leaves if leaf.kind == "affine" and isinstance(leaf.content, int)),
        )


def entries_matrix(space: Space) -> sp.csr_array:
    """Isometry from coordinates to the entries of all variables, each in column order, shape (entries, dim)."""
    if not space.blocks:
        return sp.csr_array((0, 0))
    return sp.csr_array(sp.block_diag([block.lift for block in space.blocks.values()], format="csr"))


def single(tape: Tape) -> Callable[[Any, tuple[Any, ...], tuple[Any, ...]], Any]:
    """Return ``f(entries, fields, constants)`` for one record.

    `entries` are those of `Lowered.place`, or, if the tape has given subexpressions, theirs in order of their slots, each in
    column order.
    """
    shapes = [shape for kind, _, _, shape in tape.steps if kind in ("variable", "affine")]
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1].tolist()
    kinds = [step[0] for step, function in zip(tape.steps, tape.functions, strict=True) if function is None]

    def evaluate(entries: Any, fields: tuple[Any, ...], constants: tuple[Any, ...]) -> Any:
        import jax.numpy as xp

        parts = xp.split(entries, ends) if shapes else []
        supply = {
            "entries": iter([xp.transpose(xp.reshape(p, s[::-1])) for p, s in zip(parts, shapes, strict=True)]),
            "field": iter(fields),
            "constant": iter(constants),
        }
        return tape.run([next(supply[kind if kind in supply else "entries"]) for kind in kinds], xp)

    return evaluate


@dataclass(frozen=True, eq=False)
class Compiled:
    """Compiled functions of a tape: sums over records, and their first and second derivatives.

    Each takes ``(entries, [direction,] fields, weights, constants)``: fields have the records as their first axis and are
    weighted, so that groups can be padded to few different sizes without compiling for each.
    """

    value_and_gradient: Callable[..., Any]
    hessian_product: Callable[..., Any]
    record_values: Callable[..., Any]
    record_gradients: Callable[..., Any]
    affine_rows: Callable[..., Any]


@lru_cache(maxsize=128)
def compiled(tape: Tape) -> Compiled:
    """Compile a tape (in fact: prepare to, at its first call for each shape)."""
    import jax
    import jax.numpy as xp

    array = single(tape)

    def one(entries: Any, fields: Any, constants: Any) -> Any:
        return xp.reshape(array(entries, fields, constants), ())

    each = jax.vmap(one, in_axes=(None, 0, None))

    def total(entries: Any, fields: Any, weights: Any, constants: Any) -> Any:
        if not fields:  # the loss of this group does not read the record
            return one(entries, fields, constants) * xp.sum(weights)
        return xp.sum(weights * each(entries, fields, constants))

    def summed(entries: Any, fields: Any, weights: Any, constants: Any) -> Any:
        if not fields:
            return jax.value_and_grad(total)(entries, fields, weights, constants)
        of_pieces = jax.vmap(jax.value_and_grad(total), in_axes=(None, 0, 0, None))
        return sum_of_pieces(lambda f, w: of_pieces(entries, f, w, constants), (fields, weights), entries.size)

    def curvature(entries: Any, direction: Any, fields: Any, weights: Any, constants: Any) -> Any:
        slope = jax.grad(total)
        return jax.jvp(lambda e: slope(e, fields, weights, constants), (entries,), (direction,))[1]

    def values(entries: Any, fields: Any, weights: Any, constants: Any) -> Any:
        if not fields:
            return xp.broadcast_to(one(entries, fields, constants), weights.shape)
        return each(entries, fields, constants)

    def gradients(entries: Any, fields: Any, weights: Any, constants: Any) -> Any:
        slope = jax.grad(one)
        if not fields:
            return xp.broadcast_to(slope(entries, fields, constants), (*weights.shape, *entries.shape))
        return jax.vmap(slope, in_axes=(None, 0, None))(entries, fields, constants)

    def rows(entries: Any, fields: Any, constants: Any) -> Any:
        def affine(*record: Any) -> Any:
            return array(entries, record, constants), jax.jacrev(array)(entries, record, constants)

        return jax.vmap(affine)(*fields) if fields else affine()

    return Compiled(jax.jit(summed), jax.jit(curvature), jax.jit(values), jax.jit(gradients), jax.jit(rows))


@dataclass(frozen=True, eq=False)
class Outer:
    """Compiled functions of a tape whose given subexpressions differ from record to record.

    Each takes ``(entries, [direction,] fields, weights, constants)`` with entries of shape (k, records), and fields that have
    the records as their first axis.  `of_forms` takes ``(forms, label, scale, shift, fields, weights, constants)`` instead, where
    the entries are ``scale[:, label] * forms + shift[:, label]``, and its gradient is with respect to the forms; `label` is None
    if there is only one.
    """

    value_and_gradient: Callable[..., Any]
    of_forms: Callable[..., Any]
    hessian_product: Callable[..., Any]
    record_values: Callable[..., Any]


@lru_cache(maxsize=128)
def compiled_outer(tape: Tape) -> Outer:
    """Compile a tape as a function of its given subexpressions; gradients are with respect to these."""
    import jax
    import jax.numpy as xp

    array = single(tape)

    def one(entries: Any, fields: Any, constants: Any) -> Any:
        return xp.reshape(array(entries, fields, constants), ())

    each = jax.vmap(one, in_axes=(1, 0, None))

    def values(entries: Any, fields: Any, weights: Any, constants: Any) -> Any:
        return each(entries, fields, constants)

    def total(entries: Any, fields: Any, weights: Any, constants: Any) -> Any:
        return xp.sum(weights * each(entries, fields, constants))

    def of_forms(
        forms: Any, label: Any, scale: Any, shift: Any, fields: Any, weights: Any, constants: Any
    ) -> tuple[Any, Any]:
        factor, offset = (scale, shift) if label is None else (scale[:, label], shift[:, label])
        value, slope = jax.value_and_grad(total)(factor * forms + offset, fields, weights, constants)
        return value, factor * slope

    def curvature(entries: Any, direction: Any, fields: Any, weights: Any, constants: Any) -> Any:
        slope = jax.grad(total)
        return jax.jvp(lambda e: slope(e, fields, weights, constants), (entries,), (direction,))[1]

    return Outer(jax.jit(jax.value_and_grad(total)), jax.jit(of_forms), jax.jit(curvature), jax.jit(values))


def affine_rows(lowered: Lowered, fields: Mapping[str, Array], count: int) -> tuple[Array, Array]:
    """Evaluate an affine expression for many records.

    Parameters
    ----------
    lowered : Lowered
        Of an expression that is affine in the variables.
    fields : mapping of str to ndarray
        Values of the fields, the `count` records first.
    count : int

    Returns
    -------
    offset : ndarray, shape (count, *shape)
        Value at zero.
    slope : ndarray, shape (count, *shape, len(lowered.place))
        Derivative with respect to the entries that it reads.
    """
    read = tuple(np.asarray(fields[name]) for name in lowered.fields)
    with double_precision():
        found = compiled(lowered.tape).affine_rows(np.zeros(len(lowered.place)), read, lowered.constants)
        offset, slope = (np.asarray(part) for part in found)
    if not read:  # the same for every record
        offset, slope = (np.broadcast_to(part, (count, *part.shape)) for part in (offset, slope))
    return offset, slope


class LoweredTemplate:
    """Everything about a template that does not depend on the records, made when it is first needed.

    Parameters
    ----------
    template : Template
    space : Space
    """

    def __init__(self, template: Template, space: Space) -> None:
        self._losses, self._space, self._regularizer = template.losses, space, template.regularizer
        self._fields = tuple(template.record.parameters.values())

    @cached_property
    def losses(self) -> tuple[Lowered, ...]:
        """The loss of each combination of discrete fields."""
        return tuple(Lowered.build(loss, self._space, self._fields) for loss in self._losses)

    @cached_property
    def _split(self) -> tuple[cp.Expression, AbsoluteValues | None]:
        return split_absolute(self._regularizer, self._space)

    @property
    def absolute(self) -> AbsoluteValues | None:
        """The separable absolute values in the regularizer, if there are any."""
        return self._split[1]

    @cached_property
    def regularizer(self) -> Lowered | Quadratic:
        """The regularizer, all of it."""
        return quadratic(self._regularizer, self._space) or Lowered.build(self._regularizer, self._space)

    @cached_property
    def smooth(self) -> Lowered | Quadratic:
        """The regularizer without its separable absolute values."""
        if self.absolute is None:
            return self.regularizer
        return quadratic(self._split[0], self._space) or Lowered.build(self._split[0], self._space)

    @cached_property
    def lift(self) -> sp.csr_array:
        """See `entries_matrix`."""
        return entries_matrix(self._space)


_lowered: WeakKeyDictionary[Template, tuple[tuple[int, ...], LoweredTemplate]] = WeakKeyDictionary()


def lower_template(template: Template, space: Space) -> LoweredTemplate:
    """Lower the losses and the regularizer of a template, once."""
    order = tuple(block.variable.id for block in space.blocks.values())
    known = _lowered.get(template)
    if known is None or known[0] != order:
        known = (order, LoweredTemplate(template, space))
        _lowered[template] = known
    return known[1]
