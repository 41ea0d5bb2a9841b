"""Sums: of terms, of entries, of diagonals."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from dpconvex.core.atom import Atom, same
from dpconvex.core.atoms.arrangement import reshape, together, transpose, unrepeated
from dpconvex.core.atoms.groups import along_axis
from dpconvex.core.atoms.rules import total as added_up
from dpconvex.core.atoms.shared import (
    Write,
    _refuse,
    axes_of,
    axis_for,
    reduced,
    reduction_text,
    sum_matrix,
    sum_sign,
    unreduced,
)
from dpconvex.core.expression import OPERATORS, Expression, Shape, constant
from dpconvex.core.intervals import Interval
from dpconvex.core.polynomial import Polynomial, concatenate
from dpconvex.core.text import PRODUCT, SUM


def summed_text(expression: Expression, write: Write) -> tuple[str, int]:
    """Write a sum, with minus signs where terms begin with one."""
    words = write(unrepeated(expression.args[0]), SUM)
    for argument in expression.args[1:]:
        term = write(unrepeated(argument), PRODUCT)
        words += f" - {term[1:]}" if term.startswith("-") else f" + {term}"
    return words, SUM


def added(xp: Any, expression: Expression, *terms: Any) -> Any:
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def added_shape(*shapes: Shape) -> Shape:
    """Return the shape of a sum of at least one term."""
    return same(*shapes)


def add_terms(expander: Any, expression: Expression) -> Polynomial:
    parts = [expander.expand_leaf(argument) for argument in expression.args]
    return concatenate(parts, expression.shape, [part.entry for part in parts]).collected()


ADD = Atom(
    name="add",
    affine="linear",
    shape=added_shape,
    value=added,
    pull=lambda expression, value, slope, *terms: [slope] * len(terms),
    reads={"cvxpy.atoms.affine.add_expr.AddExpression": lambda node, args: add(*args)},
    writes=lambda cp, expression, args: sum(args[1:], args[0]),
    sign=sum_sign,
    slope=lambda expression, k, signs: 1,
    text=summed_text,
    statement="sums: gradients and curvatures add up",
    expand=add_terms,
    rule=lambda e, arguments: [added_up(terms) for terms in zip(*arguments, strict=True)],
)


NEGATE = Atom(
    name="negate",
    affine="linear",
    value=lambda xp, expression, a: -a,
    pull=lambda expression, value, slope, a: [-slope],
    reads={"cvxpy.atoms.affine.unary_operators.NegExpression": lambda node, args: negate(args[0])},
    writes=lambda cp, expression, args: -args[0],
    sign=lambda expression, signs: -signs[0],
    slope=lambda expression, k, signs: -1,
    text=lambda expression, write: (f"-{write(expression.args[0], PRODUCT)}", PRODUCT),
    expand=lambda expander, e: expander.expand_leaf(e.args[0]).scaled(-1.0),
    rule=lambda e, arguments: [entry.scaled(Interval(-1.0, -1.0)) for entry in arguments[0]],
)


SUMMED = Atom(
    name="sum",
    affine="linear",
    shape=reduced,
    value=lambda xp, e, a: xp.sum(a, axis=e.option("axis"), keepdims=True).reshape((*e.shape, -1)),
    pull=lambda e, value, slope, a: [np.broadcast_to(unreduced(e, slope), (*e.args[0].shape, slope.shape[-1]))],
    reads={"cvxpy.atoms.affine.sum.Sum": lambda node, args: total(args[0], axes_of(node), bool(node.keepdims))},
    writes=lambda cp, e, args: cp.sum(args[0], axis=axis_for(e), keepdims=e.option("keepdims")),
    sign=sum_sign,
    slope=lambda expression, k, signs: 1,
    text=reduction_text,
    expand=lambda expander, e: expander.expand(e.args[0]).linear(sum_matrix(e), e.shape),
    rule=lambda e, arguments: [added_up(entries) for entries in along_axis(e, arguments[0])],
)


TRACE = Atom(
    name="trace",
    affine="linear",
    shape=lambda shape: () if len(shape) == 2 and shape[0] == shape[1] else _refuse("the trace of", shape),
    value=lambda xp, expression, a: xp.einsum("ii...->...", a),
    pull=lambda e, value, slope, a: [slope * np.eye(e.args[0].shape[0])[..., None]],
    reads="cvxpy.atoms.affine.trace.Trace",
    sign=lambda expression, signs: signs[0],
    slope=lambda expression, k, signs: 1,
    expand=lambda expander, e: expander.expand(e.args[0]).linear(np.eye(e.args[0].shape[0]).reshape(1, -1), ()),
    rule=lambda e, arguments: [added_up(arguments[0][:: e.args[0].shape[0] + 1])],
)
trace = TRACE


def cumsum_axis(node: Any) -> int:
    """Return the axis of CVXPY's cumulative sum."""
    return int(node.axis) % len(node.args[0].shape) if node.axis is not None else 0


def running_sums(expression: Expression) -> sp.csr_array:
    """Return the matrix of a cumulative sum: every entry goes into those that come after it on its line."""
    inner, axis = expression.args[0], expression.option("axis")
    numbers = np.arange(inner.size).reshape(inner.shape, order="F")
    lines = np.moveaxis(numbers, axis, -1).reshape(-1, inner.shape[axis])
    source, target = np.triu_indices(inner.shape[axis])
    places = lines[:, target].ravel(), lines[:, source].ravel()
    return sp.csr_array((np.ones(len(places[0])), places), shape=(inner.size, inner.size))


CUMSUM = Atom(
    name="cumsum",
    affine="linear",
    shape=lambda shape, axis: (
        shape if axis in range(len(shape)) else _refuse(f"cumulative sums along {axis} of", shape)
    ),
    value=lambda xp, e, a: xp.cumsum(a, axis=e.option("axis")),
    pull=lambda e, value, slope, a: [
        np.flip(np.cumsum(np.flip(slope, e.option("axis")), e.option("axis")), e.option("axis"))
    ],
    reads={
        "cvxpy.atoms.affine.cumsum.cumsum": lambda node, args: (
            cumsum(args[0], axis=cumsum_axis(node))
            if node.axis is not None
            else cumsum(reshape(transpose(args[0]), (args[0].size,)), axis=0)
        )
    },
    writes=lambda cp, e, args: cp.cumsum(args[0], axis=e.option("axis")),
    sign=lambda expression, signs: signs[0],
    slope=lambda expression, k, signs: 1,
    expand=lambda expander, e: expander.expand(e.args[0]).linear(running_sums(e), e.shape),
    rule=lambda e, arguments: [added_up([arguments[0][k] for k in row.indices]) for row in running_sums(e)],
)


def add(*terms: Any) -> Expression:
    """Add up, repeating as NumPy does."""
    arguments = together(*terms)
    flat = [part for a in arguments for part in (a.args if a.atom is ADD else (a,))]
    return flat[0] if len(flat) == 1 else ADD(*flat)


def negate(a: Any) -> Expression:
    """Minus."""
    a = constant(a)
    return a.args[0] if a.atom is NEGATE else NEGATE(a)


def total(a: Any, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    """Sum over axes, or over everything."""
    a = constant(a)
    axis = tuple(range(a.ndim)) if axis is None else axis
    return SUMMED(a, axis=axis, keepdims=keepdims) if a.ndim else a


def cumsum(a: Any, axis: int) -> Expression:
    """Cumulative sum."""
    return CUMSUM(a, axis=axis) if constant(a).ndim else constant(a)


OPERATORS.update(add=add, negate=negate)
