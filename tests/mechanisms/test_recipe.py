"""The recipe, private whitening and the automatic choice: what options stand for, what each stage costs, what was compared."""

import math

import cvxpy as cp
import numpy as np
import pytest
from learners_of_tests import logistic

import dpconvex as dp
from dpconvex.fitting.verify import Method, analyse
from dpconvex.mechanisms.private_whitening import level
from dpconvex.mechanisms.recipe import CLEARLY, ENOUGH, Automatic, foreseen
from dpconvex.noise.profiles import gaussian_delta

ADJACENCIES = ("replace-one", "add-remove")
PROMISE = dp.Privacy(1.0, 1e-5, "add-remove")
PURE, APPROXIMATE = dp.Privacy(1.0), dp.Privacy(1.0, 1e-6)
LOGISTIC = dp.load("logistic_regression", features=4)
RIDGE = dp.load("logistic_regression", features=3, regularization=0.1)
DESCENT, FIRST = dp.NoisyGradientDescent(clip=0.3), dp.PrivateWhitening(0.2)
LABELLED = dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1]))
w, b = cp.Variable(2, name="w"), cp.Variable(name="b")


def way(template, mechanism=None, whitening=None, size=100):
    return Method(mechanism, whitening=whitening).way(template, PROMISE, size)


def test_what_the_options_stand_for():
    assert way(LOGISTIC, whitening=False) == (Automatic(), None)
    assert way(LOGISTIC) == way(LOGISTIC, whitening="auto")
    for given, first in ((None, None), (False, None), (FIRST, FIRST), (True, dp.PrivateWhitening())):
        assert way(LOGISTIC, DESCENT, given) == (DESCENT, first)
    steps, found = way(LOGISTIC, whitening=True)
    assert isinstance(steps, dp.NoisyGradientDescent)
    assert steps.clip == pytest.approx(0.25)  # of a gradient bound of 1
    assert found == dp.PrivateWhitening()
    for wrong in ("yes", 1, 0.09, dp.PrivateWhitening):
        with pytest.raises(dp.TemplateError, match="whitening must be"):
            dp.verify(LOGISTIC, PROMISE, 100, whitening=wrong)


def test_smooth_losses_of_classes_take_adaptive_steps_whatever_the_number_of_records():
    for size in (100, 10**7):
        certificate = dp.verify(LOGISTIC, PROMISE, size)
        assert certificate.perturbed == "queries"
        assert certificate.advice[-1].startswith("Chosen because scores are linear")


def wishes(variable=w, weights=(1.0, 1.0), constraints=(), offset=0.0, decision=lambda p, x: x @ p["w"]):
    public = 1e-6 * cp.sum_squares(cp.multiply(np.array(weights), variable))
    loss = lambda x, y: cp.logistic(-y * (x @ variable + offset))  # noqa: E731
    return dp.Template(LABELLED, loss, public, list(constraints), decision=decision)


CONSTRAINED = wishes(constraints=[cp.sum(w) <= 1])
OTHERS = [
    *(dp.load(name, features=4) for name in ("large_margin_gaussian", "hinge_svm")),
    dp.load("elastic_net_logistic", features=4),  # few features, of those that were declared
    wishes(cp.Variable(2, name="w", nonneg=True)),
    CONSTRAINED,
]


@pytest.mark.parametrize("template", OTHERS)
def test_kinks_constraints_and_wishes_of_sparsity_ask_for_minimisers(template):
    assert way(template, size=2000) == (Automatic(), None)


def test_few_records_of_constrained_classes_take_clipped_steps():
    enough = ENOUGH * 2 / level(1.0, 1e-5)
    for size, clipped in ((int(0.99 * enough), True), (int(1.01 * enough) + 1, False)):
        chosen, first = way(CONSTRAINED, size=size)
        assert first is None
        assert isinstance(chosen, dp.NoisyGradientDescent) is clipped
    certificate = dp.verify(dp.load("large_margin_gaussian", features=10, classes=4), PROMISE, 500)
    assert "clip" in certificate.settings
    assert certificate.whitening is None
    assert "need not converge" in certificate.error
    sparse = dp.load("elastic_net_logistic", features=40)  # a minimiser is sparse, and steps end nowhere sparse
    assert way(sparse, size=20) == (Automatic(), None)


def test_quadratic_losses_of_classes_release_their_statistics():
    ridge, classes = (dp.load(name, features=4) for name in ("ridge_regression", "least_squares_classifier"))
    for privacy in (PROMISE, dp.Privacy(1.0, 1e-5)):
        certificate = dp.verify(classes, privacy, 1000)
        assert certificate.perturbed == "statistics"
        assert certificate.advice[-1].startswith("Chosen because the loss is quadratic")
        assert dp.verify(ridge, privacy, 1000, whitening=False).perturbed == "objective"
    assert dp.verify(ridge, PURE, 1000).perturbed == "objective"  # pure noise pays for every statistic


