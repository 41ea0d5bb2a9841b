"""Norms of vectors, and sums of squares."""

from typing import Any

import numpy as np

from dpconvex.errors import MissingRule
from dpconvex.expressions.abstract_values import AbstractValue, GradientSet, HessianTerm, NonsmoothPoint
from dpconvex.expressions.atom import ArgumentRange, LeastCurvature, always
from dpconvex.expressions.atoms import rules
from dpconvex.expressions.atoms.arithmetic import total
from dpconvex.expressions.atoms.arrangement import hstack, reshape, vec
from dpconvex.expressions.atoms.extremes import largest_entry
from dpconvex.expressions.atoms.powers import absolute, even_slope
from dpconvex.expressions.expression import Expression, Shape, constant
from dpconvex.expressions.polynomial import Polynomial
from dpconvex.numerics import BOUND_SLACK, SMALLEST, Interval, abs_ends, norm_up, quotient_ends
from dpconvex.util.arrays import Array

INFINITE = float("inf")


def norm_value(expression: Expression, a: Any) -> Any:
    p, axis = expression.option("p"), expression.option("axis")
    if p == 2:
        square = np.sum(a * a, axis=axis, keepdims=True)
        large = square > SMALLEST  # smaller squares have too few digits to divide by
        return np.where(large, np.sqrt(np.where(large, square, 1.0)), 0.0)
    size = np.maximum(a, -a)
    top = np.max(size, axis=axis, keepdims=True)
    # Divide by the largest entry, so that no power overflows.
    large = top > SMALLEST
    scale = np.where(large, top, 1.0)
    powers = np.where(a != 0, np.where(a != 0, size / scale, 1.0) ** p, 0.0)
    mass = np.sum(powers, axis=axis, keepdims=True)
    return np.where(large, scale * np.where(large, mass, 1.0) ** (1 / p), 0.0)


def norm_pull(expression: Expression, value: Any, slope: Any, a: Any) -> list[Any]:
    """Return `slope` times a subgradient of the norm; 0 at 0."""
    p, side = expression.option("p"), np.sign(np.real(a))
    share = a / np.where(value > 0, value, 1.0)
    return [slope * (share if p == 2 else side * (side * share) ** (p - 1))]


def norm_shape(shape: Shape, p: float, axis: tuple[int, ...], keepdims: bool) -> Shape:
    whole = len(axis) == len(shape)
    if not (1 < p < INFINITE and (whole or (len(axis) == 1 and p == 2))):
        known = "over all axes for p >= 1, and along one axis for p = 1, 2 and infinity"
        raise ValueError(f"p-norms have a rule {known}, and this one is of order {p:g} over the axes {axis}")
    return rules.reduced(shape, axis, keepdims)


def norm_rule(expression: Expression, group: rules.Entries) -> AbstractValue:
    """Bound a p-norm: for p >= 2 the Hessian is at most (p - 1)/norm away from zero; there is a kink at zero."""
    order = expression.option("p")
    size = 1.0 if order >= 2 else len(group) ** (1.0 / order - 0.5)
    rows, term = rules.affine_rows(group, "a norm"), rules.ball_of(group, "a norm", size)
    sizes = abs_ends(*rules.entry_ends(group))
    least, most = (length(ends, order) for ends in sizes)
    value = Interval(least, max(least, min(most, size * rules.norm_of(group)))).rounded(count=8 + len(group))
    if order >= 2 and value.low > 0:
        pieces = tuple(HessianTerm((GradientSet(row[None, :]),), (order - 1) / value.low) for row in rows)
        still = ~rows.any(axis=1)
        moved = any(t.mass is not None and t.mass.any() for k in np.flatnonzero(still).tolist() for t in group[k].terms)
        least = length(sizes[0][still]) * (1 - BOUND_SLACK * len(group))
        turn = (1.0, least) if least > 0 and order == 2 and not moved else None
        return AbstractValue(value, (term,), pieces, turn=turn)
    reason = f"no curvature bound is known for the p-norm with p = {order:g}"
    if order >= 2:
        reason = f"the {order:g}-norm is not differentiable where its argument vanishes"
    remedy = "cp.norm(cp.hstack([m, 0.1])) rounds the corner off; cp.sum_squares needs bounded parameters"
    return AbstractValue(value, (term,), (), 1, NonsmoothPoint(reason, expression, f"{remedy}; {rules.NO_SMOOTHNESS}"))


