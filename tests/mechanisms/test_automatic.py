"""The automatic choice: the certified mechanism with the smallest predicted risk, and what it compared."""

import cvxpy as cp
import pytest

import dpconvex as dp
from dpconvex.mechanisms.automatic import CLEARLY, Automatic, foreseen
from dpconvex.release.verify import analyse

PURE, APPROXIMATE = dp.Privacy(1.0), dp.Privacy(1.0, 1e-6)


def bounded_hinge(regularization: float) -> dp.Template:
    w = cp.Variable(2, name="w")
    return dp.Template(
        dp.Record(x=dp.Ball(2), y=dp.Choice([-1, 1])),
        lambda x, y: cp.pos(1 - y * (x @ w)),
        regularization * cp.sum_squares(w),
        [cp.norm(w) <= 3],
    )


def test_a_pure_promise_on_a_smooth_loss_takes_gamma_noise() -> None:
    for problem in ("logistic_regression", "huber_svm"):
        certificate = dp.verify(dp.load(problem, features=4), PURE, 500)
        assert certificate.mechanism == "objective perturbation with Gamma noise"


def test_matrix_shaped_noise_is_taken_where_it_is_smaller() -> None:
    many = dp.verify(dp.load("softmax_regression", features=10, classes=4), PURE, 5000)
    assert many.noise == "matrix"
    one = dp.verify(dp.load("softmax_regression", features=10, classes=2), PURE, 5000)
    assert one.noise == "gamma"


@pytest.mark.parametrize("privacy", [PURE, APPROXIMATE])
@pytest.mark.parametrize("problem", ["logistic_regression", "softmax_regression", "large_margin_gaussian", "hinge_svm"])
def test_nothing_that_was_compared_is_clearly_better(problem: str, privacy: dp.Privacy) -> None:
    analysis = analyse(dp.load(problem, features=3))
    chosen = Automatic().certify(analysis, privacy, 300)
    risks = {}
    for mechanism in Automatic().candidates(analysis, privacy):
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
