"""Problems that are solved, and certified, in another process; or gradients that come from there.

The noise of a problem was drawn before, and that of gradients is drawn where they come to: a worker draws none.  What many
problems share (template, records, the set K) travels once to each worker, under a name of its own; a worker that does not know
the name says so, and is sent it.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields
from pickle import PicklingError
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.packing import packed, unpacked
from dpconvex.errors import TemplateError
from dpconvex.solvers.certify import remembered
from dpconvex.solvers.problem import Problem, Solution

__all__ = ["Elsewhere", "Parcels", "sendable"]

Array = NDArray[np.float64]
Chosen = NDArray[np.bool_]

# What problems share; the rest is small.
SHARED = ("template", "space", "feasible", "batch", "projector")
# So many of them are kept, as bytes where they come from and as objects where they go.
SENT, HELD = 4, 2
_HELD: OrderedDict[str, dict[str, Any]] = OrderedDict()
# Fits of one process share what was prepared for their records: they take turns.
_TURN = Lock()


class Parcels:
    """What was packed last, by what it was made of, with its name."""

    def __init__(self) -> None:
        self.known: OrderedDict[tuple[int, ...], tuple[list[Any], str, bytes]] = OrderedDict()

    def of(self, problem: Problem) -> tuple[str, bytes]:
        """Return the name and the bytes of what a problem shares with others of its template and records."""
        # Another set K is the same one, for other records: `FeasibleSet.apart`.
        kept = [getattr(problem, name) for name in SHARED if name != "feasible"]
        key = tuple(map(id, kept))
        if key not in self.known:
            bare = problem.template.with_parts(predict=None, decision=None, probabilities=None, source=None)
            parts = {name: getattr(problem, name) for name in SHARED} | {"template": bare}
            self.known[key] = kept, secrets.token_hex(16), sendable(parts)
            if len(self.known) > SENT:
                self.known.popitem(last=False)
        self.known.move_to_end(key)
        return self.known[key][1:]


class Elsewhere:
    """A backend that has another backend solve the problems of one fit elsewhere.

    Parameters
    ----------
    ask : callable
        ``ask(function, *arguments)`` returns what a function of a module returns in another process.
    backend : Backend
        Begins anew with every problem.
    parcels : Parcels
    """

    def __init__(self, ask: Callable[..., Any], backend: Any, parcels: Parcels) -> None:
        self.ask, self.backend, self.parcels = ask, backend, parcels
        self.passes = 0

    def solve(self, problem: Problem, tolerance: float) -> Solution:
        """Return a solution that was certified elsewhere, or raise `NotConverged`."""
        return remembered(Solution(*self._there(problem, solved, self.backend, tolerance)), problem)

    def gradient(self, problem: Problem, theta: Array) -> Array:
        """See `Problem.gradient`."""
        return self._gradient(problem, theta)

    def clipped_gradient(self, problem: Problem, theta: Array, clip: float, chosen: Chosen | None) -> Array:
        """See `BatchedLoss.clipped_gradient`."""
        bits = None if chosen is None else (np.packbits(chosen), len(chosen))
        return self._gradient(problem, theta, clip, bits)

    def _gradient(self, problem: Problem, theta: Array, *clipping: Any) -> Array:
        self.passes += 1
        return np.asarray(self._there(problem, sloped, self.passes - 1, theta, *clipping))

    def _there(self, problem: Problem, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a problem elsewhere, which is sent what it does not know."""
        name, payload = self.parcels.of(problem)
        own = {f.name: getattr(problem, f.name) for f in fields(problem) if f.name not in SHARED}
        job = sendable((function, own, arguments))
        found = self.ask(done, name, None, job)
        return self.ask(done, name, payload, job)[0] if found is None else found[0]


def sendable(value: Any) -> bytes:
    """Pack something, or say why it cannot travel."""
    try:
        return packed(value)
    except (PicklingError, TypeError, AttributeError, RecursionError) as error:
        raise TemplateError(
            f"workers: something that the fits need cannot be sent to another process ({error}). Functions that are not "
            "defined in a module, such as the one of `Chunks`, travel where cloudpickle is installed; open files and "
            "connections do not. Or fit without workers."
        ) from error


def done(name: str, payload: bytes | None, job: bytes) -> tuple[Any] | None:
    """Call a function of a problem in this process; None if what it shares with others is not known here."""
    with _TURN:
        if payload is not None:
            _HELD[name] = unpacked(payload)
            if len(_HELD) > HELD:
                _HELD.popitem(last=False)
        if name not in _HELD:
            return None
        _HELD.move_to_end(name)
        function, own, arguments = unpacked(job)
        shared = _HELD[name]
        # The projections of K begin where the last ones ended: not for another fit.
        return (function(Problem(**{**shared, "feasible": shared["feasible"].apart()}, **own), *arguments),)


def solved(problem: Problem, backend: Any, tolerance: float) -> tuple[Array, float, int]:
    """Solve a problem from the beginning."""
    from dpconvex.solvers import backend as backends

    problem.loss.begin()
    solution = backends.solve(problem, backend, tolerance)
    return solution.theta, solution.distance_bound, solution.evaluations


def sloped(problem: Problem, passes: int, theta: Array, clip: float | None = None, bits: Any = None) -> Array:
    """Return a gradient, after so many others of the same fit."""
    problem.loss.begin(passes)
    if clip is None:
        return problem.gradient(theta)
    chosen = None if bits is None else np.unpackbits(bits[0], count=bits[1]).astype(bool)
    return problem.loss.clipped_gradient(theta, clip, chosen)
