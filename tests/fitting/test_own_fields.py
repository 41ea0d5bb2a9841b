"""Affine functions of records that scores read are fields of their own for adaptive steps, whatever block a record lies in."""

import cvxpy as cp
import numpy as np

import dpconvex as dp

PRIVACY = dp.Privacy(1.0, 1e-6)
SHIFT, SCALE = np.array([50.0, 10.0, -3.0]), np.array([100.0, 20.0, 0.5])
LOW, HIGH = SHIFT - SCALE, SHIFT + SCALE


def regression(x, of):
    w, b = cp.Variable(3, name="w"), cp.Variable(name="b")
    ridge = 1e-3 * (cp.sum_squares(w) + cp.square(b))
    return dp.Template(dp.Record(x=x, y=dp.Box(-1.0, 1.0)), lambda x, y: cp.huber(y - of(x) @ w - b, 0.2), ridge)


def raw():
    return regression(dp.Box(LOW, HIGH), lambda x: (x - SHIFT) / SCALE)


def data(n=600):
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 0, (n, 3)) * SCALE + SHIFT
    return {"x": np.clip(x, LOW, HIGH), "y": np.clip(((x - SHIFT) / SCALE) @ [0.5, -0.3, 0.2], -1, 1)}


def test_a_fit_to_centred_functions_is_that_to_centred_records():
    records = data()
    found = dp.solve(raw(), records, PRIVACY, seed=0)
    by_hand = regression(dp.Box(-np.ones(3), np.ones(3)), lambda x: x)
    expected = dp.solve(by_hand, records | {"x": np.clip((records["x"] - SHIFT) / SCALE, -1, 1)}, PRIVACY, seed=0)
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


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
