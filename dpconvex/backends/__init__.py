"""Ways to solve a perturbed program, all certified alike.

A backend turns a `Problem` into a point; `exactness` proves how far the point is from the minimiser, polishes it if that is too
far, and refuses to hand it on otherwise.  No backend's own word counts: an answer that was not certified here is before it
leaves.
"""

from __future__ import annotations

from typing import Protocol

from dpconvex.errors import TemplateError
from dpconvex.problem import Problem, Solution

__all__ = ["Backend", "resolve_backend", "solve"]


class Backend(Protocol):
    """What every backend offers."""

    def solve(self, problem: Problem, tolerance: float) -> Solution:
        """Return a solution certified to the tolerance, or raise `NotConverged`."""
        ...


def resolve_backend(backend: str | Backend | None) -> Backend:
    """Turn a name or a configured object into a backend.

    Parameters
    ----------
    backend : {"conic", "first-order"}, Backend or None
        None is the default, "first-order".

    Raises
    ------
    TemplateError
        If the name is not known, or the object is not a backend.
    """
    from dpconvex.backends.conic import Conic
    from dpconvex.backends.first_order import FirstOrder

    known = {"conic": Conic, "first-order": FirstOrder}
    if backend is None:
        return FirstOrder()
    if isinstance(backend, str):
        if backend not in known:
            raise TemplateError(f"unknown backend {backend!r}; known are {', '.join(map(repr, known))}.")
        return known[backend]()
    if isinstance(backend, type) or not callable(getattr(backend, "solve", None)):
        raise TemplateError(f"backend must be a name or a backend object, such as Conic(), not {backend!r}.")
    return backend


def solve(problem: Problem, backend: str | Backend | None = None, tolerance: float = 1e-6) -> Solution:
    """Solve a problem to a certified distance from its minimiser.

    Parameters
    ----------
    problem : Problem
    backend : str, Backend or None
        See `resolve_backend`.
    tolerance : float
        Largest distance from the exact minimiser, in the Euclidean norm of the coordinates.

    Returns
    -------
    Solution

    Raises
    ------
    NotConverged
        If the tolerance cannot be certified, whatever the backend says.
    TemplateError
        If the backend or an option of it is unknown.
    """
    from dpconvex.backends.exactness import certify, is_certified

    solution = resolve_backend(backend).solve(problem, tolerance)
    if is_certified(solution, problem):
        return solution
    checked = certify(problem, solution.theta, tolerance, max_steps=0)
    return Solution(checked.theta, checked.distance_bound, solution.evaluations)