def length(sizes: Array, order: float = 2.0) -> float:
    """Return the norm of `sizes` up to a few roundings; no power of an entry overflows, and not all powers underflow."""
    top = float(sizes.max(initial=0.0))
    return top * float(np.linalg.norm(sizes / top, ord=order)) if 0 < top < INFINITE else top


def rounded_norm(expression: Expression, args: list[Expression], width: float) -> Expression | None:
    (inner,), order = args, expression.option("p")
    if len(expression.option("axis")) != inner.ndim or order < 2:
        return None
    return reshape(norm(hstack(vec(inner), [width]), order), expression.shape)


def norm_text(expression: Expression, write: rules.Write) -> tuple[str, int]:
    order = expression.option("p")
    words = [write(expression.args[0], 0), *([] if order == 2 else [f"{order:.6g}"])]
    return rules.called("norm", expression, *words)


NORM = rules.reduction(
    "norm",
    shape=norm_shape,
    value=norm_value,
    vjp=norm_pull,
    one=norm_rule,
    from_cvxpy={
        "norm1.norm1": lambda node, args: norm(args[0], 1.0, *rules.axes_of(node)),
        "norm_inf.norm_inf": lambda node, args: norm(args[0], INFINITE, *rules.axes_of(node)),
        **dict.fromkeys(
            [f"pnorm.{name}" for name in ("Pnorm", "PnormApprox", "pnorm")],
            lambda node, args: norm(args[0], float(node.original_p), *rules.axes_of(node)),  # as the user gave it
        ),
    },
    to_cvxpy=lambda cp, e, a: cp.pnorm(a[0], e.option("p"), **rules.axis_for(e)) if e.args[0].ndim else cp.abs(a[0]),
    sign=always(1),
    monotonicity=even_slope,
    to_string=norm_text,
    statement="gradient sum u_j g_j with ||u||_2 <= 1 (p >= 2) or <= k^(1/p - 1/2) (p < 2), Hessian at most (p - 1)/norm "
    "sum g_j g_j' for p >= 2; not differentiable at 0; p = 1 is a sum, p = inf the largest, of absolute values",
    smoothed=rounded_norm,
    example=("norm(w)", lambda cp, w: cp.norm(w)),
)


def norm(a: Any, p: float = 2.0, axis: Shape | None = None, keepdims: bool = False) -> Expression:
    """Return the p-norm; orders 1 and infinity are the sum and the maximum of absolute values."""
    if p in (1, INFINITE) and constant(a).ndim:
        return (total if p == 1 else largest_entry)(absolute(a), axis, keepdims)
    return absolute(a) if p in (1, INFINITE) else rules.along(NORM, a, axis, keepdims, p=float(p))


def squares_over(expression: Expression, group: rules.Entries, divisor: AbstractValue) -> AbstractValue:
    """Bound ``||m||^2/y``, a sum of squares divided by an entry that keeps away from zero.

    With affine m the Hessian is ``(2/y) sum_j v_j v_j'``, ``v_j = g_j - (m_j/y) g_y``, minus ``||m||^2/y^2`` times y's Hessian.
    The gradient of pos(m)^2 is 2 pos(m) times the gradient of m: there is no kink.
    """
    low, y = rules.positive(divisor, "quad_over_lin", "divisor"), divisor.value
    ranges = [rules.bounded(entry, "a square") for entry in group]
    if any(not e.is_affine and (e.value.low if e.sign > 0 else -e.value.high) < 0 for e in group):
        raise MissingRule("the square of a curved term that can change its sign", None, "square affine expressions")
    inner = [entry.behind or entry for entry in group]
    smallest, sizes = abs_ends(*rules.entry_ends(group))
    least = float((smallest**2).sum())
    most = min(norm_up(sizes), rules.norm_of(inner))
    value = Interval(least / y.high, max(most * most, least) / low)
    plain = len(group) == 1 and y == Interval(1.0, 1.0)
    value = ranges[0].power(2) if plain else value.rounded(count=8 + len(group))
    if len(group) > 1 and all(map(rules.is_one_row, inner)):
        terms: tuple[GradientSet, ...] = (rules.ball_of(inner, "a sum of squares", 2 * most / low),)
    else:
        ends = [(min(r.low / low, r.low / y.high), max(r.high / low, r.high / y.high)) for r in ranges]
        slopes = [Interval(2 * least, 2 * most) for least, most in ends]
        terms = tuple(term.scaled(s) for entry, s in zip(inner, slopes, strict=True) for term in entry.terms)
    pieces = []
    for entry, reach in zip(inner, ranges, strict=True):
        ratio = Interval(-reach.high, -reach.low) * Interval(1 / y.high, 1 / low)
        pieces.append(HessianTerm(entry.terms + tuple(term.scaled(ratio) for term in divisor.terms), 2.0 / low))
        pieces.extend(piece.scaled(2 * reach.size / low) for piece in entry.pieces)
    if divisor.terms:
        bound = Interval(-value.high / low, -value.low / y.high)
        terms = terms + tuple(term.scaled(bound) for term in divisor.terms)
        pieces.extend(piece.scaled(value.high / low) for piece in divisor.pieces)
    return AbstractValue(value, terms, tuple(pieces), 1, rules.kink_of([*inner, divisor]))


