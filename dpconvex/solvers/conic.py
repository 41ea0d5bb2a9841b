"""The reference backend: an interior-point or splitting solver through CVXPY, certified afterwards.

It is for small batches.  What the solver says about its answer is not believed: the answer is polished and certified by
`certify`, or refused.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import cvxpy as cp
import numpy as np
from numpy.typing import NDArray

from dpconvex.core.to_cvxpy import solve_quietly, variable_like
from dpconvex.errors import MissingRule, NotConverged, TemplateError
from dpconvex.language.batch_program import perturbed_program
from dpconvex.solvers.certify import certify
from dpconvex.solvers.first_order import FirstOrder
from dpconvex.solvers.problem import Problem, Solution

Array = NDArray[np.float64]


class SolverFailed(NotConverged):
    """A solver raised an error or found no point: it need not fail on the program of a neighbour."""


@dataclass(frozen=True, init=False)
class Conic:
    """Solve through CVXPY.

    Where the solver raises an error, returns no point, or cannot be given an atom of the loss (an own `Atom`), the
    first-order backend answers: whether there is a release must not depend on one record.

    Parameters
    ----------
    solver : str
        A solver that CVXPY finds installed, such as "CLARABEL" or "SCS".
    polish_steps : int
        How many steps may be spent on bringing the solver's answer to the tolerance; with 0 it must be there already.
    **options
        Options of the solver, such as ``max_iter=100``; hashable.

    Raises
    ------
    TemplateError
        If the solver is not installed or an option is not hashable.

    Examples
    --------
    >>> Conic(solver="SCS", eps=1e-9)
    Conic(solver='SCS', polish_steps=20000, options=(('eps', 1e-09),))
    """

    solver: str
    polish_steps: int
    options: tuple[tuple[str, Hashable], ...]

    def __init__(self, solver: str = "CLARABEL", polish_steps: int = 20000, **options: Hashable) -> None:
        installed = sorted(cp.installed_solvers())
        if not isinstance(solver, str) or solver.upper() not in installed:
            raise TemplateError(f"unknown solver {solver!r}; installed are {', '.join(installed)}.")
        if not isinstance(polish_steps, int) or polish_steps < 0:
            raise TemplateError(f"Conic: polish_steps must be a non-negative integer, not {polish_steps!r}.")
        for name, value in options.items():
            if not isinstance(value, Hashable):
                raise TemplateError(f"Conic: the option {name} must be a plain value, not {value!r}.")
        object.__setattr__(self, "solver", solver.upper())
        object.__setattr__(self, "polish_steps", polish_steps)
        object.__setattr__(self, "options", tuple(sorted(options.items())))

    def solve(self, problem: Problem, tolerance: float = 1e-6) -> Solution:
        """Return a solution certified to the tolerance.

        Raises
        ------
        NotConverged
            If K has no projection to certify with, the solver stops at its limit, or the tolerance is not reached.
        """
        if problem.feasible.obstacle is not None:
            raise NotConverged(
                f"the answer cannot be certified, because {problem.feasible.obstacle}. Nothing is released."
            )
        try:
            start = self.point(problem)
        except (SolverFailed, MissingRule):
            return FirstOrder().solve(problem, tolerance)
        return certify(problem, start, tolerance, self.polish_steps)

    def check(self) -> None:
        """Refuse, without data, options that the solver does not take.

        Raises
        ------
        TemplateError
        """
        try_out(self.solver, self.options, repr(self.options))

    def point(self, problem: Problem) -> Array:
        """Return the solver's own answer, uncertified, shape (dim,)."""
        # Fresh variables: nothing that outlives this call comes to hold values that depend on the data.
        fresh = {name: variable_like(block.variable) for name, block in problem.space.blocks.items()}
        program = perturbed_program(problem, fresh)
        options: dict[str, Any] = dict(self.options)
        try:
            solution = solve_quietly(program, self.solver, options)[2]
        except Exception as error:  # what a solver raises is up to it
            raise SolverFailed(f"the solver {self.solver} failed: {error}. Nothing is released.") from error
        values = {name: variable.value for name, variable in fresh.items()}
        if stopped_early(solution, options):
            raise NotConverged(
                f"the solver {self.solver} stopped at its limit, before it was done (its status: {program.status}); nothing is "
                "released. Allow it more iterations, or use the first-order backend."
            )
        if any(value is None or not np.isfinite(value).all() for value in values.values()):
            raise SolverFailed(
                f"the solver {self.solver} returned no point (its status: {program.status}). Nothing is released."
            )
        return problem.space.pack(values)


@lru_cache
def try_out(solver: str, options: tuple[tuple[str, Hashable], ...], written: str) -> None:
    """Solve a public program of one number; `written` tells apart options that are equal but not alike, as 1 and True."""
    number = cp.Variable()
    program = cp.Problem(cp.Minimize(cp.square(number)), [number >= 1])
    try:
        solve_quietly(program, solver, dict(options))
    except Exception as error:
        raise TemplateError(
            f"Conic: the solver {solver} fails even at minimising x^2 over x >= 1 ({error}), with the options "
            f"{dict(options)!r}. Give it options that it knows, with values that they allow, or use another solver."
        ) from error


def stopped_early(solution: Any, options: Mapping[str, Any]) -> bool:
    """Say whether a solver ran into its limit of iterations or time; what it holds then is no answer, near as it may be."""
    if solution.status == cp.settings.USER_LIMIT:
        return True
    done = solution.attr.get(cp.settings.NUM_ITERS)
    allowed = [options[name] for name in ("max_iter", "max_iters") if name in options]
    return bool(allowed) and solution.status != cp.settings.OPTIMAL and done is not None and done >= allowed[0]
