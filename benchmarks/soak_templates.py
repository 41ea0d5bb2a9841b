"""Learners for the soak as users write them: random losses, regularizers and feasible sets, of all sizes."""

from typing import Any

import cvxpy as cp
import numpy as np

import dpconvex as dp
from benchmarks import soak_sets

LOSSES = soak_sets.LOSSES | {"exponential": lambda m, y: cp.log_sum_exp(cp.hstack([0.0, y * m, -2 * m]))}
LOSSES = {name: LOSSES[name] for name in ("logistic", "hinge", "huber", "exponential", "pinball")}
TERMS: dict[str, Any] = {
    "none": lambda w: 0.0,
    "lasso": lambda w: cp.norm(w, 1),
    "fused": lambda w: cp.norm(cp.diff(w), 1),
    "largest": lambda w: cp.norm(w, "inf"),
    "group": lambda w: cp.norm(w[:2], 2) + cp.norm(w[1:], 2),
    "hinges": lambda w: cp.sum(cp.pos(w - 0.1)),
    "huber": lambda w: cp.sum(cp.huber(w, 0.1)),
}
SETS = soak_sets.SETS | {
    "ordered": lambda w, s: [w[:-1] <= w[1:]],
    "thin slab": lambda w, s: [cp.abs(w[0] + w[1]) <= 1e-3 * s],
    "3-norm": lambda w, s: [cp.norm(w, 3) <= s],
    "equation": lambda w, s: [cp.sum(w) == 0, w <= s],
}
ORDER = [
    "all",
    "box",
    "ball",
    "l1",
    "simplex",
    "ordered",
    "half-spaces",
    "thin slab",
    "cut ball",
    "3-norm",
    "ellipsoid",
]
ORDER += ["log-sum-exp", "equation"]  # by which numbers of cases pick


def drawn(seed: int) -> tuple[dp.Template, str]:
    """Return a template, and what it is."""
    rng = np.random.default_rng(seed)
    pick = lambda items: items[int(rng.integers(len(items)))]  # noqa: E731
    loss, term, kind = pick(list(LOSSES)), pick(list(TERMS)), pick(ORDER)
    features, radius = int(pick([2, 3, 6])), float(10.0 ** rng.integers(-6, 7))
    ridge, factor = float(pick([1e-8, 1e-4, 1e-2, 1.0, 1e4])), float(pick([1e-8, 1e-4, 0.1, 1.0, 1e3]))
    size = float(pick([1e-3, 1.0, 1.0, 1e3]))
    w = cp.Variable(features, name="w")
    template = dp.Template(
        dp.Record(x=dp.Ball(features, radius), y=dp.Choice([-1, 1])),
        lambda x, y: LOSSES[loss](x @ w, y),
        ridge * cp.sum_squares(w) + factor * TERMS[term](w),
        SETS[kind](w, size),
    )
    records = f"{features} features of size {radius:g}"
    return template, f"{loss}, {records}, ridge {ridge:g}, {factor:g} * {term}, {kind} of size {size:g}"
