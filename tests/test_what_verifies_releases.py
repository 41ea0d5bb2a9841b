"""What `verify` accepts, `solve` releases: problems, learners over all kinds of K, and regularizers that meet them.

Each is fitted privately, and what is minimised is minimised again by a conic solver, to about twelve digits.  More regularizers:
tests/sensitivity/test_regularizers.py.
"""

from functools import partial

import cvxpy as cp
import numpy as np
import pytest
import scipy.sparse as sp
from learners_of_tests import X, Y, bounded, fields_of, free, logistic, records_of

import dpconvex as dp
from dpconvex.fitting import engine

SIZE, D = 60, 3
PROMISE = dp.Privacy(1.0)

# Each takes a variable of D entries (or a D x D matrix) and returns constraints on it.
VECTOR_SETS = {
    "space": free,
    "box": lambda w: [w >= -0.3, w <= 0.2],
    "orthant": lambda w: [w >= 0],
    "ball": lambda w: [cp.norm(w) <= 0.3],
    "simplex": lambda w: [w >= 0, cp.sum(w) == 1],
    "weighted simplex": lambda w: [w >= 0, np.array([1.0, 2.0, 0.5]) @ w == 1],
    "l1 ball": lambda w: [cp.norm1(w) <= 0.3],
    "half-space and box": lambda w: [cp.sum(w) >= 0.2, cp.abs(w) <= 0.3],
    "ball and half-space": lambda w: [cp.norm(w) <= 0.4, cp.sum(w) >= 0.2],
    "monotone in a box": lambda w: [w[:-1] <= w[1:], w >= -0.2, w <= 0.4],
    "equation": lambda w: [cp.sum(w) == 0],
    "second-order cone": lambda w: [cp.norm(w[:2]) <= w[2]],
    "ellipsoid": lambda w: [cp.quad_form(w, np.diag([1.0, 4.0, 9.0])) <= 0.1],
    "exponential cone": lambda w: [cp.exp(w[0]) + w[1] <= 1],
    "hyperbola": lambda w: [cp.inv_pos(w[0]) <= 5 * w[1]],
    "square over a number": lambda w: [cp.quad_over_lin(w[0] - 1, w[1]) <= w[2], w[1] >= 1e-3],
}
MATRIX_SETS = {
    "semidefinite": ({"PSD": True}, lambda P: []),
    "eigenvalues between bounds": ({"symmetric": True}, lambda P: [P >> 0.1 * np.eye(D), P << 0.5 * np.eye(D)]),
    "semidefinite with bounded trace": ({"PSD": True}, lambda P: [cp.trace(P) <= 0.5]),
    "nuclear ball": ({}, lambda P: [cp.normNuc(P) <= 0.5]),
    "correlation matrices": ({"PSD": True}, lambda P: [cp.diag(P) == 1]),
}
# Regularizers, with kinks or logarithms whose proximal map is not that of the set.
SIMPLEX = VECTOR_SETS["simplex"]
REGULARIZERS = {
    "largest absolute entry": (lambda w: 0.05 * cp.norm_inf(w), free),
    "huber": (lambda w: 0.05 * cp.sum(cp.huber(w, 0.1)), free),
    "differences and l1": (lambda w: 0.05 * cp.norm1(cp.diff(w)) + 0.02 * cp.norm1(w), free),
    "hinges and largest size": (lambda w: 0.03 * cp.sum(cp.pos(w[1:] - w[:-1] - 0.1)) + 0.05 * cp.norm_inf(w), free),
    "largest sizes": (lambda w: 0.05 * cp.sum_largest(cp.abs(w), 2), free),
    "overlapping groups": (lambda w: 0.05 * (cp.norm(w[:2]) + cp.norm(w[1:])), free),
    "entropy on a simplex": (lambda w: -0.05 * cp.sum(cp.entr(w)), SIMPLEX),
    "divergence on a simplex": (lambda w: 0.05 * cp.sum(cp.kl_div(w, np.full(D, 1 / D))), SIMPLEX),
    "logarithms under an equation": (lambda w: -0.01 * cp.sum(cp.log(w)), lambda w: [cp.sum(w) == 1, w <= 1]),
    "absolute values on a simplex": (lambda w: 0.05 * cp.norm1(w - 0.2), SIMPLEX),
    "differences in an exponential cone": (lambda w: 0.05 * cp.norm1(cp.diff(w)), VECTOR_SETS["exponential cone"]),
    "norm in a ball and a half-space": (lambda w: 0.05 * cp.norm(w), VECTOR_SETS["ball and half-space"]),
}


def of_vectors(regularizer, constraints):
    return logistic(D, lambda w: 0.1 * cp.sum_squares(w) + regularizer(w), constraints)


def of_matrices(attributes, constraints):
    score = lambda P, x: x @ P @ x  # noqa: E731
    return logistic((D, D), lambda P: 0.1 * cp.sum_squares(P), constraints, score, **attributes)


def gaussians():
    """Large-margin Gaussians with one shape for all classes, a bounded trace, and a bounded condition."""
    Phi = [cp.Variable((D, D), PSD=True, name=f"Phi_{c}") for c in range(2)]
    shape = [P[:2, :2] for P in Phi]

    def loss(x, y):
        z = cp.hstack([x, 1]) / np.sqrt(2)
        return dp.huber_hinge(1 + z @ (Phi[y] - Phi[1 - y]) @ z, width=0.5)

    return dp.Template(
        dp.Record(x=dp.Ball(2), y=dp.Choice([0, 1])),
        loss,
        0.05 * sum(cp.sum_squares(P) for P in Phi),
        [shape[0] == shape[1], cp.trace(shape[0]) <= 1, shape[0] >> 0.1 * np.eye(2), shape[0] << 0.9 * np.eye(2)],
    )


