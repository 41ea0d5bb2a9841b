"""Conic solvers through CVXPY, for small batches: as a backend with certified answers, and for baselines."""

from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np

from dpconvex.data.columns import dense
from dpconvex.errors import MissingRule, NotConverged, TemplateError
from dpconvex.expressions.expression import Expression
from dpconvex.expressions.to_cvxpy import Writer, solve_quietly, variable_like
from dpconvex.model.batch_program import perturbed_program
from dpconvex.optim.certify import FirstOrder, certify
from dpconvex.optim.problem import Problem, Solution
from dpconvex.util.arguments import Kind, whole
from dpconvex.util.arrays import Array

POLISH_STEPS = 20000  # Unless the user gives fewer
# Options for baselines: as accurate as possible; the gap shows a lower accuracy.
OPTIONS = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-10, "max_iter": 300}
TOO_LARGE = "the solver fails because losses are too large. Use other units, such as thousands of dollars"
# Otherwise residuals of 1e5 pass for infeasibility.
STRICT = {"tol_infeas_abs": 1e-14, "tol_infeas_rel": 1e-14}
# Further options if the last digits defeat the solver; the gap is measured afterwards, whatever its status.
GAP_ENOUGH, GAP_TOO_LARGE = 1e-6, 1e-2  # Gaps of the mean objective: small enough to stop, and too large for an answer
OTHERWISE: tuple[dict[str, float], ...] = (
    {},
    {"min_terminate_step_length": 1e-8, "min_switch_step_length": 0.01},
    {"max_step_fraction": 0.7},
    {"static_regularization_constant": 1e-10},
    {"tol_gap_abs": 1e-8, "tol_gap_rel": 1e-8, "tol_feas": 1e-8},
)


class SolverFailed(NotConverged):
    """A solver raised an error or found no point; it may succeed on a neighbour's program."""


@dataclass(frozen=True, init=False)
class ConicSolver:
    """Solve by a conic solver through CVXPY.

    The solver's answer is improved to the tolerance.  The first-order backend replaces a solver that raises an error, returns no
    point, stops at a limit of its own, or cannot handle an atom (your own `Atom`), because whether there is a release must not
    depend on one record.  A limit that you set, on iterations or time, is kept: a fit that reaches it raises an error.

    Parameters
    ----------
    solver : str
        An installed solver that CVXPY finds, such as "CLARABEL" or "SCS".
    polish_steps : int
        Largest number of steps that improve the solver's answer to the tolerance.  With 0 its answer must meet the tolerance.
    **options
        Options of the solver, such as ``max_iter=100``; hashable.

    Raises
    ------
    TemplateError
        If the solver is not installed or an option is not hashable.

    Examples
    --------
    >>> ConicSolver(solver="SCS", eps=1e-9)
    ConicSolver(solver='SCS', polish_steps=20000, options=(('eps', 1e-09),))
    """

    solver: str
    polish_steps: int
    options: tuple[tuple[str, Hashable], ...]

    def __init__(self, solver: str = "CLARABEL", polish_steps: int = POLISH_STEPS, **options: Hashable) -> None:
        installed = sorted(cp.installed_solvers())
        if not isinstance(solver, str) or solver.upper() not in installed:
            raise TemplateError(f"unknown solver {solver!r}; installed are {', '.join(installed)}.")
        whole(0).check("ConicSolver", polish_steps=polish_steps)
        plain = Kind("a plain value", lambda value: isinstance(value, Hashable))
        plain.check("ConicSolver", **{f"the option {name}": value for name, value in options.items()})
        self.__dict__.update(solver=solver.upper(), polish_steps=polish_steps, options=tuple(sorted(options.items())))

    def solve(self, problem: Problem, tolerance: float = 1e-6) -> Solution:
        with suppress(SolverFailed, MissingRule):
            start, steps = self.point(problem), self.polish_steps
            with suppress(*([NotConverged] if steps >= POLISH_STEPS else [])):  # the start may be far away
                return certify(problem, start, tolerance, steps)
        return FirstOrder().solve(problem, tolerance)

    def point(self, problem: Problem) -> Array:
        """Return the solver's answer, without a certificate."""
        # Fresh variables: no object that outlives this call may hold values that depend on the data.
        fresh = {name: variable_like(block.variable) for name, block in problem.space.blocks.items()}
        program = perturbed_program(problem, fresh)
        options: dict[str, Any] = dict(self.options)
        try:
            solution = solve_quietly(program, self.solver, options)[2]
        except Exception as error:  # solvers raise errors of any type
            raise SolverFailed(f"the solver {self.solver} failed. Nothing is released.") from error
        if reached_limit(solution, options):
            why = "stopped at your limit on iterations or time; nothing is released"
            raise NotConverged(f"the solver {self.solver} {why}. Raise the limit, or use the first-order backend.")
        return packed(problem, fresh, program)


