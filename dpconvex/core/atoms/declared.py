"""Users' own atoms: functions with declared constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpconvex.core.abstract_values import Scalar
from dpconvex.core.atom import Atom
from dpconvex.core.atoms.rules import entrywise
from dpconvex.core.atoms.shared import convex
from dpconvex.core.expression import Expression
from dpconvex.core.intervals import Interval
from dpconvex.errors import NotPrivate


def declared_value(xp: Any, expression: Expression, a: Any) -> Any:
    """Apply the function that runs for a user's atom."""
    declaration = tried(expression)
    return through(declaration, a, 0) if xp is np else declaration.apply(a)


def tried(expression: Expression) -> Any:
    """Return the declaration; one that the user's function visibly breaks is refused."""
    declaration = expression.option("declaration")
    try:
        declaration.attack()
    except NotPrivate as error:
        raise NotPrivate(error.reason, expression, error.remedy) from error
    return declaration


def declared_slope(expression: Expression, k: int, signs: Sequence[int]) -> int:
    low, high = expression.option("declaration").slope
    return 1 if low >= 0 else -1 if high <= 0 else 0


def declared_rule(expression: Expression, entry: Scalar) -> Scalar:
    """What runs has piecewise linear slopes, read off the user's function."""
    declaration = tried(expression)
    slope = Interval(*declaration.slope)
    return entry.through(Interval(declaration.lower, float("inf")), slope, declaration.curvature)


def through(declaration: Any, a: Any, order: int) -> Any:
    """Apply a derivative of the function that runs; what carries derivatives (`core.dual_numbers`) asks for the next."""
    if isinstance(a, np.ndarray):
        return declaration.evaluate(a, order)
    return a.composed(declaration.evaluate(a.value, order), declaration.evaluate(a.value, order + 1))


DECLARED: Atom = Atom(
    name="declared",
    shape=lambda shape, declaration: shape,
    value=declared_value,
    writes=None,  # it has no conic form
    pull=lambda e, value, slope, a: [slope * through(e.option("declaration"), a, 1)],
    reads={
        "dpconvex.core.declared_atoms.DeclaredAtom": lambda node, args: DECLARED(args[0], declaration=node.declaration)
    },
    sign=lambda e, signs: 1 if e.option("declaration").lower >= 0 else 0,
    curve=convex,
    slope=declared_slope,
    text=lambda e, write: (f"{e.option('declaration').name}({write(e.args[0], 0)})", 4),
    rule=entrywise(declared_rule),
    statement="a user's function of one variable: slope and curvature as declared; what runs has them by construction",
    source="declared by the user; dpconvex/core/interpolation.py",
)
