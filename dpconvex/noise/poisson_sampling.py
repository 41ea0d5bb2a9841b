"""Gaussian noise on sums over random subsets: each record takes part in each step or not, by a draw of its own.

Neighbours differ by one record that is added or taken away.  The privacy-loss distribution of all steps together is computed by
the package dp-accounting, with pessimistic rounding (Koskela, Jälkö & Honkela 2020; Doroshenko et al. 2022, "Connect the
dots").  A shuffled batch is not such a sample, and has no proof here.
"""

from __future__ import annotations

import math
from functools import lru_cache

from dpconvex.errors import DPConvexError, NotPrivate
from dpconvex.noise.gaussian_profiles import gaussian_sigma, smallest_scale

__all__ = ["SMALLEST_DELTA", "sampled_delta", "sampled_multiplier"]

# Losses are rounded up to multiples of this, for an epsilon of 1 or more, and of less for smaller ones.
INTERVAL, FINEST = 1e-3, 1e-4
# Below this, what the transforms of double precision do to a delta is no longer small.
SMALLEST_DELTA = 1e-10
# Relative accuracy of a calibration, which rounds up.
ACCURACY = 1e-5


def sampled_delta(epsilon: float, multiplier: float, rate: float, steps: int) -> float:
    """Bound the delta of so many sums over Poisson samples, with noise of `multiplier` times the largest norm of a term."""
    try:
        from dp_accounting import dp_event
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.privacy_accountant import NeighboringRelation
    except ImportError as error:
        raise DPConvexError(
            "sampling: the privacy of Poisson samples is computed by dp-accounting: pip install dpconvex[accounting]; or use "
            "all records at every step (sampling=None)."
        ) from error
    interval = max(INTERVAL * min(epsilon, 1.0), FINEST)
    accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=interval)
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(multiplier))
    accountant.compose(dp_event.SelfComposedDpEvent(step, steps))
    return float(accountant.get_delta(epsilon))


@lru_cache(maxsize=64)
def sampled_multiplier(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """Return the smallest noise for a promise, in units of the largest norm of a term, rounded up."""
    if delta < SMALLEST_DELTA:
        raise NotPrivate(
            f"the accounting of Poisson samples is not exact enough for delta = {delta:g}",
            f"sampling = {rate:g}",
            f"promise a delta of at least {SMALLEST_DELTA:g}, or use all records at every step",
        )
    # Without sampling as much is enough, and amplification divides it by 1/rate at most; start in between.
    full = gaussian_sigma(epsilon, delta, 1.0) * math.sqrt(steps)
    start = max(full * rate, 0.3)
    found = smallest_scale(lambda z: sampled_delta(epsilon, z, rate, steps), delta, start, ACCURACY)
    if found is None or found > full:
        return full
    return found