def packed(problem: Problem, fresh: dict[str, cp.Variable], program: cp.Problem) -> Array:
    values = {name: variable.value for name, variable in fresh.items()}
    if any(value is None or not np.isfinite(value).all() for value in values.values()):
        raise SolverFailed(f"the solver returned no point (its status: {program.status}). Nothing is released.")
    return problem.space.pack(values)


def reached_limit(solution: Any, options: Mapping[str, Any]) -> bool:
    """Return whether a solver stopped at a user's limit on iterations or time, rather than at a limit of its own."""
    done = {"iter": solution.attr.get(cp.settings.NUM_ITERS), "time": solution.attr.get(cp.settings.SOLVE_TIME)}
    pairs = [(done[word], limit) for name, limit in options.items() for word in done if word in name]
    reached = any(spent is not None and spent >= limit for spent, limit in pairs)
    return reached and solution.status != cp.settings.OPTIMAL


def check_solver_options(solver: str, options: tuple[tuple[str, Hashable], ...]) -> None:
    """Raise `TemplateError` if a solver rejects its options, by solving a public program with one variable."""
    number = cp.Variable()
    program = cp.Problem(cp.Minimize(cp.square(number)), [number >= 1])
    try:
        solve_quietly(program, solver, dict(options))
    except Exception as error:
        raise TemplateError(
            f"ConicSolver: the solver {solver} fails even at minimising x^2 over x >= 1 ({error}), with the options "
            f"{dict(options)!r}. Give it options that it knows, with values that they allow, or use another solver."
        ) from error


def solve_with_gap(problem: Problem) -> tuple[Array, float]:
    """Return a point, shape (dim,), and a bound on its objective (a sum) minus the least objective."""
    fresh = {name: variable_like(block.variable) for name, block in problem.space.blocks.items()}
    program = whole_program(problem, fresh)
    best, said = None, ""
    for more in OTHERWISE:
        try:
            data, found, _ = solve_quietly(program, cp.CLARABEL, {**OPTIONS, **STRICT, **more, "accept_unknown": True})
        except (cp.SolverError, ValueError) as error:
            said = str(error)
            continue
        if program.status == cp.INFEASIBLE:
            raise NotConverged(f"{TOO_LARGE if problem.feasible.is_space else 'the constraints are infeasible'}.")
        if program.status == cp.UNBOUNDED:
            raise NotConverged("the objective decreases without end: add a regularizer, or bound the parameters.")
        theta = packed(problem, fresh, program)
        if problem.feasible.has_projection:
            theta = problem.feasible.project(theta)
        gap = solver_gap(data, found) + max(problem.value(theta) - float(np.asarray(program.value)), 0.0)
        best = (theta, gap) if best is None or gap < best[1] else best
        if best[1] <= GAP_ENOUGH * problem.batch.size:
            return best
        said = f"its best point has a proved gap of {best[1] / problem.batch.size:.2g} in the mean objective"
    if best is None or best[1] > GAP_TOO_LARGE * problem.batch.size:
        raise NotConverged(f"the solver failed: {said}. Use other units, or check the constraints.")
    return best


def solver_gap(data: dict[str, Any], found: Any) -> float:
    """Return the gap between a primal and a dual answer.

    Let x and z be answers of ``min x'Px/2 + q'x, Ax + s = b, s in C``, and r = Px + q + A'z.  The least value is above ``-b'z
    - x'Px/2 + r'x*``.  It is assumed, not proved, that x* is at most twice as large as x.
    """
    x, z = np.asarray(found.x), np.asarray(found.z)
    q, matrix, b = np.asarray(data["c"]), data["A"], np.asarray(data["b"])
    bent = data["P"] @ x if data.get("P") is not None else np.zeros_like(x)
    missed = np.abs(bent + q + matrix.T @ z)
    return max(float(x @ bent + q @ x + b @ z), 0.0) + float(missed @ np.maximum(2 * np.abs(x), np.abs(x).mean()))


def whole_program(problem: Problem, fresh: dict[str, cp.Variable]) -> cp.Problem:
    """Return the program in the given variables, record by record if an atom takes no whole columns."""
    try:
        return perturbed_program(problem, fresh)
    except MissingRule:
        columns = {name: dense(column) for name, column in problem.batch.fields.items()}
        leaves: dict[Expression, Any] = {block.variable: fresh[name] for name, block in problem.space.blocks.items()}
        writer, losses = Writer(leaves), []
        for group, loss in enumerate(problem.template.losses):
            for row in problem.batch.rows(group):
                record: dict[Expression, Any] = {f: cp.Constant(columns[f.name][row]) for f in loss.fields}
                losses.append(Writer({**leaves, **record}).expression(loss))
        objective = cp.sum(cp.hstack(losses)) + problem.size * writer.expression(problem.template.regularizer)
        return cp.Problem(cp.Minimize(objective), [writer.constraint(c) for c in problem.template.constraints])
