"""The built-in solver, started from its last answer: for many fits of one batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpconvex.solvers.certify import certify
from dpconvex.solvers.problem import Problem, Solution

__all__ = ["Warm"]


class Warm:
    """Solve by quasi-Newton steps from the last answer, if it has the problem's size."""

    def __init__(self) -> None:
        self.last: NDArray[np.float64] | None = None

    def solve(self, problem: Problem, tolerance: float) -> Solution:
        """Return a solution certified to the tolerance, or raise `NotConverged`."""
        start = self.last if self.last is not None else np.zeros(problem.space.dim)
        solution = certify(problem, start, tolerance)
        self.last = solution.theta
        return solution
