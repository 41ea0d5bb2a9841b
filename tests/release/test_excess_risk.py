"""Bounds on the excess risk: that they hold, that they are attained where the theory says so, and what they are made of."""

import math
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from numpy.typing import NDArray

import dpconvex as dp
from dpconvex.calculus.regularizer_slope import bregman_bounds, slope_of
from dpconvex.release.engine import DataEngine
from dpconvex.release.excess_risk import mean_square, minimiser_radius
from dpconvex.release.verify import analyse

Array = NDArray[np.float64]


def generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def linear(features: int, weight: float = 0.1) -> dp.Template:
    """A linear loss: the objective is a quadratic with no more curvature than its regularizer's."""
    w = cp.Variable(features, name="w")
    return dp.Template(dp.Record(x=dp.Ball(features)), lambda x: x @ w, weight / 2 * cp.sum_squares(w))


class Exact:
    """Closed-form answers for `linear`: the minimiser of <total + b, w> + (mu/2) ||w||^2."""

    def __init__(self, total: Array, regular: float) -> None:
        self.total, self.regular = total, regular

    def minimise(
        self,
        strong_convexity: float,
        tolerance: float,
        linear: Array | None = None,
        added: float = 0.0,
        smoothing: float = 0.0,
    ) -> Array:
        return -(self.total + (0.0 if linear is None else linear)) / (self.regular + added)

    def gradient(self, theta: Array) -> Array:
        return self.total + self.regular * theta

    def project(self, theta: Array) -> Array:
        return theta

    def excess(self, theta: Array) -> float:
        return float(self.regular / 2 * np.sum((theta - self.minimise(self.regular, 0.0)) ** 2))


MECHANISMS: dict[str, tuple[Any, dp.Privacy]] = {
    "objective gamma": (dp.ObjectivePerturbation(), dp.Privacy(0.7)),
    "objective matrix": (dp.ObjectivePerturbation("matrix"), dp.Privacy(0.7)),
    "objective gaussian": (dp.ObjectivePerturbation("gaussian"), dp.Privacy(0.7, 1e-6)),
    "output gamma": (dp.OutputPerturbation(), dp.Privacy(0.7)),
    "output gaussian": (dp.OutputPerturbation("gaussian"), dp.Privacy(0.7, 1e-6, "add-remove")),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_it_is_attained_by_quadratics(name: str) -> None:
    """Without curvature of its own the loss leaves the excess ||b||^2 / (2 mu), so the quantile is that of the noise."""
    mechanism, privacy = MECHANISMS[name]
    template, n, draws = linear(3), 500, 4000
    certificate = dp.verify(template, privacy, n, mechanism)
    assert certificate.added == 0
    engine = Exact(np.array([100.0, -20.0, 3.0]), certificate.strong_convexity)
    rng = generator(1)
    analysis = analyse(template)
    excess = np.array([engine.excess(mechanism.run(analysis, certificate, engine, rng)) for _ in range(draws)]) / n
    for probability in (0.5, 0.05):
        found = dp.risk_bound(template, certificate, probability)
        above = float((excess > found.bound).mean())
        spread = math.sqrt(probability / draws)
        assert above <= probability + 5.5 * spread
        if "matrix" not in name:  # its quantile is bounded, not known
            assert above >= 0.8 * probability - 5.5 * spread  # the cover adds a few per cent to the bound
    # The bound on the mean is the mean, but for what the cover adds.
    mu, square = certificate.strong_convexity, mean_square(certificate)
    exact = (square / mu if certificate.perturbed == "objective" else square * mu) / 2 / n
    assert 0.97 * found.expected <= exact <= found.expected
    assert excess.mean() == pytest.approx(found.expected, rel=0.25 if "matrix" in name else 0.1)


@pytest.mark.parametrize(
    ("problem", "regularization", "classes"),
    [("logistic_regression", 0.01, (-1, 1)), ("large_margin_gaussian", 0.02, (0, 1)), ("hinge_svm", 0.2, (-1, 1))],
)
def test_whole_releases_stay_below(problem: str, regularization: float, classes: tuple[int, int]) -> None:
    template = dp.load(problem, features=2, regularization=regularization)
    rng = generator(6)
    y = rng.integers(2, size=300)
    x = rng.normal(size=(2, 2))[y] + rng.normal(size=(300, 2))
    data = {"x": x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True)), "y": np.array(classes)[y]}
    analysis = analyse(template)
    engine = DataEngine(analysis, template.record.validate(data), 300, None)
    for mechanism, privacy in MECHANISMS.values():
        if not dp.is_private(template, privacy, 300, mechanism):
            continue
        certificate = dp.verify(template, privacy, 300, mechanism)
        width = certificate.settings.get("smoothing", 0.0)
        problem_of = engine.problem(300 * analysis.modulus, None, 0.0, width)
        best = engine.minimise(300 * analysis.modulus, 1e-6, smoothing=width or 1e-3 * (analysis.kink is not None))
        assert float(np.linalg.norm(best)) <= minimiser_radius(analysis, certificate)
        # The release is above with a probability of 1e-6, so that none ever is.
        found = dp.risk_bound(template, certificate, 1e-6)
        assert not width or "rounded off" in found.objective
        release = dp.solve(template, data, privacy, mechanism, size=300)
        theta = analysis.form.space.pack(release.parameters)
        assert (problem_of.value(theta) - problem_of.value(best)) / 300 <= found.bound


