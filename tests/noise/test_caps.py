"""Norms of a record's distance and a constant: eigenvalues, exact densities in the plane, and quadrature."""

from __future__ import annotations

import math

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from scipy import stats

import dpconvex as dp
from dpconvex.calculus.analysis import Analysis
from dpconvex.calculus.joint_supremum import NormJoint
from dpconvex.calculus.norm_angles import stretches
from dpconvex.mechanisms.noise_laws import objective_delta
from dpconvex.noise.caps import cap_delta
from dpconvex.noise.gaussian_profiles import chi_delta, smallest_scale
from dpconvex.release.verify import analyse

Array = NDArray[np.float64]
FLOOR = 0.2


def location(features: int = 2, **options: float) -> Analysis:
    return analyse(dp.load("robust_location", features=features, scale=FLOOR, **options))


def least_sigma(analysis: Analysis, adjacency: str, mu: float, delta: float) -> float:
    moduli = analysis.moduli(1.0, mu - analysis.modulus)
    found = smallest_scale(lambda s: objective_delta(analysis, adjacency, moduli, 1.0, s)[0], delta, 3.0)
    assert found is not None
    return found


@given(
    entries=st.integers(1, 4),
    width=st.integers(1, 4),
    floor=st.sampled_from([0.05, 0.5, 3.0]),
    mu=st.sampled_from([0.1, 1.0, 20.0]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60)
def test_the_curvature_at_every_length_of_the_gradient(
    entries: int, width: int, floor: float, mu: float, seed: int
) -> None:
    """Hessians of ||(c, A theta + b)||, of any rank, against what is bounded where the gradient is as long."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(entries, width))
    theta = cp.Variable(width, name="theta")
    template = dp.Template(
        dp.Record(b=dp.Ball(entries)),
        lambda b: 3 * cp.norm(cp.hstack([floor, matrix @ theta + b])) + 1,
        cp.sum_squares(theta) / 2,
    )
    joint = analyse(template).losses[0].joint
    assert isinstance(joint, NormJoint)
    assert joint.radius == pytest.approx(np.linalg.norm(matrix, 2))
    steepness, curvature = stretches(joint.scale * joint.radius**2 / floor / mu, joint.across, joint.along)
    for size in np.geomspace(1e-2, 1e2, 30) * floor:
        v = rng.normal(size=entries)
        v *= size / np.linalg.norm(v)
        length = math.hypot(size, floor)
        hessian = 3 * matrix.T @ (np.eye(entries) - np.outer(v, v) / length**2) @ matrix / length
        there = np.searchsorted(steepness, size / length)
        assert np.linalg.norm(3 * matrix.T @ v / length) <= joint.scale * joint.radius * steepness[there] * (1 + 1e-9)
        assert np.linalg.slogdet(np.eye(width) + hessian / mu)[1] <= curvature[there] * (1 + 1e-9)
    beta = 0.7
    assert joint.loss(beta, mu) <= (beta * 3 * joint.radius + curvature[0]) * (1 + 1e-9)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_pure_epsilon_is_kept_and_nearly_spent(adjacency: str) -> None:
    """Log ratios of densities on the line: noise of density exp(-beta |b|), and records on either side."""
    analysis = location(1, radius=50.0)
    for beta, mu in ((0.2, 10.0), (0.5, 2.0), (1.0, 30.0)):
        m = np.linspace(-20.0, 20.0, 20001)
        slope, bend = m / np.hypot(m, FLOOR), FLOOR**2 / np.hypot(m, FLOOR) ** 3
        other = 0.0 if adjacency == "add-remove" else 1.0  # of a record far on the other side
        worst = float((beta * (np.abs(slope) + other) + np.log1p(bend / mu)).max())
        bound, how = analysis.perturbation_cost(beta, analysis.moduli(1.0, mu - analysis.modulus), adjacency)
        assert worst * (1 - 1e-4) <= bound * (1 + 1e-9)
        assert bound <= worst * 1.01
        assert "norm" in how


class Plane:
    """Exact deltas of robust location in the plane: one record appears, next to a pull that stands for the others."""

    def __init__(self, mu: float, sigma: float, pull: float) -> None:
        side = (np.arange(241) + 0.5) / 241 * 2 - 1
        reach = (6.5 * sigma + 1.5) / mu
        x, y = np.meshgrid(reach * side - pull / mu, reach * side, indexing="ij")
        self.cell = (2 * reach / 241) ** 2
        self.log = [self.density(x, y, mu, sigma, pull, there) for there in (True, False)]

    @staticmethod
    def density(x: Array, y: Array, mu: float, sigma: float, pull: float, there: bool) -> Array:
        length = np.sqrt(x**2 + y**2 + FLOOR**2)
        bx, by = mu * x + pull + there * x / length, mu * y + there * y / length
        det = (mu + there / length) * (mu + there * FLOOR**2 / length**3)
        return np.asarray(np.log(det) - (bx**2 + by**2) / (2 * sigma**2) - math.log(2 * math.pi * sigma**2))

    def delta(self, epsilon: float) -> float:
        found = []
        for first, second in (self.log, self.log[::-1]):
            found.append(
                float((np.exp(first) * np.maximum(-np.expm1(epsilon + second - first), 0.0)).sum() * self.cell)
            )
        return max(found)


@pytest.mark.parametrize(("mu", "delta"), [(12.0, 1e-3), (20.0, 1e-2), (20.0, 1e-5)])
def test_the_promise_is_kept_in_the_plane_and_less_noise_would_break_it(mu: float, delta: float) -> None:
    sigma = least_sigma(location(2, radius=1e3), "add-remove", mu, delta)

    def worst(scale: float) -> float:
        return max(Plane(mu, scale, pull).delta(1.0) for pull in np.linspace(0.0, 6.0, 9) * scale)

    assert worst(sigma) <= delta
    assert worst(0.7 * sigma) > delta


def test_it_needs_far_less_noise_than_curvature_everywhere() -> None:
    analysis = location(2)
    for adjacency, dimension, length in (("add-remove", 2, 1.0), ("replace-one", 4, 2.0)):
        curvature = analysis.log_det(analysis.moduli(1.0, 20.0))[0]
        apart = smallest_scale(lambda s, d=dimension, n=length, c=curvature: chi_delta(1.0 - c, d, n / s), 1e-6, 5.0)
        assert apart is not None
        assert least_sigma(analysis, adjacency, 20.0, 1e-6) <= 0.75 * apart


@pytest.mark.parametrize(("dimension", "shift", "ratio"), [(1, 0.3, 0.2), (2, 0.5, 0.5), (5, 0.2, 0.1)])
@pytest.mark.parametrize("behind", [0.0, 0.3])
def test_the_mean_is_above_quadrature_and_close(dimension: int, shift: float, ratio: float, behind: float) -> None:
    sine = np.sin(np.linspace(0, math.pi / 2, 2001))
    cosine = np.sqrt(1 - sine**2)
    bend = (dimension - 1) * np.log1p(ratio * cosine) + np.log1p(ratio * cosine**3)
    length = shift * sine + behind

    t = np.linspace(0.0, 12.0, 4001)
    loss = np.array([(length * x + length**2 / 2 + bend).max() for x in t])
    exact = float(np.trapezoid(np.maximum(-np.expm1(1.0 - loss), 0.0) * stats.chi.pdf(t, dimension), t))
    assert exact * (1 - 1e-5) <= cap_delta(1.0, dimension, shift, ratio, dimension - 1, 1, behind) <= exact * 1.1


def test_a_norm_keeps_its_shape_only_where_it_is_known() -> None:
    w = cp.Variable(2, name="w")
    record = dp.Record(x=dp.Ball(2), y=dp.Box(0.5, 1.0))

    def joint(loss: object) -> object:
        return analyse(dp.Template(record, loss, cp.sum_squares(w) / 2)).losses[0].joint  # type: ignore[arg-type]

    of_the_record = joint(lambda x, y: y * cp.norm(cp.hstack([y, w - x])) + y)
    assert isinstance(of_the_record, NormJoint)
    assert (of_the_record.scale, of_the_record.floor) == pytest.approx((1.0, 0.5))
    for loss in (
        lambda x, y: cp.norm(cp.hstack([y, w - x])) + w @ x,
        lambda x, y: cp.norm(cp.hstack([y, w - x])) + cp.logistic(w @ x),
        lambda x, y: cp.norm(cp.hstack([y, w - x])) + cp.norm(cp.hstack([y, w + x])),
        lambda x, y: cp.pnorm(cp.hstack([y, w - x]), 3),
        lambda x, y: cp.logistic(cp.norm(cp.hstack([y, w - x]))),
    ):
        assert not isinstance(joint(loss), NormJoint)


def test_extremes_are_numbers() -> None:
    for shift in (1e-12, 1e-3, 1e3):
        for ratio in (1e-12, 1.0, 1e12):
            assert 0 <= cap_delta(1.0, 3, shift, ratio, 2, 1) <= 1
            assert 0 <= cap_delta(700.0, 3, shift, ratio, 2, 1, shift) <= 1
