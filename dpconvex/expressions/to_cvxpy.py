"""Converts core expressions and constraints to CVXPY, for conic solvers and for users."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np

from dpconvex.errors import MissingRule
from dpconvex.expressions.atoms.arrangement import broadcast, reshape
from dpconvex.expressions.expression import Constant, Constraint, Expression, Field, Variable, constant
from dpconvex.expressions.parameter_space import Space
from dpconvex.util.runtime import once
from dpconvex.util.silence import silence

# Functions that write each kind of constraint, from its arguments and options.
KINDS: dict[str, Callable[..., cp.Constraint]] = {
    "equality": operator.eq,
    "inequality": operator.le,
    "semidefinite": lambda matrix: matrix >> 0,
    "second-order cone": cp.SOC,
}


@dataclass(eq=False)
class Writer:
    """Converts expressions that share variables; equal nodes become one CVXPY expression."""

    # CVXPY expressions for variables and fields; missing ones are created.
    leaves: dict[Expression, Any] = field(default_factory=dict)

    @once
    def expression(self, node: Expression) -> Any:
        if isinstance(node, Constant):
            return cp.Constant(node.value)
        if isinstance(node, Variable | Field):
            if node not in self.leaves:
                new = variable_like(node) if isinstance(node, Variable) else cp.Parameter(node.shape, name=node.name)
                self.leaves[node] = new
            return self.leaves[node]
        atom = node.operation
        if atom.to_cvxpy is None:
            raise MissingRule(
                f"{atom.name} has no conic form",
                node,
                "bound all parameters, as by constraints=[cp.norm(w) <= 10], and add 1e-6 * cp.sum_squares(w) of each "
                "to the regularizer, for a first-order method",
            )
        return atom.to_cvxpy(cp, node, [self.expression(argument) for argument in node.args])

    def constraint(self, constraint: Constraint) -> cp.Constraint:
        parts = [self.expression(argument) for argument in constraint.args]
        return KINDS[constraint.kind](*parts, *constraint.options)


def variable_like(variable: Variable) -> cp.Variable:
    attributes: dict[str, Any] = {k: [*v] if k == "bounds" else v for k, v in variable.attributes.items()}
    return cp.Variable(variable.shape, name=variable.name, **attributes)


def pose(space: Space, constraints: Sequence[Constraint], unit: float = 1.0) -> tuple[cp.Variable, Writer, list[Any]]:
    """Return coordinates theta, a writer and CVXPY constraints on ``unit * theta``, with the variables' attributes."""
    theta = cp.Variable(space.dim)
    writer = Writer()
    limits: list[Any] = []
    for block in space.blocks.values():
        leaf = cp.reshape((unit * block.lift) @ theta[block.slice], block.variable.shape, order="F")
        writer.leaves[block.variable] = leaf
        limits.extend(writer.constraint(constraint) for _, constraint in attribute_constraints(block.variable))
    return theta, writer, [*limits, *(writer.constraint(constraint) for constraint in constraints)]


@silence()
def solve_quietly(program: cp.Problem, solver: str, options: Mapping[str, Any] | None = None) -> tuple[Any, Any, Any]:
    """Solve without output, which could depend on the data; return the solver's input, its raw answer and the solution."""
    given = {name: value for name, value in (options or {}).items() if name not in ("verbose", "solver_verbose")}
    # CVXPY's default backend takes twice as long for whole batches.
    data, chain, inverse = program.get_problem_data(solver, solver_opts=given, canon_backend=cp.SCIPY_CANON_BACKEND)
    found = chain.solve_via_data(program, data, warm_start=False, verbose=False, solver_opts=given)
    solution = chain.invert(found, inverse)
    if solution.status in cp.settings.ERROR:
        raise cp.SolverError(f"the solver {solver} failed")
    program.unpack(solution)
    return data, found, solution


def attribute_constraints(variable: Variable) -> list[tuple[str, Constraint]]:
    has, name, zero = variable.attributes, variable.name, broadcast(0.0, variable.shape)
    found: list[tuple[str, Constraint]] = []
    for word, matrix in (("PSD", variable), ("NSD", -variable)):
        if word in has:
            kind, args = ("semidefinite", (matrix,)) if variable.size > 1 else ("inequality", (zero, matrix))
            found.append((f"{name} is {word}", Constraint(kind, args)))
    if "nonneg" in has or "pos" in has:
        found.append((f"{name} >= 0", Constraint("inequality", (zero, variable))))
    if "nonpos" in has or "neg" in has:
        found.append((f"{name} <= 0", Constraint("inequality", (variable, zero))))
    for k, bound in enumerate(has.get("bounds", ())):
        limit = np.broadcast_to(np.asarray(bound, dtype=float), variable.shape).reshape(-1, order="F")
        asked = np.flatnonzero(np.isfinite(limit))
        if len(asked):
            pair = constant(limit[asked]), reshape(variable, (variable.size,))[asked]
            found.append((f"{name} within its bounds", Constraint("inequality", pair[:: 1 - 2 * k])))
    return found
