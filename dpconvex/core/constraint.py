"""Constraints of the core language: a kind, its arguments, and for cones their options."""

from dataclasses import dataclass
from typing import Any

from dpconvex.core.expression import Expression, Field, Variable


@dataclass(frozen=True)
class Constraint:
    """A constraint whose meaning is a closed convex set for suitable arguments."""

    kind: str  # equality, inequality (of two arguments of one shape), semidefinite, second-order, exponential or power cone
    args: tuple[Expression, ...]
    options: tuple[Any, ...] = ()  # axis of a second-order cone; exponents of a power cone

    @property
    def variables(self) -> frozenset[Variable]:
        return frozenset().union(*(argument.variables for argument in self.args))

    @property
    def fields(self) -> frozenset[Field]:
        return frozenset().union(*(argument.fields for argument in self.args))

    def __str__(self) -> str:
        parts = [str(argument) for argument in self.args]
        if self.kind == "equality":
            return f"{parts[0]} == {parts[1]}"
        if self.kind == "inequality":
            return f"{parts[0]} <= {parts[1]}"
        return f"{parts[0]} >> 0" if self.kind == "semidefinite" else f"{self.kind}({', '.join(parts)})"
