"""No number of records makes a fit fail where that number is protected, and what the program learns of it is paid for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.mechanisms.certificate import TAIL
from dpconvex.mechanisms.grid import laplace_count, perturb
from dpconvex.mechanisms.noisy_count import bound_on_count, for_count
from dpconvex.mechanisms.residual_noise import ABOVE_FLOOR, ABOVE_RARE_FLOOR, noise_cap
from dpconvex.mechanisms.rounding import covered_count, largest_floor, margin
from dpconvex.noise.samplers import seeded_generator
from dpconvex.release.verify import analyse

GAMMA = dp.ObjectivePerturbation()
PURE = dp.Privacy(1.0, adjacency="add-remove")


def learner() -> dp.Template:
    return dp.load("logistic_regression", features=3, regularization=1e-3)


def bounded() -> dp.Template:
    w = cp.Variable(3, name="w")
    loss = lambda x: cp.huber(1 - x @ w, 0.5)  # noqa: E731
    return dp.Template(dp.Record(x=dp.Ball(3)), loss, 1e-3 * cp.sum_squares(w), [cp.norm(w, 2) <= 5])


@pytest.mark.parametrize("times", [0, 1, 200, 2000])
@pytest.mark.parametrize(
    ("mechanism", "delta"),
    [(GAMMA, 0.0), (dp.OutputPerturbation(), 0.0), (dp.OutputPerturbation("gaussian"), 1e-6)],
    ids=["objective", "output", "gaussian output"],
)
def test_fits_on_many_more_records_than_the_nominal_number(mechanism: Any, delta: float, times: int) -> None:
    size = 30
    for template in (learner(), bounded()):
        x = np.zeros((times * size, 3))
        x[:, 0] = 1.0
        data = {"x": x, "y": np.ones(len(x), dtype=int)}
        data = {name: data[name] for name in template.record.fields}
        for epsilon in (0.5, 80.0):
            promise = dp.Privacy(epsilon, delta, "add-remove")
            for seed in (None, 1):
                release = dp.solve(template, data, promise, mechanism, size=size, seed=seed)
                assert release.certificate is not None
                assert release.certificate.cover is not None
                assert release.certificate.cover.records >= len(x)


def test_descent_on_many_more_records() -> None:
    mechanism, promise = dp.NoisyGradientDescent(steps=3), dp.Privacy(90.0, 1e-6, "add-remove")
    few, many = (
        dp.solve(bounded(), {"x": np.full((n, 3), 0.5)}, promise, mechanism, size=30, seed=0).certificate
        for n in (30, 60_000)
    )
    assert few is not None
    assert many is not None
    assert few.sensitivity < many.sensitivity < few.sensitivity * (1 + 1e-6)
    assert many.noise_scale / few.noise_scale == pytest.approx(many.sensitivity / few.sensitivity, rel=1e-9)


def test_the_bound_is_one_but_for_two_to_the_minus_hundred() -> None:
    for epsilon in (1e-4, 0.0025, 0.3):
        reach = margin(epsilon)
        # Integer Laplace noise of scale 1/epsilon is below -k with probability exp(-k epsilon) / (1 + exp(-epsilon)) at most.
        assert -reach * epsilon - math.log1p(math.exp(-epsilon)) < math.log(TAIL)
        assert (reach - 2) * epsilon < -math.log(TAIL)


def test_the_noisy_number_has_the_law_that_is_paid_for() -> None:
    cover = dp.verify(learner(), dp.Privacy(1000.0, adjacency="add-remove"), 50).cover
    assert cover is not None
    assert cover.counting == pytest.approx(0.025)
    rng = seeded_generator(3)
    drawn = np.array([bound_on_count(cover, 50, rng) for _ in range(4000)]) - margin(cover.counting) - 50
    assert np.abs(drawn).mean() == pytest.approx(1 / cover.counting, rel=0.1)
    assert (drawn == np.rint(drawn)).all()
    # Noise that is too small is not drawn.
    assert bound_on_count(cover, 50) > 50
    with pytest.raises(dp.DPConvexError, match="does not keep"):
        perturb(np.zeros(1), replace(laplace_count(cover.counting), scale=0.99 / cover.counting))


def test_a_certificate_for_more_records() -> None:
    analysis = analyse(learner())
    certificate = dp.verify(learner(), PURE, 50, GAMMA)
    assert certificate.cover is not None
    assert certificate.cover.records == covered_count(PURE, 50, certificate.cover.counting)
    assert for_count(GAMMA, analysis, certificate, certificate.cover.records) is certificate
    more = for_count(GAMMA, analysis, certificate, 1e9)
    assert more.cover is not None
    assert (more.noise_scale, more.privacy) == (certificate.noise_scale, certificate.privacy)
    lowest = largest_floor(analysis, more, noise_cap(GAMMA, more), 1e9)
    assert more.tolerance >= ABOVE_RARE_FLOOR * lowest * (1 - 1e-12)
    assert more.tolerance >= 0.99 * ABOVE_FLOOR * lowest  # there, the noise of the number is small next to it
    assert more.cover.distance > more.tolerance > certificate.tolerance
    assert (more.cover.epsilon, more.cover.counting) == (certificate.cover.epsilon, certificate.cover.counting)
    assert more.cover.size > certificate.cover.size
    assert dp.Certificate.from_dict(more.to_dict()) == more
