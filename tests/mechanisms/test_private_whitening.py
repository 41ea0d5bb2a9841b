"""Private whitening: what one record moves, exact composition of both stages, noise on integers, and what is refused."""

from __future__ import annotations

import math

import cvxpy as cp
import pytest

import dpconvex as dp
from dpconvex.noise.profiles import gaussian_delta

ADJACENCIES = ("replace-one", "add-remove")
DESCENT = dp.NoisyGradientDescent(clip=0.3)


def logistic(features: int = 3, regularization: float = 0.0) -> dp.Template:
    return dp.load("logistic_regression", features=features, regularization=regularization)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("share", [0.05, 0.5])
@pytest.mark.parametrize("kind", ["gradients", "output"])
def test_two_gaussian_stages_are_one(kind: str, share: float, adjacency: str) -> None:
    promise = dp.Privacy(0.8, 1e-6, adjacency)
    mechanism = DESCENT if kind == "gradients" else dp.OutputPerturbation("gaussian")
    template = logistic(regularization=0.1)
    found = dp.verify(template, promise, 500, mechanism, whitening=dp.PrivateWhitening(share))
    noise, cover = found.whitening, found.cover
    assert noise is not None
    assert cover is not None
    first = (math.sqrt(2) if adjacency == "replace-one" else 1.0) / noise.sigma
    if kind == "gradients":
        second = found.sensitivity * math.sqrt(found.settings["steps"]) / found.noise_scale
    else:
        second = found.sensitivity / found.strong_convexity / found.noise_scale
    assert first**2 / (first**2 + second**2) == pytest.approx(share, rel=1e-3)
    left = promise.epsilon - cover.epsilon - cover.counting
    spent = float(gaussian_delta(left, math.hypot(first, second)))
    assert 0.98 * promise.delta <= spent + cover.delta <= promise.delta
    assert sum(part for part, _ in found.shares()) == pytest.approx(promise.epsilon, rel=1e-9)
    assert dp.Certificate.from_dict(found.to_dict()) == found
    assert "one Gaussian mechanism" in str(found)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_other_mechanisms_divide_the_promise(adjacency: str) -> None:
    promise = dp.Privacy(1.0, 1e-5, adjacency)
    template = logistic(regularization=0.1)
    for mechanism in (dp.ObjectivePerturbation("gaussian"), dp.ObjectivePerturbation("gamma")):
        found = dp.verify(template, promise, 500, mechanism, whitening=dp.PrivateWhitening(0.2))
        assert found.whitening is not None
        assert (found.whitening.epsilon, found.whitening.delta) == (0.2, pytest.approx(2e-6))
        assert float(gaussian_delta(0.2, found.whitening.level)) <= 2e-6
        assert sum(part for part, _ in found.shares()) == pytest.approx(1.0, rel=1e-6)
        rest = dp.verify(template, dp.Privacy(0.8, 8e-6, adjacency), 500, mechanism)
        assert found.noise_scale == pytest.approx(rest.noise_scale, rel=1e-6)


def test_what_it_cannot_do_is_refused() -> None:
    promise = dp.Privacy(1.0, 1e-5)
    w = cp.Variable(2, name="w")
    box = dp.Template(dp.Record(x=dp.Box([0, 0], [1, 1])), lambda x: cp.logistic(x @ w), cp.sum_squares(w))
    with pytest.raises(dp.TemplateError, match="Euclidean balls"):
        dp.verify(box, promise, 100, whitening=dp.PrivateWhitening())
    with pytest.raises(dp.TemplateError, match="Euclidean balls"):
        dp.verify(logistic(), promise, 100, DESCENT, whitening=dp.PrivateWhitening(field="y"))


@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_in_a_ledger_of_gaussian_shifts_it_costs_what_it_is(adjacency: dp.Adjacency) -> None:
    found = dp.verify(logistic(), dp.Privacy(1.0, 1e-6, adjacency), 2000, whitening=True)
    assert found.whitening is not None
    assert found.event is not None
    assert (
        found.whitening.composed <= found.event.level()[0] <= 1.005 * found.whitening.composed
    )  # the residual noise, too
