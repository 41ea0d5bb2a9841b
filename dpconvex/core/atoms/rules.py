"""What the rules of several atoms share: ranges they can use or must refuse, citations."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.core.abstract_values import Scalar
from dpconvex.core.expression import Expression
from dpconvex.core.intervals import Interval
from dpconvex.errors import NotPrivate

Array = NDArray[np.float64]
Entries = list[Scalar]

CALCULUS = "elementary calculus"
NO_SMOOTHNESS = "or use a mechanism that needs no smoothness (dp.OutputPerturbation, dp.NoisyGradientDescent)"
BOUND_IT = "bound the parameters (a ball, a box) so that the argument is bounded, or use a Lipschitz loss"
# Ranges are exact but for this fraction of their larger end.
ROUNDING = 1e-14


def behind(entry: Scalar) -> Scalar:
    """Return m behind an entry pos(m) for outer functions of slope 0 at 0, whose composition with pos has no kink."""
    return entry.behind or entry


def entrywise(one: Callable[[Expression, Scalar], Scalar]) -> Callable[[Expression, list[Entries]], Entries]:
    """Return the rule that treats each entry of one argument by itself."""
    return lambda expression, arguments: [one(expression, entry) for entry in arguments[0]]


def total(entries: Sequence[Scalar]) -> Scalar:
    """Add entries up."""
    return reduce(operator.add, entries) if entries else Scalar(Interval(0.0, 0.0))


def image(function: Callable[[float], Any], interval: Interval) -> Interval:
    return Interval(float(function(interval.low)), float(function(interval.high))).rounded()


def bounded(entry: Scalar, what: str) -> Interval:
    """Return an entry's range, or refuse if it is unbounded."""
    if not (np.isfinite(entry.value.low) and np.isfinite(entry.value.high)):
        raise NotPrivate(f"{what} is Lipschitz only on bounded sets, and its argument is unbounded", None, BOUND_IT)
    return entry.value


def positive(entry: Scalar, what: str, part: str = "argument") -> float:
    """Return a positive lower bound of an entry, or refuse."""
    low = shrunk(entry.value)
    if not low > 0:
        raise NotPrivate(
            f"{what} is Lipschitz only where its {part} keeps away from zero, and it goes down to {entry.value.low:.4g}",
            None,
            f"shift the {part}, or bound the parameters so that it has a positive lower bound",
        )
    return low


def shrunk(value: Interval) -> float:
    """Return a lower end less what rounding may have added to it: near zero it may be the difference of large numbers."""
    return value.low - ROUNDING * abs(value.high) if np.isfinite(value.high) else value.low


def at_most(high: Array) -> Array:
    """Return upper bounds of arguments that are positive where their atom is defined; infinite where no argument is."""
    return np.where(high > 0, high, np.inf)


def claimed(weights: Array, curvature: Array) -> Array | None:
    """Return least curvatures of weighted entries, 0 where nothing finite is known; None if they are 0 everywhere.

    Concave atoms have weights that are not positive, so the sizes of both are what counts.
    """
    with np.errstate(all="ignore"):
        bend = np.abs(weights) * curvature
    bend = np.where(np.isfinite(bend), bend, 0.0)
    return bend if bend.any() else None
