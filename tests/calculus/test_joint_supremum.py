"""Gradient and curvature bounded together: against a fine grid of slopes or weights, and free where theory says so."""

import cvxpy as cp
import numpy as np
import pytest
from derivatives import analyse

from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.joint_supremum import HingeJoint
from dpconvex.core.record_domains import Ball
from dpconvex.language.huber_hinge import huber_hinge

w = cp.Variable(2, name="w")
W = cp.Variable((3, 2), name="W")
COSTS = [(beta, mu) for beta in (0.0, 0.1, 1.5, 5.0) for mu in (1e-3, 0.1, 1.0, 30.0)]
SLOPES = np.linspace(0.0, 1.0, 20001)
SHARE = np.linspace(0.0, 1.0, 101)
FIRST, SECOND = (grid[np.add.outer(SHARE, SHARE) <= 1] for grid in np.meshgrid(SHARE, SHARE))
WEIGHTS = np.column_stack([FIRST, SECOND, 1 - FIRST - SECOND])


def cost(analysis: Analysis, beta: float, mu: float, adjacency: str = "add-remove") -> float:
    return analysis.perturbation_cost(beta, mu, adjacency)[0]


@pytest.mark.parametrize(("radius", "scale"), [(1.0, 1.0), (3.0, 0.5)])
def test_logistic_is_exact(radius, scale):
    """sup over slopes s of beta R c s + log(1 + c R^2 s (1 - s) / mu)."""
    analysis = analyse(lambda x: scale * cp.logistic(w @ x), x=Ball(2, radius))
    for beta, mu in COSTS:
        q = scale * radius**2 / mu
        seen = (beta * scale * radius * SLOPES + np.log1p(q * SLOPES * (1 - SLOPES))).max()
        assert seen <= cost(analysis, beta, mu) * (1 + 1e-9)
        assert cost(analysis, beta, mu) == pytest.approx(seen, rel=1e-6)
        other = beta * scale * radius
        assert cost(analysis, beta, mu, "replace-one") == pytest.approx(seen + other, rel=1e-6)


@pytest.mark.parametrize("offset", [-3.0, 0.0, 3.0])
def test_bounded_slopes_are_used(offset):
    ball = [cp.norm(w, 2) <= 0.5]
    analysis = analyse(lambda x: cp.logistic(w @ x + offset), ball, x=Ball(2))
    low, high = (1 / (1 + np.exp(-m)) for m in (offset - 0.5, offset + 0.5))
    s = np.linspace(low, high, 20001)
    for beta, mu in COSTS:
        seen = (beta * s + np.log1p(s * (1 - s) / mu)).max()
        assert seen <= cost(analysis, beta, mu) * (1 + 1e-9)
        assert cost(analysis, beta, mu) == pytest.approx(seen, rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "vertices"),
    [
        (lambda x: cp.log_sum_exp(W @ x), np.eye(3)),
        (lambda x: 2 * cp.log_sum_exp(W @ x) - 2 * (W[0] @ x), 2 * (np.eye(3) - np.eye(3)[0])),
        (lambda x: cp.log_sum_exp(cp.hstack([(W[c] - W[1]) @ x for c in range(3)])), np.eye(3) - np.eye(3)[1]),
    ],
)
def test_softmax_is_never_below_a_grid_of_weights(loss, vertices):
    """On the unit ball the gradient is E v and the Hessian a multiple of Cov(v), for points v with these coordinates."""
    analysis = analyse(loss, x=Ball(2))
    scale = np.abs(vertices).max()
    means = WEIGHTS @ vertices
    covariances = np.einsum("ni,ij,ik->njk", WEIGHTS, vertices, vertices) - means[:, :, None] * means[:, None, :]
    spectra = np.linalg.eigvalsh(covariances) / scale
    for beta, mu in COSTS:
        seen = (beta * np.linalg.norm(means, axis=1) + np.log1p(np.maximum(spectra, 0) / mu).sum(axis=1)).max()
        assert seen <= cost(analysis, beta, mu) * (1 + 1e-9)
        apart = beta * analysis.gradient_bound + analysis.log_det(mu)[0]
        assert cost(analysis, beta, mu) <= apart * (1 + 1e-9)


@pytest.mark.parametrize(("width", "factor"), [(0.1, 1.0), (1.0, 2.0), (4.0, 0.5)])
def test_a_hinge_of_a_softmax_is_never_below_a_grid_of_weights(width, factor):
    """With slope s the gradient is s E v and the Hessian s Cov(v) + (E v)(E v)' / (2 h); the sum is nearly reached."""
    against = np.eye(4)[1:] - np.eye(4)[0]
    four = cp.Variable((4, 2), name="four")
    analysis = analyse(lambda x: factor * huber_hinge(1 + cp.log_sum_exp(against @ (four @ x)), width), x=Ball(2))
    assert isinstance(analysis.losses[0].joint, HingeJoint)
    means = WEIGHTS @ against
    covariances = np.einsum("ni,ij,ik->njk", WEIGHTS, against, against) - means[:, :, None] * means[:, None, :]
    outer = means[:, :, None] * means[:, None, :] / (2 * width)
    for beta, mu in COSTS:
        seen = 0.0
        for slope in (0.3, 0.9, 1.0):
            spectra = np.maximum(np.linalg.eigvalsh(factor * (slope * covariances + outer)), 0)
            values = beta * factor * slope * np.linalg.norm(means, axis=1) + np.log1p(spectra / mu).sum(axis=1)
            seen = max(seen, float(values.max()))
        found = cost(analysis, beta, mu)
        assert seen <= found * (1 + 1e-9)
        assert found <= 1.15 * seen
        apart = beta * analysis.gradient_bound + analysis.log_det(mu)[0]
        assert found <= apart * (1 + 1e-9)
