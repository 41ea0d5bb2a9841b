"""Writes core expressions with CVXPY again, for conic solvers and for people: the only way back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np

from dpconvex.core.constraint import Constraint
from dpconvex.core.expression import Constant, Expression, Field, Variable
from dpconvex.errors import MissingRule

__all__ = ["ConicProgram", "Writer", "variable_like"]


@dataclass
class Writer:
    """Writes expressions in shared variables; equal nodes become one CVXPY expression.

    Attributes
    ----------
    leaves : dict of Variable or Field to cvxpy.Expression
        What stands for them; variables that are missing are made, with the names and attributes of the core's.
    """

    leaves: dict[Expression, Any] = field(default_factory=dict)
    _memory: dict[Expression, Any] = field(default_factory=dict)

    def expression(self, root: Expression) -> Any:
        """Return the CVXPY expression.

        Raises
        ------
        MissingRule
            If an atom has no conic form.

        Examples
        --------
        >>> from dpconvex.core.atoms.extremes import pos
        >>> w = Variable.of((2,), "w", 1)
        >>> writer = Writer()
        >>> written = writer.expression(pos(1 - w))
        >>> writer.leaves[w].value = np.array([0.0, 2.0])
        >>> written.value
        array([1., 0.])
        """
        if root not in self._memory:
            self._memory[root] = self._write(root)
        return self._memory[root]

    def _write(self, node: Expression) -> Any:
        if isinstance(node, Constant):
            return cp.Constant(node.value)
        if node in self.leaves:
            return self.leaves[node]
        if isinstance(node, Variable):
            self.leaves[node] = variable_like(node)
            return self.leaves[node]
        if isinstance(node, Field):
            self.leaves[node] = cp.Parameter(node.shape, name=node.name)
            return self.leaves[node]
        atom = node.atom
        assert atom is not None
        if atom.writes is None:
            raise MissingRule(
                f"{atom.name} has no conic form", node, "solve with the first-order backend, which needs none"
            )
        return atom.writes(cp, node, [self.expression(argument) for argument in node.args])

    def constraint(self, constraint: Constraint) -> cp.Constraint:
        """Return the CVXPY constraint."""
        parts = [self.expression(argument) for argument in constraint.args]
        kind = constraint.kind
        if kind == "equality":
            return parts[0] == parts[1]
        if kind == "inequality":
            return parts[0] <= parts[1]
        if kind == "semidefinite":
            return parts[0] >> 0
        if kind == "second-order cone":
            return cp.SOC(parts[0], parts[1], axis=constraint.options[0])
        if kind == "exponential cone":
            return cp.ExpCone(*parts)
        return cp.PowCone3D(*parts, np.array(constraint.options))


def variable_like(variable: Variable) -> cp.Variable:
    """Return a fresh CVXPY variable with the name, the shape and the attributes of one of the core's."""
    attributes: dict[str, Any] = {k: [*v] if k == "bounds" else v for k, v in variable.attributes.items()}
    return cp.Variable(variable.shape, name=variable.name, **attributes)


class ConicProgram:
    """A small convex program without data; what the solver says of its answer is not believed by anybody."""

    def __init__(self, goal: Expression, constraints: Sequence[Constraint]) -> None:
        self._writer = Writer()
        smallest = cp.Minimize(self._writer.expression(goal))
        self._problem = cp.Problem(smallest, [self._writer.constraint(constraint) for constraint in constraints])

    def solve(self, fields: Mapping[Expression, Any]) -> dict[str, Any] | None:
        """Return the variables where the goal is least, by name, for some values of its fields; None if there is no answer."""
        leaves = self._writer.leaves
        for leaf, value in fields.items():
            leaves[leaf].value = value
        try:
            self._problem.solve(solver=cp.CLARABEL)
        except cp.SolverError:
            return None
        if self._problem.status != cp.OPTIMAL:
            return None
        return {leaf.name: leaves[leaf].value for leaf in leaves if isinstance(leaf, Variable)}
