"""Users' own atoms: functions with declared constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpconvex.core.atom import Atom
from dpconvex.core.atoms.shared import convex
from dpconvex.core.expression import Expression


def declared_value(xp: Any, expression: Expression, a: Any) -> Any:
    """Apply the function that runs for a user's atom."""
    declaration = expression.option("declaration")
    return declaration.evaluate(a) if xp is np else declaration.apply(a)


def declared_slope(expression: Expression, k: int, signs: Sequence[int]) -> int:
    """Declared slopes of one sign."""
    low, high = expression.option("declaration").slope
    return 1 if low >= 0 else -1 if high <= 0 else 0


DECLARED = Atom(
    name="declared",
    shape=lambda shape, declaration: shape,
    value=declared_value,
    sign=lambda e, signs: 1 if e.option("declaration").lower >= 0 else 0,
    curve=convex,
    slope=declared_slope,
    text=lambda e, write: (f"{e.option('declaration').name}({write(e.args[0], 0)})", 4),
)
