"""Proximal maps of regularizers: against CVXPY, by optimality, together with K, and with an honest bound on their rounding."""

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sets.kinks import split_kinks


def vector(**attributes):
    return lambda: cp.Variable(6, name="v", **attributes)


def matrix(*shape, **attributes):
    return lambda: cp.Variable(shape, name="v", **attributes)


def free(v):
    return []


TURN = np.array([[1.0, 1, 0, 0, 0, 0], [0, 0, 1, -1, 0, 0]])
# Those whose proximal map, together with the projection on K, has a closed form; and others, which get heights.
MAPPED = {
    "Euclidean norm": (vector(), cp.norm, free),
    "rows": (matrix(2, 3), lambda v: cp.sum(cp.norm(v, 2, axis=1)), free),
    "nuclear norm": (matrix(2, 3), cp.normNuc, free),
    "sparse groups": (vector(), lambda v: cp.norm1(v) + 0.5 * cp.norm(v[:3]), free),
    "absolute values in a box": (vector(), cp.norm1, lambda v: [v >= -0.1]),
    "nuclear norm, symmetric": (matrix(3, 3, symmetric=True), cp.normNuc, free),
    "Frobenius norm": (matrix(3, 3, symmetric=True), lambda v: cp.norm(v, "fro"), free),
}
LIFTED = {
    "largest singular value": (matrix(2, 3), cp.sigma_max, free),
    "largest entry": (vector(), cp.max, free),
    "logarithms of affine": (vector(), lambda v: -2 * cp.sum(cp.log(3 - 2 * v)), free),
    "norm of a map": (vector(), lambda v: cp.norm(np.eye(2, 6) @ v + np.eye(2, 6, 1) @ v), free),
    "log-determinant": (matrix(3, 3, symmetric=True), lambda v: -cp.log_det(2 * v), free),
    "orthogonal rows": (vector(), lambda v: cp.norm(TURN @ v + 1), free),
    "norm in a box": (vector(), cp.norm, lambda v: [v >= -1]),  # no cone at 0
    "largest eigenvalue in a cone": (matrix(3, 3, PSD=True), cp.lambda_max, free),
    "of blocks": (vector(), lambda v: cp.max(v[:2]) + cp.norm(v[2:4]) - cp.sum(cp.log(v[4:])), free),
}
EXACT = {"solver": cp.CLARABEL, "tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}


def parts(case):
    make, regularizer, constraints = {**MAPPED, **LIFTED}[case]
    v = make()
    written, declared = regularizer(v), constraints(v)
    everything = cp.vec(v, order="F")
    template = dp.Template(
        dp.Record(x=dp.Ball(v.size), y=dp.Choice([-1, 1])),
        lambda x, y: cp.logistic(-y * (x @ everything)),
        0.05 * written + 0.05 * cp.sum_squares(v),
        declared,
    )
    form = LossForm(template)
    return v, written, declared, form, split_kinks(form.feasible, template.regularizer)[1]


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("case", MAPPED)
def test_proximal_maps_agree_with_cvxpy(case):
    v, written, declared, form, kinks = parts(case)
    rng = np.random.default_rng(0)
    for step in (2.0, 20.0, 60.0):
        theta = 2 * rng.normal(size=form.space.dim)
        found = form.feasible.project(kinks.proximal(theta, step))
        middle = form.space.unpack(theta)["v"]
        objective = 0.05 * step * written + 0.5 * cp.sum_squares(v - middle)
        cp.Problem(cp.Minimize(objective), declared).solve(**EXACT)
        reference, least = form.space.pack({"v": v.value}), float(objective.value)
        assert np.linalg.norm(found - reference) <= 2e-5
        v.save_value(form.space.unpack(found)["v"])
        assert float(objective.value) <= least + 1e-8 * (1 + abs(least))
        assert kinks.value(found) == pytest.approx(0.05 * float(written.value), rel=1e-9, abs=1e-9)
        # Firmly nonexpansive, which a wrong map is rarely.
        other = theta + rng.normal(size=form.space.dim)
        moved = form.feasible.project(kinks.proximal(other, step))
        change = moved - found
        assert change @ change <= change @ (other - theta) + 1e-12


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("case", [*MAPPED, *LIFTED])
def test_every_regularizer_is_released(case):
    """Verified, and within its bound of the minimiser: the baseline, which is nearer, tells."""
    v, written, declared, form, kinks = parts(case)
    assert (kinks.epigraph is None) == (case in MAPPED)
    x = dp.Ball(v.size).project(np.random.default_rng(1).normal(size=(60, v.size)))
    data = {"x": x, "y": np.where(x[:, 0] > 0, 1, -1)}
    assert dp.solve(form.template, data, dp.Privacy(2.0, 1e-6), seed=1)["v"].shape == v.shape
    fit = dp.solve_without_privacy(form.template, data, tolerance=1e-8 if case in MAPPED else 1e-6)
    mean = cp.sum(cp.logistic(cp.multiply(-data["y"], x @ cp.vec(v, order="F")))) / 60
    reference = cp.Problem(cp.Minimize(mean + 0.05 * written + 0.05 * cp.sum_squares(v)), declared)
    least = reference.solve(**EXACT)
    assert np.linalg.norm(fit["v"] - v.value) <= 1e-4
    v.save_value(fit["v"])
    assert float(reference.objective.value) <= least + 1e-9


@pytest.mark.parametrize(
    ("shape", "regularizer", "least"),
    [(6, lambda v: -cp.sum(cp.log(v)), lambda v: v >= 1), ((3, 3), lambda v: -cp.log_det(v), lambda v: v >> np.eye(3))],
)
def test_what_is_smooth_on_k_stays(shape, regularizer, least):
    v = cp.Variable(shape, name="v", symmetric=shape == (3, 3))
    template = dp.Template(dp.Record(x=dp.Ball(1)), lambda x: x[0] * cp.sum(v), regularizer(v), [least(v)])
    form = LossForm(template)
    rest, kinks = split_kinks(form.feasible, template.regularizer)
    assert not kinks
    assert rest is template.regularizer
