"""Errors that break a promise by a tenth, one for each mechanism and law: the audit finds each, and nothing before."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.calculus.analysis import Analysis
from dpconvex.mechanisms import (
    gradient_descent,
    noise_laws,
    noisy_kmeans,
    private_selection,
    residual_noise,
)
from dpconvex.noise import samplers

TENTH = 0.9
Plant = Callable[[pytest.MonkeyPatch], None]


@lru_cache
def logistic() -> dp.Template:
    return dp.load("logistic_regression", features=1, regularization=0.01)


@lru_cache
def softmax() -> dp.Template:
    return dp.load("softmax_regression", features=1, classes=3, regularization=0.01)


@lru_cache
def kinked() -> dp.Template:
    """Return a support vector machine in a ball."""
    w = cp.Variable(1, name="w")
    record = dp.Record(x=dp.Box([-1.0], [1.0]), y=dp.Choice([-1, 1]))
    return dp.Template(record, lambda x, y: cp.pos(1 - y * (x @ w)), 0.0, [cp.norm(w) <= 3])


@lru_cache
def mixture() -> dp.Template:
    return dp.load("large_margin_gaussian_mixture", features=1, components=2)


def scaled(owner: Any, name: str) -> Plant:
    """Return what makes the noise that a function calibrates a tenth too small."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        honest = getattr(owner, name)

        def calibrate(*arguments: Any) -> Any:
            found = honest(*arguments)
            return replace(found, scale=TENTH * found.scale)

        monkeypatch.setattr(owner, name, calibrate)

    return plant


def times(owner: Any, name: str, factor: float) -> Plant:
    """Return what multiplies the value of a function."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        honest = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: factor * honest(*a, **k))

    return plant


def run_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow each of several runs a tenth more."""
    honest = dp.Repetitions.each

    def each(self: dp.Repetitions, whole: dp.Privacy) -> dp.Privacy:
        found = honest(self, whole)
        return dp.Privacy(1.1 * found.epsilon, found.delta, found.adjacency)

    monkeypatch.setattr(dp.Repetitions, "each", each)


def drawn(owner: Any, name: str) -> Plant:
    """Return what draws a tenth less than the certificate says."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        honest = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda p, scale, rng: honest(p, TENTH * scale, rng))

    return plant


@dataclass(frozen=True)
class Case:
    """A promise, an error that breaks it, the part in which the audit sees it, and how tight that part is without it."""

    template: Callable[[], Any]
    privacy: dp.Privacy
    mechanism: Any
    plant: Plant
    part: str = "exact answer"
    tight: float = 0.99
    options: tuple[tuple[str, Any], ...] = ()


PURE, BOTH = dp.Privacy(1.0), dp.Privacy(1.0, 1e-6, adjacency="add-remove")
GAMMA, GAUSSIAN = dp.ObjectivePerturbation(), dp.ObjectivePerturbation("gaussian")
OUTPUT, NORMAL = dp.OutputPerturbation(), dp.OutputPerturbation("gaussian")
ADDED = dp.Privacy(1.0, adjacency="add-remove")

CASES = {
    "Gamma noise on the objective": Case(logistic, ADDED, GAMMA, scaled(noise_laws.GammaLaw, "calibrate")),
    "Gaussian noise on the objective": Case(
        logistic, BOTH, GAUSSIAN, scaled(noise_laws.GaussianLaw, "calibrate"), tight=0.75
    ),
    "matrix-shaped noise": Case(
        softmax, ADDED, dp.ObjectivePerturbation("matrix"), scaled(noise_laws.MatrixLaw, "calibrate"), tight=0.92
    ),
    "Gamma noise on the output": Case(logistic, ADDED, OUTPUT, times(samplers.Gamma, "calibrate", TENTH), tight=0.97),
    "Gaussian noise on the output": Case(
        logistic, BOTH, NORMAL, times(samplers.Gaussian, "calibrate", TENTH), tight=0.9
    ),
    "noisy gradient descent": Case(
        kinked,
        BOTH,
        dp.NoisyGradientDescent(steps=10),
        times(gradient_descent, "gaussian_sigma", TENTH),
        "noisy gradients",
    ),
    "exponential mechanism": Case(
        lambda: [logistic()] * 2,
        ADDED,
        OUTPUT,
        times(private_selection, "rate", 1.1),
        "choice",
        options=(("selection", "exponential"),),
    ),
    "the best of several runs": Case(
        lambda: [logistic()],
        PURE,
        OUTPUT,
        run_cost,
        "best of all runs",
        options=(("repetitions", dp.Repetitions(5)),),
    ),
    "pure clustering": Case(
        mixture,
        PURE,
        GAMMA,
        times(noisy_kmeans, "block_sensitivity", TENTH),
        "clustering",
        options=(("share", 0.2), ("effort", 0.02)),
    ),
    "Gaussian clustering": Case(
        mixture,
        dp.Privacy(3.0, 1e-4),
        GAMMA,
        times(samplers, "gaussian_sigma", TENTH),
        "clustering",
        options=(("share", 0.5), ("effort", 0.02)),
    ),
    "cover of the computed answer": Case(
        logistic, PURE, OUTPUT, scaled(residual_noise, "calibrate_residual_noise"), "cover of the computed answer"
    ),
    "Gamma noise as drawn": Case(logistic, PURE, GAMMA, drawn(samplers, "gamma_direction"), "noise as drawn", 0.9),
    "Gaussian noise as drawn": Case(logistic, BOTH, NORMAL, drawn(samplers, "gaussian"), "noise as drawn", 0.9),
}


def audited(case: Case) -> dp.Audit:
    options = {"effort": 0.1} | dict(case.options)
    return dp.audit(case.template(), case.privacy, case.mechanism, size=2000, seed=3, **options)


SLOW = {"pure clustering", "Gaussian clustering", "exponential mechanism", "Gaussian noise as drawn"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES])
def test_a_tenth_too_little_noise_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    honest = audited(case)
    assert honest.holds, str(honest)
    assert honest[case.part].ratio >= case.tight, str(honest)
    case.plant(monkeypatch)
    broken = audited(case)
    assert not broken[case.part].holds, str(broken)
    assert not broken.holds
    assert "BROKEN" in str(broken)


def steep() -> dp.Template:
    """Return a steep, narrow loss: its curvature costs as much as its slope."""
    w = cp.Variable(1, name="w")
    record = dp.Record(x=dp.Box([0.999], [1.0]))
    return dp.Template(record, lambda x: 10 * cp.logistic(-x @ w), 0.15 * cp.sum_squares(w))


@pytest.mark.parametrize("mechanism", [GAMMA, GAUSSIAN], ids=["gamma", "gaussian"])
def test_curvature_that_nobody_pays_for_is_found_from_the_template_alone(
    mechanism: dp.ObjectivePerturbation, monkeypatch: pytest.MonkeyPatch
) -> None:
    delta = 1e-2 if mechanism is GAUSSIAN else 0.0
    privacy, mechanism = dp.Privacy(8.0, delta, adjacency="add-remove"), replace(mechanism, added=0.0)
    assert dp.audit(steep(), privacy, mechanism, size=1, effort=0.1, seed=0).holds
    monkeypatch.setattr(Analysis, "log_dets", lambda self, moduli: np.zeros(len(self.losses)))
    monkeypatch.setattr(Analysis, "perturbation_cost", lambda self, beta, *_: (beta * self.gradient_bound, ""))
    broken = dp.audit(steep(), privacy, mechanism, size=1, effort=0.1, seed=0)
    assert broken["exact answer"].ratio > 1.05, str(broken)
    assert not broken.holds
