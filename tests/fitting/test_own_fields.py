"""Affine functions of records that scores read are fields of their own for adaptive steps, whatever block a record lies in."""

import cvxpy as cp
import numpy as np

import dpconvex as dp

PRIVACY = dp.Privacy(1.0, 1e-6)


def test_a_function_that_is_no_number_for_one_record_moves_nothing_else():
    """Steps of 0 * u**8 overflow, which its bounds do not: the record was no number in all sums, and moved w to 3.5e7."""
    w, b = cp.Variable(name="w"), cp.Variable(name="b")
    record = dp.Record(u=dp.Box(0, 1e45), v=dp.Box(100, 101), y=dp.Box(-5, 5))
    far = lambda u: 0 * cp.square(cp.square(cp.square(u)))  # noqa: E731
    learner = dp.Template(record, lambda u, v, y: cp.square((far(u) + v - 100) * w + b - y))
    rng = np.random.default_rng(0)
    records = {"u": rng.uniform(0, 1, 200), "v": rng.uniform(100, 101, 200), "y": rng.uniform(-5, 5, 200)}
    usual = dp.solve(learner, records, PRIVACY, seed=1)
    records["u"][0] = 1e45
    assert abs(dp.solve(learner, records, PRIVACY, seed=1)["w"] - usual["w"]) <= 0.1