def squares_bend(expression: Expression, weights: Any, reach: ArgumentRange) -> Any:
    divisor = expression.args[1]
    summed = 2 * (weights @ rules.sum_matrix(expression))
    return quotient_ends(summed, float(divisor.number))[0] if divisor.is_constant else None


def summed_squares(expander: Any, expression: Expression) -> Polynomial | None:
    inner, divisor = expression.args
    if expression.variables or not divisor.is_constant or divisor.number != 1:
        return None
    squares: Polynomial = expander.expand(inner).power(2)
    return squares.linear(rules.sum_matrix(expression), expression.shape)


def squares_shape(shape: Shape, divisor: Shape, axis: tuple[int, ...], keepdims: bool) -> Shape:
    if divisor:
        raise ValueError(f"sums of squares are divided by a number, and the divisor has shape {divisor}")
    return rules.reduced(shape, axis, keepdims)


def squares_text(expression: Expression, write: rules.Write) -> tuple[str, int]:
    inner, divisor = (write(argument, 0) for argument in expression.args)
    if divisor == "1":
        return rules.called("sum_squares", expression, inner)
    return rules.called("quad_over_lin", expression, inner, divisor)


QUAD_OVER_LIN = rules.reduction(
    "quad_over_lin",
    shape=squares_shape,
    value=lambda e, a, b: np.sum(a * a, axis=e.option("axis"), keepdims=True) / b,
    vjp=lambda e, value, slope, a, b: [2 * a * (slope / b), -np.sum(slope * value, axis=tuple(range(a.ndim - 1))) / b],
    one=squares_over,
    from_cvxpy={
        "quad_over_lin.quad_over_lin": lambda node, args: quad_over_lin(args[0], args[1], *rules.axes_of(node))
    },
    domain=always((None, "positive")),
    sign=always(1),
    monotonicity=lambda expression, k, signs: signs[0] if k == 0 else -1,
    to_string=squares_text,
    expand=summed_squares,
    statement="||m||^2 / y on bounded m and y >= l > 0; with constant y (sum_squares): gradient 2 sum m_j g_j / y, "
    "Hessian (2/y) sum g_j g_j'; of pos(m): differentiable",
    hessian_lower_bound=LeastCurvature(
        "sum of squares", "||A theta + c||^2 / y with a constant y > 0: Hessian 2 A'A / y", squares_bend
    ),
    example=("quad_over_lin(w[:2], w[2])", lambda cp, w: cp.quad_over_lin(w[:2], w[2])),
)


def quad_over_lin(a: Any, b: Any, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    a, b = constant(a), reshape(b, ())
    if b.is_constant and not float(b.number) > 0:
        raise ValueError("squares are divided by a number that is not positive")
    return QUAD_OVER_LIN(a, b, axis=tuple(range(a.ndim)) if axis is None else axis, keepdims=keepdims)


def sum_squares(a: Any, axis: tuple[int, ...] | None = None) -> Expression:
    return quad_over_lin(a, 1.0, axis)
