"""Norms of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpconvex.core.abstract_values import Kink, Piece, Scalar, Term
from dpconvex.core.atom import Atom
from dpconvex.core.atoms.arrangement import concatenate, reshape, vec
from dpconvex.core.atoms.exponentials import log_sum_exp
from dpconvex.core.atoms.groups import (
    Pair,
    absolute_value,
    affine_rows,
    along_axis,
    entry_ends,
    largest,
    largest_sizes,
    least_sizes,
    lines,
    outward,
    scaled_mass,
)
from dpconvex.core.atoms.powers import huber
from dpconvex.core.atoms.rules import CALCULUS, NO_SMOOTHNESS, ROUNDING, Entries
from dpconvex.core.atoms.shared import (
    axes_of,
    axis_for,
    axis_text,
    convex,
    even_slope,
    every_axis,
    kept,
    nowhere_negative,
    over,
    reduced,
    unreduced,
)
from dpconvex.core.atoms.sums import total
from dpconvex.core.expression import Expression, Shape, constant
from dpconvex.core.intervals import Interval

INFINITE = float("inf")


def norm_value(xp: Any, expression: Expression, a: Any) -> Any:
    p, axis = expression.option("p"), expression.option("axis")
    size = xp.maximum(a, -a)
    if p == 1:
        return kept(expression, xp.sum(size, axis=axis, keepdims=True))
    if p == INFINITE:
        return kept(expression, xp.max(size, axis=axis, keepdims=True))
    if p == 2:
        square = xp.sum(a * a, axis=axis, keepdims=True)
        positive = square > 0
        return kept(expression, xp.where(positive, xp.sqrt(xp.where(positive, square, 1.0)), 0.0))
    # Divided by its largest entry, so that no power overflows.
    top = xp.max(xp.abs(a), axis=axis, keepdims=True)
    scale = xp.where(top > 0, top, 1.0)
    nonzero = a != 0
    powers = xp.where(nonzero, xp.where(nonzero, xp.abs(a) / scale, 1.0) ** p, 0.0)
    mass = xp.sum(powers, axis=axis, keepdims=True)
    return kept(expression, xp.where(top > 0, scale * xp.where(top > 0, mass, 1.0) ** (1 / p), 0.0))


def norm_pull(expression: Expression, value: Any, slope: Any, a: Any) -> list[Any]:
    """A point of the dual norm's unit ball; 0 at 0."""
    p, axis = expression.option("p"), expression.option("axis")
    value, slope = unreduced(expression, value), unreduced(expression, slope)
    if p == 1:
        return [slope * np.sign(a)]
    if p == INFINITE:
        attained = (np.abs(a) == value) * 1.0
        return [np.sign(a) * attained * (slope / np.sum(attained, axis=axis, keepdims=True))]
    share = a / np.where(value > 0, value, 1.0)
    return [slope * (share if p == 2 else np.sign(a) * np.abs(share) ** (p - 1))]


def order_of(node: Any) -> float:
    """Return the order of a norm of CVXPY as its user gave it."""
    return float(node.original_p)


def norm_written(cp: Any, expression: Expression, inner: Any) -> Any:
    """Write a norm of a vector or of entries along an axis with CVXPY, which has an atom for each order."""
    order = expression.option("p")
    if not expression.args[0].ndim:
        return cp.abs(inner)
    options = {"axis": axis_for(expression), "keepdims": expression.option("keepdims")}
    if order in (1.0, INFINITE):
        return (cp.norm1 if order == 1 else cp.norm_inf)(inner, **options)
    return cp.pnorm(inner, order, **options)


def norm_shape(shape: Shape, p: float, axis: tuple[int, ...], keepdims: bool) -> Shape:
    """Shape of a norm: along some of the axes, of order 1, 2 or infinity."""
    if not p >= 1:
        raise ValueError(f"a norm of order {p:g} is none: p-norms have a rule for p >= 1")
    if p not in (1.0, 2.0, INFINITE) and len(axis) < len(shape):
        raise ValueError(f"along an axis there are norms of order 1, 2 and infinity, and the order is {p:g}")
    if len(axis) not in (1, len(shape)):
        raise ValueError(f"norms are over all axes or along one of them, and the axes are {axis}")
    return reduced(shape, axis, keepdims)


def norm_bounds(expression: Expression, expander: Any) -> Pair:
    """The norm of the entries' least and largest sizes; of polynomials also a multiple of the bound on their Euclidean norm."""
    inner, order, table = expression.args[0], expression.option("p"), lines(expression)
    low, high = expander.bounds(inner)
    least, most = (np.linalg.norm(sizes(low, high)[table], ord=order, axis=1) for sizes in (least_sizes, largest_sizes))
    polynomial = expander.polynomial(inner)
    if polynomial is not None:
        scale = table.shape[1] ** max(0.0, 1.0 / order - 0.5)
        most = np.minimum(most, [scale * expander.bases.norm(polynomial.gathered(line)) for line in table])
    return outward(least, most, 4 + table.shape[1])


def norm_rule(expression: Expression, arguments: list[Entries]) -> Entries:
    """Sums and maxima of absolute values, and what lies between."""
    order = expression.option("p")
    one = norm_1 if order == 1 else norm_infinity if order == INFINITE else norm_p
    return [one(expression, group) for group in along_axis(expression, arguments[0])]


