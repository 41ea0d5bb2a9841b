"""Rounded kinks: convex, close, as steep as the kinked loss, and smooth."""

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm
from dpconvex.calculus.smoothing import smooth_template

WIDTH = 0.05
MATRIX = np.random.default_rng(0).normal(size=(4, 3))

# name -> expression of w (3)
KINKED: dict[str, Any] = {
    "hinge": lambda w: cp.pos(1 - w[0]),
    "absolute values": lambda w: cp.sum(cp.abs(MATRIX @ w)),
    "norm_inf": lambda w: cp.norm_inf(MATRIX @ w),
    "max": lambda w: cp.max(MATRIX @ w),
    "norm": lambda w: cp.norm(MATRIX @ w),
    "3-norm": lambda w: cp.norm(MATRIX @ w, 3),
    "largest of each row": lambda w: cp.sum(cp.max(cp.reshape(MATRIX @ w, (2, 2), order="F"), axis=1)),
    "absolute values along an axis": lambda w: cp.max(cp.norm1(cp.vstack([w, 2 * w]), axis=1)),
    "sum of the largest": lambda w: cp.sum_largest(MATRIX @ w, 2),
    "maximum": lambda w: cp.maximum(w[0], w[1], 0.5),
    "hinge of log-sum-exp": lambda w: 2 * cp.pos(1 + cp.log_sum_exp(MATRIX @ w)),
}


@pytest.mark.parametrize("name", KINKED)
def test_the_calculus_finds_no_kink_and_no_larger_slope(name: str) -> None:
    build = KINKED[name]
    w = cp.Variable(3, name="w")
    template = dp.Template(dp.Record(x=dp.Box(-1.0, 1.0)), lambda x: build(w * x), cp.sum_squares(w))
    before = Analysis(LossForm(template))
    after = Analysis(LossForm(smooth_template(template, WIDTH)))
    assert before.kink is not None
    assert after.kink is None
    assert after.gradient_bound <= before.gradient_bound * (1 + 1e-9)
    assert after.replacement_bound <= before.replacement_bound * (1 + 1e-9)
    assert after.form.noise_dimension == before.form.noise_dimension
