"""Powers, absolute values, Huber's function, and sums of squares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpconvex.core.atom import Atom
from dpconvex.core.atoms.arrangement import reshape
from dpconvex.core.atoms.shared import (
    axes_of,
    axis_for,
    axis_text,
    convex,
    even_slope,
    every_axis,
    kept,
    nowhere_negative,
    number,
    reduced,
    same,
)
from dpconvex.core.expression import Expression, Shape, constant

# CVXPY defines these powers on the whole line, and every other one only for arguments that are not negative.
WHOLE_LINE = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def clipped_product(xp: Any, expression: Expression, a: Any) -> Any:
    """a^2 up to M, 2M|a| - M^2 beyond; as c(2a - c) with c the clipped argument, it needs no case distinction."""
    threshold = expression.option("M")
    clipped = xp.clip(a, -threshold, threshold)
    return clipped * (2 * a - clipped)


HUBER = Atom(
    name="huber",
    shape=lambda shape, M: shape if M > 0 else _threshold(M),
    value=clipped_product,
    reads={"cvxpy.atoms.elementwise.huber.huber": lambda node, args: huber(args[0], number(node.M))},
    writes=lambda cp, e, args: cp.huber(args[0], e.option("M")),
    sign=nowhere_negative,
    curve=convex,
    slope=even_slope,
    text=lambda e, write: (f"huber({write(e.args[0], 0)}, {e.option('M'):.6g})", 4),
)


def _threshold(M: float) -> Shape:
    raise ValueError(f"the threshold of huber is {M:g}, and must be positive")


def magnitude(xp: Any, expression: Expression, a: Any) -> Any:
    """Absolute value with the derivative 0 at 0."""
    return xp.maximum(a, -a)


ABS = Atom(
    name="abs",
    shape=same,
    value=magnitude,
    reads={"cvxpy.atoms.elementwise.abs.abs": lambda node, args: absolute(args[0])},
    writes=lambda cp, expression, args: cp.abs(args[0]),
    sign=nowhere_negative,
    curve=convex,
    slope=even_slope,
)


def is_whole_line(p: float) -> bool:
    """Whether CVXPY defines a power everywhere."""
    return p in WHOLE_LINE


def _exponent(p: float) -> Shape:
    raise ValueError(f"the exponent of a power is {p:g}, and must be finite and neither 0 nor 1")


def power_value(xp: Any, expression: Expression, a: Any) -> Any:
    """Power with a constant exponent; infinite or NaN outside its domain, like NumPy's."""
    p = expression.option("p")
    if p.is_integer() and 0 <= p <= 64:
        return a ** int(p)
    if p == 0.5:
        return xp.sqrt(a)
    # A safe base keeps the derivative at 0 finite where the power's own is (p > 1).
    base = xp.where(a == 0, 1.0, a)
    return xp.where(a == 0, 0.0 if p > 0 else np.inf, base**p)


def power_sign(expression: Expression, signs: Sequence[int]) -> int:
    """Powers are not negative on their domains."""
    return 1


def power_slope(expression: Expression, k: int, signs: Sequence[int]) -> int:
    """Positive powers grow on the positive numbers; those of the whole line are even."""
    p = expression.option("p")
    return signs[k] if is_whole_line(p) else 1 if p > 0 else -1


POWER = Atom(
    name="power",
    shape=lambda shape, p: shape if np.isfinite(p) and p not in (0.0, 1.0) else _exponent(p),
    value=power_value,
    reads={
        f"cvxpy.atoms.elementwise.power.{name}": lambda node, args: power(args[0], number(node.p))
        for name in ("Power", "PowerApprox", "power")
    },
    writes=lambda cp, e, args: cp.power(args[0], e.option("p")),
    domain=lambda e: (None if is_whole_line(e.option("p")) else "positive" if e.option("p") < 0 else "not negative",),
    sign=power_sign,
    curve=lambda e: -1 if 0 < e.option("p") < 1 else 1,
    slope=power_slope,
    text=lambda e, write: (
        (f"square({write(e.args[0], 0)})", 4)
        if e.option("p") == 2
        else (f"power({write(e.args[0], 0)}, {e.option('p'):.6g})", 4)
    ),
)


def huber(a: Any, M: float = 1.0) -> Expression:
    """a^2 up to M, 2M|a| - M^2 beyond."""
    return HUBER(a, M=float(M))


def absolute(a: Any) -> Expression:
    """Absolute value."""
    return ABS(a)


def power(a: Any, p: float) -> Expression:
    """Power with a public exponent."""
    a = constant(a)
    if p == 1:
        return a
    return constant(np.ones(a.shape)) if p == 0 else POWER(a, p=float(p))


def square(a: Any) -> Expression:
    """Square."""
    return power(a, 2.0)


QUAD_OVER_LIN = Atom(
    name="quad_over_lin",
    shape=lambda shape, divisor, axis, keepdims: reduced(shape, axis, keepdims) if not divisor else _divisor(divisor),
    value=lambda xp, e, a, b: (
        kept(e, xp.sum(a * a, axis=e.option("axis"), keepdims=True)) / b.reshape((1,) * e.ndim + (-1,))
    ),
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
    """Sum of squares along axes, over a positive number.

    Raises
    ------
    ValueError
        If the divisor is a number that is not positive.
    """
    a, b = constant(a), reshape(constant(b), ())
    if b.is_constant and not float(b.number) > 0:
        raise ValueError("squares are divided by a number that is not positive")
    return QUAD_OVER_LIN(a, b, axis=every_axis(a, axis), keepdims=keepdims)


def sum_squares(a: Any, axis: tuple[int, ...] | None = None) -> Expression:
    """Sum of squares."""
    return quad_over_lin(a, 1.0, axis)