def norm_1(expression: Expression, group: Entries) -> Scalar:
    """Add up absolute values."""
    kink = Kink(
        "the 1-norm is not differentiable where an entry is 0",
        expression,
        f"cp.sum(cp.huber(m, M)) rounds the corners off; {NO_SMOOTHNESS}",
    )
    result = absolute_value(expression, group[0], kink)
    for entry in group[1:]:
        result = result + absolute_value(expression, entry, kink)
    return result


def norm_infinity(expression: Expression, group: Entries) -> Scalar:
    """The maximum over the entries' absolute values: concave entries, which may be below zero in a norm, change sign too."""
    kink = Kink(
        "the infinity norm is not differentiable at 0, nor where two entries tie in size",
        expression,
        f"cp.log_sum_exp(cp.hstack([m, -m])) is a smooth substitute; {NO_SMOOTHNESS}",
    )
    found = largest(expression, [absolute_value(expression, entry, kink) for entry in group])
    least, most = sizes_of(group)
    return found.with_value(Interval(float(least.max()), float(most.max())))


def norm_p(expression: Expression, group: Entries) -> Scalar:
    """Away from zero the Hessian of the p-norm is at most (p - 1)/norm for p >= 2; at zero it has a kink."""
    order = expression.option("p")
    rows = affine_rows(group, "a norm")
    size = 1.0 if order >= 2 else len(group) ** (1.0 / order - 0.5)
    least, most = (float(np.linalg.norm(sizes, ord=order)) for sizes in sizes_of(group))
    value = Interval(least, most).rounded(count=8 + len(group))
    term = Term(size * rows, True, scaled_mass(group, size))
    if order >= 2 and value.low > 0:
        pieces = tuple(Piece((Term(row[None, :]),), (order - 1) / value.low) for row in rows)
        still = [entry for entry, row in zip(group, rows, strict=True) if not row.any()]
        least = float(np.linalg.norm(sizes_of(still)[0])) * (1 - ROUNDING * len(group)) if order == 2 and still else 0.0
        moved = any(each.mass is not None and each.mass.any() for entry in still for each in entry.terms)
        floor = (1.0, least) if least > 0 and not moved else None
        return Scalar(value, (term,), pieces, floor=floor)
    reason = (
        f"the {'Euclidean norm' if order == 2 else f'{order:g}-norm'} is not differentiable where its argument vanishes"
        if order >= 2
        else f"no curvature bound is known for the p-norm with p = {order:g}"
    )
    remedy = "cp.norm(cp.hstack([m, 0.1])) rounds the corner off; cp.sum_squares needs bounded parameters"
    return Scalar(value, (term,), (), 1, Kink(reason, expression, f"{remedy}; {NO_SMOOTHNESS}"))


def sizes_of(group: Entries) -> Pair:
    """Bound the absolute values of entries from below and above."""
    ends = entry_ends(group)
    return least_sizes(*ends), largest_sizes(*ends)


def rounded_norm(expression: Expression, args: list[Expression], width: float) -> Expression | None:
    """Huber's function for p = 1, a log-sum-exp for infinity, and for p >= 2 the norm of one entry more, the width."""
    (inner,), order, axis = args, expression.option("p"), expression.option("axis")
    if order == 1:
        return total(huber(inner, width), axis, expression.option("keepdims")) / (2 * width)
    if len(axis) != inner.ndim or order < 2:
        return None
    inner = vec(inner)
    if order == INFINITE:
        rounded = width * log_sum_exp(concatenate(inner / width, inner / -width, axis=0))
    else:
        rounded = norm(concatenate(inner, [width], axis=0), order)
    return reshape(rounded, expression.shape)


NORM = Atom(
    name="norm",
    shape=norm_shape,
    value=norm_value,
    pull=norm_pull,
    reads={
        "cvxpy.atoms.norm1.norm1": over(lambda a, axis, keepdims: norm(a, 1.0, axis, keepdims)),
        "cvxpy.atoms.norm_inf.norm_inf": over(lambda a, axis, keepdims: norm(a, INFINITE, axis, keepdims)),
        **{
            f"cvxpy.atoms.pnorm.{name}": lambda node, args: norm(
                args[0], order_of(node), axes_of(node), bool(node.keepdims)
            )
            for name in ("Pnorm", "PnormApprox", "pnorm")
        },
    },
    writes=lambda cp, e, args: norm_written(cp, e, args[0]),
    sign=nowhere_negative,
    curve=convex,
    slope=even_slope,
    text=lambda e, write: norm_text(e, write),
    statement="p = 1: rules of abs and sum; p = inf: of abs and max; else gradient sum u_j g_j with ||u||_2 <= 1 (p >= 2) or "
    "<= k^(1/p - 1/2) (p < 2), Hessian at most (p - 1)/norm sum g_j g_j' for p >= 2; not differentiable at 0",
    source=CALCULUS,
    bounds=norm_bounds,
    rule=norm_rule,
    smooth=rounded_norm,
)


def norm_text(expression: Expression, write: Any) -> tuple[str, int]:
    order, axis = expression.option("p"), expression.option("axis")
    words = [write(expression.args[0], 0), *([] if order == 2 else [f"{order:.6g}"])]
    return f"norm({', '.join(words)}{axis_text(expression, axis)})", 4


def norm(a: Any, p: float = 2.0, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    """p-norm of the entries along axes."""
    a = constant(a)
    return NORM(a, p=float(p), axis=every_axis(a, axis), keepdims=keepdims)
