"""What `verify` accepts, `solve` releases: thirty learners over all kinds of K and regularizers.

Each is verified, fitted privately, and compared with a reference that a conic solver finds to about twelve digits.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray

import dpconvex as dp
from dpconvex.release.engine import DataEngine
from dpconvex.release.verify import analyse

Array = NDArray[np.float64]
SIZE, D = 60, 3
PROMISE = dp.Privacy(1.0)

# Each takes a variable of D entries (or a D x D matrix) and returns constraints on it.
VECTOR_SETS: dict[str, Callable[[Any], list[Any]]] = {
    "space": lambda w: [],
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
MATRIX_SETS: dict[str, tuple[dict[str, Any], Callable[[Any], list[Any]]]] = {
    "semidefinite": ({"PSD": True}, lambda P: []),
    "eigenvalues between bounds": ({"symmetric": True}, lambda P: [P >> 0.1 * np.eye(D), P << 0.5 * np.eye(D)]),
    "semidefinite with bounded trace": ({"PSD": True}, lambda P: [cp.trace(P) <= 0.5]),
    "nuclear ball": ({}, lambda P: [cp.normNuc(P) <= 0.5]),
    "correlation matrices": ({"PSD": True}, lambda P: [cp.diag(P) == 1]),
}
REGULARIZERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "ridge and l1": (D, lambda w: 0.05 * cp.norm1(w)),
    "row norms": ((D, 2), lambda W: 0.05 * cp.sum(cp.norm(W, axis=1))),
    "largest absolute entry": (D, lambda w: 0.05 * cp.norm_inf(w)),
    "nuclear norm": ((D, 2), lambda W: 0.05 * cp.normNuc(W)),
    "huber": (D, lambda w: 0.05 * cp.sum(cp.huber(w, 0.1))),
    "differences and l1": (D, lambda w: 0.05 * cp.norm1(cp.diff(w)) + 0.02 * cp.norm1(w)),
    "overlapping groups": (D, lambda w: 0.05 * (cp.norm(w[:2]) + cp.norm(w[1:]))),
    "hinges and the largest size": (D, lambda w: 0.03 * cp.sum(cp.pos(w[1:] - w[:-1] - 0.1)) + 0.05 * cp.norm_inf(w)),
    "largest sizes": (D, lambda w: 0.05 * cp.sum_largest(cp.abs(w), 2)),
}
# Regularizers with kinks or logarithms whose proximal map is not that of the set.
TOGETHER: dict[str, tuple[Callable[[Any], Any], Callable[[Any], list[Any]]]] = {
    "entropy on a simplex": (lambda w: -0.05 * cp.sum(cp.entr(w)), lambda w: [w >= 0, cp.sum(w) == 1]),
    "divergence on a simplex": (
        lambda w: 0.05 * cp.sum(cp.kl_div(w, np.full(D, 1 / D))),
        lambda w: [w >= 0, cp.sum(w) == 1],
    ),
    "logarithms under an equation": (lambda w: -0.01 * cp.sum(cp.log(w)), lambda w: [cp.sum(w) == 1, w <= 1]),
    "absolute values on a simplex": (lambda w: 0.05 * cp.norm1(w - 0.2), lambda w: [w >= 0, cp.sum(w) == 1]),
    "differences in an exponential cone": (
        lambda w: 0.05 * cp.norm1(cp.diff(w)),
        lambda w: [cp.exp(w[0]) + w[1] <= 1],
    ),
    "norm in a ball and a half-space": (lambda w: 0.05 * cp.norm(w), lambda w: [cp.norm(w) <= 0.4, cp.sum(w) >= 0.2]),
}


def logistic(
    shape: Any,
    regularizer: Callable[[Any], Any] = lambda w: 0,
    constraints: Callable[[Any], list[Any]] = lambda w: [],
    score: Callable[[Any, Any], Any] = lambda w, x: x @ w,
    **attributes: Any,
) -> dp.Template:
    """Return a template of which a variable's logistic loss of scores is taken."""
    w = cp.Variable(shape, name="w", **attributes)
    return dp.Template(
        dp.Record(x=dp.Ball(D), y=dp.Choice([-1, 1])),
        lambda x, y: cp.log_sum_exp(cp.hstack([0, -y * score(w, x)])),
        0.1 * cp.sum_squares(w) + regularizer(w),
        constraints(w),
    )


def of_matrices(attributes: dict[str, Any], constraints: Callable[[Any], list[Any]]) -> dp.Template:
    return logistic((D, D), constraints=constraints, score=lambda P, x: x @ P @ x, **attributes)


def log_det() -> dp.Template:
    P = cp.Variable((D, D), symmetric=True, name="P")
    regularizer = 0.05 * cp.sum_squares(P) - 0.1 * cp.log_det(P)
    return dp.Template(dp.Record(x=dp.Ball(D)), lambda x: x @ P @ x, regularizer, [P >> 0.2 * np.eye(D)])


def gaussians() -> dp.Template:
    """Large-margin Gaussians with one shape for all classes, a bounded trace, and a bounded condition."""
    Phi = [cp.Variable((D, D), PSD=True, name=f"Phi_{c}") for c in range(2)]
    shape = [P[:2, :2] for P in Phi]

    def loss(x: Any, y: int) -> Any:
        z = cp.hstack([x, 1]) / np.sqrt(2)
        return dp.huber_hinge(1 + z @ (Phi[y] - Phi[1 - y]) @ z, width=0.5)

    return dp.Template(
        dp.Record(x=dp.Ball(2), y=dp.Choice([0, 1])),
        loss,
        0.05 * sum(cp.sum_squares(P) for P in Phi),
        [shape[0] == shape[1], cp.trace(shape[0]) <= 1, shape[0] >> 0.1 * np.eye(2), shape[0] << 0.9 * np.eye(2)],
    )