def test_records_without_classes_take_adaptive_steps():
    x, counts = dp.Ball(4), dp.Box(0, 20)
    v, c = cp.Variable(4, name="v"), cp.Variable(name="c")
    poisson = dp.Template(dp.Record(x=x, y=counts), lambda x, y: cp.exp(x @ v + c) - y * (x @ v + c))
    several = dp.Template(dp.Record(x=x, z=x, y=counts), lambda x, z, y: cp.square((x + z) @ v - y))
    kinked = dp.Template(dp.Record(x=x, y=counts), lambda x, y: cp.abs(x @ v - y), cp.sum_squares(v))
    for template in (poisson, *(dp.load(f"{kind}_regression", features=4) for kind in ("ridge", "linear", "huber"))):
        certificate = dp.verify(template, PROMISE, 1000)
        assert certificate.perturbed == "queries"
        assert certificate.advice[-1].startswith("Chosen because scores are linear")
    assert dp.verify(several, PROMISE, 1000).perturbed == "queries"  # two fields that share parameters
    assert dp.verify(kinked, PROMISE, 1000).perturbed != "queries"


def test_a_pure_promise_is_never_whitened_by_itself():
    assert dp.verify(LOGISTIC, PURE, 100, whitening="auto") == dp.verify(LOGISTIC, PURE, 100)
    with pytest.raises(dp.NotPrivate, match="delta = 0"):
        dp.verify(LOGISTIC, PURE, 100, whitening=True)


# Private whitening: exact composition of both stages, and what is refused.


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("share", [0.05, 0.5])
@pytest.mark.parametrize("mechanism", [DESCENT, dp.OutputPerturbation("gaussian")])
def test_two_gaussian_stages_are_one(mechanism, share, adjacency):
    promise = dp.Privacy(0.8, 1e-6, adjacency)
    found = dp.verify(RIDGE, promise, 500, mechanism, whitening=dp.PrivateWhitening(share))
    cover, first = found.cover, (math.sqrt(2) if adjacency == "replace-one" else 1.0) / found.whitening.sigma
    unit = math.sqrt(found.settings["steps"]) if mechanism is DESCENT else 1 / found.strong_convexity
    second = found.sensitivity * unit / found.noise_scale
    assert first**2 / (first**2 + second**2) == pytest.approx(share, rel=1e-3)
    left = promise.epsilon - cover.epsilon - cover.counting
    spent = float(gaussian_delta(left, math.hypot(first, second)))
    assert 0.98 * promise.delta <= spent + cover.delta <= promise.delta
    assert sum(part for part, _ in found.shares()) == pytest.approx(promise.epsilon, rel=1e-9)
    assert dp.Certificate.from_dict(found.to_dict()) == found
    assert "one Gaussian mechanism" in found.explain()


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_other_mechanisms_divide_the_promise(adjacency):
    promise = dp.Privacy(1.0, 1e-5, adjacency)
    for mechanism in (dp.ObjectivePerturbation("gaussian"), dp.ObjectivePerturbation("gamma")):
        found = dp.verify(RIDGE, promise, 500, mechanism, whitening=FIRST)
        assert (found.whitening.epsilon, found.whitening.delta) == (0.2, pytest.approx(2e-6))
        assert float(gaussian_delta(0.2, found.whitening.level)) <= 2e-6
        assert sum(part for part, _ in found.shares()) == pytest.approx(1.0, rel=1e-6)
        rest = dp.verify(RIDGE, dp.Privacy(0.8, 8e-6, adjacency), 500, mechanism)
        assert found.noise_scale == pytest.approx(rest.noise_scale, rel=1e-6)


def test_what_whitening_cannot_do_is_refused():
    box = dp.Template(dp.Record(x=dp.Box([0, 0], [1, 1])), lambda x: cp.logistic(x @ w), cp.sum_squares(w))
    for template, first in ((box, dp.PrivateWhitening()), (LOGISTIC, dp.PrivateWhitening(field="y"))):
        with pytest.raises(dp.TemplateError, match="Euclidean balls"):
            dp.verify(template, PROMISE, 100, DESCENT if template is LOGISTIC else None, whitening=first)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_in_a_ledger_of_gaussian_shifts_whitening_costs_what_it_is(adjacency):
    found = dp.verify(LOGISTIC, dp.Privacy(1.0, 1e-6, adjacency), 2000, whitening=True)
    composed = found.whitening.composed
    assert composed <= found.event.level()[0] <= 1.005 * composed  # the residual noise, too


