"""The rule for a user's own atom: its constants are declared, and what runs has them."""

from __future__ import annotations

from typing import Any

from dpconvex.calculus.bilinear_forms import Interval
from dpconvex.calculus.interpreter import Entries, outer_rule
from dpconvex.core.declared_atoms import Atom, DeclaredAtom
from dpconvex.errors import NotPrivate

__all__: list[str] = []


@outer_rule(
    DeclaredAtom,
    name="declared atom",
    statement="a user's function of one variable: slope and curvature as declared; what runs has them by construction",
    source="declared by the user; dpconvex/core/interpolation.py",
)
def declared(expression: Any, arguments: list[Entries]) -> Entries:
    """What runs has piecewise linear slopes, read off the user's function; a declaration that it visibly breaks is refused."""
    atom: Atom = expression.declaration
    try:
        atom.attack()
    except NotPrivate as error:
        raise NotPrivate(error.reason, expression, error.remedy) from error
    slope = Interval(*(float(s) for s in atom.slope))
    return [
        entry.through(Interval(float(atom.lower), float("inf")), slope, float(atom.curvature)) for entry in arguments[0]
    ]
