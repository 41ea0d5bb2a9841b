"""Minimisers of whatever CVXPY can solve, with the gap between primal and dual: for baselines, which promise nothing.

Neither a projection nor smoothness nor strong convexity is needed.  With x and z of the solver's program
``min x'Px/2 + q'x, Ax + s = b, s in C``, convexity puts ``-b'z - x'Px/2 + r'x*`` below the least value, where r = Px + q + A'z
is what the dual misses; x* is taken to be no larger than twice x, which is the only thing here that is not proved.
"""

from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from dpconvex.core.expression import Expression
from dpconvex.core.to_cvxpy import Writer, solve_quietly, variable_like
from dpconvex.errors import MissingRule, NotConverged
from dpconvex.language.batch_program import perturbed_program
from dpconvex.solvers.problem import Problem

Array = NDArray[np.float64]

# As far as the solver gets; if it gets less far, its gap says so.
OPTIONS = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-10, "max_iter": 300}


def least(problem: Problem) -> tuple[Array, float]:
    """Return a point, shape (dim,), and how far its objective (a sum) is above the least one at most."""
    fresh = {name: variable_like(block.variable) for name, block in problem.space.blocks.items()}
    program = whole_program(problem, fresh)
    try:
        data, found, _ = solve_quietly(program, cp.CLARABEL, {**OPTIONS, "accept_unknown": True})
    except (cp.SolverError, ValueError) as error:
        raise NotConverged(f"the solver failed: {error}. Check that the constraints can be satisfied.") from error
    if program.status in (cp.UNBOUNDED, cp.INFEASIBLE):
        raise NotConverged(
            "the objective has no least value: it decreases without end, or nothing satisfies the constraints. Add a "
            "regularizer, or bound the parameters."
            if program.status == cp.UNBOUNDED
            else "nothing satisfies the constraints."
        )
    values = {name: variable.value for name, variable in fresh.items()}
    if any(value is None or not np.isfinite(value).all() for value in values.values()):
        raise NotConverged(f"the solver returned no point (its status: {program.status}).")
    theta = problem.space.pack(values)
    if problem.feasible.has_projection:
        theta = problem.feasible.project(theta)
    moved = max(problem.value(theta) - float(np.asarray(program.value)), 0.0)
    return theta, solver_gap(data, found) + moved


def solver_gap(data: dict[str, Any], found: Any) -> float:
    """Return the gap between a primal and a dual answer, with an allowance for what the dual's equation misses."""
    x, z = np.asarray(found.x), np.asarray(found.z)
    q, matrix, b = np.asarray(data["c"]), data["A"], np.asarray(data["b"])
    bent = data["P"] @ x if data.get("P") is not None else np.zeros_like(x)
    missed = np.abs(bent + q + matrix.T @ z)
    return max(float(x @ bent + q @ x + b @ z), 0.0) + float(missed @ np.maximum(2 * np.abs(x), np.abs(x).mean()))


def whole_program(problem: Problem, fresh: dict[str, cp.Variable]) -> cp.Problem:
    """Write the objective and the constraints in the given variables; record by record where an atom takes no whole columns."""
    try:
        return perturbed_program(problem, fresh)
    except MissingRule:
        leaves: dict[Expression, Any] = {block.variable: fresh[name] for name, block in problem.space.blocks.items()}
        writer = Writer(leaves)
        losses = cp.sum(cp.hstack(one_by_one(problem, leaves)))
        objective = losses + problem.size * writer.expression(problem.template.regularizer)
        return cp.Problem(cp.Minimize(objective), [writer.constraint(c) for c in problem.template.constraints])


def one_by_one(problem: Problem, leaves: dict[Expression, Any]) -> list[Any]:
    """Write the loss of every record."""
    columns = {
        name: np.asarray(c.toarray() if hasattr(c, "toarray") else c) for name, c in problem.batch.fields.items()
    }
    written = []
    for group, loss in enumerate(problem.template.losses):
        for row in problem.batch.rows(group):
            record: dict[Expression, Any] = {field: cp.Constant(columns[field.name][row]) for field in loss.fields}
            written.append(Writer({**leaves, **record}).expression(loss))
    return written
