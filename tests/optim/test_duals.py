"""Fits without a projection on the constraints: the proved distance holds, and the answer is feasible."""

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp


def test_flat_objectives_whose_minimum_lies_on_a_bound_are_certified():
    """One feature and hardly any regularization: the first step of a local model once went far beyond its bounds."""
    template = dp.load("gaussian_precision", features=1, regularization=1e-4)
    for seed, x in enumerate(([[0.0]] * 3, [[1.0]] * 3, [[0.3], [-0.2], [0.1]], [[0.0], [0.0], [1.0]])):
        release = dp.solve(template, {"x": x}, dp.Privacy(36.0, 1e-6), dp.ObjectivePerturbation("gamma"), seed=seed)
        assert 0.1 <= release["P"].item() <= 10
    w = cp.Variable(name="w")
    terms = 1e-4 * cp.square(w) - cp.log(w)
    free = dp.Template(dp.Record(x=dp.Ball(1)), lambda x: x[0] * w, terms, [w <= 10, cp.exp(w) <= 1e5])
    for seed in range(4):
        assert dp.solve(free, {"x": [[0.0]] * 3}, dp.Privacy(36.0, 1e-6), seed=seed)["w"] <= 10


def fused(factor):
    return lambda w: factor * cp.norm(cp.diff(w), 1)


# Kinks that cost from a millionth of what records add up to, to a billion times as much: radius of records, ridge, kinks, K.
BESIDE = {
    "kinks above all": (1e-6, 1e-8, fused(0.1), lambda w: [cp.norm(w, 1) <= 1e-3]),
    "kinks above all, no constraints": (1.0, 1e-8, fused(3e3), lambda w: []),
    "kinks in a box": (1e-6, 1e-8, fused(0.1), lambda w: [w >= -1e-3, w <= 1e-3]),
    "kinks in a thin slab": (1e-6, 1e-8, fused(0.1), lambda w: [cp.abs(w[0] + w[1]) <= 1e-6]),
    "records above all": (1e5, 1e-2, lambda w: 1e-2 * cp.norm(w, 1), lambda w: [w[0] + w[1] <= 1, w[0] - 2 * w[1] <= 0.5]),
    "records above all, on a simplex": (1e6, 1.0, fused(0.1), lambda w: [w >= 0, cp.sum(w) == 1]),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", BESIDE)
def test_no_fit_fails_for_the_size_of_kinks_beside_that_of_records(case):
    radius, ridge, kinks, constraints = BESIDE[case]
    w = cp.Variable(3, name="w")
    template = dp.Template(
        dp.Record(x=dp.Ball(3, radius), y=dp.Choice([-1, 1])),
        lambda x, y: dp.huber_hinge(1 - y * (x @ w), 0.5),
        ridge * cp.sum_squares(w) + kinks(w),
        constraints(w),
    )
    rng, n = np.random.default_rng(0), 500
    y = rng.choice([-1, 1], size=n)
    apart, corner = rng.normal(size=(n, 3)), np.zeros((n, 3))
    apart *= 0.99 * radius / np.linalg.norm(apart, axis=1, keepdims=True)
    corner[:, 0] = radius
    for x in (apart, corner, 0 * corner):
        for mechanism in (dp.ObjectivePerturbation("gamma"), dp.ObjectivePerturbation("gaussian")):
            dp.solve(template, {"x": x, "y": y}, dp.Privacy(10.0, 1e-3), mechanism)
