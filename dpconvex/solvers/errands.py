"""What a worker does for `dpconvex.solvers.elsewhere`: it solves a problem, or sums up a gradient."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.packing import unpacked
from dpconvex.solvers.backend import solve
from dpconvex.solvers.problem import Problem

Array = NDArray[np.float64]

# What problems share is kept for so many of them.
HELD = 2
_HELD: OrderedDict[str, dict[str, Any]] = OrderedDict()
# Fits of one process share what was prepared for their records: they take turns.
_TURN = Lock()


def done(name: str, payload: bytes | None, job: bytes) -> tuple[Any] | None:
    """Do something with a problem in this process; None if what it shares with others is not known here."""
    with _TURN:
        if payload is not None:
            _HELD[name] = unpacked(payload)
            if len(_HELD) > HELD:
                _HELD.popitem(last=False)
        if name not in _HELD:
            return None
        _HELD.move_to_end(name)
        what, own, arguments = unpacked(job)
        shared = _HELD[name]
        problem = Problem(**shared, **own)
        return (ERRANDS[what](problem, *arguments),)


def solved(problem: Problem, backend: Any, tolerance: float) -> tuple[Array, float, int]:
    solution = solve(problem, backend, tolerance)
    return solution.theta, solution.distance_bound, solution.evaluations


def sloped(problem: Problem, theta: Array, clip: float | None = None, bits: Any = None) -> Array:
    if clip is None:
        return problem.loss_gradient(theta)
    chosen = None if bits is None else np.unpackbits(bits[0], count=bits[1]).astype(bool)
    return problem.loss.clipped_gradient(theta, clip, chosen)


ERRANDS: dict[str, Callable[..., Any]] = {"solve": solved, "gradient": sloped}