# Of noisy statistics no problem is left to be minimised, and conic solvers know no normal distribution.  Of one mixture the
# reference ends with six digits.
OTHERS = {"additive_regression", "least_squares_classifier", "linear_regression", "pathak_raj_2010"}
OTHERS |= {"probit_regression", "smooth_hinge_svm", "pathak_raj_2012_mixture"}
LEARNERS = {
    **{f"K: {name}": partial(of_vectors, lambda w: 0, build) for name, build in VECTOR_SETS.items()},
    **{f"K: {name}": partial(of_matrices, *parts) for name, parts in MATRIX_SETS.items()},
    **{f"regularizer: {name}": partial(of_vectors, *parts) for name, parts in REGULARIZERS.items()},
    "Gaussians with three more constraints": gaussians,
    **{f"problem: {n}": partial(dp.load, n, features=D, **bounded(n)) for n in sorted({*dp.problems()} - OTHERS)},
}
PROTECTED, OUTPUT = dp.Privacy(1.0, 1e-5, "add-remove"), dp.OutputPerturbation()
DATA = {"x": X, "y": Y}
# Other mechanisms, backends and forms of records.
FITS = {
    "Gaussian noise": (logistic(), DATA, PROTECTED, {"mechanism": dp.ObjectivePerturbation("gaussian"), "size": 500}),
    "kinks": (dp.load("hinge_svm", features=D), DATA, PROMISE, {"mechanism": OUTPUT}),
    "conic": (dp.load("elastic_net_logistic", features=D), DATA, PROMISE, {"backend": "conic"}),
    "sparse": (of_vectors(lambda w: 0, VECTOR_SETS["box"]), {"x": sp.csr_array(X), "y": Y}, PROMISE, {}),
}


@pytest.fixture
def minimised(monkeypatch):
    """What fits minimise, with their answers and tolerances."""
    solve, seen = engine.backends.solve, []

    def noted(problem, backend, tolerance):
        found = solve(problem, backend, tolerance)
        seen.append((problem, found.theta, tolerance))
        return found

    monkeypatch.setattr(engine.backends, "solve", noted)
    return seen


def is_near(problem, theta, tolerance):
    """Say whether an answer is as near as certified to a reference of about 13 digits of the objective, or better than it."""
    noise = None if problem.linear is None else problem.space.unpack(problem.linear)
    template = problem.template
    program = template.problem(fields_of(template, problem.batch), noise, added=problem.added, size=problem.size)
    least = program.solve(solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13, max_iter=500)
    exact = problem.space.pack({variable.name(): np.asarray(variable.value) for variable in program.variables()})
    for variable in program.variables():
        variable.save_value(problem.space.unpack(theta)[variable.name()])
    return np.linalg.norm(theta - exact) <= tolerance + 1e-10 or program.objective.value <= least


def violation(template, values):
    problem = template.problem(records_of(template, 1))
    for variable in problem.variables():
        variable.save_value(values[variable.name()])
    declared = [float(np.max(constraint.violation())) for constraint in problem.constraints]
    attributes = [float(np.abs(v.project(v.value) - v.value).max()) for v in problem.variables()]
    return max([0.0, *declared, *attributes])


@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("name", [*LEARNERS, *FITS])
def test_it_releases_a_feasible_answer_and_the_distance_is_as_certified(name, minimised):
    template, data, privacy, options = FITS.get(name) or (LEARNERS[name](), None, PROMISE, {})
    data = records_of(template, SIZE, seed=4) if data is None else data
    release = dp.solve(template, data, privacy, **options)
    problem, theta, tolerance = minimised[-1]
    assert release.private
    assert tolerance == release.certificate.tolerance
    assert violation(template, dict(release.items())) <= 1e-9
    assert violation(problem.template, problem.space.unpack(theta)) <= 1e-9
    assert is_near(problem, theta, tolerance)


UNPROVED = {
    "square of a kink": (D, lambda w: cp.square(cp.norm1(w))),
    "p-norm below 2": (D, lambda w: cp.pnorm(w, 1.5)),
    "powers below 2": (D, lambda w: cp.sum(cp.power(cp.abs(w - 1), 1.5))),
    "nuclear norm and rows": ((D, D), lambda W: cp.normNuc(W) + cp.sum(cp.norm(W, axis=1))),
}


@pytest.mark.parametrize("name", UNPROVED)
def test_what_has_no_proved_distance_is_refused_before_it_is_paid(name):
    shape, kinked = UNPROVED[name]
    template = logistic(shape, lambda w: 0.1 * cp.sum_squares(w) + 0.05 * kinked(w), score=lambda w, x: cp.sum(x @ w))
    budget = dp.Budget(PROMISE)
    for mechanism in (None, dp.ObjectivePerturbation(), dp.OutputPerturbation()):
        with pytest.raises(dp.NotPrivate, match="nothing bounds the curvature of the regularizer"):
            dp.solve(template, records_of(template), PROMISE, mechanism, budget=budget)
    assert not budget.entries
