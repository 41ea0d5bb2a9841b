"""Ways to solve a perturbed program: each gives a point, whose distance from the minimiser `certify` proves."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import DPConvexError, NotConverged, TemplateError
from dpconvex.optim.certify import FirstOrder, Warm, certify
from dpconvex.optim.conic import ConicSolver, try_out
from dpconvex.optim.problem import Problem, Solution
from dpconvex.util.silence import silence

# Steps that make up for what a certificate of the point alone asks more than that which a backend made on its copy of a problem.
RECHECK = 100
# Coordinates beyond this are no answer: squares of them overflow.
LARGEST = 1e100
BUILT_IN = {"conic": ConicSolver, "first-order": FirstOrder}


class Backend(Protocol):
    """Protocol of a backend: `solve` returns a solution certified to the tolerance, or raises `NotConverged`."""

    def solve(self, problem: Problem, tolerance: float) -> Solution: ...


def resolve_backend(backend: str | Backend | None) -> Backend:
    """Turn a name or a configured object into a backend."""
    if backend is None:
        return FirstOrder()
    if isinstance(backend, str) and backend in BUILT_IN:
        return BUILT_IN[backend]()
    if isinstance(backend, str | type) or not callable(getattr(backend, "solve", None)):
        known = ", ".join(map(repr, BUILT_IN))
        raise TemplateError(f"unknown backend {backend!r}; known are {known}, and objects with a method solve.")
    if isinstance(backend, ConicSolver):
        try_out(backend.solver, backend.options)
    return backend


def solve(problem: Problem, backend: str | Backend | None = None, tolerance: float = 1e-6) -> Solution:
    """Solve a problem to within a distance of its minimiser, or raise `NotConverged`, whatever the backend says."""
    chosen = resolve_backend(backend)
    if type(chosen) in (ConicSolver, FirstOrder, Warm):  # these leave a problem as it is, and end with `certify`
        # Not `chosen.solve`: an object can have a method of its own beside those of its class.
        return type(chosen).solve(chosen, problem, tolerance)
    return certify(problem, answer_of(chosen, problem, tolerance), tolerance, max_steps=RECHECK)


@silence()
def answer_of(backend: Backend, problem: Problem, tolerance: float) -> NDArray[np.float64]:
    """Let a backend from elsewhere solve a copy of a problem; returns its point, in memory of our own."""
    name = type(backend).__name__
    try:
        answer: Any = backend.solve(problem.copied(), tolerance).theta  # asked for once
        point = np.array(answer, dtype=float, copy=True, subok=False)
        if np.iscomplexobj(answer):
            raise TypeError("its numbers are complex")
    except DPConvexError:
        raise
    except Exception as error:  # what it says may tell about the data, as where it stopped in it may
        raise NotConverged(
            f"the backend {name} failed, or returned no Solution with a point ({type(error).__name__}); nothing is released. "
            "Its method solve(problem, tolerance) has to return a dpconvex.optim.problem.Solution, and cannot write to the "
            'problem, whose arrays are read-only. Mend it, or use one of the built-in ones, "first-order" or "conic".'
        ) from None
    if point.shape != (problem.space.dim,) or not np.abs(point).max(initial=0.0) < LARGEST:
        wanted = f"no finite point of {problem.space.dim} coordinates"
        raise NotConverged(f"the backend {name} returned {wanted}; nothing is released.")
    return point
