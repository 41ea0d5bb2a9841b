"""Regularizers: strong convexity from below, curvature from above, and what is refused before anything is paid."""

import cvxpy as cp
import numpy as np
import pytest
from derivatives import analyse
from scipy.integrate import quad

import dpconvex as dp
from dpconvex.expressions.evaluate import evaluate
from dpconvex.fitting import verify
from dpconvex.mechanisms.rounding import quadratic_parts, regularizer_curvature
from dpconvex.sensitivity.loss_form import LossForm
from dpconvex.sensitivity.regularizer import slope_of
from dpconvex.sets.kinks import split_kinks
from dpconvex.sums.forms import public_part

w, v = cp.Variable(3, name="w"), cp.Variable(name="v")
X, W = cp.Variable((2, 2), PSD=True, name="X"), cp.Variable((2, 2), name="W")
A = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 0.5]])
MIX = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0], [3.0, 0.0, 1.0], [1.0, 1.0, 1.0]])


def analysis_of(regularizer, constraints=()):
    seen = regularizer.variables()
    return analyse(lambda x: sum(cp.logistic(cp.sum(z) * x[0]) for z in seen), constraints, regularizer, x=dp.Ball(1))


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


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", QUADRATICS | BOUNDED)
def test_strong_convexity_is_exact_for_quadratics_and_what_a_bounded_set_leaves(name):
    regularizer, expected, *constraints = (QUADRATICS | BOUNDED)[name]
    analysis = analysis_of(regularizer, constraints)
    assert analysis.modulus == pytest.approx(expected, rel=1e-9)
    seen = observed(analysis, 20 if name == "log det" else 300)  # K has a slow projection
    assert analysis.modulus <= seen * (1 + (1e-6 if constraints else 1e-9))


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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", SMOOTH)
def test_the_curvature_is_at_least_what_is_observed(name):
    template, rng, largest = logistic(*SMOOTH[name]), np.random.default_rng(0), 0.0
    form = verify.analyse(template).form
    bend = regularizer_curvature(form, 3.0)
    assert np.isfinite(bend.rest)
    assert (quadratic_parts(form)[2] is not None) == (bend.rest > 0) == (name != "quadratic form")
    public = public_part(template, form.space)
    for _ in range(300):
        theta = form.feasible.project(rng.normal(size=3) * rng.choice([0.01, 0.5, 2.0]))
        direction = rng.normal(size=3)
        direction /= np.linalg.norm(direction)
        if np.linalg.norm(theta) <= bend.radius:
            largest = max(largest, float(direction @ public.hessian_at(theta) @ direction))
    assert 0.05 < largest <= (bend.quadratic + bend.rest) * (1 + 1e-9)


def test_a_determinant_is_bounded_by_the_least_eigenvalue_in_the_feasible_set():
    P, least = cp.Variable((3, 3), symmetric=True, name="P"), np.diag([0.2, 0.3, 0.4])
    public = 0.05 * cp.sum_squares(P) - 0.3 * cp.log_det(P)
    template = dp.Template(dp.Record(x=dp.Ball(3)), lambda x: x @ P @ x, public, [P >> least])
    form = verify.analyse(template).form
    bend, slope = regularizer_curvature(form, 7.0), slope_of(template.regularizer, form, ball=2.0)
    assert quadratic_parts(form)[2] is None
    assert (bend.rest, bend.radius) == pytest.approx((0.3 / 0.2**2, np.inf), rel=1e-8)
    rng = np.random.default_rng(3)
    for _ in range(200):
        root = rng.normal(size=(3, 3)) * rng.choice([0.01, 0.3])
        matrix = least + root @ root.T
        inverse, direction = np.linalg.inv(matrix), rng.normal(size=(3, 3))
        direction = (direction + direction.T) / np.linalg.norm(direction + direction.T)
        assert 0.3 * np.trace(inverse @ direction @ inverse @ direction) <= bend.rest
        if np.linalg.norm(matrix) <= 2:
            assert np.linalg.norm(0.1 * matrix - 0.3 * inverse) <= slope
    assert np.isfinite(slope)
    assert dp.verify(template, dp.Privacy(1.0), 100).noise_scale > 0


