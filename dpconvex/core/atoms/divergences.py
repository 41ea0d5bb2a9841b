"""Relative entropies."""

from __future__ import annotations

from typing import Any

import numpy as np

from dpconvex.core.atom import Atom
from dpconvex.core.atoms.arrangement import together
from dpconvex.core.atoms.shared import convex, nowhere_negative, same, varies
from dpconvex.core.expression import Expression


def a_log_ratio(xp: Any, a: Any, b: Any) -> Any:
    """A log(a/b), 0 at a = 0."""
    safe = xp.where(a > 0, a, 1.0)
    return xp.where(a > 0, safe * xp.log(safe / b), xp.where(a == 0, 0.0, np.inf))


def log_ratio_slope(a: Any, b: Any) -> Any:
    """Slope of a log(a/b) by a; 0 at a = 0, where there is none."""
    safe = np.where(a > 0, a, 1.0)
    return np.where(a > 0, np.log(safe / b) + 1.0, 0.0)


REL_ENTR = Atom(
    name="rel_entr",
    shape=same,
    value=lambda xp, expression, a, b: a_log_ratio(xp, a, b),
    pull=lambda e, value, slope, a, b: [slope * log_ratio_slope(a, b), -slope * a / b if varies(e, 1) else None],
    reads={"cvxpy.atoms.elementwise.rel_entr.rel_entr": lambda node, args: rel_entr(*args)},
    writes=lambda cp, expression, args: cp.rel_entr(*args),
    domain=lambda expression: ("not negative", "not negative"),
    curve=convex,
    slope=lambda expression, k, signs: -1 if k == 1 else 0,
)


KL_DIV = Atom(
    name="kl_div",
    shape=same,
    value=lambda xp, expression, a, b: a_log_ratio(xp, a, b) - a + b,
    pull=lambda e, value, slope, a, b: [slope * (log_ratio_slope(a, b) - 1), slope * (1 - a / b)],
    reads={"cvxpy.atoms.elementwise.kl_div.kl_div": lambda node, args: kl_div(*args)},
    writes=lambda cp, expression, args: cp.kl_div(*args),
    domain=lambda expression: ("not negative", "not negative"),
    sign=nowhere_negative,
    curve=convex,
)


def rel_entr(a: Any, b: Any) -> Expression:
    """A log(a/b)."""
    return REL_ENTR(*together(a, b))


def kl_div(a: Any, b: Any) -> Expression:
    """A log(a/b) - a + b."""
    return KL_DIV(*together(a, b))
