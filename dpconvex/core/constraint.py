"""Constraints of the core language: a kind, its arguments, and for cones their options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpconvex.core.expression import Expression, Field, Variable


@dataclass(frozen=True)
class Constraint:
    """A constraint whose meaning is a closed convex set for suitable arguments.

    Attributes
    ----------
    kind : {"equality", "inequality", "semidefinite", "second-order cone", "exponential cone", "power cone"}
        The first two are of two arguments of one shape: the first equals, or is at most, the second.
    args : tuple of Expression
    options : tuple
        Axis of a second-order cone; exponents of a power cone.
    """

    kind: str
    args: tuple[Expression, ...]
    options: tuple[Any, ...] = ()

    @property
    def variables(self) -> frozenset[Variable]:
        return frozenset().union(*(argument.variables for argument in self.args))

    @property
    def fields(self) -> frozenset[Field]:
        """The fields of the record that occur in it."""
        return frozenset().union(*(argument.fields for argument in self.args))

    def __str__(self) -> str:
        parts = [str(argument) for argument in self.args]
        if self.kind == "equality":
            return f"{parts[0]} == {parts[1]}"
        if self.kind == "inequality":
            return f"{parts[0]} <= {parts[1]}"
        return f"{parts[0]} >> 0" if self.kind == "semidefinite" else f"{self.kind}({', '.join(parts)})"
