"""Backends that solve a perturbed program: each returns a point, and `certify` proves its distance from the minimiser."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpconvex.errors import DPConvexError, NotConverged, TemplateError
from dpconvex.optim.certify import FirstOrder, Warm, certify
from dpconvex.optim.conic import ConicSolver, check_solver_options
from dpconvex.optim.problem import Problem, Solution
from dpconvex.util.silence import silence

# Steps that `certify` may add to the point of a backend from outside: its certificate may be stricter than the backend's.
RECHECK = 100
# A point with larger coordinates is rejected: their squares could overflow.
MAX_COORDINATE = 1e100
BUILT_IN = {"conic": ConicSolver, "first-order": FirstOrder}


class Backend(Protocol):
    """Protocol of a backend: `solve` returns a solution certified to the tolerance, or raises `NotConverged`."""

    def solve(self, problem: Problem, tolerance: float) -> Solution: ...


def resolve_backend(backend: str | Backend | None) -> Backend:
    """Return the backend with this name, or the given object; raise `TemplateError` if it is no backend."""
    if backend is None:
        return FirstOrder()
    if isinstance(backend, str) and backend in BUILT_IN:
        return BUILT_IN[backend]()
    if isinstance(backend, str | type) or not callable(getattr(backend, "solve", None)):
        known = ", ".join(map(repr, BUILT_IN))
        raise TemplateError(f"unknown backend {backend!r}; known are {known}, and objects with a method solve.")
    if isinstance(backend, ConicSolver):
        check_solver_options(backend.solver, backend.options)
    return backend


def solve(problem: Problem, backend: str | Backend | None = None, tolerance: float = 1e-6) -> Solution:
    """Return a point within `tolerance` of the minimiser; raise `NotConverged` without a proof, whatever the backend claims."""
    chosen = resolve_backend(backend)
    if type(chosen) in (ConicSolver, FirstOrder, Warm):  # these do not change a problem, and end with `certify`
        return type(chosen).solve(chosen, problem, tolerance)
    return certify(problem, answer_of(chosen, problem, tolerance), tolerance, max_steps=RECHECK)


@silence()
def answer_of(backend: Backend, problem: Problem, tolerance: float) -> NDArray[np.float64]:
    """Return the point that an outside backend finds on a copy of the problem, in new memory."""
    name = type(backend).__name__
    try:
        answer: Any = backend.solve(problem.copied(), tolerance).theta  # read once: a property could change
        point = np.array(answer, dtype=float, copy=True, subok=False)
        if np.iscomplexobj(answer):
            raise TypeError("its numbers are complex")
    except DPConvexError:
        raise
    except Exception as error:  # its message, and the place where it stopped, may depend on the data
        raise NotConverged(
            f"the backend {name} failed, or returned no Solution with a point ({type(error).__name__}); nothing is released. "
            "Its method solve(problem, tolerance) has to return a dpconvex.optim.problem.Solution, and cannot write to the "
            'problem, whose arrays are read-only. Mend it, or use one of the built-in ones, "first-order" or "conic".'
        ) from None
    if point.shape != (problem.space.dim,) or not np.abs(point).max(initial=0.0) < MAX_COORDINATE:
        wanted = f"no finite point of {problem.space.dim} coordinates"
        raise NotConverged(f"the backend {name} returned {wanted}; nothing is released.")
    return point