# Proximal maps of regularizers: against CVXPY, by optimality, together with K, and with an honest bound on their rounding
SYMMETRIC = ((3, 3), {"symmetric": True})
# Those whose proximal map, together with the projection on K, has a closed form.
MAPPED = {
    "Euclidean norm": (6, {}, cp.norm),
    "rows": ((2, 3), {}, lambda v: cp.sum(cp.norm(v, 2, axis=1))),
    "nuclear norm": ((2, 3), {}, cp.normNuc),
    "sparse groups": (6, {}, lambda v: cp.norm1(v) + 0.5 * cp.norm(v[:3])),
    "absolute values in a box": (6, {}, cp.norm1, lambda v: v >= -0.1),
    "nuclear norm, symmetric": (*SYMMETRIC, cp.normNuc),
    "Frobenius norm": (*SYMMETRIC, lambda v: cp.norm(v, "fro")),
}
EXACT = {"solver": cp.CLARABEL, "tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("case", MAPPED)
def test_proximal_maps_agree_with_cvxpy(case):
    shape, attributes, regularizer, *constraints = MAPPED[case]
    v, rng = cp.Variable(shape, name="v", **attributes), np.random.default_rng(0)
    written, declared = regularizer(v), [constraint(v) for constraint in constraints]
    everything, public = cp.vec(v, order="F"), 0.05 * written + 0.05 * cp.sum_squares(v)
    record = dp.Record(x=dp.Ball(v.size), y=dp.Choice([-1, 1]))
    template = dp.Template(record, lambda x, y: cp.logistic(-y * (x @ everything)), public, declared)
    form = LossForm(template)
    kinks = split_kinks(form.feasible, template.regularizer)[1]
    for step in (2.0, 20.0, 60.0):
        theta = 2 * rng.normal(size=form.space.dim)
        found = form.feasible.project(kinks.proximal(theta, step))
        objective = 0.05 * step * written + 0.5 * cp.sum_squares(v - form.space.unpack(theta)["v"])
        cp.Problem(cp.Minimize(objective), declared).solve(**EXACT)
        reference, least = form.space.pack({"v": v.value}), float(objective.value)
        assert np.linalg.norm(found - reference) <= 2e-5
        v.save_value(form.space.unpack(found)["v"])
        assert float(objective.value) <= least + 1e-8 * (1 + abs(least))
        assert kinks.value(found) == pytest.approx(0.05 * float(written.value), rel=1e-9, abs=1e-9)
        # Firmly nonexpansive, which a wrong map is rarely.
        other = theta + rng.normal(size=form.space.dim)
        change = form.feasible.project(kinks.proximal(other, step)) - found
        assert change @ change <= change @ (other - theta) + 1e-12


# Where a regularizer is defined: K lies inside, or becomes smaller, or the regularizer is refused
RECORD = dp.Record(x=dp.Ball(1))
two = cp.Variable(2, name="v")
S = cp.Variable((2, 2), name="S", symmetric=True)
Q = cp.Variable((2, 2), name="Q")


def analysed(regularizer, constraints=(), variable=two):
    first = cp.vec(variable, order="F")[0]
    return verify.analyse(dp.Template(RECORD, lambda x: cp.logistic(x[0] * first), regularizer, list(constraints)))


# Terms whose domain is "not negative" for what they are applied to.
TERMS = {
    "third power": lambda m: cp.sum(cp.power(m, 3)),
    "fifth power": lambda m: cp.sum(cp.power(m, 5)),
    "power 1.5": lambda m: cp.sum(cp.power(m, 1.5)),
    "minus a root": lambda m: -cp.sum(cp.sqrt(m)),
    "inverse": lambda m: cp.sum(cp.inv_pos(m)),
    "minus a logarithm": lambda m: -cp.sum(cp.log(m)),
    "minus log1p": lambda m: -cp.sum(cp.log1p(m - 1)),
    "minus entropy": lambda m: -cp.sum(cp.entr(m)),
    "divergence": lambda m: cp.sum(cp.kl_div(m, 1.0)),
    "relative entropy": lambda m: cp.sum(cp.rel_entr(1.0, m)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TERMS)
def test_a_domain_becomes_a_part_of_k(name):
    feasible = analysed(cp.sum_squares(two) + TERMS[name](two - 0.25)).form.feasible
    assert feasible.lower == pytest.approx([0.25, 0.25])
    assert (feasible.project(np.array([-1.0, 1.0])) >= 0.25).all()
    inside = analysed(cp.sum_squares(two) + TERMS[name](two - 0.25), [two >= 1, two <= 2]).form.feasible
    assert len(inside.constraints) == 2


def test_divisors_have_to_keep_away_from_zero():
    with pytest.raises(dp.NotPrivate, match="not known to be positive"):
        analysed(cp.sum_squares(two) + cp.quad_over_lin(two[0], two[1]), [two >= 0])
    assert analysed(cp.sum_squares(two) + cp.quad_over_lin(two[0], two[1]), [two >= 0.1]).modulus == pytest.approx(2.0)


@pytest.mark.parametrize("spectral", [lambda m: -cp.log_det(m), cp.lambda_max, cp.tr_inv])
def test_spectral_functions_ask_for_symmetric_matrices(spectral):
    for variable, inner in ((Q, Q), (S, S @ np.array([[1.0, 1.0], [0.0, 1.0]]))):
        with pytest.raises(dp.NotPrivate):
            analysed(cp.sum_squares(variable) + spectral(inner), (), variable)


def density(points, slope, beta, floor):
    """Density of the answer above the floor, and its probability at the floor, for the cubic learner of one record."""
    gradient = lambda theta: slope / (1 + np.exp(-slope * theta)) + theta + 0.3 * theta**2  # noqa: E731
    curvature = slope**2 * 0.25 / np.cosh(slope * points / 2) ** 2 + 1 + 0.6 * points
    at_floor = -gradient(floor)  # the noise that makes the floor the minimiser, and all below
    below = 0.5 * np.exp(beta * at_floor) if at_floor < 0 else 1 - 0.5 * np.exp(-beta * at_floor)
    return beta / 2 * np.exp(-beta * np.abs(gradient(points))) * curvature, 1 - below


def test_a_cubic_regularizer_is_as_private_as_promised():
    w = cp.Variable(1, name="w")
    regularizer = 0.5 * cp.sum_squares(w) + 0.1 * cp.sum(cp.power(w, 3))
    template = dp.Template(RECORD, lambda x: cp.logistic(x @ w), regularizer)
    certificate = dp.verify(template, dp.Privacy(1.0), size=1, mechanism=dp.ObjectivePerturbation("gamma", added=0.0))
    assert verify.analyse(template).form.feasible.lower.tolist() == [0.0]
    points, beta = np.linspace(0.0, 6.0, 2001), 1.0 / certificate.noise_scale
    first, second = density(points, 1.0, beta, 0.0), density(points, -1.0, beta, 0.0)
    worst = np.abs(np.log(first[0] / second[0])).max()
    assert max(worst, abs(np.log(first[1] / second[1])) if min(first[1], second[1]) > 0 else 0.0) <= 1.0
    whole, _ = quad(lambda t: float(density(np.array([t]), 1.0, beta, 0.0)[0][0]), 0, 200, limit=500)
    assert whole + first[1] == pytest.approx(1.0, abs=1e-6)
