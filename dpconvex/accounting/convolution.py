"""Numerical composition: the law of the sum of privacy losses, by dp-accounting where that is installed.

Every event is replaced by a pair of laws on a grid that is at least as easy to tell apart ("connect the dots": Doroshenko, Ghazi,
Kamath, Kumar & Manurangsi 2022), and the losses of these are added by Fourier transforms.  What rounding does to sums is counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpconvex.accounting.events import Event, Tail, known
from dpconvex.accounting.profiles import LARGEST_LOSS

# Grid steps in the loss that is looked for, and in the losses of one event.
STEPS, LARGEST_GRID = 4000, 2**17
# Rounding of a Fourier transform and of the table, relative to the root of their length; measured errors are a hundredth.
ROUNDING = 1e-14
# So many different events at most: each takes milliseconds.
MOST = 50
# Part of delta that the tails of a sum may be cut for.
CUT = 1e-7


def convolved_epsilon(leaves: Mapping[Event, int], delta: float, reach: float) -> float | None:
    """Return the epsilon for a delta, if events are fixed beforehand; None without dp-accounting, or if rounding forbids it.

    `reach` is a known bound on it, which sets the scale of the grid.
    """
    counted = {leaf: count for leaf, count in leaves.items() if not isinstance(leaf, Tail)}
    if (
        not 0 < len(counted) <= MOST
        or not 0 < reach < LARGEST_LOSS
        or sum(known(leaf).lost for leaf in counted) >= delta
    ):
        return None
    try:
        from dp_accounting.pld import pld_pmf
    except ImportError:
        return None
    step, whole = reach / STEPS, None
    for leaf, count in counted.items():
        single = grid(pld_pmf, leaf, step)
        if single is None:
            return None
        several = single if count == 1 else single.self_compose(count, CUT * delta)
        whole = several if whole is None else whole.compose(several, CUT * delta)
    assert whole is not None
    left = delta - ROUNDING * sum(counted.values()) * math.sqrt(whole.size)
    if left < delta / 2:
        return None
    return max(float(whole.get_epsilon_for_delta(left)), 0.0)


def grid(pld_pmf: Any, leaf: Event, step: float) -> Any:
    """Return the losses of an event, rounded up to a grid; None if they reach too far."""
    x, y = known(leaf).curve
    end = math.ceil(math.log(x[-1]) / step)
    if end > LARGEST_GRID:
        return None
    positions = np.arange(-end, end + 1)
    deltas = np.interp(np.exp(positions * step), x, y) * (1 + 1e-15)
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    return pld_pmf.create_pmf_pessimistic_connect_dots(step, positions, deltas).to_dense_pmf()
