"""What the rules of several atoms share: ranges they can use or must refuse, entries along axes, citations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dpconvex.core.abstract_values import Scalar
from dpconvex.core.expression import Expression
from dpconvex.core.intervals import Interval
from dpconvex.errors import NotPrivate

Entries = list[Scalar]

CALCULUS = "elementary calculus"
NO_SMOOTHNESS = "or use a mechanism that needs no smoothness (dp.OutputPerturbation, dp.NoisyGradientDescent)"
BOUND_IT = "bound the parameters (a ball, a box) so that the argument is bounded, or use a Lipschitz loss"
# Ranges are exact but for this fraction of their larger end.
ROUNDING = 1e-14


class PositivePart(Scalar):
    """The entry pos(m), remembering m: its kink vanishes under an outer function of slope 0 at 0."""

    behind: Scalar


def behind(entry: Scalar) -> Scalar:
    """Return m behind an entry pos(m) for outer functions of slope 0 at 0, whose composition with pos has no kink."""
    return entry.behind if isinstance(entry, PositivePart) else entry


def entrywise(one: Callable[[Expression, Scalar], Scalar]) -> Callable[[Expression, list[Entries]], Entries]:
    """Return the rule that treats each entry of one argument by itself."""
    return lambda expression, arguments: [one(expression, entry) for entry in arguments[0]]


def along_axis(expression: Expression, entries: Entries) -> list[Entries]:
    """Group the entries of the first argument by what is reduced to one entry, in column order of the result."""
    axis = expression.option("axis")
    numbers = np.arange(len(entries)).reshape(expression.args[0].shape, order="F")
    lines = np.moveaxis(numbers, axis, range(-len(axis), 0)).reshape(expression.size, -1, order="F")
    return [[entries[k] for k in line] for line in lines]


def image(function: Callable[[float], Any], interval: Interval) -> Interval:
    """Return the image of an interval under a non-decreasing function."""
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
