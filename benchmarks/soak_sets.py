"""Learners for the soak whose sets and costs need a conic solver: vectors and matrices, of sizes and weights from 1e-6 to 1e6."""

from functools import lru_cache
from typing import Any

import cvxpy as cp
import numpy as np

import dpconvex as dp

LOSSES: dict[str, Any] = {
    "logistic": lambda m, y: cp.logistic(-y * m),
    "hinge": lambda m, y: dp.huber_hinge(1 - y * m, 0.5),
    "huber": lambda m, y: cp.huber(m - y, 0.3),
    "pinball": lambda m, y: cp.maximum(0.3 * (y - m), -0.7 * (y - m)),
    "squares": lambda m, y: cp.square(m - y),
}
SETS: dict[str, Any] = {
    "all": lambda w, s: [],
    "box": lambda w, s: [w >= -s, w <= s],
    "ball": lambda w, s: [cp.norm(w, 2) <= s],
    "l1": lambda w, s: [cp.norm(w, 1) <= s],
    "1.5-norm": lambda w, s: [cp.norm(w, 1.5) <= s],
    "4-norm": lambda w, s: [cp.norm(w, 4) <= s],
    "ball off zero": lambda w, s: [cp.norm(w - 3 * s, 2) <= s],
    "ellipsoid": lambda w, s: [cp.quad_form(w, np.diag(np.arange(1.0, w.size + 1))) <= s**2],
    "simplex": lambda w, s: [w >= 0, cp.sum(w) == s],
    "half-spaces": lambda w, s: [w[0] + w[1] <= s, w[0] - 2 * w[1] <= 0.5 * s],
    "cut ball": lambda w, s: [cp.norm(w, 2) <= s, w[0] + 2 * w[1] <= 0.3 * s],
    "largest": lambda w, s: [cp.sum_largest(w, 2) <= s],
    "largest sizes": lambda w, s: [cp.sum_largest(cp.abs(w), 2) <= s],
    "quadratic over linear": lambda w, s: [cp.quad_over_lin(w[1:], w[0]) <= s],
    "inverse": lambda w, s: [cp.sum(cp.inv_pos(w)) <= w.size / s],
    "log-sum-exp": lambda w, s: [cp.log_sum_exp(w / s) <= 2.0 + np.log(w.size)],
    "exponentials": lambda w, s: [cp.exp(w[0] / s) + cp.exp(w[1] / s) <= 2.5 + w[0] / s],
    "cone": lambda w, s: [cp.SOC(w[0] + s, w[1:]), w[0] <= s],
}
TERMS: dict[str, Any] = {
    "none": lambda w, s: 0.0,
    "norm1": lambda w, s: cp.norm(w, 1),
    "inf-norm": lambda w, s: cp.norm(w, "inf"),
    "norm2": lambda w, s: cp.norm(w - s, 2),
    "tv": lambda w, s: cp.tv(w),
    "largest": lambda w, s: cp.sum_largest(w, 2),
    "largest sizes": lambda w, s: cp.sum_largest(cp.abs(w), 2),
    "maximum": lambda w, s: cp.max(w),
    "hinges": lambda w, s: cp.sum(cp.pos(w - 0.1 * s)),
    "log-sum-exp": lambda w, s: cp.log_sum_exp(w / s),
    "entropies": lambda w, s: -cp.sum(cp.entr(w / s)),
    "relative entropies": lambda w, s: cp.sum(cp.rel_entr(w / s, np.full(w.size, 0.5))),
}
MATRIX_SETS: dict[str, Any] = {
    "all": lambda W, s: [],
    "Frobenius ball": lambda W, s: [cp.norm(W, "fro") <= s],
    "semidefinite, trace": lambda W, s: [W >> 0, cp.trace(W) <= s],
    "semidefinite, trace ==": lambda W, s: [W >> 0, cp.trace(W) == s],
    "spectral": lambda W, s: [cp.sigma_max(W) <= s],
    "nuclear": lambda W, s: [cp.normNuc(W) <= s],
    "semidefinite, spectral": lambda W, s: [W >> 0, cp.lambda_max(W) <= s],
    "between": lambda W, s: [W >> 0.1 * s * np.eye(W.shape[0]), W << s * np.eye(W.shape[0])],
    "largest eigenvalue": lambda W, s: [cp.lambda_max(W) <= s, cp.norm(W, "fro") <= 3 * s],
    "semidefinite, trace, spectral": lambda W, s: [W >> 0, cp.trace(W) == s, cp.lambda_max(W) <= 0.7 * s],
}
MATRIX_TERMS: dict[str, Any] = {
    "none": lambda W, s: 0.0,
    "lambda_max": lambda W, s: cp.lambda_max(W),
    "spectral": lambda W, s: cp.sigma_max(W),
    "nuclear": lambda W, s: cp.normNuc(W),
    "norm1": lambda W, s: cp.sum(cp.abs(W)),
    "inf-norm": lambda W, s: cp.max(cp.abs(W)),
    "trace": lambda W, s: cp.trace(W),
    "log-det": lambda W, s: -cp.log_det(W / s),
}


@lru_cache(maxsize=2)
def drawn(seed: int) -> tuple[dp.Template, str]:
    """Return a template, and what it is."""
    rng = np.random.default_rng(seed)
    pick = lambda items: items[int(rng.integers(len(items)))]  # noqa: E731
    kind = "matrix" if rng.random() < 0.4 else "vector"
    sets, terms = (MATRIX_SETS, MATRIX_TERMS) if kind == "matrix" else (SETS, TERMS)
    loss, constraint, term = pick(list(LOSSES)), pick(list(sets)), pick(list(terms))
    side = int(pick([2, 3] if kind == "matrix" else [2, 3, 4, 5]))
    radius, size, ridge, weight = (float(10.0 ** rng.uniform(-6, 6)) if rng.random() < 0.6 else 1.0 for _ in range(4))
    numbers = f"records of {radius:.3g}, ridge {ridge:.3g}, {weight:.3g} * {term}, {constraint} of {size:.3g}"
    template = of_parts(kind, side, loss, term, constraint, weight, ridge, radius, size)
    return template, f"{loss}, {kind} of side {side}, {numbers}"


def of_parts(
    kind: str, side: int, loss: str, term: str, constraint: str, weight: float, ridge: float, radius: float, size: float
) -> dp.Template:
    matrix = kind == "matrix"
    sets, terms = (MATRIX_SETS, MATRIX_TERMS) if matrix else (SETS, TERMS)
    w = cp.Variable((side, side), symmetric=True, name="w") if matrix else cp.Variable(side, name="w")
    return dp.Template(
        dp.Record(x=dp.Ball(side, radius), y=dp.Choice([-1, 1])),
        lambda x, y: LOSSES[loss](x @ w @ x if matrix else x @ w, y),
        ridge * cp.sum_squares(w) + weight * terms[term](w, size),
        sets[constraint](w, size),
    )
