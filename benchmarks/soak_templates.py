"""Learners for the soak as users write them: random losses, regularizers and feasible sets, of all sizes."""

from typing import Any

import cvxpy as cp
import numpy as np

import dpconvex as dp

LOSSES: dict[str, Any] = {
    "logistic": lambda x, y, w: cp.logistic(-y * (x @ w)),
    "hinge": lambda x, y, w: dp.huber_hinge(1 - y * (x @ w), 0.5),
    "huber": lambda x, y, w: cp.huber(x @ w - y, 0.3),
    "exponential": lambda x, y, w: cp.log_sum_exp(cp.hstack([0.0, y * (x @ w), -2 * (x @ w)])),
    "pinball": lambda x, y, w: cp.maximum(0.3 * (y - x @ w), -0.7 * (y - x @ w)),
}
TERMS: dict[str, Any] = {
    "none": lambda w: 0.0,
    "lasso": lambda w: cp.norm(w, 1),
    "fused": lambda w: cp.norm(cp.diff(w), 1),
    "largest": lambda w: cp.norm(w, "inf"),
    "group": lambda w: cp.norm(w[:2], 2) + cp.norm(w[1:], 2),
    "hinges": lambda w: cp.sum(cp.pos(w - 0.1)),
    "huber": lambda w: cp.sum(cp.huber(w, 0.1)),
}
SETS: dict[str, Any] = {
    "all": lambda w, s: [],
    "box": lambda w, s: [w >= -s, w <= s],
    "ball": lambda w, s: [cp.norm(w, 2) <= s],
    "l1": lambda w, s: [cp.norm(w, 1) <= s],
    "simplex": lambda w, s: [w >= 0, cp.sum(w) == s],
    "ordered": lambda w, s: [w[:-1] <= w[1:]],
    "half-spaces": lambda w, s: [w[0] + w[1] <= s, w[0] - 2 * w[1] <= 0.5 * s],
    "thin slab": lambda w, s: [cp.abs(w[0] + w[1]) <= 1e-3 * s],
    "cut ball": lambda w, s: [cp.norm(w, 2) <= s, w[0] + 2 * w[1] <= 0.3 * s],
    "3-norm": lambda w, s: [cp.norm(w, 3) <= s],
    "ellipsoid": lambda w, s: [cp.quad_form(w, np.diag(np.arange(1.0, w.size + 1))) <= s**2],
    "log-sum-exp": lambda w, s: [cp.log_sum_exp(w / s) <= 2.0 + np.log(w.size)],
    "equation": lambda w, s: [cp.sum(w) == 0, w <= s],
}


def drawn(seed: int) -> tuple[dp.Template, str]:
    """Return a template, and what it is."""
    rng = np.random.default_rng(seed)
    pick = lambda items: items[int(rng.integers(len(items)))]  # noqa: E731
    loss, term, kind = pick(list(LOSSES)), pick(list(TERMS)), pick(list(SETS))
    features, radius = int(pick([2, 3, 6])), float(10.0 ** rng.integers(-6, 7))
    ridge, factor = float(pick([1e-8, 1e-4, 1e-2, 1.0, 1e4])), float(pick([1e-8, 1e-4, 0.1, 1.0, 1e3]))
    size = float(pick([1e-3, 1.0, 1.0, 1e3]))
    w = cp.Variable(features, name="w")
    template = dp.Template(
        dp.Record(x=dp.Ball(features, radius), y=dp.Choice([-1, 1])),
        lambda x, y: LOSSES[loss](x, y, w),
        ridge * cp.sum_squares(w) + factor * TERMS[term](w),
        SETS[kind](w, size),
    )
    what = (
        f"{loss}, {features} features of size {radius:g}, ridge {ridge:g}, {factor:g} * {term}, {kind} of size {size:g}"
    )
    return template, what
