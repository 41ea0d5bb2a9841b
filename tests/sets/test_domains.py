"""Where a regularizer is defined: K lies inside, or becomes smaller, or the regularizer is refused."""

import cvxpy as cp
import numpy as np
import pytest
from scipy.integrate import quad

import dpconvex as dp
from dpconvex.fitting.verify import analyse

RECORD = dp.Record(x=dp.Ball(1))
v = cp.Variable(2, name="v")
S = cp.Variable((2, 2), name="S", symmetric=True)
Q = cp.Variable((2, 2), name="Q")


def analysed(regularizer, constraints=(), variable=v):
    first = cp.vec(variable, order="F")[0]
    return analyse(dp.Template(RECORD, lambda x: cp.logistic(x[0] * first), regularizer, list(constraints)))


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


@pytest.mark.parametrize("name", TERMS)
def test_a_domain_becomes_a_part_of_k(name):
    feasible = analysed(cp.sum_squares(v) + TERMS[name](v - 0.25)).form.feasible
    assert feasible.lower == pytest.approx([0.25, 0.25])
    assert (feasible.project(np.array([-1.0, 1.0])) >= 0.25).all()
    inside = analysed(cp.sum_squares(v) + TERMS[name](v - 0.25), [v >= 1, v <= 2]).form.feasible
    assert len(inside.constraints) == 2


def test_what_is_defined_everywhere_adds_nothing():
    for term in (cp.sum(cp.power(v, 2)), cp.sum(cp.power(v, 6)), cp.power(cp.norm(v), 3)):
        assert analysed(cp.sum_squares(v) + term).form.feasible.is_space


def test_divisors_have_to_keep_away_from_zero():
    with pytest.raises(dp.NotPrivate, match="not known to be positive"):
        analysed(cp.sum_squares(v) + cp.quad_over_lin(v[0], v[1]), [v >= 0])
    assert analysed(cp.sum_squares(v) + cp.quad_over_lin(v[0], v[1]), [v >= 0.1]).modulus == pytest.approx(2.0)


@pytest.mark.parametrize("spectral", [lambda m: -cp.log_det(m), cp.lambda_max, cp.tr_inv])
def test_spectral_functions_ask_for_symmetric_matrices(spectral):
    for variable, inner in ((Q, Q), (S, S @ np.array([[1.0, 1.0], [0.0, 1.0]]))):
        with pytest.raises(dp.NotPrivate):
            analysed(cp.sum_squares(variable) + spectral(inner), (), variable)


def test_log_det_keeps_to_positive_semidefinite_matrices():
    feasible = analysed(cp.sum_squares(S) - cp.log_det(S + np.eye(2)), (), S).form.feasible
    projected = feasible.space.unpack(feasible.project(feasible.space.pack({"S": -5 * np.eye(2)})))["S"]
    np.testing.assert_allclose(projected, -np.eye(2))


def density(points, slope, beta, floor):
    """Density of the answer above the floor, and its probability at the floor, for the cubic learner of one record."""

    def gradient(theta):
        return slope / (1 + np.exp(-slope * theta)) + theta + 0.3 * theta**2

    curvature = slope**2 * 0.25 / np.cosh(slope * points / 2) ** 2 + 1 + 0.6 * points
    at_floor = -gradient(floor)  # the noise that makes the floor the minimiser, and all below
    below = 0.5 * np.exp(beta * at_floor) if at_floor < 0 else 1 - 0.5 * np.exp(-beta * at_floor)
    return beta / 2 * np.exp(-beta * np.abs(gradient(points))) * curvature, 1 - below


def test_a_cubic_regularizer_is_as_private_as_promised():
    """Exact log density ratios, with the point mass at 0: beyond the domain of the cubic they reached four times epsilon."""
    w = cp.Variable(1, name="w")
    regularizer = 0.5 * cp.sum_squares(w) + 0.1 * cp.sum(cp.power(w, 3))
    template = dp.Template(RECORD, lambda x: cp.logistic(x @ w), regularizer)
    mechanism = dp.ObjectivePerturbation("gamma", added=0.0)
    certificate = dp.verify(template, dp.Privacy(1.0), size=1, mechanism=mechanism)
    assert analyse(template).form.feasible.lower.tolist() == [0.0]
    points, beta = np.linspace(0.0, 6.0, 2001), 1.0 / certificate.noise_scale
    first, second = density(points, 1.0, beta, 0.0), density(points, -1.0, beta, 0.0)
    worst = np.abs(np.log(first[0] / second[0])).max()
    masses = abs(np.log(first[1] / second[1])) if min(first[1], second[1]) > 0 else 0.0
    assert max(worst, masses) <= 1.0
    whole, _ = quad(lambda t: float(density(np.array([t]), 1.0, beta, 0.0)[0][0]), 0, 200, limit=500)
    assert whole + first[1] == pytest.approx(1.0, abs=1e-6)
