"""The built-in solver: compiled gradients, projections, and a certificate at every promising step."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import TemplateError
from dpconvex.solvers.certify import certify
from dpconvex.solvers.problem import Problem, Solution


@dataclass(frozen=True)
class FirstOrder:
    """Solve from zero, by quasi-Newton steps."""

    max_steps: int = 20000

    def __post_init__(self) -> None:
        if not isinstance(self.max_steps, int) or self.max_steps < 1:
            raise TemplateError(f"FirstOrder: max_steps must be a positive integer, not {self.max_steps!r}.")

    def solve(self, problem: Problem, tolerance: float = 1e-6) -> Solution:
        """Return a solution certified to the tolerance, or raise `NotConverged`."""
        return certify(problem, np.zeros(problem.space.dim), tolerance, self.max_steps)


class Warm:
    """Solve from the last answer: for many fits of one batch."""

    def __init__(self) -> None:
        self.last: NDArray[np.float64] | None = None

    def solve(self, problem: Problem, tolerance: float) -> Solution:
        """Return a solution certified to the tolerance, or raise `NotConverged`."""
        start = self.last if self.last is not None else np.zeros(problem.space.dim)
        solution = certify(problem, start, tolerance)
        self.last = solution.theta
        return solution