LEARNERS: dict[str, Callable[[], dp.Template]] = {
    **{f"K: {name}": partial(logistic, D, constraints=build) for name, build in VECTOR_SETS.items()},
    **{f"K: {name}": partial(of_matrices, *parts) for name, parts in MATRIX_SETS.items()},
    **{f"regularizer: {name}": partial(logistic, *parts) for name, parts in REGULARIZERS.items()},
    **{f"both: {name}": partial(logistic, D, *parts) for name, parts in TOGETHER.items()},
    "regularizer: log-det": log_det,
    "Gaussians with three more constraints": gaussians,
}


def drawn(template: dp.Template) -> dict[str, Any]:
    """Draw records of the domain."""
    batch = template.record.sample(SIZE, np.random.default_rng(4))
    return {**batch.fields, **{name: template.record.values(batch, name) for name in template.record.discrete}}


def reference(template: dp.Template, data: dict[str, Any], noise: dict[str, Array], added: float) -> dict[str, Array]:
    """Solve the perturbed program to the limit of accuracy."""
    problem = template.problem(data, noise, added=added)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13, max_iter=500)
        if problem.status != cp.OPTIMAL and "log_det" in str(problem):
            problem.solve(solver=cp.SCS, eps_abs=1e-12, eps_rel=1e-12, max_iters=200000)
    return {variable.name(): np.asarray(variable.value) for variable in problem.variables()}


def violation(template: dp.Template, values: dict[str, Array]) -> float:
    """Return by how much the declared constraints are missed."""
    problem = template.problem(drawn(template))
    for variable in problem.variables():
        variable.save_value(values[variable.name()])
    declared = [float(np.max(constraint.violation())) for constraint in problem.constraints]
    attributes = [float(np.abs(v.project(v.value) - v.value).max()) for v in problem.variables()]
    return max([0.0, *declared, *attributes])


UNPROVED: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "square of a kink": (D, lambda w: 0.05 * cp.square(cp.norm1(w))),
    "p-norm below 2": (D, lambda w: 0.05 * cp.pnorm(w, 1.5)),
    "nuclear norm and rows": ((D, D), lambda W: 0.05 * (cp.normNuc(W) + cp.sum(cp.norm(W, axis=1)))),
}


@pytest.mark.parametrize("name", UNPROVED)
def test_what_has_no_proved_distance_is_refused_before_it_is_paid(name: str) -> None:
    template, budget = logistic(*UNPROVED[name]), dp.Budget(PROMISE)
    with pytest.raises(dp.NotPrivate, match="nothing bounds the curvature of the regularizer"):
        dp.solve(template, drawn(template), PROMISE, budget=budget)
    assert budget.spent.epsilon == 0


@pytest.mark.parametrize("name", LEARNERS)
def test_it_releases_a_feasible_answer_and_the_distance_is_as_certified(name: str) -> None:
    """The computed minimiser of a perturbed program is within the certificate's tolerance of a reference."""
    template = LEARNERS[name]()
    data, analysis = drawn(template), analyse(template)
    certificate = dp.verify(template, PROMISE, size=SIZE)
    release = dp.solve(template, data, PROMISE, budget=dp.Budget(PROMISE))
    assert release.private
    assert violation(template, dict(release.items())) <= 1e-9
    rng = np.random.default_rng(6)
    linear = analysis.form.basis @ rng.normal(size=analysis.form.noise_dimension)
    added, tau = certificate.added, certificate.tolerance
    modulus = SIZE * analysis.modulus + added
    engine = DataEngine(analysis, template.record.validate(data), SIZE, None)
    theta = engine.minimise(modulus, tau, linear, added)
    noise = analysis.form.space.unpack(linear)
    exact = analysis.form.space.pack(reference(template, data, noise, added))
    # The reference is itself only as exact as its solver, whose objective has about 13 digits.
    slack = 1e-10
    assert np.linalg.norm(theta - exact) <= tau + slack
    assert violation(template, analysis.form.space.unpack(theta)) <= 1e-9


TIED: dict[str, tuple[Callable[[Any], Any], Callable[[Any], list[Any]]]] = {
    "largest entries": (lambda w: 0.1 * cp.sum_largest(w, 3), lambda w: []),
    "largest sizes": (lambda w: 0.01 * cp.sum_largest(cp.abs(w), 2), lambda w: []),
    "bounded sizes": (lambda w: 0, lambda w: [cp.sum_largest(cp.abs(w), 3) <= 0.3]),
}


@pytest.mark.parametrize("name", TIED)
def test_ties_that_take_many_linearisations_are_certified_whatever_the_records(name: str) -> None:
    """Noise leaves most entries tied, and the multipliers of one linearisation then certify nothing."""
    w, dim, size = cp.Variable(6, name="w"), 6, 1000
    template = dp.Template(
        dp.Record(x=dp.Ball(dim), y=dp.Choice([-1, 1])),
        lambda x, y: cp.logistic(-y * (x @ w)),
        1e-3 * cp.sum_squares(w) + TIED[name][0](w),
        TIED[name][1](w),
    )
    row = np.linspace(0.1, 0.5, dim)
    data = {"x": np.tile(row / np.linalg.norm(row) * 0.999, (size, 1)), "y": [1] * size}
    assert dp.solve(template, data, PROMISE, budget=dp.Budget(PROMISE)).private
