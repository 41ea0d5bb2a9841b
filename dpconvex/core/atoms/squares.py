"""Sums of squares, over a constant or over a positive expression."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.abstract_values import Piece, Scalar, Term
from dpconvex.core.atom import Atom, LeastCurvature, Reach
from dpconvex.core.atoms.arrangement import reshape
from dpconvex.core.atoms.groups import (
    Pair,
    affine_rows,
    along_axis,
    entry_ends,
    is_one_row,
    largest_sizes,
    least_sizes,
    length_of,
    lines,
    outward,
    scaled_mass,
)
from dpconvex.core.atoms.rules import (
    CALCULUS,
    Entries,
    behind,
    bounded,
    positive,
)
from dpconvex.core.atoms.shared import (
    axes_of,
    axis_for,
    axis_text,
    convex,
    every_axis,
    kept,
    nowhere_negative,
    reduced,
    sum_matrix,
    unreduced,
    varies,
)
from dpconvex.core.expression import Expression, Shape, constant
from dpconvex.core.intervals import Interval
from dpconvex.core.polynomial import Polynomial
from dpconvex.errors import MissingRule, NotPrivate

Array = NDArray[np.float64]


def squares_bounds(expression: Expression, expander: Any) -> Pair:
    """Bound sums of squares of a function of the record, over a positive one."""
    table = lines(expression)
    low, high = expander.bounds(expression.args[0])
    (least,), (most,) = expander.bounds(expression.args[1])
    if not least > 0:
        raise NotPrivate(
            f"the divisor of squares can reach zero: over the declared domain it goes down to {least:.4g}",
            expression,
            "shift it, or declare a domain that keeps away from zero",
        )
    below, above = ((sizes(low, high)[table] ** 2).sum(axis=1) for sizes in (least_sizes, largest_sizes))
    return outward(below / most, above / least, 8 + table.shape[1])


def squares_rule(expression: Expression, arguments: list[Entries]) -> Entries:
    """With varying y the Hessian is ``(2/y) sum_j v_j v_j'``, ``v_j = g_j - (m_j/y) g_y``, less ``||m||^2/y^2`` times y's."""
    (divisor,) = arguments[1]
    return [squares_over(group, divisor) for group in along_axis(expression, arguments[0])]


def squares_over(group: Entries, divisor: Scalar) -> Scalar:
    """Bound the sum of the squares of some entries, over one that keeps away from zero.

    The square of pos(m) has the slope 2 pos(m) times m's: there is no kink.
    """
    low, y = positive(divisor, "quad_over_lin", "divisor"), divisor.value
    ranges = [bounded(entry, "a square") for entry in group]
    if any(not e.is_affine and (e.value.low if e.sign > 0 else -e.value.high) < 0 for e in group):
        raise MissingRule("the square of a curved term that can change its sign", None, "square affine expressions")
    inner = [behind(entry) for entry in group]
    ends = entry_ends(group)
    sizes, least = largest_sizes(*ends), float((least_sizes(*ends) ** 2).sum())
    most = min(float(np.linalg.norm(sizes)), length_of(inner))
    value = Interval(least / y.high, max(most**2, least) / low)
    plain = len(group) == 1 and y == Interval(1.0, 1.0)
    value = ranges[0].power(2) if plain else value.rounded(count=8 + len(group))
    if len(group) > 1 and all(map(is_one_row, inner)):
        steepest = 2 * most / low
        terms: tuple[Term, ...] = (
            Term(affine_rows(inner, "a sum of squares") * steepest, True, scaled_mass(inner, steepest)),
        )
    else:
        slopes = [
            Interval(2 * min(r.low / low, r.low / y.high), 2 * max(r.high / low, r.high / y.high)) for r in ranges
        ]
        terms = tuple(term.scaled(s) for entry, s in zip(inner, slopes, strict=True) for term in entry.terms)
    pieces = []
    for entry, reach in zip(inner, ranges, strict=True):
        ratio = Interval(-reach.high, -reach.low) * Interval(1 / y.high, 1 / low)
        extra = tuple(term.scaled(ratio) for term in divisor.terms)
        pieces.append(Piece(entry.terms + extra, 2.0 / low))
        pieces.extend(piece.scaled(2 * reach.size / low) for piece in entry.pieces)
    if divisor.terms:
        bound = Interval(-value.high / low, -value.low / y.high)
        terms = terms + tuple(term.scaled(bound) for term in divisor.terms)
        pieces.extend(piece.scaled(value.high / low) for piece in divisor.pieces)
    kink = next((entry.kink for entry in (*inner, divisor) if entry.kink), None)
    return Scalar(value, terms, tuple(pieces), 1, kink)


def squares_bend(expression: Expression, weights: Any, reach: Reach) -> Any:
    """Twice the weights, over a constant divisor."""
    divisor = expression.args[1]
    if not divisor.is_constant:
        return None
    result = np.zeros(expression.args[0].size)
    for weight, line in zip(weights, lines(expression), strict=True):
        result[line] = 2 * weight / float(divisor.number)
    return result


def squares_pull(expression: Expression, value: Any, slope: Any, a: Any, b: Any) -> list[Any]:
    """Twice the entries over the divisor, and minus the value over it."""
    first = 2 * a * unreduced(expression, slope / b)
    second = -np.sum(slope * value, axis=tuple(range(expression.ndim))) / b if varies(expression, 1) else None
    return [first, second]


def summed_squares(expander: Any, expression: Expression) -> Polynomial | None:
    """Expand a sum of squares of functions of the record."""
    inner, divisor = expression.args
    if expression.variables or not divisor.is_constant or divisor.number != 1:
        return None
    squares: Polynomial = expander.expand(inner).power(2)
    return squares.linear(sum_matrix(expression), expression.shape)


QUAD_OVER_LIN = Atom(
    name="quad_over_lin",
    shape=lambda shape, divisor, axis, keepdims: reduced(shape, axis, keepdims) if not divisor else _divisor(divisor),
    value=lambda xp, e, a, b: (
        kept(e, xp.sum(a * a, axis=e.option("axis"), keepdims=True)) / b.reshape((1,) * e.ndim + (-1,))
    ),
    pull=squares_pull,
    reads={
        "cvxpy.atoms.quad_over_lin.quad_over_lin": lambda node, args: quad_over_lin(
            args[0], args[1], axes_of(node), bool(getattr(node, "keepdims", False))
        )
    },
    writes=lambda cp, e, args: cp.quad_over_lin(args[0], args[1], axis=axis_for(e), keepdims=e.option("keepdims")),
    domain=lambda expression: (None, "positive"),
    sign=nowhere_negative,
    curve=convex,
    slope=lambda expression, k, signs: signs[0] if k == 0 else -1,
    text=lambda e, write: squares_text(e, write),
    expand=summed_squares,
    statement="||m||^2 / y on bounded m and y >= l > 0; with constant y (sum_squares): gradient 2 sum m_j g_j / y, "
    "Hessian (2/y) sum g_j g_j'; of pos(m): no kink",
    source=CALCULUS,
    bounds=squares_bounds,
    rule=squares_rule,
    strong=LeastCurvature(
        "sum of squares",
        "||A theta + c||^2 / y with a constant y > 0: Hessian 2 A'A / y",
        squares_bend,
        exact=lambda expression: expression.args[1].is_constant,
    ),
)


def _divisor(shape: Shape) -> Shape:
    raise ValueError(f"sums of squares are divided by a number, and the divisor has shape {shape}")


def squares_text(expression: Expression, write: Any) -> tuple[str, int]:
    """Write a sum of squares as such if the divisor is 1."""
    inner, divisor = expression.args
    axis = axis_text(expression, expression.option("axis"))
    if divisor.is_constant and float(divisor.number.ravel()[0]) == 1.0:
        return f"sum_squares({write(inner, 0)}{axis})", 4
    return f"quad_over_lin({write(inner, 0)}, {write(divisor, 0)}{axis})", 4


def quad_over_lin(a: Any, b: Any, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    """Sum of squares along axes, over a positive number."""
    a, b = constant(a), reshape(constant(b), ())
    if b.is_constant and not float(b.number) > 0:
        raise ValueError("squares are divided by a number that is not positive")
    return QUAD_OVER_LIN(a, b, axis=every_axis(a, axis), keepdims=keepdims)


def sum_squares(a: Any, axis: tuple[int, ...] | None = None) -> Expression:
    return quad_over_lin(a, 1.0, axis)
