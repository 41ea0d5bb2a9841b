"""Bounds on the excess risk: that they hold, that they are attained where the theory says so, and what they are made of."""

import math

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from benchmarks.papers.excess_risk import mean_square, minimiser_radius, risk_bound
from dpconvex.fitting.engine import DataEngine
from dpconvex.fitting.verify import analyse

MECHANISMS = {
    "objective gamma": (dp.ObjectivePerturbation(), dp.Privacy(0.7)),
    "objective matrix": (dp.ObjectivePerturbation("matrix"), dp.Privacy(0.7)),
    "objective gaussian": (dp.ObjectivePerturbation("gaussian"), dp.Privacy(0.7, 1e-6)),
    "output gamma": (dp.OutputPerturbation(), dp.Privacy(0.7)),
    "output gaussian": (dp.OutputPerturbation("gaussian"), dp.Privacy(0.7, 1e-6, "add-remove")),
}


class Exact:
    """Closed-form answers for a linear loss: the minimiser of <total + b, w> + (mu/2) ||w||^2."""

    def __init__(self, mu):
        self.total, self.mu = np.array([100.0, -20.0, 3.0]), mu

    def minimise(self, strong_convexity, tolerance, linear=0.0, **options):
        return -(self.total + linear) / self.mu


@pytest.mark.parametrize("name", MECHANISMS)
def test_it_is_attained_by_quadratics(name):
    """Without curvature of its own the loss leaves the excess ||b||^2 / (2 mu), so the quantile is that of the noise."""
    mechanism, privacy = MECHANISMS[name]
    w, draws = cp.Variable(3, name="w"), 4000
    template = dp.Template(dp.Record(x=dp.Ball(3)), lambda x: x @ w, 0.05 * cp.sum_squares(w))
    certificate, analysis = dp.verify(template, privacy, 500, mechanism), analyse(template)
    assert certificate.added == 0
    mu, rng = certificate.strong_convexity, np.random.default_rng(1)
    engine = Exact(mu)
    answers = np.array([mechanism.run(analysis, certificate, engine, rng) for _ in range(draws)])
    excess = mu / 2 * ((answers - engine.minimise(mu, 0.0)) ** 2).sum(axis=1) / 500
    for probability in (0.5, 0.05):
        found = risk_bound(template, certificate, probability)
        above, spread = float((excess > found.bound).mean()), math.sqrt(probability / draws)
        assert above <= probability + 5.5 * spread
        if "matrix" not in name:  # its quantile is bounded, not known
            assert above >= 0.8 * probability - 5.5 * spread  # the residual noise adds a few per cent to the bound
    square = mean_square(certificate)
    exact = (square / mu if certificate.perturbed == "objective" else square * mu) / 2 / 500
    assert 0.97 * found.expected <= exact <= found.expected
    assert excess.mean() == pytest.approx(found.expected, rel=0.25 if "matrix" in name else 0.1)


@pytest.mark.parametrize(("problem", "classes"), [("large_margin_gaussian", (0, 1)), ("hinge_svm", (-1, 1))])
def test_whole_releases_stay_below(problem, classes):
    template, rng = dp.load(problem, features=2, regularization=0.1), np.random.default_rng(6)
    y = rng.integers(2, size=300)
    data = {"x": dp.Ball(2).sample(300, rng), "y": np.array(classes)[y]}
    analysis = analyse(template)
    engine = DataEngine(analysis, template.record.validate(data), 300, None)
    for mechanism, privacy in MECHANISMS.values():
        if not dp.is_private(template, privacy, 300, mechanism):
            continue
        certificate = dp.verify(template, privacy, 300, mechanism)
        width = certificate.settings.get("smoothing", 0.0)
        objective = engine.problem(300 * analysis.modulus, None, 0.0, width)
        best = engine.minimise(300 * analysis.modulus, 1e-6, smoothing=width or 1e-3 * (analysis.kink is not None))
        assert float(np.linalg.norm(best)) <= minimiser_radius(analysis, certificate)
        found = risk_bound(template, certificate, 1e-9)  # so rarely above that none ever is
        release = dp.solve(template, data, privacy, mechanism, size=300)
        theta = analysis.form.space.pack(release.parameters)
        assert (objective.value(theta) - objective.value(best)) / 300 <= found.bound


def test_comparators_and_what_is_refused():
    template = dp.load("large_margin_gaussian", features=3, regularization=1e-3)
    certificate = dp.verify(template, dp.Privacy(0.5), 300, dp.ObjectivePerturbation())
    found = [risk_bound(template, certificate, comparator_norm=r) for r in (0.0, 1.0, 5.0, None)]
    assert [f.bound for f in found] == sorted(f.bound for f in found)
    assert found[0].bound == pytest.approx(sum(found[0].parts.values()))
    for f in found[:3]:  # never more than (Delta/2) r^2 + ||b||^2 / (2 mu), which is easier to state
        simple = certificate.added * f.comparator_norm**2 / 2 + f.noise_norm**2 / (2 * certificate.strong_convexity)
        assert f.bound <= simple / 300 * (1 + 1e-6) + f.parts["cover"]
    with pytest.raises(dp.TemplateError, match="not of this template"):
        risk_bound(dp.load("logistic_regression", features=3, radius=7.0), certificate)
