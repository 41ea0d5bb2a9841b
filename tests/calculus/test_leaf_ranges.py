"""Ranges of leaves: nothing in K and in the record's domain leaves them, wherever K lies."""

from typing import Any

import cvxpy as cp
import numpy as np
from hypothesis import given, settings, strategies as st

import dpconvex as dp
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.loss_form import LossForm

D = 3


def sets(w: cp.Variable, P: cp.Variable, t: np.ndarray, r: float) -> dict[str, list[Any]]:
    center = t[0] * np.eye(2)
    return {
        "ball": [cp.norm(w - t) <= r],
        "box": [w >= t - r, w <= t + 2 * r],
        "ball and bound": [cp.norm(w[:2] - t[:2]) <= r, cp.abs(w[2] - t[2]) <= r],
        "half": [w >= t],
        "spectrum": [P >> center, P << center + r * np.eye(2)],
        "shifted cone": [P >> np.array([[t[0], t[1]], [t[1], t[2]]])],
        "matrix ball": [cp.norm(P - np.array([[t[0], t[1]], [t[1], t[2]]]), "fro") <= r],
    }


KINDS = list(sets(cp.Variable(D), cp.Variable((2, 2), symmetric=True), np.zeros(D), 1.0))


@given(
    kind=st.sampled_from(KINDS),
    shift=st.sampled_from([0.0, 1.0, 30.0, 1e6, 1e12]),
    radius=st.sampled_from([1e-6, 0.5, 2.0]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=20)
def test_nothing_leaves_its_range(kind: str, shift: float, radius: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    t = shift * rng.normal(size=D)
    w, P = cp.Variable(D, name="w"), cp.Variable((2, 2), name="P", symmetric=True)
    A, B = rng.normal(size=(2, D)), rng.normal(size=(2, D))

    def loss(x: Any, u: Any) -> Any:
        leaf = A @ cp.multiply(x, w - t) + u * (B @ w) - u * (B @ t) + x[:2]
        return cp.sum(cp.logistic(leaf)) + cp.logistic(x[:2] @ (P - t[0] * np.eye(2)) @ x[:2] + u)

    record = dp.Record(x=dp.Ball(D), u=dp.Box(0, 2))
    form = LossForm(dp.Template(record, loss, cp.sum_squares(w), sets(w, P, t, radius)[kind]))
    analysis = Analysis(form)
    for leaf in form.leaves[0]:
        polynomial = form.polynomial(leaf)
        low = np.array([interval.low for interval in analysis.ranges.values[id(polynomial)]])
        high = np.array([interval.high for interval in analysis.ranges.values[id(polynomial)]])
        assert (low <= high).all()
        for _ in range(20):
            x = rng.normal(size=D)
            x *= rng.choice([1.0, rng.uniform()]) / np.linalg.norm(x)
            far = form.space.pack({"w": t, "P": t[0] * np.eye(2)}) + rng.normal(size=form.space.dim) * 10 * radius
            theta = form.feasible.project(far)
            record_values = np.append(x, rng.choice([0.0, 2.0, rng.uniform(0, 2)]))
            value = polynomial.evaluate(record_values, theta).ravel(order="F")
            # What evaluates the leaf rounds too.
            rounding = 1e-14 * (1 + np.abs(theta).max(initial=0.0) * 10)
            assert (value >= low - rounding).all()
            assert (value <= high + rounding).all()
