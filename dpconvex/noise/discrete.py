"""Integer noise: OpenDP draws it exactly; seeded draws, for tests, are in double precision."""

import math
from functools import partial
from typing import Any

import numpy as np

from dpconvex.errors import DPConvexError
from dpconvex.numerics import TAIL_SLACK
from dpconvex.util.arguments import recast, require
from dpconvex.util.arrays import Indices
from dpconvex.util.runtime import in_order, one_blas_thread

LAPLACE, GAUSSIAN = "discrete Laplace", "discrete Gaussian"
EACH = 2**14  # Number of draws in one task of a thread


def add_integer_noise(law: str, scale: float, steps: Indices, rng: np.random.Generator | None) -> Indices:
    if rng is None:
        draw = measurement(law, scale)
        with one_blas_thread() as workers:  # OpenDP draws without Python's lock
            parts = np.array_split(steps, len(steps) // EACH + 1)
            found = in_order((partial(draw, part.tolist()) for part in parts), min(workers, len(parts)))
            return np.concatenate([np.array(part, dtype=np.int64) for part in found])
    return steps + (discrete_laplace if law == LAPLACE else seeded_gaussian)(scale, len(steps), rng)


def measurement(law: str, scale: float) -> Any:
    """Return OpenDP's mechanism on vectors of integers, or raise if it does not confirm the scale of the noise."""
    said = "nothing is released: OpenDP, which draws the noise, is not installed: pip install opendp"
    with recast(said, ImportError):
        from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian, make_laplace
    from opendp.metrics import l1_distance, l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    domain = vector_domain(atom_domain(T="i64"))
    if law == GAUSSIAN:
        found = make_gaussian(domain, l2_distance(T="f64"), scale=scale)
        within = found.map(1.0) * 2 * scale**2 <= 1 + TAIL_SLACK
    else:
        found = make_laplace(domain, l1_distance(T="i64"), scale=scale)
        within = found.map(1) * scale <= 1 + TAIL_SLACK
    require(within, "OpenDP does not confirm the scale of the noise; nothing is released.", DPConvexError)
    return found


def seeded_gaussian(scale: float, count: int, rng: np.random.Generator) -> Indices:
    """Draw discrete Gaussian integers by rejection (Canonne, Kamath & Steinke 2020, section 5), shape (count,)."""
    width, result, missing = math.floor(scale) + 1, np.zeros(count, dtype=np.int64), np.arange(count)
    while len(missing):
        draw = discrete_laplace(width, len(missing), rng)
        accepted = rng.random(len(missing)) < np.exp(-(((np.abs(draw) - scale**2 / width) / scale) ** 2) / 2)
        result[missing[accepted]] = draw[accepted]
        missing = missing[~accepted]
    return result


def discrete_laplace(scale: float, count: int, rng: np.random.Generator) -> Indices:
    """Draw discrete Laplace integers, probability proportional to exp(-|k|/scale), as geometric differences, shape (count,)."""
    stop = -math.expm1(-1 / scale)
    return np.asarray(rng.geometric(stop, count) - rng.geometric(stop, count))
