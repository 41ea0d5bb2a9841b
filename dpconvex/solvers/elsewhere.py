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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.packing import packed
from dpconvex.errors import TemplateError
from dpconvex.solvers.certify import remembered
from dpconvex.solvers.problem import Problem, Solution

Array = NDArray[np.float64]
Chosen = NDArray[np.bool_]

# What problems share; the rest is small.
SHARED = ("template", "space", "feasible", "batch", "projector")
# So many of them are kept as bytes.
SENT = 4


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
        ``ask(name, payload, job)`` returns what `dpconvex.solvers.errands.done` returns in another process.
    backend : Backend
        Begins anew with every problem.
    parcels : Parcels
    """

    def __init__(self, ask: Callable[..., Any], backend: Any, parcels: Parcels) -> None:
        self.ask, self.backend, self.parcels = ask, backend, parcels

    def solve(self, problem: Problem, tolerance: float) -> Solution:
        """Return a solution that was certified elsewhere, or raise `NotConverged`."""
        return remembered(Solution(*self._there(problem, "solve", self.backend, tolerance)), problem)

    def loss_gradient(self, problem: Problem, theta: Array) -> Array:
        return self._gradient(problem, theta)

    def clipped_gradient(self, problem: Problem, theta: Array, clip: float, chosen: Chosen | None) -> Array:
        """See `BatchedLoss.clipped_gradient`."""
        bits = None if chosen is None else (np.packbits(chosen), len(chosen))
        return self._gradient(problem, theta, clip, bits)

    def _gradient(self, problem: Problem, theta: Array, *clipping: Any) -> Array:
        return np.asarray(self._there(problem, "gradient", theta, *clipping))

    def _there(self, problem: Problem, what: str, *arguments: Any) -> Any:
        """Have something done with a problem elsewhere, where what is not known is sent."""
        name, payload = self.parcels.of(problem)
        own = {f.name: getattr(problem, f.name) for f in fields(problem) if f.name not in SHARED}
        job = sendable((what, own, arguments))
        found = self.ask(name, None, job)
        return self.ask(name, payload, job)[0] if found is None else found[0]


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
