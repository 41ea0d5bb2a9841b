"""Relative entropies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpconvex.core.abstract_values import Piece, Scalar
from dpconvex.core.atom import Atom
from dpconvex.core.atoms.arrangement import together
from dpconvex.core.atoms.rules import Entries, bounded, positive
from dpconvex.core.atoms.shared import convex, nowhere_negative, varies
from dpconvex.core.expression import Expression
from dpconvex.core.intervals import Interval
from dpconvex.errors import MissingRule

BOYD = "Boyd & Vandenberghe, Convex Optimization, example 3.19"


def a_log_ratio(xp: Any, a: Any, b: Any) -> Any:
    safe = xp.where(a > 0, a, 1.0)
    return xp.where(a > 0, safe * xp.log(safe / b), xp.where(a == 0, 0.0, np.inf))


def divergence_rule(shift: float) -> Callable[[Expression, list[Entries]], Entries]:
    """Return the rule of ``m log(m/y) - shift (m - y)``.

    Its Hessian is the square of ``g_m/sqrt(m) - (sqrt(m)/y) g_y``.
    """

    def rule(expression: Expression, arguments: list[Entries]) -> Entries:
        return [divergence(m, y, shift) for m, y in zip(*arguments, strict=True)]

    return rule


def divergence(m: Scalar, y: Scalar, shift: float) -> Scalar:
    """Bound one entry of a relative entropy."""
    low_m, low_y = positive(m, "relative entropy"), positive(y, "relative entropy")
    high_m, high_y = bounded(m, "relative entropy").high, bounded(y, "relative entropy").high
    ratio = Interval(low_m / high_y, high_m / low_y)
    slope_m = Interval(float(np.log(ratio.low)) + 1 - shift, float(np.log(ratio.high)) + 1 - shift).rounded(1.0)
    slope_y = Interval(shift - ratio.high, shift - ratio.low).rounded(1.0 + ratio.high)
    corners = [a * np.log(a / b) - shift * (a - b) for a in (low_m, high_m) for b in (low_y, high_y)]
    least = 0.0 if shift else float(min(*corners, -high_y * np.exp(-1.0)))
    if not (m.is_affine and y.is_affine):
        raise MissingRule("relative entropy has a rule for affine arguments", None, "expand the composition")
    if not y.terms:
        piece = Piece(m.terms, 1.0 / low_m)
    elif not m.terms:
        piece = Piece(y.terms, high_m / low_y**2)
    else:
        own, other = Interval(high_m**-0.5, low_m**-0.5), Interval(-(high_m**0.5) / low_y, -(low_m**0.5) / high_y)
        piece = Piece((*(t.scaled(own) for t in m.terms), *(t.scaled(other) for t in y.terms)), 1.0)
    terms = tuple(t.scaled(slope_m) for t in m.terms) + tuple(t.scaled(slope_y) for t in y.terms)
    size = high_m * (1 + max(abs(np.log(ratio.low)), abs(np.log(ratio.high)))) + high_y
    value = Interval(least, float(max(corners))).rounded(float(size))
    return Scalar(Interval(max(value.low, 0.0) if shift else value.low, value.high), terms, (piece,))


def log_ratio_slope(a: Any, b: Any) -> Any:
    safe = np.where(a > 0, a, 1.0)
    return np.where(a > 0, np.log(safe / b) + 1.0, 0.0)


REL_ENTR = Atom(
    name="rel_entr",
    value=lambda xp, expression, a, b: a_log_ratio(xp, a, b),
    pull=lambda e, value, slope, a, b: [slope * log_ratio_slope(a, b), -slope * a / b if varies(e, 1) else None],
    reads={"cvxpy.atoms.elementwise.rel_entr.rel_entr": lambda node, args: rel_entr(*args)},
    domain=lambda expression: ("not negative", "not negative"),
    curve=convex,
    slope=lambda expression, k, signs: -1 if k == 1 else 0,
    rule=divergence_rule(0.0),
    statement="m log(m/y) on positive bounded m, y: Hessian (1/m) v v' with v = g_m - (m/y) g_y",
    source=BOYD,
)


KL_DIV = Atom(
    name="kl_div",
    value=lambda xp, expression, a, b: a_log_ratio(xp, a, b) - a + b,
    pull=lambda e, value, slope, a, b: [slope * (log_ratio_slope(a, b) - 1), slope * (1 - a / b)],
    reads={"cvxpy.atoms.elementwise.kl_div.kl_div": lambda node, args: kl_div(*args)},
    domain=lambda expression: ("not negative", "not negative"),
    sign=nowhere_negative,
    curve=convex,
    rule=divergence_rule(1.0),
    statement="m log(m/y) - m + y on positive bounded m, y: the Hessian of m log(m/y)",
    source=BOYD,
)


def rel_entr(a: Any, b: Any) -> Expression:
    """A log(a/b)."""
    return REL_ENTR(*together(a, b))


def kl_div(a: Any, b: Any) -> Expression:
    """A log(a/b) - a + b."""
    return KL_DIV(*together(a, b))
