"""Sums: of terms, of entries, of diagonals."""

from typing import Any

import numpy as np

from dpconvex.core.abstract_values import Interval
from dpconvex.core.atom import Atom, same
from dpconvex.core.atoms.arrangement import diagonal, together, unrepeated
from dpconvex.core.atoms.rules import (
    Write,
    along_axis,
    axis_for,
    common_sign,
    every_axis,
    grows,
    over,
    reduced,
    reduction_text,
    sum_matrix,
    total as added_up,
    unreduced,
)
from dpconvex.core.expression import OPERATORS, PRODUCT, SUM, Expression, Shape, constant
from dpconvex.core.polynomial import Polynomial, concatenate


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
    parts = [expander.expand(argument) for argument in expression.args]
    return concatenate(parts, expression.shape, [part.entry for part in parts]).collected()


ADD = Atom(
    name="add",
    affine="linear",
    shape=added_shape,
    value=added,
    pull=lambda expression, value, slope, *terms: [slope] * len(terms),
    reads={"cvxpy.atoms.affine.add_expr.AddExpression": lambda node, args: add(*args)},
    writes=lambda cp, expression, args: sum(args[1:], args[0]),
    sign=common_sign,
    slope=grows,
    text=summed_text,
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
    expand=lambda expander, e: expander.expand(e.args[0]).scaled(-1.0),
    rule=lambda e, arguments: [entry.scaled(Interval(-1.0, -1.0)) for entry in arguments[0]],
)


SUMMED = Atom(
    name="sum",
    affine="linear",
    shape=reduced,
    value=lambda xp, e, a: xp.sum(a, axis=e.option("axis"), keepdims=True).reshape((*e.shape, -1)),
    pull=lambda e, value, slope, a: [np.broadcast_to(unreduced(e, slope), (*e.args[0].shape, slope.shape[-1]))],
    reads={
        "cvxpy.atoms.affine.sum.Sum": over(lambda a, axis, keepdims: total(a, axis, keepdims)),
        "cvxpy.atoms.affine.trace.Trace": lambda node, args: total(diagonal(args[0])),
    },
    writes=lambda cp, e, args: cp.sum(args[0], **axis_for(e)),
    sign=common_sign,
    slope=grows,
    text=reduction_text,
    expand=lambda expander, e: expander.expand(e.args[0]).linear(sum_matrix(e), e.shape),
    rule=lambda e, arguments: [added_up(entries) for entries in along_axis(e, arguments[0])],
)


def add(*terms: Any) -> Expression:
    """Add up, repeating as NumPy does."""
    arguments = together(*terms)
    flat = [part for a in arguments for part in (a.args if a.atom is ADD else (a,))]
    return flat[0] if len(flat) == 1 else ADD(*flat)


def negate(a: Any) -> Expression:
    a = constant(a)
    return a.args[0] if a.atom is NEGATE else NEGATE(a)


def total(a: Any, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    """Sum over axes, or over everything."""
    a = constant(a)
    return SUMMED(a, axis=every_axis(a, axis), keepdims=keepdims) if a.ndim else a


OPERATORS.update(add=add, negate=negate)
