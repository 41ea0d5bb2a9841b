"""Norms of vectors."""

from __future__ import annotations

from typing import Any

from dpconvex.core.atom import Atom
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
)
from dpconvex.core.expression import Expression, Shape, constant

INFINITE = float("inf")


def norm_value(xp: Any, expression: Expression, a: Any) -> Any:
    """p-norm with p >= 1; the derivative at 0 is 0."""
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


NORM = Atom(
    name="norm",
    shape=norm_shape,
    value=norm_value,
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
)


def norm_text(expression: Expression, write: Any) -> tuple[str, int]:
    """Write a norm with its order, unless that is 2."""
    order, axis = expression.option("p"), expression.option("axis")
    words = [write(expression.args[0], 0), *([] if order == 2 else [f"{order:.6g}"])]
    return f"norm({', '.join(words)}{axis_text(expression, axis)})", 4


def norm(a: Any, p: float = 2.0, axis: tuple[int, ...] | None = None, keepdims: bool = False) -> Expression:
    """p-norm of the entries along axes."""
    a = constant(a)
    return NORM(a, p=float(p), axis=every_axis(a, axis), keepdims=keepdims)
