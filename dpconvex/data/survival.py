"""Survival records: times and events as the share that is lived through of each declared interval."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpconvex.util.arguments import require
from dpconvex.util.arrays import Array
from dpconvex.util.plain_data import is_real, is_whole


def ends_of(name: str, intervals: Any, high: float) -> Array:
    """Return the times at which intervals end, the last at `high`, from their number or from these times."""
    if isinstance(intervals, int | np.integer) and is_whole(intervals, 1):
        return np.linspace(0.0, high, int(intervals) + 1)[1:]
    ends = list(intervals) if isinstance(intervals, list | tuple | np.ndarray) else []
    fits = ends and all(map(is_real, ends)) and (np.diff([0.0, *ends]) > 0).all() and ends[-1] <= high
    wanted = f"a whole number, or increasing times up to {high:g}"
    require(fits, f"{name}: intervals must be {wanted}, not {intervals!r}.")
    return np.unique([*ends, high]).astype(float)


def lived_and_died(event: NDArray[np.bool_], time: Array, ends: Array) -> Array:
    """Return 1 for the interval of an event, otherwise minus the fraction of the interval lived; shape (n, intervals)."""
    starts, places = np.append(0.0, ends[:-1]), np.searchsorted(ends, time)  # An end is in the interval before
    died = event[:, None] & (places[:, None] == np.arange(len(ends)))
    return np.where(died, 1.0, -np.clip((time[:, None] - starts) / (ends - starts), 0.0, 1.0))
