"""Regularizers: strong convexity from below, curvature from above, and what is refused before anything is paid."""

import cvxpy as cp
import numpy as np
import pytest
from derivatives import analyse

import dpconvex as dp
from dpconvex.data.domains import Ball
from dpconvex.expressions.evaluate import evaluate
from dpconvex.fitting import verify
from dpconvex.mechanisms.rounding import bend_of, bends
from dpconvex.sensitivity.regularizer import slope_of
from dpconvex.sums.batch_loss import BatchedLoss

w, v = cp.Variable(3, name="w"), cp.Variable(name="v")
X, W = cp.Variable((2, 2), PSD=True, name="X"), cp.Variable((2, 2), name="W")
A = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.5]])
MIX = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0], [3.0, 0.0, 1.0], [1.0, 1.0, 1.0]])


def analysis_of(regularizer, constraints=()):
    seen = regularizer.variables()
    return analyse(lambda x: sum(cp.logistic(cp.sum(z) * x[0]) for z in seen), constraints, regularizer, x=Ball(1))


def observed(analysis, draws):
    """Smallest curvature along random lines between points of K, from differences of values."""
    form, rng, least = analysis.form, np.random.default_rng(0), np.inf
    for _ in range(draws):
        first, second = (form.feasible.project(3 * rng.normal(size=form.space.dim)) for _ in range(2))
        points = [form.space.unpack(theta) for theta in (first, second, (first + second) / 2)]
        one, other, middle = (float(evaluate(form.template.regularizer, point)) for point in points)
        gap = float(np.sum((first - second) ** 2))
        if np.isfinite(one + other) and gap >= 1e-3:
            least = min(least, 4 * (one + other - 2 * middle) / gap)
    return least


QUADRATICS = {
    "sum of squares": (0.5 * cp.sum_squares(w), 1.0),
    "sum of squares, shifted": (cp.sum_squares(w - np.arange(3)) + cp.sum(w), 2.0),
    "sum of squares of a map": (cp.sum_squares(MIX @ w), 2 * np.linalg.eigvalsh(MIX.T @ MIX)[0]),
    "over a constant": (cp.quad_over_lin(w, 4.0), 0.5),
    "quad_form": (cp.quad_form(w, A) / 2, 0.5),
    "squares of entries": (cp.sum(cp.square(w)), 2.0),
    "weighted squares": (cp.sum(cp.multiply(np.array([1.0, 3.0, 0.25]), cp.square(w))), 0.5),
    "squares along an axis": (np.array([1.0, 3.0]) @ cp.sum_squares(W, axis=0), 2.0),
    "square of a norm": (cp.square(cp.norm(w, 2)) * 3, 6.0),
    "squares one by one": (cp.square(w[0]) + 2 * cp.square(w[1]) + cp.square(w[2] - 1) / 4, 0.5),
    "elastic net": (0.1 * cp.norm(w, 1) + cp.sum_squares(w), 2.0),
    "with other convex terms": (cp.sum_squares(w) + cp.norm(w) + cp.sum(cp.exp(w)) + cp.huber(w[0]), 2.0),
    "two variables": (cp.sum_squares(w) + 0.5 * cp.square(v), 1.0),
    "a symmetric matrix": (0.25 * cp.sum_squares(X) + cp.trace(X), 0.5),
    "a matrix": (cp.sum_squares(W @ np.array([[2.0, 0.0], [0.0, 1.0]])), 2.0),
    "coupled variables": (cp.sum_squares(w - v) + cp.square(v), 2 * (5 - np.sqrt(21)) / 2),
}
BOUNDED = {
    "entropy": (-cp.sum(cp.entr(w)), 0.25, w >= 0, w <= 4),
    "entropy of a ball": (-cp.sum(cp.entr(w + 1)), 0.5, cp.norm(w, 2) <= 1),
    "entropy with weights": (-np.array([1.0, 2.0, 1.0]) @ cp.entr(w), 0.25, w >= 0, w <= 4),
    "entropy with a factor": (1 - (0.5 * cp.sum(cp.entr(w)) - w[0]), 0.125, w >= 0, w <= 4),
    "logarithms": (-cp.sum(cp.log(w)), 0.25, w >= 0.1, w <= 2),
    "one logarithm": (-2 * cp.log(v + 1), 0.5, v >= 0, v <= 1),
    "powers below 2": (cp.sum(cp.power(w, 1.5)), 0.375, w >= 0, w <= 4),
    "inverses": (cp.sum(cp.inv_pos(w)), 0.25, w >= 0.1, w <= 2),
    "cubes": (cp.sum(cp.power(w, 3)), 6.0, w >= 1, w <= 2),
    "fourth powers away from 0": (cp.sum(w**4), 3.0, w >= 0.5, w <= 2),
    "relative entropy": (cp.sum(cp.rel_entr(w, 1)), 0.25, w >= 0, w <= 4),
    "log det": (-cp.log_det(X + np.eye(2)), 1 / (1 + np.sqrt(2)) ** 2, cp.norm(X, "fro") <= 1),
    "entropy and squares": (cp.sum_squares(w) - cp.sum(cp.entr(w)), 3.0, w >= 0, w <= 1),
}