def test_comparators_and_what_is_added() -> None:
    template = dp.load("large_margin_gaussian", features=3, regularization=1e-3)
    certificate = dp.verify(template, dp.Privacy(0.5), 300, dp.ObjectivePerturbation())
    assert certificate.added > 0
    found = [dp.risk_bound(template, certificate, comparator_norm=r) for r in (0.0, 1.0, 5.0, None)]
    assert [f.bound for f in found] == sorted(f.bound for f in found)
    # Never more than (Delta/2) r^2 + ||b||^2 / (2 mu), which is easier to state.
    mu, added = certificate.strong_convexity, certificate.added
    for f in found[:3]:
        simple = (added * f.comparator_norm**2 / 2 + f.noise_norm**2 / (2 * mu)) / 300
        assert f.bound <= simple * (1 + 1e-6) + f.parts["cover"]
    assert found[0].bound == pytest.approx(sum(found[0].parts.values()))
    assert "300 records" in str(found[0])
    assert "0.95" in str(found[0])


def test_slopes_of_a_regularizer_on_a_ball() -> None:
    w = cp.Variable(3, name="w")
    regularizer = 0.3 * cp.sum_squares(w - 1) + 0.2 * cp.norm1(w)
    template = dp.Template(dp.Record(x=dp.Ball(3)), lambda x: cp.logistic(x @ w), regularizer)
    form, regularizer = analyse(template).form, template.regularizer
    assert math.isinf(slope_of(regularizer, form))
    bound = slope_of(regularizer, form, 2.0)
    stiffness, kinked = bregman_bounds(regularizer, form)
    assert stiffness == pytest.approx(0.6)
    assert kinked == pytest.approx(0.2 * math.sqrt(3))
    rng = generator(7)
    for _ in range(200):
        a, b = rng.normal(size=(2, 3))
        a *= 2 * rng.random() / np.linalg.norm(a)
        slope = 0.6 * (a - 1) + 0.2 * np.sign(a)
        assert np.linalg.norm(slope) <= bound
        values = [0.3 * np.sum((v - 1) ** 2) + 0.2 * np.abs(v).sum() for v in (a, b)]
        distance = float(np.linalg.norm(b - a))
        above = values[1] - values[0] - slope @ (b - a)
        assert above <= stiffness * distance**2 / 2 + 2 * kinked * distance + 1e-12


def test_what_has_no_bound_is_refused() -> None:
    template = linear(2)
    certificate = dp.verify(template, dp.Privacy(1.0), 100)
    wrong: list[dict[str, float]] = [{"probability": p} for p in (0.0, 1.0)]
    for options in (*wrong, *({"comparator_norm": r} for r in (-1.0, math.inf))):
        with pytest.raises(dp.TemplateError, match=next(iter(options))):
            dp.risk_bound(template, certificate, **options)
    with pytest.raises(dp.TemplateError, match="Certificate"):
        dp.risk_bound(template, "certificate")  # type: ignore[arg-type]
    with pytest.raises(dp.TemplateError, match="not of this template"):
        dp.risk_bound(dp.load("large_margin_gaussian", features=2), certificate)
    w = cp.Variable(2, name="w")
    steep = dp.Template(
        dp.Record(x=dp.Ball(2)), lambda x: cp.logistic(x @ w), cp.sum_squares(w) - cp.sum(cp.log(w)), [cp.norm(w) <= 1]
    )
    certificate = dp.verify(steep, dp.Privacy(1.0, 1e-6), 100, dp.NoisyGradientDescent(step_size=0.01))
    with pytest.raises(dp.TemplateError, match="not that of gradients"):
        dp.risk_bound(steep, certificate)
