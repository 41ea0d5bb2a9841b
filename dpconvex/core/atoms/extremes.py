"""Largest and smallest: of arguments, of entries, and sums of the largest."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpconvex.core.atom import Atom
from dpconvex.core.atoms.arrangement import reshape, together
from dpconvex.core.atoms.shared import (
    axis_for,
    concave,
    convex,
    every_axis,
    grows,
    kept,
    over,
    reduced,
    reduction_text,
    same,
)
from dpconvex.core.expression import Expression, Shape, constant


def largest(xp: Any, expression: Expression, *terms: Any) -> Any:
    """Largest argument."""
    best = terms[0]
    for term in terms[1:]:
        best = xp.maximum(best, term)
    return best


def smallest(xp: Any, expression: Expression, *terms: Any) -> Any:
    """Smallest argument."""
    best = terms[0]
    for term in terms[1:]:
        best = xp.minimum(best, term)
    return best


def is_zero(argument: Expression) -> bool:
    """Whether an argument is the constant 0, which has both signs."""
    return argument.is_constant and not argument.number.any()


MAXIMUM = Atom(
    name="maximum",
    shape=same,
    value=largest,
    reads={"cvxpy.atoms.elementwise.maximum.maximum": lambda node, args: maximum(*args)},
    writes=lambda cp, expression, args: cp.maximum(*args) if len(args) > 1 else args[0],
    sign=lambda expression, signs: 1 if 1 in signs else -1 if set(signs) == {-1} else 0,
    curve=convex,
    slope=grows,
    text=lambda e, write: (
        (f"pos({write(e.args[0], 0)})", 4)
        if len(e.args) == 2 and e.args[1].is_constant and not e.args[1].number.any()
        else (f"maximum({', '.join(write(a, 0) for a in e.args)})", 4)
    ),
)


MINIMUM = Atom(
    name="minimum",
    shape=same,
    value=smallest,
    reads={"cvxpy.atoms.elementwise.minimum.minimum": lambda node, args: minimum(*args)},
    writes=lambda cp, expression, args: cp.minimum(*args) if len(args) > 1 else args[0],
    sign=lambda e, signs: -1 if -1 in signs or any(map(is_zero, e.args)) else 1 if set(signs) == {1} else 0,
    curve=concave,
    slope=grows,
)


def maximum(*terms: Any) -> Expression:
    """Largest argument, entry by entry."""
    arguments = together(*terms)
    return arguments[0] if len(arguments) == 1 else MAXIMUM(*arguments)


def pos(a: Any) -> Expression:
    """Positive part."""
    return maximum(a, 0.0)


def minimum(*terms: Any) -> Expression:
    """Smallest argument, entry by entry."""
    arguments = together(*terms)
    return arguments[0] if len(arguments) == 1 else MINIMUM(*arguments)


MAX = Atom(
    name="max",
    shape=reduced,
    value=lambda xp, e, a: kept(e, xp.max(a, axis=e.option("axis"), keepdims=True)),
    reads={"cvxpy.atoms.max.max": over(lambda a, axis, keepdims: largest_entry(a, axis, keepdims))},
    writes=lambda cp, e, args: cp.max(args[0], axis=axis_for(e), keepdims=e.option("keepdims")),
    sign=lambda expression, signs: signs[0],
    curve=convex,
    slope=grows,
    text=reduction_text,
)


MIN = Atom(
    name="min",
    shape=reduced,
    value=lambda xp, e, a: kept(e, xp.min(a, axis=e.option("axis"), keepdims=True)),
    reads={"cvxpy.atoms.min.min": over(lambda a, axis, keepdims: smallest_entry(a, axis, keepdims))},
    writes=lambda cp, e, args: cp.min(args[0], axis=axis_for(e), keepdims=e.option("keepdims")),
    sign=lambda expression, signs: signs[0],
    curve=concave,
    slope=grows,
    text=reduction_text,
)


SUM_LARGEST = Atom(
    name="sum_largest",
    shape=lambda shape, k: () if 0 < k <= int(np.prod(shape)) else _count(k),
    value=lambda xp, e, a: xp.sum(
        xp.sort(xp.reshape(a, (e.args[0].size, -1)), axis=0)[e.args[0].size - e.option("k") :], axis=0
    ),
    reads={"cvxpy.atoms.sum_largest.sum_largest": lambda node, args: reshape(largest_sum(node, args[0]), node.shape)},
    writes=lambda cp, e, args: cp.sum_largest(args[0], e.option("k")),
    sign=lambda expression, signs: signs[0],
    curve=convex,
    slope=grows,
)


def _count(k: float) -> Shape:
    raise ValueError(f"the sum of the {k} largest entries is not defined for this argument")


def largest_sum(node: Any, argument: Expression) -> Expression:
    """Read a sum of largest entries; CVXPY interpolates between whole numbers, and sums along axes."""
    count = float(node.k)
    if getattr(node, "axis", None) is not None or not count.is_integer():
        raise ValueError("there is a rule for the sum of a whole number of largest entries, over all entries")
    return sum_largest(argument, int(count))


def largest_entry(a: Any, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    """Largest entry over axes."""
    a = constant(a)
    return MAX(a, axis=every_axis(a, axis), keepdims=keepdims)


def smallest_entry(a: Any, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    """Smallest entry over axes."""
    a = constant(a)
    return MIN(a, axis=every_axis(a, axis), keepdims=keepdims)


def sum_largest(a: Any, k: int) -> Expression:
    """Sum of the k largest entries."""
    return SUM_LARGEST(a, k=int(k))
