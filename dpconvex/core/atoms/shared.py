"""Shapes, signs and texts that several atoms share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.core.expression import Expression, Shape
from dpconvex.core.text import ATOM, PRODUCT, SIGN

Write = Callable[[Expression, int], str]


def reduced(shape: Shape, axis: tuple[int, ...], keepdims: bool) -> Shape:
    """Shape after a reduction over some axes."""
    return tuple(1 if k in axis else n for k, n in enumerate(shape) if keepdims or k not in axis)


def sum_matrix(expression: Expression) -> sp.csc_array:
    """Return the matrix, of zeros and ones, that adds up what a reduction reduces; entries are in column order."""
    inner, axis = expression.args[0], expression.option("axis")
    places = np.arange(expression.size).reshape(reduced(inner.shape, axis, keepdims=True), order="F")
    row = np.broadcast_to(places, inner.shape).ravel(order="F")
    shape = (expression.size, inner.size)
    return sp.csc_array((np.ones(inner.size), (row, np.arange(inner.size))), shape=shape)


def axes_of(node: Any) -> tuple[int, ...]:
    """Return the axes over which an atom of CVXPY reduces: all of them if it names none."""
    count = len(node.args[0].shape)
    axis = node.axis
    if axis is None:
        return tuple(range(count))
    return tuple(sorted(int(k) % count for k in (axis if isinstance(axis, tuple | list) else (axis,))))


def axis_for(expression: Expression) -> Any:
    """Return the axis as CVXPY takes it: None for all."""
    axis = expression.option("axis")
    if len(axis) == expression.args[0].ndim:
        return None
    return axis[0] if len(axis) == 1 else axis


def sum_sign(expression: Expression, signs: Sequence[int]) -> int:
    """The common sign of what is added up or rearranged."""
    return signs[0] if len(set(signs)) == 1 else 0


def product_sign(expression: Expression, signs: Sequence[int]) -> int:
    return signs[0] * signs[1]


def infix(symbol: str) -> Callable[[Expression, Write], tuple[str, int]]:
    """Write a product or a quotient."""

    def written(expression: Expression, write: Write) -> tuple[str, int]:
        return f"{write(expression.args[0], PRODUCT)} {symbol} {write(expression.args[1], SIGN)}", PRODUCT

    return written


def reduction_text(expression: Expression, write: Write) -> tuple[str, int]:
    """Write a reduction, with its axis unless it is over everything."""
    inner, axis = expression.args[0], expression.option("axis")
    words = [write(argument, 0) for argument in expression.args]
    if len(axis) < inner.ndim:
        words.append(f"axis={axis[0] if len(axis) == 1 else axis}")
    assert expression.atom is not None
    return f"{expression.atom.name}({', '.join(words)})", ATOM


def _refuse(what: str, *shapes: Shape) -> Shape:
    raise ValueError(f"there is no rule for {what} shape {' and '.join(map(str, shapes))}")


def number(option: Any) -> float:
    """Return an option of a CVXPY atom, which may be an expression of public numbers, as a number."""
    value = getattr(option, "value", option)
    return float(np.asarray(value))


def nowhere_negative(expression: Expression, signs: Sequence[int]) -> int:
    return 1


def even_slope(expression: Expression, k: int, signs: Sequence[int]) -> int:
    """Even convex functions grow on one side and fall on the other."""
    return signs[k]


def grows(expression: Expression, k: int, signs: Sequence[int]) -> int:
    """Functions that never fall."""
    return 1


def convex(expression: Expression) -> int:
    return 1


def concave(expression: Expression) -> int:
    return -1


def over(build: Any) -> Any:
    """Read a reduction with its axes."""
    return lambda node, args: build(args[0], axes_of(node), bool(node.keepdims))


def kept(expression: Expression, result: Any) -> Any:
    """Return a reduction that kept its axes, without them unless the atom keeps them."""
    return result.reshape((*expression.shape, result.shape[-1]))


def unreduced(expression: Expression, slope: Any) -> Any:
    """Return what belongs to the results of a reduction with the axes that were reduced, of length 1."""
    shape = reduced(expression.args[0].shape, expression.option("axis"), True)
    return slope.reshape((*shape, slope.shape[-1]))


def varies(expression: Expression, k: int) -> bool:
    """Whether an argument mentions variables, so that a slope by it is wanted."""
    return bool(expression.args[k].variables)


def axis_text(expression: Expression, axis: tuple[int, ...]) -> str:
    """Write the axis of a reduction, unless it is over everything."""
    return "" if len(axis) == expression.args[0].ndim else f", axis={axis[0] if len(axis) == 1 else axis}"


def every_axis(a: Expression, axis: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return axes, all of them if none are named."""
    return tuple(range(a.ndim)) if axis is None else axis
