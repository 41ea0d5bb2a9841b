"""Programs compiled by JAX, where it is installed and there are records enough for that to pay.

Compiled functions are kept by program, not by template: variables, numbers and records are arguments, so that all labels of a
template and all its solves share them.  Every call is one in `double_precision`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.double_precision import COMPILER
from dpconvex.core.expression import Expression
from dpconvex.core.parameter_space import Space
from dpconvex.evaluation.compiled_summation import sum_of_pieces
from dpconvex.evaluation.programs import Lowered, Program, records_last

Array = NDArray[np.float64]


def installed() -> bool:
    """Whether JAX can be imported."""
    try:
        return find_spec("jax") is not None
    except ImportError:  # somebody forbids it
        return False


def computed(program: Program, leaves: Mapping[Expression, Any]) -> Any:
    """Evaluate a program on arrays of JAX with records last."""
    import jax.numpy as xp

    found = dict(leaves)
    for node in program.order:
        if node not in found:
            assert node.atom is not None
            found[node] = node.atom.value(xp, node, *(found[argument] for argument in node.args))
    return found[program.root]


def table(program: Program, entries: Any, fields: tuple[Any, ...], numbers: tuple[Any, ...]) -> Any:
    """Evaluate a program on a table of entries with records last, and fields with records first."""
    import jax.numpy as xp

    leaves = program.leaves(program.cut(entries), [records_last(f) for f in fields], [xp.asarray(n) for n in numbers])
    return computed(program, leaves)


def lower(expression: Expression, space: Space) -> Callable[[Any, Mapping[str, Any]], Any]:
    """Turn an expression for one record into a JAX function of coordinates and values of the fields by name.

    It can be traced, mapped and differentiated; call it within `double_precision`.

    Examples
    --------
    >>> from dpconvex.core.atoms.exponentials import logistic
    >>> from dpconvex.core.double_precision import double_precision
    >>> from dpconvex.core.expression import Field, Variable
    >>> w, x = Variable.of((2,), "w", 1), Field.of((2,), "x")
    >>> f = lower(logistic(-(x @ w)), Space([w]))
    >>> with double_precision():
    ...     float(f(np.zeros(2), {"x": np.ones(2)}))
    0.6931471805599453
    """
    lowered = Lowered.build(expression, space)
    sizes = np.cumsum([0, *(block.variable.size for block in space.blocks.values())])

    def evaluate(theta: Any, values: Mapping[str, Any]) -> Any:
        import jax.numpy as xp

        variables = space.unpack_with(xp.asarray(theta), xp)
        flat = [xp.reshape(xp.transpose(value), -1) for value in variables.values()]
        entries = xp.concatenate(flat)[lowered.place] if sizes[-1] else xp.zeros(0)
        fields = tuple(xp.asarray(values[name]) for name in lowered.fields)
        return single(lowered.program)(entries, fields, lowered.constants)

    return evaluate


def single(program: Program) -> Callable[[Any, tuple[Any, ...], tuple[Any, ...]], Any]:
    """Return ``f(entries, fields, constants)`` for one record, with entries in order of the slots, each in column order."""

    def evaluate(entries: Any, fields: tuple[Any, ...], constants: tuple[Any, ...]) -> Any:
        found = table(program, entries[:, None], tuple(field[None] for field in fields), constants)
        return found.reshape(program.root.shape)

    return evaluate


@dataclass(frozen=True, eq=False)
class Compiled:
    """Compiled functions of a program: sums over records, and their first and second derivatives.

    Each takes ``(entries, [direction,] fields, weights, constants)``: fields have the records as their first axis and are
    weighted, so that groups can be padded to few different sizes without compiling for each.
    """

    value_and_gradient: Callable[..., Any]
    hessian_product: Callable[..., Any]
    record_values: Callable[..., Any]


@lru_cache(maxsize=128)
def compiled(program: Program) -> Compiled:
    """Compile a program (in fact: prepare to, at its first call for each shape)."""
    import jax
    import jax.numpy as xp

    def each(entries: Any, fields: Any, constants: Any, count: int) -> Any:
        found = table(program, entries[:, None], fields, constants)
        return xp.broadcast_to(xp.reshape(found, -1), (count,))

    def total(entries: Any, fields: Any, weights: Any, constants: Any) -> Any:
        return xp.sum(weights * each(entries, fields, constants, len(weights)))

    def summed(entries: Any, fields: Any, weights: Any, constants: Any) -> Any:
        of_pieces = jax.vmap(jax.value_and_grad(total), in_axes=(None, 0, 0, None))
        return sum_of_pieces(lambda f, w: of_pieces(entries, f, w, constants), (fields, weights))

    def curvature(entries: Any, direction: Any, fields: Any, weights: Any, constants: Any) -> Any:
        slope = jax.grad(total)
        return jax.jvp(lambda e: slope(e, fields, weights, constants), (entries,), (direction,))[1]

    def values(entries: Any, fields: Any, weights: Any, constants: Any) -> Any:
        return each(entries, fields, constants, len(weights))

    return Compiled(*(jax.jit(part, compiler_options=COMPILER) for part in (summed, curvature, values)))
