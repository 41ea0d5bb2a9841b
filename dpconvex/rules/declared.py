"""The rule for a user's own atom: its constants are declared, and attacked before they are used."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from dpconvex.declared import Atom, DeclaredAtom
from dpconvex.errors import NotPrivate
from dpconvex.rules.forms import Interval
from dpconvex.rules.walk import Entries, outer_rule

__all__: list[str] = []

_SURVIVORS: WeakSet[Atom] = WeakSet()


@outer_rule(
    DeclaredAtom,
    name="declared atom",
    statement="a user's function of one variable: slope and curvature as declared, after an attack that failed to break them",
    source="declared by the user, not derived",
)
def declared(expression: Any, arguments: list[Entries]) -> Entries:
    """The attack runs once for each atom; a broken declaration is refused."""
    atom: Atom = expression.declaration
    if atom not in _SURVIVORS:
        try:
            atom.attack()
        except NotPrivate as error:
            raise NotPrivate(error.reason, expression, error.remedy) from error
        _SURVIVORS.add(atom)
    slope = Interval(*(float(s) for s in atom.slope))
    return [
        entry.through(Interval(float(atom.lower), float("inf")), slope, float(atom.curvature)) for entry in arguments[0]
    ]
