"""The recipe and the automatic choice: what the options stand for, where it whitens, what was compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import dpconvex as dp
from dpconvex.mechanisms.private_whitening import level
from dpconvex.mechanisms.recipe import CLEARLY, ENOUGH, ENOUGH_UNWHITENED, Automatic, foreseen
from dpconvex.release.verify import Method, analyse

PROMISE = dp.Privacy(1.0, 1e-5, "add-remove")
LOGISTIC = dp.load("logistic_regression", features=4)


def test_what_the_options_stand_for() -> None:
    assert Method(None, whitening=False).way(LOGISTIC, PROMISE, 100) == (Automatic(), None)
    usual, auto = (Method(None, whitening=how).way(LOGISTIC, PROMISE, 100) for how in (None, "auto"))
    assert usual == auto
    own, first = dp.NoisyGradientDescent(clip=0.1), dp.PrivateWhitening(0.2)
    for off in (None, False):
        assert Method(own, whitening=off).way(LOGISTIC, PROMISE, 100) == (own, None)
    assert Method(own, whitening=first).way(LOGISTIC, PROMISE, 100) == (own, first)
    assert Method(own, whitening=True).way(LOGISTIC, PROMISE, 100) == (own, dp.PrivateWhitening())
    steps, found = Method(None, whitening=True).way(LOGISTIC, PROMISE, 100)
    assert isinstance(steps, dp.NoisyGradientDescent)
    assert steps.clip == pytest.approx(0.25)  # of a gradient bound of 1
    assert found == dp.PrivateWhitening()
    wrong: Any
    for wrong in ("yes", 1, 0.09, dp.PrivateWhitening):
        with pytest.raises(dp.TemplateError, match="whitening must be"):
            dp.verify(LOGISTIC, PROMISE, 100, whitening=wrong)


def test_few_records_are_whitened_and_many_are_not() -> None:
    enough = ENOUGH * 4 / level(1.0, 1e-5)
    for size, whitened in ((int(0.99 * enough), True), (int(1.01 * enough) + 1, False)):
        certificate = dp.verify(LOGISTIC, PROMISE, size, whitening="auto")
        assert (certificate.whitening is not None) is whitened
        assert certificate == dp.verify(LOGISTIC, PROMISE, size)
        told = [text for text in certificate.advice if text.startswith("Chosen by size")]
        assert len(told) == whitened
        assert ("no distance to a minimiser is claimed" in str(certificate)) is whitened
        rest = tuple(text for text in certificate.advice if text not in told)
        assert (replace(certificate, advice=rest) == dp.verify(LOGISTIC, PROMISE, size, whitening=whitened)) is True


def biased(decision: bool = True) -> dp.Template:
    w, b = cp.Variable(2, name="w"), cp.Variable(name="b")
    return dp.Template(
        dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1])),
        lambda x, y: cp.logistic(-y * (x @ w + b)),
        decision=(lambda p, x: x @ p["w"] + p["b"]) if decision else None,
    )


def wishes(weights: Any = (1.0, 1.0), constrained: bool = False, **attributes: Any) -> dp.Template:
    w = cp.Variable(2, name="w", **attributes)
    return dp.Template(
        dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1])),
        lambda x, y: cp.logistic(-y * (x @ w)),
        1e-6 * cp.sum_squares(cp.multiply(np.array(weights), w)),
        [cp.sum(w) <= 1] if constrained else [],
        decision=lambda p, x: x @ p["w"],
    )


@pytest.mark.parametrize(
    "template",
    [
        biased(),  # a constant of its own means nothing next to records of one length
        biased(decision=False),
        dp.load("kernel_svm", features=4, components=2),  # predicts from features that are not mapped yet
        dp.load("huber_regression", features=4),
        dp.load("large_margin_gaussian", features=2),
        dp.load("hinge_svm", features=4),
        dp.load("elastic_net_logistic", features=4),  # few features, of those that were declared
        wishes(nonneg=True),
        wishes(constrained=True),
        wishes(weights=[1.0, 2.0]),
    ],
)
def test_auto_leaves_out_what_whitening_would_spoil(template: dp.Template) -> None:
    assert Method(None, whitening="auto").way(template, PROMISE, 2000) == (Automatic(), None)


def test_few_records_of_classes_take_clipped_steps_where_whitening_would_spoil() -> None:
    enough = ENOUGH_UNWHITENED * 2 / level(1.0, 1e-5)
    for size, clipped in ((int(0.99 * enough), True), (int(1.01 * enough) + 1, False)):
        chosen, first = Method(None, whitening=None).way(wishes(constrained=True), PROMISE, size)
        assert first is None
        assert isinstance(chosen, dp.NoisyGradientDescent) is clipped
    many = dp.load("large_margin_gaussian", features=10, classes=4)
    certificate = dp.verify(many, PROMISE, 500)
    assert "clip" in certificate.settings
    assert certificate.whitening is None
    assert certificate.answer
    sparse = dp.load("elastic_net_logistic", features=40)  # a minimiser is sparse, and steps end nowhere sparse
    assert Method(None, whitening=None).way(sparse, PROMISE, 20) == (Automatic(), None)


def test_quadratic_losses_release_their_statistics() -> None:
    ridge = dp.load("ridge_regression", features=4)
    for adjacency in ("add-remove", "replace-one"):
        privacy = dp.Privacy(1.0, 1e-5, adjacency)
        certificate = dp.verify(ridge, privacy, 1000)
        assert certificate.perturbed == "statistics"
        assert certificate.advice[-1].startswith("Chosen because the loss is quadratic")
        assert dp.verify(ridge, privacy, 1000, whitening=False).perturbed == "objective"
    assert dp.verify(ridge, dp.Privacy(1.0), 1000).perturbed == "objective"  # pure noise pays for every statistic
    wide = dp.load("ridge_regression", features=400)
    assert dp.verify(wide, PROMISE, 1000).perturbed == "objective"


def test_a_pure_promise_is_never_whitened_by_itself() -> None:
    assert dp.verify(LOGISTIC, dp.Privacy(1.0), 100, whitening="auto") == dp.verify(LOGISTIC, dp.Privacy(1.0), 100)
    with pytest.raises(dp.NotPrivate, match="delta = 0"):
        dp.verify(LOGISTIC, dp.Privacy(1.0), 100, whitening=True)


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.03, 1e-12), (1e-4, 1e-14), (0.1, 1e-18), (1.0, 1e-60), (300.0, 1e-30)]
)
@pytest.mark.parametrize("adjacency", ["replace-one", "add-remove"])
def test_the_default_falls_back_to_what_can_be_proved(epsilon: float, delta: float, adjacency: dp.Adjacency) -> None:
    template = dp.load("logistic_regression", features=3)
    assert dp.verify(template, dp.Privacy(epsilon, delta, adjacency), 1000).noise_scale > 0


PURE, APPROXIMATE = dp.Privacy(1.0), dp.Privacy(1.0, 1e-6)


def bounded_hinge(regularization: float) -> dp.Template:
    w = cp.Variable(2, name="w")
    return dp.Template(
        dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1])),
        lambda x, y: cp.pos(1 - y * (x @ w)),
        regularization * cp.sum_squares(w),
        [cp.norm(w) <= 3],
    )


@pytest.mark.parametrize("privacy", [PURE, APPROXIMATE])
@pytest.mark.parametrize("problem", ["logistic_regression", "softmax_regression", "large_margin_gaussian", "hinge_svm"])
def test_nothing_that_was_compared_is_clearly_better(problem: str, privacy: dp.Privacy) -> None:
    analysis = analyse(dp.load(problem, features=3))
    chosen = Automatic().certify(analysis, privacy, 300)
    risks = {}
    for mechanism in Automatic().candidates(analysis, not privacy.pure):
        certificate = mechanism.certify(analysis, privacy, 300)
        assert certificate.predicted_risk is not None
        assert foreseen(certificate) == (50 if certificate.perturbed == "output" else 1) * certificate.predicted_risk
        risks[certificate.mechanism] = foreseen(certificate)
    assert len(risks) >= (1 if privacy.pure else 3)
    assert risks[chosen.mechanism] == foreseen(chosen)
    assert CLEARLY * risks[chosen.mechanism] <= min(risks.values())
    for name, risk in risks.items():
        assert f"{name} {risk:.4g}" in chosen.advice[-1]


def test_a_kink_takes_another_mechanism() -> None:
    assert dp.verify(bounded_hinge(0.1), PURE, 300).perturbed == "output"
    assert dp.verify(bounded_hinge(0.1), APPROXIMATE, 300).perturbed in ("output", "gradients")
    assert dp.verify(bounded_hinge(0.0), APPROXIMATE, 300).perturbed == "gradients"


def test_if_all_are_refused_the_first_refusal_is_told() -> None:
    with pytest.raises(dp.NotPrivate, match="not strongly convex"):
        dp.verify(bounded_hinge(0.0), PURE, 300)
    w = cp.Variable(2, name="w")
    flat = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: cp.logistic(x @ w))
    with pytest.raises(dp.NotPrivate, match="not strongly convex"):
        dp.verify(flat, APPROXIMATE, 300)


def test_residual_noise_counts_where_it_is_the_larger_one() -> None:
    """Where an exponential bends over all that noise on the objective may reach, noise on the answer needs far less."""
    w = cp.Variable(3, name="w")
    template = dp.Template(
        dp.Record(x=dp.Ball(3), y=dp.Choice([-1, 1])),
        lambda x, y: cp.logistic(-y * (x @ w)),
        1e-3 * cp.sum_squares(w) + 1e-4 * cp.exp(0.3 * w[0]),
    )
    chosen, named = (dp.verify(template, dp.Privacy(1.0), 2000, m) for m in (None, dp.ObjectivePerturbation()))
    assert named.is_drowned
    assert "residual noise is larger" in named.advice[-1]
    assert not chosen.is_drowned
    assert not any("residual" in said for said in chosen.advice)