@pytest.mark.parametrize("name", QUADRATICS | BOUNDED)
def test_strong_convexity_is_exact_for_quadratics_and_what_a_bounded_set_leaves(name):
    regularizer, expected, *constraints = (QUADRATICS | BOUNDED)[name]
    analysis = analysis_of(regularizer, constraints)
    assert analysis.modulus == pytest.approx(expected, rel=1e-9)
    seen = observed(analysis, 20 if name == "log det" else 300)  # K has a slow projection
    assert analysis.modulus <= seen * (1 + (1e-6 if constraints else 1e-9))


def test_moduli_of_the_blocks():
    analysis = analysis_of(cp.sum_squares(w) + 0.5 * cp.square(v) + cp.sum_squares(X))
    blocks = dict(zip(analysis.form.space.blocks, analysis.block_moduli, strict=True))
    assert blocks == pytest.approx({"w": 2.0, "v": 1.0, "X": 2.0})
    assert analysis.strong_convexity(10, added=5.0) == pytest.approx(15.0)


# Curvature: bounded where it is claimed to be, and refused before anything is paid where nothing bounds it.

BALL = [cp.norm(w, 2) <= 4]
SMOOTH = {
    "huber": (0.1 * cp.sum(cp.huber(w, 0.5)), BALL),
    "huber, free": (0.1 * cp.sum(cp.huber(w, 0.5)), []),
    "log-sum-exp": (0.05 * cp.log_sum_exp(3 * w), BALL),
    "powers": (0.01 * cp.sum(cp.power(w, 4)), BALL),
    "powers, free": (0.01 * cp.sum(cp.power(w, 4)), []),
    "exponentials": (0.01 * cp.sum(cp.exp(w)), BALL),
    "logarithms": (-0.1 * cp.sum(cp.log(w + 5)), BALL),
    "entropy": (-0.1 * cp.sum(cp.entr(w)), [w >= 0.1, w <= 2]),
    # The normal form of a template writes it as squares, whose curvature is read off.
    "quadratic form": (cp.quad_form(w, np.array([[1, 0.5, 0], [0.5, 1, 0], [0, 0, 2]])), BALL),
    "squared hinges": (0.1 * cp.sum(cp.square(cp.pos(w))), BALL),
}


def logistic(more, constraints):
    record, public = dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1])), 0.05 * cp.sum_squares(w) + more
    return dp.Template(record, lambda x, y: cp.logistic(-y * (x @ w)), public, constraints)


@pytest.mark.parametrize("name", SMOOTH)
def test_the_curvature_is_at_least_what_is_observed(name):
    template, rng, largest = logistic(*SMOOTH[name]), np.random.default_rng(0), 0.0
    form = verify.analyse(template).form
    bend = bend_of(form, 3.0)
    assert np.isfinite(bend.rest)
    assert bends(form) == (bend.rest > 0) == (name != "quadratic form")
    loss = BatchedLoss(template, form.space, template.record.validate({"x": np.zeros((1, 3)), "y": [1]}))
    for _ in range(300):
        theta = form.feasible.project(rng.normal(size=3) * rng.choice([0.01, 0.5, 2.0]))
        direction = rng.normal(size=3)
        direction /= np.linalg.norm(direction)
        if np.linalg.norm(theta) <= bend.radius:
            largest = max(largest, float(direction @ loss.regularizer_hessian(theta) @ direction))
    assert 0.05 < largest <= (bend.quadratic + bend.rest) * (1 + 1e-9)


@pytest.mark.parametrize("mechanism", [dp.ObjectivePerturbation(), dp.OutputPerturbation(), None], ids=repr)
def test_what_may_have_no_certified_answer_is_refused_before_anything_is_paid(mechanism):
    template = logistic(0.1 * cp.sum(cp.power(cp.abs(w - 1), 1.5)), BALL)
    budget = dp.Budget(dp.Privacy(3.0))
    with pytest.raises(dp.NotPrivate, match="nothing bounds the curvature of the regularizer"):
        dp.solve(template, {"x": np.zeros((2, 3)), "y": [1, -1]}, dp.Privacy(1.0), mechanism, budget=budget)
    assert not budget.entries


def test_a_determinant_is_bounded_by_the_least_eigenvalue_in_the_feasible_set():
    P, least = cp.Variable((3, 3), symmetric=True, name="P"), np.diag([0.2, 0.3, 0.4])
    public = 0.05 * cp.sum_squares(P) - 0.3 * cp.log_det(P)
    template = dp.Template(dp.Record(x=dp.Ball(3)), lambda x: x @ P @ x, public, [P >> least])
    form = verify.analyse(template).form
    bend, slope = bend_of(form, 7.0), slope_of(template.regularizer, form, ball=2.0)
    assert not bends(form)
    assert (bend.rest, bend.radius) == pytest.approx((0.3 / 0.2**2, np.inf), rel=1e-8)
    rng = np.random.default_rng(3)
    for _ in range(200):
        root = rng.normal(size=(3, 3)) * rng.choice([0.01, 0.3])
        matrix = least + root @ root.T
        inverse = np.linalg.inv(matrix)
        direction = rng.normal(size=(3, 3))
        direction = (direction + direction.T) / np.linalg.norm(direction + direction.T)
        assert 0.3 * np.trace(inverse @ direction @ inverse @ direction) <= bend.rest
        if np.linalg.norm(matrix) <= 2:
            assert np.linalg.norm(0.1 * matrix - 0.3 * inverse) <= slope
    assert np.isfinite(slope)
    assert dp.verify(template, dp.Privacy(1.0), 100).noise_scale > 0
