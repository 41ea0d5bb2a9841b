"""Medians of alternating repetitions, and the limits of the machine."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks import Run

__all__ = ["Row", "compare", "seconds"]


@dataclass(frozen=True)
class Row:
    """One line of the table: medians of one run in the unit.

    `most` is the goal: for the ratio to the reference, or without one for the value.
    """

    case: str
    measured: str
    value: float
    reference: float | None = None
    unit: str = "s"
    most: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Value over reference."""
        return None if self.reference is None else self.value / self.reference

    @property
    def goal(self) -> str:
        """What was aimed at."""
        what = "<=" if self.reference is None else "ratio <="
        return "" if self.most is None else f"{what} {self.most:g}"

    @property
    def reached(self) -> bool:
        return self.most is None or (self.value if self.ratio is None else self.ratio) <= self.most


def seconds(function: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    """Time of one call, by the clock on the wall unless another one is given."""
    start = clock()
    function()
    return clock() - start


def compare(
    functions: dict[str, Callable[[], Any]],
    repetitions: int,
    budget: float = 60.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median times of several functions, called in turns, so that what else the machine does hits all of them alike.

    After one call of each that is not counted, there are up to so many turns, fewer if the budget (in seconds) is spent.
    """
    for function in functions.values() if not Run.small else ():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    started = time.perf_counter()
    for turn in range(repetitions):
        for name, function in functions.items():
            times[name].append(seconds(function, clock))
        if turn >= 2 and time.perf_counter() - started > budget:
            break
    return {name: median(found) for name, found in times.items()}