# The automatic choice


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.03, 1e-12), (1e-4, 1e-14), (0.1, 1e-18), (1.0, 1e-60), (300.0, 1e-30)]
)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_the_default_falls_back_to_what_can_be_proved(epsilon, delta, adjacency):
    template = dp.load("logistic_regression", features=3)
    assert dp.verify(template, dp.Privacy(epsilon, delta, adjacency), 1000).noise_scale > 0


@pytest.mark.parametrize("privacy", [PURE, APPROXIMATE])
@pytest.mark.parametrize("problem", ["logistic_regression", "softmax_regression", "large_margin_gaussian", "hinge_svm"])
def test_nothing_that_was_compared_is_clearly_better(problem, privacy):
    analysis = analyse(dp.load(problem, features=3))
    chosen, risks = Automatic().certify(analysis, privacy, 300), {}
    for mechanism in Automatic().candidates(analysis, not privacy.pure):
        certificate = mechanism.certify(analysis, privacy, 300)
        assert foreseen(certificate) == (50 if certificate.perturbed == "output" else 1) * certificate.predicted_risk
        risks[certificate.mechanism] = foreseen(certificate)
        assert f"{certificate.mechanism} {foreseen(certificate):.4g}" in chosen.advice[-1]
    assert len(risks) >= (1 if privacy.pure else 3)
    assert risks[chosen.mechanism] == foreseen(chosen)
    assert CLEARLY * risks[chosen.mechanism] <= min(risks.values())


def test_a_kink_takes_another_mechanism_and_if_all_are_refused_the_first_refusal_is_told():
    def hinge(regularization):
        return dp.Template(
            LABELLED, lambda x, y: cp.pos(1 - y * (x @ w)), regularization * cp.sum_squares(w), [cp.norm(w) <= 3]
        )

    assert dp.verify(hinge(0.1), PURE, 300).perturbed == "output"
    assert dp.verify(hinge(0.1), APPROXIMATE, 300).perturbed in ("output", "gradients")
    assert dp.verify(hinge(0.0), APPROXIMATE, 300).perturbed == "gradients"
    assert dp.verify(hinge(0.0), PURE, 300).perturbed == "output"  # with a quadratic that is added
    flat = dp.Template(dp.Record(x=dp.Ball(2)), lambda x: cp.logistic(x @ w))
    with pytest.raises(dp.NotPrivate, match="not strongly convex"):
        dp.verify(flat, APPROXIMATE, 300, whitening=False)


def test_residual_noise_counts_where_it_is_the_larger_one():
    """Where an exponential bends over all that noise on the objective may reach, noise on the answer needs far less."""
    template = logistic(3, lambda w: 1e-3 * cp.sum_squares(w) + 1e-4 * cp.exp(0.3 * w[0]))
    chosen, named = (dp.verify(template, PURE, 2000, m) for m in (None, dp.ObjectivePerturbation()))
    assert named.is_drowned
    assert "residual noise is larger" in named.advice[-1]
    assert not chosen.is_drowned
    assert not any("residual" in said for said in chosen.advice)


S = cp.Variable((2, 2), symmetric=True, name="S")
WITHOUT_REGULARIZER = {
    "covariances": (dp.Record(x=dp.Ball(2)), lambda x: cp.sum_squares(cp.outer(x, x) - S), [cp.norm(S, "fro") <= 1]),
    "huber": (dp.Record(x=dp.Ball(2), y=dp.Box(-1, 1)), lambda x, y: cp.huber(x @ w - y, 0.5), [cp.norm(w, 2) <= 2]),
    "no projection": (LABELLED, lambda x, y: cp.logistic(-y * (x @ w)), [cp.norm(w, 3) <= 1e-3]),
}


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", WITHOUT_REGULARIZER)
def test_a_quadratic_is_added_where_a_bounded_problem_has_no_regularizer(name, adjacency):
    record, loss, constraints = WITHOUT_REGULARIZER[name]
    template = dp.Template(record, loss, 0.0, constraints)
    for mechanism in (None, dp.ObjectivePerturbation(), dp.OutputPerturbation()):
        certificate = dp.verify(template, dp.Privacy(1.0, adjacency=adjacency), 500, mechanism)
        assert certificate.strong_convexity == certificate.added > 0
        replayed = str(certificate.check())
        assert replayed.startswith("replayed") or "modulus" not in replayed
    free = dp.Template(record, loss, 0.0)
    with pytest.raises(dp.NotPrivate):  # the minimiser can move without limit
        dp.verify(free, dp.Privacy(1.0, adjacency=adjacency), 500, dp.ObjectivePerturbation())
    with pytest.raises(dp.NotPrivate, match="not strongly convex"):
        dp.verify(template, dp.Privacy(1.0, adjacency=adjacency), 500, dp.ObjectivePerturbation(added=0.0))
